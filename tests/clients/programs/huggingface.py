"""huggingface_hub's InferenceClient against TEI's routes."""

import json
import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

given = json.load(sys.stdin)
client = InferenceClient(model=f"{given['url']}/m/{given['model']}/embed")
compared = InferenceClient(model=f"{given['url']}/m/{given['model']}/similarity")
texts = given["texts"]
try:
    client.feature_extraction(texts[0], prompt_name="unknown")
    unknown_prompt = 200
except HfHubHTTPError as error:
    unknown_prompt = error.response.status_code

print(
    json.dumps(
        {
            "many": client.feature_extraction(texts).tolist(),
            "one": client.feature_extraction(texts[0], normalize=True, truncate=True).tolist(),
            "raw": client.feature_extraction(texts, normalize=False, truncate=True).tolist(),
            "similar": compared.sentence_similarity(given["source"], other_sentences=texts),
            "unknown_prompt": unknown_prompt,
        }
    )
)

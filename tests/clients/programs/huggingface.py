"""huggingface_hub's InferenceClient against TEI's routes."""

import json
import sys

from huggingface_hub import InferenceClient

given = json.load(sys.stdin)
embed = InferenceClient(model=f"{given['url']}/m/{given['alias']}/embed")
similar = InferenceClient(model=f"{given['url']}/m/{given['alias']}/similarity")

print(
    json.dumps(
        {
            "many": embed.feature_extraction(given["texts"]).tolist(),
            "one": embed.feature_extraction(given["texts"][0], normalize=True, truncate=True).tolist(),
            "similarity": similar.sentence_similarity(given["texts"][0], other_sentences=given["texts"][1:]),
        }
    )
)

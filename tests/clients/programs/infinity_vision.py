"""infinity-client's vision client: multi-vectors of pictures and of queries, over base64."""

import base64
import io
import json
import sys

from infinity_client.vision_client import InfinityVisionAPI
from PIL import Image

given = json.load(sys.stdin)
pictures = [Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))) for picture in given["pictures"]]
client = InfinityVisionAPI(url=given["url"], model=given["model"])
pages, page_tokens = client.image_embed(given["model"], pictures).result()
queries, query_tokens = client.embed(given["model"], given["queries"]).result()

print(
    json.dumps(
        {
            "sent": client._image_payload(pictures),
            "pages": [rows.tolist() for rows in pages],
            "queries": [rows.tolist() for rows in queries],
            "tokens": [page_tokens, query_tokens],
        }
    )
)

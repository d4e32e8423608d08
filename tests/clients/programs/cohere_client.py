"""cohere: rerank v1 and v2, embed v1 and v2."""

import base64
import json
import sys

import cohere
import numpy

given = json.load(sys.stdin)
url, query, documents = given["url"], given["query"], given["documents"]
v2 = cohere.ClientV2(api_key="none", base_url=url)
v1 = cohere.Client(api_key="none", base_url=url)

ranked_v2 = v2.rerank(model=given["reranker"], query=query, documents=documents, top_n=3)
ranked_v1 = v1.rerank(
    model=given["reranker"], query=query, documents=[{"text": text} for text in documents], return_documents=True
)
embedded_v2 = v2.embed(
    model=given["embedder"], texts=documents, input_type="search_document", embedding_types=["float", "base64"]
)
embedded_v1 = v1.embed(model=given["embedder"], texts=documents, input_type="search_document")
picture = given["picture"]
seen = v2.embed(model=given["image_text"], images=[picture], input_type="image", embedding_types=["float"])
try:
    v2.rerank(model="rerank-v4.0", query=query, documents=documents)
    unknown = None
except cohere.core.api_error.ApiError as error:
    unknown = type(error).__name__

print(
    json.dumps(
        {
            "ranked_v2": [[result.index, result.relevance_score] for result in ranked_v2.results],
            "ranked_v1": [[result.index, result.relevance_score] for result in ranked_v1.results],
            "documents_v1": [result.document.text for result in ranked_v1.results],
            "embedded_v2": embedded_v2.embeddings.float_,
            "decoded_v2": [
                numpy.frombuffer(base64.b64decode(text), "<f4").tolist() for text in embedded_v2.embeddings.base64
            ],
            "embedded_v1": embedded_v1.embeddings,
            "billed_v2": embedded_v2.meta.billed_units.input_tokens,
            "seen": seen.embeddings.float_,
            "unknown": unknown,
        }
    )
)

"""voyageai: embed and rerank."""

import json
import sys

import voyageai

given = json.load(sys.stdin)
client = voyageai.Client(api_key="none", base_url=f"{given['url']}/v1")
embedded = client.embed(given["documents"], model=given["embedder"], truncation=True)
small = client.embed(given["documents"], model=given["embedder"], output_dtype="int8", output_dimension=128)
ranked = client.rerank(given["query"], given["documents"], model=given["reranker"], top_k=3)

print(
    json.dumps(
        {
            "embedded": embedded.embeddings,
            "small": small.embeddings,
            "tokens": [embedded.total_tokens, ranked.total_tokens],
            "ranked": [[result.index, result.relevance_score] for result in ranked.results],
            "documents": [result.document for result in ranked.results],
        }
    )
)

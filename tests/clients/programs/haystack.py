"""Haystack: TEI's embedders and ranker, Cohere's and Jina's rankers."""

import json
import sys

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

given = json.load(sys.stdin)
url, model, query = given["url"], given["reranker"], given["query"]
documents = [Document(id=str(index), content=text) for index, text in enumerate(given["documents"])]
endpoint = {"url": f"{url}/embed"}
of_query = HuggingFaceAPITextEmbedder(api_type="text_embeddings_inference", api_params=endpoint)
of_documents = HuggingFaceAPIDocumentEmbedder(api_type="text_embeddings_inference", api_params=endpoint)
unit = HuggingFaceAPITextEmbedder(api_type="text_embeddings_inference", api_params=endpoint, normalize=True)
key = Secret.from_token("none")
rankers = [
    HuggingFaceTEIRanker(url=url, top_k=3),
    CohereRanker(model=model, api_key=key, api_base_url=url, top_k=3),
    JinaRanker(model=model, api_key=key, base_url=f"{url}/v1/rerank", top_k=3),
]


def ranked(ranker):
    return [
        [int(document.id), document.score] for document in ranker.run(query=query, documents=documents)["documents"]
    ]


print(
    json.dumps(
        {
            "query": of_query.run(text=query)["embedding"],
            "unit": unit.run(text=query)["embedding"],
            "documents": [document.embedding for document in of_documents.run(documents=documents)["documents"]],
            "ranked": [ranked(ranker) for ranker in rankers],
        }
    )
)

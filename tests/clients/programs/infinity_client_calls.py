"""infinity-client: embeddings, rerank, classify, models, health."""

import json
import sys

from infinity_client import Client
from infinity_client.api.default import classify, embeddings, health, models, rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput

given = json.load(sys.stdin)
client = Client(base_url=given["url"])

embedded = embeddings.sync(client=client, body=OpenAIEmbeddingInputText(input_=given["texts"], model=given["embedder"]))
ranked = rerank.sync(
    client=client,
    body=RerankInput(
        query=given["query"], documents=given["documents"], model=given["reranker"], return_documents=True
    ),
)
classified = classify.sync(client=client, body=ClassifyInput(input_=given["texts"], model=given["classifier"]))
listed = models.sync(client=client)

print(
    json.dumps(
        {
            "embedded": [item.embedding for item in embedded.data],
            "ranked": [[result.index, result.relevance_score] for result in ranked.results],
            "documents": [result.document for result in ranked.results],
            "classified": [[[label.label, label.score] for label in labels] for labels in classified.data],
            "models": [model.id for model in listed.data],
            "healthy": health.sync_detailed(client=client).status_code == 200,
        }
    )
)

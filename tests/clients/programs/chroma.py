"""chromadb: a collection filled and asked through TEI's and OpenAI's embedding functions."""

import json
import os
import sys

import chromadb
from chromadb.config import Settings
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer, OpenAIEmbeddingFunction

given = json.load(sys.stdin)
os.environ["NO_KEY"] = "none"
functions = {
    "tei": HuggingFaceEmbeddingServer(url=f"{given['url']}/embed"),
    "openai": OpenAIEmbeddingFunction(
        api_key_env_var="NO_KEY", api_base=f"{given['url']}/v1", model_name=given["embedder"]
    ),
}
client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
answer = {}
for name, function in functions.items():
    collection = client.create_collection(name, embedding_function=function, metadata={"hnsw:space": "cosine"})
    ids = [str(index) for index in range(len(given["documents"]))]
    collection.add(ids=ids, documents=given["documents"])
    found = collection.query(query_texts=[given["query"]], n_results=3)
    stored = collection.get(ids=ids, include=["embeddings"])
    vectors = dict(zip(stored["ids"], stored["embeddings"].tolist(), strict=True))
    answer[name] = {
        "vectors": [vectors[id] for id in ids],
        "ids": [int(id) for id in found["ids"][0]],
        "distances": found["distances"][0],
    }

print(json.dumps(answer))

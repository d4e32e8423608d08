"""LlamaIndex: TEI's embedding and rerank, which name no model."""

import json
import sys

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

given = json.load(sys.stdin)
query, texts = given["query"], given["documents"]
embedding = TextEmbeddingsInference(model_name=given["embedder"], base_url=given["embedder_url"])
rerank = TextEmbeddingInference(base_url=given["reranker_url"], top_n=3)
nodes = [NodeWithScore(node=TextNode(text=text, id_=str(index)), score=0.0) for index, text in enumerate(texts)]

print(
    json.dumps(
        {
            "documents": embedding.get_text_embedding_batch(texts),
            "query": embedding.get_query_embedding(query),
            "ranked": [[int(node.node_id), node.score] for node in rerank.postprocess_nodes(nodes, query_str=query)],
        }
    )
)

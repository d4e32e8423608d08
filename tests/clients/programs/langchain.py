"""LangChain: OpenAI, Cohere and Infinity embeddings; Cohere and Infinity rerank."""

import json
import sys

from infinity_client import Client
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_community.document_compressors.infinity_rerank import InfinityRerank
from langchain_community.embeddings import InfinityEmbeddings
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings

given = json.load(sys.stdin)
url, embedder, reranker = given["url"], given["embedder"], given["reranker"]
query, texts = given["query"], given["documents"]
documents = [Document(text, metadata={"index": index}) for index, text in enumerate(texts)]

of_openai = OpenAIEmbeddings(model=embedder, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
of_cohere = CohereEmbeddings(model=embedder, base_url=url, cohere_api_key="none")
of_infinity = [InfinityEmbeddings(model=embedder, infinity_api_url=base) for base in (url, f"{url}/v1")]
embeddings = [of_openai, of_cohere, *of_infinity]
cohere_rerank = CohereRerank(model=reranker, base_url=url, cohere_api_key="none", top_n=3)
infinity_rerank = InfinityRerank(model=reranker, client=Client(base_url=url), top_n=3)


def ranked(compressor):
    found = compressor.compress_documents(documents, query)
    return [[document.metadata["index"], document.metadata["relevance_score"]] for document in found]


print(
    json.dumps(
        {
            "documents": [each.embed_documents(texts) for each in embeddings],
            "queries": [each.embed_query(query) for each in embeddings],
            "ranked": [ranked(cohere_rerank), ranked(infinity_rerank)],
        }
    )
)

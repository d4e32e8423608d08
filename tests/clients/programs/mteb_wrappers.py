"""MTEB's wrappers for HTTP: embeddings of texts and pictures, rerank, and late interaction over /pooling."""

import base64
import io
import json
import sys

import mteb
from datasets import Dataset, Features, Image, Value
from mteb.models.openai_wrappers import (
    OpenAIAPIEncodeWrapper,
    OpenAIAPIRerankWrapper,
    OpenAIAPITokenEmbedWrapper,
)
from PIL import Image as Pictures

given = json.load(sys.stdin)
url, query, texts = given["url"], given["query"], given["documents"]
pictures = [
    Pictures.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))).convert("RGB")
    for picture in given["pictures"]
]
of_texts = {
    "task_metadata": mteb.get_task("NFCorpus").metadata,
    "hf_split": "test",
    "hf_subset": "default",
}
of_pages = {**of_texts, "task_metadata": mteb.get_task("VidoreArxivQARetrieval").metadata}
quiet = {"show_progress_bar": False}

plain = OpenAIAPIEncodeWrapper(url, given["embedder"], use_chat_template=False)
chat = OpenAIAPIEncodeWrapper(url, given["embedder"])
seeing = OpenAIAPIEncodeWrapper(url, given["image_text"])
ranker = OpenAIAPIRerankWrapper(url, given["reranker"])
pages = OpenAIAPITokenEmbedWrapper(url, given["page_model"])

pairs = [{"text": [query] * len(texts)}], [{"text": texts}]
corpus = Dataset.from_dict(
    {"id": [str(index) for index in range(len(pictures))], "image": pictures},
    features=Features({"id": Value("string"), "image": Image()}),
)
queries = Dataset.from_dict({"id": ["q"], "text": [given["page_query"]]})
arguments = {"encode_kwargs": quiet, "num_proc": None}
pages.index(corpus, **of_pages, **arguments)
found = pages.search(queries, **of_pages, **arguments, top_k=len(pictures))

print(
    json.dumps(
        {
            "max_length": plain.max_length,
            "plain": plain.encode([{"text": texts}], **of_texts, **quiet).tolist(),
            "chat": chat.encode([{"text": texts}], **of_texts, **quiet).tolist(),
            "seen": seeing.encode([{"image": pictures}], **of_pages, **quiet).tolist(),
            "scores": ranker.predict(*pairs, **of_texts, **quiet).tolist(),
            "pages": [rows.tolist() for rows in pages._corpus_embeddings],
            "found": found["q"],
        }
    )
)

"""Every route in a line or two: whose it is, what it does, its body, its answer. The OpenAPI document is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from runtime.api import answers
from runtime.api.cohere_embeddings import CohereRequest
from runtime.api.jina import MultiVectorRequest
from runtime.api.maxsim import MaxSimRequest
from runtime.api.problems import Dialect
from runtime.api.schemas import EmbeddingRequest
from runtime.api.scoring_schemas import ClassifyRequest, PredictRequest, RerankRequest, ScoreRequest
from runtime.api.similarity_map import SimilarityMapRequest
from runtime.api.tei_embeddings import TeiRequest
from runtime.api.tei_similarity import SimilarityRequest
from runtime.api.tei_tasks import InvocationRequest, VertexRequest
from runtime.api.tokens import DecodeRequest, DetokenizeRequest, TokenizeRequest
from runtime.api.vllm_pooling import PoolingRequest
from runtime.api.weaviate import VectorsRequest

OPENAI, INFINITY, TEI, COHERE, VLLM, WEAVIATE = (
    Dialect.OPENAI,
    Dialect.INFINITY,
    Dialect.TEI,
    Dialect.COHERE,
    Dialect.VLLM,
    Dialect.WEAVIATE,
)

TEXT: Final = "How do I reset my password?"
EMBED: Final = {"input": [TEXT]}
TEXTS: Final = {"inputs": [TEXT]}
RERANK: Final = {"query": TEXT, "documents": ["Choose Forgot password.", "Bread recipe"], "top_n": 1}
SCORE: Final = {"queries": TEXT, "documents": ["Choose Forgot password.", "Bread recipe"]}
PICTURE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
"""One white pixel."""
SENTENCES: Final = {"inputs": {"source_sentence": TEXT, "sentences": ["I forgot my password.", "Bread recipe"]}}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route as the document describes it."""

    dialect: Dialect
    summary: str
    answer: answers.Schema
    body: type[BaseModel] | None = None
    example: dict[str, Any] = field(default_factory=dict)
    media_type: str = "application/json"
    statuses: tuple[int, ...] = (200,)
    """With which it answers when nothing is wrong with the request."""
    others: tuple[Dialect, ...] = ()
    """Dialects in which it answers besides, where the body is of them."""


def probe(summary: str, *statuses: int, answer: answers.Schema = answers.ANYTHING) -> Operation:
    """A route that says how the server is."""
    return Operation(OPENAI, summary, answer, statuses=statuses or (200,))


def admin(summary: str) -> Operation:
    """A route for whoever may administer."""
    return Operation(OPENAI, summary, answers.ANYTHING, statuses=(200, 403, 503))


RANKERS: Final = (COHERE, INFINITY, TEI, Dialect.VOYAGE, WEAVIATE)
V1: Final = Operation(COHERE, "Documents by relevance.", answers.RANKING, RerankRequest, RERANK, others=RANKERS)
V2: Final = Operation(
    COHERE, "Documents by relevance, version 2.", answers.RANKING, RerankRequest, RERANK, others=RANKERS
)
ANYONE: Final = (OPENAI, *RANKERS)

OPERATIONS: Final[dict[str, Operation]] = {
    "POST /v1/embeddings": Operation(OPENAI, "Vectors.", answers.VECTORS, EmbeddingRequest, EMBED),
    "GET /v1/models": Operation(OPENAI, "The models.", answers.MODELS),
    "GET /v1/models/{model_id}": Operation(OPENAI, "One model.", answers.MODEL),
    "POST /embeddings": Operation(INFINITY, "Vectors.", answers.STAMPED_VECTORS, EmbeddingRequest, EMBED),
    "POST /embeddings_image": Operation(
        INFINITY, "Vectors of pictures.", answers.STAMPED_VECTORS, EmbeddingRequest, {**EMBED, "modality": "text"}
    ),
    "POST /rerank": Operation(
        INFINITY,
        "Documents by relevance, in the dialect of the body.",
        answers.RANKING,
        RerankRequest,
        RERANK,
        others=RANKERS,
    ),
    "POST /classify": Operation(
        INFINITY,
        "Labels of texts; `?format=vllm`: in vLLM's form.",
        answers.CLASSES,
        ClassifyRequest,
        EMBED,
        others=(VLLM,),
    ),
    "POST /v1/classify": Operation(INFINITY, "The same.", answers.CLASSES, ClassifyRequest, EMBED, others=(VLLM,)),
    "GET /models": Operation(INFINITY, "The models, with how busy they are.", answers.MODELS),
    "POST /embed": Operation(TEI, "Vectors, a list of lists.", answers.MATRIX, TeiRequest, TEXTS),
    "POST /embed_all": Operation(TEI, "Multi-vectors.", answers.listed(answers.MATRIX), TeiRequest, TEXTS),
    "POST /embed_sparse": Operation(TEI, "Refused: no model is sparse.", answers.ANYTHING, TeiRequest, TEXTS, "", ()),
    "POST /similarity": Operation(TEI, "Cosines to one sentence.", answers.VECTOR, SimilarityRequest, SENTENCES),
    "POST /predict": Operation(TEI, "Labels of a text or a pair.", answers.PREDICTIONS, PredictRequest, TEXTS),
    "POST /tokenize": Operation(
        TEI,
        "Texts as tokens; vLLM's and Cohere's bodies, too.",
        answers.TOKENS,
        TokenizeRequest,
        TEXTS,
        others=(VLLM, COHERE),
    ),
    "POST /decode": Operation(
        TEI, "Token ids as texts.", answers.listed(answers.STRING), DecodeRequest, {"ids": [72, 105]}
    ),
    "POST /": Operation(
        TEI, "What the body or the model's task says.", {}, InvocationRequest, SENTENCES, others=ANYONE
    ),
    "POST /invocations": Operation(TEI, "The same.", {}, InvocationRequest, SENTENCES, others=ANYONE),
    "POST /vertex": Operation(
        TEI,
        "Many bodies in one.",
        answers.record(predictions=answers.listed({})),
        VertexRequest,
        {"instances": [{"type": "embed", **TEXTS}]},
    ),
    "GET /info": Operation(TEI, "The model that is meant, and its limits.", answers.TEI_INFO),
    "GET /": Operation(TEI, "Name and version; to browsers, the way to /docs.", answers.ANYTHING),
    "POST /v1/rerank": V1,
    "POST /v1/v1/rerank": V1,
    "POST /v2/v1/rerank": V1,
    "POST /v2/rerank": V2,
    "POST /v2/v2/rerank": V2,
    "POST /v1/v2/rerank": V2,
    "POST /v1/embed": Operation(COHERE, "Vectors.", answers.COHERE_VECTORS, CohereRequest, {"texts": [TEXT]}),
    "POST /v2/embed": Operation(COHERE, "Vectors by type.", answers.COHERE_VECTORS, CohereRequest, {"texts": [TEXT]}),
    "POST /v1/tokenize": Operation(
        COHERE, "A text as tokens.", answers.TOKENS, TokenizeRequest, {"text": TEXT}, others=(TEI, VLLM)
    ),
    "POST /v1/detokenize": Operation(
        COHERE, "Token ids as a text.", answers.record(text=answers.STRING), DetokenizeRequest, {"tokens": [72, 105]}
    ),
    "POST /v1/multi-vector": Operation(
        COHERE, "Multi-vectors, in Jina's form.", answers.MULTI_VECTORS, MultiVectorRequest, EMBED
    ),
    "POST /pooling": Operation(VLLM, "Vectors or multi-vectors.", answers.POOLED, PoolingRequest, EMBED),
    "POST /score": Operation(VLLM, "The scores of pairs.", answers.SCORES, ScoreRequest, SCORE),
    "POST /v1/score": Operation(VLLM, "The same.", answers.SCORES, ScoreRequest, SCORE),
    "POST /v1/maxsim": Operation(
        OPENAI,
        "Multi-vectors by MaxSim to a query's.",
        answers.ANYTHING,
        MaxSimRequest,
        {"query": [[1.0, 0.0]], "documents": [[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8]]]},
    ),
    "POST /v1/similarity_map": Operation(
        OPENAI,
        "Where a page is like each token of a query.",
        answers.record(maps=answers.STRING),
        SimilarityMapRequest,
        {"query": "total", "image": PICTURE},
    ),
    "POST /detokenize": Operation(
        VLLM, "Token ids as a text.", answers.record(prompt=answers.STRING), DetokenizeRequest, {"tokens": [72, 105]}
    ),
    "GET /version": Operation(VLLM, "The version.", answers.record(version=answers.STRING)),
    "POST /vectors": Operation(WEAVIATE, "One text's vector.", answers.WEAVIATE_VECTOR, VectorsRequest, {"text": TEXT}),
    "GET /meta": Operation(WEAVIATE, "The models in short.", answers.ANYTHING),
    "GET /.well-known/live": probe("Alive, as Weaviate asks.", 204),
    "GET /.well-known/ready": probe("Ready, as Weaviate asks.", 204, 503),
    "GET /v2/health/live": probe("Alive, as KServe asks.", answer=answers.record(live=answers.BOOLEAN)),
    "GET /v2/health/ready": probe("Ready, as KServe asks.", 200, 503, answer=answers.record(ready=answers.BOOLEAN)),
    "GET /v2/models/{model_id}/ready": probe(
        "Whether a model serves, as KServe asks.", 200, 503, answer=answers.record(name=answers.STRING)
    ),
    "GET /health": probe("Alive.", answer=answers.record(status=answers.STRING, unix=answers.NUMBER)),
    "GET /live": probe("Alive.", answer=answers.record(status=answers.STRING, unix=answers.NUMBER)),
    "GET /ping": probe("Alive.", answer=answers.record(status=answers.STRING, unix=answers.NUMBER)),
    "GET /ready": probe("Every required model is ready.", 200, 503, answer=answers.READINESS),
    "GET /health/models": probe("Each model's condition.", answer=answers.record(models=answers.listed({}))),
    "GET /admin/models": admin("Each model's state, bytes, queues, loads."),
    "GET /admin/memory": admin("The ledger, its limit, and what the driver says."),
    "GET /admin/decisions": admin("The latest decisions of admission."),
    **{
        f"POST {path}/{{model_id}}/{verb}": admin(f"{verb.capitalize()} a model.")
        for path, verbs in (
            ("/admin/models", ("load", "unload", "pin", "unpin")),
            ("/v1/models", ("load", "unload")),
            ("/v2/repository/models", ("load", "unload")),
        )
        for verb in verbs
    },
    "POST /v2/repository/index": admin("The models and their states, as Triton lists them."),
    "GET /metrics": Operation(OPENAI, "Metrics in Prometheus' format.", answers.STRING, media_type="text/plain"),
    "GET /openapi.json": Operation(OPENAI, "This document.", answers.record(openapi=answers.STRING)),
    "GET /docs": Operation(OPENAI, "This document as a page.", answers.STRING, media_type="text/html"),
}

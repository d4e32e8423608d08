"""TEI's dialect: `POST /rerank` with `texts`, `POST /predict`. Shapes as text-embeddings-inference 1.9 sends them."""

from __future__ import annotations

from functools import partial
from typing import Any

from runtime.api.classify import Classes, ClassForm, classify
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.places import Places, lone
from runtime.api.problems import Dialect
from runtime.api.rerank import Ranking, RerankForm
from runtime.api.scoring_schemas import PredictRequest, listed, refuse_many
from runtime.errors import InvalidRequest
from runtime.work import Input, Pair, Task


def ranked_texts(ranking: Ranking) -> list[dict[str, Any]]:
    """Every text, whatever `top_n` says: its clients count them. A text itself only where it was asked for."""
    scores, texts = ranking.scores, ranking.documents
    if ranking.return_documents:
        return [{"index": index, "text": texts[index], "score": scores[index]} for index in ranking.order]
    return [{"index": index, "score": scores[index]} for index in ranking.order]


RERANK = RerankForm(Dialect.TEI, ranked_texts, documents="texts")


async def predict(edge: Edge, exchange: Exchange) -> None:
    """`POST /predict`."""
    await infer(edge, exchange, Dialect.TEI, Task.CLASSIFY, partial(classify, form=PREDICT))


def is_batch(inputs: object) -> bool:
    """Whether `inputs` is a list of lists: a flat one is a single text, or a single pair."""
    return isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], list)


def predict_inputs(request: PredictRequest, max_inputs: int) -> list[Input]:
    """One text or pair, or the batch's. Raises InvalidRequest's kinds."""
    inputs = request.inputs
    if not is_batch(inputs):
        return [text_or_pair(listed(inputs, "inputs"), "inputs")]
    refuse_many(inputs, "inputs", max_inputs)
    return [text_or_pair(item, f"inputs[{index}]") for index, item in enumerate(inputs)]


def text_or_pair(item: object, place: str) -> Input:
    """A list of one text or of the two of a pair. Raises InvalidRequest."""
    match item:
        case [str(text)]:
            return text
        case [str(query), str(document)]:
            return Pair(query, document)
    raise InvalidRequest(f"{place} must be a string, or a list of one string or two", param="inputs")


def predict_places(request: PredictRequest) -> Places:
    """A batch's inputs, or the only one."""
    return Places("inputs") if is_batch(request.inputs) else lone("inputs")


def predictions(request: PredictRequest, classes: Classes) -> list[Any]:
    """The labels of one input, or a list of such lists for a batch."""
    if not is_batch(request.inputs):
        return classes.ranked(0)
    return [classes.ranked(index) for index in range(len(classes.scores))]


PREDICT = ClassForm(PredictRequest, predict_inputs, predictions, predict_places)

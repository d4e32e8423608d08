"""TEI's `POST /similarity`: how near sentences are to one, as text-embeddings-inference 1.9 answers it."""

from __future__ import annotations

from typing import Any

from runtime.api.edge import Edge
from runtime.api.embeddings import Given, vectors
from runtime.api.exchange import Exchange
from runtime.api.inference import infer, off_loop, read_json
from runtime.api.places import Places, lone
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import OwnFormOptions, VectorOptions, json_object, shed_nulls, validated
from runtime.api.scoring import Compared, cosine, positions
from runtime.api.scoring_schemas import Candidate, texts_of
from runtime.api.tensors import render
from runtime.errors import InvalidRequest
from runtime.work import Task

SOURCE, SENTENCES = "inputs.source_sentence", "inputs.sentences"


class SimilarityParameters(OwnFormOptions):
    """How the sentences are read."""


class SimilarityRequest(OwnFormOptions):
    """The body of `/similarity`."""

    inputs: Any
    """`source_sentence`, a text, and `sentences`, a list of them."""
    parameters: SimilarityParameters | None = None
    """The other fields may stand here, too."""

    @property
    def options(self) -> VectorOptions:
        """How the sentences are read, wherever the body says it."""
        return self if self.parameters is None else self.beside(self.parameters)


async def similarity(edge: Edge, exchange: Exchange) -> None:
    """`POST /similarity`: a cosine for each sentence, in their order."""
    await infer(edge, exchange, Dialect.TEI, Task.EMBED, similarities)


async def similarities(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """The cosines as a list; every different text is embedded once, all in one job. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    request = validated(SimilarityRequest, shed_nulls(fields, "parameters"))
    pairs = candidates(request.inputs, edge.limits.max_inputs)
    compared = Compared(pairs, lone(SOURCE), Places(SENTENCES))
    texts = list(positions(pairs))
    given = Given(texts, compared.places(texts))
    _, result = await vectors(edge, exchange, record, request.options, given, (Task.EMBED,))
    return render(cosine(pairs, result.rows).tolist())


def candidates(inputs: object, max_inputs: int) -> list[Candidate]:
    """The source sentence with each of the others. Raises InvalidRequest's kinds."""
    if not isinstance(inputs, dict):
        raise InvalidRequest("inputs must be an object with source_sentence and sentences", param="inputs")
    source, sentences = inputs.get("source_sentence"), inputs.get("sentences")
    if not isinstance(source, str):
        raise InvalidRequest(f"{SOURCE} must be a string", param="inputs")
    if not isinstance(sentences, list):
        raise InvalidRequest(f"{SENTENCES} must be a list of strings", param="inputs")
    return [Candidate(source, sentence) for sentence in texts_of(sentences, SENTENCES, max_inputs - 1)]

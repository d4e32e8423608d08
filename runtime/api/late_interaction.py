"""Requests that take several jobs: two sides embedded by a late-interaction model, then compared by MaxSim.

All of them are on one account: what they cost together is on the request's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from runtime.api.edge import Edge
from runtime.api.embeddings import check_sight
from runtime.api.exchange import Exchange
from runtime.api.inference import let_in, run_job
from runtime.api.parts import Reference
from runtime.api.pictures import picture_inputs
from runtime.api.places import Places
from runtime.api.record import Record
from runtime.work import MAXSIM_ID, Input, Job, MatrixPair, Result, Task, Timings

QUERY, DOCUMENT = "query", "document"
"""The prompts that make one or the other side of a text."""


class Account:
    """The jobs of one request, one after another."""

    def __init__(self, edge: Edge, exchange: Exchange, record: Record) -> None:
        self._edge, self._exchange, self._record = edge, exchange, record

    async def embed(self, job: Job, sources: Sequence[str | Reference], places: Places) -> Result:
        """The sources' multi-vectors, by the job's model and prompt. Raises CotenantError.

        `places`: what the caller calls the sources, for errors; so in the other methods.
        """
        inputs = await self.inputs(job, sources, places)
        return await self.run(replace(job, inputs=inputs), places)

    async def inputs(self, job: Job, sources: Sequence[str | Reference], places: Places) -> Sequence[Input]:
        """The sources with their pictures had for the job's model, and headers checked. Raises CotenantError."""
        texts = [source for source in sources if isinstance(source, str)]
        if len(texts) == len(sources):
            return texts
        check_sight(self._edge, job.model, sources, places)
        let_in(self._edge, self._exchange, self._record)
        return await self._exchange.while_connected(picture_inputs(self._edge, sources, places))

    async def compare(self, pairs: Sequence[MatrixPair], like: Job, places: Places, given_rows: int = 0) -> Result:
        """`(1,)` MaxSim of each pair, by the deadline of the job `like`. Raises CotenantError.

        `given_rows`: what is charged; rows that were made of tokens in this request are paid for already.
        """
        job = Job(id=like.id, model=MAXSIM_ID, task=Task.MAXSIM, inputs=pairs, deadline_s=like.deadline_s)
        return await self.run(job, places, given_rows)

    async def run(self, job: Job, places: Places, charged_tokens: int | None = None) -> Result:
        """One more job; what it cost is added to the record. Raises CotenantError."""
        record = self._record
        before = replace(record)
        result = await run_job(self._edge, self._exchange, record, job, places, charged_tokens)
        record.inputs += before.inputs
        record.characters += before.characters
        record.tokens += before.tokens
        record.truncated_inputs += before.truncated_inputs
        record.timings = summed(before.timings, record.timings)
        return result


def summed(first: Timings, then: Timings) -> Timings:
    """The times of two jobs that ran one after the other."""
    names = [field.name for field in fields(Timings)]
    return Timings(**{name: getattr(first, name) + getattr(then, name) for name in names})

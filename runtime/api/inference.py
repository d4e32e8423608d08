"""What every POST route to a model shares: bodies, errors, headers, metrics and the log line."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, ParamSpec, TypeVar

from runtime.api.access import log_inference, trace_of
from runtime.api.body import check_media
from runtime.api.contract import Metering
from runtime.api.cost import stating_cost, wants_cost
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.places import Places
from runtime.api.problems import Answer, Dialect, internal_problem, problem
from runtime.api.record import Record
from runtime.errors import CotenantError, InvalidRequest, TooManyDocuments, TooManyInputs
from runtime.work import Job, Lane, Result, Task, characters

P = ParamSpec("P")
T = TypeVar("T")

Handler = Callable[[Edge, Exchange, Record], Awaitable[bytes | Answer]]
"""Reads the exchange's body, fills the record in, returns the answer or its JSON. Raises CotenantError."""

LOG = logging.getLogger("cotenant.api")

CAPPED = frozenset({TooManyDocuments.code, TooManyInputs.code})
"""Errors of requests whose documents were too many to be looked at."""
LANE_HEADER = b"x-lane"
DEADLINE_HEADERS = (b"x-deadline-ms", b"x-request-timeout-ms")

OFF_LOOP_BYTES = 64 * 1024
"""Bodies beyond this are parsed and rendered in a thread: about 0.2 ms of work, twice what the hop costs."""


async def infer(
    edge: Edge, exchange: Exchange, dialect: Dialect, task: Task | Literal["tokenize"], handler: Handler
) -> None:
    """One request from the first byte to the last, however it ends."""
    record = Record(surface=dialect, task=task, price_per_hour_usd=edge.engine.config.price_per_hour_usd)
    if edge.tracing is not None:
        edge.tracing.begin(exchange.request_id)
    try:
        answer = await outcome(edge, exchange, record, handler)
        record.status = answer.status
        if edge.tracing is not None:
            edge.tracing.describe(exchange.request_id, record)
        if not exchange.disconnected:
            headers = (*answer.headers, *record.headers(elapsed_ms(exchange)))
            await exchange.respond(answer.status, headers, answer.body, answer.media_type)
    finally:
        total_ms = elapsed_ms(exchange)
        observe(edge.engine.metering, record, total_ms)
        if edge.tracing is not None:
            edge.tracing.end(exchange.request_id)
        log_inference(exchange, record, total_ms)


async def outcome(edge: Edge, exchange: Exchange, record: Record, handler: Handler) -> Answer:
    """What the handler made, or the error it ended in, in the dialect that the record ends up with."""
    record.lane = first_lane(exchange)
    try:
        exchange.require_caller()
        with_cost = wants_cost(exchange)
        answer = await handler(edge, exchange, record)
        answer = answer if isinstance(answer, Answer) else Answer(200, (), answer)
        return stating_cost(answer, record) if with_cost else answer
    except CotenantError as error:
        record.code = error.code
        return problem(error, record.surface)
    except Exception as error:
        LOG.error("request %s ended in a bug: %s", exchange.request_id, trace_of(error))
        record.code = CotenantError.code
        return internal_problem(exchange.request_id, record.surface)


def observe(metering: Metering, record: Record, total_ms: float) -> None:
    """Count the request, what it wanted scored, and what it cost."""
    seconds = total_ms / 1000
    metering.observe_request(record.surface, record.model, record.task, record.status, seconds, record.lane)
    if record.code is not None:
        metering.observe_request_error(record.surface, record.code)
    if record.render_ms:
        metering.observe_render(record.model, record.render_ms / 1000)
    if record.timings.device_share_ms:
        metering.observe_cost(record.account, record.stages_ms, record.timings.device_share_ms, record.cost_usd)
    if record.candidates and record.status == 200:
        metering.observe_candidates(record.model, "scored", record.candidates)
        if record.truncated_inputs:
            metering.observe_candidates(record.model, "truncated", record.truncated_inputs)
    elif record.candidates and record.code in CAPPED:
        metering.observe_candidates(record.model, "capped", record.candidates)


async def read_json(edge: Edge, exchange: Exchange) -> bytes:
    """The body of a request that says, or leaves unsaid, that it is JSON. Raises RequestError, and as `read_body`."""
    check_media(exchange.headers)
    return await exchange.read_body(edge.body_limits, _deadline_of_head(exchange))


async def off_loop(size_bytes: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """`work`'s outcome, from a thread where `size_bytes` says that it takes long."""
    if size_bytes > OFF_LOOP_BYTES:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def run_job(
    edge: Edge, exchange: Exchange, record: Record, job: Job, places: Places, charged_tokens: int | None = None
) -> Result:
    """The job's result, in its caller's name and on its account, with what it is and what it cost on record.

    `places`: what the caller calls the inputs, for errors.
    `charged_tokens`: what the caller is charged where that isn't the job's own tokens. Given up when the client hangs
    up. Raises RateLimited where the key's tokens are spent, and what the engine raises.
    """
    let_in(edge, exchange, record)
    caller = exchange.require_caller()
    # A part that was too long for the online lane has put bulk there: what follows it runs in bulk too.
    job = replace(job, tenant=caller.tenant, lane=record.lane, may_go_bulk=not record.lane_is_named)
    record.tenant = caller.tenant
    record.compute = edge.compute(job.model)
    record.inputs = len(job.inputs)
    record.characters = sum(map(characters, job.inputs))
    try:
        result = await exchange.while_connected(edge.engine.run(job))
    except CotenantError as error:
        raise places.named(error) from None
    record.tokens = result.tokens if charged_tokens is None else charged_tokens
    edge.quota.charge(caller, record.tokens)
    record.lane = result.lane
    record.truncated_inputs = result.truncated_inputs
    record.timings = result.timings
    return result


def let_in(edge: Edge, exchange: Exchange, record: Record) -> None:
    """Raises RateLimited where the key's tokens are spent; a request that has begun is let in, whatever it still does.

    Called by itself where pictures are still to be had: nothing is fetched for a key that may not ask.
    """
    if not record.inputs:
        edge.quota.check(exchange.require_caller())


def first_lane(exchange: Exchange) -> Lane:
    """The lane of a request of which only the head was read, right or wrong: what is refused then counts in it."""
    if exchange.headers.get(LANE_HEADER, b"").strip().lower() == Lane.BULK.value.encode():
        return Lane.BULK
    return (exchange.caller and exchange.caller.lane) or Lane.ONLINE


def note_lane(exchange: Exchange, record: Record, priority: int) -> None:
    """Put the lane that a request asks for on its record, where its jobs find it: its key's, unless it asks for bulk.

    One that names none is online, and runs in bulk where that is too long for it (Job.may_go_bulk).
    """
    asked, of_key = asked_lane(exchange, priority), exchange.require_caller().lane
    record.lane = asked if asked is Lane.BULK else of_key or asked
    record.lane_is_named = of_key is not None or priority != 0 or LANE_HEADER in exchange.headers


def asked_lane(exchange: Exchange, priority: int) -> Lane:
    """The lane that the header `x-lane` names, else the one that `priority` means (above 0: bulk)."""
    named = exchange.headers.get(LANE_HEADER)
    if named is None:
        return Lane.BULK if priority > 0 else Lane.ONLINE
    try:
        return Lane(named.decode("latin-1").strip().lower())
    except ValueError:
        raise InvalidRequest("the header x-lane must be online or bulk", param="x-lane") from None


def deadline_of(exchange: Exchange, timeout_ms: float | None) -> float | None:
    """When the answer is of no more use, on `time.perf_counter`'s clock: so long after the request's head was read.

    As the header `x-deadline-ms` or `x-request-timeout-ms` says, else the field `timeout_ms`. None: never.
    """
    for name in DEADLINE_HEADERS:
        written = exchange.headers.get(name)
        if written is not None:
            timeout_ms = _milliseconds(written, name)
            break
    return None if timeout_ms is None else exchange.started + timeout_ms / 1000


def _deadline_of_head(exchange: Exchange) -> float | None:
    """The deadline as far as it is known before the body is; a wrong one is refused with the body."""
    try:
        return deadline_of(exchange, None)
    except InvalidRequest:
        return None


def _milliseconds(written: bytes, header: bytes) -> float:
    try:
        milliseconds = float(written)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        name = header.decode()
        raise InvalidRequest(f"the header {name} must be a number of milliseconds above 0", param=name)
    return milliseconds


def elapsed_ms(exchange: Exchange) -> float:
    """Milliseconds from the request's head to its answer, or until now."""
    return ((exchange.answered or time.perf_counter()) - exchange.started) * 1000

"""Turns among tenants: first in, first out for each, shares by tokens, and no credit for having been away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.entry import Entry
from runtime.line import Line
from tests.entries import entry

tenants = st.sampled_from(["a", "b", "c"])


def line_of(*entries: Entry) -> Line:
    line = Line()
    for one in entries:
        line.append(one)
    return line


def taken(line: Line) -> Iterator[Entry]:
    while (front := line.front()) is not None:
        line.take(front)
        yield front


def some(tenant: str, count: int, tokens: int = 10) -> list[Entry]:
    return [entry(tokens, index, tenant) for index in range(count)]


@given(st.lists(st.tuples(tenants, st.integers(1, 40), st.booleans()), max_size=40))
def test_everyone_leaves_once_and_each_tenant_s_in_their_order(asked: list[tuple[str, int, bool]]) -> None:
    entries = [entry(tokens, index, tenant) for index, (tenant, tokens, _) in enumerate(asked)]
    line = line_of(*entries)
    for one, (_, _, dropped) in zip(entries, asked, strict=True):
        if dropped:
            line.drop(one)
    stay = [one for one in entries if not one.dropped]
    assert (line.items, line.tokens) == (len(stay), sum(one.prepared.tokens for one in stay))
    order = list(taken(line))
    for tenant in "abc":
        assert [one for one in order if one.tenant == tenant] == [one for one in stay if one.tenant == tenant]
    assert (line.items, line.tokens, line.patient_tokens) == (0, 0, 0)


def test_whoever_asks_for_little_stands_behind_one_input_of_each_other_and_not_behind_a_flood() -> None:
    line = line_of(*some("flood", 100))
    order = taken(line)
    for _ in range(50):
        next(order)
    for one in some("little", 2):
        line.append(one)
    assert [next(order).tenant for _ in range(4)].count("little") == 2


@pytest.mark.parametrize(("a_tokens", "b_tokens"), [(10, 10), (10, 40), (3, 100)])
def test_two_tenants_share_by_tokens_whatever_their_inputs_are(a_tokens: int, b_tokens: int) -> None:
    line = line_of(*some("a", 4_000 // a_tokens, a_tokens), *some("b", 4_000 // b_tokens, b_tokens))
    had: Counter[str] = Counter()
    for one in taken(line):
        had[one.tenant] += one.prepared.tokens
        if min(4_000 - had["a"], 4_000 - had["b"]) < 200:
            break
        assert abs(had["a"] - had["b"]) <= a_tokens + b_tokens
    assert min(had.values()) > 3_500


def test_a_tenant_that_comes_back_has_saved_up_nothing() -> None:
    line = line_of(*some("steady", 300), *some("guest", 1))
    order = taken(line)
    for _ in range(200):
        next(order)
    for one in some("guest", 100):
        line.append(one)
    assert 9 <= [next(order).tenant for _ in range(20)].count("guest") <= 11


@given(
    waiting=st.dictionaries(tenants, st.lists(st.integers(1, 40), min_size=1, max_size=10)),
    tenant=tenants,
    own=st.lists(st.integers(1, 40), min_size=1, max_size=10),
)
def test_what_runs_before_a_new_job_has_run_is_foretold_to_an_input_of_each_tenant(
    waiting: dict[str, list[int]], tenant: str, own: list[int]
) -> None:
    line = line_of(*(entry(tokens, 0, name) for name, sizes in waiting.items() for tokens in sizes))
    foretold = line.tokens_before(tenant, sum(own))
    new = [entry(tokens, 0, tenant) for tokens in own]
    for one in new:
        line.append(one)
    order = list(taken(line))
    before = sum(one.prepared.tokens for one in order[: order.index(new[-1])] if one not in new)
    assert abs(before - foretold) <= 40 * len(waiting.keys() - {tenant})


def test_an_entry_too_late_for_anything_is_stepped_over_in_every_tenant_s_queue() -> None:
    late, fresh = some("a", 2), some("b", 2)
    late[0].deadline_s = fresh[0].deadline_s = 1.0
    line = line_of(*late, *fresh)
    assert line.front(2.0) in (late[1], fresh[1])
    assert (line.items, line.tokens, line.patient_tokens) == (2, 20, 20)

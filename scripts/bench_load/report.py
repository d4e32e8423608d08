"""Measurements as Markdown: medians, the range over the rounds, ratios, and what was counted."""

import platform
from collections.abc import Sequence
from pathlib import Path

from scripts.bench_load.figures import Measurement, Summary, summarize
from scripts.bench_load.processor import usable_cores

FIGURES = {
    "queries_per_s": "queries/s",
    "texts_per_s": "texts/s",
    "index_share": "texts/s over `index` alone",
    "usage_per_s": "`usage` per s (tokens; some servers count characters)",
    "pairs_per_s": "pairs/s",
    "rerank_p50_ms": "rerank p50 ms",
    "rerank_p95_ms": "rerank p95 ms",
    "alone_p50_ms": "rerank p50 ms before the flood",
    "flood_texts_per_s": "texts/s of the flood",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "polls": "polls of /health measured",
    "large_per_s": "bodies of 1 MB per s",
    "queries": "queries measured",
    "query_p50_ms": "query p50 ms",
    "query_p95_ms": "query p95 ms",
    "query_p95_over_alone": "query p95 over `paced` alone",
    "idle_p50_ms": "one at a time, p50 ms",
    "capacity_per_s": "requests/s at capacity",
    "offered_per_s": "requests/s offered",
    "accepted_per_s": "requests/s accepted and answered",
    "accepted_p50_ms": "accepted, p50 ms",
    "accepted_p99_ms": "accepted, p99 ms",
    "refused_p50_ms": "refused, p50 ms",
    "refused_p95_ms": "refused, p95 ms",
    "refused": "refused",
    "without_retry_after": "of these without Retry-After",
    "expired": "accepted, then too late (504)",
    "recovered_ms": "ms after it until one takes no more than twice the idle p50",
    "first_over_idle": "the first one once all are answered, over the idle p50",
}


# Shown beside each other, but no ratio says anything.
BESIDE = (("texts_per_s", "index_share", "index"), ("query_p95_ms", "query_p95_over_alone", "paced"))
"""A figure of `mixed`, the name of its share, and the workload that measures it alone."""
NOT_COMPARED = {"usage_per_s", "queries", "polls", "offered_per_s", "refused", "without_retry_after", "expired"}


def beside_alone(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Adds to each `mixed` its index rate and its query p95 over those of the same round's `index` and `paced`."""
    alone = {(each.target, each.round, each.workload): each.figures for each in measurements}
    for each in measurements:
        if each.workload == "mixed":
            for figure, share, workload in BESIDE:
                of_alone = alone.get((each.target, each.round, workload), {}).get(figure)
                if of_alone:
                    each.figures[share] = each.figures[figure] / of_alone
    return list(measurements)


def table(measurements: Sequence[Measurement]) -> str:
    """One row a figure; the ratios are the first target over each other one."""
    names = list(dict.fromkeys(each.target for each in measurements))
    first, *others = names
    rows = [
        ["workload", "figure", *names, *(f"{first} ÷ {other}" for other in others)],
        ["---"] * (2 + len(names) + len(others)),
    ]
    for workload in dict.fromkeys(each.workload for each in measurements):
        for figure, title in FIGURES.items():
            summaries = [summarize(measurements, workload, name, figure) for name in names]
            if any(summaries):
                rows.append([workload, title, *map(_cell, summaries), *_ratios(figure, summaries)])
    return _markdown(rows)


def _cell(summary: Summary | None) -> str:
    return "–" if summary is None else str(summary)


def _ratios(figure: str, summaries: Sequence[Summary | None]) -> list[str]:
    first, *others = summaries
    if first is None or figure in NOT_COMPARED:
        return ["–"] * len(others)
    return ["–" if other is None else first.over(other) for other in others]


def counts(measurements: Sequence[Measurement]) -> str:
    """Requests and faults in all rounds, and how many cores each party took (the most in one round)."""
    rows = [
        ["workload", "target", "requests", "faults", "server cores", "load generator", "others"],
        ["---"] * 7,
    ]
    samples: list[str] = []
    for workload, name in dict.fromkeys((each.workload, each.target) for each in measurements if each.cores):
        rounds = [each for each in measurements if (each.workload, each.target) == (workload, name)]
        taken = [each.cores for each in rounds if each.cores]
        rows.append(
            [
                workload,
                name,
                str(sum(each.requests for each in rounds)),
                str(sum(each.faults for each in rounds)),
                _most([each.server for each in taken]),
                _most([each.generator for each in taken]),
                _most([each.others for each in taken]),
            ]
        )
        samples += sorted({f"- {workload}, {name}: {text}" for each in rounds for text in each.fault_samples})
    return "\n".join([_markdown(rows), *samples])


def _most(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.2f}" if known else "–"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def machine() -> str:
    """The processor, the cores this process may use, and the interpreter."""
    interpreter = f"Python {platform.python_version()}"
    return f"{_processor()}, {usable_cores()} cores usable, {platform.system()}, {interpreter}"


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()

"""Runs the rounds: in each, every workload against one server after another, then the bare forward."""

import json
import subprocess
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import uvloop

from scripts.bench_load.arguments import parse, targets, wants_bare, workloads
from scripts.bench_load.bare import FORWARDS
from scripts.bench_load.case import Case, Pace
from scripts.bench_load.corpus import Corpus, load_corpus
from scripts.bench_load.figures import Measurement, shown
from scripts.bench_load.processor import IDLE_CORES_LIMIT, idleness
from scripts.bench_load.report import beside_alone, counts, machine, table
from scripts.bench_load.servers import ServerError, serving
from scripts.bench_load.target import Target
from scripts.bench_load.workloads import measure


def main() -> int:
    """Prints the report; 1 when a request failed or a server did not answer, 0 otherwise."""
    options = parse()
    corpus = load_corpus()
    try:
        measurements, idle_lines = _run(options, corpus)
    except ServerError as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 1
    print(_report(options, corpus, measurements, idle_lines))
    if options.json:
        _write_json(options.json, options, corpus, measurements)
    return 1 if any(each.faults for each in measurements) else 0


def _run(options: Namespace, corpus: Corpus) -> tuple[list[Measurement], list[str]]:
    measurements: list[Measurement] = []
    # The bare forward alone needs no server.
    asked = targets(options) if workloads(options) else []
    with ExitStack() as running:
        servers = [(target, running.enter_context(serving(command, target))) for target, command in asked]
        idle_lines = [_idle_line(target) for target, _ in servers]
        for round_number in range(1, options.rounds + 1):
            for workload in workloads(options):
                for target, dimensions in servers:
                    case = Case(
                        workload=workload,
                        target=target,
                        dimensions=dimensions,
                        corpus=corpus,
                        pace=Pace(warmup_s=options.warmup_seconds, seconds=options.seconds),
                        round=round_number,
                    )
                    measurements.append(_shown(uvloop.run(measure(case))))
            if wants_bare(options):
                measurements += _bare(options, round_number)
    return beside_alone(measurements), idle_lines


def _bare(options: Namespace, round_number: int) -> list[Measurement]:
    """Each forward in a process of its own: the settings it needs before its imports stay its own."""
    measurements = []
    for forward in FORWARDS:
        command = [sys.executable, "-P", "-m", "scripts.bench_load.bare", forward]
        finished = subprocess.run(
            [*command, str(options.model_folder), str(options.seconds)], check=True, stdout=subprocess.PIPE
        )
        for workload, figures in json.loads(finished.stdout.splitlines()[-1]).items():
            bare = Measurement(
                workload=workload, target=f"bare {forward}", round=round_number, figures=figures, requests=0
            )
            measurements.append(_shown(bare))
    return measurements


def _shown(measurement: Measurement) -> Measurement:
    """A line of progress on standard error."""
    figures = ", ".join(f"{name} {shown(value)}" for name, value in measurement.figures.items())
    faults = f", {measurement.faults} FAULTS" if measurement.faults else ""
    place = f"round {measurement.round} {measurement.workload:9}{measurement.target:12}"
    print(f"{place} {figures}{faults}", file=sys.stderr, flush=True)
    return measurement


def _idle_line(target: Target) -> str:
    idle = idleness(target.port)
    if idle is None:
        return f"- {target.name}: no sight of its process"
    warning = "; it slows the other server down" if idle.cores > IDLE_CORES_LIMIT else ""
    taken = f"{idle.cores:.1%} of a core while idle, {idle.memory_mib:,.0f} MiB resident"
    return f"- {target.name}: {taken}{warning}"


def _report(options: Namespace, corpus: Corpus, measurements: list[Measurement], idle_lines: list[str]) -> str:
    words = [len(text.split()) for text in corpus.texts]
    return "\n".join(
        [
            f"{machine()}. Rounds: {options.rounds} of {shown(options.seconds)} s; {options.encoding}.",
            f"Corpus {corpus.fingerprint}: {len(corpus.queries)} queries, {len(words)} texts of "
            f"{sum(words) / len(words):.1f} words on average. Median over the rounds (smallest–largest).",
            "",
            table(measurements),
            "",
            counts(measurements),
            "",
            *idle_lines,
        ]
    )


def _write_json(file: Path, options: Namespace, corpus: Corpus, measurements: list[Measurement]) -> None:
    content = {
        "machine": machine(),
        "corpus": corpus.fingerprint,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "encoding": options.encoding,
        "measurements": [each.as_json() for each in measurements],
    }
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""`cotenant plan` against what a real server then does with the same registry, a few MiB from where answers turn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from runtime.backend import TorchBackend
from runtime.devices.cpu import CpuDevice
from runtime.footprint import Footprint
from runtime.ledger import Ledger
from runtime.work import MAXSIM_ID, Task
from runtime.worker import builtin
from tests.server.conftest import MINILM, ROOT, Server, Start
from tests.server.scraping import models

MIB = 2**20
EDGE_BYTES = 8 * MIB
"""So near to the figure that decides: what the process holds differs by 1 to 4 MiB between two starts."""
PATIENCE_S = 300.0
RERANKER = str(ROOT / "examples" / "models" / "demo-reranker")
PLENTY = "16GiB"
ON_DEMAND = {"resident": "on_demand"}
PINNED = {"pinned": True}
ANSWERED = ("fits", "evicts", "left_out")
REFUSED = ("pinned_out", "does_not_fit")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Case:
    """A registry whose budget is what `beside` need together, and `edge_bytes` more."""

    keys: Mapping[str, Mapping[str, object]]
    """Of each model."""
    beside: Sequence[str]
    edge_bytes: int
    verdicts: Mapping[str, str]


Keys = Mapping[str, Mapping[str, object]]
FIRST_TWO: Keys = {"first": {}, "tiny": PINNED, "second": ON_DEMAND}
PINNED_FIRST: Keys = {"first": PINNED, "second": ON_DEMAND}
LARGE: Keys = {"first": ON_DEMAND, "reranker": ON_DEMAND}
CASES = {
    "all fit": Case(
        {"first": {}, "second": {}, "reranker": ON_DEMAND, "tiny": ON_DEMAND},
        ("first", "second", "reranker", "tiny"),
        EDGE_BYTES,
        {"first": "loaded", "second": "loaded", "reranker": "fits", "tiny": "fits"},
    ),
    "the second comes beside the first": Case(
        FIRST_TWO,
        ("first", "tiny", "second"),
        EDGE_BYTES,
        {"first": "loaded", "tiny": "loaded", "second": "fits"},
    ),
    "the second comes in the place of the first": Case(
        FIRST_TWO,
        ("first", "tiny", "second"),
        -EDGE_BYTES,
        {"first": "loaded", "tiny": "loaded", "second": "evicts"},
    ),
    "the second comes with hardly more room than for one": Case(
        FIRST_TWO,
        ("tiny", "second"),
        EDGE_BYTES,
        {"first": "loaded", "tiny": "loaded", "second": "evicts"},
    ),
    "one is left out at the start": Case(
        {"first": {}, "reranker": {}},
        ("first", "reranker"),
        -EDGE_BYTES,
        {"first": "loaded", "reranker": "left_out"},
    ),
    "neither is left out at the start": Case(
        {"first": {}, "reranker": {}},
        ("first", "reranker"),
        EDGE_BYTES,
        {"first": "loaded", "reranker": "loaded"},
    ),
    "pinned ones leave no room": Case(
        PINNED_FIRST,
        ("first", "second"),
        -EDGE_BYTES,
        {"first": "loaded", "second": "pinned_out"},
    ),
    "pinned ones leave just enough room": Case(
        PINNED_FIRST,
        ("first", "second"),
        EDGE_BYTES,
        {"first": "loaded", "second": "fits"},
    ),
    "nothing fits": Case(LARGE, ("first",), -EDGE_BYTES, dict.fromkeys(LARGE, "does_not_fit")),
    "just one fits": Case({"reranker": ON_DEMAND}, ("reranker",), EDGE_BYTES, {"reranker": "fits"}),
}


@pytest.fixture(scope="module")
def sources(tiny_model: Callable[[str], Path]) -> dict[str, str]:
    return {"first": MINILM, "second": MINILM, "reranker": RERANKER, "tiny": str(tiny_model("bert-embedder"))}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory, sources: dict[str, str]) -> Any:
    """The plan with room for everybody: what each needs, and what the process holds without them."""
    registry = tmp_path_factory.mktemp("plan") / "registry.yaml"
    entries = [{"id": name, "source": source} for name, source in sources.items()]
    registry.write_text(json.dumps({"models": entries, "device": "cpu"}), encoding="utf-8")
    return planned(registry, "--memory", PLENTY)


def planned(registry: Path, *options: str) -> Any:
    """What `cotenant plan` says of a registry."""
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "plan", "--registry", str(registry), "--json", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["fits"] else 1), done.stderr
    return answer


def needed_bytes(roomy: Any, names: Sequence[str]) -> int:
    """The least budget that these have room in, as the plan's figures add up."""
    device = CpuDevice()
    ledger = Ledger(limit_bytes=0, base_bytes=roomy["base_bytes"], lanes=device.concurrency.threads)
    spec = builtin(MAXSIM_ID, Task.MAXSIM).spec
    assert spec.max_batch_tokens is not None
    resident = {spec.id: TorchBackend().predict(spec, device, spec.max_batch_tokens)}
    for model in roomy["models"]:
        if model["name"] in names:
            resident[model["name"]] = Footprint(
                weight_bytes=model["weight_bytes"],
                host_bytes=model["host_bytes"],
                activation_bytes=model["workspace_bytes"],
                budget_tokens=model["wanted_batch_tokens"],
            )
    return ledger.least_bytes(resident)


@pytest.mark.parametrize("name", CASES)
def test_the_server_does_what_the_plan_says(start: Start, roomy: Any, sources: dict[str, str], name: str) -> None:
    case = CASES[name]
    entries = [{"id": model, "source": sources[model], **keys} for model, keys in case.keys.items()]
    budget = needed_bytes(roomy, case.beside) + case.edge_bytes
    server = start(entries, device="cpu", memory_budget=budget, min_residence_s=0.1)
    plan = planned(server.registry)
    fates = {model["name"]: model for model in plan["models"]}
    assert {model: fate["verdict"] for model, fate in fates.items()} == case.verdicts
    base_bytes = server.client.get("/admin/memory").json()["ledger"]["base"]
    print(f"\nbase {base_bytes / MIB:.1f} MiB, planned {plan['base_bytes'] / MIB:.1f}; budget {budget / MIB:.1f}")
    for model, state in states(server).items():
        assert (state == "ready") == (case.verdicts[model] == "loaded"), model
    for model, fate in fates.items():
        if fate["verdict"] != "loaded":
            check_asked(server, model, fate)
    if "pinned_out" in case.verdicts.values():
        server.client.post("/admin/models/first/unpin").raise_for_status()
        assert patiently(server, "second").status_code == 200
        assert states(server)["first"] != "ready"
    server.close()


def check_asked(server: Server, model: str, fate: Any) -> None:
    before = states(server)
    answer = patiently(server, model)
    left = {each for each, state in states(server).items() if before[each] == "ready" and state != "ready"}
    assert left == set(fate["evicts"])
    if fate["verdict"] in ANSWERED:
        assert answer.status_code == 200, answer.text
        return
    assert fate["verdict"] in REFUSED
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, fate["verdict"])
    assert without_figures(error["message"]).endswith(without_figures(fate["reason"]))


def patiently(server: Server, model: str) -> httpx2.Response:
    """The answer, asked for again as long as the server says when to come back and others only stay for now."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        answer = ask(server, model)
        passing = answer.status_code == 503 and answer.json()["error"]["code"] in ("no_room_now", "model_loading")
        if not passing:
            return answer
        assert time.monotonic() < until_s, answer.text
        assert float(answer.headers["retry-after-ms"]) > 0
        time.sleep(min(float(answer.headers["retry-after-ms"]) / 1000, 5.0))


def ask(server: Server, model: str) -> httpx2.Response:
    if model == "reranker":
        body = {"model": model, "query": "a", "documents": ["b", "c"]}
        return server.client.post("/rerank", json=body, timeout=PATIENCE_S)
    return server.client.post("/v1/embeddings", json={"model": model, "input": "a text"}, timeout=PATIENCE_S)


def states(server: Server) -> dict[str, str]:
    return {name: str(model["state"]) for name, model in models(server).items()}


def without_figures(message: str) -> str:
    return re.sub(r"[\d,]+(?= bytes| of the)", "…", message)

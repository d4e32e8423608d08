"""Python environments of other projects' clients, one a requirements file, made once and cached like our own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PROGRAM_LIMIT_S = 100
OUTSIDE = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": os.environ.get("HOME", "/"),
    # HF_HUB_OFFLINE would keep huggingface_hub from our server as well.
    "HF_ENDPOINT": "http://127.0.0.1:9",
}
"""A program's variables: none of ours, and no model hub."""


def python_of(name: str) -> Path:
    """The interpreter of the environment that `requirements/NAME.txt` describes; made where it is missing."""
    requirements = FOLDER / "requirements" / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cotenant" / "envs"
    folder = base / f"clients-{name}-{digest}"
    python = folder / "bin" / "python"
    base.mkdir(parents=True, exist_ok=True)
    with _locked(base / f"clients-{name}-{digest}.lock"):
        if not (folder / ".complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
            subprocess.run([*install, "--requirement", str(requirements)], check=True)
            (folder / ".complete").touch()
    return python


def run_program(environment: str, program: str, **arguments: Any) -> Any:
    """What `programs/PROGRAM.py` prints as JSON, given `arguments` as JSON on standard input."""
    finished = subprocess.run(
        [str(python_of(environment)), "-I", str(FOLDER / "programs" / f"{program}.py")],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
        env=OUTSIDE,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield

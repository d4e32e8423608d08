"""Environments of other projects' clients, one a list of requirements, made once and cached like our own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
OVER_OURS = frozenset({"mteb"})
"""Installed over our own environment and without dependencies: its list names what ours lacks."""
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

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        python = folder / "bin" / "python"
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        if name in OVER_OURS:
            packages = next((folder / "lib").glob("python*/site-packages"))
            (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
            command.append("--no-deps")
        subprocess.run([*command, "--requirement", str(requirements)], check=True)

    return _built(name, requirements.read_bytes() + sys.version.encode(), build) / "bin" / "python"


def node_modules() -> Path:
    """The folder with the packages of `npm/package-lock.json`; made where it is missing."""
    lock = (FOLDER / "npm" / "package-lock.json").read_bytes()

    def build(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / "npm" / name, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(command, cwd=folder, check=True)

    return _built("npm", lock, build)


def run_program(environment: str, program: str, *, limit_s: float = PROGRAM_LIMIT_S, **arguments: Any) -> Any:
    """What `programs/PROGRAM.py` prints as JSON, given `arguments` as JSON on standard input."""
    command = [str(python_of(environment)), "-I", str(FOLDER / "programs" / f"{program}.py")]
    return _run(command, arguments, limit_s)


def run_script(script: str, **arguments: Any) -> Any:
    """What `npm/SCRIPT.mjs` prints as JSON, given `arguments` as JSON on standard input."""
    folder = node_modules()
    # Node looks for packages beside the script.
    copy = folder / f"{script}-{os.getpid()}.mjs"
    shutil.copy(FOLDER / "npm" / f"{script}.mjs", copy)
    try:
        return _run(["node", str(copy)], arguments, PROGRAM_LIMIT_S)
    finally:
        copy.unlink()


def _run(command: Sequence[str], arguments: dict[str, Any], limit_s: float) -> Any:
    finished = subprocess.run(
        command,
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=OUTSIDE,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


def _built(name: str, content: bytes, build: Callable[[Path], None]) -> Path:
    """The folder in the user's cache for this content; `build` fills it, by one process at a time."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cotenant" / "envs"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / f"clients-{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    with _locked(folder.with_name(folder.name + ".lock")):
        if not (folder / ".complete").exists():
            build(folder)
            (folder / ".complete").touch()
    return folder


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield

"""A C++ file of ours, compiled once for this machine and loaded into torch.

Only torch's stable interface is used, so that compiling takes seconds. Where there is no compiler nothing is lost but
speed, and whoever asked is told why.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from runtime.sources import cache_folder

log = logging.getLogger(__name__)

COMPILERS = ("c++", "g++", "clang++")
"""Tried in this order where CXX names none."""
COMPILE_TIMEOUT_S = 120.0
SHARED_LIBRARY = ("-O3", "-std=c++20", "-shared", "-fPIC")
TORCH = Path(torch.__file__).parent


class NotCompiled(Exception):
    """The reason, for the log."""


def load_kernel(source: Path, flags: Sequence[str]) -> None:
    """Register the operators of `source` with torch; compiled on first use, for seconds. Raises NotCompiled."""
    compiler = find_compiler()
    command = [compiler, *SHARED_LIBRARY, *flags, f"-I{TORCH / 'include'}"]
    library = cache_folder().parent / "kernels" / f"{source.stem}-{_fingerprint(source, command)}.so"
    try:
        if not library.exists():
            _compile([*command, str(source), f"-L{TORCH / 'lib'}", "-ltorch_cpu"], library)
        torch.ops.load_library(library)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotCompiled(_reason(error)) from error


def find_compiler() -> str:
    """Its path. Raises NotCompiled where there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NotCompiled(f"no C++ compiler: looked for {', '.join(names)}")
    return found


def _fingerprint(source: Path, command: Sequence[str]) -> str:
    """Of all that the result depends on. The compiler counts by its size and time, which an upgrade changes."""
    compiler = Path(command[0]).resolve().stat()
    facts = (source.read_text(), torch.__version__, *command, compiler.st_size, compiler.st_mtime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _compile(command: Sequence[str], library: Path) -> None:
    """Into a file of another name first: several processes may start at once, or one may be stopped."""
    library.parent.mkdir(parents=True, exist_ok=True)
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        unfinished = Path(folder) / library.name
        subprocess.run(
            [*command, "-o", str(unfinished)], check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
        )
        unfinished.replace(library)
    log.info("compiled %s in %.1f s", library.name, time.perf_counter() - started_s)


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in error.stderr.splitlines() if "error" in line]
        return f"the compiler failed: {lines[0] if lines else 'it gave no reason'}"
    return f"{type(error).__name__}: {error}"

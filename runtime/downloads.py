"""Fetches the files of every model before they are served, and says which commit each one is at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import SourceNotFound
from runtime.registry import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One model's files, or why there are none."""

    name: str
    folder: Path | None = None
    commit: str | None = None
    """The hub's commit; None: the files are not from the hub."""
    pinned: bool = True
    """Whether the registry names the commit or tag, so that the files can't change."""
    file_bytes: int = 0
    problem: str | None = None


def fetch_all(specs: Iterable[ModelSpec]) -> Iterator[Fetched]:
    """Each model in turn, as its files arrive. With HF_HUB_OFFLINE=1 nothing is fetched, only looked for."""
    from runtime.models.weights import find_files  # late: --help does without numpy and the hub's library

    for spec in specs:
        try:
            folder = find_files(spec)
        except SourceNotFound as error:
            yield Fetched(name=spec.name, problem=error.message)
            continue
        from_hub = folder.parent.name == "snapshots"
        yield Fetched(
            name=spec.name,
            folder=folder,
            commit=folder.name if from_hub else None,
            pinned=not from_hub or spec.revision is not None,
            file_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        )


def line_of(fetched: Fetched) -> str:
    """One line of the table: name, megabytes, commit, remark."""
    if fetched.problem is not None:
        return f"{fetched.name:<40} {'':>9}  failed: {fetched.problem}"
    remark = "" if fetched.pinned else "  not pinned: write this as its `revision`"
    return f"{fetched.name:<40} {fetched.file_bytes / 1e6:>6.0f} MB  {fetched.commit or 'on this machine'}{remark}"

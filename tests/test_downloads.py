"""`cotenant download`: one line a model, with the commit that its files are at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner

from runtime import cli
from runtime.downloads import Fetched, fetch_all, line_of
from runtime.registry import ModelSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub that has one model; what it was asked."""
    asked: list[dict[str, Any]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        if repository != "owner/there":
            raise OSError("no route")
        folder = tmp_path / "snapshots" / COMMIT
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"x" * 2_000_000)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_each_model_is_fetched_at_its_revision(hub: list[dict[str, Any]], tmp_path: Path) -> None:
    specs = [
        ModelSpec(id="owner/there"),
        ModelSpec(id="pinned", source="owner/there", revision=COMMIT),
        ModelSpec(id="owner/gone"),
        ModelSpec(id=str(tmp_path)),
    ]
    loose, pinned, gone, local = fetch_all(specs)
    assert [request["revision"] for request in hub] == [None, COMMIT, None]
    assert (loose.commit, loose.pinned, loose.file_bytes) == (COMMIT, False, 2_000_000)
    assert (pinned.commit, pinned.pinned) == (COMMIT, True)
    assert gone.problem == "owner/gone can't be fetched from the hub (OSError)"
    assert (local.commit, local.pinned, local.problem) == (None, True, None)


def test_a_line_says_what_to_pin() -> None:
    line = line_of(Fetched(name="a", folder=Path("/a"), commit=COMMIT, pinned=False, file_bytes=90_900_000))
    assert line.split(maxsplit=1) == ["a", f"91 MB  {COMMIT}  not pinned: write this as its `revision`"]
    assert line_of(Fetched(name="b", folder=Path("/b"))).endswith("0 MB  on this machine")


def test_the_command_ends_with_status_1_where_a_model_is_missing(hub: list[dict[str, Any]]) -> None:
    good = CliRunner().invoke(cli.app, ["download", "--model-id", "owner/there"])
    assert (good.exit_code, good.stdout.count("\n")) == (0, 1)
    bad = CliRunner().invoke(cli.app, ["download", "--model-id", "owner/gone", "--model-id", "owner/there"])
    assert bad.exit_code == 1
    assert [line.split()[0] for line in bad.stdout.splitlines()] == ["owner/gone", "owner/there"]
    assert "failed: owner/gone" in bad.stdout

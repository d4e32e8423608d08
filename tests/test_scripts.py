"""The scripts where their cache can't be written: one line that says so, and status 1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import demo_models, random_page_model

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def no_folder(tmp_path: Path) -> Path:
    """A path below a file: nobody can make a folder there, the superuser neither."""
    file = tmp_path / "file"
    file.touch()
    return file / "cache"


@pytest.mark.parametrize("script", ["serve", "cotenant", "test", "fetch_demo_models", "make_random_page_model"])
def test_a_script_says_in_one_line_that_its_cache_can_t_be_written(script: str, no_folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COTENANT_ENV"}
    ended = subprocess.run(
        [SCRIPTS / script],
        env=environment | {"XDG_CACHE_HOME": str(no_folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"setup: cannot write to {no_folder}/cotenant/envs (Not a directory): XDG_CACHE_HOME may name a folder for it\n"
    )


@pytest.mark.parametrize("main", [demo_models.main, random_page_model.main], ids=["demo models", "page model"])
def test_with_an_environment_given_the_models_folder_is_named(
    main: Callable[[], None], no_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--into", str(no_folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (1, "")
    assert shown.err.splitlines()[-1].endswith(f"{no_folder}: Not a directory")

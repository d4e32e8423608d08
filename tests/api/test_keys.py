"""API keys from a file and from settings: hashed, named, and never repeated in an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from runtime import cli
from runtime.api.keys import hash_of, new_key, read_keys
from runtime.errors import ConfigurationError
from runtime.registry import ServerSettings
from runtime.work import Lane

SECRET = "a-very-secret-word"


def settings(**fields: object) -> ServerSettings:
    return ServerSettings.model_validate(fields)


def test_no_keys_at_all() -> None:
    assert read_keys(settings()) == []


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    hashed = hash_of(b"two").hex()
    path.write_text(f"""
keys:
  - {{name: search, key: one, tenant: shop, models: [a, b], lane: bulk, tokens_per_minute: 10, admin: true}}
  - {{name: other, key: "sha256:{hashed}"}}
""")
    one, two = read_keys(settings(keys_file=str(path)))
    assert (one.digest, two.digest) == (hash_of(b"one"), hash_of(b"two"))
    assert (one.entry.tenant, one.entry.models, one.entry.lane) == ("shop", ("a", "b"), Lane.BULK)
    assert (one.entry.tokens_per_minute, one.entry.admin) == (10, True)
    assert (two.entry.tenant, two.entry.models, two.entry.admin) == (None, None, False)


def test_keys_of_the_environment_stand_beside_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [{name: c, key: three}]")
    keys = read_keys(settings(api_key="0", api_keys="a:one, b:two:2", keys_file=str(path)))
    assert [key.entry.name for key in keys] == ["default", "a", "b", "c"]
    assert [key.digest for key in keys] == list(map(hash_of, (b"0", b"one", b"two:2", b"three")))
    assert [key.entry.admin for key in keys] == [True, False, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "keys: []",
        "nothing: here",
        "",
        f"keys: [{{name: a, key: [{SECRET}]}}]",
        f"keys: [{{name: a b, key: {SECRET}}}]",
        f"keys: [{{name: a, key: {SECRET}, lane: {SECRET}}}]",
        f"keys: [{{name: a, key: {SECRET}, tokens_per_minute: 0}}]",
        f"keys: [{{name: a, kye: {SECRET}}}]",
        f"keys: {SECRET}",
        "keys: [{name: a, key: 123456789}]",
        "keys: [{name: a, key: ''}]",
        f"keys: [{{name: a, key: {SECRET}}}, {{name: b, key: {SECRET}}}]",
        f"keys: [{{name: a, key: {SECRET}}}, {{name: a, key: other}}]",
    ],
)
def test_a_mistake_in_the_file_is_named_and_no_key_repeated(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_keys(settings(keys_file=str(path)))
    assert SECRET not in caught.value.message
    assert "123456789" not in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "pairs", [SECRET, f":{SECRET}", f"a b:{SECRET}", "a:", f"a:{SECRET},", f"a:{SECRET},b:{SECRET}"]
)
def test_a_mistake_in_the_variable_is_named_and_no_key_repeated(pairs: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_keys(settings(api_keys=pairs))
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: []", "keys: there is no key in it: `cotenant key NAME` makes one"),
        ("- {name: a, key: b}", "must hold keys such as `keys:`, not a list: put a line `keys:` above it"),
        ("word", "must hold keys such as `keys:`, not a str"),
    ],
)
def test_a_file_without_keys_is_told_so_in_words(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_keys(settings(keys_file=str(path)))
    assert caught.value.message == f"{path}: {said}"


def test_the_readmes_example_makes_a_file_of_keys(tmp_path: Path) -> None:
    """And another key may be added to the example's entry."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "echo 'keys:' > keys.yaml\n./scripts/cotenant key indexer >> keys.yaml" in readme
    example = readme.partition("```yaml\nkeys:\n")[2].partition("```")[0].replace("0f4c…", "0" * 64)
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n{example}{new_key('second')[1]}")
    assert [key.entry.name for key in read_keys(settings(keys_file=str(path)))] == ["indexer", "second"]


def test_a_blank_key_is_refused_since_nobody_could_send_it() -> None:
    with pytest.raises(ConfigurationError, match="COTENANT_API_KEY"):
        read_keys(settings(api_key=" "))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="can't be read: No such file"):
        read_keys(settings(keys_file="/no/such/file"))


def test_the_command_makes_a_key_whose_entry_the_file_takes(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["key", "indexer"])
    assert result.exit_code == 0
    secret = result.stderr.split()[-1]
    assert secret not in result.stdout
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n" + result.stdout)
    [key] = read_keys(settings(keys_file=str(path)))
    assert (key.entry.name, key.digest) == ("indexer", hash_of(secret.encode()))
    assert len({new_key("a")[0] for _ in range(9)}) == 9
    assert CliRunner().invoke(cli.app, ["key", "a b"]).exit_code == 2


def test_validate_shows_no_key_and_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [{name: a}]")
    command = ["validate", "--model-id", "a/b"]
    shown = CliRunner().invoke(cli.app, command, env={"COTENANT_API_KEY": SECRET, "COTENANT_API_KEYS": f"n:2{SECRET}"})
    assert shown.exit_code == 0
    assert SECRET not in shown.output
    assert "  api_key: null  # set, and not shown\n" in shown.stdout
    assert "  api_keys: null  # set, and not shown\n" in shown.stdout
    assert "  admin_token: null\n" in shown.stdout
    assert yaml.safe_load(shown.stdout)["server"]["api_key"] is None
    refused = CliRunner().invoke(cli.app, [*command, "--keys-file", str(path)])
    assert refused.exit_code == 1
    assert "keys.0.key: Field required" in refused.stderr


def test_a_number_for_a_key_is_a_key(tmp_path: Path) -> None:
    registry = tmp_path / "r.yaml"
    registry.write_text("server: {api_key: 123456789}\nmodels: [a/b]")
    result = CliRunner().invoke(cli.app, ["validate", "--registry", str(registry)])
    assert (result.exit_code, "123456789" in result.output) == (0, False)

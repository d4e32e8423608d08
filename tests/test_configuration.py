"""Reading the registry, merging what was given, and errors of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.configuration import Given, Request, effective_yaml, load_config, read_registry, registry_schema
from runtime.errors import ConfigurationError
from runtime.registry import ModelSpec, RuntimeConfig

ROOT = Path(__file__).parent.parent
YAML = [ROOT / "model_registry.yaml", *sorted((ROOT / "examples").glob("*.yaml"))]
REGISTRIES = [path for path in YAML if "\nmodels:" in path.read_text(encoding="utf-8")]

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "registry.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(path: Path) -> str:
    """The error's line, without the file's name."""
    with pytest.raises(ConfigurationError) as caught:
        load_config(Request(registry=path))
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(str(path)).removeprefix(": ")


@pytest.mark.parametrize("path", REGISTRIES, ids=lambda path: path.name)
def test_every_registry_that_we_ship_is_valid(path: Path) -> None:
    assert load_config(Request(registry=path)).models


def commented_keys(lines: list[str]) -> dict[str, Any]:
    """The keys of lines such as `# port: 7997  # why`, as YAML."""
    keys = (line.strip().removeprefix("# ") for line in lines if line.strip().startswith("# "))
    parsed: dict[str, Any] = yaml.safe_load("\n".join(keys))
    return parsed


def test_the_default_registry_shows_every_key_with_its_default() -> None:
    settings, _, models = (ROOT / "model_registry.yaml").read_text(encoding="utf-8").partition("models:\n")
    top = commented_keys(settings.splitlines()[3:])
    assert top == RuntimeConfig().model_dump(mode="json", exclude={"models"})
    model = commented_keys([line for line in models.splitlines() if line.startswith("    # ")])
    shown_as_keys = {"id", "source", "aliases"}
    assert model == ModelSpec(id="any").model_dump(mode="json", exclude=shown_as_keys)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("models: [{id: a, dtyp: float32}]", "models[0].dtyp: unknown key; did you mean 'dtype'?"),
        ("models: [a, {id: b, max-length: 9}]", "models[1].max-length: unknown key; did you mean 'max_length'?"),
        ("server: {prt: 1}", "server.prt: unknown key; did you mean 'port'?"),
        ("dvice: cpu", "dvice: unknown key; did you mean 'device'?"),
        ("port: 80", "port: unknown key here; it belongs under server"),
        ("models: [{id: a, max_inputs: 1}]", "models[0].max_inputs: unknown key here; it belongs under server"),
        ("models: [{id: a, device: cpu}]", "models[0].device: unknown key here; it belongs at the top"),
        ("log: {colour: red}", "log.colour: unknown key; the keys here are level, format"),
        ("models: [{source: a}]", "models[0].id: is missing"),
        ("models: [3]", "models[0]: must hold keys of its own"),
        ("models: a", "models: must be a list"),
        ("models: [{id: 3}]", "models[0].id: 3 is not text: write it in quotes"),
        ("models: [{id: a, revision: 1234567}]", "models[0].revision: 1234567 is not text: write it in quotes"),
        (
            "models: [{id: a, dtype: fp16}]",
            "models[0].dtype: 'fp16' is not one of 'auto', 'float32', 'float16', 'bfloat16'",
        ),
        (
            "models: [{id: a, task: rank}]",
            "models[0].task: 'rank' is not one of 'auto', 'embed', 'multi_vector', 'rerank', 'classify'",
        ),
        ("device: gpu", r"device: 'gpu' is not of the form auto|cpu|mps|cuda(:\d+)?"),
        ("server: {port: 70000}", "server.port: input should be less than or equal to 65535 (got 70000)"),
        ("memory_budget: 8", "memory_budget: 8 is a size of 8 bytes: write its unit, such as 8GiB"),
        ("memory_budget: 8 gigs", "memory_budget: '8 gigs' is no size: write one such as 8GiB or 512MB"),
        ("server: {port: 0, prt: 1, hst: a}", "server.prt: unknown key; did you mean 'port'? (and 1 more)"),
        ("models: [a, a]", "models[0] and models[1] share the name 'a': ids, served names and aliases must be unique"),
        ("models: []", "`models` is empty"),
        ("", "`models` is empty"),
        ("- a", "must hold keys such as `models:`, not a list: put a line `models:` above it"),
        ("models: [a", ":1:11: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("device: cpu\ndevice: mps", ":2:1: not valid YAML: the key 'device' is written twice"),
        ("models: [!!python/name:os.system a]", ":1:10: not valid YAML: could not determine a constructor for the tag"
         " 'tag:yaml.org,2002:python/name:os.system'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(text: str, line: str, write: Write) -> None:
    assert refusal(write(text)) == line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.yaml") == "can't be read: No such file or directory"
    (tmp_path / "latin.yaml").write_bytes(b"device: \xe9")
    assert refusal(tmp_path / "latin.yaml") == "can't be read: not UTF-8 text"
    (tmp_path / "control.yaml").write_bytes(b"device: \x01")
    assert refusal(tmp_path / "control.yaml").startswith("not valid YAML: unacceptable character")


def test_what_is_given_wins_over_the_file_and_the_file_over_the_defaults(write: Write) -> None:
    path = write("device: cpu\nserver: {port: 1, max_inputs: 9}\nmodels: [{id: a, dtype: float16}, b]")
    request = Request(
        registry=path,
        per_model={"dtype": Given(["bfloat16"], "--dtype")},
        settings={("server", "port"): Given(2, "--port"), ("log", "level"): Given("debug", "--log-level")},
    )
    config = load_config(request)
    assert (config.device, config.server.port, config.server.max_inputs) == ("cpu", 2, 9)
    assert (config.server.host, config.log.level) == ("127.0.0.1", "debug")
    assert [spec.dtype for spec in config.models] == ["bfloat16", "bfloat16"]


def test_only_the_named_models_are_served_and_known_ones_keep_their_settings(write: Write) -> None:
    path = write("models: [{id: o/a, source: x/a, aliases: [alpha]}, {id: o/b, served_name: beta}, c]")
    config = load_config(Request(registry=path, model_ids=["beta", "alpha", "d"]))
    assert [(spec.id, spec.name, spec.location) for spec in config.models] == [
        ("o/b", "beta", "o/b"),
        ("o/a", "o/a", "x/a"),
        ("d", "d", "d"),
    ]


def test_a_relative_folder_is_beside_the_registry_wherever_the_command_runs(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "elsewhere" / "models" / "tiny").mkdir(parents=True)
    write("models: [{id: a, source: models/tiny}, models/tiny, {id: b, source: owner/name}, {id: c, source: /d}, e]")
    expected = [str(tmp_path / "models" / "tiny")] * 2 + ["owner/name", "/d", "e"]

    for folder, registry in ((tmp_path, "registry.yaml"), (tmp_path / "elsewhere", "../registry.yaml")):
        monkeypatch.chdir(folder)
        config = load_config(Request(registry=Path(registry)))
        assert [Path(spec.location).resolve() for spec in config.models[:2]] == list(map(Path, expected[:2]))
        assert [spec.location for spec in config.models[2:]] == expected[2:]
        assert [spec.id for spec in config.models] == ["a", "models/tiny", "b", "c", "e"]


def test_a_model_named_twice_is_refused(write: Write) -> None:
    path = write("models: [{id: a, aliases: [alpha]}]")
    with pytest.raises(ConfigurationError, match=r"models\[0\] and models\[1\] share the name 'a'"):
        load_config(Request(registry=path, model_ids=["a", "alpha"]))


def test_with_model_ids_the_default_registry_is_not_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("").parent)
    Path("model_registry.yaml").write_text("device: nonsense")
    assert load_config(Request(model_ids=["a"])).device == "auto"


def test_without_anything_the_default_registry_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model_registry.yaml").write_text("models: [a]")
    assert load_config(Request()).models[0].id == "a"


def test_without_any_model_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"--model-id.*--registry.*model_registry\.yaml"):
        load_config(Request())


def spread(values: list[Any], models: int) -> list[str]:
    ids = [f"m{number}" for number in range(models)]
    request = Request(model_ids=ids, per_model={"dtype": Given(values, "--dtype")})
    return [spec.dtype for spec in load_config(request).models]


def test_one_value_is_every_models_and_three_are_one_for_each() -> None:
    assert spread(["float16"], 3) == ["float16"] * 3
    assert spread(["float16", "float32", "bfloat16"], 3) == ["float16", "float32", "bfloat16"]
    assert spread(["float16"], 1) == ["float16"]


@pytest.mark.parametrize(("values", "models"), [(2, 3), (4, 3), (2, 1)])
def test_any_other_count_is_refused(values: int, models: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        spread(["float32"] * values, models)
    assert caught.value.message == (
        f"--dtype: {values} values for {models} models:"
        " give one for all of them, or one for each, in the order of the models"
    )


def test_an_empty_value_leaves_the_models_own(write: Write) -> None:
    path = write("models: [{id: a, revision: main}, b]")
    given = {"revision": Given(["", "v2"], "COTENANT_REVISION")}
    assert [spec.revision for spec in load_config(Request(registry=path, per_model=given)).models] == ["main", "v2"]


def test_a_wrong_value_names_the_flag_or_variable_that_gave_it(write: Write) -> None:
    path = write("server: {max_inputs: 3}\nmodels: [a, b]")
    per_model = {"max_batch_tokens": Given(["512", "many"], "COTENANT_MAX_BATCH_TOKENS")}
    with pytest.raises(ConfigurationError, match=r"^COTENANT_MAX_BATCH_TOKENS: input should be a valid integer"):
        load_config(Request(registry=path, per_model=per_model))
    with pytest.raises(ConfigurationError, match=r"^--device: 'tpu' is not of the form"):
        load_config(Request(registry=path, settings={("device",): Given("tpu", "--device")}))


@pytest.mark.parametrize("path", REGISTRIES, ids=lambda path: path.name)
def test_the_effective_configuration_is_a_registry_that_means_the_same(path: Path, write: Write) -> None:
    config = load_config(Request(registry=path))
    assert read_registry(write(effective_yaml(config))) == config


def test_the_effective_configuration_shows_every_default() -> None:
    shown = yaml.safe_load(effective_yaml(RuntimeConfig(models=(ModelSpec(id="a"),))))
    assert set(shown) == set(RuntimeConfig.model_fields)
    assert set(shown["models"][0]) == set(ModelSpec.model_fields)
    assert shown["server"]["port"] == 7997


def references(schema: Any) -> set[str]:
    """Every `$ref` in a schema."""
    if isinstance(schema, list):
        return set().union(*map(references, schema))
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
    return own.union(*map(references, schema.values()))


def test_the_schema_describes_every_key_and_refuses_others() -> None:
    schema = json.loads(registry_schema())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    definitions = schema["$defs"]
    assert references(schema) <= {f"#/$defs/{name}" for name in definitions}
    objects = [schema, definitions["ModelSpec"], definitions["ServerSettings"], definitions["LogSettings"]]
    for described in objects:
        assert described["type"] == "object"
        assert described["additionalProperties"] is False
    for section in objects:
        assert all(key.get("description") or "$ref" in key for key in section["properties"].values())
    assert definitions["ModelSpec"]["required"] == ["id"]
    entry = schema["properties"]["models"]["items"]
    assert {"type": "string"} in entry["anyOf"]
    assert {"$ref": "#/$defs/ModelSpec"} in entry["anyOf"]

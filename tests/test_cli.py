"""The command line: what it prints, what it takes from where, and how it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner, Result

from runtime import __version__, cli
from runtime.flags import FLAGS, split_list

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-P", "-m", "runtime"]
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that asks for nothing, and a folder without a registry."""
    for name in list(os.environ):
        if name.startswith(("COTENANT_", "INFINITY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def cotenant(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env=variables)


def effective(*arguments: str, **variables: str) -> dict[str, Any]:
    """The configuration that `validate` prints."""
    result = cotenant("validate", *arguments, **variables)
    assert result.exit_code == 0, result.output
    config: dict[str, Any] = yaml.safe_load(result.stdout)
    return config


def of_models(config: dict[str, Any], key: str) -> list[Any]:
    return [model[key] for model in config["models"]]


def refusal(*arguments: str, **variables: str) -> str:
    """The one line on standard error of a start that fails."""
    result = cotenant(*arguments, **variables)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("cotenant: ").removesuffix("\n")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", ["--help", "serve --help", "v2 --help", "validate --model-id a", "version"])
def test_nothing_heavy_is_imported_before_serving(arguments: str) -> None:
    code = (
        "import sys; from runtime.cli import app; app(standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'starlette', 'hypercorn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = run_python(code, *arguments.split())
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("arguments", ["version", "--version"])
def test_the_version(arguments: str) -> None:
    assert cotenant(arguments).stdout == f"cotenant {__version__}\n"


def test_no_command_shows_the_commands() -> None:
    output = cotenant().output
    assert all(command in output for command in ("serve", "v2", "validate", "version"))


def test_the_schema_needs_no_models() -> None:
    result = cotenant("validate", "--schema")
    assert result.exit_code == 0
    assert '"Cotenant model registry"' in result.stdout


def test_shell_completion_knows_commands_flags_and_choices() -> None:
    def complete(line: str) -> str:
        variables = {"_COTENANT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return CliRunner().invoke(cli.app, [], env=variables, prog_name="cotenant").output

    assert "serve" in complete("cotenant s")
    assert "--memory-budget" in complete("cotenant serve --memory")
    assert "bfloat16" in complete("cotenant serve --dtype b")
    assert "hypercorn" in complete("cotenant serve --http hy")


def test_every_flag_has_its_variable_and_its_help() -> None:
    commands = vars(typer.main.get_command(cli.app))["commands"]
    for name in ("serve", "v2", "validate"):
        for parameter in commands[name].params:
            assert parameter.help or name == "v2", parameter.name
            assert parameter.envvar, parameter.name
            if name != "v2":
                assert f"COTENANT_{parameter.name.upper()}" in parameter.envvar


def test_every_flag_of_serve_reaches_its_place() -> None:
    Path("keys.yaml").write_text("keys: [{name: m, key: m}]")
    values = {
        "model_id": "a", "served_model_name": "b", "revision": "c", "dtype": "float32", "backend": "openvino",
        "quantize": "int8", "max_batch_tokens": "77", "trust_remote_code": "true", "device": "cpu",
        "memory_budget": "3gib", "cpu_lanes": "3", "split_products": "false",
        "tokenizer_threads": "4", "idle_wait_ms": "1.5", "host": "::1", "port": "81", "http": "uvicorn",
        "max_inputs": "5", "max_documents": "6", "max_body_bytes": "2048", "drain_timeout_s": "2.5", "url_prefix": "/p",
        "bind_model": "a=:82", "api_key": "k", "api_keys": "n:l", "drain_delay": "5.0",
        "keys_file": "keys.yaml", "public_models": "true", "public_metrics": "true", "tracing": "true",
        "uds": "/s", "tls_certificate": "/c", "tls_key": "/k", "log_level": "error",
        "log_format": "json", "allow_image_host": "images.example:8443", "admin_token": "none",
    }  # fmt: skip
    assert set(values) | {"registry"} == {flag.name for flag in FLAGS}
    found = reached(values, without=["uds"]) | reached(values, without=["tls_certificate", "tls_key"])
    secrets = dict.fromkeys(("api_key", "api_keys"), "none")
    assert found == values | {"bind_model": "{':82': 'a'}"} | secrets


def reached(values: dict[str, str], without: Sequence[str]) -> dict[str, str]:
    """The flags' values at their places, asked for by variables."""
    given = {name: value for name, value in values.items() if name not in without}
    config = effective(**{f"COTENANT_{name.upper()}": value for name, value in given.items()})
    found = {}
    for flag in FLAGS:
        if flag.key and flag.name in given:
            section = config["models"][0] if flag.per_model else config[flag.section] if flag.section else config
            value = section[flag.key]
            found[flag.name] = str(value[0] if isinstance(value, list) else value).lower()
    return found


def test_the_command_line_wins_over_the_environment_and_that_over_the_registry() -> None:
    Path("registry.yaml").write_text("server: {port: 1, max_inputs: 2, drain_timeout_s: 3}\nmodels: [{id: a}]")
    variables = {"COTENANT_REGISTRY": "registry.yaml", "COTENANT_PORT": "10", "COTENANT_MAX_INPUTS": "20"}
    server = effective("--port", "100", **variables)["server"]
    assert (server["port"], server["max_inputs"], server["drain_timeout_s"], server["max_body_bytes"]) == (
        100,
        20,
        3.0,
        64 * 2**20,
    )


def test_a_repeated_option_is_one_for_all_models_or_one_for_each() -> None:
    two = ("--model-id", "a", "--model-id", "b")
    assert of_models(effective(*two, "--dtype", "float16"), "dtype") == ["float16", "float16"]
    each = effective(*two, "--dtype", "float16", "--dtype", "auto", "--no-trust-remote-code", "--trust-remote-code")
    assert of_models(each, "dtype") == ["float16", "auto"]
    assert of_models(each, "trust_remote_code") == [False, True]
    three = ("--revision", "x", "--revision", "y", "--revision", "z")
    assert refusal("serve", *two, *three).startswith("--revision: 3 values for 2 models: give one for all of them")
    line = refusal("serve", *two, "--model-id", "c", "--dtype", "auto", "--dtype", "auto")
    assert line.startswith("--dtype: 2 values for 3 models")


def test_one_served_name_for_two_models_is_refused() -> None:
    line = refusal("serve", "--model-id", "a", "--model-id", "b", "--served-model-name", "one")
    assert line.startswith("models[0] and models[1] share the name 'one'")


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a;b", ["a", "b"]),
        ("a;b;", ["a", "b"]),
        ("a;", ["a"]),
        (" a ; b c ", ["a", "b c"]),
        (";b", ["", "b"]),
        ("a b", ["a", "b"]),
        ("a, b,c", ["a", "b", "c"]),
        ("a", ["a"]),
    ],
)
def test_a_list_variable_is_parted_by_semicolons_or_else_by_commas_and_blanks(text: str, entries: list[str]) -> None:
    assert split_list(text) == entries


def test_list_variables() -> None:
    config = effective(
        COTENANT_MODEL_ID="/my models/a;b;",
        COTENANT_DTYPE="float16;auto;",
        COTENANT_MAX_BATCH_TOKENS="128 256",
        COTENANT_TRUST_REMOTE_CODE="1;false",
        COTENANT_REVISION=";main",
    )
    assert of_models(config, "id") == ["/my models/a", "b"]
    assert of_models(config, "dtype") == ["float16", "auto"]
    assert of_models(config, "max_batch_tokens") == [128, 256]
    assert of_models(config, "trust_remote_code") == [True, False]
    assert of_models(config, "revision") == [None, "main"]


@pytest.mark.parametrize("command", ["serve", "validate", "download", "plan", "v2"])
@pytest.mark.parametrize(
    ("flag", "wrong"), [("port", "abc"), ("split-products", "perhaps"), ("log-level", "loud"), ("cpu-lanes", "two")]
)
def test_a_wrong_value_is_refused_by_whatever_held_it(command: str, flag: str, wrong: str) -> None:
    variable = f"COTENANT_{flag.replace('-', '_').upper()}"
    held = cotenant(command, "--model-id", "a/b", **{variable: wrong})
    assert held.exit_code == 2
    assert f"Invalid value for '{variable}': " in held.stderr
    assert f"--{flag}" not in held.stderr
    if flag == "split-products":
        return  # a switch takes no value that could be wrong
    typed = cotenant(command, "--model-id", "a/b", f"--{flag}", wrong, **{variable: "1"})
    assert f"Invalid value for '--{flag}': " in typed.stderr
    assert variable not in typed.stderr


def test_of_two_variables_the_one_that_counts_is_named() -> None:
    both = cotenant("v2", "--model-id", "a/b", INFINITY_PORT="abc", COTENANT_PORT="1")
    assert "Invalid value for 'INFINITY_PORT': " in both.stderr
    assert "COTENANT_PORT" not in both.stderr


def test_a_wrong_list_variable_is_named() -> None:
    line = refusal("serve", COTENANT_MODEL_ID="a;b", COTENANT_DTYPE="auto;auto;auto")
    assert line.startswith("COTENANT_DTYPE: 3 values for 2 models")
    line = refusal("serve", COTENANT_MODEL_ID="a", COTENANT_TRUST_REMOTE_CODE="perhaps")
    assert line.startswith("COTENANT_TRUST_REMOTE_CODE: input should be a valid boolean")


def test_a_mistake_in_the_registry_is_one_line_and_no_traceback() -> None:
    Path("model_registry.yaml").write_text("models: [{id: a, dtyp: auto}]")
    assert refusal("serve") == "model_registry.yaml: models[0].dtyp: unknown key; did you mean 'dtype'?"
    assert refusal("validate") == "model_registry.yaml: models[0].dtyp: unknown key; did you mean 'dtype'?"


def test_validate_names_missing_files_and_goes_on() -> None:
    result = cotenant("validate", "--model-id", "good/one", "--model-id", "./missing")
    assert result.exit_code == 0
    assert result.stderr == (
        "cotenant: ./missing: './missing' is neither an existing folder nor a hub id (OWNER/NAME);"
        " other sources are `package:MODULE/PATH` and `cache:NAME`\n"
    )


def test_a_served_model_answers_until_sigterm_ends_it_with_status_0(tiny_model: Callable[[str], Path]) -> None:
    command = [*COMMAND, "serve", "--model-id", str(tiny_model("bert-embedder")), "--port", "0", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("cotenant is ready at http://127.0.0.1:")
            with urllib.request.urlopen(f"{line.split()[4]}/ready", timeout=WAIT_S) as answer:
                assert answer.status == 200
            server.terminate()
            assert server.wait(WAIT_S) == 0
        finally:
            server.kill()

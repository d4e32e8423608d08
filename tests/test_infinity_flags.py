"""`cotenant v2`: Infinity's command line and variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from runtime import cli
from runtime.configuration import Request, load_config
from runtime.infinity_flags import IGNORED, INFINITY_FLAGS, REFUSED
from runtime.registry import RuntimeConfig


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("COTENANT_", "INFINITY_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[RuntimeConfig]:
    """What would be served, instead of serving it."""
    configs: list[RuntimeConfig] = []

    def keep(request: Request) -> None:
        configs.append(load_config(request))

    monkeypatch.setattr(cli, "_serve", keep)
    return configs


def v2(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli.app, ["v2", *arguments], env=variables)


def test_what_kubeai_sets_is_served(served: list[RuntimeConfig]) -> None:
    result = v2(
        INFINITY_MODEL_ID="BAAI/bge-small-en-v1.5",
        INFINITY_SERVED_MODEL_NAME="bge",
        INFINITY_URL_PREFIX="/v1",
        INFINITY_ENGINE="torch",
        INFINITY_PORT="8000",
    )
    assert result.exit_code == 0, result.output
    [config] = served
    assert [(spec.id, spec.name) for spec in config.models] == [("BAAI/bge-small-en-v1.5", "bge")]
    assert config.server.port == 8000
    assert result.stderr == "cotenant: ignored, for they have no meaning here: INFINITY_ENGINE\n"


def test_lists_of_variables(served: list[RuntimeConfig]) -> None:
    v2(
        INFINITY_MODEL_ID="a;b;",
        INFINITY_SERVED_MODEL_NAME="one;two;",
        INFINITY_REVISION="main;",
        INFINITY_DTYPE="float16;float32",
        INFINITY_TRUST_REMOTE_CODE="true;false;",
        INFINITY_DEVICE="cpu;cpu;",
        INFINITY_HOST="0.0.0.0",
        INFINITY_LOG_LEVEL="trace",
        INFINITY_MAX_CLIENT_BATCH_SIZE="64",
    )
    [config] = served
    assert [spec.name for spec in config.models] == ["one", "two"]
    assert [spec.revision for spec in config.models] == ["main", "main"]
    assert [spec.dtype for spec in config.models] == ["float16", "float32"]
    assert [spec.trust_remote_code for spec in config.models] == [True, False]
    assert (config.device, config.server.host, config.server.max_inputs) == ("cpu", "0.0.0.0", 64)
    assert config.log.level == "debug"


def test_the_safe_defaults_are_ours(served: list[RuntimeConfig]) -> None:
    v2("--model-id", "a")
    [config] = served
    assert config.server.host == "127.0.0.1"
    assert config.models[0].trust_remote_code is False


def test_infinitys_variables_win_over_ours_and_flags_over_both(served: list[RuntimeConfig]) -> None:
    ours = {"COTENANT_PORT": "1", "COTENANT_HOST": "::", "COTENANT_CPU_LANES": "2"}
    v2("--model-id", "a", "--dtype", "float16", INFINITY_PORT="2", INFINITY_DTYPE="auto", **ours)
    [config] = served
    assert (config.server.port, config.server.host, config.cpu_lanes) == (2, "::", 2)
    assert config.models[0].dtype == "float16"


def test_serve_reads_none_of_infinitys_variables() -> None:
    result = CliRunner().invoke(cli.app, ["serve"], env={"INFINITY_MODEL_ID": "a"})
    assert result.exit_code == 1
    assert result.stderr.startswith("cotenant: no models to serve")


def test_flags_without_meaning_are_named_in_one_line(served: list[RuntimeConfig]) -> None:
    flags = "--engine torch --batch-size 8 --batch-size 16 --no-bettertransformer --compile --model-warmup"
    more = "--lengths-via-tokenize --vector-disk-cache --pooling-method auto --redirect-slash / --proxy-root-path /p"
    onnx = "--onnx-disable-optimize --onnx-do-not-prefer-quantized"
    result = v2("--model-id", "a", *f"{flags} {more} {onnx}".split())
    assert result.exit_code == 0, result.output
    assert len(served) == 1
    assert result.stderr.count("\n") == 1
    named = result.stderr.strip().partition("here: ")[2].split(", ")
    assert sorted(named) == sorted("--" + name.replace("_", "-") for name in IGNORED)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--embedding-dtype", "int8"], "--embedding-dtype is not supported: vectors are float32"),
        (["--preload-only"], "--preload-only is not supported"),
        (["--permissive-cors"], "--permissive-cors is not supported"),
        (["--dtype", "int8"], "--dtype: 'int8' is not one of 'auto', 'float32', 'float16', 'bfloat16'"),
        (["--device", "tensorrt"], "--device: 'tensorrt' is not of the form auto|cpu|mps|cuda"),
        (["--device", "cpu", "--device", "cuda"], "--device: all models share one device, so it can't be cpu and cuda"),
        (["--device-id", "0,1"], "--device-id: '0,1' is not the number of one GPU"),
    ],
)
def test_what_would_change_answers_is_refused(arguments: list[str], line: str, served: list[RuntimeConfig]) -> None:
    result = v2("--model-id", "a", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"cotenant: {line}")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.output
    assert served == []


def test_a_refused_variable_is_named() -> None:
    result = v2(INFINITY_MODEL_ID="a", INFINITY_PERMISSIVE_CORS="true")
    assert result.stderr.startswith("cotenant: INFINITY_PERMISSIVE_CORS is not supported")


def test_prefix_and_key_are_taken(served: list[RuntimeConfig]) -> None:
    v2(INFINITY_MODEL_ID="a", INFINITY_API_KEY="secret", INFINITY_URL_PREFIX="/v1")
    [config] = served
    assert config.server.api_key is not None
    assert config.server.api_key.get_secret_value() == "secret"
    assert config.server.url_prefix == "/v1"


def test_values_that_ask_for_what_is_done_anyway_are_taken(served: list[RuntimeConfig]) -> None:
    harmless = "--embedding-dtype float32 --url-prefix / --no-preload-only --no-permissive-cors"
    assert v2("--model-id", "a", *harmless.split()).exit_code == 0
    assert v2(INFINITY_MODEL_ID="a", INFINITY_EMBEDDING_DTYPE="float32;", INFINITY_API_KEY="").exit_code == 0
    assert len(served) == 2


@pytest.mark.parametrize(
    ("arguments", "device"),
    [
        (["--device-id", "1"], "cuda:1"),
        (["--device", "cuda", "--device-id", "2"], "cuda:2"),
        (["--device", "cpu", "--device-id", "0"], "cpu"),
        (["--device", "cuda", "--device-id", ""], "cuda"),
        (["--device-id", ""], "auto"),
        ([], "auto"),
    ],
)
def test_device_and_device_id_are_one_device(arguments: list[str], device: str, served: list[RuntimeConfig]) -> None:
    v2("--model-id", "a", *arguments)
    assert served[0].device == device


def test_every_flag_of_infinitys_is_taken() -> None:
    theirs = """model_id served_model_name batch_size revision trust_remote_code engine model_warmup
    vector_disk_cache device device_id lengths_via_tokenize dtype embedding_dtype pooling_method compile
    bettertransformer onnx_disable_optimize onnx_do_not_prefer_quantized preload_only host port url_prefix
    redirect_slash log_level permissive_cors api_key proxy_root_path"""
    by_name = {flag.name: flag for flag in INFINITY_FLAGS}
    for name in theirs.split():
        assert by_name[name].environment[0] == f"INFINITY_{name.upper()}"


def test_what_is_ignored_or_refused_is_no_flag_of_serve() -> None:
    output = CliRunner().invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert not [name for name in (*IGNORED, *REFUSED) if "--" + name.replace("_", "-") in output]

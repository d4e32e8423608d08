"""The manifests, the compose file and the systemd unit name flags, keys, variables and routes that exist."""

from __future__ import annotations

import configparser
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from runtime import cli
from runtime.api.app import build_app
from runtime.configuration import read_registry
from runtime.flags import FLAGS
from tests.fakes import FakeEngine

EXAMPLES = Path(__file__).parent.parent / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
FOREIGN = {"HF_HOME", "HF_HUB_OFFLINE"}
"""Variables of the hub's library."""


def manifests() -> dict[str, dict[str, Any]]:
    """By kind."""
    parsed = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in MANIFESTS]
    return {manifest["kind"]: manifest for manifest in parsed}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment"]["spec"]["template"]["spec"]
    return spec


def containers() -> list[dict[str, Any]]:
    return [*pod()["initContainers"], *pod()["containers"]]


def compose() -> dict[str, Any]:
    parsed = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))
    service: dict[str, Any] = parsed["services"]["cotenant"]
    assert {volume.split(":")[0] for volume in service["volumes"] if not volume.startswith(".")} == set(
        parsed["volumes"]
    )
    return service


class Unit(configparser.ConfigParser):
    """systemd's form, in which case counts."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> Unit:
    parsed = Unit(interpolation=None, strict=True)
    parsed.read_string((EXAMPLES / "cotenant.service").read_text(encoding="utf-8"))
    return parsed


def command_lines() -> Iterator[list[str]]:
    yield from (container["args"] for container in containers())
    yield compose()["command"]
    yield unit()["Service"]["ExecStart"].split()[1:]


def variables() -> Iterator[str]:
    yield from (variable["name"] for container in containers() for variable in container.get("env", []))
    yield from compose()["environment"]
    yield from (pair.partition("=")[0] for pair in unit()["Service"]["Environment"].split())
    for path in (*MANIFESTS, EXAMPLES / "compose.yaml", EXAMPLES / "cotenant.service"):
        yield from re.findall(r"\bCOTENANT_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))


def paths() -> Iterator[str]:
    for container in pod()["containers"]:
        yield from (container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness"))
    yield manifests()["Deployment"]["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]
    yield from re.findall(r"127\.0\.0\.1:\d+(/\w+)", compose()["healthcheck"]["test"][-1])
    readme = (EXAMPLES / "kubernetes" / "README.md").read_text(encoding="utf-8")
    yield from re.findall(r"`(/(?:live|ready|v2/health/\w+))`", readme)


def seconds(text: str) -> float:
    return float(re.sub(r"\D", "", text))


@pytest.mark.parametrize("line", [*command_lines()], ids=" ".join)
def test_every_command_line_is_understood(line: list[str]) -> None:
    commands = vars(typer.main.get_command(cli.app))["commands"]
    command, *arguments = line
    known = {option for parameter in commands[command].params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_every_variable_exists() -> None:
    assert set(variables()) <= {variable for flag in FLAGS for variable in flag.environment} | FOREIGN


def test_every_path_is_a_route() -> None:
    router = inspect.getclosurevars(build_app(FakeEngine())).nonlocals["router"]
    asked = set(paths())
    assert {"/live", "/ready", "/metrics"} <= asked
    assert asked <= {route.path_format for route in router.routes}


def test_the_registry_in_the_config_map_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "model_registry.yaml"
    path.write_text(manifests()["ConfigMap"]["data"]["model_registry.yaml"], encoding="utf-8")
    config = read_registry(path)
    grace_s = pod()["terminationGracePeriodSeconds"]
    assert grace_s > config.server.drain_delay_s + config.server.drain_timeout_s
    assert {port["containerPort"] for port in pod()["containers"][0]["ports"]} == {config.server.port}
    assert config.server.keys_file is not None
    assert Path(config.server.keys_file).parent in map(Path, mounted("keys"))


def mounted(volume: str) -> list[str]:
    return [mount["mountPath"] for each in containers() for mount in each["volumeMounts"] if mount["name"] == volume]


def test_the_manifests_fit_together() -> None:
    found = manifests()
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert {mount["name"] for each in containers() for mount in each["volumeMounts"]} == set(volumes)
    assert volumes["registry"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= found["Service"]["spec"]["selector"].items()
    [port] = found["Service"]["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in pod()["containers"][0]["ports"]}
    assert set(mounted("models")) == {"/data"}


def test_stopping_gets_longer_than_draining() -> None:
    service = unit()["Service"]
    drain_s = seconds(service["Environment"].partition("COTENANT_DRAIN_TIMEOUT_S=")[2])
    assert seconds(service["TimeoutStopSec"]) > drain_s
    assert service["Type"] == "notify"
    assert seconds(compose()["stop_grace_period"]) > seconds(compose()["environment"]["COTENANT_DRAIN_TIMEOUT_S"])


def test_the_key_of_the_instructions_is_made_as_they_say() -> None:
    readme = (EXAMPLES / "kubernetes" / "README.md").read_text(encoding="utf-8")
    assert "cotenant key search" in readme
    entry = CliRunner().invoke(cli.app, ["key", "search"]).stdout
    assert yaml.safe_load("keys:\n" + entry)["keys"][0]["name"] == "search"

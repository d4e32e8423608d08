"""The command line of `infinity_emb v2` and its INFINITY_* variables, in terms of `serve`'s flags.

Flags and semantics: Infinity 0.0.78's `infinity_emb/cli.py` and `env.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from runtime.configuration import Given
from runtime.errors import ConfigurationError
from runtime.flags import DEVICE, FLAGS, Flag, own_variable

PREFIX: Final = "INFINITY_"
IGNORED_PANEL: Final = "Infinity's: accepted, without effect"
REFUSED_PANEL: Final = "Infinity's: refused unless they change nothing"

CHANGED: Final[Mapping[str, dict[str, Any]]] = {
    "device": {"kind": list[str]},
    "log_level": {"kind": Literal["critical", "error", "warning", "info", "debug", "trace"]},
}
"""Flags of ours that Infinity spells in more ways."""

SHARED: Final = {
    name: PREFIX + name.upper()
    for name in (
        "model_id",
        "served_model_name",
        "revision",
        "dtype",
        "trust_remote_code",
        "device",
        "host",
        "port",
        "log_level",
        "url_prefix",
        "api_key",
    )
} | {"max_inputs": "INFINITY_MAX_CLIENT_BATCH_SIZE"}
"""Flags that mean the same in both, and the variable that Infinity reads for each."""

IGNORED: Final[Mapping[str, Any]] = {
    "engine": list[str],
    "batch_size": list[int],
    "model_warmup": list[bool],
    "vector_disk_cache": list[bool],
    "lengths_via_tokenize": list[bool],
    "pooling_method": list[str],
    "compile": list[bool],
    "bettertransformer": list[bool],
    "onnx_disable_optimize": list[bool],
    "onnx_do_not_prefer_quantized": list[bool],
    "redirect_slash": str,
    "proxy_root_path": str,
}
"""What has no meaning here and changes no answer, with its type."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A flag that would change answers or what may be asked; `harmless` values ask for what we do anyway."""

    kind: Any
    harmless: Sequence[Any]
    reason: str


REFUSED: Final[Mapping[str, Refusal]] = {
    "embedding_dtype": Refusal(list[str], ("float32", ""), "vectors are float32; quantize them at the client"),
    "preload_only": Refusal(bool, (False,), "run `cotenant download` instead"),
    "permissive_cors": Refusal(bool, (False,), "no cross-origin headers are sent"),
}


def _of_ours(flag: Flag) -> Flag:
    if flag.name not in SHARED:
        return flag
    variables = (SHARED[flag.name], own_variable(flag.name))
    return replace(flag, variables=variables, **CHANGED.get(flag.name, {}))


def _of_infinity(name: str, kind: Any, *, panel: str, reason: str = "") -> Flag:
    explained = f"Refused: {reason}." if reason else ""
    return Flag(name=name, kind=kind, variables=(PREFIX + name.upper(),), panel=panel, help=explained)


INFINITY_FLAGS: Final = (
    *map(_of_ours, FLAGS),
    _of_infinity("device_id", list[str], panel=DEVICE),
    *(_of_infinity(name, kind, panel=IGNORED_PANEL) for name, kind in IGNORED.items()),
    *(
        _of_infinity(name, refusal.kind, panel=REFUSED_PANEL, reason=refusal.reason)
        for name, refusal in REFUSED.items()
    ),
)


def translate(values: Mapping[str, Given]) -> tuple[dict[str, Given], list[str]]:
    """Infinity's values as `serve`'s, and the flags or variables that are ignored.

    Raises ConfigurationError for a value that would have to change answers.
    """
    for name, refusal in REFUSED.items():
        if name in values and not _is_harmless(values[name].value, refusal):
            raise ConfigurationError(f"{values[name].origin} is not supported: {refusal.reason}")
    ours = {flag.name for flag in FLAGS}
    translated = {name: given for name, given in values.items() if name in ours}
    if device := _device(values):
        translated["device"] = device
    else:
        translated.pop("device", None)
    if (level := values.get("log_level")) and level.value == "trace":
        translated["log_level"] = Given("debug", level.origin)
    return translated, [given.origin for name, given in values.items() if name in IGNORED]


def _is_harmless(value: Any, refusal: Refusal) -> bool:
    entries = value if isinstance(value, list) else [value]
    return all(entry in refusal.harmless for entry in entries)


def _device(values: Mapping[str, Given]) -> Given | None:
    """Infinity's device and device id for each model as the process's one device."""
    device, number = _same(values.get("device")), _same(values.get("device_id"))
    if number is None:
        return device
    if not number.value.isdecimal():
        raise ConfigurationError(f"{number.origin}: {number.value!r} is not the number of one GPU")
    if device is None or device.value in ("auto", "cuda"):
        return Given(f"cuda:{number.value}", number.origin)
    return device


def _same(given: Given | None) -> Given | None:
    """The one value of a list that must not differ from model to model. Empty entries count as not given."""
    entries = {entry for entry in given.value if entry} if given else set()
    if given is None or not entries:
        return None
    if len(entries) > 1:
        raise ConfigurationError(
            f"{given.origin}: all models share one device, so it can't be {' and '.join(sorted(entries))}"
        )
    return Given(entries.pop(), given.origin)

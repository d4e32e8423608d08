"""Where settings come from: flags over environment over YAML over defaults, checked into one RuntimeConfig.

Every mistake is a ConfigurationError of one line that names the file and key, the flag or the variable.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from runtime.errors import ConfigurationError
from runtime.registry import LogSettings, ModelSpec, RuntimeConfig, Section, ServerSettings

DEFAULT_REGISTRY: Final = Path("model_registry.yaml")
SECTIONS: Final[Mapping[str, type[Section]]] = {
    "": RuntimeConfig,
    "server": ServerSettings,
    "log": LogSettings,
    "models": ModelSpec,
}
"""The sections by where they stand; `models` is each entry of that list."""

Location = tuple[int | str, ...]
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was asked for, and the flag or variable that asked."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line and the environment ask for."""

    registry: Path | None = None
    model_ids: Sequence[str] = ()
    per_model: Mapping[str, Given] = field(default_factory=dict)
    """By key of ModelSpec: a list of one value for all models, or of one for each."""
    settings: Mapping[tuple[str, ...], Given] = field(default_factory=dict)
    """By location, such as `("server", "port")`."""


def load_config(request: Request) -> RuntimeConfig:
    """The effective configuration. Raises ConfigurationError.

    With model ids, only those are served: one that the registry knows keeps its settings there, any other has
    the defaults. Without them, everything in the registry is served.
    """
    path = request.registry
    if path is None and not request.model_ids and DEFAULT_REGISTRY.is_file():
        path = DEFAULT_REGISTRY
    registry = read_registry(path) if path else RuntimeConfig()
    tree: Tree = registry.model_dump(exclude_unset=True)
    tree["models"] = _select(registry, request.model_ids)
    if not tree["models"]:
        raise ConfigurationError(
            f"{path}: `models` is empty"
            if path
            else "no models to serve: name them with --model-id, give a file with --registry,"
            f" or run where there is a {DEFAULT_REGISTRY}"
        )
    origins: dict[Location, str] = {}
    for key, given in request.per_model.items():
        _spread(key, given, tree["models"], origins)
    for location, given in request.settings.items():
        _place(location, given, tree, origins)
    return _checked(tree, path, origins)


def read_registry(path: Path) -> RuntimeConfig:
    """The registry file alone. Raises ConfigurationError."""
    return _anchored(_checked(read_tree(path), path, {}), path.parent)


def read_tree(path: Path, example: str = "models") -> Tree:
    """What a YAML file holds: keys, such as `example`, and their values. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(f"{path}: can't be read: {reason}") from error
    try:
        tree = yaml.load(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{path}{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict | None):
        advice = f": put a line `{example}:` above it" if isinstance(tree, list) else ""
        raise ConfigurationError(f"{path}: must hold keys such as `{example}:`, not a {type(tree).__name__}{advice}")
    return tree or {}


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value!r} is written twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def effective_yaml(config: RuntimeConfig) -> str:
    """The configuration with every default filled in, as a registry file that means the same but for its secrets.

    Those are left out, and a comment says which were set: a registry must not come to hold asterisks for a key.
    """
    tree = config.model_dump(mode="json")
    secrets = [key for key in ServerSettings.model_fields if isinstance(getattr(config.server, key), SecretStr)]
    for key in secrets:
        tree["server"][key] = None
    written = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)
    for key in secrets:
        written = written.replace(f"\n  {key}: null\n", f"\n  {key}: null  # set, and not shown\n", 1)
    return written


def registry_schema() -> str:
    """JSON schema (2020-12) of the registry file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RuntimeConfig.model_json_schema()}
    return json.dumps(schema | {"title": "Cotenant model registry"}, indent=2)


def _anchored(registry: RuntimeConfig, folder: Path) -> RuntimeConfig:
    """A relative folder in a registry is one beside the file, wherever the command runs."""
    models = []
    for spec in registry.models:
        beside = folder / spec.location
        is_neighbour = beside.is_dir() and not Path(spec.location).is_absolute()
        models.append(spec.model_copy(update={"source": str(beside.absolute())}) if is_neighbour else spec)
    return registry.model_copy(update={"models": tuple(models)})


def _select(registry: RuntimeConfig, model_ids: Sequence[str]) -> list[Tree]:
    if not model_ids:
        specs: Sequence[ModelSpec] = registry.models
    else:
        specs = [registry.find(model_id) or ModelSpec(id=model_id) for model_id in model_ids]
    return [spec.model_dump(exclude_unset=True) for spec in specs]


def _spread(key: str, given: Given, models: list[Tree], origins: dict[Location, str]) -> None:
    """Infinity's rule: one value is every model's; else each has its own. An empty value changes nothing."""
    values = list(given.value)
    if len(values) == 1:
        values *= len(models)
    if len(values) != len(models):
        raise ConfigurationError(
            f"{given.origin}: {len(values)} values for {len(models)} models:"
            " give one for all of them, or one for each, in the order of the models"
        )
    for position, (value, model) in enumerate(zip(values, models, strict=True)):
        if value != "":
            model[key] = value
            origins["models", position, key] = given.origin


def _place(location: tuple[str, ...], given: Given, tree: Tree, origins: dict[Location, str]) -> None:
    for key in location[:-1]:
        tree = tree.setdefault(key, {})
    tree[location[-1]] = given.value
    origins[location] = given.origin


def _checked(tree: Tree, path: Path | None, origins: Mapping[Location, str]) -> RuntimeConfig:
    try:
        return RuntimeConfig.model_validate(tree)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        where = origins.get(first["loc"]) or ": ".join(filter(None, (str(path or ""), _dotted(first["loc"]))))
        more = f" (and {len(others)} more)" if others else ""
        raise ConfigurationError(f"{where}{': ' if where else ''}{_explain(first)}{more}") from error


def _dotted(location: Location) -> str:
    """`models[1].dtype`, as one would write it down."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


PHRASES: Final = {
    "missing": "is missing",
    "tuple_type": "must be a list",
    "model_type": "must hold keys of its own",
    "dict_type": "must hold keys of its own",
}


def _explain(error: ErrorDetails) -> str:
    """One error of pydantic's in the words of someone who edits YAML."""
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key{_nearest(error['loc'])}"
        case "value_error":
            return str(context["error"])
        case "literal_error" | "enum":
            return f"{value!r} is not one of {context['expected'].replace(' or ', ', ')}"
        case "string_pattern_mismatch":
            return f"{value!r} is not of the form {context['pattern'].strip('^$').strip('()')}"
        case "string_type" if isinstance(value, bool | int | float):
            return f"{value!r} is not text: write it in quotes"
        case kind:
            return PHRASES.get(kind) or _in_short(error["msg"], value)


def _in_short(message: str, value: object) -> str:
    shown = f" (got {value!r})" if isinstance(value, str | int | float | None) else ""
    return f"{message[:1].lower()}{message[1:]}{shown}"


def _nearest(location: Location) -> str:
    """What an unknown key may have meant: the same key elsewhere, or a close one here."""
    *parents, key = (part for part in location if isinstance(part, str))
    known = SECTIONS[".".join(parents)].model_fields
    owners = [section for section, kind in SECTIONS.items() if key in kind.model_fields]
    if owners:
        return f" here; it belongs {' or '.join(f'under {owner}' if owner else 'at the top' for owner in owners)}"
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; the keys here are {', '.join(known)}"

"""The flags of `serve`: one table from which come the options, their variables, their help and their places.

Types, defaults and help are the registry's own, so that a flag and its key can't drift apart.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from runtime.configuration import SECTIONS, Given, Request
from runtime.errors import StartupError

Values = Mapping[str, Any]
Command = Callable[[typer.Context, Values], None]


def own_variable(name: str) -> str:
    """The variable that every flag of `serve` has."""
    return f"COTENANT_{name.upper()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option. `model_id` is `--model-id` on the command line and COTENANT_MODEL_ID in the environment."""

    name: str
    section: str = ""
    key: str = ""
    """The registry's key that the flag sets; empty: none."""
    kind: Any = None
    """The option's type; None: the key's."""
    help: str = ""
    """Empty: the key's description."""
    metavar: str | None = None
    panel: str | None = None
    variables: tuple[str, ...] = ()
    """Environment variables, where there isn't COTENANT_<NAME> alone; the first one that is set counts."""

    @property
    def option(self) -> str:
        """As it is typed."""
        return "--" + self.name.replace("_", "-")

    @property
    def per_model(self) -> bool:
        """Whether it may be repeated, once for each model."""
        return self.section == "models"

    @property
    def environment(self) -> tuple[str, ...]:
        """Every variable that gives the flag's value."""
        return self.variables or (own_variable(self.name),)

    def parameter(self) -> inspect.Parameter:
        """What typer reads the option from. Its value is None unless it was given."""
        field = SECTIONS[self.section].model_fields.get(self.key)
        kind = self.kind or _without_none(field.annotation if field else str)
        choices = get_args(kind) if self.per_model and get_origin(kind) is Literal else ()
        if self.per_model:
            kind = types.GenericAlias(list, (str if choices else kind,))  # typer takes no list of Literals
        is_list = get_origin(kind) is list
        default = None if is_list or field is None else field.default
        option = typer.Option(
            f"{self.option}/--no-{self.option[2:]}" if kind in (bool, list[bool]) else self.option,
            envvar=list(self.environment),
            help=self.help or (field.description if field else None),
            metavar=self.metavar or ("|".join(choices) if choices else None),
            autocompletion=(lambda: list(choices)) if choices else None,
            rich_help_panel=self.panel,
            show_default=False if default is None else str(default),
            case_sensitive=False,
            parser=_unchanged if is_list else None,
            callback=_split_variable if is_list else None,
        )
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]  # a type made at run time
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


MODELS, EACH_MODEL = "Models", "Of the models: once for all of them, or once for each"
DEVICE, SERVER, LOG = "Device", "Server", "Log"

FLAGS: Final = (
    Flag(
        name="model_id",
        section="models",
        key="id",
        metavar="ID",
        panel=MODELS,
        help="A model to serve: a hub id, a folder, `package:MODULE/PATH`, or an id or alias of the registry,"
        " whose settings it then keeps. Repeat it for more models; only these are served.",
    ),
    Flag(
        name="registry",
        kind=Path,
        metavar="FILE",
        panel=MODELS,
        help="YAML file of models and settings. Default: ./model_registry.yaml where no model is named.",
    ),
    Flag(name="served_model_name", section="models", key="served_name", metavar="NAME", panel=EACH_MODEL),
    Flag(name="revision", section="models", key="revision", metavar="REVISION", panel=EACH_MODEL),
    Flag(name="dtype", section="models", key="dtype", panel=EACH_MODEL),
    Flag(name="backend", section="models", key="backend", panel=EACH_MODEL),
    Flag(name="quantize", section="models", key="quantize", panel=EACH_MODEL),
    Flag(name="max_batch_tokens", section="models", key="max_batch_tokens", metavar="TOKENS", panel=EACH_MODEL),
    Flag(name="trust_remote_code", section="models", key="trust_remote_code", panel=EACH_MODEL),
    Flag(name="device", key="device", metavar="auto|cpu|cuda|cuda:N|mps", panel=DEVICE),
    Flag(name="memory_budget", key="memory_budget", kind=str, metavar="SIZE", panel=DEVICE),
    Flag(name="cpu_lanes", key="cpu_lanes", metavar="LANES", panel=DEVICE),
    Flag(name="split_products", key="split_products", panel=DEVICE),
    Flag(name="tokenizer_threads", key="tokenizer_threads", metavar="THREADS", panel=DEVICE),
    Flag(name="idle_wait_ms", key="idle_wait_ms", metavar="MS", panel=DEVICE),
    Flag(name="host", section="server", key="host", metavar="ADDRESS", panel=SERVER),
    Flag(name="port", section="server", key="port", metavar="PORT", panel=SERVER),
    Flag(name="http", section="server", key="http", panel=SERVER),
    Flag(name="max_inputs", section="server", key="max_inputs", metavar="INPUTS", panel=SERVER),
    Flag(name="max_documents", section="server", key="max_documents", metavar="DOCUMENTS", panel=SERVER),
    Flag(name="max_body_bytes", section="server", key="max_body_bytes", metavar="BYTES", panel=SERVER),
    Flag(
        name="allow_image_host",
        section="server",
        key="allow_image_hosts",
        kind=list[str],
        metavar="HOST",
        panel=SERVER,
    ),
    Flag(name="drain_timeout_s", section="server", key="drain_timeout_s", metavar="SECONDS", panel=SERVER),
    Flag(name="drain_delay", section="server", key="drain_delay_s", metavar="SECONDS", panel=SERVER),
    Flag(name="api_key", section="server", key="api_key", kind=str, metavar="KEY", panel=SERVER),
    Flag(name="api_keys", section="server", key="api_keys", kind=str, metavar="NAME:KEY,…", panel=SERVER),
    Flag(name="keys_file", section="server", key="keys_file", metavar="FILE", panel=SERVER),
    Flag(name="public_models", section="server", key="public_models", panel=SERVER),
    Flag(name="public_metrics", section="server", key="public_metrics", panel=SERVER),
    Flag(name="tracing", section="server", key="tracing", panel=SERVER),
    Flag(name="uds", section="server", key="uds", metavar="PATH", panel=SERVER),
    Flag(name="tls_certificate", section="server", key="tls_certificate", metavar="FILE", panel=SERVER),
    Flag(name="tls_key", section="server", key="tls_key", metavar="FILE", panel=SERVER),
    Flag(name="url_prefix", section="server", key="url_prefix", metavar="PATH", panel=SERVER),
    Flag(
        name="bind_model",
        section="server",
        key="bind_model",
        kind=list[str],
        metavar="MODEL=ADDRESS",
        panel=SERVER,
        help="One more address, such as reranker=:8082: requests that come in there and name no model mean that one."
        " Repeat it for more.",
    ),
    Flag(name="admin_token", section="server", key="admin_token", kind=str, metavar="TOKEN", panel=SERVER),
    Flag(name="log_level", section="log", key="level", panel=LOG),
    Flag(name="log_format", section="log", key="format", panel=LOG),
)


class FlagCommand(TyperCommand):
    """A command that refuses a value by the variable that held it, or by the flag that was typed; never by both."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does it. Raises BadParameter."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is not None and error.param_hint is None:
                error.param_hint = [_origin(ctx, error.param.name, error.param.opts[0], error.param.envvar)]
            raise


def takes(flags: Sequence[Flag], *more: inspect.Parameter) -> Callable[[Command], Callable[..., None]]:
    """Make a typer command of a function of what was given: the options of `flags`, and `more` parameters.

    The command ends with status 1 and one line on standard error where the function raises StartupError.
    """

    def decorate(command: Command) -> Callable[..., None]:
        def run(ctx: typer.Context, **values: Any) -> None:
            try:
                command(ctx, values)
            except StartupError as error:
                typer.echo(f"cotenant: {error.message}", err=True)
                raise typer.Exit(1) from error

        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [context, *(flag.parameter() for flag in flags), *more]
        run.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=None)
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def given(ctx: typer.Context, flags: Sequence[Flag], values: Values) -> dict[str, Given]:
    """What was given, by flag's name, with the option or variable that gave it."""
    return {
        flag.name: Given(values[flag.name], _origin(ctx, flag.name, flag.option, flag.environment))
        for flag in flags
        if values.get(flag.name) is not None
    }


def request_of(values: Mapping[str, Given]) -> Request:
    """The flags' values at their places in the registry."""
    flags = {flag.name: flag for flag in FLAGS if flag.name in values}
    model_ids = values["model_id"].value if "model_id" in values else ()
    return Request(
        registry=values["registry"].value if "registry" in values else None,
        model_ids=[model_id for model_id in model_ids if model_id],
        per_model={flag.key: values[name] for name, flag in flags.items() if flag.per_model and name != "model_id"},
        settings={
            tuple(filter(None, (flag.section, flag.key))): values[name]
            for name, flag in flags.items()
            if flag.key and not flag.per_model
        },
    )


def split_list(text: str) -> list[str]:
    """The entries of a list variable: parted by `;` (a last one may follow), or else by commas or blanks."""
    if ";" in text:
        return [entry.strip() for entry in text.removesuffix(";").split(";")]
    return text.replace(",", " ").split()


def _origin(ctx: typer.Context, name: str, option: str, variables: str | Sequence[str] | None) -> str:
    """Who gave the value of the parameter `name`: the first of the variables that is set, or the option."""
    if not _is_from_variable(ctx, name):
        return option
    several = [variables] if isinstance(variables, str) else variables or ()
    return next((variable for variable in several if os.environ.get(variable)), option)


def _is_from_variable(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _split_variable(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Split a list variable our way: typer splits at blanks only."""
    if _is_from_variable(ctx, param.name):
        return split_list(param.resolve_envvar_value(ctx) or "")
    return value


def _unchanged(value: Any) -> Any:
    """Leave an entry as it is: the registry checks it, after a variable has been split."""
    return value


def _without_none(annotation: Any) -> Any:
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(annotation) else annotation

"""The command `cotenant` and its subcommands. Until it serves, it imports no torch and no HTTP."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Annotated

import typer

from runtime import __version__
from runtime.configuration import Request, effective_yaml, load_config, registry_schema
from runtime.errors import ConfigurationError, SourceNotFound
from runtime.flags import FLAGS, FlagCommand, Values, given, request_of, takes
from runtime.infinity_flags import INFINITY_FLAGS, translate
from runtime.plan_report import OPTIONS, answer_to, as_json, show
from runtime.sources import resolve_source

app = typer.Typer(
    name="cotenant",
    help="Serve many retrieval models from one process on one shared device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

SCHEMA = inspect.Parameter(
    "schema",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--schema", envvar="COTENANT_SCHEMA", help="Print the registry's JSON schema instead."),
    ],
)


@app.command(cls=FlagCommand)
@takes(FLAGS)
def serve(ctx: typer.Context, values: Values) -> None:
    """Serve models over HTTP.

    Flags win over COTENANT_* variables, those over the registry, that over the defaults. A variable may hold a
    list parted by semicolons, such as COTENANT_MODEL_ID="a;b".

    With --model-id, only the models named are served: one that --registry knows (by id, served name or alias)
    keeps its settings there, any other has the defaults. Without it, every model of the registry is.
    """
    _serve(request_of(given(ctx, FLAGS, values)))


@app.command(cls=FlagCommand)
@takes(INFINITY_FLAGS)
def v2(ctx: typer.Context, values: Values) -> None:
    """Serve as `infinity_emb v2` would: its flags and INFINITY_* variables, beside those of `serve`.

    Two defaults differ: it listens on 127.0.0.1 unless --host, INFINITY_HOST or COTENANT_HOST says otherwise,
    and code that comes with a checkpoint runs only with --trust-remote-code.
    """
    translated, ignored = translate(given(ctx, INFINITY_FLAGS, values))
    if ignored:
        typer.echo(f"cotenant: ignored, for they have no meaning here: {', '.join(ignored)}", err=True)
    _serve(request_of(translated))


@app.command(cls=FlagCommand)
@takes(FLAGS, SCHEMA)
def validate(ctx: typer.Context, values: Values) -> None:
    """Check a configuration and print it, with every default filled in, as YAML.

    It takes the flags and variables of `serve`. Missing model files are named on standard error; they are no
    mistake of the configuration.
    """
    if values["schema"]:
        typer.echo(registry_schema())
        return
    config = load_config(request_of(given(ctx, FLAGS, values)))
    from runtime.api.keys import read_keys

    read_keys(config.server)
    for spec in config.models:
        try:
            resolve_source(spec)
        except SourceNotFound as error:
            typer.echo(f"cotenant: {spec.name}: {error.message}", err=True)
    typer.echo(effective_yaml(config), nl=False)


@app.command(cls=FlagCommand)
@takes(FLAGS)
def download(ctx: typer.Context, values: Values) -> None:
    """Fetch the files of every model, at its pinned revision, so that serving needs no hub.

    It takes the flags and variables of `serve`. One line a model, with its commit; status 1 where one is missing.
    With HF_HUB_OFFLINE=1 it only looks whether they are there.
    """
    from runtime.downloads import fetch_all, line_of

    missing = False
    for fetched in fetch_all(load_config(request_of(given(ctx, FLAGS, values))).models):
        typer.echo(line_of(fetched))
        missing = missing or fetched.problem is not None
    if missing:
        raise typer.Exit(1)


@app.command(cls=FlagCommand)
@takes(FLAGS, *OPTIONS)
def plan(ctx: typer.Context, values: Values) -> None:
    """Say what a device would do with the models: who fits, who makes way, who is refused. Nothing is loaded.

    It takes the flags and variables of `serve`. Status 1 where the models don't fit.
    """
    config = load_config(request_of(given(ctx, FLAGS, values)))
    _become_a_server()  # on CPU its own memory counts
    answer = answer_to(config, values)
    if values["json"]:
        typer.echo(as_json(answer))
    else:
        show(answer)
    if not answer.plan.fits:
        raise typer.Exit(1)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whose key it is; also the tenant that its tokens count for.")],
) -> None:
    """Make an API key. Its entry for `server.keys_file` is printed; the key itself, on standard error, only now."""
    from runtime.api.keys import new_key

    try:
        secret, entry = new_key(name)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from error
    typer.echo(f"cotenant: the key, which is not kept anywhere: {secret}", err=True)
    typer.echo(entry, nl=False)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of the HTTP API, as JSON."""
    from runtime.api.openapi import document

    typer.echo(json.dumps(json.loads(document()), indent=2, ensure_ascii=False))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"cotenant {__version__}")


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _serve(request: Request) -> None:
    config = load_config(request)
    _become_a_server()
    from runtime.api.lifecycle import run

    raise typer.Exit(run(config, lambda: load_config(request)))


def _become_a_server() -> None:
    """Prepare the process and import what serves. Late: --help and validate do without; torch must find it prepared."""
    from runtime.devices.process import prepare_process, uncollected

    prepare_process()
    with uncollected():
        importlib.import_module("runtime.api.lifecycle")


def main() -> None:
    """The entry point of the command."""
    app(prog_name="cotenant")

"""Where a model's files are: a source becomes a folder on this machine or the id of a model on the hub.

Nothing is imported, downloaded or opened here.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from runtime.errors import SourceNotFound
from runtime.registry import ModelSpec

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
DEMO_MODELS_SCRIPT = "scripts/fetch_demo_models"


def resolve_source(spec: ModelSpec) -> Path | str:
    """The model's folder, or its hub id where it is no folder of this machine. Raises SourceNotFound."""
    location = spec.location
    scheme, colon, rest = location.partition(":")
    if colon and scheme in RESOLVERS:
        return RESOLVERS[scheme](rest)
    folder = Path(location).expanduser()
    if folder.is_dir():
        return folder.absolute()
    if HUB_ID.fullmatch(location):
        return location
    raise SourceNotFound(
        f"{location!r} is neither an existing folder nor a hub id (OWNER/NAME);"
        " other sources are `package:MODULE/PATH` and `cache:NAME`"
    )


def cache_folder() -> Path:
    """The folder of the fetched demo models: `${XDG_CACHE_HOME:-~/.cache}/cotenant/models`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cotenant" / "models"


def _in_package(rest: str) -> Path:
    module, _, path = rest.partition("/")
    # Only the top package is looked up: to find a deeper one, Python would import those above it.
    top, *deeper = module.split(".")
    if not all(part.isidentifier() for part in (top, *deeper)):
        raise SourceNotFound(f"{rest!r} is not of the form MODULE/PATH")
    found = importlib.util.find_spec(top)
    if found is None:
        raise SourceNotFound(f"no Python package {top!r} is installed: install it with pip")
    for location in found.submodule_search_locations or ():
        folder = Path(location, *deeper, path)
        if folder.is_dir():
            return folder.absolute()
    raise SourceNotFound(f"the Python package {top!r} is installed but holds no folder {path!r}")


def _in_cache(name: str) -> Path:
    folder = cache_folder() / name
    if name and folder.is_dir():
        return folder.absolute()
    raise SourceNotFound(f"{cache_folder()} holds no folder {name!r}: run {DEMO_MODELS_SCRIPT} for the demo models")


RESOLVERS = {"package": _in_package, "cache": _in_cache}

"""One serving process from start to end: logs, port, models, the line that says it is ready, signals, drain.

The port opens first, so that `/health` answers while models load. On the first SIGTERM or SIGINT `/ready` turns red and
bulk work is refused at once; after `drain_delay_s` the port closes, requests in flight get their answers, and the
process ends with status 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console

from runtime.api import contract
from runtime.api.app import build_app
from runtime.api.identity import Guard
from runtime.api.listening import is_exposed
from runtime.api.loading import show_loading
from runtime.api.logs import set_up_logs
from runtime.api.notification import READY, STOPPING, notify
from runtime.api.rereading import Read, Rereading
from runtime.api.server import serve
from runtime.engine import Engine as RuntimeEngine
from runtime.errors import StartupError
from runtime.registry import RuntimeConfig

if TYPE_CHECKING:
    from runtime.worker import ModelStatus

LOG = logging.getLogger("cotenant.lifecycle")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
FAILED: Final = "failed"
UNLOADED: Final = "unloaded"
UNSERVED: Final = (UNLOADED, "loading", FAILED)
"""States in which a model answers nothing."""


class Engine(contract.Engine, Protocol):
    """The engine that the edge asks, with the calls that begin and end it."""

    async def start(self) -> None:
        """Begin to load the models; returns at once."""

    async def wait_loaded(self) -> None:
        """Until every model is ready or has failed. Raises ConfigurationError where the device can't be opened."""

    def begin_retire(self) -> None:
        """Refuse bulk jobs; `ready` turns false."""

    def begin_drain(self) -> None:
        """Refuse new jobs; `ready` turns false."""

    async def stop(self) -> None:
        """Finish the jobs in flight, then end every thread."""


def run(config: RuntimeConfig, read_again: Read | None = None) -> int:
    """Serve until a signal. Returns the exit status; raises StartupError where nothing can be served.

    `read_again`: the configuration as it stands when a SIGHUP comes.
    """
    started = time.perf_counter()
    console = _terminal()
    set_up_logs(config.log, console)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        engine = RuntimeEngine(config)
        guard = Guard(config.server)
        on_hangup = None if read_again is None else Rereading(engine, read_again, guard).begin
        runner.run(serve_engine(engine, console, started, on_hangup, guard))
    return 0


async def serve_engine(
    engine: Engine,
    console: Console | None,
    started: float,
    on_hangup: Callable[[], None] | None = None,
    guard: Guard | None = None,
) -> None:
    """Serve `engine` until a signal; `started` is when that began, in `time.perf_counter` seconds.

    `guard`: who may ask, if not as the settings say.

    Raises ConfigurationError where the port can't be had, StartupError where no model could be loaded.
    """
    stop = asyncio.Event()

    def drain() -> None:
        engine.begin_drain()
        stop.set()

    def retire() -> None:
        notify(STOPPING)
        delay_s = engine.config.server.drain_delay_s if engine.ready else 0.0
        engine.begin_retire()
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, drain)
        else:
            drain()

    with _signals(retire, on_hangup):
        serving, url = await _listen(engine, stop, guard)
        await engine.start()
        loading = asyncio.create_task(_load(engine, url, console, started))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({loading, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is None:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        drain()
        await _wind_down(engine, serving, loading)


async def _listen(engine: Engine, stop: asyncio.Event, guard: Guard | None) -> tuple[asyncio.Task[None], str]:
    """Open the port. The task that serves, and the URL. Raises ConfigurationError."""
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app, settings = build_app(engine, guard), engine.config.server
    if is_exposed(settings):
        LOG.warning("no API key is set: whoever reaches %s may use this server", settings.host)

    def on_bound(host: str, port: int) -> None:
        scheme = "http" if settings.tls_key is None else "https"
        tcp = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        bound.set_result(f"unix:{host}" if settings.uds else tcp)

    serving = asyncio.create_task(serve(app, settings, stop, on_bound=on_bound))
    first: set[asyncio.Future[Any]] = {serving, bound}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if not bound.done():
        await serving  # raises what kept it from listening
    return serving, await bound


async def _load(engine: Engine, url: str, console: Console | None, started: float) -> None:
    """Show the models load, then say what is served. Raises StartupError where nothing can be."""
    loaded = asyncio.create_task(engine.wait_loaded())
    try:
        if console is not None:
            await show_loading(engine, loaded, console)
        await loaded  # raises what kept the device from being opened
    finally:
        loaded.cancel()
    print(summary(engine.describe(), url, time.perf_counter() - started), flush=True)
    notify(READY)


async def _wind_down(engine: Engine, serving: asyncio.Task[None], loading: asyncio.Task[None]) -> None:
    """Let the server and the engine finish side by side, then raise what went wrong, if anything did."""
    loading.cancel()
    ending = asyncio.create_task(engine.stop())
    await asyncio.wait({serving, ending, loading})
    for task in (loading, serving, ending):
        if not task.cancelled():
            task.result()


def summary(statuses: Sequence[ModelStatus], url: str, seconds: float) -> str:
    """The line that says whether it is ready. Raises StartupError where no model can answer."""
    served = [status.name for status in statuses if _is_served(status)]
    failures = [f"{status.name} failed: {status.detail}" for status in statuses if status.state == FAILED]
    if not served:
        raise StartupError(f"no model could be loaded: {'; '.join(failures)}")
    count = f"{len(served)} model{'s' * (len(served) > 1)}"
    if len(served) < len(statuses):
        count = f"{len(served)} of {len(statuses)} models"
    models = f"{count} ({', '.join(served)}) in {seconds:.1f} s"
    missing = [status for status in statuses if status.required and not _is_served(status)]
    if missing:
        return f"cotenant is not ready: {'; '.join(failures)}; it serves {models} at {url}"
    return f"cotenant is ready at {url} with {models}"


def _is_served(status: ModelStatus) -> bool:
    """Whether it answers, now or after it was loaded for a request."""
    return status.state not in UNSERVED or (status.state == UNLOADED and status.available)


@contextlib.contextmanager
def _signals(retire: Callable[[], None], on_hangup: Callable[[], None] | None) -> Iterator[None]:
    """Retire on the first signal, end the process on the second. SIGHUP is another matter."""
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        name = signal.Signals(number).name
        if len(received) > 1:
            LOG.warning("%s again: ending at once", name)
            os._exit(128 + number)
        LOG.info("%s: ending once the requests in flight are answered; a second signal ends at once", name)
        retire()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    if on_hangup is not None:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        for number in (*SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _terminal() -> Console | None:
    """The terminal to show progress on; None where either output goes elsewhere."""
    return Console(stderr=True) if sys.stdout.isatty() and sys.stderr.isatty() else None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop

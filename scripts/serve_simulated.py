"""Serves one simulated embedder over HTTP: what the edge and the engine take for themselves, with a device elsewhere.

As with a GPU, a batch on the device costs the host no time. One character is a token, and a vector is one number.
"""

from __future__ import annotations

import argparse
import time

import uvloop

from runtime.api.lifecycle import serve_engine
from runtime.api.logs import set_up_logs
from runtime.clock import REAL_CLOCK
from runtime.devices.base import Concurrency
from runtime.devices.process import prepare_process
from runtime.devices.simulated import SimulatedCost, SimulatedDevice
from runtime.engine import Engine
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.simulation.backend import SimulatedBackend

MODEL = "simulated"
COST = SimulatedCost(fixed_ms=2.0, ms_per_token=0.001, load_s=0.0)
"""A million characters a second: about a small embedder on a GPU."""
DEVICE = Concurrency(lanes=1, flights=2)


async def _serve(port: int) -> None:
    config = RuntimeConfig(
        server=ServerSettings(port=port), models=(ModelSpec(id=MODEL, task="embed", max_batch_tokens=2_048),)
    )
    set_up_logs(config.log, None)
    engine = Engine(config, SimulatedBackend(SimulatedDevice(REAL_CLOCK, DEVICE, 1 << 30), {MODEL: COST}))
    await serve_engine(engine, None, time.perf_counter())


def main() -> None:
    """Until a signal."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=7997)
    prepare_process()
    uvloop.run(_serve(options.parse_args().port))


if __name__ == "__main__":
    main()

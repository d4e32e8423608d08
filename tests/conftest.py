"""Fixtures that several test modules share."""

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from runtime.devices.process import prepare_process, settle_process

# Before any import of huggingface_hub, which reads it once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before any import of torch: OpenMP's spinning threads make the suite ten times slower beside a busy program.
prepare_process()

# No test may fail because the machine is busy.
hypothesis.settings.register_profile(
    "cotenant", deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("cotenant")


def pytest_collection_finish() -> None:
    """As in a server: each engine that ends collects garbage, for 500 ms where that looks at torch, for 10 else."""
    settle_process()
    if "torch" in sys.modules:
        # Two threads wait for each other at every layer: beside a busy program that takes four times as long as one.
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model of `tests.tiny_models.MAKERS` by its name, made when first asked for."""
    root = tmp_path_factory.mktemp("tiny-models")

    @cache
    def folder_of(name: str) -> Path:
        # Here, so that tests without a model do without torch.
        from tests.tiny_models import make

        make(name, root / name)
        return root / name

    return folder_of

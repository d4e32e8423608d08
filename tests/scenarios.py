"""The example scenarios, with changes."""

from __future__ import annotations

from pathlib import Path

from runtime.simulation.scenario import Scenario, read_scenario

SCENARIOS = Path(__file__).parent.parent / "examples" / "scenarios"


def scenario(name: str, **changes: object) -> Scenario:
    """One of the examples; `changes` replace whole keys."""
    given = read_scenario(SCENARIOS / f"{name}.yaml").model_dump()
    return Scenario.model_validate(given | changes)

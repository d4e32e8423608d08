"""`scripts/simulate SCENARIO.yaml`: prints what comes of a scenario."""

from __future__ import annotations

import argparse
import logging
import sys
from itertools import product
from pathlib import Path

from runtime.errors import ConfigurationError
from runtime.simulation.figures import table
from runtime.simulation.policies import POLICIES, REPLACEMENTS
from runtime.simulation.run import simulate
from runtime.simulation.scenario import PolicyName, ReplacementName, read_scenario


def main() -> int:
    """Run the scenarios that are named and print their figures."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("scenario", nargs="+", type=Path, help="YAML file; examples/scenarios has some")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        choices=[*POLICIES, "all"],
        help="instead of the scenario's own; repeat it, or `all`, to compare",
    )
    parser.add_argument(
        "--replacement",
        action="append",
        default=[],
        choices=[*REPLACEMENTS, "all"],
        help="who leaves memory for another, instead of the scenario's own; repeat it, or `all`, to compare",
    )
    asked = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    policies: list[PolicyName] = list(POLICIES) if "all" in asked.policy else asked.policy
    replacements: list[ReplacementName] = list(REPLACEMENTS) if "all" in asked.replacement else asked.replacement
    for path in asked.scenario:
        try:
            scenario = read_scenario(path)
        except ConfigurationError as error:
            print(f"simulate: {error.message}", file=sys.stderr)
            return 1
        for policy, replacement in product(policies or [scenario.policy], replacements or [scenario.replacement]):
            head = f"{path.name}, {policy}, {replacement}, {scenario.duration_s:g} s"
            print(f"{head}\n{table(simulate(scenario, policy, replacement))}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

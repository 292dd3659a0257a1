"""
Search the worlds of this folder and print what was found, as a table.

    python tests/model/search.py            what the tests search, and the mutants
    python tests/model/search.py --deep     larger worlds, for about ten minutes, and the mutants
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from model import slots, state, workflows
from model.explore import explore
from model.mutants import MUTANTS
from model.worlds import DEEP, WORLDS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the larger worlds are searched")
    options = parser.parse_args()
    searches, wrong = DEEP if options.deep else WORLDS, 0
    begun, states, steps = time.perf_counter(), 0, 0
    print("| world | states | steps | searched | rules | broken | minutes |\n|---|---|---|---|---|---|---|")
    for number, (name, search) in enumerate(searches.items()):
        world = search.of()
        left = options.minutes * 60 - (time.perf_counter() - begun)
        seconds = max(1.0, left / (len(searches) - number)) if options.deep else None
        found = explore(world, states=search.states, seconds=seconds)
        broken = ", ".join(f"{rule} ({len(trace)} steps)" for rule, trace in found.broken.items()) or "none"
        print(
            f"| {name} | {found.states:,} | {found.steps:,} | {'all' if found.is_closed else 'cut'} | "
            f"{len(world.rules)} | {broken} | {found.seconds / 60:.1f} |",
            flush=True,
        )
        states, steps = states + found.states, steps + found.steps
        for rule, trace in found.broken.items():
            wrong += rule != search.broken
            print(f"\n{rule} is broken in {name}:\n    " + "\n    ".join(trace) + "\n")
    alive = []
    for mutant in MUTANTS:
        world = WORLDS[mutant.world].of(mutant.edit)
        world.rules = frozenset([mutant.rule])
        if mutant.rule not in explore(world, states=7_000, first=True).broken:
            alive.append(mutant.name)
    print(f"\nMutants: {len(MUTANTS)}, noticed: {len(MUTANTS) - len(alive)}. Alive: {', '.join(alive) or 'none'}.")
    of_slots = len(slots.RULES) + len(workflows.RULES)
    print(f"States: {states:,}, steps: {steps:,}, rules: {len(state.RULES)} of rates and {of_slots} of slots.")
    print(f"Minutes in all: {(time.perf_counter() - begun) / 60:.1f}.")
    return 1 if wrong or alive else 0


if __name__ == "__main__":
    sys.exit(main())

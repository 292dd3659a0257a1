"""
Whether jobs go on behind jobs of the same limit that have a fault: stacks × faults, as a table.

    python tests/benchmarks/others_go_on.py                       # the whole table: some minutes
    python tests/benchmarks/others_go_on.py huey "RQ, ours"       # these stacks
    python tests/benchmarks/others_go_on.py --faults pause,store  # these faults
    python tests/benchmarks/others_go_on.py --alone               # each fault on a fleet of its own

A cell is the number of jobs behind that ran within the deadline, while the fault lasted, and how long all of them took.
`tests/adapters/fleet/test_others_go_on.py` judges the same.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.others.jobs import FAULTS, RATE
from support.others.matrix import AHEAD, BEHIND, DEADLINE_S, SetupFailed, run
from support.others.stacks import STACKS
from support.servers.processes import rabbitmq_server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stacks", nargs="*", help=f"of {', '.join(STACKS)}")
    parser.add_argument("--faults", default=",".join(FAULTS), help="default: %(default)s")
    parser.add_argument("--alone", action="store_true", help="each fault on a fleet of its own")
    options = parser.parse_args()
    stacks, faults = options.stacks or list(STACKS), options.faults.split(",")
    if unknown := [*({*stacks} - {*STACKS}), *({*faults} - {*FAULTS})]:
        parser.error(f"unknown: {', '.join(unknown)}")
    print(f"{AHEAD} jobs in front, {BEHIND} behind, {RATE}/s, within {DEADLINE_S:g} s\n", flush=True)
    print(f"| | {' | '.join(faults)} |\n|---|{'---|' * len(faults)}", flush=True)
    with contextlib.ExitStack() as servers:
        on_rabbitmq = any(STACKS[stack].kind == "rabbitmq" for stack in stacks)
        rabbitmq_url = servers.enter_context(rabbitmq_server()) if on_rabbitmq else None
        for stack in stacks:
            cells: dict[str, str] = {}
            for together in [[fault] for fault in faults] if options.alone else [faults]:
                try:
                    results = run(stack, together, rabbitmq_url)
                    cells |= {fault: str(result) for fault, result in results.items()}
                except SetupFailed as error:
                    print(error, file=sys.stderr)
                    cells |= dict.fromkeys(together, "setup failed")
            print(f"| {stack} | {' | '.join(cells[fault] for fault in faults)} |", flush=True)


if __name__ == "__main__":
    main()

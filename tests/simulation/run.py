"""python tests/simulation/run.py --seed N: replay one run, print its history, and check the three promises."""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import math
import sys
import time
import traceback
from contextlib import nullcontext, suppress

from scheduler import SECOND, load

load()

from check import check  # noqa: E402
from defects import DEFECTS, Defect, put_in  # noqa: E402
from plan import draw_plan  # noqa: E402
from world import Plan, World  # noqa: E402

from faults import KINDS  # noqa: E402

HORIZON_US = 600 * SECOND
gc.freeze()  # the modules are no garbage: without them, each collection takes a fifth less of a run


class Errors(logging.Handler):
    """A log handler that adds the errors of throttlekit to the history."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        shown = "" if record.exc_info is None else "".join(traceback.format_exception(*record.exc_info))
        self._world.note("logged an error", detail=record.getMessage(), traceback=shown)


def simulate(seed: int, kinds: list[str] | None = None) -> tuple[World, list[str]]:
    """Run *seed*. Return the world with its history, and the promises that it broke."""
    world = World(draw_plan(seed, kinds))
    try:
        run_logged(world, HORIZON_US)
    except Exception:  # raised in a thread of a process: neither the shipped code nor an adapter may raise
        world.scheduler.close()
        return world, [traceback.format_exc()]
    return world, check(world)


def run_logged(world: World, until_us: int) -> None:
    """Run *world*, and add each error that throttlekit logs to its history."""
    log = logging.getLogger("throttlekit")
    log.propagate, log.handlers = False, [Errors(world)]
    world.run(until_us)


def describe(plan: Plan) -> list[str]:
    """Return a plan in a few lines."""
    fleet = f"{plan.processes} processes of {plan.threads} threads, {plan.stores} stores"
    return [
        f"seed {plan.seed}: {len(plan.jobs)} jobs, {fleet}, style {plan.style}",
        *(f"limit {limit!r}" for limit in plan.limits),
        *(f"fault at {each.at_us / 1e6:.3f} s: {each.kind}, for {each.for_us / 1e6:g} s" for each in plan.faults),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, metavar="N", help="replay this run, and print its history")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed")
    parser.add_argument("--minutes", type=float, metavar="M", help="run seeds for M minutes instead")
    parser.add_argument("--faults", metavar="LIST", help=f"the allowed faults, '' for none: {','.join(KINDS)}")
    parser.add_argument("--defect", choices=DEFECTS, nargs="+", help="run with each of these, until it is found")
    options = parser.parse_args()
    if options.defect is None:
        return run(options, None)
    for name in options.defect:
        print(f"defect {name}: {'found' if run(options, DEFECTS[name]) else 'not found'}", flush=True)
    return 0


def run(options: argparse.Namespace, defect: Defect | None) -> int:
    """Run the seeds of *options*. Return 1 if one of them broke a promise, otherwise 0."""
    faults = options.faults if defect is None or options.faults is not None else defect.faults
    kinds = None if faults is None else [each for each in faults.split(",") if each]
    with nullcontext() if defect is None else put_in(defect):
        if options.seed is not None:
            return replay(options.seed, kinds)
        last = options.first + options.seeds if options.minutes is None else sys.maxsize
        end = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
        return run_seeds(range(options.first, last), end, kinds, until_found=defect is not None)


def replay(seed: int, kinds: list[str] | None) -> int:
    world, broken = simulate(seed, kinds)
    history = "\n".join(map(str, world.history))
    print(*describe(world.plan), history, *broken, sep="\n")
    digest = hashlib.sha256(history.encode()).hexdigest()[:16]
    print(f"{len(world.history)} lines, {digest}; broken promises: {len(broken)}")
    return bool(broken)


def run_seeds(seeds: range, end: float, kinds: list[str] | None, *, until_found: bool) -> int:
    """Run *seeds* until the monotonic clock shows *end*. Print the history of the first that breaks a promise."""
    began, ran, failed = time.monotonic(), 0, list[int]()
    with suppress(KeyboardInterrupt):
        for seed in seeds:
            if time.monotonic() > end or (until_found and failed):
                break
            world, broken = simulate(seed, kinds)
            ran += 1
            if not broken:
                continue
            if not failed and not until_found:
                print(*world.history, sep="\n")
            print(*describe(world.plan), *broken[:5], sep="\n")
            shown = "" if kinds is None else f" --faults '{','.join(kinds)}'"
            print(f"replay: python tests/simulation/run.py --seed {seed}{shown}", flush=True)
            failed.append(seed)
    print(f"{ran} seeds in {time.monotonic() - began:.0f} s: {len(failed)} broke a promise {failed or ''}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

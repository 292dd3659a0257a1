"""
What a job costs and how much of the limit is used, by the length of the backlog: the cost must not grow with it.

    python tests/benchmarks/backlog.py [--quick] [--scale 0.1] [--drain 120] [--window 30] [--only TEXT]

Backlogs of 1 000, 10 000 and 100 000 jobs times --scale, sent before real workers start, each under one limit a
framework: 200/s for Dramatiq (2 processes of 4 threads), 100/s for RQ (2 `ThrottledSimpleWorker`) and for Celery
(2 workers, prefork 2). What would take longer than --drain seconds is not drained: once every job has its place in
line, its head is looked at for --window seconds. Takes about 6 minutes at 0.1, 15 at 1. Exits with 1 if the limit is
broken, less used than promised, or a job of the longest backlog costs more than one of the shorter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.backlogs import Cost, at_its_head, backlog_servers, drained, flood_of
from support.dramatiq_workers import clean_up_when_terminated
from support.tables import Promise, about, promises, table

SIZES = (1_000, 10_000, 100_000)
RATES = {"dramatiq": 200, "rq": 100, "celery": 100}
LEAST_USE, MOST_GROWTH, MOST_ASKS = 0.97, 1.1, 2.2
_TITLES = [
    "backlog", "limit", "how", "done", "use", "bound", "asks a job", "deliveries a job", "limits' Redis, µs a job",
    "broker's Redis, µs a job", "out of order",
]  # fmt: skip
_NOTES = """\
* Asks: decisions of the limits' store; 2 is a denial that gives a place in line, and the grant. Those whom the burst
  lets through at once need 1, which is why a short backlog may cost less. A job whose slot is more than 10 minutes off
  comes back once in each 10 minutes.
* Bound: how far the worst window of grants exceeds `burst + window × rate`, as time by the store's clock; <= 0 holds.
* Out of order: the share of pairs of jobs that started in the wrong order; 50 % is chance.
* Drained: until the last job was done. Head: every job had its place in line, then the stated seconds; a job's cost is
  its share of both parts, the use is that of these seconds."""


def measure(framework: str, size: int, rate: int, options: argparse.Namespace) -> tuple[str, Cost]:
    flood = flood_of(framework, size, rate)
    with backlog_servers() as where:
        if size / rate <= options.drain:
            return "drained", drained(flood, where, framework)
        return f"head, {options.window:g} s", at_its_head(flood, where, framework, options.window)


def row(name: str, rate: int, how: str, cost: Cost) -> list[str]:
    deliveries = "-" if cost.deliveries is None else f"{cost.deliveries:.2f}"
    costs = f"{cost.asks:.2f}", deliveries, f"{cost.store_us:.0f}", f"{cost.broker_us:.0f}"
    return [
        name, f"{rate}/s", how, str(cost.done), f"{cost.use:.3f}", f"{cost.beyond_us / 1000:+.1f} ms", *costs,
        f"{100 * cost.inverted:.2f} %",
    ]  # fmt: skip


def judged(framework: str, found: Mapping[int, Cost], *, small: bool = False) -> Iterator[Promise]:
    """What is promised of one framework's backlogs, by size. *small*: too small to be judged by more than the bound."""
    broken = {size: cost.beyond_us for size, cost in found.items() if cost.beyond_us > 0}
    told = ", ".join(f"{by / 1000:+.1f} ms with {size}" for size, by in broken.items()) or "holds"
    yield Promise(f"{framework}: the limit, with {_sizes(found)} jobs", told, "holds", not broken)
    least = min(cost.use for cost in list(found.values())[1:] or found.values())
    yield Promise(
        f"{framework}: least use of it", f"{least:.3f}", f">= {LEAST_USE}", None if small else least >= LEAST_USE
    )
    costs = [cost.asks for cost in found.values()]
    told = " → ".join(f"{asks:.2f}" for asks in costs)
    kept = costs[-1] <= min(MOST_ASKS, MOST_GROWTH * max(costs[:-1] or costs))
    asked = f"<= {MOST_ASKS}, and <= {MOST_GROWTH} × a shorter one's"
    yield Promise(f"{framework}: asks a job, with {_sizes(found)}", told, asked, None if small else kept)


def _sizes(found: Mapping[int, Cost]) -> str:
    return ", ".join(f"{size:,}".replace(",", " ") for size in found)


def main() -> int:
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny backlogs: is it all there?")
    parser.add_argument("--scale", type=float, default=0.1, help="times the backlogs (%(default)s)")
    parser.add_argument("--drain", type=float, default=120.0, help="seconds that a backlog may take (%(default)s)")
    parser.add_argument("--window", type=float, default=30.0, help="seconds to look at a longer one (%(default)s)")
    parser.add_argument("--only", default="", help="dramatiq, rq or celery")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.drain, options.window = 0.04, 0.5, 0.5
    rows: list[list[str]] = []
    shown: list[Promise] = []
    for framework, rate in RATES.items():
        if options.only not in framework:
            continue
        found: dict[int, Cost] = {}
        for size in (round(each * options.scale) for each in (SIZES[:2] if options.quick else SIZES)):
            how, found[size] = measure(framework, size, rate, options)
            rows.append(row(f"{framework}, {size}", rate, how, found[size]))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        shown += judged(framework, found, small=options.quick)
    print(about("dramatiq", "rq", "celery", "redis"))
    print(
        f"Scale {options.scale:g}: backlogs of {', '.join(str(round(each * options.scale)) for each in SIZES)} jobs.\n"
    )
    print(table(_TITLES, rows), _NOTES, promises("backlog", shown), sep="\n\n")
    return 1 if any(each.kept is False for each in shown) else 0


if __name__ == "__main__":
    sys.exit(main())

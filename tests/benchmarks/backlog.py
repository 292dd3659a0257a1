"""
The cost of a job and the use of the limit, by the length of the backlog: the cost must not grow with the backlog.

    python tests/benchmarks/backlog.py [--quick] [--scale 0.1] [--rate 100] [--drain 120] [--window 30] [--only TEXT]

Backlogs of 1 000, 10 000 and 100 000 jobs times --scale, sent before real workers start, under one limit of --rate a
second: Dramatiq (2 processes of 4 threads), RQ (2 `ThrottledSimpleWorker`) and Celery (2 workers, prefork 2). A backlog
that would take longer than --drain seconds is not drained: once every job is on the waitlist, its head is measured for
--window seconds. Takes about 7 minutes at a scale of 0.1. Exits with 1 if the limit is broken, a job is lost, the limit
is used less than promised, or a job of the longest backlog is denied more often than one of the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.backlogs import Cost, at_its_head, backlog_servers, drained, flood_of
from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, table

SIZES = (1_000, 10_000, 100_000)
FRAMEWORKS = ("dramatiq", "rq", "celery")
LEAST_USE, MOST_GROWTH, MOST_DENIALS = 0.97, 1.1, 1.2
_LONG = 5
_TITLES = [
    "backlog",
    "how",
    "done",
    "use",
    "bound",
    "asks a job",
    "denials",
    "deliveries a job",
    "limits' Redis, µs a job",
    "broker's Redis, µs a job",
    "out of order",
]
_NOTES = """\
* Asks: scripts that the limits' store ran, decisions and looks. Denials: how many of them were no grant, of a job that
  the burst did not let through at once.
* Bound: how far the worst window of grants exceeds `burst + window × rate`, as time by the store's clock; <= 0 holds.
* Out of order: the share of pairs of jobs that started in the wrong order; 50 % is chance.
* Drained: until the last job was done. Head: every job had its place in line, then the stated seconds at most; the use
  is that of these seconds, denials and asks are those of all jobs so far, CPU is a job's share of both parts."""


def measure(framework: str, size: int, options: argparse.Namespace) -> tuple[str, Cost]:
    flood = flood_of(framework, size, options.rate)
    with backlog_servers() as where:
        if size / options.rate <= options.drain:
            return "drained", drained(flood, where)
        return f"head, {options.window:g} s", at_its_head(flood, where, options.window)


def row(name: str, how: str, cost: Cost) -> list[str]:
    deliveries = "-" if cost.deliveries is None else f"{cost.deliveries:.2f}"
    costs = f"{cost.asks:.2f}", f"{cost.denials:.2f}", deliveries, f"{cost.store_us:.0f}", f"{cost.broker_us:.0f}"
    return [
        name,
        how,
        str(cost.done),
        f"{cost.use:.3f}",
        f"{cost.beyond_us / 1000:+.1f} ms",
        *costs,
        f"{100 * cost.inverted:.2f} %",
    ]


def judged(framework: str, found: Mapping[int, Cost], *, times: bool = True) -> Iterator[Promise]:
    """
    Yield the promises of one framework's backlogs, by size: only the bound if one burst nearly clears the backlog.

    Args:
        times: If False, use and cost are reported but not checked.
    """
    broken = [f"{cost.beyond_us / 1000:+.1f} ms with {size}" for size, cost in found.items() if cost.beyond_us > 0]
    broken += [f"{cost.lost} of {size} lost" for size, cost in found.items() if cost.lost]
    name = f"{framework}: the limit, and all jobs, with {_sizes(found)}"
    yield Promise(name, ", ".join(broken) or "kept", "kept", not broken)
    long = {size: cost for size, cost in found.items() if size > _LONG * cost.burst}
    if not long:
        return
    least = min(cost.use for cost in long.values())
    kept = least >= LEAST_USE if times else None
    yield Promise(f"{framework}: least use of it, with {_sizes(long)}", f"{least:.3f}", f">= {LEAST_USE}", kept)
    *shorter, longest = (cost.denials for cost in long.values())
    most = min(MOST_DENIALS, MOST_GROWTH * max(shorter, default=MOST_DENIALS))
    denials_shown = " → ".join(f"{denials:.2f}" for denials in (*shorter, longest))
    kept = longest <= most if times else None
    yield Promise(f"{framework}: denials of a job, with {_sizes(long)}", denials_shown, f"<= {most:.2f}", kept)


def _sizes(found: Mapping[int, Cost]) -> str:
    return ", ".join(f"{size:,}".replace(",", " ") for size in found)


def main() -> int:
    parser = parser_of(__doc__, quick="tiny backlogs: is it all there?", only="dramatiq, rq or celery")
    parser.add_argument("--scale", type=float, default=0.1, help="times the backlogs (%(default)s)")
    parser.add_argument("--rate", type=int, default=100, help="of the limit, a second (%(default)s)")
    parser.add_argument("--drain", type=float, default=120.0, help="seconds that a backlog may take (%(default)s)")
    parser.add_argument("--window", type=float, default=30.0, help="seconds to measure a longer one (%(default)s)")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.drain, options.window = 0.04, 0.9, 0.5
    rows: list[list[str]] = []
    shown: list[Promise] = []
    for framework in FRAMEWORKS:
        if options.only not in framework:
            continue
        found: dict[int, Cost] = {}
        for size in (round(each * options.scale) for each in (SIZES[:2] if options.quick else SIZES)):
            how, found[size] = measure(framework, size, options)
            rows.append(row(f"{framework}, {size}", how, found[size]))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        shown += judged(framework, found, times=not options.quick)
    sizes = ", ".join(str(round(each * options.scale)) for each in SIZES)
    head = about("dramatiq", "rq", "celery", "redis")
    head += f"\nScale {options.scale:g}: backlogs of {sizes} jobs; one limit of {options.rate}/s."
    return print_results("backlog", head, [table(_TITLES, rows), _NOTES], shown)


if __name__ == "__main__":
    sys.exit(main())

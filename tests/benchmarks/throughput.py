"""
Jobs a second of each framework with and without throttlekit, under a limit that never binds: the overhead of a job.

    python tests/benchmarks/throughput.py [--quick] [--rounds 5] [--jobs 1.0] [--only TEXT]

Jobs that do nothing, sent before one worker starts (Dramatiq: 1 process of 4 threads; Celery: a pool of 2; taskiq: 100
places), timed by Redis from the end of the first tenth to the last. In each round every variant runs once, in random
order, and is compared with the run of the same round without throttlekit. Takes about 8 minutes, --quick half a minute.
Exits with 1 if the median of a framework exceeds its budget; --quick measures too little to be judged.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, ratios, spread, table
from support.servers.processes import ServerMissing
from support.throughput.run import AN_INCR, SETUPS, VARIANTS, Bench, Setup, Timing

MOST_SLOWER, MOST_OF_INCR = 1.05, 1.2
_WITHOUT, *_WITH = VARIANTS
_TITLES = [
    "framework",
    "jobs/s without",
    "jobs/s with a limit",
    "time × without",
    "µs a job",
    "of it CPU",
    "names none, × without",
    "µs a job",
    "of it CPU",
    "an INCR, × without",
    "µs a job",
    "of it CPU",
]
_NOTES = """\
* × without: the time of a job as a multiple of the same round's without throttlekit: the median, and the middle half.
* µs a job: what that is in time, the median of all rounds. Jobs go through one worker: what it pays is not hidden by
  others. Of it CPU: of the worker's process, where one process does it all; the rest is waiting for the limits' Redis.
* An INCR: without throttlekit, and each job asks a Redis once, by redis-py's INCR, where throttlekit would ask: the
  least that any question costs a job there, with what threads pay to wait for the answer, and with the connection that
  RQ's work-horse has to make. Celery's main process asks as it receives a task.
* RQ without: its own worker of that kind, `Worker` or `SimpleWorker`, and plain jobs."""


def measure(bench: Bench, setup: Setup, rounds: int, jobs: int) -> dict[str, list[Timing]]:
    """Return the time of a job, for each variant in each round."""
    took: dict[str, list[Timing]] = defaultdict(list)
    for _ in range(rounds):
        for variant in random.sample(VARIANTS, len(VARIANTS)):
            took[variant].append(bench.run(setup, variant, jobs))
    return took


def row(name: str, took: Mapping[str, Sequence[Timing]]) -> list[str]:
    speeds = [f"{1e6 / statistics.median(timing.us for timing in took[variant]):.0f}" for variant in VARIANTS[:2]]
    cells = [name, *speeds]
    for variant in _WITH:
        cells += [spread(_times_without(took, variant)), f"{_extra_us(took, variant):+.0f}", _extra_cpu(took, variant)]
    return cells


def _times_without(took: Mapping[str, Sequence[Timing]], variant: str) -> list[float]:
    return ratios([timing.us for timing in took[variant]], [timing.us for timing in took[_WITHOUT]])


def _extra_us(took: Mapping[str, Sequence[Timing]], variant: str) -> float:
    return statistics.median(a.us - b.us for a, b in zip(took[variant], took[_WITHOUT], strict=True))


def _extra_cpu(took: Mapping[str, Sequence[Timing]], variant: str) -> str:
    pairs = [(a.cpu_us, b.cpu_us) for a, b in zip(took[variant], took[_WITHOUT], strict=True)]
    known = [a - b for a, b in pairs if a is not None and b is not None]
    return f"{statistics.median(known):+.0f}" if len(known) == len(pairs) else "-"


def judged(name: str, setup: Setup, took: Mapping[str, Sequence[Timing]], *, times: bool = True) -> Iterator[Promise]:
    """Yield the promise of one framework. If *times* is false, it is reported but not checked."""
    ratio, extra = statistics.median(_times_without(took, "limit")), _extra_us(took, "limit")
    if setup.judged_by == "INCR":
        ratio = statistics.median(ratios([each.us for each in took["limit"]], [each.us for each in took[AN_INCR]]))
        kept = ratio <= MOST_OF_INCR if times else None
        measured = f"{ratio:.2f}; {extra:+.0f} µs; an INCR {_extra_us(took, AN_INCR):+.0f} µs"
        yield Promise(f"{name}: time of a job × with an INCR", measured, f"<= {MOST_OF_INCR}", kept)
    elif setup.judged_by == "share":
        kept = ratio <= MOST_SLOWER if times else None
        measured = f"{ratio:.2f}; an INCR {statistics.median(_times_without(took, AN_INCR)):.2f}"
        yield Promise(f"{name}: time of a job × without", measured, f"<= {MOST_SLOWER}", kept)
    else:
        kept = extra <= setup.most_us if times else None
        measured = f"{extra:+.0f} µs; an INCR {_extra_us(took, AN_INCR):+.0f} µs"
        yield Promise(f"{name}: a job under a limit", measured, f"<= {setup.most_us:.0f} µs", kept)


def main() -> int:
    parser = parser_of(
        __doc__,
        quick="one round of few jobs, without RabbitMQ: is it all there?",
        only="the frameworks whose name holds this text",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=float, default=1.0, help="times the jobs that take a second or two")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.jobs = 1, 0.05
    rows: list[list[str]] = []
    shown: list[Promise] = []
    with Bench() as bench:
        for name, setup in SETUPS.items():
            if options.only not in name or (options.quick and setup.broker == "rabbitmq" and not options.only):
                continue
            try:
                took = measure(bench, setup, options.rounds, max(20, round(setup.jobs * options.jobs)))
            except ServerMissing as missing:
                rows.append([name, str(missing), *["-"] * (len(_TITLES) - 2)])
                continue
            rows.append(row(name, took))
            shown += judged(name, setup, took, times=not options.quick)
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = about("dramatiq", "rq", "celery", "taskiq", "huey", "redis")
    counts = ", ".join(f"{max(20, round(setup.jobs * options.jobs))} ({name})" for name, setup in SETUPS.items())
    head += f"\n{options.rounds} rounds; jobs of a run: {counts}."
    return print_results("throughput", head, [table(_TITLES, rows), _NOTES], shown)


if __name__ == "__main__":
    sys.exit(main())

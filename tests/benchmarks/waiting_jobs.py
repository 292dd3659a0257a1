"""
Many waiting jobs under one limit of 50/s, on four real workers of each framework: their cost, and the losses.

    python tests/benchmarks/waiting_jobs.py [--quick] [--jobs 1000 10000 100000] [--workers TEXT]
        [--results FILE]

Each row sends its jobs before the workers start, waits until the workers have received them, and measures for --window
seconds. Then the limit is changed from 10/s to 100/s, all workers are restarted, and one of them gets a SIGKILL. At the
end, every job must have run or be in the broker. Takes about two minutes a row, plus the time until the workers have
received all jobs. The table shows every row that --results keeps. Exits with 1 if the limit was broken, a job was lost,
or a job ran twice before the kill.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.waiting_jobs import KINDS, Found, Plan, happen
from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, table

LEAST_USE = 0.98
_TITLES = [
    "workers, jobs that wait",
    "taken up",
    "in line, a second",
    "a worker, MB",
    "broker, bytes a job",
    "limits' Redis, bytes a job",
    "in line, µs a job",
    "to run, µs a job",
    "asks a job",
    "first start, s",
    "use; load",
    "overtaken",
    "10/s → 100/s, s",
    "restart, s",
    "a SIGKILL, s",
    "lost, twice",
]
_NOTES = """\
* Taken up: what the workers have seen when the window begins; the rest is in its queue. A worker: its memory then (PSS,
  children included), of the four on average, and the most at any time. Broker: before the workers start → then.
* µs a job: CPU of all workers / the broker / the limits' Redis. To run: of the window, by the jobs that ran in it, so
  all that is done in it for those that wait is theirs. Asks: requests of the limits' Redis, in line + to run.
* First start: from the workers' commands on / until all of them are ready. Use: of the window, and the machine's load.
  Overtaken: jobs that began after one sent later, until the window's end; by how many places at most.
* 10/s → 100/s: from the command to the first start more than 10/s give, and to the hundredth: 1.1 s if at once.
* Restart: from the SIGTERM to all workers until they have ended / the new ones are ready / a job starts / the limit is
  used in full for 3 s from then on. SIGKILL of one of four: the same; use in the time after it. -: not within a minute.
* Lost: in no place; twice: bodies begun twice before the SIGKILL / in all; and what the broker holds too many of."""


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    mb, line, drain, restart = found["worker_mb"], found["line"], found["drain"], found["restart"]
    return [
        name,
        str(found["taken"]),
        f"{found['taken'] / max(found['taken_s'], 0.1):.0f}",
        f"{sum(mb) / len(mb):.0f}; {found['peak_mb']:.0f}",
        f"{found['sent_b']:.0f} → {found['broker_b']:.0f}",
        f"{found['store_b']:.0f}",
        *(" / ".join(f"{each:.0f}" for each in work[:3]) for work in (line, drain)),
        f"{line[3]:.2f} + {drain[3]:.2f}",
        f"{found['first_s']:.1f} / {found['ready_s']:.1f}",
        f"{found['use']:.3f}; {found['load']:.0f}",
        f"{found['overtaken']:.1%}; {found['places']}",
        f"{_s(found['extra_1_s'], 2)}, {_s(found['extra_100_s'], 2)}",
        " / ".join(_s(restart[what]) for what in ("stopped", "ready", "first", "full")),
        f"{_s(found['kill']['full'])}; {found['kill']['use']:.2f}",
        f"{found['lost'] + found['stranded']}, {found['twice_before']} / {found['twice']}; "
        f"{found['doubled'] + found['again']}",
    ]


def _s(seconds: float | None, digits: int = 1) -> str:
    return "-" if seconds is None else f"{seconds:.{digits}f}"


def judged(name: str, found: Found) -> Iterator[Promise]:
    """Yield the promises at any size, and the use, which is printed but not checked."""
    measured = f"{found.beyond_us / 1000:+.1f} ms"
    yield Promise(f"{name}: the bound, at worst", measured, "<= 0", found.beyond_us <= 0)
    lost = found.lost + found.stranded
    measured = f"{found.sent} = {found.done} + {found.waiting} + {found.dead} + {lost}"
    of_kombu = int(name.startswith("Celery, Redis"))  # kombu may lose the message that a killed worker was receiving
    yield Promise(
        f"{name}: sent = done + waiting + dead letters + lost", measured, f"{of_kombu} lost", lost <= of_kombu
    )
    twice = found.twice_before
    kept = twice == 0 if "Redis" in name or "RQ" in name else None
    yield Promise(f"{name}: begun twice, before the SIGKILL", str(twice), "0", kept)
    yield Promise(f"{name}: use", f"{found.use:.3f}", f">= {LEAST_USE}", None)


def main() -> int:
    parser = parser_of(__doc__, quick="few jobs and short times: is it all there?")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="that wait")
    parser.add_argument("--workers", default="", help=f"those whose name holds this text: {'; '.join(KINDS)}")
    parser.add_argument("--window", type=float, default=30.0, help="seconds of the measurement (%(default)s)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to receive the jobs (%(default)s)")
    parser.add_argument("--results", type=Path, help="a file that collects the figures of several runs")
    options = parser.parse_args()
    keep: Path | None = options.results
    collected: dict[str, Any] = json.loads(keep.read_text("utf-8")) if keep and keep.exists() else {}
    shown: list[Promise] = []
    for workers in (each for each in KINDS if options.workers in each):
        for jobs in [500] if options.quick else options.jobs:
            window, patience, after = (2.0, 60.0, 20.0) if options.quick else (options.window, options.patience, 60.0)
            plan = Plan(jobs=jobs, window=window, patience=patience, after=after)
            found, name = happen(plan, workers), f"{workers}, {jobs}"
            collected[name] = asdict(found)
            shown += judged(name, found)
            print(*row(name, collected[name]), sep=" | ", file=sys.stderr, flush=True)
            if keep:
                keep.write_text(json.dumps(collected), "utf-8")
    rows = table(_TITLES, [row(name, found) for name, found in collected.items()])
    return print_results("waiting_jobs", about("dramatiq", "celery", "rq", "redis"), [rows, _NOTES], shown)


if __name__ == "__main__":
    sys.exit(main())

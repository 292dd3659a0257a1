"""
One fault during a flood, on real workers of each framework: what is lost, duplicated, refused, or over the bound?

    python tests/benchmarks/faults.py [--markdown docs/results/faults.md] [--jobs 200] [--seed 1] [--only text]

The cases of tests/faults, with more jobs. Where the fault affects workers or the broker, the framework alone runs under
the same fault for comparison, with bodies of 0.1 s, so that the fault interrupts as many. Exits with 1 if a promise is
broken.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Column, Table

from support.faults.kinds import FAULTS
from support.faults.strike import Case, Outcome, strike
from support.reports.command import parser_of, show
from support.reports.tables import page

_OF_FRAMEWORK = ("workers SIGKILL", "workers SIGTERM", "broker restart", "broker SIGKILL")
_TITLES = ["workers", "fault", "who", "done", "lost", "twice", "may", "429", "too many", "may be", "well again s"]
_NOTES = """\
lost: neither done nor in sight in the broker, where RQ leaves a job that it fails as its worker is killed.
twice: bodies begun beyond one a job; may: what the workers had in their hands, the most that the fault can double.
429: calls that a partner which allows the limit's rate, and a quarter of a second's worth more at once, would refuse.
too many: grants, by the store's clock, beyond `burst + rate × w` in any window `w`; may be: what the fault may cost:
  a burst for a store that comes back empty, burst + rate × lag for a fail-over, else nothing.
well again: from the fault's end until the next body began.
Celery on Redis, broker faults: Celery's client takes a message off Redis's list before it notes that it has it. What it
  takes as Redis dies is lost, with throttlekit or without: there nothing is promised of "lost".
alone: the framework without throttlekit, flat out; of its rows nothing is promised.
"""


def cases(jobs: int, seed: int) -> list[Case]:
    found: list[Case] = []
    for framework, broker, pool in (
        ("dramatiq", "redis", ""),
        ("rq", "redis", ""),
        ("celery", "redis", "prefork"),
        ("celery", "redis", "threads"),
        ("dramatiq", "rabbitmq", ""),
        ("celery", "rabbitmq", "prefork"),
    ):
        whole: dict[str, Any] = {"framework": framework, "broker": broker, "pool": pool, "seed": seed}
        size = {"jobs": jobs // 2, "rate": 30} if framework == "rq" else {"jobs": jobs}
        for fault in FAULTS:
            if broker == "rabbitmq" and fault not in _OF_FRAMEWORK[:3]:
                continue  # the store's faults do not depend on the broker, and a killed broker loses unwritten messages
            if pool == "threads" and fault not in ("workers SIGTERM", "store SIGSTOP 5 s", "connections cut"):
                continue
            found.append(Case(fault=fault, **size, **whole))
            if fault in _OF_FRAMEWORK:
                found.append(Case(fault=fault, alone=True, body=0.1, **size, **whole))
    return found


def row(case: Case, found: Outcome | None) -> list[str]:
    who = f"{case.framework}, {case.broker}" + (f", {case.pool}" if case.pool else "")
    begin = [who, case.fault, "alone" if case.alone else "throttlekit"]
    if found is None:
        return [*begin, "not all", *["-"] * 7]
    left = f" ({found.left} in sight)" if found.done < case.jobs else ""
    ours = not case.alone
    only_ours = found.duplicates_allowed, found.refused, found.over, found.over_allowed
    return [
        *begin,
        f"{found.done} of {case.jobs}{left}",
        str(found.lost),
        str(found.duplicates),
        *(str(each) if ours else "-" for each in only_ours),
        f"{found.recovered:.2f}",
    ]


def main() -> int:
    parser = parser_of(__doc__, only="the cases whose name holds this text")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="write the table to this file as well, for the docs")
    options = parser.parse_args()
    rows: list[list[str]] = []
    broken: list[str] = []
    for case in cases(options.jobs, options.seed):
        if options.only not in str(case):
            continue
        found: Outcome | None = None
        try:
            found = strike(case)
        except AssertionError as error:
            if not case.alone:
                broken.append(f"{case}: {str(error).splitlines()[0]}")
        if found is not None and not case.alone:
            broken += found.broken()
        rows.append(row(case, found))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    table = Table(
        *(Column(title, no_wrap=True) for title in _TITLES),
        title="One fault amid a flood",
        caption=_NOTES,
        caption_justify="left",
    )
    for cells in rows:
        table.add_row(*cells)
    if options.markdown:
        verdict = [f"BROKEN  {promise}" for promise in broken] or ["Every promise kept."]
        packages = ("dramatiq", "rq", "celery", "kombu", "redis")
        options.markdown.write_text(page("Results: faults", packages, _TITLES, rows, _NOTES, verdict))
    return show([table], broken, width=200)


if __name__ == "__main__":
    sys.exit(main())

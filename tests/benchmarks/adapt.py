"""
Real workers call a partner whose limit is unknown to them: how many 429s they get, and how much of the limit they use.

    python tests/benchmarks/adapt.py [--quick] [--only TEXT] [--way TEXT] [--runs 3] [--results FILE] [--write docs]

The declared limit is 100/s, and the partner's true limit is 60/s (of slots, 32 and 12). 8 worker processes (4 of
Dramatiq), and more jobs than either limit admits. For comparison with `adapt=`: botocore's adaptive mode and a plain
AIMD in each of 8 processes, only a pause on each 429, and a constant rate that is 20 % too high. botocore is left out
if it is not installed. Exits with 1 if `adapt=` gets more than 10 429s per 1 000 calls (2 where responses report the
remaining units), or uses less than 0.90 of the true limit, in the rows with these targets. Takes about 30 minutes for
each of --runs; --quick takes some seconds a row, and judges nothing. --write writes docs/results/adapt.md and
docs/adapt.svg from all runs that --results has collected.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.adapt import FRAMEWORKS, Found, Plan, happen
from support.flood.limits import FloodLimit
from support.partner.hidden import Hidden
from support.partner.rules import compared
from support.reports.adapt import rows, write
from support.reports.command import parser_of
from support.reports.tables import about, version_of

MOST_REFUSED, MOST_REFUSED_WITH_HEADERS, LEAST_USE = 10.0, 2.0, 0.90
DECLARED, TRUE, BURST = 100, 60, 30
SECONDS, PHASE = 40.0, 30.0
SLOW_S = 0.15
SLOTS, TAKES = 32, 0.2

_POOL = Hidden(kind="pool", rate=TRUE, takes=TAKES)
PARTNERS = {
    "token bucket": Plan(Hidden(rate=TRUE, burst=BURST), SECONDS),
    "fixed window": Plan(Hidden(kind="window", rate=TRUE), SECONDS),
    "window of 10 s, with headers": Plan(Hidden(kind="window", rate=TRUE, window=10, says=True), SECONDS),
    "halved, then doubled": Plan(Hidden(rate=TRUE, burst=BURST), 3 * PHASE, [(PHASE, TRUE / 2), (2 * PHASE, TRUE)]),
    "2 % refused at random": Plan(Hidden(rate=TRUE, burst=BURST, noise=0.02), SECONDS),
    "only slows down": Plan(Hidden(kind="slow", rate=TRUE), SECONDS, slow_s=SLOW_S),
    "slows down beyond 12 slots": Plan(_POOL, SECONDS, slow_s=SLOW_S, tells=False, threads=8),
    "beyond 12 slots, then 6, then 12": Plan(
        _POOL, 3 * PHASE, [(PHASE, TRUE / 2), (2 * PHASE, TRUE)], slow_s=SLOW_S, tells=False, threads=8
    ),
    "refuses beyond 12 slots": Plan(Hidden(kind="slots", rate=TRUE, takes=TAKES), SECONDS, threads=8),
}
PROCESSES = {"Dramatiq": 4}
"""Frameworks with fewer processes than planned: a machine of 2 cores cannot run 8 processes of Dramatiq."""
AIMS = {
    **dict.fromkeys(("token bucket", "fixed window", "halved, then doubled"), (MOST_REFUSED, LEAST_USE)),
    "window of 10 s, with headers": (MOST_REFUSED_WITH_HEADERS, LEAST_USE),
}

_ADAPT = FloodLimit("partner", f"{DECLARED}/s", 10, adapt=f"{DECLARED // 10}/s")
_PLAIN = FloodLimit("partner", f"{DECLARED}/s", 10)
_BY_LATENCY = FloodLimit("partner", slots=SLOTS, adapt="2")
OURS = {f"`adapt=`, {name}": (name, _ADAPT) for name in FRAMEWORKS}
OF_SLOTS = {f"`adapt=ByLatency(2)`, {name}": (name, _BY_LATENCY) for name in ("Dramatiq", "Celery")}
ALL_SLOTS = {f"{SLOTS} slots, {name}": (name, FloodLimit("partner", slots=SLOTS)) for name in ("Dramatiq",)}
OTHERS = {
    "botocore, adaptive, in each process": ("botocore", _PLAIN),
    "AIMD in each process": ("aimd", _PLAIN),
    "a pause on each 429, Dramatiq": ("Dramatiq", _PLAIN),
    "a constant rate, 20 % too high, Dramatiq": ("Dramatiq", FloodLimit("partner", f"{TRUE * 6 // 5}/s", 10)),
}
WAYS = OURS | OTHERS | OF_SLOTS | ALL_SLOTS
WAYS_OF_PARTNER: dict[str, tuple[str, ...]] = {
    "token bucket": tuple(WAYS),
    "fixed window": (*OURS, *list(OTHERS)[:2]),
    "window of 10 s, with headers": (*OURS, *list(OTHERS)[:2]),
    "halved, then doubled": (*OURS, *list(OTHERS)[:3]),
    "2 % refused at random": ("`adapt=`, Dramatiq", *list(OTHERS)[:2]),
    "only slows down": ("`adapt=`, Dramatiq", list(OTHERS)[2]),
    "slows down beyond 12 slots": (*OF_SLOTS, *ALL_SLOTS),
    "beyond 12 slots, then 6, then 12": (*OF_SLOTS, *ALL_SLOTS),
    "refuses beyond 12 slots": (*OF_SLOTS, *ALL_SLOTS),
}
PANELS = {
    "adapt=: the limit is constant": ("token bucket", "`adapt=`, Dramatiq"),
    "adapt=: halved, then doubled": ("halved, then doubled", "`adapt=`, Dramatiq"),
    "botocore in each of 8 processes": ("halved, then doubled", "botocore, adaptive, in each process"),
    "A pause on each 429": ("halved, then doubled", "a pause on each 429, Dramatiq"),
}
NOTES = f"""\
* The partner lives in a Redis, and counts by its clock. Its true limit is {TRUE}/s, with a burst of {BURST}, or in each
  second; {DECLARED}/s with a burst of 10 are declared. An answer takes 25 to 75 ms. Retry-After-Ms is exact.
* Use: the share of what the partner could have served that it served. The burst is not part of that, so it may be
  above 1.
* Settled: from the beginning, and from each change, until a span of 2 s begins in which at least 0.85 of what was
  possible is served and at most 5 % are refused.
* Several runs: the median, with least and most.
* 8 worker processes of 4 threads, but 4 of Dramatiq: 8 of them need more than this machine of 2 cores has. A worker of
  RQ (`ThrottledSimpleWorker`) runs one job at a time. 300 jobs wait at any time.
* The machine had other work besides. A worker that is held up calls late, and then several times at once: a fixed
  window refuses that, and a burst of 30 lets it pass. Read single runs with that in mind.
* Only slows down: one call after the other, {TRUE} of them a second, and none is refused. In place of 429s: answers
  that came more than {SLOW_S:g} s late. For `adapt=` an answer that takes so long is a `current().report_overload()`.
* With headers: each answer has RateLimit and RateLimit-Policy, with whole seconds, and bodies say
  `current().apply_response(answer)`. The others do not read them.
* Beyond 12 slots: calls take {TAKES:g} s by themselves, half of it to one and a half, and the partner does 12 of
  them at once, {TRUE} a second; others wait, or are refused. {SLOTS} slots are declared, and workers have as many
  threads. In place of 429s late answers, as above; but bodies do not say so: only the time that they hold their slots
  counts.
* Bold: more than {MOST_REFUSED:g} per 1 000 (with headers {MOST_REFUSED_WITH_HEADERS:g}), or use of less than
  {LEAST_USE:.2f}, where this is aimed at: of `adapt=`, but not for refusals at random, which no rate avoids. Do not
  report those as `RateLimited`.
* botocore: the parts of its adaptive mode, in each process, without its client. A refused thread waits as long as
  Retry-After-Ms says, and not longer at each retry.
* AIMD: from an eighth of the declared rate on; half at each 429, and a fiftieth of that eighth more in each second."""


def measured(found: Found) -> dict[str, Any]:
    return {
        "refused": found.refused,
        "use": found.use,
        "settled": [found.settled(at) for at in found.changes()],
        "sent": found.sent_each(1),
        "rate": found.rate_each(1),
    }


def main() -> int:
    parser = parser_of(__doc__, quick="a few seconds a row: is it all there?", only="partners whose name holds this")
    parser.add_argument("--way", default="", help="ways whose name holds this text")
    parser.add_argument("--runs", type=int, default=3, help="of each row (%(default)s)")
    parser.add_argument("--results", type=Path, help="a file that gathers the runs of several calls")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the page of the docs there")
    options = parser.parse_args()
    keep: Path | None = options.results
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    if keep is not None and keep.exists():
        runs = json.loads(keep.read_text("utf-8"))
    for _ in range(1 if options.quick else options.runs):
        for partner, plan in PARTNERS.items():
            for way in (each for each in WAYS_OF_PARTNER[partner] if options.way in each and options.only in partner):
                what, limit = WAYS[way]
                chosen = plan._replace(processes=PROCESSES.get(what, plan.processes))
                if what != "Dramatiq":
                    chosen = chosen._replace(threads=4)
                if what == "botocore" and version_of("botocore") is None:
                    print(f"{partner}, {way}: botocore is not installed", file=sys.stderr)
                    continue
                if options.quick:
                    changes = [(2 * (n + 1), rate) for n, (_, rate) in enumerate(plan.changes)]
                    chosen = plan._replace(seconds=6, changes=changes, processes=2)
                run = measured(happen(chosen, what, limit))
                print(
                    f"{partner}, {way}: {run['refused']:.1f} per 1 000, use {run['use']:.3f}, settled after "
                    f"{run['settled']}",
                    file=sys.stderr,
                    flush=True,
                )
                runs.setdefault(partner, {}).setdefault(way, []).append(run)
                if keep is not None:
                    keep.write_text(json.dumps(runs), "utf-8")
    shown = {
        partner: {way: runs[partner][way] for way in WAYS_OF_PARTNER[partner] if way in runs[partner]}
        for partner in PARTNERS
        if partner in runs
    }
    text, missed = rows(shown, AIMS, OURS)
    print(about("dramatiq", "celery", "rq", "redis", "botocore"), text, NOTES, sep="\n\n")
    if options.write:
        panels = {title: shown[of][way][-1] for title, (of, way) in PANELS.items() if way in shown.get(of, {})}
        seconds, of_each = (2.0, 1) if options.quick else (120.0, 3)
        write(options.write, text, NOTES, panels, DECLARED, compared(seconds, of_each))
    return int(missed and not options.quick)


if __name__ == "__main__":
    sys.exit(main())

"""
One limit that tenants share, on real workers of every framework: the share of each tenant, and the waits of its jobs.

    python tests/benchmarks/shares.py [--quick] [--only TEXT] [--workers TEXT] [--results FILE] [--write docs]

Each row is one limit, a backlog, and jobs that arrive while the backlog drains; the measurement begins once the backlog
is on the waitlist. The limit is 50/s with a burst of 10 (Zipf: 100/s, 20, if the workers can keep up), and for stock RQ
workers, which add at most some 50 jobs a second to the waitlist, 20/s with a burst of 20 and a fifth of the backlog.
Two worker processes, on servers of their own. Exits with 1 if a promise is broken: of use, counts, order and the bound.
Waits are printed, and not judged. Takes an hour; --quick takes a few seconds a row, and judges only the bound. --write
writes docs/results/shares.md and docs/shares.svg, from all rows that --results has collected.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.limits import FloodLimit
from support.flood.shares import STOCK, WOKEN, WORKERS, Happened, Plan, happen, percentile
from support.reports.command import parser_of
from support.reports.shares import EACH, Figure, beside, by_workers, write
from support.reports.tables import about
from throttlekit import Control

LIGHT_TENANTS, NEW_TENANTS = 10, 18
WEIGHTS = {"a": 1.0, "b": 5.0, "c": 25.0}
PRIORITIES = {"high": 2.0, "low": 1.0}


class Size(NamedTuple):
    """
    The size of a row: the limit's rate, normal and raised; the rate that the workers can keep up for minutes; the
    factors of the backlogs and of the seconds.
    """

    rate: int = 50
    burst: int = 10
    raised: int = 200
    sustained: int = 100
    jobs: float = 1.0
    time: float = 1.0

    @property
    def doubled(self) -> Size:
        """The size at twice the rate, if the workers can keep up."""
        rate = min(2 * self.rate, self.sustained)
        return self._replace(rate=rate, burst=self.burst * rate // self.rate)

    def backlog(self, tenant: str, jobs: float) -> list[str]:
        return [tenant] * round(jobs * self.jobs)


def at_least(what: str, value: float, bar: float) -> Figure:
    return Figure(what, f"{value:.3f}", f">= {bar}", value >= bar)


def at_most(what: str, value: float, bar: float, digits: int = 2) -> Figure:
    return Figure(what, f"{value:.{digits}f}", f"<= {bar}", value <= bar)


def waited(what: str, waits: Sequence[float], required: str) -> Figure:
    """Waits are reported, and not judged: they also depend on the machine."""
    return Figure(what, f"{percentile(waits, 0.5):.3f} / {percentile(waits, 0.99):.3f}", required)


def ordered(found: Happened, tenant: str) -> Figure:
    inverted, late = found.order(tenant)
    return Figure("pairs out of order; by at most", f"{inverted:.2%}; {late:.2f} s", "<= 1 %", inverted <= 0.01)


def heavy(size: Size) -> Plan:
    seconds = 40 * size.time
    return Plan(size.backlog("heavy", 10_000), [(k / 10, f"light {k % 10}") for k in range(int(10 * seconds))], seconds)


def heavy_figures(found: Happened, size: Size) -> Iterator[Figure]:
    yield waited("a light job waits, s, p50 / p99", found.waits("light"), "0.1 / 0.3")
    yield at_least("use", found.use(size.rate, 0, found.seconds), 0.98)
    yield at_most("asks a job", found.asks, 2.7)
    yield ordered(found, "heavy")


def zipf_window(size: Size) -> float:
    """Return the seconds in which each of the heaviest tenants gets five or six jobs."""
    return 1000 / size.rate


def zipf(size: Size) -> Plan:
    """Return the backlog that 40 s of arrivals leave if all tenants get the same service."""
    draw, seconds, before = random.Random(1), 4 * zipf_window(size) * size.time, 40 * size.jobs
    who = partial(draw.choices, [f"t{n}" for n in range(1000)], [1 / (n + 1) for n in range(1000)])
    fair, arrived = round(size.rate * before / 240), Counter(who(k=round(2 * size.rate * before)))
    backlog = [tenant for tenant, jobs in arrived.items() for _ in range(jobs - fair)]
    draw.shuffle(backlog)
    coming = [(k / (2 * size.rate), tenant) for k, tenant in enumerate(who(k=int(2 * size.rate * seconds)))]
    return Plan(backlog, coming, seconds)


def zipf_figures(found: Happened, size: Size) -> Iterator[Figure]:
    index = found.jain([f"t{n}" for n in range(8)], zipf_window(size))
    yield at_least("Jain's index of the 8 heaviest, over 10 s", index, 0.99)
    yield at_least("use", found.use(size.rate, 0, found.seconds), 0.98)


def weights(size: Size) -> Plan:
    seconds = 40 * size.time
    each = [size.backlog(name, size.rate / size.jobs * (seconds + 8) * w / 31 + 50) for name, w in WEIGHTS.items()]
    backlog = [tenant for tenants in each for tenant in tenants]
    random.Random(1).shuffle(backlog)
    return Plan(backlog, (), seconds)


def weights_figures(found: Happened, size: Size) -> Iterator[Figure]:
    got = found.service(0, found.seconds)
    ratios = [got[name] / max(1, sum(got.values())) * sum(WEIGHTS.values()) / w for name, w in WEIGHTS.items()]
    yield at_most("service by 1 : 5 : 25, off by, %", 100 * max(abs(ratio - 1) for ratio in ratios), 3)
    yield at_least("use", found.use(size.rate, 0, found.seconds), 0.98)


def arrivals(size: Size) -> Plan:
    """
    Two tenants always wait; eighteen more arrive after a quarter of the time, each with jobs for a part of a second.
    """
    seconds, each = 40 * size.time, max(1, round(0.02 * size.rate * 12 * size.time))
    backlog = [tenant for _ in range(round(size.rate * (seconds + 8) / 2)) for tenant in ("a", "b")]
    return Plan(backlog, [(seconds / 4, f"new {n}") for _ in range(each) for n in range(NEW_TENANTS)], seconds)


def arrivals_figures(found: Happened, size: Size) -> Iterator[Figure]:
    names = sorted({tenant for tenant in found.tenants.values() if tenant.startswith("new")})
    came = found.seconds / 4
    both = [at for at, job in found.starts if found.tenants[job].startswith("new")]
    until = both[-len(names) - 1] if len(both) > len(names) else found.seconds
    yield at_most("two that always wait, apart, jobs", found.apart(("a", "b"), 0, found.seconds), 3, 0)
    yield at_most("18 that come, apart, jobs", found.apart(names, came, until), 3, 0)
    yield at_least("use", found.use(size.rate, 0, found.seconds), 0.98)


def strict(size: Size) -> Plan:
    seconds = 30 * size.time
    return Plan(size.backlog("low", 10_000), [(k / 5, "high") for k in range(int(5 * seconds))], seconds)


def strict_figures(found: Happened, size: Size) -> Iterator[Figure]:
    yield waited("a job of the high class waits, s, p50 / p99", found.waits("high"), "- / 0.3")
    yield at_least("use", found.use(size.rate, 0, found.seconds), 0.98)


def rate_changes(size: Size) -> Plan:
    seconds = 30 * size.time

    def to(rate: int) -> Callable[[Control], object]:
        return lambda control: control.set("partner", f"{rate}/s", burst=max(1, rate * size.burst // size.rate))

    jobs = max(5000, 2.4 * size.rate * seconds / size.jobs)
    slow = size.raised // 10
    acts = [(0.0, to(slow)), (seconds / 3, to(size.raised)), (seconds * 2 / 3, to(slow))]
    return Plan(size.backlog("one", jobs), (), seconds, acts)


def rate_figures(found: Happened, size: Size) -> Iterator[Figure]:
    for what, rate, changed in (("× 10", size.raised, 1 / 3), ("÷ 10", size.raised // 10, 2 / 3)):
        begin = found.seconds * changed + 1
        use = found.use(rate, begin, begin + found.seconds / 3 - 1.5)
        yield at_least(f"rate {what}: use from 1 s after, on", use, 0.95)
    yield ordered(found, "one")


def pause_of_limit(size: Size) -> Plan:
    pause = 10 * size.time
    acts = [(pause / 2, lambda control: control.pause("partner", duration=pause))]
    return Plan(size.backlog("one", 4000), (), 2.5 * pause, acts)


def pause_figures(found: Happened, size: Size) -> Iterator[Figure]:
    pause = found.seconds / 2.5
    resumed = next((at for at, _ in found.starts if at > pause * 1.5 - 0.2), found.seconds) - pause * 1.5
    yield Figure("a pause: the first job starts after its end, s", f"{resumed:.2f}", "<= 2")
    use = found.use(size.rate, 1.5 * pause + 2, found.seconds)
    yield at_least("a pause: use from 2 s after its end, on", use, 0.98)
    yield ordered(found, "one")


def one_tenant(jobs: int, size: Size) -> Plan:
    return Plan(size.backlog("one", jobs), (), None)


def killed_workers(size: Size) -> Plan:
    """Two tenants, each with workers of its own; the workers of one are killed."""
    seconds = 30 * size.time
    backlog = ["dies", "lives"] * round(size.rate * seconds)
    return Plan(backlog, (), seconds, own="dies", struck=seconds / 3)


def deleted_jobs(size: Size) -> Plan:
    """Delete all 5 000 waiting jobs, while more jobs arrive than may run."""
    seconds = 30 * size.time
    coming = [seconds / 3 + k / (1.5 * size.rate) for k in range(round(size.rate * seconds))]
    return Plan(size.backlog("one", 5000), [(at, "new") for at in coming], seconds, struck=seconds / 3)


def fault_figures(found: Happened, size: Size) -> Iterator[Figure]:
    yield at_least("use from 1 s after, on", found.use(size.rate, found.struck + 1, found.seconds), 0.95)


def tenant_figures(found: Happened, size: Size) -> Iterator[Figure]:
    span = found.grants[-1] - found.grants[0]
    yield at_least("use", (len(found.grants) - size.burst) / size.rate / span if span else 0, 0.99)
    denied = float("nan") if found.denied is None else found.denied
    yield at_most("denials a job", denied / max(1, len(found.grants) - size.burst), 1.05)
    yield at_most("asks a job", found.asks, 2.7)
    yield ordered(found, "one")


class Row(NamedTuple):
    """The plan, the figures that are measured, and further options of the limit; *doubled*: at twice the rate."""

    plan: Callable[[Size], Plan]
    figures: Callable[[Happened, Size], Iterator[Figure]]
    limit: dict[str, Any] = {}  # noqa: RUF012  never changed
    options: dict[str, Any] = {}  # noqa: RUF012
    only: str = ""
    doubled: bool = False


TENANTS = ("heavy", *(f"light {n}" for n in range(LIGHT_TENANTS)))
ROWS = {
    "heavy and ten light": Row(heavy, heavy_figures),
    "1 000 by Zipf": Row(zipf, zipf_figures, doubled=True),
    "weights 1 : 5 : 25": Row(weights, weights_figures, {"weights": WEIGHTS}),
    "coming and going": Row(arrivals, arrivals_figures),
    "strict priority": Row(strict, strict_figures, {"weights": PRIORITIES, "strict": True}),
    "rate × 10, ÷ 10": Row(rate_changes, rate_figures),
    "a pause": Row(pause_of_limit, pause_figures),
    "a tenant's workers die": Row(killed_workers, fault_figures),
    "5 000 deleted": Row(deleted_jobs, fault_figures, {"share": None}),
    "one tenant, 400": Row(partial(one_tenant, 400), tenant_figures),
    "one tenant, 4 000": Row(partial(one_tenant, 4000), tenant_figures),
}
OTHERS = {
    "first come, first served": Row(heavy, heavy_figures, {"share": None}, only="Dramatiq, Redis"),
    "a cap for each tenant": Row(
        heavy, heavy_figures, {"share": None, "key": "{account}", "per": f"{len(TENANTS)}s"}, only="Dramatiq, Redis"
    ),
    "a queue for each tenant": Row(
        heavy, heavy_figures, {"share": None}, {"mode": "blocking", "queues": TENANTS}, only="Celery, RabbitMQ"
    ),
    "a round robin of one's own": Row(heavy, heavy_figures, {"share": None}, {"mode": "none"}, only="Dramatiq, Redis"),
    "`share=`": Row(heavy, heavy_figures, only="Dramatiq, Redis"),
}

PANELS = {
    ("first come, first served", "Dramatiq, Redis"): "First come, first served: one of 10 000 jobs, ten of 1 a second",
    ("a cap for each tenant", "Dramatiq, Redis"): "The same, a cap of a part for each tenant",
    ("`share=`", "Dramatiq, Redis"): "The same, with share=",
    ("coming and going", "Dramatiq, Redis"): "With share=: two that always wait, and 18 that come and go",
}
NOTES = """\
* Use: the share of the limit that was granted. Bold: what was asked for is missed. p50 / p99: printed, and not judged.
* Asks: decisions of the limits' store, and looks at its waitlists, for each job that ran, with its first.
* Denials: how often the store denied a job that asked, counted by the workers at each answer, for each job beyond the
  burst. Looks are not denials.
* One tenant: each job is denied once, as it comes. Some are denied once more.
* Zipf: at 100/s, so that each of the eight gets five or six jobs in 10 s. Two workers of RQ, which put each of 200
  jobs a second back as it comes, bear no more than that on two cores, and now and then less: ours have 50/s here, and
  windows of 20 s for as many grants; stock ones 20/s and 50 s.
* Apart: the worst difference between what two of these tenants got in any interval, in jobs. It is 2 at most in the
  order of the grants; bodies begin a moment later, now and then in another order.
* A tenant's workers die: two tenants, each with a queue and two workers of its own; after a third of the time those of
  one are killed with all that they hold. Use is that of the other.
* 5 000 deleted: all that wait, and half as many more come from then on as may run. Celery's are revoked, RQ's deleted.
  Of Dramatiq's, what is queued is flushed, and what workers hold runs.
* Rate × 10, ÷ 10: from 20/s to 200/s and back; stock RQ's from 2/s to 20/s.
* Woken: stock workers with `throttlekit wake` beside them.
* Stock RQ's jobs come up to a second before their turn, wait for it in their worker, and ask once more: a denial more,
  and no delivery.
* -: not measured in these runs. At a scale below 1 the backlogs and the seconds are fewer, and the targets the same.
* The limit of stock RQ workers is 20/s with a burst of 20, and their backlogs are a fifth: they get jobs in line no
  faster than some 50 a second."""


def size_of(workers: str, scale: float, quick: bool) -> Size:
    jobs, time = (0.03, 0.15) if quick else (scale, scale)
    if workers == STOCK:
        return Size(20, 20, 20, 20, jobs / 5, time)
    return Size(sustained=50 if workers in ("RQ, ours", WOKEN) else 100, jobs=jobs, time=time)


def measure(row: Row, workers: str, size: Size) -> tuple[Happened, list[Figure]]:
    options_of_limit: dict[str, Any] = {"share": "{account}", "per": "s", **row.limit}
    size = size.doubled if row.doubled else size
    limit = FloodLimit("partner", f"{size.rate}/{options_of_limit.pop('per')}", size.burst, **options_of_limit)
    found = happen(row.plan(size), workers, limit, **row.options)
    figures = list(row.figures(found, size))
    if found.beyond_us is not None and limit.key is None:
        figures.append(Figure("the bound", f"{found.beyond_us / 1000:+.1f} ms", "<= 0", found.beyond_us <= 0))
    return found, figures


def main() -> int:
    parser = parser_of(__doc__, quick="a few seconds a row: is it all there?", only="rows whose name holds this text")
    parser.add_argument("--scale", type=float, default=1.0, help="times the backlogs and the seconds (%(default)s)")
    parser.add_argument("--workers", default="", help="workers whose name holds this text")
    parser.add_argument("--results", type=Path, help="a file that collects the rows of several runs")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the pages of the docs there")
    options = parser.parse_args()
    keep: Path | None = options.results
    collected: dict[str, Any] = {"rows": {}, "beside": {}, "service": {}}
    if keep is not None and keep.exists():
        collected = json.loads(keep.read_text("utf-8"))
    broken = False
    for part, rows in (("rows", ROWS), ("beside", OTHERS)):
        for name, row in rows.items():
            for workers in (each for each in WORKERS if options.workers in each and row.only in ("", each)):
                if options.only not in name:
                    continue
                found, figures = measure(row, workers, size_of(workers, options.scale, options.quick))
                measured = "; ".join(f"{each.what}: {each.measured}" for each in figures)
                print(f"{name}, {workers}: {measured}", file=sys.stderr, flush=True)
                judged = [each for each in figures if each.what == "the bound" or not options.quick]
                broken |= part == "rows" and any(each.kept is False for each in judged)
                collected[part].setdefault(name, {})[workers] = figures
                if (name, workers) in PANELS:
                    collected["service"][PANELS[name, workers]] = found.service_each(EACH)
                if keep is not None:
                    keep.write_text(json.dumps(collected), "utf-8")
    shown, others = (
        {
            name: {kind: [Figure(*each) for each in of] for kind, of in collected[part][name].items()}
            for name in rows
            if name in collected[part]
        }
        for part, rows in (("rows", ROWS), ("beside", OTHERS))
    )
    parts = by_workers(shown, list(WORKERS)), NOTES, beside(others)
    print(about("dramatiq", "celery", "rq", "redis"), *parts, sep="\n\n")
    if options.write:
        panels = {title: collected["service"][title] for title in PANELS.values() if title in collected["service"]}
        write(options.write, shown, others, list(WORKERS), panels, Size().rate, NOTES)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())

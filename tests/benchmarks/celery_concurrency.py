"""
So many at once, and quiet after a 429, with real `celery worker` commands: is the bound held, and is it used?

    python tests/benchmarks/celery_concurrency.py [--quick] [--broker redis|rabbitmq|both] [--only TEXT]

All figures are of the bodies' own records, by the clock of the recording Redis. Jobs wait for slots of one
concurrency limit in 2 workers; of one of them all processes are killed; the limiter's Redis is stopped for longer than
the lease; a partner answers 429. Exits with 1 if one is too many, a job is lost or fails, or too little is used. The
full run takes about 10 minutes, --quick about 4.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis
from rich.table import Table

from support.celery.site import CelerySite, celery_site
from support.celery.spans import Event, Spans, most_at_once
from support.partner.angry import AngryPartner
from support.reports.command import each_broker, parser_of, show
from support.servers.flood import Servers
from support.servers.processes import redis_server
from support.waiting import wait_until

LEAST_USED = 0.9
LEAST_OF_FREE = 0.98
"""Of what as many processes or threads use without a limit."""
MOST_DELIVERIES = 3.0
_LEASE = 2
_PATIENCE = 300.0
_QUICK_RECOVERY = {
    "broker_transport_options": {
        "visibility_timeout": 6,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,
    }
}
"""So soon a broker that is a Redis gives back what a dead worker had in hand; RabbitMQ does at once."""


class Row:
    """One line of the table."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: dict[str, str] = {}
        self.faults: list[str] = []

    def tell(self, what: str, figure: object, *, good: bool = True) -> None:
        self.told[what] = str(figure)
        if not good:
            self.faults.append(f"{self.name}: {what} {figure}")


@contextmanager
def place(where: Servers, **told: Any) -> Iterator[tuple[CelerySite, Spans]]:
    """A queue with its workers to come, and what bodies note."""
    told = {
        "module": "support.celery.slots", "store": f"{where.redis_base}/1", "lease": _LEASE, "amount": 10,
        "rate": "100/s", "burst": 100, **told,
    }  # fmt: skip
    with (
        celery_site(where.kind, where.broker_url, where.redis_base, **told) as site,
        closing(Spans(site.told["record"], site.queue)) as spans,
    ):
        yield site, spans


def finished(events: list[Event]) -> int:
    return sum(event.by == -1 for event in events)


def used(events: list[Event], amount: int) -> float:
    """The share of the slots' time that bodies took, from the first beginning to the last end."""
    span = events[-1].at_us - events[0].at_us
    return sum(-event.by * event.at_us for event in events) / (amount * span)


def bodies(where: Servers, row: Row, pool: str, amount: int, seconds: list[float]) -> None:
    """A backlog under one limit, beside tasks without a limit on as many processes or threads as there are slots."""
    without = used(_backlog(where, pool, "free_work", amount, seconds, concurrency=amount, workers="a")[0], amount)
    events, deliveries = _backlog(where, pool, "work", amount, seconds, concurrency=8, workers="ab")
    most, share = most_at_once(events), used(events, amount)
    row.tell("most at once", f"{most} of {amount}", good=most <= amount)
    good = share >= max(LEAST_USED, LEAST_OF_FREE * without)
    row.tell("used", f"{share:.3f}, without a limit {without:.3f}", good=good)
    row.tell("deliveries", f"{deliveries:.2f}", good=deliveries <= MOST_DELIVERIES)
    row.tell("done", f"{finished(events)} of {len(seconds)}", good=finished(events) == len(seconds))


def _backlog(
    where: Servers, pool: str, task: str, amount: int, seconds: list[float], *, concurrency: int, workers: str
) -> tuple[list[Event], float]:
    """What bodies noted of a backlog, and deliveries for each task."""
    with place(where, pool=pool, amount=amount) as (site, spans):
        for name in workers:
            site.start("--concurrency", str(concurrency), name=name)
        for number, each in enumerate(seconds):
            site.send(task, str(number), each)
        wait_until(
            lambda: finished(spans.told("work")) >= len(seconds), description="all are done", timeout=_PATIENCE, every=1
        )
        return spans.told("work"), spans.counted("deliveries") / len(seconds)


def killed(where: Servers, row: Row) -> None:
    """All processes of a worker are killed that holds 4 of 8 slots; another worker is busy with the rest."""
    with place(where, amount=8, conf=_QUICK_RECOVERY) as (site, spans):
        doomed = site.start("--concurrency", "4", name="doomed")
        for number in range(4):
            site.send("work", f"doomed {number}", 600)
        wait_until(lambda: len(spans.told("work")) == 4, description="the doomed have their slots")
        site.start("--concurrency", "12", name="other")
        for number in range(400):
            site.send("work", str(number), 0.2)
        wait_until(lambda: len(spans.told("work")) > 60, description="the other is at work")
        doomed.kill()
        killed_us = spans.now_us()
        wait_until(
            lambda: finished(spans.told("work")) == 400, description="all are done", timeout=_PATIENCE, every=0.5
        )
        events = [event for event in spans.told("work") if not event.job.startswith("doomed")]
        back = next((at_us for at_us, most in _busy(events) if at_us > killed_us and most == 8), None)
        after = (back - killed_us) / 1e6 if back else float("inf")
        most = most_at_once(events)
        row.tell("most at once", f"{most} of 8", good=most <= 8)
        row.tell("slots back after", f"{after:.1f} s, lease {_LEASE} s", good=after <= _LEASE + 1)
        row.tell("done", f"{finished(events)} of 400", good=finished(events) == 400)


def _busy(events: list[Event]) -> Iterator[tuple[int, int]]:
    most = 0
    for event in events:
        most += event.by
        yield event.at_us, most


def lasting(where: Servers, row: Row) -> None:
    """Bodies that last three times as long as the lease."""
    with place(where, amount=4) as (site, spans):
        for name in ("a", "b"):
            site.start("--concurrency", "4", name=name)
        for number in range(24):
            site.send("work", str(number), 3.0 * _LEASE)
        wait_until(lambda: finished(spans.told("work")) == 24, description="all are done", timeout=_PATIENCE, every=1)
        events = spans.told("work")
        row.tell("most at once", f"{most_at_once(events)} of 4", good=most_at_once(events) <= 4)
        row.tell("used", f"{used(events, 4):.2f}", good=True)  # of six rounds the last ones, uneven, weigh too much
        row.tell("done", f"{finished(events)} of 24", good=finished(events) == 24)


def stopped_store(where: Servers, row: Row) -> None:
    """The limiter's Redis is stopped for twice the lease: each body that runs then may be one too many, once."""
    with redis_server() as store, place(where, amount=4, store=f"{store}/0") as (site, spans):
        for number in range(200):
            site.send("work", str(number), 0.5)
        for name in ("a", "b"):
            site.start("--concurrency", "4", name=name)
        wait_until(lambda: len(spans.told("work")) > 20, description="they are at work")
        with closing(redis.Redis.from_url(store)) as client:
            info: Any = client.info("server")
        os.kill(info["process_id"], signal.SIGSTOP)
        time.sleep(2.0 * _LEASE)  # how long it is away is what is tried
        os.kill(info["process_id"], signal.SIGCONT)
        wait_until(lambda: finished(spans.told("work")) == 200, description="all are done", timeout=_PATIENCE, every=1)
        most = most_at_once(spans.told("work"))
        row.tell("most at once", f"{most} of 4, and 4 that may have lost theirs", good=most <= 8)
        row.tell("done", f"{finished(spans.told('work'))} of 200")


def angry(where: Servers, row: Row, pool: str) -> None:
    """Full flood at 100/s, and from the 300th call on 429 with Retry-After 10; another key meanwhile."""
    with place(where, pool=pool) as (site, spans), closing(AngryPartner(site.told["record"], site.queue)) as partner:
        partner.be_angry("one", 10, from_call=300)
        for number in range(800):
            site.send("ask", "one", str(number))
            if number % 2:
                site.send("ask", "other", str(number))
        for name in ("a", "b"):
            site.start("--concurrency", "8", name=name)
        wait_until(
            lambda: len(partner.told("one").answered) >= 800 and len(partner.told("other").answered) >= 400,
            description="all are answered", timeout=_PATIENCE, every=1,
        )  # fmt: skip
        told, other = partner.told("one"), partner.told("other")
        first = told.refused[0].at_us
        late = [call for call in told.between(first, first + 10_000_000) if call.at_us > first + 1_000_000]
        after = [call.at_us - first - 10_000_000 for call in told.calls if call.at_us > first + 10_000_000]
        burst = sum(at_us < number * 10_000 for number, at_us in enumerate(after))
        meanwhile = len(other.between(first, first + 10_000_000))
        row.tell("429s", f"{len(told.refused)}, 16 slots", good=len(told.refused) <= 16)
        row.tell("calls in the quiet", len(late), good=not late)
        row.tell("calls too early afterwards", burst, good=not burst)
        row.tell("other key meanwhile", meanwhile, good=meanwhile > 0)
        row.tell("failed", spans.counted("failures"), good=not spans.counted("failures"))
        row.tell("done", f"{len(set(told.answered))} of 800", good=len(told.answered) == len(set(told.answered)) == 800)


def rows(quick: bool) -> Iterator[tuple[str, Callable[[Servers, Row], None]]]:
    jobs, third = (500, 60) if quick else (2000, 200)
    jumping = [0.02] * third + [0.5] * third + [0.02] * third
    for pool in ("prefork", "threads"):
        yield f"{pool}, {jobs} of 100 ms", lambda where, row, pool=pool: bodies(where, row, pool, 10, [0.1] * jobs)
        # Of 3: with 10, 20 ms would ask for 500 tasks a second, which is more than two cores have.
        yield f"{pool}, 20, 500, 20 ms", lambda where, row, pool=pool: bodies(where, row, pool, 3, jumping)
    yield "SIGKILL with 4 of 8 slots", killed
    yield "bodies of three leases", lasting
    yield "store stopped for two leases", stopped_store
    for pool in ("prefork", "threads"):
        yield f"{pool}, 429 with Retry-After 10", lambda where, row, pool=pool: angry(where, row, pool)


def main() -> int:
    parser = parser_of(__doc__, broker=True, quick="small: is it all there?", only="rows with this in their name")
    chosen = parser.parse_args()
    faults: list[str] = []
    tables: list[Table] = []
    for where in each_broker(chosen):
        tables.append(Table("", "figures", title=f"Celery on {where.kind}"))
        for name, run in rows(chosen.quick):
            if chosen.only not in name:
                continue
            row = Row(name)
            try:
                run(where, row)
            except AssertionError as error:
                row.tell("gave up", error, good=False)
            tables[-1].add_row(name, "; ".join(f"{what} {figure}" for what, figure in row.told.items()))
            print(f"{where.kind}, {name}: {row.told}", flush=True)
            faults += [f"{where.kind}, {fault}" for fault in row.faults]
    return show(tables, faults, width=160)


if __name__ == "__main__":
    raise SystemExit(main())

"""
A concurrency limit, and the pause after a 429, with real `celery worker` commands: is the bound kept, and is it used?

    python tests/benchmarks/celery_concurrency.py [--quick] [--broker redis|rabbitmq|both] [--only TEXT]

All figures are from the records of the job functions, by the clock of the recording Redis. Jobs wait for slots of one
concurrency limit in 2 workers; all processes of one worker are killed; the limiter's Redis is stopped for longer than
the lease; a partner answers 429. Exits with 1 if too many jobs run at once, a job is lost or fails, or too little of
the limit is used. The full run takes about 10 minutes, --quick about 4.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis

from support.celery.site import CelerySite, celery_site
from support.flood.slot_record import Happened, SlotRecord, Slots
from support.reports.command import each_broker, parser_of
from support.reports.slots import Row, Scenario, measure_429, measure_backlog, measure_kill, report, send_calls
from support.servers.flood import Servers
from support.servers.processes import redis_server
from support.waiting import wait_until

_LEASE = 2
_QUICK_RECOVERY = {
    "broker_transport_options": {
        "visibility_timeout": 6,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,
    }
}
"""The times after which a Redis broker redelivers messages of a dead worker; RabbitMQ redelivers them at once."""


class CelerySlotting(SlotRecord):
    """A queue, the workers that it starts, and the records of the job functions."""

    def __init__(self, site: CelerySite, slots: Slots) -> None:
        super().__init__(site.settings["record"], site.queue)
        self.site, self.slots = site, slots

    def work(self, job: int | str, seconds: float, task: str = "work") -> None:
        self.site.send(task, str(job), seconds)

    def call(self, job: str, key: str) -> None:
        self.site.send("ask", key, job)

    def start(self, concurrency: int = 8, names: Sequence[str] = ("a", "b")) -> Any:
        return [self.site.start("--concurrency", str(concurrency), name=name) for name in names][-1]

    def stop(self) -> Happened:
        return Happened(self.events(), self.counts(), 0, "", [])


@contextmanager
def slotting_on(where: Servers, amount: int = 10, **config: Any) -> Iterator[CelerySlotting]:
    config = {
        "module": "support.celery.slots",
        "store": f"{where.redis_base}/1",
        "lease": _LEASE,
        "amount": amount,
        "rate": "100/s",
        "burst": 100,
        **config,
    }
    with (
        celery_site(where.kind, where.broker_url, where.redis_base, **config) as site,
        closing(CelerySlotting(site, Slots(amount=amount, lease=_LEASE))) as slotting,
    ):
        yield slotting


def run_backlog(where: Servers, row: Row, pool: str, amount: int, seconds: list[float]) -> None:
    """Measure how much of the slots a backlog under one limit uses."""
    with slotting_on(where, amount, pool=pool) as slotting:
        slotting.start()
        for number, each in enumerate(seconds):
            slotting.work(number, each)
        measure_backlog(row, slotting, seconds, least_use=0.9, most_deliveries=3.0)


def run_without_limit(where: Servers, row: Row, pool: str, amount: int, seconds: list[float]) -> None:
    """Run the same tasks without a limit, on as many processes or threads as there are slots."""
    with slotting_on(where, amount, pool=pool) as slotting:
        slotting.start(amount, ["a"])
        for number, each in enumerate(seconds):
            slotting.work(number, each, "free_work")
        measure_backlog(row, slotting, seconds)


def run_kill(where: Servers, row: Row) -> None:
    """Kill all processes of a worker that holds 4 of 8 slots; another worker runs the remaining jobs."""
    with slotting_on(where, 8, conf=_QUICK_RECOVERY) as slotting:
        measure_kill(row, slotting, lambda: slotting.start(4, ["doomed"]), lambda: slotting.start(12, ["other"]))


def run_long_bodies(where: Servers, row: Row) -> None:
    """
    Bodies that take three times the lease. No use is required: of six rounds, the uneven last ones weigh too much.
    """
    with slotting_on(where, 4) as slotting:
        slotting.start(4)
        for number in range(24):
            slotting.work(number, 3.0 * _LEASE)
        measure_backlog(row, slotting, [3.0 * _LEASE] * 24)


def run_stopped_store(where: Servers, row: Row) -> None:
    """Stop the limiter's Redis for twice the lease: each running body may exceed the limit by one, once."""
    with redis_server() as store, slotting_on(where, 4, store=f"{store}/0") as slotting:
        for number in range(200):
            slotting.work(number, 0.5)
        slotting.start(4)
        wait_until(lambda: len(slotting.events()) > 20, description="the workers run jobs")
        with closing(redis.Redis.from_url(store)) as client:
            info: Any = client.info("server")
        os.kill(info["process_id"], signal.SIGSTOP)
        time.sleep(2.0 * _LEASE)  # the outage under test
        os.kill(info["process_id"], signal.SIGCONT)
        slotting.until_ended(200, timeout=300)
        most = slotting.stop().most_at_once()
        row.tell("most at once", f"{most} of 4, and 4 that may have lost theirs", good=most <= 8)


def run_429(where: Servers, row: Row, pool: str) -> None:
    """
    Run a full flood at 100/s, with 429 and Retry-After 10 from the 300th call on; another key continues meanwhile.
    """
    with slotting_on(where, pool=pool) as slotting:
        send_calls(slotting, 800, from_call=300)
        slotting.start()
        measure_429(row, slotting, 800, rate=100, threads=16, beyond=1)


def scenarios(quick: bool) -> list[Scenario]:
    jobs, third = (500, 60) if quick else (2000, 200)
    jumping = [0.02] * third + [0.5] * third + [0.02] * third
    # With 10 slots instead of 3, bodies of 20 ms would need 500 tasks a second, more than two cores can run.
    backlogs = ((f"{jobs} of 100 ms", 10, [0.1] * jobs), ("20, 500, 20 ms", 3, jumping))
    listed = [
        Scenario(
            "Slots", f"{pool}, {name}", lambda where, row, of=(pool, amount, seconds): run_backlog(where, row, *of)
        )
        for pool in ("prefork", "threads")
        for name, amount, seconds in backlogs
    ]
    listed += [
        Scenario(
            "Slots",
            f"{pool}, no limit, {name}",
            lambda w, r, of=(pool, amount, seconds): run_without_limit(w, r, *of),
        )
        for pool in ("prefork", "threads")
        for name, amount, seconds in backlogs
    ]
    listed.append(Scenario("SIGKILL of a worker that holds 4 of 8 slots", "prefork", run_kill))
    listed.append(Scenario("Slots", "bodies of three leases", run_long_bodies))
    listed.append(Scenario("Slots", "store stopped for two leases", run_stopped_store))
    title = "429 with Retry-After 10 at full flood, 100/s a key, 16 processes or threads"
    return [
        *listed,
        *(
            Scenario(title, pool, lambda where, row, pool=pool: run_429(where, row, pool))
            for pool in ("prefork", "threads")
        ),
    ]


def main() -> int:
    parser = parser_of(
        __doc__, broker=True, quick="small: is it all there?", only="rows with this in their name, or their table's"
    )
    options = parser.parse_args()
    return report(each_broker(options), scenarios(options.quick), options.only)


if __name__ == "__main__":
    sys.exit(main())

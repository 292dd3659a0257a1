"""
Real `rq worker` processes whose jobs hold slots of a concurrency limit, or call an angry partner.

    with redis_server() as base, RqSlotting(RqSlots(kinds=(OURS_SIMPLE,) * 16), base) as slotting:
        for n in range(200):
            slotting.work(n, 0.1)
        slotting.start()
        slotting.until_ended(200)
        held = slotting.stop()
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import redis
from rq.registry import FailedJobRegistry

from support.flood.slot_record import Happened, SlotRecord, slots_of
from support.partner.angry import AngryPartner
from support.rq.flood import OURS_SIMPLE
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import Concurrency, TokenBucket
from throttlekit_rq import ThrottledQueue

__all__ = ["Held", "RqSlots", "RqSlotting"]

_RUNS = itertools.count(1)
_JOBS = "support.rq.slot_jobs"
_READY = "Listening on"


@dataclass(frozen=True, kw_only=True)
class RqSlots:
    """
    What the workers are told.

    Attributes:
        amount, lease: Of the concurrency limit of the job `work`.
        rate, burst: Of the token bucket, one for each key, of the job `call`.
        body: Seconds from a call's body's begin to the call.
        kinds: A worker for each: its class, and "+scheduler" to run RQ's scheduler beside it.
    """

    amount: int = 10
    lease: float = 30.0
    rate: str = "50/s"
    burst: int = 50
    body: float = 0.02
    max_wait: float | None = None
    kinds: tuple[str, ...] = (OURS_SIMPLE,) * 4

    @property
    def slots(self) -> Concurrency:
        return Concurrency("slots", self.amount, lease=self.lease, cost=lambda job: slots_of(job.kwargs["index"]))

    @property
    def partner(self) -> TokenBucket:
        return TokenBucket("partner", self.rate, burst=self.burst, key="{key}")


@dataclass(frozen=True, slots=True)
class Held(Happened):
    """Its counts are those of deferrals, by their reason."""

    @property
    def deliveries(self) -> int:
        """How often a job was taken off its queue."""
        return sum(self.starts.values()) + sum(self.counts.values())

    def most_at_once(self) -> int:
        """How many slots: of the bodies that came to their end."""
        most = now = 0
        for event in self.events:
            now += slots_of(event.job) if event.what == "start" else -slots_of(event.job)
            most = max(most, now)
        return most


class RqSlotting(SlotRecord):
    """Workers, and what they write down, step by step. *base* is a Redis of its own, *store* another for the limits."""

    def __init__(self, slots: RqSlots, base: str, store: str | None = None) -> None:
        self.slots = slots
        self._url = f"{base}/0"
        self._store_url = f"{store}/1" if store else patient(f"{base}/1")
        self._name = f"slots-{next(_RUNS)}"
        self._redis: Any = redis.Redis.from_url(self._url)
        self._redis.flushall()
        self.store: Any = redis.Redis.from_url(self._store_url)
        self._record_url = f"{base}/2"
        super().__init__(self._record_url)
        self.partner = AngryPartner(self._record_url)
        self.queue = ThrottledQueue(self._name, connection=self._redis)
        self._fleets: list[Fleet] = []

    def __enter__(self) -> RqSlotting:
        return self

    def __exit__(self, *error: object) -> None:
        for fleet in self._fleets:
            fleet.close()
        for client in (self._redis, self.store, self.record, self.partner):
            client.close()

    def work(self, index: int | str, seconds: float, *, function: str = "work", **options: Any) -> Any:
        kwargs = {"index": str(index), "seconds": seconds}
        return self.queue.enqueue(f"{_JOBS}.{function}", throttle=[self.slots.slots], kwargs=kwargs, **options)

    def call(self, index: int | str, key: str = "one") -> Any:
        return self.queue.enqueue(
            f"{_JOBS}.call", throttle=[self.slots.partner], kwargs={"index": str(index), "key": key}
        )

    def start(self, *kinds: str) -> Fleet:
        """Workers of the configured kinds, or of these, ready for work."""
        environment = {"TK_SLOTS": json.dumps(self._told()), "THROTTLEKIT_URL": self._store_url}
        options = ["-c", _JOBS]
        kinds = kinds or self.slots.kinds
        fleet = Fleet([rq_worker(self._url, self._name, kind=kind, options=options) for kind in kinds], environment)
        self._fleets.append(fleet)
        wait_until(
            lambda: all(_READY in command.log() for command in fleet.commands) or not fleet.running,
            description="the workers are ready",
        )
        assert fleet.running, fleet.log()
        return fleet

    def failed(self) -> int:
        return int(FailedJobRegistry(queue=self.queue).count)

    def stop(self) -> Held:
        """Stop the workers with SIGTERM, and return what happened."""
        log = ""
        for fleet in self._fleets:
            fleet.stop()
            log += fleet.log()
            fleet.close()
        self._fleets.clear()
        left = self.queue.count + self.queue.scheduled_job_registry.count + self.failed()
        left += len(self.queue.intermediate_queue.get_job_ids()) + self.queue.started_job_registry.count
        return Held(self.events(), self.counts(), left, log)

    def _told(self) -> dict[str, Any]:
        return {
            "store_url": self._store_url,
            "record_url": self._record_url,
            "body": self.slots.body,
            "max_wait": self.slots.max_wait,
        }

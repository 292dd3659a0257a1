"""
Real `dramatiq` worker processes whose jobs hold slots of a concurrency limit, or call an angry partner.

    with servers("redis") as where, Slotting(Slots(amount=10), where) as slotting:
        for n in range(200):
            slotting.send("work", str(n), "0.1")
        slotting.start()
        slotting.until_ended(200)
        held = slotting.stop()
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import redis

from support.dramatiq.workers import Workers
from support.flood.slot_record import Event, Happened, SlotRecord, slots_of
from support.partner.angry import AngryPartner
from support.servers.flood import Sender, Servers
from support.servers.processes import patient
from support.waiting import wait_until

__all__ = ["Held", "Slots", "Slotting"]

_RUNS = itertools.count(1)
_QUICK_RECOVERY = {"maintenance_chance": 200_000}


@dataclass(frozen=True, kw_only=True)
class Slots:
    """
    What the workers are told.

    Attributes:
        amount, lease: Of the concurrency limit of the actor `work`.
        rate, burst: Of the token bucket, one for each key, of the actor `call`.
        body: Seconds from a call's body's begin to the call.
        mode: "native": Dramatiq's own ConcurrentRateLimiter in throttlekit's place; "none": no limit.
        options: Of the actors.
        store_url: The limiter's store, if it is to be another than database 1 of the recording Redis.
    """

    amount: int = 10
    lease: float = 30.0
    rate: str = "50/s"
    burst: int = 50
    body: float = 0.02
    max_wait: float | None = None
    mode: Literal["throttlekit", "native", "none"] = "throttlekit"
    processes: int = 2
    threads: int = 8
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    store_url: str | None = None

    def environment(self, where: Servers, queue: str) -> dict[str, str]:
        told = {
            "broker_url": where.broker_url,
            "store_url": self.store_url or patient(f"{where.redis_base}/1"),
            "record_url": f"{where.redis_base}/2",
            "queue": queue,
            "mode": self.mode,
            "amount": self.amount,
            "lease": self.lease,
            "rate": self.rate,
            "burst": self.burst,
            "body": self.body,
            "max_wait": self.max_wait,
            "actor_options": dict(self.options),
            "broker_options": {"confirm_delivery": True} if where.kind == "rabbitmq" else _QUICK_RECOVERY,
        }
        return {"TK_SLOTS": json.dumps(told)}


@dataclass(frozen=True, slots=True)
class Held(Happened):
    failures: list[str]

    def most_at_once(self, killed: Mapping[str, int] | None = None) -> int:
        """How many slots were held at once. Of processes that were killed, by their ids: those that ran until then."""
        return max(self.at_once(killed)[1], default=0)

    def at_once(self, killed: Mapping[str, int] | None = None) -> tuple[list[int], list[int]]:
        """Each instant at which it changed how many slots they had, and how many these then were."""
        changes: list[tuple[int, int]] = []
        open_: dict[str, list[Event]] = {}
        for event in self.events:
            changes.append((event.at_us, slots_of(event.job) if event.what == "start" else -slots_of(event.job)))
            if event.what == "start":
                open_.setdefault(event.job, []).append(event)
            else:
                open_[event.job].pop()
        for cut in (event for events in open_.values() for event in events):
            changes.append(((killed or {})[cut.more], -slots_of(cut.job)))
        changes.sort()
        return [at_us for at_us, _ in changes], list(itertools.accumulate(change for _, change in changes))


class Slotting(SlotRecord):
    """Workers, and what they write down, step by step."""

    def __init__(self, slots: Slots, where: Servers) -> None:
        base = redis.Redis.from_url(where.redis_base)
        base.flushall()
        base.close()
        queue = f"slots-{next(_RUNS)}"
        self.slots = slots
        super().__init__(f"{where.redis_base}/2")
        self.partner = AngryPartner(f"{where.redis_base}/2")
        self._sender = Sender(where, queue)
        self._environment = slots.environment(where, queue)
        self.running: list[Workers] = []
        self._logs: list[str] = []
        self.send = self._sender.send
        self.hearts = self._sender.hearts
        self.bury = self._sender.bury

    def __enter__(self) -> Slotting:
        return self

    def __exit__(self, *error: object) -> None:
        for workers in self.running:
            workers.close()
        self._sender.close()
        self.partner.close()
        self.record.close()

    def start(self, *, processes: int | None = None, threads: int | None = None) -> Workers:
        """One `dramatiq` command more, ready for work."""
        count = processes or self.slots.processes
        workers = Workers(
            "support.dramatiq.slot_jobs", self._environment, processes=count, threads=threads or self.slots.threads
        )
        self.running.append(workers)
        wait_until(
            lambda: workers.log().count("ready for action") >= count or not workers.running,
            description="the workers are ready",
        )
        assert workers.running, workers.log()
        return workers

    def stop(self) -> Held:
        """Stop the workers in peace, and tell."""
        for workers in self.running:
            workers.stop()
            self._logs.append(workers.log())
            workers.close()
        self.running.clear()
        failures = self.record.lrange("failures", 0, -1)
        return Held(self.events(), self.counts(), self._sender.left(), "".join(self._logs), failures)

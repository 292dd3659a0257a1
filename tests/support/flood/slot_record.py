"""
Jobs that hold slots of a concurrency limit, or call an angry partner: what their bodies record, by the clock of a
Redis, and the result. It is the same for the workers of every framework.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import redis

from support.faults.processes import Fleet
from support.partner.angry import AngryPartner
from support.waiting import wait_until
from throttlekit import Concurrency, Job, RateLimited, TokenBucket, current

__all__ = ["LONG_LEASE", "Event", "Happened", "SlotRecord", "Slots", "Slotting", "most_at_once", "settings", "slots_of"]

LONG_LEASE = 600
"""Longer than any test waits: a job that has to wait for the end of this lease fails the test."""
_RUNS = itertools.count(1)
_NOTE = """
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', KEYS[1], now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
    if ARGV[1] == 'end' then redis.call('SADD', KEYS[2], ARGV[3]) end
"""


def slots_of(job: str) -> int:
    """Return how many slots the job named *job* needs: "17*4" needs four, and "17" needs one."""
    return int(job.partition("*")[2] or 1)


def _cost_of(job: Job) -> int:
    return slots_of(job.args[0] if job.args else job.kwargs.get("index", ""))


@dataclass(frozen=True, kw_only=True)
class Slots:
    """
    The configuration of workers of Dramatiq or RQ.

    Attributes:
        amount, lease: Of the concurrency limit of the job `work`.
        rate, burst: Of the token bucket of the job `call`, which has one count for each key.
        body: The seconds from the start of a body to its call.
        mode: "native": Dramatiq's ConcurrentRateLimiter instead of throttlekit; "none": no limit.
        options: Options of Dramatiq's actors.
        kinds: The class of each worker of RQ, with "+scheduler" to run RQ's scheduler too.
        store_url: The limiter's store. Default: database 1 of the recording Redis.
    """

    amount: int = 10
    lease: float = 30.0
    rate: str = "50/s"
    burst: int = 50
    body: float = 0.02
    mode: Literal["throttlekit", "native", "none"] = "throttlekit"
    processes: int = 2
    threads: int = 8
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kinds: Sequence[str] = ("throttlekit_rq.ThrottledSimpleWorker",) * 4
    store_url: str | None = None

    @property
    def slots(self) -> Concurrency:
        return Concurrency("slots", self.amount, lease=self.lease, cost=_cost_of)

    @property
    def partner(self) -> TokenBucket:
        return TokenBucket("partner", self.rate, burst=self.burst, key="{key}")


@dataclass(frozen=True, slots=True)
class Event:
    """The start of a body ("start", with its process) or its end ("end", with "held" or "lost" for its slot)."""

    at_us: int
    what: str
    more: str
    job: str

    @property
    def by(self) -> int:
        """By how many slots the event changes the number of held slots."""
        return slots_of(self.job) if self.what == "start" else -slots_of(self.job)


def most_at_once(events: Sequence[Event]) -> int:
    """Return the largest number of slots that bodies held at once."""
    return max(itertools.accumulate((event.by for event in events), initial=0))


@dataclass(frozen=True, slots=True)
class Happened:
    """
    The record of a run, by the clock of the recording Redis.

    Attributes:
        left: How many jobs still wait or have failed.
        failures: Exceptions that other middleware of Dramatiq would treat as failures.
    """

    events: list[Event]
    counts: dict[str, int]
    left: int
    log: str
    failures: list[str]

    @property
    def starts(self) -> Counter[str]:
        return Counter(event.job for event in self.events if event.what == "start")

    @property
    def ends(self) -> Counter[str]:
        return Counter(event.job for event in self.events if event.what == "end")

    def span(self) -> float:
        """Return the seconds from the first start to the last end."""
        return (self.events[-1].at_us - self.events[0].at_us) / 1e6

    def most_at_once(self, killed: Mapping[str, int] | None = None) -> int:
        """
        Return the largest number of slots held at once. *killed* has the time of death of killed processes, by their
        ids.
        """
        return max(self.at_once(killed)[1], default=0)

    def at_once(self, killed: Mapping[str, int] | None = None) -> tuple[list[int], list[int]]:
        """Return each time at which the number of held slots changed, and the new numbers."""
        changes = [(event.at_us, event.by) for event in self.events]
        open_: dict[str, list[Event]] = {}
        for event in self.events:
            if event.what == "start":
                open_.setdefault(event.job, []).append(event)
            else:
                open_[event.job].pop()
        for cut in (event for events in open_.values() for event in events):
            if killed and cut.more in killed:
                changes.append((killed[cut.more], -cut.by))
        changes.sort()
        return [at_us for at_us, _ in changes], list(itertools.accumulate(change for _, change in changes))


class SlotRecord:
    """
    The record that bodies write to the Redis at *url*, and that a test reads.

    Args:
        name: A prefix, if several records share the Redis.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.record: Any = redis.Redis.from_url(url, decode_responses=True)
        self.partner = AngryPartner(url, name or "partner")
        self._note: Any = self.record.register_script(_NOTE)
        self._name = f"{name}:" if name else ""

    # For bodies

    def hold(self, job: str, seconds: float) -> None:
        """Run a body that takes *seconds*. A body that is killed or interrupted records no end."""
        self._record_event("start", os.getpid(), job)
        time.sleep(seconds)
        self.end(job)

    def begin(self, job: str) -> None:
        self._record_event("start", os.getpid(), job)

    def end(self, job: str) -> None:
        self._record_event("end", "lost" if current().lost else "held", job)

    def call(self, key: str, job: str, seconds: float = 0.0) -> None:
        """Run a body that calls the partner once, after *seconds*."""
        self.partner.begin(key, job)
        time.sleep(seconds)
        answer = self.partner.call(key, job)
        if answer.status_code == 429:
            raise RateLimited.from_response(answer)
        self.record.sadd(f"{self._name}ended", job)

    def count(self, what: str, by: float = 1) -> None:
        self.record.hincrbyfloat(f"{self._name}counts", what, by)

    def _record_event(self, what: str, more: object, job: str) -> None:
        self._note(keys=[f"{self._name}events", f"{self._name}ended"], args=[what, more, job])

    # For tests

    def until_ended(self, count: int, *, timeout: float = 120.0) -> None:
        ended = f"{self._name}ended"
        wait_until(lambda: self.record.scard(ended) >= count, description=f"{count} jobs have ended", timeout=timeout)

    def events(self) -> list[Event]:
        """Return the events until now."""
        lines = [line.split(" ", 3) for line in self.record.lrange(f"{self._name}events", 0, -1)]
        return [Event(int(at_us), what, more, job) for at_us, what, more, job in lines]

    def counts(self) -> Counter[str]:
        found = self.record.hgetall(f"{self._name}counts")
        return Counter({name: int(float(count)) for name, count in found.items()})

    def now_us(self) -> int:
        """Return the time of the recording Redis."""
        seconds, microseconds = self.record.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def close(self) -> None:
        self.partner.close()
        self.record.close()


class Slotting(SlotRecord):
    """Workers of a framework and their record, for tests that control them step by step. *base* is a separate Redis."""

    ready: str
    """What each worker process prints when it is ready."""

    def __init__(self, slots: Slots, base: str, store_url: str, broker_url: str) -> None:
        with redis.Redis.from_url(base) as client:
            client.flushall()
        super().__init__(f"{base}/2")
        self.slots, self.queue_name = slots, f"slots-{next(_RUNS)}"
        config = {
            "slots": asdict(slots),
            "queue": self.queue_name,
            "broker_url": broker_url,
            "store_url": store_url,
            "record_url": f"{base}/2",
        }
        self._environment = {"TK_SLOTS": json.dumps(config), "THROTTLEKIT_URL": store_url}
        self.running: list[Fleet] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        for fleet in self.running:
            fleet.close()
        self.close()

    def stop(self) -> Happened:
        """Stop the workers with SIGTERM, and return the record."""
        log = ""
        for fleet in self.running:
            fleet.stop()
            log += fleet.log()
            fleet.close()
        self.running.clear()
        failures = self.record.lrange("failures", 0, -1)
        return Happened(self.events(), self.counts(), self.left(), log, failures)

    def left(self) -> int:
        """Return how many jobs still wait or have failed."""
        raise NotImplementedError

    def wait_until_ready(self, fleet: Fleet, count: int) -> Fleet:
        """Wait until *count* processes of *fleet* are ready, and return *fleet*."""
        self.running.append(fleet)
        wait_until(
            lambda: fleet.log().count(self.ready) >= count or not fleet.running, description="the workers are ready"
        )
        assert fleet.running, fleet.log()
        return fleet


def settings() -> tuple[Slots, dict[str, str]]:
    """Return the configuration of this worker from $TK_SLOTS: its slots, and its queue and URLs."""
    config = json.loads(os.environ["TK_SLOTS"])
    return Slots(**config.pop("slots")), config

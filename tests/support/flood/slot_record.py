"""
Jobs that hold slots of a concurrency limit, or call an angry partner: what their bodies write down, by the clock of a
Redis, and what it comes to. The same of every framework's workers.
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

__all__ = ["Event", "Happened", "SlotRecord", "Slots", "Slotting", "most_at_once", "settings", "slots_of"]

_RUNS = itertools.count(1)
_NOTE = """
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', KEYS[1], now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
    if ARGV[1] == 'end' then redis.call('SADD', KEYS[2], ARGV[3]) end
"""


def slots_of(job: str) -> int:
    """How many slots the job called *job* needs: "17*4" needs four, and "17" one."""
    return int(job.partition("*")[2] or 1)


def _cost_of(job: Job) -> int:
    return slots_of(job.args[0] if job.args else job.kwargs.get("index", ""))


@dataclass(frozen=True, kw_only=True)
class Slots:
    """
    What workers of Dramatiq or RQ are told.

    Attributes:
        amount, lease: Of the concurrency limit of the job `work`.
        rate, burst: Of the token bucket, one for each key, of the job `call`.
        body: Seconds from a call's body's begin to the call.
        mode: "native": Dramatiq's own ConcurrentRateLimiter in throttlekit's place; "none": no limit.
        options: Of Dramatiq's actors.
        kinds: A worker of RQ for each: its class, and "+scheduler" to run RQ's scheduler beside it.
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
    """A body began ("start", with its process) or ended ("end", and whether its slot was "held" or "lost")."""

    at_us: int
    what: str
    more: str
    job: str

    @property
    def by(self) -> int:
        """How many slots more are held."""
        return slots_of(self.job) if self.what == "start" else -slots_of(self.job)


def most_at_once(events: Sequence[Event]) -> int:
    """How many slots the bodies had at the busiest moment."""
    return max(itertools.accumulate((event.by for event in events), initial=0))


@dataclass(frozen=True, slots=True)
class Happened:
    """
    What happened, by the clock of the recording Redis.

    Attributes:
        left: Jobs that still wait, and those that have failed.
        failures: What other middleware of Dramatiq would take for a failure.
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
        """Seconds from the first start to the last end."""
        return (self.events[-1].at_us - self.events[0].at_us) / 1e6

    def most_at_once(self, killed: Mapping[str, int] | None = None) -> int:
        """How many slots were held at once. Of processes that were killed, by their ids: those that ran until then."""
        return max(self.at_once(killed)[1], default=0)

    def at_once(self, killed: Mapping[str, int] | None = None) -> tuple[list[int], list[int]]:
        """Each instant at which it changed how many slots they had, and how many these then were."""
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
    What bodies write down in the Redis at *url*, and what a test reads of it.

    Args:
        name: Of those who share the Redis, if there are several.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.record: Any = redis.Redis.from_url(url, decode_responses=True)
        self.partner = AngryPartner(url, name or "partner")
        self._note: Any = self.record.register_script(_NOTE)
        self._name = f"{name}:" if name else ""

    # For bodies

    def hold(self, job: str, seconds: float) -> None:
        """A body that works for so long. One that is killed, or interrupted, never ends."""
        self._tell("start", os.getpid(), job)
        time.sleep(seconds)
        self.end(job)

    def begin(self, job: str) -> None:
        self._tell("start", os.getpid(), job)

    def end(self, job: str) -> None:
        self._tell("end", "lost" if current().lost else "held", job)

    def call(self, key: str, job: str, seconds: float = 0.0) -> None:
        """A body that calls the partner once, after so many seconds."""
        self.partner.begin(key, job)
        time.sleep(seconds)
        answer = self.partner.call(key, job)
        if answer.status_code == 429:
            raise RateLimited.from_response(answer)
        self.record.sadd(f"{self._name}ended", job)

    def count(self, what: str, by: float = 1) -> None:
        self.record.hincrbyfloat(f"{self._name}counts", what, by)

    def _tell(self, what: str, more: object, job: str) -> None:
        self._note(keys=[f"{self._name}events", f"{self._name}ended"], args=[what, more, job])

    # For tests

    def until_ended(self, count: int, *, timeout: float = 120.0) -> None:
        ended = f"{self._name}ended"
        wait_until(lambda: self.record.scard(ended) >= count, description=f"{count} have ended", timeout=timeout)

    def events(self) -> list[Event]:
        """So far."""
        lines = [line.split(" ", 3) for line in self.record.lrange(f"{self._name}events", 0, -1)]
        return [Event(int(at_us), what, more, job) for at_us, what, more, job in lines]

    def counts(self) -> Counter[str]:
        found = self.record.hgetall(f"{self._name}counts")
        return Counter({name: int(float(count)) for name, count in found.items()})

    def now_us(self) -> int:
        """Its time."""
        seconds, microseconds = self.record.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def close(self) -> None:
        self.partner.close()
        self.record.close()


class Slotting(SlotRecord):
    """Workers of a framework, and what they write down, step by step. *base* is a Redis of its own."""

    ready: str
    """What each worker process says when it is."""

    def __init__(self, slots: Slots, base: str, store_url: str, broker_url: str) -> None:
        with redis.Redis.from_url(base) as client:
            client.flushall()
        super().__init__(f"{base}/2")
        self.slots, self.queue_name = slots, f"slots-{next(_RUNS)}"
        told = {
            "slots": asdict(slots), "queue": self.queue_name, "broker_url": broker_url, "store_url": store_url,
            "record_url": f"{base}/2",
        }  # fmt: skip
        self._environment = {"TK_SLOTS": json.dumps(told), "THROTTLEKIT_URL": store_url}
        self.running: list[Fleet] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        for fleet in self.running:
            fleet.close()
        self.close()

    def stop(self) -> Happened:
        """Stop the workers with SIGTERM, and return what happened."""
        log = ""
        for fleet in self.running:
            fleet.stop()
            log += fleet.log()
            fleet.close()
        self.running.clear()
        failures = self.record.lrange("failures", 0, -1)
        return Happened(self.events(), self.counts(), self.left(), log, failures)

    def left(self) -> int:
        """Jobs that still wait, and those that have failed."""
        raise NotImplementedError

    def wait_until_ready(self, fleet: Fleet, count: int) -> Fleet:
        """*fleet*, whose *count* processes are ready for work when this returns."""
        self.running.append(fleet)
        wait_until(
            lambda: fleet.log().count(self.ready) >= count or not fleet.running, description="the workers are ready"
        )
        assert fleet.running, fleet.log()
        return fleet


def settings() -> tuple[Slots, dict[str, str]]:
    """What this worker is told, by $TK_SLOTS: its slots, and its queue and URLs."""
    told = json.loads(os.environ["TK_SLOTS"])
    return Slots(**told.pop("slots")), told

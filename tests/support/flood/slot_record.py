"""What bodies that hold slots write down, and what it comes to: the same of every framework's workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import redis

from support.waiting import wait_until

__all__ = ["Event", "Happened", "SlotRecord", "slots_of"]


def slots_of(job: str) -> int:
    """How many slots the job called *job* needs: "17*4" needs four, and "17" one."""
    return int(job.partition("*")[2] or 1)


@dataclass(frozen=True, slots=True)
class Event:
    """A body began ("start", with its process) or ended ("end", and whether its slot was "held" or "lost")."""

    at_us: int
    what: str
    job: str
    more: str


@dataclass(frozen=True, slots=True)
class Happened:
    """
    What happened, by the clock of the recording Redis.

    Attributes:
        left: Jobs that still wait, and those that have failed.
    """

    events: list[Event]
    counts: dict[str, int]
    left: int
    log: str

    @property
    def starts(self) -> Counter[str]:
        return Counter(event.job for event in self.events if event.what == "start")

    @property
    def ends(self) -> Counter[str]:
        return Counter(event.job for event in self.events if event.what == "end")

    def span(self) -> float:
        """Seconds from the first start to the last end."""
        return (self.events[-1].at_us - self.events[0].at_us) / 1e6


class SlotRecord:
    """The Redis where they do, at *url*."""

    def __init__(self, url: str) -> None:
        self.record: Any = redis.Redis.from_url(url, decode_responses=True)

    def until_ended(self, count: int, *, timeout: float = 120.0) -> None:
        wait_until(lambda: self.record.scard("ended") >= count, description=f"{count} have ended", timeout=timeout)

    def events(self) -> list[Event]:
        """So far."""
        found: list[Event] = []
        for line in self.record.lrange("events", 0, -1):
            at_us, what, job, more = line.split()
            found.append(Event(int(at_us), what, job, more))
        return found

    def counts(self) -> dict[str, int]:
        return {name: int(count) for name, count in self.record.hgetall("counts").items()}

    def now_us(self) -> int:
        """Its time."""
        seconds, microseconds = self.record.time()
        return int(seconds) * 1_000_000 + int(microseconds)

"""Windows of a time zone follow the store's clock: a worker whose clock is wrong by decades counts the same day."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest

from throttlekit import AsyncLimiter, FixedWindow, Limiter, StoreUnavailable, TokenBucket
from throttlekit._core.answer import Answer, Caller
from throttlekit.stores.base import Request
from throttlekit.stores.memory import MemoryStore

LONDON = ZoneInfo("Europe/London")
DAILY = FixedWindow("partner", "100/d", tz="Europe/London")
NOON = dt.datetime(2026, 1, 15, 12, tzinfo=LONDON)
LATE = dt.datetime(2026, 1, 15, 23, 30, tzinfo=LONDON)
EPOCH = dt.datetime.fromtimestamp(1, dt.timezone.utc)  # then London was an hour ahead of UTC all year


class Server(MemoryStore):
    """A store with a clock of its own that records its requests."""

    def __init__(self, at: dt.datetime = NOON) -> None:
        self.at, self.down = at, False
        self.requests: list[Request] = []
        super().__init__(clock_us=lambda: int(self.at.timestamp() * 1e6))

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
        if self.down:
            raise StoreUnavailable("down")
        self.requests.append(Request(claims, requester, attempt))
        return super().decide(claims, requester, now_us, attempt=attempt)


@contextmanager
def clock(at: dt.datetime) -> Iterator[None]:
    """Set the clock of this worker to *at*."""
    with mock.patch.object(time, "time_ns", return_value=int(at.timestamp() * 1e9)):
        yield


def grants(limiter: Limiter, limit: FixedWindow, times: int = 150) -> int:
    return sum(limiter.acquire(limit).allowed for _ in range(times))


@pytest.mark.parametrize(
    "wrong", [EPOCH, dt.datetime(2096, 10, 2, 7, tzinfo=dt.timezone.utc)], ids=["at the epoch", "in 2096"]
)
def test_worker_with_a_wrong_clock_counts_the_same_day(wrong: dt.datetime) -> None:
    """A limit of 100 a day in London admits 100, even if the day began an hour early by one worker's wrong clock."""
    server = Server()
    with clock(NOON):
        assert grants(Limiter(server), DAILY) == 100
    server.at = LATE
    with clock(wrong):
        assert grants(Limiter(server), DAILY) == 0
    server.at = LATE + dt.timedelta(minutes=30)
    with clock(wrong):
        assert grants(Limiter(server), DAILY) == 100, "a new day in London"


def test_event_loop_with_a_wrong_clock_counts_the_same_day() -> None:
    """Tasks of an event loop with a wrong clock count the same day, in one batch or several."""
    server = Server()
    with clock(NOON):
        assert grants(Limiter(server), DAILY) == 100
    server.at = LATE

    async def request() -> int:
        async with AsyncLimiter(server) as limiter:
            decisions = await asyncio.gather(*[limiter.acquire(DAILY) for _ in range(5)])
        return sum(decision.allowed for decision in decisions)

    with clock(EPOCH):
        assert asyncio.run(request()) == 0


def test_settling_with_a_wrong_clock_keeps_the_day() -> None:
    """A cost that is settled by a worker with a wrong clock does not begin a new day."""
    server = Server(LATE)
    with clock(LATE):
        decision = Limiter(server).acquire(DAILY, cost=100)
    with clock(EPOCH):
        Limiter(server).settle(decision, actual=101)
    with clock(LATE):
        assert not Limiter(server).acquire(DAILY)


def test_time_of_the_store_is_requested_once() -> None:
    """The first limit with a zone causes one peek; other limits, and limits in UTC, cause none."""
    server = Server()
    limiter = Limiter(server)
    for limit in (TokenBucket("bucket", "1/s"), FixedWindow("utc", "9/d"), FixedWindow("also", "9/d", tz="UTC")):
        limiter.acquire(limit)
    assert [request.requester.caller for request in server.requests] == [Caller.WITHOUT_JOB] * 3
    del server.requests[:]
    for _ in range(3):
        limiter.acquire(DAILY)
    assert [request.requester.caller for request in server.requests] == [Caller.PEEK, *[Caller.WITHOUT_JOB] * 3]


def test_missing_time_of_the_store_is_an_outage() -> None:
    """Without the store's time, the limit's on_store_failure decides, as for any request without a reply."""
    server = Server()
    server.down = True
    assert not Limiter(server).acquire(DAILY)
    assert Limiter(server).acquire(FixedWindow("open", "1/d", tz="Europe/London", on_store_failure="open"))

    async def request() -> bool:
        async with AsyncLimiter(server) as limiter:
            return (await limiter.acquire(DAILY)).allowed

    assert asyncio.run(request()) is False

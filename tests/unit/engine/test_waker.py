"""The thread that starts the jobs of its process as they are woken, with a store that answers as it is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from support.waiting import wait_until
from throttlekit import TokenBucket
from throttlekit._core.algorithm import Use
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Kept, Look
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.verdict import Reason
from throttlekit._core.waitlist import Wake
from throttlekit._engine.room import Room
from throttlekit._engine.waker import Waker

LIMIT = TokenBucket("partner", "1/minute", burst=1)
UNIT = StoreClaim(bucket_name(LIMIT.name, "", LIMIT.fingerprint), LIMIT.bind(1))
DENIED = Answer(Reason.EXHAUSTED, 0, 0, 60_000_000, (Use(0, 0),), Kept(0, parked=False, epoch="e"))


class Store:
    """Answers looks with what it is told to."""

    def __init__(self) -> None:
        self.looks, self.gone = list[tuple[int, Sequence[str]]](), list[str]()
        self.answer: Callable[[], Look] = lambda: Look("e")

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look:
        self.looks.append((free, ids))
        return self.answer()

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str) -> None:
        assert owner == "me", "the entries of other owners stay"
        self.gone += ids


class Bench:
    def __init__(self) -> None:
        self.store, self.free, self.started = Store(), 1, list[str]()
        self.start: Callable[[str, str], Any] = lambda id, item: self.started.append(item)
        self.waker: Waker[str] = Waker(self.store, "me", lambda: self.free, lambda id, item: self.start(id, item))
        self.waker.begin()

    def wait(self, id: str, item: str = "") -> list[str]:
        self.waker.asks(id, [UNIT.bucket], self.free)
        return self.waker.answered(id, item or id, [UNIT], DENIED)

    def wake(self, *ids: str) -> None:
        self.waker.heard(UNIT.bucket, [Wake(id, 0) for id in ids])


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.waker.close()


@pytest.mark.parametrize(
    ("rate", "owners", "seconds"), [("50/s", 1, 0.5), ("1/s", 10, 5), ("1/s", 100, 30), ("1/h", 1, 60)]
)
def test_a_process_looks_where_its_jobs_wait(rate: str, owners: int, seconds: float) -> None:
    """With many processes each looks less often, but at least once a minute: nobody tells it of every change."""
    limit, room = TokenBucket("partner", rate, burst=1), Room[str]()
    unit = StoreClaim(bucket_name(limit.name, "", limit.fingerprint), limit.bind(1))
    room.hold("one", "item", unit, "e", 0)
    room.looked(unit, Look("e", owners=owners), 0)
    first = room.next_us()
    assert first is not None
    assert [look.ids for look in room.due(first)] == [("one",)]
    assert room.next_us() == first + seconds * 1e6


def test_a_woken_job_is_started(bench: Bench) -> None:
    """Once a thread is free. Who is woken here and is not known here leaves the list."""
    bench.free = 0
    bench.wait("one")
    bench.wake("one", "unknown")
    wait_until(lambda: bench.store.gone == ["unknown"], description="the unknown one leaves")
    assert bench.started == []
    bench.free = 1
    bench.waker.freed()
    wait_until(lambda: bench.started == ["one"], description="it is started")


def test_an_error_stops_neither_the_thread_nor_the_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A job that could not be started is tried again; so is a look that failed."""
    tries: list[str] = []

    def start(id: str, item: str) -> None:
        tries.append(item)
        if len(tries) == 1:
            raise ValueError("no")

    bench.start = start
    with caplog.at_level(logging.ERROR, "throttlekit"):
        bench.wait("one")
        bench.wake("one")
        wait_until(lambda: tries == ["one", "one"], description="it is tried again")
    assert "Job one could not be started" in caplog.text

    def fail() -> Look:
        bench.store.answer = lambda: Look("e", (Wake("two", 0),))
        raise KeyError("bad")

    bench.store.answer = fail
    bench.wait("two")
    bench.waker.missed()
    wait_until(lambda: tries[-1] == "two", description="the next look tells of its wake")


def test_a_second_copy_of_a_message_gives_the_first_one_back(bench: Bench) -> None:
    """The framework has both, and only one of them is held."""
    assert bench.wait("one", "first copy") == []
    assert bench.wait("one", "second copy") == ["first copy"]
    assert bench.waker.close() == ["second copy"]


def test_what_is_denied_after_the_end_is_given_back(bench: Bench) -> None:
    """Nobody would wake it any more."""
    bench.wait("one")
    assert bench.waker.close() == ["one"]
    assert bench.wait("two") == ["two"]
    assert bench.waker.close() == []


def test_the_process_says_again_that_a_thread_is_free(bench: Bench) -> None:
    """The store was told that none was, and wakes none of its jobs until it hears otherwise."""
    bench.free = 0
    bench.wait("one")
    bench.free = 1
    bench.waker.done("other")
    wait_until(lambda: bench.store.looks == [(1, ("one",))], description="it looks")


def test_no_thread_is_needed_to_close(bench: Bench) -> None:
    """A worker that ends before it began, or from within a job's start."""
    Waker(bench.store, "other", lambda: 1, lambda id, item: None).close()
    ended = threading.Event()

    def start(id: str, item: str) -> None:
        bench.waker.close()
        ended.set()

    bench.start = start
    bench.wait("one")
    bench.wake("one")
    assert ended.wait(10)

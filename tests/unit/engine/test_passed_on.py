"""Jobs that a process held and returned to their framework: what the process remembers of them, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from throttlekit import TokenBucket
from throttlekit._core.algorithm import Use
from throttlekit._core.answer import Answer, Kept, Look, Reason, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.waitlist import Wake
from throttlekit._engine import waker as engine
from throttlekit._engine.waker import Waker

LIMIT = TokenBucket("partner", "1/minute", burst=1)
UNIT = StoreClaim(bucket_name(LIMIT.name, "", LIMIT.fingerprint), LIMIT.bind(1))
DENIED = Answer(Reason.EXHAUSTED, 0, 0, 60_000_000, (Use(0, 0),), Kept(0, "e"), waited=Waited(0, 1, 0))
MINUTE_US = 60_000_000


class Store:
    """A store without wakes that records which ids were removed, and which keep only their positions."""

    def __init__(self) -> None:
        self.removed, self.kept = list[str](), list[str]()

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look:
        return Look("e")

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str, *, keep: bool = False) -> None:
        (self.kept if keep else self.removed).extend(ids)

    def listen(self, owner: str, on_wakes: Any, missed: Any) -> Callable[[], None]:
        return lambda: None


class Process:
    """A process with a clock of its own. It has no free thread, so it starts no job."""

    def __init__(self) -> None:
        self.now_us, self.store = 0, Store()
        self.waker: Waker[str] = Waker(self.store, lambda: 0, lambda id, item: None)

    def deny(self, id: str) -> None:
        self.waker.begin_request(id, [UNIT.bucket])
        self.waker.apply_answer(id, id, [UNIT], DENIED)

    def wake(self, id: str) -> None:
        self.waker.on_wakes(UNIT.bucket, [Wake(id, 0)])


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    process = Process()
    monkeypatch.setattr(engine, "_now_us", lambda: process.now_us)
    yield process
    process.waker.close()


def test_a_job_that_is_woken_on_its_way_back_keeps_its_position_and_nothing_else(process: Process) -> None:
    """A woken job whose message is on its way back to the queue keeps its position, but its units go to other jobs."""
    process.deny("other")
    process.deny("one")
    assert process.waker.pass_on("one") == "one"
    process.wake("one")
    assert (process.store.removed, process.store.kept) == ([], ["one"])


def test_a_job_that_another_process_has_taken_is_forgotten_after_a_minute(process: Process) -> None:
    """
    A minute after a job was returned, its wakes are unknown, and its entry is removed. Jobs that were returned later
    are remembered.
    """
    process.deny("other")
    process.deny("one")
    process.waker.pass_on("one")
    process.now_us = MINUTE_US
    process.deny("two")
    process.waker.pass_on("two")
    process.wake("one")
    process.wake("two")
    assert (process.store.removed, process.store.kept) == (["one"], ["two"])


def test_a_job_redelivered_to_the_same_process_is_not_forgotten(process: Process) -> None:
    """The job's minute starts again, and its denials add up."""
    process.deny("one")
    process.waker.pass_on("one")
    process.deny("one")
    process.now_us = MINUTE_US
    process.deny("two")
    process.waker.pass_on("two")
    assert process.waker.waited_of("one") == Waited(MINUTE_US, 1, 0)
    process.wake("one")
    assert process.store.removed == []


def test_a_process_that_passes_on_every_job_remembers_those_of_a_minute(process: Process) -> None:
    """
    After a process has returned 10 000 jobs, one every 30 ms, each of its tables has the 2 000 ids of the last minute.
    """
    for number in range(10_000):
        process.now_us += MINUTE_US // 2_000
        process.deny(str(number))
        process.waker.pass_on(str(number))
    here = process.waker._here
    assert len(here.passed_on) == len(here.waited) == 2_000
    assert not here.room._busy

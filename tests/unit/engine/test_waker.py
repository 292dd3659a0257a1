"""The thread that starts the jobs of its process as they are woken, with a store whose answers are set by the test."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from support.waiting import wait_until
from throttlekit import FixedWindow, TokenBucket
from throttlekit._core.algorithm import Use
from throttlekit._core.answer import Answer, Kept, Look, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.waitlist import LEAD_US, Wake
from throttlekit._engine.room import Room
from throttlekit._engine.waker import Waker
from throttlekit.errors import StoreUnavailable

LIMIT = TokenBucket("partner", "1/minute", burst=1)
UNIT = StoreClaim(bucket_name(LIMIT.name, "", LIMIT.fingerprint), LIMIT.bind(1))
OF_A_WINDOW = StoreClaim(UNIT.bucket, FixedWindow("window", "5/minute").bind(1))
DENIED = Answer(Reason.EXHAUSTED, 0, 0, 60_000_000, (Use(0, 0),), Kept(0, "e"), waited=Waited(0, 1, 0))
MINUTE_US = 60_000_000


class Store:
    """A store that answers looks with `answer`."""

    def __init__(self) -> None:
        self.looks, self.removed, self.kept = list[tuple[int, Sequence[str]]](), list[str](), list[str]()
        self.answer: Callable[[], Look] = lambda: Look("e")
        self.owner, self.listens, self.unlistened = "", False, list[str]()

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look:
        self.looks.append((free, ids))
        return self.answer()

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str, *, keep: bool = False) -> None:
        assert owner == self.owner, "the entries of other owners stay"
        (self.kept if keep else self.removed).extend(ids)

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        self.listens = True
        return lambda: self.unlistened.append(owner)


class Bench:
    def __init__(self) -> None:
        self.store, self.free, self.started, self.returned = Store(), 1, list[str](), list[str]()
        self.start: Callable[[str, str], Any] = lambda id, item: self.started.append(item)
        self.waker: Waker[str] = Waker(
            self.store, lambda: self.free, lambda id, item: self.start(id, item), give_back=self.returned.append
        )
        self.store.owner = self.waker.owner

    def decide(self, id: str) -> tuple[Requester, str]:
        return self.waker.begin_request(id, [UNIT.bucket])

    def wait(self, id: str, item: str = "", ends_in_us: int | None = None) -> None:
        self.decide(id)
        self.waker.apply_answer(id, item or id, [UNIT], DENIED, ends_in_us)

    def wake(self, *ids: str) -> None:
        self.waker.on_wakes(UNIT.bucket, [Wake(id, 0) for id in ids])


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.waker.close()


@pytest.fixture
def now_us(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of a process without a free thread; the test sets it."""
    bench.free, now_us = 0, [0]
    monkeypatch.setattr("throttlekit._engine.waker._now_us", lambda: now_us[0])
    return now_us


@pytest.mark.parametrize(
    ("rate", "owners", "seconds"), [("50/s", 1, 0.5), ("1/s", 10, 5), ("1/s", 100, 30), ("1/h", 1, 60)]
)
def test_a_process_looks_at_the_waitlists_of_its_jobs(rate: str, owners: int, seconds: float) -> None:
    """With many processes each polls less often, but at least once a minute: it is not notified of every change."""
    limit, room = TokenBucket("partner", rate, burst=1), Room[str]()
    unit = StoreClaim(bucket_name(limit.name, "", limit.fingerprint), limit.bind(1))
    room.hold("one", "item", unit, "e", 0)
    room.apply_look(unit, Look("e", owners=owners), 0)
    first = room.next_us()
    assert first is not None
    assert room.due(first) == [(unit, ("one",))]
    assert room.next_us() == first + seconds * 1e6


def test_looks_use_the_rate_of_the_last_request() -> None:
    """Jobs wait at 1/minute, and then the limit is raised. A request at the new rate changes looks, even if granted."""
    room, faster = Room[str](), StoreClaim(UNIT.bucket, TokenBucket("partner", "100/s", burst=1).bind(1))
    for id in ("one", "two"):
        room.hold(id, id, UNIT, "e", 0)
    answer = Answer(Reason.ALLOWED, 0, 0, 0, (Use(0, 0),), looks=((0, 10_000),))
    assert room.apply_answer([faster], answer, 0) == []
    assert room.due(10_000) == [(faster, ("one", "two"))]


def test_an_answer_sends_no_request_in_the_thread_of_its_caller(bench: Bench) -> None:
    """The caller may be an event loop. If the answer wakes an unknown job, the waker's thread removes the job."""
    threads, forget = set[threading.Thread](), bench.store.forget

    def answer() -> Look:
        threads.add(threading.current_thread())
        return Look("e", (Wake("unknown", 0),))

    def remove(*given: Any, **options: Any) -> None:
        threads.add(threading.current_thread())
        forget(*given, **options)

    bench.store.answer, bench.store.forget = answer, remove  # type: ignore[method-assign]
    bench.decide("one")
    bench.waker.apply_answer("one", "one", [UNIT], DENIED._replace(wakes=((0, Wake("unknown", 0)),)))
    wait_until(lambda: bench.store.removed == ["unknown"], description="the unknown one is removed")
    assert threading.current_thread() not in threads
    bench.store.looks.clear()
    bench.waker.pass_on("one", at_once=True)
    bench.waker.apply_answer("one", "one", [UNIT], DENIED)
    wait_until(lambda: bench.store.looks == [(1, ("one",))], description="a look names the job that was returned")
    assert threading.current_thread() not in threads


def test_the_first_job_of_each_waitlist_requests_after_a_rule_change() -> None:
    """
    After a rule change the first job requests, because a poll uses the declared limit: only a request shows the store
    the current rate.
    """
    room = Room[str]()
    for id in ("one", "two"):
        room.hold(id, id, UNIT, "e", 0)
    assert room.take_ready(1) is None
    room.request_first(1, ())
    ready = room.take_ready(1)
    assert ready is not None
    assert ready[:2] == ("one", "one")
    assert room.take_ready(1) is None


@pytest.mark.parametrize("epoch", ["", "another"])
def test_all_jobs_request_again_after_their_waitlist_was_lost(epoch: str) -> None:
    """If the store has lost its state, all jobs request again at once, although a poll names only eight of them."""
    room, ids = Room[str](), [str(number) for number in range(20)]
    for id in ids:
        room.hold(id, id, UNIT, "e", 0)
    room.apply_look(UNIT, Look(epoch, again=tuple(ids[:8])), 1)
    ready = [room.take_ready(1) for _ in ids]
    assert [None if each is None else each[0] for each in ready] == ids


@pytest.mark.parametrize(
    ("unit", "ahead_us", "at_us"),
    [(UNIT, 2_000, 8_000), (UNIT, 5_000, 5_000), (OF_A_WINDOW, 2_000, 10_000), (OF_A_WINDOW, 5_000, 7_000)],
)
def test_a_job_is_started_early(unit: StoreClaim, ahead_us: int, at_us: int) -> None:
    """A job is started earlier by the time that its request takes; less so for a window, which grants nothing early."""
    room = Room[str](ahead_us)
    room.hold("one", "one", unit, "e", 0)
    room.apply_wakes([Wake("one", 10_000)], 0)
    assert room.take_ready(at_us - 1) is None
    assert room.take_ready(at_us) is not None


def test_a_relayed_job_is_started_as_soon_as_it_is_woken() -> None:
    """It takes a while until the other process makes the request. A window grants nothing early."""
    room = Room[str](5_000, LEAD_US)
    room.hold("bucket", "bucket", UNIT, "e", 0)
    room.hold("window", "window", OF_A_WINDOW, "e", 0)
    room.hold("both", "both", UNIT, "e", 0, None, [UNIT, OF_A_WINDOW])
    room.apply_wakes([Wake(id, LEAD_US) for id in ("bucket", "window", "both")], 0)
    times_us = [0, LEAD_US - 3_001, LEAD_US - 3_000, LEAD_US - 3_000]
    ready = [room.take_ready(at_us) for at_us in times_us]
    assert [each and each[0] for each in ready] == ["bucket", None, "window", "both"]


def test_jobs_that_have_ended_are_not_kept_in_memory() -> None:
    """A job that waits for long does not keep those that ended before it, although each had a longest wait."""
    room, ended = Room[object](), object()
    room.hold("long", "long", UNIT, "e", 0, 1_000)
    references = sys.getrefcount(ended)
    for number in range(1_000):
        room.hold(str(number), ended, UNIT, "e", 0, 60_000_000)
        room.release(str(number))
    assert sys.getrefcount(ended) < references + 200
    assert room.take_ready(1_000) is not None


def test_a_thread_that_cannot_start_is_started_with_the_next_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example at a limit on processes. Jobs that wait meanwhile are held, and started afterwards."""
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _cannot_start)
        with pytest.raises(RuntimeError):
            bench.wait("one")
    bench.wait("two")
    bench.wake("one")
    wait_until(lambda: "one" in bench.started, description="the job is started")


def _cannot_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_job_that_no_longer_exists_leaves_its_waitlist(bench: Bench) -> None:
    """A job that no longer exists leaves its waitlist, even if it was the only one of this process."""
    bench.start = lambda *_: False
    bench.wait("one")
    bench.wake("one")
    wait_until(lambda: bench.store.removed == ["one"], description="the job is removed")
    assert len(bench.waker) == 0


@pytest.mark.parametrize("roams", [False, True])
def test_a_job_that_any_process_may_take_is_kept_whoever_owns_it(roams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a rule delays is kept, although its process knows neither its owner nor its waitlist."""
    store, kept = Store(), list[tuple[str, bool]]()
    monkeypatch.setattr(store, "forget", lambda claims, ids, owner, *, keep: kept.append((owner, keep)))
    waker: Waker[str] = Waker(store, lambda: 1, lambda *_: None, roams=roams)
    waker.hold("one", "one", 60_000_000, claims=[UNIT], stops=UNIT.bucket)
    waker.close()
    assert kept == ([("", True)] if roams else [])


def test_a_woken_job_is_started(bench: Bench) -> None:
    """A woken job is started once a thread is free. An unknown id that is woken leaves the waitlist."""
    bench.free = 0
    bench.wait("one")
    bench.wake("one", "unknown")
    wait_until(lambda: bench.store.removed == ["unknown"], description="the unknown one is removed")
    assert bench.started == []
    bench.free = 1
    bench.waker.report_free()
    wait_until(lambda: bench.started == ["one"], description="the job is started")


def test_an_error_stops_neither_the_thread_nor_the_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A job that could not be started is retried; so is a look that failed."""
    tries: list[str] = []

    def start(id: str, item: str) -> None:
        tries.append(item)
        if len(tries) == 1:
            raise ValueError("no")

    bench.start = start
    with caplog.at_level(logging.ERROR, "throttlekit"):
        bench.wait("one")
        bench.wake("one")
        wait_until(lambda: tries == ["one", "one"], description="the start is retried")
    assert "Job one could not be started" in caplog.text

    def fail() -> Look:
        bench.store.answer = lambda: Look("e", (Wake("two", 0),))
        raise KeyError("bad")

    bench.store.answer = fail
    bench.wait("two")
    bench.waker.on_missed()
    wait_until(lambda: tries[-1] == "two", description="the next look returns its wake")


def test_a_second_copy_of_a_message_returns_the_first_one(bench: Bench) -> None:
    """If the framework has two copies of a message, the waker holds the second and returns the first."""
    bench.wait("one", "first copy")
    assert bench.returned == []
    bench.wait("one", "second copy")
    assert bench.returned == ["first copy"]
    assert bench.waker.close() == ["second copy"]


def test_a_second_copy_on_no_waitlist_returns_the_first_one(bench: Bench) -> None:
    """
    The first copy is also returned if the second one is on no waitlist: the store was unavailable, or it could not be
    started.
    """
    bench.wait("one", "first copy")
    bench.wait("other")
    bench.waker.hold("one", "second copy", 1_000)
    assert bench.returned == ["first copy"]
    wait_until(lambda: bench.started == ["second copy"], description="the job is started")
    bench.waker.on_missed()
    wait_until(lambda: bench.store.looks[-1:] == [(1, ("other",))], description="the job is on no waitlist")

    def start(id: str, item: str) -> None:
        bench.wait("two", "fourth copy")
        raise ValueError("no")

    bench.start = start
    bench.wait("two", "third copy")
    bench.wake("two")
    wait_until(lambda: bench.returned == ["first copy", "fourth copy"], description="one of them is held")
    assert bench.waker.close() == ["other", "third copy"]


def test_a_job_denied_after_closing_is_returned(bench: Bench) -> None:
    """A job that is denied after the waker was closed is returned, because no thread would wake it."""
    bench.wait("one")
    assert bench.waker.close() == ["one"]
    assert bench.store.unlistened == [bench.waker.owner]
    bench.wait("two")
    bench.waker.hold("three", "three", 1_000)
    assert bench.returned == ["two", "three"]
    assert bench.waker.close() == []


def test_listening_is_retried_if_the_store_is_unavailable_at_first(bench: Bench) -> None:
    """The store of a cluster first looks up its nodes. Until it can listen, jobs that wait for a delay are started."""
    listen, fails = bench.store.listen, [True]

    def fail(*given: Any) -> Callable[[], None]:
        if fails:
            fails.clear()
            raise StoreUnavailable("away")
        return listen(*given)

    bench.store.listen = fail  # type: ignore[method-assign]
    bench.waker.hold("one", "one", 1_000)
    wait_until(lambda: bench.started == ["one"], description="the job is started")
    wait_until(lambda: bench.store.listens, description="the waker listens")


def test_a_job_on_no_waitlist_is_started_after_its_delay(bench: Bench) -> None:
    """A job that an operator's pause or an unavailable store delays is started after its delay."""
    bench.waker.hold("one", "one", 1_000, Waited(2_000_000, 3, 0))
    wait_until(lambda: bench.started == ["one"], description="the job is started")
    requester, _ = bench.decide("one")
    assert (requester.waited.for_us >= 2_000_000, requester.waited.denials) == (True, 3)


def test_a_job_past_its_max_wait_is_started_without_a_wake(bench: Bench) -> None:
    """A job whose `max_wait` is over is started, and the reply to its request says that its time is over."""
    bench.wait("one", ends_in_us=1_000)
    wait_until(lambda: bench.started == ["one"], description="the job is started")


def test_a_request_without_an_answer_is_repeated_as_the_same_attempt(bench: Bench) -> None:
    """
    A request without a reply is repeated as the same attempt, because the store may have granted it. The process also
    polls: the reply may have contained wakes of its other jobs.
    """
    bench.wait("other")
    _, attempt = bench.decide("one")
    bench.waker.record_no_answer("one", [UNIT], attempt)
    wait_until(lambda: bench.store.looks == [(1, ("other",))], description="the waker looks")
    assert bench.decide("one")[1] == attempt
    assert bench.decide("one")[1] != attempt, "the first one was answered"


def test_a_job_that_no_longer_waits_leaves_the_store(bench: Bench) -> None:
    """A revoked job, or one whose caller gave up, is no longer held, and a wake for it goes to another job."""
    bench.wait("one")
    bench.wait("other")
    assert bench.waker.leave("one", [UNIT]) == "one"
    assert bench.store.removed == ["one"]
    bench.wake("one")
    wait_until(lambda: bench.store.removed == ["one", "one"], description="its wake is passed on")
    assert bench.waker.close() == ["other"]


def test_the_process_reports_again_that_a_thread_is_free(bench: Bench) -> None:
    """Without a free thread the store wakes none of its jobs, until the process reports one."""
    bench.free = 0
    bench.wait("one")
    bench.free = 1
    bench.waker.done("other")
    wait_until(lambda: bench.store.looks == [(1, ("one",))], description="the waker looks")


# Jobs that the process returned to their framework


def test_a_job_that_is_woken_on_its_way_back_keeps_its_position_and_nothing_else(
    bench: Bench, now_us: list[int]
) -> None:
    """A woken job whose message is on its way back to the queue keeps its position, but its units go to other jobs."""
    bench.wait("other")
    bench.wait("one")
    assert bench.waker.pass_on("one") == "one"
    bench.wake("one")
    wait_until(lambda: bench.store.kept == ["one"], description="the job keeps its position")
    assert bench.store.removed == []


def test_a_job_that_another_process_has_taken_is_forgotten_after_a_minute(bench: Bench, now_us: list[int]) -> None:
    """A minute after a job was returned, a wake removes its entry. Jobs that were returned later are remembered."""
    bench.wait("other")
    bench.wait("one")
    bench.waker.pass_on("one")
    now_us[0] = MINUTE_US
    bench.wait("two")
    bench.waker.pass_on("two")
    bench.wake("one")
    bench.wake("two")
    wait_until(lambda: bench.store.kept == ["two"], description="the second job keeps its position")
    assert bench.store.removed == ["one"]


def test_a_job_redelivered_to_the_same_process_is_not_forgotten(bench: Bench, now_us: list[int]) -> None:
    """The job's minute starts again, and its denials add up."""
    bench.wait("one")
    bench.waker.pass_on("one")
    bench.wait("one")
    now_us[0] = MINUTE_US
    bench.wait("two")
    bench.waker.pass_on("two")
    assert bench.waker.waited_of("one") == Waited(MINUTE_US, 1, 0)
    bench.wake("one", "unknown")
    wait_until(lambda: bench.store.removed == ["unknown"], description="only the unknown one is removed")


def test_a_process_that_passes_on_every_job_remembers_those_of_a_minute(bench: Bench, now_us: list[int]) -> None:
    """After 10 000 jobs were returned, one every 30 ms, each table has the 2 000 ids of the last minute."""
    for number in range(10_000):
        now_us[0] += MINUTE_US // 2_000
        bench.wait(str(number))
        bench.waker.pass_on(str(number))
    here = bench.waker._here
    assert len(here.passed_on) == len(here.waited) == 2_000
    assert not here.room._busy

"""A job requests in one process, and is woken by another: its request, and the notes that it sends."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, FixedWindow, Job, Limiter, TokenBucket
from throttlekit._core.answer import Caller
from throttlekit._core.waitlist import LEAD_US, State
from throttlekit._engine.call import Call, Delivery
from throttlekit._wiring import wiring_of
from throttlekit.adapter import Relay, Waiting, Waker, read_note

RATE = TokenBucket("rate", "100/s", burst=1)
HOURLY = FixedWindow("hourly", "1/hour")
SLOT = Concurrency("slot", 1, lease=60)


class TwoProcesses:
    """A process that wakes jobs, and jobs that request elsewhere. Their notes are sent as JSON."""

    def __init__(self, url: str) -> None:
        self.here, self.there = Limiter(url), Limiter(url)
        self.started: list[str] = []
        self.waker: Waker[str] = self.here.make_waker(
            lambda: 8, lambda id, _: self.started.append(id), roams=True, relays=True
        )
        self.waker.begin()
        self.relays: dict[str, Relay] = {}

    def decide(self, id: str, *limits: Any, **delivery: Any) -> Any:
        relay = self.relays[id] = self.there.make_relay(self.waker.owner, 8, self._note)
        wait = Delivery(waits=Waiting(relay, None, id), **delivery)
        return self.there.acquire(*limits, job=Job(id=id), delivery=wait)

    def keep(self, id: str) -> None:
        """Pass the note of a job to the waker, which may start the job from now on."""
        note = self.relays[id].kept
        assert note is not None
        read_note(self.waker, json.loads(json.dumps(note)), id)

    def _note(self, note: dict[str, Any]) -> None:
        read_note(self.waker, json.loads(json.dumps(note)), None)

    def state_of(self, id: str, limit: Any) -> State | None:
        claims = [each.claim for each in self.there.claims(Call((limit,), Job(id=id)))]
        found = wiring_of(self.there).stores.where(claims, id)
        return None if found is None else found.state

    def close(self) -> None:
        self.waker.close()
        self.here.close()
        self.there.close()


@pytest.fixture
def processes(redis_url: str) -> Any:
    made = TwoProcesses(redis_url)
    yield made
    made.close()


def test_a_note_has_the_fields_of_its_version(processes: TwoProcesses) -> None:
    """A waker of the same version reads where the job waits: the claim and the epoch, and not the position."""
    processes.there.acquire(SLOT)
    for id in "ab":
        processes.decide(id, SLOT)
        note = processes.relays[id].kept
        assert note is not None
        assert (note["v"], note["kept"][0], len(note["kept"])) == (1, 0, 2)


def test_a_woken_job_is_granted_by_its_first_request(processes: TwoProcesses) -> None:
    """The waker starts a job before its unit is free. The store grants the unit, and the job's process waits for it."""
    slow = TokenBucket("slow", "2/s", burst=1)
    began = time.time()
    first = processes.decide("first", slow)
    for id in "ab":
        processes.decide(id, slow)
        processes.keep(id)
    for number, id in enumerate("ab", start=1):
        wait_until(lambda: processes.started[-1:] == [id], description="the job is started", every=0.001)  # noqa: B023
        decision = processes.decide(id, slow)
        assert decision.allowed
        assert time.time() >= began + 0.5 * number - 0.005, "the body begins when its unit is free"
    assert first.allowed


@pytest.mark.parametrize("limits", [[SLOT], [SLOT, RATE], [RATE, SLOT]])
def test_a_released_slot_wakes_the_jobs_in_their_order(processes: TwoProcesses, limits: list[Any]) -> None:
    """A release wakes the first job in its relay's waker, and the next release wakes the second."""
    held = processes.there.acquire(SLOT)
    for id in "ab":
        assert not processes.decide(id, *limits).allowed
        processes.keep(id)
    processes.there.release(held)
    wait_until(lambda: processes.started, description="the first job is started")
    assert processes.started == ["a"]
    granted = processes.decide("a", *limits)
    assert granted.allowed
    processes.there.release(granted)
    wait_until(lambda: len(processes.started) > 1, description="the second job is started")
    assert processes.started == ["a", "b"]


def test_a_job_that_is_woken_before_its_note_arrives_keeps_its_position(processes: TwoProcesses) -> None:
    """If a wake arrives before its job's note, the next job is woken. With the note, the job is ahead of later ones."""
    held = processes.there.acquire(SLOT)
    for id in "ab":
        assert not processes.decide(id, SLOT).allowed
    processes.keep("b")
    for n in range(20):  # more than one look returns
        assert not processes.decide(f"later {n}", SLOT).allowed
        processes.keep(f"later {n}")
    processes.there.release(held)
    wait_until(lambda: processes.started == ["b"], description="the second job is started")
    granted = processes.decide("b", SLOT)
    assert granted.allowed
    assert not processes.decide("c", SLOT).allowed
    processes.keep("c")
    processes.keep("a")
    wait_until(lambda: processes.state_of("a", SLOT) is State.WAITING, description="the first job is waiting again")
    processes.there.release(granted)
    wait_until(lambda: len(processes.started) > 1, description="another job is started")
    assert processes.started == ["b", "a"]


def test_a_job_whose_wait_ends_leaves_its_lists(processes: TwoProcesses) -> None:
    """A job whose `max_wait` is over leaves its waitlists, so that no job waits for it."""
    processes.there.acquire(HOURLY)
    assert not processes.decide("a", HOURLY, max_wait=0.0).allowed
    assert processes.relays["a"].kept is None
    assert processes.there.peek(HOURLY).reason == "exhausted"
    assert processes.state_of("a", HOURLY) is None


def test_a_job_that_is_held_elsewhere_is_in_no_note(processes: TwoProcesses) -> None:
    """A job that is on no list of the store is redelivered by its framework."""
    processes.there.acquire(HOURLY)
    assert not processes.decide("a", HOURLY).allowed
    assert processes.relays["a"].kept is not None
    processes.relays["a"].hold("a", None, 1000)
    assert processes.relays["a"].kept is None


def test_relay_requests_with_the_owner_of_the_waker(processes: TwoProcesses) -> None:
    """
    A relay sends requests with the waker's owner and free threads, and with the job's `max_wait`. They may be granted
    as early as the waker starts the job.
    """
    relay = processes.there.make_relay("owner", 3, list[Any]().append)
    requester, attempt = relay.begin_request("a", ["bucket"], Caller.JOB, lambda _: 5)
    assert (requester.job, requester.owner, requester.free, requester.max_wait_us) == ("a", "owner", 3, 5)
    assert requester.early_us == LEAD_US
    assert attempt


GOOD = {"v": 1, "id": "a", "units": [["b", "t", 1, [1, 2, 3], 4, False]], "kept": [0, "e"], "wakes": [], "looks": []}


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"units": [["b", "t"]]},
        {"kept": [1, "e"]},
        {"kept": "x"},
        {"wakes": [[5, "a", 0]]},
        {"looks": [[1, 0]]},
        {"looks": 3},
        {"units": [["b", "t", 1, [1, 2], 4, False]]},
    ],
)
def test_a_note_that_no_relay_wrote_is_an_error(processes: TwoProcesses, change: dict[str, Any]) -> None:
    """The error for a note of another format names the reason, and the waker does not change."""
    with pytest.raises(ConfigurationError, match="note to the waker"):
        read_note(processes.waker, {**GOOD, **change}, "a")
    assert len(processes.waker) == 0

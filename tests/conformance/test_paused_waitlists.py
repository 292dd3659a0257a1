"""Waiting jobs that an operator's rule holds back: they keep their order, request rarely, and stop no other job."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from support.servers.processes import patient
from support.waiting import wait_until
from support.waitlists import ask
from throttlekit import Control, Job, Limit, Limiter, TokenBucket
from throttlekit._core.claim import StoreClaim
from throttlekit._core.wait_control import Where
from throttlekit._core.waitlist import State
from throttlekit._engine.call import Call
from throttlekit._wiring import wiring_of

RATE = TokenBucket("rate", "20/s", burst=1)
OTHER = TokenBucket("other", "1000/s", burst=100)


class Worker:
    """
    A process with one thread, whose jobs wait on waitlists.

    Attributes:
        requests: When each job made a request, and the reason of its decision.
        ran: The jobs that ran, in order.
    """

    def __init__(self, url: str) -> None:
        self.limiter = Limiter(patient(url))
        self.waker = self.limiter.make_waker(lambda: 10, self._start)
        self.limits: dict[str, tuple[Limit, ...]] = {}
        self.requests: dict[str, list[tuple[float, str]]] = {}
        self.ran: list[str] = []
        self._lock = threading.Lock()
        self._woken: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._woken.put(None)
        self._thread.join()
        self.waker.close()
        self.limiter.close()

    def send(self, id: str, *limits: Limit) -> None:
        self.limits[id] = limits
        self.decide(id)

    def decide(self, id: str) -> None:
        decision = ask(self.limiter, self.waker, *self.limits[id], job=Job(id=id))
        with self._lock:
            self.requests.setdefault(id, []).append((time.monotonic(), decision.reason))
            if decision.allowed:
                self.ran.append(id)
        if decision.allowed:
            self.waker.done(id)

    def _start(self, id: str, _: str) -> None:
        self._woken.put(id)

    def _run(self) -> None:
        while (id := self._woken.get()) is not None:
            self.decide(id)

    def paused_requests(self) -> dict[str, list[float]]:
        """Return when each job that the pause held back made its requests."""
        with self._lock:
            return {
                id: times
                for id, requests in self.requests.items()
                if (times := [at for at, reason in requests if reason == "paused"])
            }

    def claim(self, limit: Limit) -> StoreClaim:
        return self.limiter.claims(Call([limit], Job(id="any")))[0].claim

    def where(self, id: str, limit: Limit) -> Where | None:
        return wiring_of(self.limiter).stores.shared.where([self.claim(limit)], id)


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    with contextlib.closing(Worker(redis_url)) as worker:
        yield worker


def test_jobs_of_a_paused_limit_stay_on_its_waitlist_in_order(worker: Worker, control: Control) -> None:
    """A few jobs check from time to time whether the pause is over; the store wakes no other job until then."""
    jobs = [f"job-{number:02}" for number in range(40)]
    for id in jobs:
        worker.send(id, RATE)
    control.pause(RATE)
    wait_until(
        lambda: any(len(times) >= 6 for times in worker.paused_requests().values()),
        description="a job has requested again 5 times",
    )
    held = worker.paused_requests()
    assert len(held) <= 5, "the store wakes a quarter of a second of the rate"
    assert max(map(len, held.values())) <= 8, "the jobs request together, from time to time"
    before = len(worker.ran)
    control.resume(RATE)
    wait_until(lambda: len(worker.ran) == len(jobs), description="all jobs ran")
    assert set(worker.ran[before : before + len(held)]) == {*jobs[before : before + len(held)]}, (
        "the jobs that polled run first"
    )
    assert worker.ran[before + len(held) :] == jobs[before + len(held) :]


def test_a_job_held_back_by_a_pause_stops_no_job_of_another_limit(worker: Worker, control: Control) -> None:
    """A job of a paused limit keeps its position for its other limit, whose jobs are admitted without it."""
    for number in range(10):
        worker.send(f"both-{number}", RATE, OTHER)
    control.pause(OTHER)
    worker.limiter.fleet.follower.follow()  # type: ignore[union-attr]
    for number in range(10):
        worker.send(f"rate-{number}", RATE)
    wait_until(lambda: {f"rate-{number}" for number in range(10)} <= {*worker.ran}, description="the others ran")
    held = [id for id in worker.limits if id not in worker.ran]
    assert held, "some jobs were held back"
    found = wait_until(
        lambda: [each for each in [[worker.where(id, RATE) for id in held]] if all(each)],
        description="all have requested",
    )[0]
    assert {each.state for each in found if each is not None} == {State.KEPT}
    control.resume(OTHER)
    wait_until(lambda: len(worker.ran) == 20, description="all ran")


def test_a_job_admitted_by_shadow_mode_leaves_the_waitlist(worker: Worker, control: Control) -> None:
    """A job that waited for a limit leaves the waitlist when shadow mode admits it."""
    for number in range(3):
        worker.send(f"job-{number}", RATE)
    control.shadow(RATE)
    wait_until(lambda: len(worker.ran) == 3, description="all ran")
    wait_until(
        lambda: all(worker.where(f"job-{number}", RATE) is None for number in range(3)), description="no job waits"
    )


def test_a_job_held_back_by_a_pause_ends_at_its_max_wait(redis_url: str, control: Control) -> None:
    """A job ends at its `max_wait`, although its next request in the pause would be later."""
    control.pause(RATE, duration=3600)
    reasons: list[str] = []
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:

        def request(id: str, _: str) -> None:
            reasons.append(ask(limiter, waker, RATE, job=Job(id=id), max_wait=0.5).reason)

        waker = limiter.make_waker(lambda: 10, request)
        with contextlib.closing(waker):
            request("job", "")
            wait_until(lambda: reasons == ["paused", "waited too long"], description="the job has waited too long")

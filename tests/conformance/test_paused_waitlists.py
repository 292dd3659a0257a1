"""Jobs on waitlists that an operator's rule holds back: they keep their order, ask rarely, and stop no others."""

from __future__ import annotations

import contextlib
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
    A process whose jobs wait on waitlists.

    Attributes:
        asks: When each job asked, and the reason of its answer.
        ran: The jobs that ran, in order.
    """

    def __init__(self, url: str) -> None:
        self.limiter = Limiter(patient(url))
        self.waker = self.limiter.make_waker(lambda: 10, self._start)
        self.limits: dict[str, tuple[Limit, ...]] = {}
        self.asks: dict[str, list[tuple[float, str]]] = {}
        self.ran: list[str] = []
        self._lock = threading.Lock()

    def send(self, id: str, *limits: Limit) -> None:
        self.limits[id] = limits
        self.decide(id)

    def decide(self, id: str) -> None:
        decision = ask(self.limiter, self.waker, *self.limits[id], job=Job(id=id))
        with self._lock:
            self.asks.setdefault(id, []).append((time.monotonic(), decision.reason))
            if decision.allowed:
                self.ran.append(id)
        if decision.allowed:
            self.waker.done(id)

    def _start(self, id: str, _: str) -> None:
        threading.Thread(target=self.decide, args=[id]).start()

    def paused(self) -> dict[str, list[float]]:
        """When the jobs asked that a pause held back."""
        with self._lock:
            return {
                id: times
                for id, asks in self.asks.items()
                if (times := [at for at, reason in asks if reason == "paused"])
            }

    def claim(self, limit: Limit) -> StoreClaim:
        return self.limiter.claims(Call([limit], Job(id="any")))[0].claim

    def where(self, id: str, limit: Limit) -> Where | None:
        return wiring_of(self.limiter).stores.shared.where([self.claim(limit)], id)


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    worker = Worker(redis_url)
    yield worker
    worker.waker.close()
    worker.limiter.close()


@pytest.fixture
def control(redis_url: str) -> Iterator[Control]:
    with Control(patient(redis_url), by="ann") as control:
        yield control


def test_jobs_of_a_paused_limit_stay_on_its_waitlist_in_order(worker: Worker, control: Control) -> None:
    """One job or a few ask from time to time whether the pause is over; the store wakes no others meanwhile."""
    jobs = [f"job-{number:02}" for number in range(40)]
    for id in jobs:
        worker.send(id, RATE)
    control.pause(RATE)
    wait_until(
        lambda: any(len(times) >= 6 for times in worker.paused().values()), description="a job has asked again 5 times"
    )
    held = worker.paused()
    assert len(held) <= 5, "the store wakes a quarter of a second of the rate"
    assert max(map(len, held.values())) <= 8, "they ask together, once in a while"
    before = len(worker.ran)
    control.resume(RATE)
    wait_until(lambda: len(worker.ran) == len(jobs), description="all jobs ran")
    assert set(worker.ran[before : before + len(held)]) == {*jobs[before : before + len(held)]}, "those that polled"
    assert worker.ran[before + len(held) :] == jobs[before + len(held) :]


def test_a_job_that_a_pause_holds_back_stops_no_job_of_another_limit(worker: Worker, control: Control) -> None:
    """It leaves the order of the limit that is not paused, and keeps its position there."""
    for number in range(10):
        worker.send(f"both-{number}", RATE, OTHER)
    control.pause(OTHER)
    worker.limiter.fleet.follow()  # type: ignore[union-attr]
    for number in range(10):
        worker.send(f"rate-{number}", RATE)
    wait_until(lambda: {f"rate-{number}" for number in range(10)} <= {*worker.ran}, description="the others ran")
    held = [id for id in worker.limits if id not in worker.ran]
    assert held, "some were held back"
    found = wait_until(
        lambda: [each for each in [[worker.where(id, RATE) for id in held]] if all(each)], description="all have asked"
    )[0]
    assert {each.state for each in found if each is not None} == {State.KEPT}
    control.resume(OTHER)
    wait_until(lambda: len(worker.ran) == 20, description="all ran")


def test_a_job_that_passes_by_shadow_mode_leaves_the_waitlist(worker: Worker, control: Control) -> None:
    """It waited for a limit that denies nobody any more."""
    for number in range(3):
        worker.send(f"job-{number}", RATE)
    control.shadow(RATE)
    wait_until(lambda: len(worker.ran) == 3, description="all ran")
    wait_until(
        lambda: all(worker.where(f"job-{number}", RATE) is None for number in range(3)), description="nobody waits"
    )


def test_a_job_that_a_pause_holds_back_ends_when_it_has_waited_too_long(redis_url: str, control: Control) -> None:
    """Though its next question about the pause would be later."""
    control.pause(RATE, duration=3600)
    reasons: list[str] = []
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:

        def asks(id: str, _: str) -> None:
            reasons.append(ask(limiter, waker, RATE, job=Job(id=id), max_wait=0.5).reason)

        waker = limiter.make_waker(lambda: 10, asks)
        with contextlib.closing(waker):
            asks("job", "")
            wait_until(lambda: reasons == ["paused", "waited too long"], description="it has waited too long")

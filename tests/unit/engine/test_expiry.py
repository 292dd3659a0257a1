"""`Delivery.expires_in`: a job that the framework ends before its turn takes nothing from other jobs."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from itertools import count
from unittest.mock import Mock

import pytest

from support.servers.away import Away
from throttlekit import Delivery, Job, Limiter, TokenBucket
from throttlekit._core.answer import Caller, Requester, Waited
from throttlekit._engine.call import PLAIN_DELIVERY, Waiting
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

SLOW = TokenBucket("slow", "1/minute", burst=1)
JOB, OTHER = Job(id="a"), Job(id="b")
IN_TIME = 59.95
"""The delay to the next unit, minus the 0.05 s by which a job may be redelivered late."""


@pytest.mark.parametrize(
    ("delivery", "ends_in_us"),
    [
        (Delivery(), None),
        (Delivery(expires_in=3), 3_010_000),
        (Delivery(expires_in=3, max_wait=2), 2_010_000),
        (Delivery(expires_in=3, max_wait=4), 3_010_000),
        (Delivery(expires_in=math.inf, max_wait=4), 4_010_000),
        (Delivery(expires_in=-7), 0),
    ],
)
def test_a_wait_ends_right_after_the_expiry(delivery: Delivery, ends_in_us: int | None) -> None:
    """A job waits no longer than its max_wait, and no longer than its framework keeps it."""
    assert delivery.ends_in_us(0) == ends_in_us


def test_time_before_the_expiry_is_counted_from_now() -> None:
    """An expiry counts from now, unlike max_wait, which counts from the first denial."""
    assert Delivery(expires_in=3, max_wait=10).ends_in_us(4_000_000) == 3_010_000
    assert Delivery(expires_in=3, max_wait=5).ends_in_us(4_000_000) == 1_010_000


def test_job_that_expires_before_its_slot_takes_none(limiter: Limiter) -> None:
    """
    A job that expires before its turn takes no unit: the next job gets it. The job is redelivered as it expires, with
    its reason and not as final.
    """
    limiter.acquire(SLOW)
    denied = limiter.acquire(SLOW, job=JOB, delivery=Delivery(expires_in=59))
    assert (denied.delay, denied.reason, denied.final) == (59.01, "exhausted", False)
    assert limiter.acquire(SLOW, job=OTHER).delay == IN_TIME


def test_job_that_may_be_redelivered_after_its_expiry_takes_no_slot(limiter: Limiter) -> None:
    """A job takes no slot if its framework may deliver it after its expiry, although its retry time is earlier."""
    limiter.acquire(SLOW)
    assert limiter.acquire(SLOW, job=JOB, delivery=Delivery(expires_in=60, lateness=0.5)).delay == 60.01
    assert limiter.acquire(SLOW, job=OTHER).delay == IN_TIME


@pytest.mark.parametrize(
    ("delivery", "delay"),
    [
        (Delivery(expires_in=59, longest=25), 25.0),
        (Delivery(expires_in=59, max_wait=40), 40.0),
        (Delivery(expires_in=-3), 0.01),
    ],
)
def test_other_bounds_of_the_delay_hold(limiter: Limiter, delivery: Delivery, delay: float) -> None:
    """The delay of a job with an expiry is limited by the framework's longest delay, and by its max_wait."""
    limiter.acquire(SLOW)
    assert limiter.acquire(SLOW, job=JOB, delivery=delivery).delay == delay


def test_expiry_does_not_count_as_waited_too_long(limiter: Limiter, clock: FakeClock) -> None:
    """A job that requests at or after its expiry is denied as usual: the framework ends it."""
    limiter.acquire(SLOW)
    limiter.acquire(SLOW, job=JOB, delivery=Delivery(expires_in=5))
    clock.advance(5)
    again = limiter.acquire(SLOW, job=JOB, delivery=Delivery(expires_in=0))
    assert (again.reason, again.final, again.delay) == ("exhausted", False, 0.01)


@dataclass
class Traffic:
    """Jobs at an even rate, most of which expire, against one limit. The clock is simulated."""

    limit: TokenBucket
    per_second: int
    expires_in: float
    expiring: int
    """How many of ten jobs expire."""
    delivery: Delivery = PLAIN_DELIVERY
    tick: float | None = None
    """Jobs are redelivered this long after the whole second that follows their retry time. None: at that time."""
    ran: list[float] = field(default_factory=list[float])
    waits: list[float] = field(default_factory=list[float])

    def run(self, seconds: int) -> None:
        clock = FakeClock()
        limiter, began, number = Limiter(MemoryStore(clock_us=clock)), clock(), count()
        events: list[tuple[float, int, float, bool, str]] = []
        for i in range(self.per_second * seconds):
            born = i / self.per_second
            events.append((born, next(number), born, i % 10 < self.expiring, str(i)))
        while events and events[0][0] < seconds:
            now, _, born, expires, id = heapq.heappop(events)
            clock.advance((began - clock()) / 1_000_000 + now)
            left = self.expires_in - (now - born) if expires else math.inf
            if left <= 0:
                continue  # the framework ends the job
            delivery = replace(self.delivery, expires_in=left)
            decision = limiter.acquire(self.limit, job=Job(id=id), delivery=delivery)
            if decision.allowed:
                self.ran.append(now)
                self.waits.append(0 if expires else now - born)
            else:
                retry_at = now + decision.delay
                back = retry_at if self.tick is None else math.ceil(retry_at) + self.tick
                heapq.heappush(events, (back, next(number), born, expires, id))


def test_limit_is_used_while_most_jobs_expire() -> None:
    """Twice the rate is sent, and 90 % of it expires after 3 s: the limit is used, and no job waits much longer."""
    traffic = Traffic(TokenBucket("p", "20/s", burst=20), per_second=40, expires_in=3.0, expiring=9)
    traffic.run(120)
    assert len(traffic.ran) >= 0.98 * 20 * 120
    assert max(traffic.waits) < 3.5


def test_limit_is_used_if_jobs_are_redelivered_by_ticks() -> None:
    """
    A limit is used if jobs are redelivered up to two seconds late, as on stock RQ. A job that would have expired by
    then takes no position. In the test, the scheduler runs at the end of each second, which is the worst time.
    """
    delivery = Delivery(lateness=2.1)
    traffic = Traffic(TokenBucket("p", "20/s", burst=20), 40, 3.0, expiring=9, delivery=delivery, tick=0.95)
    traffic.run(30)
    assert len(traffic.ran) >= 0.65 * 20 * 30  # .68: as jobs leave, those behind are redelivered late


def test_a_job_past_its_longest_wait_waits_for_an_unavailable_store() -> None:
    """It makes its next request after the delay of its denial: otherwise it would make one after another."""
    waker = Mock()
    requester = Requester(Caller.JOB, "a", "process", max_wait_us=0, waited=Waited(0, 1))
    waker.begin_request.return_value = (requester, "attempt")
    waker.waited_of.return_value = Waited(5_000_000, 1, 0)
    decision = Limiter(Away()).acquire(SLOW, job=JOB, delivery=Delivery(max_wait=4, waits=Waiting(waker, "item", "a")))
    assert (decision.reason, decision.delay > 0.5) == ("store unavailable", True)
    (held,) = waker.hold.call_args_list
    assert held.args[2] >= 500_000
    assert held.kwargs["ends_in_us"] is None


def test_the_answer_that_ends_a_wait_may_wake_other_jobs() -> None:
    """Its wakes and its look are in no other message, so they are applied before the job leaves its waitlists."""
    waker, limiter = Mock(), Limiter()
    waker.begin_request.return_value = (Requester(Caller.JOB, "a", "process", max_wait_us=0), "attempt")
    limiter.acquire(SLOW, job=OTHER)
    ended = limiter.acquire(SLOW, job=JOB, delivery=Delivery(max_wait=0, waits=Waiting(waker, "item", "a")))
    assert (ended.reason, ended.final) == ("waited too long", True)
    called = [name for name, *_ in waker.method_calls if name != "waited_of"]
    assert called == ["begin_request", "apply_answer", "leave"]
    assert waker.apply_answer.call_args.args[3].kept is None

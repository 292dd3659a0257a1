"""What a process knows of a job's slot without asking."""

from __future__ import annotations

from typing import Any

import pytest
from throttlekit._engine.store_clock import StoreClock

from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.inline import InlineWaits
from throttlekit._engine.ticket import Ticket
from throttlekit._wiring import wiring_of
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

PARTNER = TokenBucket("partner", "1/s", burst=1)
OWN = TokenBucket("own", "1/s", burst=1, scope="process")
SLOTS = Concurrency("slots", 1, lease=30)
TIERED = TokenBucket("tiered", {"free": "1/s"}, burst=1, tier=lambda job: "free")
JOB = Job(id="1", name="call")


@pytest.fixture
def store() -> FakeClock:
    return FakeClock()


@pytest.fixture
def own() -> FakeClock:
    return FakeClock(7_000_000)


@pytest.fixture
def limiter(store: FakeClock, own: FakeClock) -> Limiter:
    limiter = Limiter(MemoryStore(clock_us=store))
    wiring_of(limiter).pipeline.store_clock = StoreClock(clock_us=own)
    return limiter


def second(limiter: Limiter, *limits: Any) -> Any:
    """What the second of two jobs carries."""
    assert limiter.acquire(*limits, job=JOB)
    return limiter.acquire(*limits, job=JOB).ticket


def test_a_denial_tells_what_time_it_is_in_the_store(limiter: Limiter, own: FakeClock) -> None:
    """From then on it is known how long each job that carries a ticket has to wait, by this process's own clock."""
    ticket = second(limiter, PARTNER)
    assert limiter.until_due([PARTNER], ticket) == pytest.approx(1.0)
    own.advance(0.4)
    assert limiter.until_due([PARTNER], ticket) == pytest.approx(0.6)
    own.advance(1)
    assert limiter.until_due([PARTNER], ticket) == pytest.approx(-0.4)


def test_a_wait_in_place_does_not_age_the_denial(limiter: Limiter, store: FakeClock, own: FakeClock) -> None:
    """The clock is set by a denial when it comes, and not after the wait that follows it."""

    class Waits(InlineWaits):
        """Waits in place once, by both clocks."""

        def wait(self, seconds: float) -> bool:
            store.advance(seconds)
            own.advance(seconds)
            return True

    ticket = second(limiter, PARTNER)
    assert wiring_of(limiter).pipeline.store_clock.until_due([PARTNER], ticket) == pytest.approx(1.0)
    fast = TokenBucket("fast", "10/s", burst=1)
    assert limiter.acquire(fast)
    assert limiter.acquire(fast, job=JOB, delivery=Delivery(inline=Waits()))
    assert limiter.until_due([PARTNER], ticket) == pytest.approx(0.9)


def test_it_is_believed_for_a_minute(limiter: Limiter, own: FakeClock) -> None:
    """Either clock may be set, and one stops while its machine sleeps."""
    ticket = second(limiter, PARTNER)
    own.advance(61)
    assert limiter.until_due([PARTNER], ticket) is None


def test_a_process_that_was_told_nothing_has_to_ask(limiter: Limiter) -> None:
    """It does not guess the store's time by its own."""
    ticket = second(limiter, PARTNER)
    assert Limiter().until_due([PARTNER], ticket) is None


@pytest.mark.parametrize("limits", [(SLOTS,), (OWN,), (TIERED,)])
def test_what_only_the_store_can_say_is_asked(limiter: Limiter, limits: Any) -> None:
    """A slot of a concurrency limit is an estimate; a process's own is by another clock; a tier is the job's to say."""
    told = second(limiter, PARTNER)
    assert limiter.until_due(limits, second(limiter, *limits)) is None
    assert limiter.until_due([PARTNER], told) is not None


@pytest.mark.parametrize("ticket", [None, {}, {"v": 1}, "forged", 5, []])
def test_what_is_no_ticket_is_asked(limiter: Limiter, ticket: Any) -> None:
    """Whatever a sender has put there."""
    second(limiter, PARTNER)
    assert limiter.until_due([PARTNER], ticket) is None


def test_a_ticket_of_a_limit_that_was_changed_is_asked(limiter: Limiter) -> None:
    """The job books again, by the limit as it is now."""
    ticket = second(limiter, PARTNER)
    assert limiter.until_due([TokenBucket("partner", "100/s", burst=1)], ticket) is None


def test_clock_is_believed_for_a_minute_once_it_was_told() -> None:
    """Before the first denial, and a microsecond after a minute, the store has to be asked; and wherever tiers are."""
    now_us = 5
    store_clock, limit = StoreClock(clock_us=lambda: now_us), TokenBucket("partner", "10/s")
    tiered = TokenBucket("tiered", {"free": "10/s"}, tier="{plan}")
    ticket = Ticket().denied(limit, 100_000_000, 1).write()
    assert store_clock.until_due([limit], ticket) is None
    store_clock.set(40_000_000)
    now_us += 60_000_000
    assert store_clock.until_due([limit], ticket) == 0
    assert store_clock.until_due([limit, tiered], ticket) is None
    now_us += 1
    assert store_clock.until_due([limit], ticket) is None

"""Headers of a response slow a limit down, until the partner's reset and no longer, by the store's clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import FixedWindow, Job, LeakyBucket, Limit, Limiter, Running, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._engine.response_headers import DIALECTS
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

SPENT = {"RateLimit": '"default";r=3;t=30'}
LIMITS = [
    TokenBucket("bucket", "60/minute", burst=20),
    LeakyBucket("leaky", "60/minute"),
    FixedWindow("window", "600/hour"),
    SlidingWindow("sliding", "600/hour"),
    SlidingLog("log", "600/hour"),
]


def _grants(limiter: Limiter, limit: Limit, clock: FakeClock, seconds: int) -> int:
    """Return how many of ten requests a second are granted."""
    granted = 0
    for _ in range(seconds * 10):
        clock.advance(0.1)
        granted += limiter.acquire(limit).allowed
    return granted


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_no_more_are_granted_than_the_partner_has_left(limiter: Limiter, clock: FakeClock, limit: Limit) -> None:
    """Until the partner's reset, jobs get about the units that its response reports; afterwards, the limit's rate."""
    running = Running(limiter, limiter.acquire(limit, job=Job()))
    running.apply_response(SPENT)
    assert 2 <= _grants(limiter, limit, clock, 30) <= 3
    assert _grants(limiter, limit, clock, 30) > 10


_NAMES = sorted({"Date", "Age"} | {name for dialect in DIALECTS for name in dialect.headers})
_VALUES = st.sampled_from(
    ["0", "3", "-1", "1e300", "32/40", "6m0s", '"a";r=0;t=7', '"a";r=3;t=99999999', "2999-01-01T00:00:00Z"]
)
_HEADERS = st.lists(st.tuples(st.sampled_from(_NAMES), _VALUES | st.text(max_size=20)), max_size=6)


@given(_HEADERS, st.sampled_from([200, 429]))
def test_every_response_is_forgotten_within_an_hour(headers: list[tuple[str, str]], status: int) -> None:
    """Nothing raises, the limit never grants more than by itself, and after an hour the response has no effect."""
    clock = FakeClock()
    limiter, limit = Limiter(MemoryStore(clock_us=clock)), TokenBucket("bucket", "60/minute", burst=20)
    limiter.apply_response(SimpleNamespace(headers=headers, status_code=status), limit)
    assert sum(limiter.acquire(limit).allowed for _ in range(25)) <= 20
    clock.advance(3601)
    assert sum(limiter.acquire(limit).allowed for _ in range(25)) == 20

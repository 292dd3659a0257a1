"""A limit at a part of its rate: never above it, never zero, and with the same count."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import (
    Adapt,
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit._core.limit.rate import LONGEST_PERIOD_US
from throttlekit._core.serialize import load_in_force, plain

VARYING = TokenBucket("x", lambda job: job.kwargs["rate"], adapt=Adapt("2/s"))


@pytest.mark.parametrize(
    ("limit", "thousandths", "rate", "capacity"),
    [
        (TokenBucket("x", "100/s"), 500, (50, 1), 50),
        (TokenBucket("x", "10/s"), 250, (5, 2), 2),
        (TokenBucket("x", "10/s", burst=30), 250, (5, 2), 30),
        (TokenBucket("x", "100/s", cost=80), 500, (50, 1), 80),
        (TokenBucket("x", "100/s", on_store_failure="local", processes=30, cost=2), 500, (50, 1), 60),
        (TokenBucket("x", "1/m"), 1, (1, 60_000), 1),
        (TokenBucket("x", "1/366d"), 1, (1, 366 * 86_400), 1),
        (TokenBucket("x", "1000/d", burst=5000), 1, (1, 86_400), 3660),
        (change_rate(TokenBucket("x", "100/s"), "40/s", 7), 500, (20, 1), 7),
        (change_rate(TokenBucket("x", "100/s", burst=3), "40/s", 40), 500, (20, 1), 20),
        (VARYING.at("100/s"), 10, (1, 1), 1),
        (LeakyBucket("x", "9/s", queue=4), 333, (2997, 1000), 1),
        (FixedWindow("x", "99/month", tz="Asia/Tokyo"), 500, (49, 31 * 86_400), 49),
        (SlidingWindow("x", "99/m"), 1, (1, 60), 1),
        (SlidingWindow("x", "99/m", cost=10), 50, (10, 60), 10),
        (Concurrency("x", 8, lease=60), 300, (2, 0), 2),
        (Concurrency("x", 8), 1, (1, 0), 1),
        (Concurrency("x", 8, on_store_failure="local", processes=4), 1, (4, 0), 4),
    ],
)
def test_part_of_a_rate(limit: Limit, thousandths: int, rate: tuple[int, int], capacity: int) -> None:
    """
    A scaled bucket has the exact part of its rate; a window has whole units, a limit of slots whole slots. A fixed cost
    is still admitted.
    """
    part = scale_rate(limit, thousandths)
    assert (part.amount, part.period_us, part.capacity) == (rate[0], rate[1] * 1_000_000, capacity)
    assert (part.fingerprint, part.varying_us) == (limit.fingerprint, limit.varying_us)
    assert scale_rate(limit, 1000) is limit
    if limit.varying_us is None:
        read = load_in_force(plain(part, "", 1))
        assert (read.fingerprint, read.amount, read.capacity) == (part.fingerprint, part.amount, capacity)


@given(
    amount=st.integers(1, 10**12 - 1),
    period_us=st.integers(1, LONGEST_PERIOD_US),
    thousandths=st.integers(1, 999),
    make=st.sampled_from([TokenBucket, LeakyBucket, SlidingWindow]),
)
def test_part_is_never_above_the_rate(amount: int, period_us: int, thousandths: int, make: Any) -> None:
    """A bucket's part is exact to 1/30 000, but at least a unit a year; a window's is in whole units, at least 1."""
    rate = make.rate_from(amount, period_us)
    try:
        limit: Limit = make("x", rate)
    except ConfigurationError:
        return
    part, whole = scale_rate(limit, thousandths), Fraction(amount, period_us)
    found, meant = Fraction(part.amount, part.period_us), whole * thousandths / 1000
    assert found <= whole
    assert part.capacity <= limit.capacity
    if make is SlidingWindow:
        assert found == Fraction(max(1, amount * thousandths // 1000), period_us)
    else:
        assert meant * Fraction(29_999, 30_000) <= found <= max(meant, Fraction(1, LONGEST_PERIOD_US))


@pytest.mark.parametrize("limit", [TokenBucket("x", "100/s", adapt=Adapt("10/s")), VARYING.at("20/s")])
def test_adaptive_limit_slows_down_to_the_same_parts(limit: Limit) -> None:
    """
    A scaled adaptive limit slows down to the same parts of its rate, with its floor scaled too, for the same time.
    """
    part = scale_rate(limit, 20)
    assert limit.adapt is not None
    assert part.adapt is not None
    given = part.adapt.refusal(part.amount, part.period_us, None)
    assert given == limit.adapt.refusal(limit.amount, limit.period_us, None)


def test_log_is_not_scaled() -> None:
    """A scaled log would have a count of its own: its amount and the part would both be admitted."""
    with pytest.raises(ConfigurationError, match="limit 'x' is a SlidingLog, which counts each rate separately"):
        scale_rate(SlidingLog("x", "9/s"), 500)


@pytest.mark.parametrize(
    "limit", [TokenBucket("x", "8/s"), LeakyBucket("x", "8/s"), FixedWindow("x", "8/s"), SlidingWindow("x", "8/s")]
)
def test_scaling_on_and_off_gives_no_extra_unit(limiter: Limiter, limit: Limit) -> None:
    """However often a limit is scaled, a period admits no more than the bound of the whole rate."""
    forms = [limit, scale_rate(limit, 500), scale_rate(limit, 130)]
    granted = sum(limiter.acquire(forms[turn % 3], job=Job(id=str(turn))).allowed for turn in range(60))
    assert 1 <= granted <= limit.capacity

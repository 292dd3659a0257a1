"""Decisions as values, and as headers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from throttlekit import (
    Decision,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.decision import Charged
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=5)


def _decision(**values: Any) -> Decision:
    allowed: dict[str, Any] = {
        "allowed": True,
        "limit": LIMIT,
        "key": "",
        "cost": 1,
        "remaining": 4,
        "retry_after": 0.0,
        "delay": 0.0,
        "reset_after": 0.1,
        "reason": "allowed",
    }
    return Decision(**{**allowed, **values})


def test_decision_takes_keyword_arguments_only() -> None:
    """Positional arguments are rejected: nine values in a row are easily confused."""
    made: Any = Decision
    with pytest.raises(TypeError, match="positional"):
        made(True, LIMIT, "", 1, 4, 0.0, 0.0, 0.1, "allowed")
    with pytest.raises(TypeError):
        made(True)


def test_decision_can_be_subclassed() -> None:
    """A subclass creates instances of itself, with attributes of its own."""

    class Tagged(Decision):
        def __init__(self, **values: Any) -> None:
            super().__init__(**values)
            object.__setattr__(self, "by", "me")

    values = {field.name: getattr(_decision(), field.name) for field in dataclasses.fields(Decision)}
    tagged: Any = Tagged(**values)
    assert (type(tagged), tagged.by, tagged.remaining, bool(tagged)) == (Tagged, "me", 4, True)
    assert dataclasses.replace(tagged, allowed=False).allowed is False


def test_headers_of_a_grant() -> None:
    """The headers state the policy, the limit, the remaining units and the seconds to a full reset, rounded up."""
    assert _decision().headers() == {
        "RateLimit-Policy": '"partner";q=10;w=1',
        "RateLimit": '"partner";r=4;t=1',
        "RateLimit-Limit": "5",
        "RateLimit-Remaining": "4",
        "RateLimit-Reset": "1",
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": "4",
        "X-RateLimit-Reset": "1",
    }


@pytest.mark.parametrize(("retry_after", "shown"), [(0.2, "1"), (1.0, "1"), (1.01, "2"), (0.0, "1")])
def test_headers_of_a_denial(retry_after: float, shown: str) -> None:
    """A denial also states when to retry: at least one second, rounded up."""
    headers = _decision(allowed=False, remaining=0, retry_after=retry_after, reason="exhausted").headers()
    assert headers["Retry-After"] == shown


def test_headers_of_an_outage_have_only_retry_after() -> None:
    """While the store is unavailable, nothing is known about the limit: the only header is Retry-After."""
    headers = _decision(allowed=False, remaining=0, retry_after=1.1, reason="store unavailable").headers()
    assert headers == {"Retry-After": "2"}


@pytest.mark.parametrize(
    ("reason", "final"),
    [
        ("allowed", False),
        ("exhausted", False),
        ("in line", False),
        ("store unavailable", False),
        ("queue full", True),
        ("waited too long", True),
    ],
)
def test_final_decisions_are_not_retried(reason: Any, final: bool) -> None:
    """A full queue and a wait that was too long end the job; after any other denial the job requests again."""
    assert _decision(allowed=reason == "allowed", reason=reason).final is final


NOON_US = 1_800_000_000_000_000 + 4 * 3_600_000_000  # 12:00 UTC
ALGORITHMS: dict[str, tuple[Limit, str, list[tuple[int, int]], tuple[int, int]]] = {
    # policy; remaining units and reset after the first unit and the last; retry and reset of the denial that follows
    "token bucket": (TokenBucket("a", "6/minute", burst=3), "q=6;w=60", [(2, 10), (0, 30)], (10, 30)),
    "leaky bucket": (LeakyBucket("a", "6/minute"), "q=6;w=60", [(0, 10)], (10, 10)),
    "fixed window": (FixedWindow("a", "2/hour"), "q=2;w=3600", [(1, 3600), (0, 3600)], (3600, 3600)),
    "fixed day": (FixedWindow("a", "1/day", tz="Asia/Kolkata"), "q=1;w=86400", [(0, 23400)], (23400, 23400)),
    "sliding window": (SlidingWindow("a", "2/hour"), "q=2;w=3600", [(1, 7200), (0, 7200)], (3601, 7200)),
    "sliding log": (SlidingLog("a", "2/hour"), "q=2;w=3600", [(1, 3600), (0, 3600)], (3600, 3600)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_headers_of_each_algorithm(name: str) -> None:
    """For each algorithm, the headers state how much can be admitted at once, what remains, and the time to a reset."""
    limit, policy, states, (retry, reset) = ALGORITHMS[name]
    limiter = Limiter(MemoryStore(clock_us=FakeClock(NOON_US)))
    grants = [limiter.acquire(limit) for _ in range(limit.capacity)]
    first_and_last = [grants[0], grants[-1]] if len(grants) > 1 else grants
    expected = [
        {
            "RateLimit-Policy": f'"a";{policy}',
            "RateLimit": f'"a";r={remaining};t={reset_after}',
            "RateLimit-Limit": str(limit.capacity),
            "RateLimit-Remaining": str(remaining),
            "RateLimit-Reset": str(reset_after),
            "X-RateLimit-Limit": str(limit.capacity),
            "X-RateLimit-Remaining": str(remaining),
            "X-RateLimit-Reset": str(reset_after),
        }
        for remaining, reset_after in states
    ]
    assert [decision.headers() for decision in first_and_last] == expected
    denied = limiter.acquire(limit).headers()
    assert denied == {
        **expected[-1],
        "RateLimit-Reset": str(reset),
        "X-RateLimit-Reset": str(reset),
        "RateLimit": f'"a";r=0;t={retry}',
        "Retry-After": str(retry),
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_headers_of_each_algorithm_are_accurate(name: str) -> None:
    """After the seconds in Retry-After one unit is admitted; after those in Reset, the whole capacity."""
    limit = ALGORITHMS[name][0]
    for header in ("Retry-After", "RateLimit-Reset"):
        clock = FakeClock(NOON_US)
        limiter = Limiter(MemoryStore(clock_us=clock))
        limiter.acquire(limit, cost=limit.capacity)
        clock.advance(int(limiter.peek(limit).headers()[header]))
        assert limiter.acquire(limit, cost=limit.capacity if header == "RateLimit-Reset" else 1)


def test_headers_describe_the_jobs_tier() -> None:
    """For a limit with tiers, the headers describe the tier of the job."""
    limit = TokenBucket("a", {"free": "1/m", "pro": "60/m"}, burst={"free": 1, "pro": 20}, tier="{plan}")
    headers = Limiter().acquire(limit, job=Job(kwargs={"plan": "pro"})).headers()
    assert (headers["RateLimit-Policy"], headers["RateLimit-Limit"]) == ('"a";q=60;w=60', "20")


@pytest.mark.parametrize(("name", "shown"), [("ürün", '"?r?n"'), ('a"b\\c', '"a\\"b\\\\c"')])
def test_headers_name_the_policy_in_ascii(name: str, shown: str) -> None:
    """A policy's name is a string of structured fields: quoted, escaped, and ASCII."""
    headers = Limiter().acquire(TokenBucket(name, "6/m")).headers()
    assert headers["RateLimit-Policy"] == f"{shown};q=6;w=60"


def test_headers_describe_the_binding_limit() -> None:
    """Of several limits, the headers describe the one that denies."""
    small, large = FixedWindow("small", "1/hour"), TokenBucket("large", "100/s")
    limiter = Limiter(MemoryStore(clock_us=FakeClock(NOON_US)))
    limiter.acquire(small)
    headers = limiter.acquire(large, small).headers()
    assert (headers["RateLimit-Policy"], headers["Retry-After"]) == ('"small";q=1;w=3600', "3600")


def test_decision_can_be_pickled_and_copied() -> None:
    """A decision can be pickled and copied, including what it charged."""
    decision = _decision(charged=(Charged(LIMIT, "tk1:{partner:}:f00", 1, 7, True),))
    for copied in (pickle.loads(pickle.dumps(decision)), copy.deepcopy(decision), copy.copy(decision)):
        assert copied == decision
        assert copied.charged[0].limit is copied.limit
        assert (copied.charged[0].cost, copied.charged[0].at_us, copied.charged[0].measured) == (1, 7, True)


def test_decision_cannot_be_changed() -> None:
    """A decision is immutable: a denial cannot be turned into a grant."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        _decision(allowed=False).allowed = True  # type: ignore[misc]


def test_charged_is_a_value() -> None:
    """`Charged` has defaults, rejects missing and unknown arguments, can be copied and pickled, and is immutable."""
    one = Charged(LIMIT, "bucket", 1, 5)
    assert [getattr(one, name) for name in Charged._fields] == [LIMIT, "bucket", 1, 5, False, ""]
    assert one == one._replace() == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))
    assert one != one._replace(cost=2)
    with pytest.raises(AttributeError):
        one.cost = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Charged(LIMIT)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="colour"):
        one._replace(colour="red")  # type: ignore[call-arg]

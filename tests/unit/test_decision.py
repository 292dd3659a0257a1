"""Decisions as values, and as headers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from throttlekit import Decision, TokenBucket

LIMIT = TokenBucket("partner", "10/s", burst=5)


def _decision(**values: Any) -> Decision:
    allowed: dict[str, Any] = {
        "allowed": True, "limit": LIMIT, "key": "", "cost": 1, "remaining": 4,
        "retry_after": 0.0, "delay": 0.0, "reset_after": 0.1, "reason": "allowed",
    }  # fmt: skip
    return Decision(**{**allowed, **values})


@pytest.mark.parametrize("allowed", [True, False])
def test_decision_is_true_when_allowed(allowed: bool) -> None:
    """A decision is true exactly when it allows."""
    assert bool(_decision(allowed=allowed)) is allowed


def test_headers_of_a_grant() -> None:
    """A grant tells limit, what remains, and when all is back, in whole seconds rounded up."""
    assert _decision().headers() == {
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": "4",
        "X-RateLimit-Reset": "1",
    }


@pytest.mark.parametrize(("retry_after", "shown"), [(0.2, "1"), (1.0, "1"), (1.01, "2"), (0.0, "1")])
def test_headers_of_a_denial(retry_after: float, shown: str) -> None:
    """A denial tells when to retry as well: a second at least, rounded up."""
    headers = _decision(allowed=False, remaining=0, retry_after=retry_after, reason="exhausted").headers()
    assert headers["Retry-After"] == shown


def test_headers_without_a_store_promise_nothing() -> None:
    """While the store is unavailable nothing is known of the limit, and only Retry-After is told."""
    headers = _decision(allowed=False, remaining=0, retry_after=1.1, reason="store unavailable").headers()
    assert headers == {"Retry-After": "2"}


def test_decision_travels() -> None:
    """A decision can be pickled and copied."""
    decision = _decision(waited={"v": 1})
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert copy.deepcopy(decision) == decision

"""The options of token leases: what a process may take ahead of a bucket."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from throttlekit._core.limit.template import safe_repr
from throttlekit.errors import ConfigurationError

__all__ = ["PrefetchQuota", "prefetch_quota_from"]

_DEFAULT_LENGTH_S = 0.25
_LONGEST_LENGTH_S = 60


class PrefetchQuota(NamedTuple):
    """Up to *tokens* units at a time. A process spends each within *for_us* of its request for them."""

    tokens: int
    for_us: int


def prefetch_quota_from(
    tokens: object, seconds: object, *, amount: int, period_us: int, burst: int, scope: str
) -> PrefetchQuota | None:
    """
    The lease that a bucket of this rate and *burst* grants; None without *tokens*.

    It is at most half of the burst, so that other processes have as much left, and at most what the rate gives while
    it lasts: units that go unused have come back to the bucket by the time it ends.

    Raises:
        ConfigurationError: A value that can never work.
    """
    if tokens is None:
        return None
    if scope == "process":
        raise ConfigurationError('a limit of scope "process" uses no store: leave prefetch= out')
    if not isinstance(tokens, int) or tokens < 2:
        raise ConfigurationError(f"prefetch must be a whole number of at least 2, not {safe_repr(tokens)}")
    if tokens > burst:
        raise ConfigurationError(f"prefetch={safe_repr(tokens)} units never pass at once: the burst is {burst}")
    length_s = _seconds_in(seconds)
    for_us = round(length_s * 1_000_000)
    most = min(tokens, burst // 2, amount * for_us // period_us)
    if most < 2:
        raise ConfigurationError(
            f"prefetch={tokens} would never be taken: a lease is at most half of the burst, which is {burst}, and "
            f"what the rate gives in prefetch_for={length_s:g} s. Lengthen prefetch_for=, or leave prefetch= out"
        )
    return PrefetchQuota(most, for_us)


def _seconds_in(length: object) -> float:
    seconds = _DEFAULT_LENGTH_S if length is None else length
    seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.001 <= seconds <= _LONGEST_LENGTH_S:
        raise ConfigurationError(
            f"prefetch_for must be a number of seconds from 0.001 to {_LONGEST_LENGTH_S}, not {safe_repr(length)}"
        )
    return seconds

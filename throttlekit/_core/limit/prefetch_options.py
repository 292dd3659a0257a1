"""Token leases as a limit's options: who takes them, and what they may be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

from throttlekit._core.limit.template import safe_repr
from throttlekit._core.limit.value import Value
from throttlekit.errors import ConfigurationError

__all__ = ["PrefetchOptions", "PrefetchQuota", "prefetch_quota_from"]

_OPTIONS = {"prefetch", "prefetch_for"}
_USUAL_S = 0.25
_LONGEST_S = 60
_Self = TypeVar("_Self", bound="PrefetchOptions")


class PrefetchQuota(NamedTuple):
    """Up to *tokens* units at a time, each spent within *for_us* of being asked for."""

    tokens: int
    for_us: int


class PrefetchOptions(Value):
    """What limits have in common about token leases: most take none, and say so."""

    __slots__ = ()

    leases: ClassVar[bool] = False

    prefetch: int | None = None
    prefetch_for: float | None = None
    prefetch_quota: PrefetchQuota | None = None

    def __new__(cls: type[_Self], *args: Any, **options: Any) -> _Self:
        if not cls.leases and not _OPTIONS.isdisjoint(options):
            raise ConfigurationError(f"a {cls.__name__} takes no token leases: prefetch= is for TokenBucket")
        return object.__new__(cls)


def prefetch_quota_from(
    tokens: object, seconds: object, *, amount: int, period_us: int, burst: int, scope: str
) -> PrefetchQuota | None:
    """
    The lease that a bucket of this rate and *burst* grants; None without *tokens*.

    It is no larger than half of the burst, so that it leaves others as much, nor than what the rate gives while it
    lasts: what goes unused has come back to the bucket by the time it ends.

    Raises:
        ConfigurationError: A value that can never work.
    """
    if tokens is None:
        return None
    if scope == "process":
        raise ConfigurationError('a limit of scope "process" asks no store: leave prefetch= out')
    if not isinstance(tokens, int) or tokens < 2:
        raise ConfigurationError(f"prefetch must be a whole number of at least 2, not {safe_repr(tokens)}")
    if tokens > burst:
        raise ConfigurationError(f"prefetch={safe_repr(tokens)} never pass at once: the burst is {burst}")
    length_s = _USUAL_S if seconds is None else seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if isinstance(length_s, bool) or not isinstance(length_s, (int, float)) or not 0.001 <= length_s <= _LONGEST_S:
        raise ConfigurationError(
            f"prefetch_for must be a number of seconds from 0.001 to {_LONGEST_S}, not {safe_repr(seconds)}"
        )
    for_us = round(length_s * 1_000_000)
    most = min(tokens, burst // 2, amount * for_us // period_us)
    if most < 2:
        raise ConfigurationError(
            f"prefetch={tokens} would never be taken: a lease is at most half of the burst, which is {burst}, and "
            f"what the rate gives in prefetch_for={length_s:g} s. Lengthen prefetch_for=, or leave prefetch= out"
        )
    return PrefetchQuota(most, for_us)

"""
A concurrency limit whose number of slots adapts to how long jobs hold them: latency.py computes the number.

The measured times are stored with the holders. The request that releases a slot updates them.
lua/throttlekit_lua/latency.lua mirrors this file. Change both, or the parity tests fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm, Holders
from throttlekit._core.latency import REMEMBERED_US, apply_drop, measure_hold, slots_of
from throttlekit._core.limit.adapt import SlotAdapt, within_a_day_us
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.spelling import checks_spelling
from throttlekit.errors import ConfigurationError

__all__ = ["AdaptiveConcurrencyAlgorithm", "ByLatency"]

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class AdaptiveConcurrencyAlgorithm(ConcurrencyAlgorithm):
    """
    A request of slots, of which between *floor* and *amount* may be in use. *timeout_us* is 0 if there is no time-out.
    """

    floor: int = 1
    timeout_us: int = 0

    code: ClassVar[str] = "a"
    remembered_us: ClassVar[int] = REMEMBERED_US

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.lease_us, f"{self.floor} {self.timeout_us} {self.holder}"

    def slots(self, state: Holders | None) -> int:
        return slots_of(state.gauge if state else None, self.floor, self.amount)

    def admit(self, state: Holders | None, now_us: int, begins_us: int | None = None) -> Holders | None:
        """Admit the request. A lease that has ended since the last reduction counts as a failed job."""
        ended = [until_us for _, until_us in state.leases if until_us <= now_us] if state and self.size else []
        if state and ended:
            state = self.apply_drop(state, now_us, max(ended) - self.lease_us)
        return ConcurrencyAlgorithm.admit(self, state, now_us)

    def release(self, state: Holders | None, now_us: int, granted_us: int) -> Holders | None:
        after = ConcurrencyAlgorithm.release(self, state, now_us, granted_us)
        if after is None or after is state:
            return after
        held_us, used = now_us - granted_us, self.use(state, now_us).units
        if self.timeout_us and held_us >= self.timeout_us:
            return self.apply_drop(after, now_us, granted_us)
        if held_us <= 0:  # the clock has stepped back, so the length of the hold is not known
            return after
        return after._replace(gauge=measure_hold(after.gauge, held_us, used, self.floor, self.amount, now_us))

    def apply_drop(self, state: Holders | None, now_us: int, granted_us: int | None) -> Holders | None:
        """Return the state after a job that was granted at *granted_us* has failed, or *state* if nothing changes."""
        if state is None:
            return None
        gauge = apply_drop(state.gauge, granted_us, self.floor, self.amount, now_us)
        return state if gauge is state.gauge else state._replace(gauge=gauge)


class ByLatency(SlotAdapt):
    """
    Adapt the number of slots of a `Concurrency` limit, for the whole fleet, to the load that the partner can handle.

    The number starts at the floor. If jobs hold their slots for longer than before, the number falls; otherwise it
    rises while all slots are in use. It also falls by a tenth, once for each overload, if a job raises `RateLimited`,
    calls `throttlekit.current().report_overload()` or holds its slot for *timeout*, or if its worker dies.

    Guarantee: `floor <= slots <= declared amount`, always. A job never loses a slot that it holds. A job needs no
    additional round trip, but about 1.8 times the server's time. A key needs about 100 bytes more, until an hour after
    the last job.

    Args:
        floor: The lowest number of slots: a whole number from 1 to the declared amount.
        timeout: A job that holds its slot for this time counts as failed: seconds, or a timedelta, from 10 ms to a day.
            Default: no time-out. If your calls have a time-out, set it here too: calls that all time out take equally
            long, so their length alone does not show an overload.

    Raises:
        ConfigurationError: A value can never work. A floor above the amount is an error when the limit is created.

    If a limit is `set` or scaled to fewer slots than the floor, that number is the floor. *adapt* is not part of the
    definition. `throttlekit._core.latency` contains the rules, and docs/limit-adaptive.md describes the effects.
    """

    __slots__ = ("_timeout_us", "floor", "timeout")

    floor: int
    timeout: float | timedelta | None
    _timeout_us: int

    @checks_spelling
    def __init__(self, floor: int, *, timeout: float | timedelta | None = None) -> None:
        if isinstance(floor, bool) or not isinstance(floor, int) or not 1 <= floor <= _MOST:
            raise ConfigurationError(f"the floor must be a whole number of slots, at least 1, not {safe_repr(floor)}")
        self._set(floor=floor, timeout=timeout, _timeout_us=within_a_day_us("timeout", timeout) or 0)

    def check(self, amount: int) -> None:
        if self.floor > amount:
            raise ConfigurationError(f"the floor {self.floor} must not be above the {amount} slots")

    def bind(self, size: int, amount: int, lease_us: int, holder: str) -> AdaptiveConcurrencyAlgorithm:
        floor = min(self.floor, amount)
        return AdaptiveConcurrencyAlgorithm(size, amount, lease_us, holder, floor, self._timeout_us)

    def plain(self, amount: int, period_us: int) -> list[int]:
        return [self.floor, self._timeout_us]

    @classmethod
    def read(cls, data: Any) -> ByLatency | None:
        """
        Read the data that `plain` returned. None means that the limit does not adapt.

        Raises:
            ValueError: *data* has another form.
        """
        if data is None:
            return None
        floor, timeout_us = data
        if type(timeout_us) is not int:
            raise ValueError("adapt")
        return cls(floor, timeout=timeout_us / 1_000_000 if timeout_us else None)

    def _identity(self) -> tuple[object, ...]:
        return type(self), self.floor, self._timeout_us

    def __repr__(self) -> str:
        return (
            f"ByLatency({self.floor})" if self.timeout is None else f"ByLatency({self.floor}, timeout={self.timeout!r})"
        )

"""
A limit on how many jobs run at once: a set of holders, each with an expiry of its own.

Rule 1: a holder is a member of a set, not a number in a count. So no holder can release a slot twice, or release the
slot of another holder. The holder's name contains its number of slots, so that every process of the fleet releases,
renews and counts the same number.
Rule 2: a holder that does not renew its lease in time is removed. So the slots of a killed worker become free.
Rule 3: no clock shows when a slot becomes free. The retry times of waiting jobs are estimates, from how long holders
have held their slots on average, and at least from how long the holder that was admitted last has held its own.
Rule 4: a workflow is one holder. Its first job takes the slot. While the workflow holds it, its other jobs pass and
take nothing. Each job that begins, runs or ends renews the lease, and only a lease of 0 releases the slot. Only a grant
takes the slot: a renewal that arrives after the workflow is done does not.

Example: 2 slots with a lease of 30 s. At 0 s jobs a and b take them, and c waits. The worker of a is killed; b renews
its lease every 10 s. At 30 s the lease of a ends, and c gets its slot.

lua/throttlekit_lua/concurrency.lua and renew.lua mirror this file. Change all, or the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from throttlekit._core.algorithm import STALE_US, AlgorithmBase, Use
from throttlekit._core.job import Job
from throttlekit._core.latency import Gauge
from throttlekit._core.limit.adapt import SlotAdapt
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.options import LimitOptions
from throttlekit._core.limit.rule import LimitRule, OfRule
from throttlekit._core.limit.template import Key
from throttlekit._core.storage_keys import is_workflow, slots_of_holder, with_slots
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Concurrency", "ConcurrencyAlgorithm", "Holders"]

_FIRST_HOLD_US = 100_000
"""The assumed length of a hold, until the first has ended."""
_MEAN_PART = 4  # a hold counts for a quarter of the mean: one that was wrong tenfold is right within some ten holds
_SHORTEST_PACE_US = 1_000
_KEPT_US = 1
"""A workflow's lease that is renewed is longer by it: it ends one lease after no grant but that of the slot."""
_LARGEST_AMOUNT = 1_000_000
_SHORTEST_LEASE_S, _LONGEST_LEASE_S = 1.0, 86_400.0
_LEASE_S, _LEASE_OF_WORKFLOW_S = 30.0, 3600.0


class Holders(NamedTuple):
    """The state. Times in µs; 0: never."""

    leases: tuple[tuple[str, int], ...] = ()
    """Each holder, and when its lease expires; in the order of expiry, then of names."""
    mean_us: int = 0
    """The mean length of a hold; 0: not known."""
    granted_us: int = 0
    """When a holder was last admitted."""
    longest_us: int = 0
    """The longest of their leases: while a limit is redefined, they may differ."""
    gauge: Gauge | None = None
    """What is learnt of a limit with `adapt`; see by_latency.py."""


@dataclass(frozen=True, slots=True)
class ConcurrencyAlgorithm(AlgorithmBase):
    """
    What one request means to the holders: *size* slots for *holder*, as long as it renews within *lease_us*.

    Attributes:
        holder: With `with_slots`, where it takes several; as `workflow_name` makes it, if it is a workflow.
        lease_us: 0: what the workflow *holder* has is given back.
    """

    size: int
    amount: int
    lease_us: int
    holder: str = ""

    code: ClassVar[str] = "c"
    estimates: ClassVar[bool] = True

    def of_one(self) -> ConcurrencyAlgorithm:
        return replace(self, size=1, holder="")

    @property
    def params(self) -> tuple[int | str, int | str, int | str]:
        return self.amount, self.lease_us, self.holder

    @property
    def mark(self) -> int:
        return 1_000_000_000 // self.amount

    @property
    def keeps_us(self) -> float:
        """Less than 0: time with a free slot is lost, and it is not known when the next slot becomes free."""
        return -1

    @property
    def stays(self) -> bool:
        """Whether the slot stays with its holder when a body has ended."""
        return is_workflow(self.holder) and self.lease_us > 0

    def holds(self, state: Holders | None, now_us: int) -> bool:
        return self.stays and state is not None and self.holder in dict(_living(state, now_us))

    def slots(self, state: Holders | None) -> int:
        """How many may be held now."""
        return self.amount

    def sanitize(self, state: Holders | None, now_us: int) -> Holders | None:
        """
        Correct times that a wrong clock wrote: an expiry is at most one lease from now, and no slot was granted after
        now.
        """
        if state is None:
            return None
        most_us = now_us + max(self.lease_us, state.longest_us)
        last_us = state.leases[-1][1] if state.leases else 0
        if last_us <= most_us + STALE_US and state.granted_us <= now_us + STALE_US:
            return state
        return state._replace(
            leases=_ordered((holder, min(until_us, most_us)) for holder, until_us in state.leases),
            granted_us=min(state.granted_us, now_us),
        )

    def there(self, state: Holders | None, now_us: int) -> int:
        return max(0, self.slots(state) - self.use(state, now_us).units)

    def ready_us(self, state: Holders | None, now_us: int, ahead: int = 0) -> int:
        """An estimate, where too few slots are free for it: as many as it takes come free each `pace_us`."""
        over = ahead + self.size - self.there(state, now_us)
        if self.size == 0 or over <= 0 or self.holds(state, now_us):
            return now_us
        return now_us - (-over * self.pace_us(state, now_us) // self.size)

    def admit(self, state: Holders | None, now_us: int, begins_us: int | None = None) -> Holders | None:
        if self.size == 0:
            return state
        if state is not None and self.holds(state, now_us):
            return self._with(state, now_us, _KEPT_US)
        return self._with(state or Holders(), now_us)._replace(granted_us=now_us)

    def settle(self, state: Holders | None, now_us: int, granted_us: int, by: int) -> Holders | None:
        """
        The slot is given back at once, because another limit denied: no hold to measure. A workflow's only if the grant
        of *granted_us* took it, and none of its jobs was there since.
        """
        if state is None or by >= 0 or self.holder not in dict(state.leases):
            return state
        if self.stays and (self.holder, granted_us + self.lease_us) not in state.leases:
            return state
        return self._without(state)

    def release(self, state: Holders | None, now_us: int, granted_us: int) -> Holders | None:
        """The state once *holder* has given back its slot of *granted_us*, if it does; *state* if it has no slot."""
        if state is None or self.holder not in dict(_living(state, now_us)):
            return state
        if self.stays:
            return self._with(state, now_us, _KEPT_US)
        held_us = max(1, now_us - granted_us)
        mean_us = ((_MEAN_PART - 1) * state.mean_us + held_us) // _MEAN_PART if state.mean_us else held_us
        return self._without(state)._replace(mean_us=mean_us)

    def renew(self, state: Holders | None, now_us: int) -> tuple[Holders | None, bool]:
        """
        The state, and whether *holder* has its slots: it keeps its own, or gets free ones if its own were lost. A
        workflow gets none: it may be done.
        """
        living = _living(state, now_us) if state else ()
        fits = not self.stays and _slots(living) + slots_of_holder(self.holder) <= self.slots(state)
        if self.holder in dict(living) or fits:
            return self._with(state or Holders(), now_us, _KEPT_US if self.stays else 0), True
        return state, False

    def use(self, state: Holders | None, now_us: int) -> Use:
        living = _living(state, now_us) if state else ()
        return Use(_slots(living), living[-1][1] if living else now_us)

    def pace_us(self, state: Holders | None, now_us: int) -> int:
        """
        The time until the slots of this request are given back: the mean hold, divided among all.

        Every holder has held its slot since the last admission: a hold longer than the mean shows at once. Where no
        hold has ended yet, the first counts as half over.
        """
        state = state or Holders()
        age_us = now_us - state.granted_us if state.granted_us else 0
        hold_us = max(state.mean_us, age_us) if state.mean_us else max(_FIRST_HOLD_US, 2 * age_us)
        return max(_SHORTEST_PACE_US, self.size * hold_us // self.slots(state))

    def _with(self, state: Holders, now_us: int, longer_us: int = 0) -> Holders:
        others = (lease for lease in _living(state, now_us) if lease[0] != self.holder)
        leases = _ordered((*others, (self.holder, now_us + self.lease_us + longer_us)))
        return state._replace(leases=leases, longest_us=max(self.lease_us, state.longest_us))

    def _without(self, state: Holders) -> Holders:
        return state._replace(leases=tuple(lease for lease in state.leases if lease[0] != self.holder))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotRule(LimitRule):
    """So many slots, and for how long each stays with a holder that does not renew."""

    lease: float
    lease_us: int

    options = ("lease", "queue")

    @classmethod
    def parse(cls, rate: Any) -> tuple[int, int]:
        if isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= _LARGEST_AMOUNT:
            raise ConfigurationError(f"the amount must be a whole number from 1 to {_LARGEST_AMOUNT}, not {rate!r}")
        return rate, 0

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        return amount if period_us == 0 else None

    @classmethod
    def work_out(
        cls, rate: Any, amount: int, period_us: int, varying_us: int | None, lease: Any = None
    ) -> Mapping[str, Any]:
        seconds = lease.total_seconds() if isinstance(lease, timedelta) else lease
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, (int, float))
            or not _SHORTEST_LEASE_S <= seconds <= _LONGEST_LEASE_S
        ):
            raise ConfigurationError(
                f"the lease must be a number of seconds from 1 to a day ({_LONGEST_LEASE_S:.0f}), not {lease!r}"
            )
        return {"capacity": amount, "lease": float(seconds), "lease_us": round(seconds * 1_000_000)}

    @property
    def counts_by(self) -> tuple[object, ...]:
        return ()


class Concurrency(Limit):
    """
    So many jobs at once, and no rate.

    Guarantee: at most `amount` slots are held at any instant, by the store's clock; a job holds one, or as many as its
    *cost*. It holds them from its grant until its body has ended; its worker renews the lease meanwhile, three times in
    its length. A worker that is killed frees its slots within the lease. A job that cannot renew for as long as its
    lease (its process is frozen, the store is away) may lose the slot to another job while it still runs.
    `throttlekit.current().lost` and the hook `throttlekit_slot_lost` report that; until such a job ends, one more job
    runs than the limit says.

    When to choose it: the service downstream bears only so many callers at once: a database with 8 connections, a
    service with 4 workers, a model that answers two at a time. Costs some 600 bytes per key in the store, and 40 to
    75 for each holder more.

    Args:
        name, key, scope, tier, default_tier, on_store_failure, processes: As for every limit; see `Limit`.
        amount: How many jobs may hold a slot at once: a whole number of at least 1. Or one for each tier, with *tier*.
            Or a callable that takes the job and returns the amount.
        lease: Seconds, or a timedelta, after which a holder that has not renewed is gone: 1 second to a day. A job
            may run for much longer. Short: a killed worker's slots are soon free again. Long: the store may be
            away for longer before a job loses its slot. Default: 30, or an hour with *held_by*.
        held_by: Which jobs hold one slot together, written as *key* is: "{workflow_id}". The first of them takes it,
            the others pass at once, and it stays from job to job, until `throttlekit.current().done(limit)` or
            `Limiter.done`; else until *lease* has passed in which none of them began, ran or ended. Not with *cost*,
            *adapt*, scope "process", or on_store_failure "local". It is not part of the definition.
        adapt: A `ByLatency`: as many slots are in use as downstream bears, between its floor and the amount.
        cost: How many slots a job holds: its memory on a GPU, its connections. A whole number of at least 0, which
            needs no slot; or a callable that takes the job. Default: 1. A cost that a caller gives to `acquire`, for
            all of its limits, counts here if *cost* is more than 1 or a callable; else as 1. With *adapt*, 1 or 0.

    Raises:
        ConfigurationError: A value that can never work, as soon as the limit is made.
        CostExceedsLimit: The cost is more than the amount.

    Waiting jobs are woken in their order as slots come free. If the first of them needs several, those that come free
    are kept for it. The delay of a denied job is an estimate: the recent mean hold / amount for each slot before it.
    Whatever the definition, one name is one set of holders: after a change of the amount, the jobs that hold a slot
    count under the new one.
    """

    __slots__ = ()

    algorithm = "concurrency"
    rule_type = _SlotRule

    lease = OfRule[float](common=True)
    lease_us = OfRule[int]()

    def __init__(
        self,
        name: str,
        amount: int | Mapping[str, int] | Callable[[Job], int],
        *,
        lease: float | timedelta | Mapping[str, float | timedelta] | None = None,
        held_by: Key = None,
        **options: Unpack[LimitOptions],
    ) -> None:
        amounts: Any = amount
        default, own = _LEASE_S if held_by is None else _LEASE_OF_WORKFLOW_S, dict[str, Any](lease=lease)
        if isinstance(lease, Mapping):
            each_own: Mapping[str, Any] = lease
            own["lease"] = {tier: default if each is None else each for tier, each in each_own.items()}
        elif lease is None:
            own["lease"] = default
        super().__init__(name, amounts, held_by=held_by, _own=own, **options)

    @property
    def definition(self) -> object:
        if self.tiers is not None or self.varying_us is not None:
            return super().definition
        return self.fingerprint, self.amount, self.lease

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> ConcurrencyAlgorithm:
        rule: Any = self.rule
        if isinstance(self.adapt, SlotAdapt):
            return cast("ConcurrencyAlgorithm", self.adapt.bind(cost, rule.amount, rule.lease_us, holder))
        return ConcurrencyAlgorithm(cost, rule.amount, rule.lease_us, with_slots(holder, cost))

    def given_cost(self, cost: int) -> int:
        if isinstance(self.cost, int) and self.cost <= 1:
            return min(1, self.check_units(cost))
        return self.check_cost(cost)

    def _remedy(self, cost: int) -> str:
        return f"raise the amount to at least {cost}"


def _living(state: Holders, now_us: int) -> tuple[tuple[str, int], ...]:
    return tuple(lease for lease in state.leases if lease[1] > now_us)


def _slots(leases: tuple[tuple[str, int], ...]) -> int:
    return sum(slots_of_holder(holder) for holder, _ in leases)


def _ordered(leases: Any) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(leases, key=lambda lease: (lease[1], lease[0])))

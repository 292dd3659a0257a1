"""What every limit has: a name, a rate or several, a key, a cost, a scope. Each algorithm adds its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.job import Job
from throttlekit._core.limit.adapt import Adapt, SlotAdapt, check_adapt
from throttlekit._core.limit.fingerprint import fingerprint_of, fingerprint_of_tier
from throttlekit._core.limit.local_share import OnStoreFailure, share_of, shared_window
from throttlekit._core.limit.options import Cost, Rates, Scope, Tier, check_options, check_queue
from throttlekit._core.limit.per_job import PerJob
from throttlekit._core.limit.per_tier import PerTier
from throttlekit._core.limit.prefetch_options import PrefetchQuota
from throttlekit._core.limit.rate import Rate, parse_rate
from throttlekit._core.limit.shape import Shape
from throttlekit._core.limit.share import Share, share_from
from throttlekit._core.limit.template import Key, from_job, plain, safe_repr, shown
from throttlekit._core.limit.tiers import listed, tiers_of
from throttlekit._core.limit.value import Value
from throttlekit._core.limit.varying import depends_on_job, fill_varying, limit_at, rate_of
from throttlekit._core.storage_keys import is_encodable
from throttlekit.errors import ConfigurationError

__all__ = ["Limit"]

_DEFAULTS: Mapping[str, object] = {
    "key": None, "cost": 1, "scope": "global", "tier": None, "default_tier": None,
    "on_store_failure": "closed", "processes": None, "share": None, "adapt": None, "held_by": None,
}  # fmt: skip
_NO_OPTIONS: Mapping[str, Any] = {}


class Limit(PerJob, Value):
    """
    A rule that jobs are held to, as an immutable value. Make one of its algorithms:
    `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingLog`, `Concurrency`.

    They have in common:

    Args:
        name: The limit's name: the same name is the same budget, in every process and framework.
        rate: "100/minute", "10/s", "5/10s" or (5, timedelta(seconds=10)). Or one for each tier:
            {"free": "10/m", "pro": "100/m"}, with *tier*. Or a callable that takes the job and returns its rate, which
            may change at any time; all rates of one key are counted together.
        key: What is counted apart: a template over the job's arguments ("{account_id}"), or a
            callable that takes the job. Default: one count for all jobs.
        cost: Units that one job takes, a whole number of at least 0, or a callable that takes the
            job. 0 only looks.
        scope: What else is counted apart: "global" (default) nothing, "queue" each queue, "job" each job
            name. "process": each worker process on its own, in its memory, with no round trip; exactly, each
            `Limiter` object, so a process should have one. Such a limit is decided first: a process that has used its
            own share makes no request to the store.
        tier: Which of the rates a job has: a template or a callable, as for *key*. Each tier is counted apart.
        default_tier: The tier of a job whose tier has no rate. Default: such a job fails, with the error.
        on_store_failure: What happens to a job while the store gives no answer. "closed" (default): it is deferred,
            uncharged, and keeps its position. "open": it runs, uncharged. "local": this process holds it to its own
            share of the limit, in its memory. Of several limits of a job, the strictest decides for all.
        processes: For "local": how many processes share the limit. Each has an equal share; a bucket's
            burst is divided too, but at least one unit passes at once.
        share: How tenants divide the limit while their jobs wait for it: a template over the job's arguments, a
            callable that takes the job, or a `Share` with weights or priorities. One count, one bound; each tenant
            its fair part. Default: first come, first served. It is not part of the definition.
        adapt: An `Adapt`: while downstream refuses calls, the rate is lower, for the whole fleet. Of a `Concurrency`
            limit, a `ByLatency`.
        queue: How many jobs may wait for the limit, under each key. A new job that would have to wait, and finds as
            many waiting, is refused, not delayed: its decision's reason is "queue full", and its adapter treats it as a
            job that has waited too long. 0: no job waits. Default: any number may. With tiers, one for all, or one
            for each. It is not part of the definition.

    Attributes:
        amount, period_us, capacity: The rate, and the most units that can ever pass at once. A limit with tiers has
            them for each of its `tiers`.
        tiers: The limit of each tier, if there are any.
        of_tier: The tier that the limit is of, if it is one of another limit's `tiers`.

    Raises:
        ConfigurationError: A value that can never work, as soon as the limit is made.
    """

    __slots__ = (
        "__weakref__", "_amount", "_capacity", "_period_us", "_queue", "adapt", "by_value", "cost", "declared",
        "default_tier", "fingerprint", "held_by", "key", "local_part", "most", "name", "of_tier", "on_store_failure",
        "processes", "rate", "rates", "scope", "share", "tier", "tiers", "varies", "varying_us",
    )  # fmt: skip

    algorithm: ClassVar[str]
    """The algorithm's name, in fingerprints and messages."""
    options: ClassVar[tuple[str, ...]] = ("queue",)
    """The names of the options that belong to a rate: there may be one for each tier."""
    later: ClassVar[tuple[str, ...]] = ("queue",)
    """Those of them that older releases do not know: messages have them only where they are given."""

    prefetch: int | None = None
    prefetch_for: float | None = None
    prefetch_quota: PrefetchQuota | None = None

    rate: Rates
    default_tier: str | None
    on_store_failure: OnStoreFailure
    processes: int | None
    tiers: Mapping[str, Limit] | None
    of_tier: str | None
    share: Share | None
    adapt: Adapt | SlotAdapt | None
    by_value: bool  # whether the limit came in a message
    varies: bool  # whether the rate depends on the job: there are tiers, or it is a callable
    # With a callable, and of what such a limit is `at` a rate: the time in which a bucket of every rate fills; 0 where
    # that plays no part. None: the rate is fixed.
    varying_us: int | None
    rates: dict[object, Limit] | None
    # Stands for the definition: a limit that is defined anew counts anew. What happens while the store fails is not
    # part of it. That of `declared`, if there is one.
    fingerprint: str
    local_part: Limit | None  # with "local": one process's part, as a limit of scope "process"
    declared: Limit | None  # with a rate that live control set: the limit as it was declared, where it counts
    _amount: int
    _period_us: int
    _capacity: int
    _queue: int | None
    queue = PerTier["int | None"]()
    amount = PerTier[int]()
    period_us = PerTier[int]()
    capacity = PerTier[int]()

    def __init__(
        self,
        name: str,
        rate: Rates,
        *,
        key: Key = None,
        cost: Cost = 1,
        scope: Scope = "global",
        tier: Tier = None,
        default_tier: str | None = None,
        on_store_failure: OnStoreFailure = "closed",
        processes: int | None = None,
        share: Share | Key = None,
        adapt: Adapt | SlotAdapt | None = None,
        held_by: Key = None,
        queue: int | Mapping[str, int] | None = None,
        prefetch: None = None,
        prefetch_for: None = None,
        _own: Mapping[str, Any] = _NO_OPTIONS,
        _of_tier: str | None = None,
        _by_value: bool = False,
        _varying_us: int | None = None,
    ) -> None:
        if prefetch is not None or prefetch_for is not None:
            raise ConfigurationError(f"a {type(self).__name__} takes no prefetch=: that is for TokenBucket")
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a limit's name must be some text, not {safe_repr(name)}")
        if not is_encodable(name):
            raise ConfigurationError(f"a limit's name must be text that UTF-8 can encode, not {safe_repr(name)}")
        name, cost, default_tier = plain(name), plain(cost), plain(default_tier)
        _own = {**_own, "queue": queue}
        if isinstance(rate, Mapping):
            by_tier: Mapping[str, Rate] = rate  # pyright: ignore[reportUnknownVariableType]
            rate = {plain(tier): each for tier, each in by_tier.items()}
        self._set(
            name=name, rate=rate, key=key, cost=cost, scope=scope, tier=tier, default_tier=default_tier, tiers=None,
            on_store_failure=on_store_failure, processes=processes, share=None, adapt=adapt, local_part=None,
            held_by=held_by, declared=None, of_tier=_of_tier, by_value=_by_value, varies=depends_on_job(rate),
            varying_us=_varying_us, rates=None if _varying_us is None else {},
        )  # fmt: skip
        with self._named():
            self._set(share=share_from(share))
            check_options(self)
            if isinstance(rate, Mapping):
                self._fill_tiers(rate, _own)  # pyright: ignore[reportUnknownArgumentType]
            elif callable(rate):
                self._set(**fill_varying(self, _own))
                fixed = sorted(f"{each}={getattr(self, each)!r}" for each in self.options if each not in self.later)
                self._set(fingerprint=fingerprint_of(f"{self.algorithm} varying {fixed}"))
            else:
                self._fill(rate, _own)

    def _fill(self, rate: Rate, options: Mapping[str, Any]) -> None:
        """Work out what follows from one rate."""
        amount, period_us = self._parse_rate(rate)
        shape = self._shape(amount, period_us, **options)
        definition = shape.definition if self.scope == "global" else f"{shape.definition} {self.scope}"
        fingerprint = fingerprint_of(definition)
        if self.of_tier is not None:
            fingerprint = fingerprint_of_tier(fingerprint, self.of_tier)
        self._set(
            _amount=amount, _period_us=period_us, _capacity=shape.capacity, most=shape.most, fingerprint=fingerprint,
            _queue=check_queue(options.get("queue")), **shape.own,
        )  # fmt: skip
        check_adapt(self)
        if isinstance(self.cost, int) and (self.by_value or (self.of_tier is None and self.varying_us is None)):
            self.check_cost(self.cost)
        if self.processes is not None:
            self._set(local_part=share_of(self, self.processes, options))

    def _fill_tiers(self, rates: Mapping[str, Rate], options: Mapping[str, Any]) -> None:
        """Make a limit for each tier. A fixed cost is an error only if no tier can admit it."""
        tiers: dict[str, Limit] = tiers_of(self, rates, options)
        whole = " | ".join(f"{tier!r} {limit.fingerprint}" for tier, limit in sorted(tiers.items()))
        most = max(limit.most for limit in tiers.values())
        self._set(tiers=tiers, most=most, fingerprint=fingerprint_of(f"tiers {whole}"))
        if isinstance(self.cost, int):
            self.check_cost(self.cost)

    def check_varying(self, options: Mapping[str, Any]) -> int:
        """
        Make sure that all rates can be counted together; see `varying_us`, which it returns.

        Raises:
            ConfigurationError: They cannot.
        """
        return 0

    def at(self, rate: Rate | int) -> Limit:
        """
        Of a limit whose *rate* is a callable: the limit as it is for a job of that *rate*, for code that has no job.
        It counts where the others count.

        Raises:
            ConfigurationError: The limit's rate is not a callable, or *rate* can never work.
        """
        with self._named():
            made: Limit = limit_at(self, rate)
            return made

    def _parse_rate(self, rate: Rate) -> tuple[int, int]:
        return parse_rate(rate)

    def _shape(self, amount: int, period_us: int, **options: Any) -> Shape:
        """Work out the algorithm's own part, from its own *options*."""
        raise TypeError("a Limit alone decides nothing: make a TokenBucket, or another of its algorithms")

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        """The rate and the options of what one of *processes* may let pass on its own."""
        return shared_window(self.amount, self.period_us, processes), options

    def count_with(self, declared: Limit) -> bool:
        """
        Count where *declared* counts, of which this is a copy with another rate: only what makes the copy may call it.

        Returns:
            Whether the algorithm can. If not, the copy counts by itself.
        """
        if not self._counts_with(declared):
            return False
        self._set(fingerprint=declared.fingerprint, declared=declared)
        if self.local_part is not None and declared.local_part is not None:
            self.local_part.count_with(declared.local_part)
        return True

    def _counts_with(self, declared: Any) -> bool:
        return False

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        """The rate whose amount and period these are, as the constructor takes it."""
        return amount, timedelta(microseconds=period_us)

    @property
    def in_zone(self) -> bool:
        """Whether the rule depends on a time zone's calendar: see `bind`."""
        return False

    @property
    def is_derived(self) -> bool:
        """Whether it was made of another limit: one of its tiers, it at a rate, or it as it came in a message."""
        return self.by_value or self.of_tier is not None or (self.varying_us is not None and not self.varies)

    @property
    def definition(self) -> object:
        """What two limits of one name must have in common."""
        if self.declared is not None:
            return self.fingerprint, self.amount, self.period_us, self.capacity
        if self.tiers is None:
            return self.fingerprint
        return tuple(sorted((tier, limit.definition) for tier, limit in self.tiers.items()))

    def for_job(self, job: Job | None) -> Limit:
        """
        The limit that *job* is held to: that of its tier, if there are tiers; at its rate, if that is a callable; else
        this one.

        Raises:
            ConfigurationError: There is no job to take the tier or the rate from, the template names an argument that
                the job does not have, the callable failed, or there is no such tier or rate.
        """
        if not self.varies:
            return self
        if self.tiers is None:
            with self._named():
                rate = rate_of(self, job)
            return self.at(rate)
        with self._named():
            found = plain(from_job("tier", self.tier, job))
        name = found if isinstance(found, str) and found in self.tiers else self.default_tier
        if name is None:
            raise ConfigurationError(
                f"limit {self.name!r}: the tier {shown(self.tier)} is not one of {listed(self.tiers)}"
                + (f" on job {job.name!r}" if job else "")
                + ": add a rate for it, or name a default_tier="
            )
        return self.tiers[name]

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> Algorithm:
        """
        What a request of *cost* units means to this limit.

        Args:
            around_us: About what time it is, if the rule depends on a time zone's calendar; within a day the same.
            holder: The name of the holder of a slot, if the limit gives slots.
        """
        raise NotImplementedError

    def remaining(self, use: Use, now_us: int) -> int:
        """Whole units that would pass at *now_us*."""
        return max(0, self._capacity - use.units)

    @property
    def max_queue(self) -> int | None:
        """How many jobs may wait for one more to join them; None: any number."""
        return self._queue

    def _identity(self) -> tuple[object, ...]:
        tier = (self.tier, self.default_tier)
        failure = (self.on_store_failure, self.processes)
        rate = self.rate if self.varies and self.tiers is None else self.varying_us
        own = {"": self} if self.tiers is None else self.tiers
        ways = (self.share, self.adapt, tuple(sorted((tier, repr(limit.queue)) for tier, limit in own.items())))
        return type(self), self.name, self.definition, rate, self.key, self.cost, self.held_by, *ways, *tier, *failure

    def __repr__(self) -> str:
        shown = [repr(self.name), repr(self.rate)]
        shown += self._shown_options()
        for option, default in _DEFAULTS.items():
            value = getattr(self, option)
            shown += [] if value == default else [f"{option}={value!r}"]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _shown_options(self) -> list[str]:
        if self.tiers is not None:
            return []
        own = {option: getattr(self, option) for option in self.options}
        return [f"{name}={own[name]!r}" for name in own if own[name] is not None or name not in self.later]

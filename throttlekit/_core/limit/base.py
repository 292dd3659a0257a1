"""The part that all limits share: name, rates, key, cost and scope. A limit's `LimitRule` defines how it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, cast

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.job import Job
from throttlekit._core.limit.adapt import Adapt, ByLatency, check_adapt
from throttlekit._core.limit.options import (
    Cost,
    OnStoreFailure,
    Rates,
    Scope,
    Tier,
    check_options,
    fingerprint_of,
    unknown_option,
)
from throttlekit._core.limit.per_job import PerJob
from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.rule import SAMPLE, LimitRule, OfRule
from throttlekit._core.limit.share import Share
from throttlekit._core.limit.template import Key, check_source, from_job, plain, safe_repr, show_source
from throttlekit._core.limit.value import Value
from throttlekit._core.local_quota import PrefetchQuota
from throttlekit._core.storage_keys import is_encodable
from throttlekit.errors import ConfigurationError, CostExceedsLimit

__all__ = ["Limit"]

_DEFAULTS: Mapping[str, object] = {
    "key": None,
    "cost": 1,
    "scope": "global",
    "tier": None,
    "default_tier": None,
    "on_store_failure": "closed",
    "processes": None,
    "share": None,
    "adapt": None,
    "held_by": None,
    "show_key": False,
}
_KEPT = ("name", "of_tier", "by_value", *_DEFAULTS)
"""The attributes that `_with_rule` copies."""
_NO_OPTIONS: Mapping[str, Any] = {}
_SET_LATER: Mapping[str, Any] = dict.fromkeys(
    ("tiers", "rule", "sample", "rates", "declared", "local_part", "prefetch", "prefetch_for", "prefetch_quota")
)
"""The attributes that are None until `_fill`, `_fill_tiers` or `_fill_varying` sets them."""
_MOST_RATES = 256
_L = TypeVar("_L", bound="Limit")


class Limit(PerJob, Value):
    """
    A limit on jobs, as an immutable value. Create one of its subclasses:
    `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingLog`, `Concurrency`.

    All of them take these arguments:

    Args:
        name: The limit's name. All limits with the same name share one budget, in every process and framework.
        rate: "100/minute", "10/s", "5/10s" or (5, timedelta(seconds=10)). Or one for each tier:
            {"free": "10/m", "pro": "100/m"}, with *tier*. Or a callable that takes the job and returns its rate, which
            may change at any time; all rates of one key are counted together.
        key: A template over the job's arguments ("{account_id}"), or a callable that takes the job. Each value of the
            key has its own count. Default: one count for all jobs.
        cost: The units that a job takes: a whole number of at least 0, or a callable that takes the
            job. 0 only peeks.
        scope: The separation of counts: "global" (default) for no further counts, "queue" for one in each queue, "job"
            for one for each job name. With "process", each worker process counts by itself, in its memory, without a
            round trip. (In fact each `Limiter` object does, so create only one per process.) Such a limit is decided
            first: if the process has used its share, it sends no request to the store.
        tier: The tier of a job, if each tier has its own rate: a template or a callable, as for *key*. Each tier has
            its own count.
        default_tier: The tier of a job whose tier has no rate. Default: such a job fails with an error.
        on_store_failure: The treatment of a job while the store is unavailable. With "closed" (default), the job is
            deferred, uncharged, and keeps its position. With "open", it runs, uncharged. With "local", this process
            applies its own share of the limit, in its memory. If a job has several limits, the strictest decides for
            all.
        processes: For "local", the number of processes that share the limit. Each has an equal share. A bucket's burst
            is divided too, but at least one unit passes at once.
        share: How tenants share the limit while their jobs wait for it: a template over the job's arguments, a callable
            that takes the job, or a `Share` with weights or priorities. The limit has one count, and each tenant gets
            its fair part. Default: first come, first served. *share* is not part of the definition.
        adapt: An `Adapt`, which reduces the rate for the whole fleet while the partner refuses calls; for a
            `Concurrency` limit, a `ByLatency`.
        queue: The number of jobs that may wait for the limit, under each key. If this many jobs wait, a new job that
            would have to wait is refused: the reason is "queue full", and the adapter treats it like a job that has
            waited too long. With 0, no job waits. Default: no limit. With tiers, one value for all, or one for each.
            *queue* is not part of the definition.
        show_key: Whether `throttlekit top`, `explain` and the web page show the names of this limit's keys, tenants and
            workflows instead of digests. Every operator can then read the names. It is not part of the definition.

    Attributes:
        amount, period_us, capacity: The rate, and the most units that can ever pass at once. If the limit has tiers,
            each of its `tiers` has these attributes.
        tiers: The limit of each tier, if there are tiers.
        of_tier: The tier of the limit, if it is one of another limit's `tiers`.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.
    """

    __slots__ = ("__weakref__", "fingerprint", "most", "rate", "varies", *_KEPT, *_SET_LATER)

    algorithm: ClassVar[str]
    """The algorithm's name, in fingerprints and messages."""
    rule_type: ClassVar[type[LimitRule]]

    rate: Rates
    default_tier: str | None
    on_store_failure: OnStoreFailure
    processes: int | None
    tiers: Mapping[str, Limit] | None
    of_tier: str | None
    share: Share | None
    adapt: Adapt | ByLatency | None
    show_key: bool
    prefetch: Any
    prefetch_for: Any
    prefetch_quota: PrefetchQuota | None
    by_value: bool  # whether the limit was read from a message
    varies: bool  # whether the rate depends on the job: there are tiers, or it is a callable
    rule: Any  # a `LimitRule`; None if the rate depends on the job
    sample: LimitRule | None  # if the rate is a callable: the rule at an example rate
    rates: dict[object, Limit] | None  # if the rate is a callable, or a callable returned it: the last results of `at`
    # Identifies the definition: a new definition has a new count. `on_store_failure` is not part of it. If there is a
    # `declared` limit, this is the fingerprint of the declared limit.
    fingerprint: str
    local_part: Limit | None  # with "local": one process's part, as a limit of scope "process"
    declared: Limit | None  # if live control set the rate: the declared limit, whose count is used
    queue = OfRule["int | None"](common=True)
    amount = OfRule[int]()
    period_us = OfRule[int]()
    capacity = OfRule[int]()

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
        adapt: Adapt | ByLatency | None = None,
        held_by: Key = None,
        queue: int | Mapping[str, int] | None = None,
        show_key: bool = False,
        prefetch: None = None,
        prefetch_for: None = None,
        _own: Mapping[str, Any] = _NO_OPTIONS,
        _sent: tuple[str | None, int | None] | None = None,
        **unknown: object,
    ) -> None:
        """Take the algorithm's options in *_own*, and `of_tier` and `varying_us` of a message's limit in *_sent*."""
        if type(self) is Limit:
            raise TypeError("Limit is only a base class: create a TokenBucket, or another of its subclasses")
        if unknown:
            raise unknown_option(type(self), next(iter(unknown)))
        if prefetch is not None or prefetch_for is not None:
            raise ConfigurationError(f"a {type(self).__name__} takes no prefetch=: that is for TokenBucket")
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a limit's name must be some text, not {safe_repr(name)}")
        if not is_encodable(name):
            raise ConfigurationError(f"a limit's name must be text that UTF-8 can encode, not {safe_repr(name)}")
        options, given = {**_own, "queue": queue}, rate
        if isinstance(given, Mapping):
            rate = {plain(tier): each for tier, each in cast("Mapping[Any, Any]", given).items()}
        of_tier, varying_us = _sent or (None, None)
        self._set(
            name=plain(name),
            rate=rate,
            key=key,
            cost=plain(cost),
            scope=scope,
            tier=tier,
            default_tier=plain(default_tier),
            on_store_failure=on_store_failure,
            processes=processes,
            adapt=adapt,
            held_by=held_by,
            show_key=show_key,
            of_tier=of_tier,
            by_value=_sent is not None,
            varies=_depends_on_job(rate),
            **_SET_LATER,
        )
        with self._name_in_errors():
            self._set(share=share if share is None or isinstance(share, Share) else Share(share))
            check_options(self)
            if isinstance(rate, Mapping):
                self._fill_tiers(rate, options)  # pyright: ignore[reportUnknownArgumentType]
            elif callable(rate):
                self._fill_varying(options)
            else:
                self._fill(self.rule_type.of(rate, varying_us=varying_us, **options))

    def _fill(self, rule: LimitRule) -> None:
        """Compute the attributes that follow from one rule."""
        counts_by = rule.counts_by if self.scope == "global" else (*rule.counts_by, self.scope)
        fingerprint = fingerprint_of(" ".join(map(str, (self.algorithm, *counts_by))))
        if self.of_tier is not None:  # tiers are counted apart even if they have the same rate
            fingerprint = fingerprint_of(f"{fingerprint} tier {self.of_tier!r}")
        self._set(
            rule=rule,
            rate=rule.rate,
            rates=None if rule.varying_us is None else {},
            most=rule.capacity,
            fingerprint=fingerprint,
            prefetch=rule.prefetch,
            prefetch_for=rule.prefetch_for,
            prefetch_quota=rule.prefetch_quota,
        )
        check_adapt(self)
        if isinstance(self.cost, int) and (self.by_value or (self.of_tier is None and rule.varying_us is None)):
            self.check_cost(self.cost)
        if self.processes is not None:
            self._set(local_part=self._part(self.processes))

    def _fill_tiers(self, rates: Mapping[str, Rate], options: Mapping[str, Any]) -> None:
        """Create a limit for each tier. A fixed cost is an error only if no tier can admit it."""
        if not rates or not all(isinstance(name, str) and name for name in rates):
            raise ConfigurationError('the rates of tiers must be named by some text, like {"free": "10/m"}')
        if self.tier is None:
            raise ConfigurationError("a rate for each tier needs tier=, the tier of a job")
        check_source("tier", self.tier)
        if self.default_tier is not None and self.default_tier not in list(rates):
            raise ConfigurationError(
                f"default_tier={safe_repr(self.default_tier)} is not one of its tiers {_list_tiers(rates)}"
            )
        of_each: dict[str, dict[str, Any]] = {tier: {} for tier in rates}
        for option, value in options.items():
            given: Any = value.items() if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType]
            values = None if given is None else {plain(name): each for name, each in given}
            if values is not None and values.keys() != rates.keys():
                raise ConfigurationError(f"{option}= must have a value for each of the tiers {_list_tiers(rates)}")
            for tier, own in of_each.items():
                own[option] = value if values is None else values[tier]
        tiers: dict[str, Limit] = {}
        for tier, rate in rates.items():
            if isinstance(rate, Mapping):
                raise ConfigurationError(f"the rate of tier {tier!r} must be a rate, not {safe_repr(rate)}")
            tiers[tier] = self._with_rule(self.rule_type.of(rate, **of_each[tier]), of_tier=tier)
        whole = " | ".join(f"{tier!r} {limit.fingerprint}" for tier, limit in sorted(tiers.items()))
        most = max(limit.most for limit in tiers.values())
        self._set(tiers=tiers, most=most, fingerprint=fingerprint_of(f"tiers {whole}"))
        if isinstance(self.cost, int):
            self.check_cost(self.cost)

    def _fill_varying(self, options: Mapping[str, Any]) -> None:
        """Compute the attributes of a limit whose rate is a callable. All its rates are counted together."""
        sample, later = self.rule_type.sample(options), self.rule_type.later
        self._set(sample=sample, rates={}, most=SAMPLE)
        # A floor is compared with the rates of jobs, and not with the example.
        is_floor = isinstance(self.adapt, Adapt) and sample.period_us > 0
        self._with_rule(sample, adapt=None if is_floor else self.adapt)
        fixed = sorted(f"{each}={getattr(self, each)!r}" for each in self.rule_type.options if each not in later)
        self._set(fingerprint=fingerprint_of(f"{self.algorithm} varying {fixed}"))

    def _with_rule(self: _L, rule: LimitRule, **changes: Any) -> _L:
        """
        Return the same limit with *rule* as its only rule, and with *changes* of its attributes.

        Raises:
            ConfigurationError: The rule and the limit's options can never work together.
        """
        made, kept = object.__new__(type(self)), {each: getattr(self, each) for each in _KEPT}
        made._set(**{**kept, **_SET_LATER, "tier": None, "default_tier": None, "varies": False, **changes})
        made._fill(rule)
        return made

    def _change_rule(self: _L, change: Callable[[LimitRule], LimitRule], *, by_value: bool) -> _L:
        """Return the limit with the rule that *change* returns. The floor of `adapt` changes in proportion."""
        adapt = self.adapt
        if isinstance(adapt, Adapt):
            adapt = adapt.as_part(self.amount, self.period_us)
        with self._name_in_errors():
            return self._with_rule(change(self.rule), adapt=adapt, by_value=by_value)

    def _part(self, processes: int) -> Limit:
        """
        Return the share of one of *processes*, as a limit of scope "process". No job waits for this limit.

        Raises:
            ConfigurationError: The share would never admit a unit.
        """
        begin = f"processes={processes} leaves each of them a share"
        rate, changes = self.rule.divide(processes)
        try:
            with self._name_in_errors():
                return self._with_rule(
                    self.rule.at(rate, queue=None, **changes),
                    scope="process",
                    on_store_failure="closed",
                    processes=None,
                    share=None,
                    adapt=None,
                    by_value=self.by_value and self.of_tier is not None,
                )
        except CostExceedsLimit as error:
            raise ConfigurationError(
                f"{begin} of {error.most} at once, which never admits a cost of {error.cost}"
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{begin} that cannot be held: {error}") from None

    def at(self, rate: Rate | int) -> Limit:
        """
        Return the limit at *rate*, for code without a job, if the limit's rate is a callable. All rates share one
        count. The last few hundred results are cached.

        Raises:
            ConfigurationError: The limit's rate is not a callable, or *rate* can never work.
        """
        is_kept = isinstance(rate, (str, int))
        known = self.rates.get(rate) if is_kept and self.rates is not None else None
        if known is not None:
            return known
        with self._name_in_errors():
            if self.rates is None:
                raise ConfigurationError(
                    f"its rate is {safe_repr(self.rate)}: at() is only for a limit whose rate= is a callable"
                )
            if _depends_on_job(rate):
                raise ConfigurationError(f"a rate was expected, not {safe_repr(rate)}")
            made = self._with_rule((self.sample or self.rule).at(rate))
        if is_kept:
            if len(self.rates) >= _MOST_RATES:
                self.rates.clear()
            self.rates[rate] = made
        return made

    def count_with(self, declared: Limit) -> bool:
        """
        Use the count of *declared*. This limit is a new copy of *declared* with another rate, and only the creator of
        the copy calls this method.

        Returns:
            Whether the algorithm can count both rates together. If not, the copy has its own count.
        """
        rule = self.rule.count_with(declared.rule)
        if rule is None:
            return False
        self._set(rule=rule, fingerprint=declared.fingerprint, declared=declared)
        if self.local_part is not None and declared.local_part is not None:
            self.local_part.count_with(declared.local_part)
        return True

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        """Return the rate with this amount and period, as an argument for the constructor."""
        return cls.rule_type.rate_from(amount, period_us)

    @property
    def varying_us(self) -> int | None:
        """The `LimitRule.varying_us` of the limit's rule, or None if the limit has tiers."""
        rule = self.rule or self.sample
        return None if rule is None else rule.varying_us

    @property
    def in_zone(self) -> bool:
        """Whether the rule depends on a time zone's calendar: see `bind`."""
        return self.rule is not None and self.rule.in_zone

    @property
    def is_derived(self) -> bool:
        """Whether the limit was derived: it is a tier, or the limit at one rate, or was read from a message."""
        return self.by_value or self.of_tier is not None or (self.rates is not None and not self.varies)

    @property
    def definition(self) -> object:
        """A value that must be equal for all limits with one name."""
        if self.declared is not None:
            return self.fingerprint, self.amount, self.period_us, self.capacity
        if self.tiers is None:
            return self.fingerprint
        return tuple(sorted((tier, limit.definition) for tier, limit in self.tiers.items()))

    def for_job(self, job: Job | None) -> Limit:
        """
        Return the limit that applies to *job*: the limit of the job's tier, or if the rate is a callable, the limit at
        the job's rate, or otherwise this limit.

        Raises:
            ConfigurationError: The tier or the rate needs a job and there is none, the template names an argument that
                the job does not have, the callable failed, or there is no such tier or rate.
        """
        if not self.varies:
            return self
        if self.tiers is None:
            with self._name_in_errors():
                if job is None:
                    raise ConfigurationError(
                        'it takes its rate from the job: pass job=, or name the rate: limit.at("10/s")'
                    )
                rate: Any = plain(from_job("rate", self.rate, job))
            return self.at(rate)
        with self._name_in_errors():
            found = plain(from_job("tier", self.tier, job))
        name = found if isinstance(found, str) and found in self.tiers else self.default_tier
        if name is None:
            raise ConfigurationError(
                f"limit {self.name!r}: the tier {show_source(self.tier)} is not one of {_list_tiers(self.tiers)}"
                + (f" on job {job.name!r}" if job else "")
                + ": add a rate for it, or name a default_tier="
            )
        return self.tiers[name]

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> Algorithm:
        """
        Return the algorithm for a request of *cost* units.

        Args:
            around_us: The approximate time, if the rule depends on a time zone's calendar. Only its day is used.
            holder: The name of the holder of a slot, if the limit has slots.
        """
        bound: Algorithm = self.rule.bind(cost, around_us)
        return bound

    def remaining(self, use: Use, now_us: int) -> int:
        """Return the number of whole units that could pass at *now_us*."""
        units: int = self.rule.remaining(use, now_us)
        return units

    def own_options(self) -> Mapping[str, Any]:
        """Return the options that belong to the limit's rate, as in messages and in `repr`."""
        own = {option: getattr(self, option) for option in self.rule_type.options}
        return {name: value for name, value in own.items() if value is not None or name not in self.rule_type.later}

    def _identity(self) -> tuple[object, ...]:
        tier = (self.tier, self.default_tier)
        failure = (self.on_store_failure, self.processes)
        rate = self.rate if self.varies and self.tiers is None else self.varying_us
        own = {"": self} if self.tiers is None else self.tiers
        ways = (self.share, self.adapt, tuple(sorted((tier, repr(limit.queue)) for tier, limit in own.items())))
        shown = self.held_by, self.show_key
        return type(self), self.name, self.definition, rate, self.key, self.cost, *shown, *ways, *tier, *failure

    def __repr__(self) -> str:
        own: Mapping[str, Any] = {} if self.tiers is not None else self.own_options()
        shown = [repr(self.name), repr(self.rate), *(f"{option}={value!r}" for option, value in own.items())]
        for option, default in _DEFAULTS.items():
            value = getattr(self, option)
            shown += [] if value == default else [f"{option}={value!r}"]
        return f"{type(self).__name__}({', '.join(shown)})"


def _depends_on_job(rate: object) -> bool:
    """Whether *rate* is a mapping of tiers, or a callable."""
    return isinstance(rate, Mapping) or callable(rate)


def _list_tiers(tiers: Mapping[str, object]) -> str:
    """Return the names of *tiers*, for an error message."""
    return ", ".join(repr(name) for name in tiers)

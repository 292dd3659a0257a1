"""What every limit has: a name, a rate or several, a key, a cost, a scope. How it counts, its `LimitRule` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.job import Job
from throttlekit._core.limit.adapt import Adapt, SlotAdapt, check_adapt
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
from throttlekit._core.limit.template import Key, check_source, from_job, plain, safe_repr, shown
from throttlekit._core.limit.value import Value
from throttlekit._core.local_quota import PrefetchQuota
from throttlekit._core.storage_keys import is_encodable
from throttlekit.errors import ConfigurationError, CostExceedsLimit

__all__ = ["Limit", "altered", "scaled"]

_DEFAULTS: Mapping[str, object] = {
    "key": None, "cost": 1, "scope": "global", "tier": None, "default_tier": None,
    "on_store_failure": "closed", "processes": None, "share": None, "adapt": None, "held_by": None,
    "show_key": False,
}  # fmt: skip
_NO_OPTIONS: Mapping[str, Any] = {}
_ONE_RULE: Mapping[str, Any] = {
    "tier": None, "default_tier": None, "tiers": None, "sample": None, "declared": None, "local_part": None,
    "varies": False,
}  # fmt: skip
"""What a limit says that has one rule."""
_MOST_RATES = 256
_L = TypeVar("_L", bound="Limit")


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
        show_key: Whether `throttlekit top`, `explain` and the web page show the keys of this limit, its tenants and its
            workflows by their names, and not as digests. Only for names that every operator may read. It is not part of
            the definition.

    Attributes:
        amount, period_us, capacity: The rate, and the most units that can ever pass at once. A limit with tiers has
            them for each of its `tiers`.
        tiers: The limit of each tier, if there are any.
        of_tier: The tier that the limit is of, if it is one of another limit's `tiers`.

    Raises:
        ConfigurationError: A value can never work. The constructor raises it.
    """

    __slots__ = (
        "__weakref__", "adapt", "by_value", "cost", "declared", "default_tier", "fingerprint", "held_by", "key",
        "local_part", "most", "name", "of_tier", "on_store_failure", "prefetch", "prefetch_for", "prefetch_quota",
        "processes", "rate", "rates", "rule", "sample", "scope", "share", "show_key", "tier", "tiers", "varies",
    )  # fmt: skip
    _KEPT = (
        "name", "key", "cost", "scope", "on_store_failure", "processes", "share", "adapt", "held_by",
        "show_key", "of_tier", "by_value",
    )  # fmt: skip
    """What a limit has in common with those that are made of it, but for the arguments of `_with_rule`."""

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
    adapt: Adapt | SlotAdapt | None
    show_key: bool
    prefetch: Any
    prefetch_for: Any
    prefetch_quota: PrefetchQuota | None
    by_value: bool  # whether the limit came in a message
    varies: bool  # whether the rate depends on the job: there are tiers, or it is a callable
    rule: Any  # a `LimitRule`; None if the rate depends on the job
    sample: LimitRule | None  # if the rate is a callable: the rule at some rate
    rates: dict[object, Limit] | None  # if the rate is a callable, or came from one: the last limits that `at` made
    # Identifies the definition: a limit that is redefined begins a new count. What happens while the store fails is not
    # part of it. That of `declared`, if there is one.
    fingerprint: str
    local_part: Limit | None  # with "local": one process's part, as a limit of scope "process"
    declared: Limit | None  # with a rate that live control set: the limit as it was declared, where it counts
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
        adapt: Adapt | SlotAdapt | None = None,
        held_by: Key = None,
        queue: int | Mapping[str, int] | None = None,
        show_key: bool = False,
        prefetch: None = None,
        prefetch_for: None = None,
        _own: Mapping[str, Any] = _NO_OPTIONS,
        _sent: tuple[str | None, int | None] | None = None,
        **unknown: object,
    ) -> None:
        """*_own*: the algorithm's own options. *_sent*: `of_tier` and `varying_us` of one that came in a message."""
        if type(self) is Limit:
            raise TypeError("a Limit alone decides nothing: make a TokenBucket, or another of its algorithms")
        if unknown:
            raise unknown_option(type(self), next(iter(unknown)))
        if prefetch is not None or prefetch_for is not None:
            raise ConfigurationError(f"a {type(self).__name__} takes no prefetch=: that is for TokenBucket")
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a limit's name must be some text, not {safe_repr(name)}")
        if not is_encodable(name):
            raise ConfigurationError(f"a limit's name must be text that UTF-8 can encode, not {safe_repr(name)}")
        options, given = {**_own, "queue": queue}, rate
        if isinstance(given, Mapping):
            rate = {plain(tier): each for tier, each in cast("Mapping[Any, Any]", given).items()}
        of_tier, varying_us = _sent or (None, None)
        self._set(
            name=plain(name), rate=rate, key=key, cost=plain(cost), scope=scope, tier=tier,
            default_tier=plain(default_tier), on_store_failure=on_store_failure, processes=processes, share=None,
            adapt=adapt, held_by=held_by, show_key=show_key, of_tier=of_tier, by_value=_sent is not None, tiers=None,
            rule=None, sample=None, rates=None, declared=None, local_part=None, varies=_depends_on_job(rate),
            prefetch=_own.get("prefetch"), prefetch_for=None, prefetch_quota=None,
        )  # fmt: skip
        with self._named():
            self._set(share=share if share is None or isinstance(share, Share) else Share(share))
            check_options(self)
            if isinstance(rate, Mapping):
                self._fill_tiers(rate, options)  # pyright: ignore[reportUnknownArgumentType]
            elif callable(rate):
                self._fill_varying(options)
            else:
                self._fill(self.rule_type.of(rate, varying_us=varying_us, **options))

    def _fill(self, rule: LimitRule) -> None:
        """Work out what follows from one rule."""
        counts_by = rule.counts_by if self.scope == "global" else (*rule.counts_by, self.scope)
        fingerprint = fingerprint_of(" ".join(map(str, (self.algorithm, *counts_by))))
        if self.of_tier is not None:  # tiers are counted apart even if they have the same rate
            fingerprint = fingerprint_of(f"{fingerprint} tier {self.of_tier!r}")
        self._set(
            rule=rule, rate=rule.rate, rates=None if rule.varying_us is None else {}, most=rule.capacity,
            fingerprint=fingerprint, prefetch=rule.prefetch, prefetch_for=rule.prefetch_for,
            prefetch_quota=rule.prefetch_quota,
        )  # fmt: skip
        check_adapt(self)
        if isinstance(self.cost, int) and (self.by_value or (self.of_tier is None and rule.varying_us is None)):
            self.check_cost(self.cost)
        if self.processes is not None:
            self._set(local_part=self._part(self.processes))

    def _fill_tiers(self, rates: Mapping[str, Rate], options: Mapping[str, Any]) -> None:
        """Make a limit for each tier. A fixed cost is an error only if no tier can admit it."""
        if not rates or not all(isinstance(name, str) and name for name in rates):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError('the rates of tiers must be named by some text, like {"free": "10/m"}')
        if self.tier is None:
            raise ConfigurationError("a rate for each tier needs tier=: which tier is a job's?")
        check_source("tier", self.tier)
        if self.default_tier is not None and self.default_tier not in list(rates):
            raise ConfigurationError(
                f"default_tier={safe_repr(self.default_tier)} is not one of its tiers {_listed(rates)}"
            )
        of_each: dict[str, dict[str, Any]] = {tier: {} for tier in rates}
        for option, value in options.items():
            given: Any = value.items() if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType]
            values = None if given is None else {plain(name): each for name, each in given}
            if values is not None and values.keys() != rates.keys():
                raise ConfigurationError(f"{option}= must have a value for each of the tiers {_listed(rates)}")
            for tier, own in of_each.items():
                own[option] = value if values is None else values[tier]
        tiers: dict[str, Limit] = {}
        for tier, rate in rates.items():
            if isinstance(rate, Mapping):
                raise ConfigurationError(f"the rate of tier {tier!r} must be a rate, not {safe_repr(rate)}")
            tiers[tier] = self._with_rule(partial(self.rule_type.of, rate, **of_each[tier]), of_tier=tier)
        whole = " | ".join(f"{tier!r} {limit.fingerprint}" for tier, limit in sorted(tiers.items()))
        most = max(limit.most for limit in tiers.values())
        self._set(tiers=tiers, most=most, fingerprint=fingerprint_of(f"tiers {whole}"))
        if isinstance(self.cost, int):
            self.check_cost(self.cost)

    def _fill_varying(self, options: Mapping[str, Any]) -> None:
        """All rates of the callable are counted together, whatever they are."""
        sample, later = self.rule_type.sample(options), self.rule_type.later
        self._set(sample=sample, rates={}, most=SAMPLE)
        self._with_rule(lambda: sample)
        fixed = sorted(f"{each}={getattr(self, each)!r}" for each in self.rule_type.options if each not in later)
        self._set(fingerprint=fingerprint_of(f"{self.algorithm} varying {fixed}"))

    def _with_rule(self: _L, make: Callable[[], LimitRule], **changes: Any) -> _L:
        """
        The same limit with the rule that *make* returns, and with *changes* of what it says.

        Raises:
            ConfigurationError: The rule and what the limit says can never work together.
        """
        made, kept = object.__new__(type(self)), {each: getattr(self, each) for each in self._KEPT}
        made._set(**{**_ONE_RULE, **kept, **changes})
        with made._named():
            made._fill(make())
        return made

    def _changed(self: _L, change: Callable[[LimitRule], LimitRule], *, by_value: bool) -> _L:
        """The same limit with the rule that *change* makes of its own. With `adapt`, it falls to the same parts."""
        adapt = self.adapt and self.adapt.as_part(self.amount, self.period_us)
        return self._with_rule(lambda: change(self.rule), adapt=adapt, by_value=by_value)

    def _part(self, processes: int) -> Limit:
        """
        What one of *processes* lets pass on its own, as a limit of scope "process". No job waits in it.

        Raises:
            ConfigurationError: It would let nothing pass.
        """
        begin = f"processes={processes} leaves each of them a share"
        rate, changes = self.rule.divide(processes)
        try:
            return self._with_rule(
                lambda: self.rule.at(rate, queue=None, **changes), scope="process", on_store_failure="closed",
                processes=None, share=None, adapt=None, by_value=self.by_value and self.of_tier is not None,
            )  # fmt: skip
        except CostExceedsLimit as error:
            raise ConfigurationError(
                f"{begin} of {error.most} at once, which never admits a cost of {error.cost}"
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{begin} that cannot be held: {error}") from None

    def at(self, rate: Rate | int) -> Limit:
        """
        Of a limit whose *rate* is a callable: the limit as it is for a job of that *rate*, for code that has no job.
        It counts where the others count. The last few hundred rates are kept.

        Raises:
            ConfigurationError: The limit's rate is not a callable, or *rate* can never work.
        """
        is_kept = isinstance(rate, (str, int))
        known = self.rates.get(rate) if is_kept and self.rates is not None else None
        if known is not None:
            return known
        with self._named():
            if self.rates is None:
                raise ConfigurationError(
                    f"its rate is {safe_repr(self.rate)}: at() is for a limit whose rate= is a callable of the job"
                )
            if _depends_on_job(rate):
                raise ConfigurationError(f"a rate was expected, not {safe_repr(rate)}")
            made = self._with_rule(lambda: (self.sample or self.rule).at(rate))
        if is_kept:
            if len(self.rates) >= _MOST_RATES:
                self.rates.clear()
            self.rates[rate] = made
        return made

    def count_with(self, declared: Limit) -> bool:
        """
        Count where *declared* counts, of which this is a copy with another rate: only what makes the copy may call it.

        Returns:
            Whether the algorithm can. If not, the copy counts by itself.
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
        """The rate whose amount and period these are, as the constructor takes it."""
        return cls.rule_type.rate_from(amount, period_us)

    @property
    def varying_us(self) -> int | None:
        """See `LimitRule.varying_us`."""
        rule = self.rule or self.sample
        return None if rule is None else rule.varying_us

    @property
    def in_zone(self) -> bool:
        """Whether the rule depends on a time zone's calendar: see `bind`."""
        return self.rule is not None and self.rule.in_zone

    @property
    def is_derived(self) -> bool:
        """Whether it was made of another limit: one of its tiers, it at a rate, or it as it came in a message."""
        return self.by_value or self.of_tier is not None or (self.rates is not None and not self.varies)

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
                if job is None:
                    raise ConfigurationError(
                        'it takes its rate from the job: pass job=, or name the rate: limit.at("10/s")'
                    )
                rate: Any = plain(from_job("rate", self.rate, job))
            return self.at(rate)
        with self._named():
            found = plain(from_job("tier", self.tier, job))
        name = found if isinstance(found, str) and found in self.tiers else self.default_tier
        if name is None:
            raise ConfigurationError(
                f"limit {self.name!r}: the tier {shown(self.tier)} is not one of {_listed(self.tiers)}"
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
        bound: Algorithm = self.rule.bind(cost, around_us, holder)
        return bound

    def remaining(self, use: Use, now_us: int) -> int:
        """Whole units that would pass at *now_us*."""
        units: int = self.rule.remaining(use, now_us)
        return units

    @property
    def max_queue(self) -> int | None:
        """How many jobs may wait for one more to join them; None: any number."""
        return self.queue if self.rule is None else self.rule.queue

    def own_options(self) -> Mapping[str, Any]:
        """The options that belong to its rate, as messages and `repr` have them."""
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


def altered(limit: Limit, rate: Any, burst: int | None = None) -> Limit:
    """
    *limit* with another *rate*; a concurrency limit, with another amount. It counts where *limit* counts, if the
    algorithm can count both together (`Limit.count_with`).

    Args:
        burst: The new burst. Default: as declared. If the declared burst is the default of the declared rate: the
            default of the new rate.

    Raises:
        ConfigurationError: The limit cannot take it: not a rate of its kind, a burst where it has none, tiers, or a
            cost that would never pass.
    """
    limit = limit.declared or limit
    if limit.rates is not None:
        if burst is not None:
            raise ConfigurationError(f"limit {limit.name!r} has no burst of its own: it follows from the rate")
        return limit.at(rate)
    if limit.tiers is not None:
        raise ConfigurationError(f"limit {limit.name!r} has tiers: name the one whose rate is meant")
    if burst is not None and "burst" not in limit.rule_type.options:
        raise ConfigurationError(f"limit {limit.name!r} is a {type(limit).__name__}, which has no burst")
    made = limit._changed(lambda rule: rule.with_rate(rate, burst), by_value=True)  # pyright: ignore[reportPrivateUsage]
    if made.fingerprint != limit.fingerprint:
        made.count_with(limit)
    return made


def scaled(limit: Limit, thousandths: int) -> Limit:
    """
    *limit*, as it is for a job, at so many *thousandths* of its rate; a concurrency limit, of its amount. It counts
    where *limit* counts.

    Never above the rate of *limit*, and at least one unit in 366 days. What a fixed cost needs still passes, and of a
    limit with `processes` each one's share of it. The burst stays, unless it is the default of the rate. With `adapt`,
    the rate falls to the same parts of the lower rate, the floor included.

    Raises:
        ConfigurationError: It cannot be counted together with *limit*, so more than its bound would pass.
    """
    if thousandths >= 1000:
        return limit
    least = (limit.cost if isinstance(limit.cost, int) else 1) * (limit.processes or 1)
    varies, declared = limit.rates is not None, limit.declared or limit
    by_value = limit.by_value or not varies
    made = limit._changed(lambda rule: rule.scale(thousandths, least), by_value=by_value)  # pyright: ignore[reportPrivateUsage]
    if not varies and made.fingerprint != declared.fingerprint and not made.count_with(declared):
        raise ConfigurationError(
            f"limit {limit.name!r} is a {type(limit).__name__}, which counts another rate by itself: more than its "
            "bound would pass"
        )
    return made


def _depends_on_job(rate: object) -> bool:
    """Whether *rate* is one for each tier, or a callable."""
    return isinstance(rate, Mapping) or callable(rate)


def _listed(tiers: Mapping[str, object]) -> str:
    """The names of *tiers*, as an error message shows them."""
    return ", ".join(repr(name) for name in tiers)

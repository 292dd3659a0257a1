"""What every limit has: a name, a rate or several, a key, a cost, a scope. The algorithms add their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.job import Job
from throttlekit._core.limit.fingerprint import fingerprint_of, fingerprint_of_tier
from throttlekit._core.limit.local_share import OnStoreFailure, check_failure, share_of, shared_window
from throttlekit._core.limit.prefetch_options import PrefetchOptions
from throttlekit._core.limit.rate import Rate, parse_rate
from throttlekit._core.limit.template import (
    Key,
    check_names,
    check_source,
    check_units,
    from_job,
    key_text,
    safe_repr,
    shown,
)
from throttlekit.errors import ConfigurationError, CostExceedsLimit

__all__ = ["Cost", "Limit", "Rates", "Scope", "Tier"]

Cost: TypeAlias = "int | Callable[[Job], int]"
Rates: TypeAlias = "Rate | Mapping[str, Rate]"
Scope: TypeAlias = Literal["global", "queue", "job", "process"]
Tier: TypeAlias = "str | Callable[[Job], str] | None"


class Limit(PrefetchOptions):
    """
    A rule that jobs are held to, as an immutable value. Make one of its algorithms:
    `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingLog`, `Concurrency`.

    They have in common:

    Args:
        name: The limit's name: the same name is the same budget, in every process and framework.
        rate: "100/minute", "10/s", "5/10s" or (5, timedelta(seconds=10)). Or one for each tier:
            {"free": "10/m", "pro": "100/m"}, with *tier*.
        key: What is counted apart: a template over the job's arguments ("{account_id}"), or a
            callable that is given the job. Default: one count for all.
        cost: Units that one job takes, a whole number of at least 0, or a callable that is given the
            job. 0 only looks.
        scope: What else is counted apart: "global" (default) nothing, "queue" each queue, "job" each job
            name. "process": each worker process on its own, in its memory, with no round trip; such
            a limit is asked first, so that a process over its own share asks nobody.
        tier: Which of the rates is a job's: a template or a callable, as for *key*. Each tier is counted apart.
        default_tier: The tier of jobs whose tier is none of those given. Default: they fail, with the error.
        on_store_failure: What becomes of a job while the store gives no answer. "closed" (default): it is deferred,
            uncharged, and keeps its place. "open": it runs, uncharged. "local": this process holds it to its own
            share of the limit, in its memory. Of several limits of a job, the strictest decides for all.
        processes: For "local": how many processes share the limit, so that each has so much of it; a bucket's
            burst is shared out too, but at least one unit passes at once.

    Attributes:
        amount, period_us: The rate. A limit with tiers has none of its own, but `tiers`.
        capacity: The most units that can ever pass at once.
        most: The greatest cost.
        fingerprint: Stands for the definition: a limit that is defined anew counts anew. Failure is no part of it.
        share: With "local": one process's share, as a limit of scope "process".

    Raises:
        ConfigurationError: A value that can never work, at once.
    """

    __slots__ = (
        "amount",
        "by_value",
        "capacity",
        "cost",
        "default_tier",
        "fingerprint",
        "key",
        "most",
        "name",
        "of_tier",
        "on_store_failure",
        "period_us",
        "processes",
        "rate",
        "scope",
        "share",
        "tier",
        "tiers",
    )

    algorithm: ClassVar[str]
    """The algorithm's name, in fingerprints and messages."""
    options: ClassVar[tuple[str, ...]] = ()
    """The algorithm's own options, by name."""

    name: str
    rate: Rates
    key: Key
    cost: Cost
    scope: Scope
    tier: Tier
    default_tier: str | None
    tiers: Mapping[str, Limit] | None
    of_tier: str | None
    amount: int
    period_us: int
    capacity: int
    most: int
    fingerprint: str
    by_value: bool
    on_store_failure: OnStoreFailure
    processes: int | None
    share: Limit | None

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
    ) -> None:
        self._define(name, rate, {}, key, cost, scope, tier, default_tier, on_store_failure, processes)

    def _define(
        self,
        name: str,
        rate: Rates,
        options: Mapping[str, Any],
        key: Key,
        cost: Cost,
        scope: Scope,
        tier: Tier,
        default_tier: str | None,
        on_store_failure: OnStoreFailure = "closed",
        processes: int | None = None,
    ) -> None:
        """Set everything up; the algorithm's own part is `_shape`."""
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a limit's name must be some text, not {safe_repr(name)}")
        rate = dict(rate) if isinstance(rate, Mapping) else rate
        self._set(name=name, rate=rate, key=key, cost=cost, scope=scope, tier=tier, default_tier=default_tier)
        self._set(tiers=None, of_tier=None, by_value=False)
        self._set(on_store_failure=on_store_failure, processes=processes, share=None)
        with self._named():
            check_failure(on_store_failure, processes, scope)
            check_source("key", key)
            if not callable(cost):
                check_units(cost)
            if scope not in get_args(Scope):
                raise ConfigurationError(
                    f'the scope must be "global", "queue", "job" or "process", not {safe_repr(scope)}'
                )
            if isinstance(rate, Mapping):
                self._set_tiers(rate, options)
                return
            if tier is not None or default_tier is not None:
                raise ConfigurationError('tier= needs a rate for each tier, like {"free": "10/m", "pro": "100/m"}')
            amount, period_us = self._parse_rate(rate)
            self._set(amount=amount, period_us=period_us)
            capacity, definition = self._shape(**options)
            definition = definition if scope == "global" else f"{definition} {scope}"
            self._set(capacity=capacity, most=self._most(capacity), fingerprint=fingerprint_of(definition))
            if isinstance(cost, int):
                self.check_cost(cost)
            self._set(share=None if processes is None else share_of(self, processes, options))

    def shared_out(self, processes: int, options: Mapping[str, Any]) -> tuple[Rate, Mapping[str, Any]]:
        """The rate and the options of what one of *processes* may let pass on its own."""
        return shared_window(self.amount, self.period_us, processes), options

    def _shape(self, **options: Any) -> tuple[int, str]:
        """Work out the algorithm's own attributes; return the capacity, and what the definition comes to."""
        raise TypeError("a Limit alone decides nothing: make a TokenBucket, or another of its algorithms")

    def _parse_rate(self, rate: Rate) -> tuple[int, int]:
        return parse_rate(rate)

    def _most(self, capacity: int) -> int:
        return capacity

    @classmethod
    def rate_from(cls, amount: int, period_us: int) -> Any:
        """The rate whose amount and period these are, as the constructor takes it."""
        return amount, timedelta(microseconds=period_us)

    @property
    def definition(self) -> object:
        """What two limits of one name must have in common."""
        if self.tiers is None:
            return self.fingerprint
        return tuple(sorted((tier, limit.definition) for tier, limit in self.tiers.items()))

    def bind(self, cost: int, around_us: int = 0, holder: str = "") -> Algorithm:
        """
        What a request of *cost* units means to this limit.

        Args:
            around_us: About what time it is, if the rule depends on a time zone's calendar; within a day the same.
            holder: Who will hold what it takes, if that is given back.
        """
        raise NotImplementedError

    def remaining(self, use: Use, now_us: int) -> int:
        """Whole units that would pass at *now_us*."""
        return max(0, self.capacity - use.units)

    def max_queue_us(self, algorithm: Algorithm) -> int | None:
        """How far off its slot may be for a job to join the waiting line; None: any."""
        return None

    def _set_tiers(self, rates: Mapping[str, Rate], options: Mapping[str, Any]) -> None:
        if not rates or not all(isinstance(name, str) and name for name in rates):
            raise ConfigurationError('the rates of tiers must be named by some text, like {"free": "10/m"}')
        if self.tier is None:
            raise ConfigurationError("a rate for each tier needs tier=: which tier is a job's?")
        check_source("tier", self.tier)
        if self.default_tier is not None and self.default_tier not in list(rates):
            raise ConfigurationError(
                f"default_tier={safe_repr(self.default_tier)} is none of its tiers {_listed(rates)}"
            )
        for option, value in options.items():
            if isinstance(value, Mapping) and {*value} != {*rates}:  # pyright: ignore[reportUnknownArgumentType]
                raise ConfigurationError(f"{option}= must have a value for each of the tiers {_listed(rates)}")
        make: Any = type(self)
        tiers: dict[str, Limit] = {}
        for tier, rate in rates.items():
            if isinstance(rate, Mapping):
                raise ConfigurationError(f"the rate of tier {tier!r} must be a rate, not {safe_repr(rate)}")
            own: dict[str, Any] = {
                name: value[tier] if isinstance(value, Mapping) else value for name, value in options.items()
            }
            own.update(on_store_failure=self.on_store_failure, processes=self.processes)
            limit: Limit = make(self.name, rate, key=self.key, scope=self.scope, **own)
            limit._set_tier(tier, self.cost)
            tiers[tier] = limit
        if isinstance(self.cost, int):
            # Refused at once is only what no tier admits.
            max(tiers.values(), key=lambda limit: limit.most).check_cost(self.cost)
        whole = " | ".join(f"{tier!r} {limit.fingerprint}" for tier, limit in sorted(tiers.items()))
        self._set(tiers=tiers, fingerprint=fingerprint_of(f"tiers {whole}"))

    def _set_tier(self, tier: str | None, cost: Cost) -> None:
        if tier is not None:
            self._set(cost=cost, of_tier=tier, fingerprint=fingerprint_of_tier(self.fingerprint, tier))
            if self.share is not None:
                self.share._set_tier(tier, cost)

    def for_job(self, job: Job | None) -> Limit:
        """
        The limit that *job* is held to: of its tier, if there are tiers; else this one.

        Raises:
            ConfigurationError: There is no job to take the tier from, the template names an argument that
                the job does not have, the callable failed, or what it came to is no tier.
        """
        if self.tiers is None:
            return self
        with self._named():
            found = from_job("tier", self.tier, job)
        name = found if isinstance(found, str) and found in self.tiers else self.default_tier
        if name is None:
            raise ConfigurationError(
                f"limit {self.name!r}: the tier {shown(self.tier)} came to none of {_listed(self.tiers)}"
                + (f" on job {job.name!r}" if job else "")
                + ": add a rate for it, or name a default_tier="
            )
        return self.tiers[name]

    def key_of(self, job: Job | None) -> str:
        """
        Work out the key under which *job* is counted.

        Raises:
            ConfigurationError: The limit has a key and there is no job to take it from, the template
                names an argument that the job does not have, or the callable failed.
        """
        if self.key is None:
            return ""
        try:
            return key_text(from_job("key", self.key, job))
        except ConfigurationError as error:
            raise self._told(error) from error.__cause__

    def part_of(self, job: Job | None) -> str | None:
        """
        What the scope adds to the key: the queue's or the job's name. None: nothing.

        Raises:
            ConfigurationError: The scope needs a job, and there is none.
        """
        if self.scope not in ("queue", "job"):
            return None
        if job is None:
            raise ConfigurationError(f"limit {self.name!r} counts each {self.scope} apart: pass job=")
        part = job.queue if self.scope == "queue" else job.name
        if not isinstance(part, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"limit {self.name!r} counts each {self.scope} apart: the job's must be text, not {type(part).__name__}"
            )
        return part

    def cost_of(self, job: Job | None) -> int:
        """
        Work out how many units *job* takes.

        Raises:
            ConfigurationError: The callable failed, or there is no job to give it, or what it
                returned is not a whole number of at least 0.
            CostExceedsLimit: It is more than the capacity: it could never pass.
        """
        if isinstance(self.cost, int):
            return self.cost if self.cost <= self.most else self.check_cost(self.cost)
        with self._named():
            cost = from_job("cost", self.cost, job)
        return self.check_cost(cost)  # type: ignore[arg-type]

    def check_cost(self, cost: int) -> int:
        """Return *cost* if a job may ask for it; raise as `cost_of` does if not."""
        with self._named():
            check_units(cost)
        if cost > self.most:
            raise CostExceedsLimit(cost=cost, limit=self.name, most=self.most, remedy=self._remedy(cost))
        return cost

    def given_cost(self, cost: int) -> int:
        """What this limit takes if a call gives all of its limits a *cost*; raises as `cost_of` does."""
        return self.check_cost(cost)

    def check_units(self, units: int) -> int:
        """Return *units* if it is a number of units, however large; raise a `ConfigurationError` if not."""
        with self._named():
            check_units(units)
        return units

    def _remedy(self, cost: int) -> str:
        return f"raise the rate's amount to at least {cost}"

    def check_function(self, function: Callable[..., Any]) -> None:
        """
        Make sure that the key and the tier can be worked out from the arguments of *function*.

        Raises:
            ConfigurationError: A template names an argument that *function* does not take.
        """
        for what, source in (("key", self.key), ("tier", self.tier)):
            with self._named():
                check_names(what, source, function)

    @contextmanager
    def _named(self) -> Generator[None, None, None]:
        """Errors begin with the limit's name."""
        try:
            yield
        except CostExceedsLimit:
            raise
        except ConfigurationError as error:
            raise self._told(error) from error.__cause__

    def _told(self, error: ConfigurationError) -> ConfigurationError:
        begin = f"limit {self.name!r}: "
        return ConfigurationError(begin + str(error).removeprefix(begin))

    def by_value_of(self, tier: str | None) -> Limit:
        """This limit, just made from a message, as the one of *tier*."""
        self._set_tier(tier, self.cost)
        self._set(by_value=True)
        return self

    def __getattr__(self, name: str) -> Any:
        if name not in ("tiers", "name") and self.tiers is not None and hasattr(next(iter(self.tiers.values())), name):
            raise AttributeError(f"limit {self.name!r} has tiers, and a {name!r} for each: ask one of its .tiers")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _identity(self) -> tuple[object, ...]:
        tier = (self.tier, self.default_tier)
        failure = (self.on_store_failure, self.processes)
        return type(self), self.name, self.definition, self.key, self.cost, *tier, *failure

    def __repr__(self) -> str:
        told = [repr(self.name), repr(self.rate)]
        shown_if = {
            "key": None, "cost": 1, "scope": "global", "tier": None, "default_tier": None,
            "on_store_failure": "closed", "processes": None,
        }  # fmt: skip
        told += [f"{option}={getattr(self, option)!r}" for option in self.options if self.tiers is None]
        told += [f"{name}={getattr(self, name)!r}" for name, usual in shown_if.items() if getattr(self, name) != usual]
        return f"{type(self).__name__}({', '.join(told)})"


def _listed(tiers: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in tiers)

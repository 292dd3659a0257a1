"""Limits: the configured rules, as values."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from throttlekit._core.gcra import Bucket
from throttlekit._core.job import Job
from throttlekit._core.key import Key, argument_names, check_key, filled, key_text, shown
from throttlekit._core.rate import LONGEST_PERIOD_US, Rate, parse_rate
from throttlekit.errors import ConfigurationError, CostExceedsLimit

__all__ = ["Cost", "Limit", "TokenBucket"]

Cost: TypeAlias = "int | Callable[[Job], int]"

_LONGEST_REFILL_US = 10 * LONGEST_PERIOD_US


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """
    So many units per period on average, with bursts.

    Guarantee: in any window of length w, at most `burst + w / interval` units pass, where
    interval = period / amount. The bound is never passed. It is reached, but for rates of many thousands
    a second whose interval is no whole number of microseconds: there each job's charge is rounded up.

    When to choose it: the partner publishes "100 requests a minute", and does not mind a few at once.
    The default burst is one second's worth of the rate, at least 1: enough that a job delivered a
    little late still finds its unit. Costs one integer per key in the store.

    Args:
        name: The limit's name: the same name is the same budget, in every process and framework.
        rate: "100/minute", "10/s", "5/10s" or (5, timedelta(seconds=10)).
        burst: Capacity in units, **including** the first. Default: one second's worth, at least 1.
        key: What is counted apart: a template over the job's arguments ("{account_id}"), or a
            callable that is given the job. Default: one count for all.
        cost: Units that one job takes, a whole number of at least 0, or a callable that is given the
            job. 0 only looks.

    Raises:
        ConfigurationError: A value that can never work, at once.

    The generic cell rate algorithm (ITU-T I.371), in integer microseconds.
    """

    name: str
    rate: Rate
    burst: int = field(default=0, kw_only=True)
    key: Key = field(default=None, kw_only=True)
    cost: Cost = field(default=1, kw_only=True)
    amount: int = field(init=False, repr=False, compare=False)
    period_us: int = field(init=False, repr=False, compare=False)
    bucket: Bucket = field(init=False, repr=False, compare=False)
    fingerprint: str = field(init=False, repr=False, compare=False)
    by_value: bool = field(init=False, repr=False, compare=False)

    def __init__(self, name: str, rate: Rate, *, burst: int | None = None, key: Key = None, cost: Cost = 1) -> None:
        _check_name(name)
        try:
            amount, period_us = parse_rate(rate)
            whole_burst = max(1, amount * 1_000_000 // period_us) if burst is None else burst
            _check_burst(whole_burst, rate, amount, period_us)
            check_key(key)
            _check_declared_cost(cost)
        except ConfigurationError as error:
            raise ConfigurationError(f"limit {name!r}: {error}") from None
        if isinstance(cost, int) and cost > whole_burst:
            raise CostExceedsLimit(cost=cost, limit=name, most=whole_burst)
        common = math.gcd(amount, period_us)
        bucket = Bucket.of(amount // common, period_us // common, whole_burst)
        definition = f"token-bucket {amount // common} {period_us // common} {whole_burst}"
        for attribute, value in {
            "name": name,
            "rate": rate,
            "burst": whole_burst,
            "key": key,
            "cost": cost,
            "amount": amount,
            "period_us": period_us,
            "bucket": bucket,
            "by_value": False,
            "fingerprint": hashlib.blake2b(definition.encode(), digest_size=5).hexdigest(),
        }.items():
            object.__setattr__(self, attribute, value)

    def key_of(self, job: Job | None) -> str:
        """
        Work out the key under which *job* is counted.

        Raises:
            ConfigurationError: The limit has a key and there is no job to take it from, the template
                names an argument that the job does not have, or the callable failed.
        """
        if self.key is None:
            return ""
        if job is None:
            raise ConfigurationError(
                f"limit {self.name!r} takes its key from the job ({shown(self.key)}): "
                "pass job=, or the key itself as key="
            )
        try:
            if isinstance(self.key, str):
                return key_text(filled(self.key, job.arguments))
            return key_text(self.key(job))
        except ConfigurationError as error:
            raise ConfigurationError(f"limit {self.name!r}: {error}") from error
        except Exception as error:
            if isinstance(self.key, str) and isinstance(error, (KeyError, AttributeError, IndexError)):
                has = ", ".join(sorted(job.arguments)) or "no arguments"
                fault = f"the key {shown(self.key)} names {error}, which job {job.name!r} does not have; it has {has}"
            else:
                # The kind of error, not its text: that may hold a job's argument, and this may be logged.
                fault = f"the key {shown(self.key)} failed on job {job.name!r}: {type(error).__name__}"
            raise ConfigurationError(f"limit {self.name!r}: {fault}") from error

    def cost_of(self, job: Job | None) -> int:
        """
        Work out how many units *job* takes.

        Raises:
            ConfigurationError: The callable failed, or there is no job to give it, or what it
                returned is not a whole number of at least 0.
            CostExceedsLimit: It is more than the burst: it could never pass.
        """
        if isinstance(self.cost, int):
            return self.cost
        if job is None:
            raise ConfigurationError(f"limit {self.name!r} takes its cost from the job: pass job=, or cost=")
        try:
            cost = self.cost(job)
        except Exception as error:
            raise ConfigurationError(
                f"limit {self.name!r}: its cost failed on job {job.name!r}: {type(error).__name__}"
            ) from error
        return self.check_cost(cost)

    def check_cost(self, cost: int) -> int:
        """Return *cost* if a job may ask for it; raise as `cost_of` does if not."""
        try:
            _check_units(cost)
        except ConfigurationError as error:
            raise ConfigurationError(f"limit {self.name!r}: {error}") from None
        if cost > self.burst:
            raise CostExceedsLimit(cost=cost, limit=self.name, most=self.burst)
        return cost

    def check_function(self, function: Callable[..., Any]) -> None:
        """
        Make sure that the key can be worked out from the arguments of *function*.

        Raises:
            ConfigurationError: The key's template names an argument that *function* does not take.
        """
        if not isinstance(self.key, str):
            return
        parameters = inspect.signature(function).parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return
        for name in argument_names(self.key):
            if name not in parameters:
                raise ConfigurationError(
                    f"limit {self.name!r}: its key {self.key!r} names an argument {name!r} that "
                    f"{getattr(function, '__qualname__', function)!s}({', '.join(parameters)}) does not take"
                )

    def dump(self, job: Job) -> dict[str, Any]:
        """This limit by value, as it stands for *job*: plain data for a message, key and cost worked out."""
        return {
            "name": self.name,
            "rate": [self.amount, self.period_us],
            "burst": self.burst,
            "key": self.key_of(job),
            "cost": self.cost_of(job),
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> TokenBucket:
        """
        The limit that `dump` wrote. It may differ from one of the same name that is declared here: the
        message's sender may run another release.

        Raises:
            ConfigurationError: *data* is not what `dump` writes.
        """
        try:
            amount, period_us = data["rate"]
            key = data["key"]
            limit = cls(
                data["name"],
                (amount, timedelta(microseconds=period_us)),
                burst=data["burst"],
                key=(lambda _: key) if key else None,
                cost=data["cost"],
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"a limit in the message is not one that throttlekit wrote: {error!r}") from None
        object.__setattr__(limit, "by_value", True)
        return limit


Limit: TypeAlias = TokenBucket
"""Any limit."""


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"a limit's name must be some text, not {name!r}")


def _check_burst(burst: object, rate: Rate, amount: int, period_us: int) -> None:
    if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
        raise ConfigurationError(
            f"the burst must be a whole number of at least 1, not {burst!r}: it includes the first unit"
        )
    if burst * period_us > _LONGEST_REFILL_US * amount:
        raise ConfigurationError(f"a burst of {burst} at {rate!r} would take more than ten years to fill: lower it")


def _check_declared_cost(cost: object) -> None:
    if not callable(cost):
        _check_units(cost)


def _check_units(cost: object) -> None:
    if isinstance(cost, bool) or not isinstance(cost, int) or cost < 0:
        told = repr(cost) if isinstance(cost, (int, float)) else type(cost).__name__
        raise ConfigurationError(f"a cost must be a whole number of at least 0, not {told}")

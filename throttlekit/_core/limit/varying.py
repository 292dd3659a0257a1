"""Limits whose rate the application gives for each job: one count for all rates of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from throttlekit._core.limit.rate import Rate
from throttlekit._core.limit.template import from_job, plain, safe_repr
from throttlekit.errors import ConfigurationError

if TYPE_CHECKING:
    from throttlekit._core.job import Job

__all__ = ["depends_on_job", "fill_varying", "limit_at", "rate_of", "remade_at"]

_MOST_RATES = 256
_SAMPLE = 1_000_000  # an amount of which every number of processes has a share


def depends_on_job(rate: object) -> bool:
    """Whether *rate* is one for each tier, or a callable."""
    return isinstance(rate, Mapping) or callable(rate)


def fill_varying(limit: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The attributes of *limit*, whose rate is a callable and whose algorithm's own *options* are these.

    Raises:
        ConfigurationError: The algorithm cannot count all rates together, or an option can never work.
    """
    varying_us = limit.check_varying(options)
    limit._set(varying_us=varying_us, rates={})
    sample = remade_at(limit, limit.rate_from(_SAMPLE, 86_400_000_000) or _SAMPLE, options, limit.adapt)
    own = {f"_{option}": getattr(sample, option) for option in limit.options if option != "burst"}
    return {"most": _SAMPLE, **own}


def rate_of(limit: Any, job: Job | None) -> Any:
    """
    The rate that the callable of *limit* returns for *job*.

    Raises:
        ConfigurationError: There is no job, or the callable failed.
    """
    if job is None:
        raise ConfigurationError('it takes its rate from the job: pass job=, or name the rate: limit.at("10/s")')
    return plain(from_job("rate", limit.rate, job))


def limit_at(limit: Any, rate: Rate | int) -> Any:
    """
    *limit* at *rate*: the same object for the same rate, for the last few hundred rates.

    Raises:
        ConfigurationError: The rate of *limit* is fixed, or *rate* is not a rate of its kind.
    """
    if limit.varying_us is None:
        raise ConfigurationError(
            f"its rate is {safe_repr(limit.rate)}: at() is for a limit whose rate= is a callable of the job"
        )
    known = limit.rates.get(rate) if isinstance(rate, (str, int)) else None
    if known is not None:
        return known
    if depends_on_job(rate):
        raise ConfigurationError(f"a rate was expected, not {safe_repr(rate)}")
    made = remade_at(limit, rate, {option: getattr(limit, option) for option in limit.options}, limit.adapt)
    if isinstance(rate, (str, int)):
        if len(limit.rates) >= _MOST_RATES:
            limit.rates.clear()
        limit.rates[rate] = made
    return made


def remade_at(limit: Any, rate: Any, options: Mapping[str, Any], adapt: Any) -> Any:
    """*limit*, whose rate is a callable, at *rate* and with *adapt*; *options* are its algorithm's own."""
    return type(limit)(
        limit.name, rate, key=limit.key, cost=limit.cost, scope=limit.scope, on_store_failure=limit.on_store_failure,
        processes=limit.processes, share=limit.share, adapt=adapt, held_by=limit.held_by,
        _varying_us=limit.varying_us, _by_value=limit.by_value, **options,
    )  # fmt: skip

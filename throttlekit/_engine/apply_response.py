"""Apply response headers to limits: select the limits that a response describes, and slow them down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.decision import Charged, Decision
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.slowdown import Remaining
from throttlekit._engine.claims import Claim, under
from throttlekit._engine.rate_limited import LONGEST_BY_RESPONSE, read_response
from throttlekit._util.log_limiter import Every
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Slowing

if TYPE_CHECKING:
    from throttlekit._engine.response_headers import Reading, ReportedLimits, Unit

__all__ = ["apply_response", "claims_of", "limits_by_unit", "remaining_of"]

_DENIED = (429, 503)
_MOST = 10**9 - 1
_SOON_US = 1000
_log = logging.getLogger("throttlekit")
_not_stored = Every()


def apply_response(
    slow_down: Callable[[Sequence[tuple[Limit, Slowing]]], None],
    response: Any,
    claims: Mapping[Unit, Sequence[Claim]],
) -> None:
    """Slow *claims* down to the remaining units that *response* reports. If the store does not answer, log that."""
    reported = read_response(response)
    slowings = [
        (each.limit, Slowing(each.claim, remaining))
        for unit, those in claims.items()
        for each in those
        if (remaining := remaining_of(reported, unit, each.limit))
    ]
    try:
        if slowings:
            slow_down(slowings)
    except StoreUnavailable as error:
        if _not_stored.due():
            _log.warning("%s. The rate-limit headers of a response were not applied.", error)


def remaining_of(reported: ReportedLimits, unit: Unit, limit: Limit) -> Remaining | None:
    """
    Return the strictest report of *reported* for *unit*: that of the fewest units a second. A denial with Retry-After
    leaves no units. A time of more than an hour counts as an hour, because later responses report more.

    Returns:
        None if *limit* itself admits no more than that.
    """
    found = [_read_remaining(each, limit) for each in reported.readings if each.unit == unit]
    if reported.retry_after is not None and reported.status in _DENIED:
        found.append(_within_an_hour(0, reported.retry_after))
    reports = [each for each in found if each and each.reset_us >= _SOON_US]
    if not reports:
        return None
    strictest = min(reports, key=lambda each: (each.remaining / each.reset_us, -each.reset_us))
    most = limit.capacity + limit.amount * strictest.reset_us / limit.period_us
    return strictest if strictest.remaining < most else None


def _read_remaining(reading: Reading, limit: Limit) -> Remaining | None:
    units = reading.until_reset
    if reading.remaining is None or units is None:
        return None
    if reading.reset is not None:
        return _within_an_hour(units, reading.reset)
    if reading.window is not None:
        return _within_an_hour(reading.remaining, reading.window)  # the reset is not known, but the window ends by then
    # The reset is not known. Allow these units during the time that the limit's own rate takes for them.
    seconds = max(1, reading.remaining) * limit.period_us / limit.amount / 1_000_000
    return _within_an_hour(reading.remaining, seconds)


def _within_an_hour(units: int, seconds: float) -> Remaining:
    return Remaining(min(_MOST, units), round(min(seconds, LONGEST_BY_RESPONSE) * 1_000_000))


def limits_by_unit(
    limit: Limit | None, tokens: Limit | None, input_tokens: Limit | None, output_tokens: Limit | None
) -> dict[Unit, Limit]:
    """
    Return the limits that the caller named, by unit.

    Raises:
        ConfigurationError: An argument is not a limit, or has no rate.
    """
    named: dict[Unit, Limit | None] = {
        "requests": limit,
        "tokens": tokens,
        "input tokens": input_tokens,
        "output tokens": output_tokens,
    }
    for each in named.values():
        if each is not None and (not isinstance(each, Limit) or isinstance(each, Concurrency)):
            raise ConfigurationError(f"apply_response takes a limit that has a rate, not {safe_repr(each)}")
    return {unit: each for unit, each in named.items() if each is not None}


def claims_of(decision: Decision, named: Mapping[Unit, Limit]) -> dict[Unit, list[Claim]]:
    """
    Return the claims of *decision* on the *named* limits, under its keys. If the caller named no limit for requests,
    the only other limit of *decision* is used for them.

    Raises:
        ConfigurationError: *decision* did not charge a named limit, or more than one limit could count requests.
    """
    if decision.reason == "store unavailable":
        return {}  # the fleet does not count units of this process's own share
    rates = [each for each in decision.charged if not isinstance(each.limit, Concurrency)]
    meant: dict[Unit, list[Charged]] = {}
    for unit, limit in named.items():
        meant[unit] = [each for each in rates if each.limit.name == limit.name]
        if not meant[unit]:
            raise ConfigurationError(
                f"limit {limit.name!r} is not one that the job was charged under; it was charged under "
                f"{', '.join(repr(each.limit.name) for each in rates) or 'none that has a rate'}"
            )
    others = [each for each in rates if each.limit.name not in {limit.name for limit in named.values()}]
    if "requests" not in named and (others or not named):
        if len(others) != 1 or others[0].measured:
            raise ConfigurationError(
                "it is not clear which of the job's limits counts requests to the partner: name it, as "
                "`current().apply_response(response, limit)`, and one that counts tokens as `tokens=`"
            )
        meant["requests"] = others
    return {unit: [under(each) for each in those if each.bucket] for unit, those in meant.items()}

"""
Read the limits of a partner from response headers, in the dialects that docs/how-to-headers.md lists.

The functions are pure: the time is an argument. No header raises an error. A value that is unreadable, negative or in
the past is ignored. If a header is sent twice, the stricter value counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from throttlekit._engine.header_values import Fields, fold, number_in, parameters_in, policies_in, used_in, whole

__all__ = ["DIALECTS", "UNITS", "Dialect", "Reading", "ReportedLimits", "Unit", "parse_headers", "parse_response"]

Unit: TypeAlias = Literal["requests", "tokens", "input tokens", "output tokens"]
UNITS: tuple[Unit, ...] = ("requests", "tokens", "input tokens", "output tokens")
_SECONDARY = 60.0  # GitHub: "wait for at least one minute"


class Reading(NamedTuple):
    """
    One limit of the partner, as a response reports it. A value that the response does not report is None.

    Attributes:
        unit: The unit that the limit counts.
        remaining: The whole units that are left.
        reset: The seconds from now until more units are available.
        limit, window: The units of a window, and its length in seconds.
        refills: Whether the limit is a bucket, which refills all the time and is full at *reset*. Otherwise it is a
            window, and no unit may become available before *reset*.
    """

    unit: Unit
    remaining: int | None
    reset: float | None
    limit: int | None = None
    window: float | None = None
    refills: bool = False

    @property
    def until_reset(self) -> int | None:
        """The units available until *reset*: the remaining units and, for a bucket, the refilled ones."""
        if self.remaining is None or not self.refills or self.limit is None:
            return self.remaining
        return max(self.remaining, self.limit)


class ReportedLimits(NamedTuple):
    """
    The limits that one response reports.

    Attributes:
        readings: The readings, in the order of `DIALECTS`. Empty for a response from a cache, which is out of date.
        retry_after: The seconds to wait, from Retry-After or a header with the same meaning.
        status: The status of the response; None if it is not known.
        unreadable: The names of known headers whose values cannot be read.
    """

    readings: tuple[Reading, ...] = ()
    retry_after: float | None = None
    status: int | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def wait(self) -> float | None:
        """
        The seconds after which to retry a denied request; None if the response does not report them.

        Without Retry-After, this is the longest reset of the limits that have no units left. If all limits have units
        left, the limit that denied the request is not known. Then this is the shortest reset, because a long pause
        would stop the whole fleet.
        """
        if self.retry_after is not None:
            return self.retry_after
        resets = [(each.reset, not each.remaining) for each in self.readings if each.reset is not None]
        spent = [reset for reset, is_spent in resets if is_spent]
        return max(spent) if spent else min((reset for reset, _ in resets), default=None)


def _rate_limit(fields: Fields) -> list[Reading]:
    """Read `RateLimit`: a list of policies since version 8, or one policy as `limit=…, remaining=…` in version 7."""
    text = fields.text("ratelimit")
    parameters = parameters_in(text)
    if "reset" in parameters:
        window = fields.window("ratelimit-policy")
        return _policy(fields, "", parameters.get("remaining"), parameters["reset"], parameters.get("limit"), window)
    policies = {each.name: each for each in policies_in(fields.text("ratelimit-policy"))}
    readings: list[Reading] = []
    for each in policies_in(text):
        says, policy = each.parameters, policies.get(each.name, each)
        if "r" in says or "t" in says:
            unit, (limit, window) = each.unit or policy.unit, (policy.parameters.get(name) for name in "qw")
            readings += _policy(fields, unit, says.get("r"), says.get("t"), limit, window)
        else:
            fields.unreadable.append("ratelimit")
    return readings


def _policy(
    fields: Fields, unit: str, remaining: float | None, reset: float | None, limit: float | None, window: float | None
) -> list[Reading]:
    kind = "requests" if unit in ("", "request") else unit
    if kind not in UNITS:  # bytes, or requests at one time
        return []
    if reset is not None and reset < 0:
        fields.unreadable.append("ratelimit")
        return []
    return [Reading(kind, whole(remaining), reset, whole(limit), window)]


def _family(prefix: str, *, first: str = "") -> Callable[[Fields], list[Reading]]:
    """
    Read Limit, Remaining and Reset after one prefix. *first* is a header with a more exact reset, which is used if
    present.
    """

    def read(fields: Fields) -> list[Reading]:
        remaining, limit = fields.units(f"{prefix}-remaining"), fields.units(f"{prefix}-limit", least=False)
        reset = fields.reset(first)
        reset = fields.reset(f"{prefix}-reset") if reset is None else reset
        if remaining is None and reset is None:
            return []
        return [Reading("requests", remaining, reset, limit, fields.window(f"{prefix}-remaining", f"{prefix}-limit"))]

    return read


def _of_each_unit(pattern: str, units: Mapping[str, Unit]) -> Callable[[Fields], list[Reading]]:
    """Read limit, remaining and reset of each unit. These limits are buckets. *pattern* has {unit} and {what}."""

    def read(fields: Fields) -> list[Reading]:
        readings: list[Reading] = []
        for name, unit in units.items():
            remaining = fields.units(pattern.format(unit=name, what="remaining"))
            limit = fields.units(pattern.format(unit=name, what="limit"), least=False)
            reset = fields.reset(pattern.format(unit=name, what="reset"))
            if remaining is not None or reset:  # Azure sends -1 and a reset of 0 for a limit that it does not report
                readings.append(Reading(unit, remaining, reset, limit, refills=True))
        return readings

    return read


def _used_of(name: str) -> Callable[[Fields], list[Reading]]:
    def read(fields: Fields) -> list[Reading]:
        text = fields.text(name)
        found = used_in(text)
        if found is None:
            if text:
                fields.unreadable.append(name)
            return []
        used, limit = found
        return [Reading("requests", max(0, limit - used), None, limit)]

    return read


def _hubspot(fields: Fields) -> list[Reading]:
    prefix = "x-hubspot-ratelimit-"
    remaining, limit = fields.units(f"{prefix}remaining"), fields.units(f"{prefix}max", least=False)
    window = fields.wait(f"{prefix}interval-milliseconds", parts=1000)
    return [] if remaining is None else [Reading("requests", remaining, None, limit, window or None)]


def _wait_of(name: str, parts: int = 1) -> Callable[[Fields], float | None]:
    return lambda fields: fields.wait(name, parts)


def _secondary(fields: Fields) -> float | None:
    """Detect GitHub's secondary limit, which has no headers: GitHub denies a request although requests remain."""
    if not (fields.text("x-github-request-id") or fields.text("x-github-media-type")):
        return None
    denied = fields.status in (None, 403, 429)
    return _SECONDARY if denied and (fields.units("x-ratelimit-remaining") or 0) > 0 else None


class Dialect(NamedTuple):
    """
    One format of rate limit headers.

    Attributes:
        name: The name of the format, as in docs/how-to-headers.md, which has an example and the source of each format.
        headers: The headers of the format, in lower case.
        read: Returns the readings.
        wait: Returns the seconds to wait that the response requires.
    """

    name: str
    headers: tuple[str, ...]
    read: Callable[[Fields], list[Reading]] | None = None
    wait: Callable[[Fields], float | None] | None = None


_WHAT = ("limit", "remaining", "reset")
_OPENAI: dict[str, Unit] = {"requests": "requests", "tokens": "tokens"}
_ANTHROPIC: dict[str, Unit] = {
    "requests": "requests",
    "tokens": "tokens",
    "input-tokens": "input tokens",
    "output-tokens": "output tokens",
}

DIALECTS: tuple[Dialect, ...] = (
    Dialect("`retry-after-ms`", ("retry-after-ms",), wait=_wait_of("retry-after-ms", parts=1000)),
    Dialect("`Retry-After`", ("retry-after",), wait=_wait_of("retry-after")),
    Dialect("IETF, from version 7 on", ("ratelimit", "ratelimit-policy"), _rate_limit),
    Dialect("IETF, up to version 6", tuple(f"ratelimit-{what}" for what in _WHAT), _family("ratelimit")),
    Dialect("GitHub's secondary limits", ("x-github-request-id", "x-github-media-type"), wait=_secondary),
    Dialect(
        "`X-RateLimit-…`",
        ("x-ratelimit-reset-after", *(f"x-ratelimit-{what}" for what in _WHAT)),
        _family("x-ratelimit", first="x-ratelimit-reset-after"),
    ),
    Dialect("`X-Rate-Limit-…`", tuple(f"x-rate-limit-{what}" for what in _WHAT), _family("x-rate-limit")),
    Dialect(
        "OpenAI, Azure, Groq",
        tuple(f"x-ratelimit-{what}-{unit}" for unit in _OPENAI for what in _WHAT),
        _of_each_unit("x-ratelimit-{what}-{unit}", _OPENAI),
    ),
    Dialect(
        "Anthropic",
        tuple(f"anthropic-ratelimit-{unit}-{what}" for unit in _ANTHROPIC for what in _WHAT),
        _of_each_unit("anthropic-ratelimit-{unit}-{what}", _ANTHROPIC),
    ),
    Dialect(
        "HubSpot",
        tuple(f"x-hubspot-ratelimit-{what}" for what in ("remaining", "max", "interval-milliseconds")),
        _hubspot,
    ),
    Dialect("Shopify", ("x-shopify-shop-api-call-limit",), _used_of("x-shopify-shop-api-call-limit")),
    Dialect("Salesforce", ("sforce-limit-info",), _used_of("sforce-limit-info")),
)
"""The formats in order of precedence. For each unit, the first format that contains a reset time is used."""

_NAMES = frozenset({"date", "age", *(name for dialect in DIALECTS for name in dialect.headers)})


def parse_response(response: Any, now: float) -> ReportedLimits:
    """
    Read the limits that *response* reports: a response of requests, httpx, aiohttp, urllib or urllib3, any object with
    `.headers`, or the headers themselves.
    """
    headers = getattr(response, "headers", response)
    found = (getattr(response, name, None) for name in ("status_code", "status", "code"))
    return parse_headers(headers, now, next((each for each in found if isinstance(each, int)), None))


def parse_headers(headers: Any, now: float, status: int | None = None) -> ReportedLimits:
    """
    Read the limits that *headers* report.

    Args:
        headers: A mapping in any case, or a list of pairs. Any other object has no readings.
        now: The time in seconds since 1970, for a response without a Date.
        status: The status of the response; None if it is not known.
    """
    texts = fold(headers, _NAMES)
    fields = Fields(texts, now, status)
    readings: list[Reading] = []
    retry_after: float | None = None
    for dialect in DIALECTS:
        if texts.keys().isdisjoint(dialect.headers):
            continue
        if dialect.wait is not None and retry_after is None:
            retry_after = dialect.wait(fields)
        if dialect.read is not None:
            known = {each.unit for each in readings if each.reset is not None}
            readings += [each for each in dialect.read(fields) if each.unit not in known]
    cached = (number_in(texts.get("age", "")) or 0) > 0
    return ReportedLimits(
        () if cached else tuple(readings), retry_after, status, tuple(dict.fromkeys(fields.unreadable))
    )

"""
Read the limits of a partner from response headers, in the dialects that docs/how-to-headers.md lists.

The functions are pure: the time is an argument. No header raises an error. A value that is unreadable, negative or in
the past is ignored. If a header is sent twice, the stricter value counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, TypeAlias, cast

__all__ = ["DIALECTS", "UNITS", "Dialect", "Reading", "ReportedLimits", "Unit", "parse_headers", "parse_response"]

Unit: TypeAlias = Literal["requests", "tokens", "input tokens", "output tokens"]
UNITS: tuple[Unit, ...] = ("requests", "tokens", "input tokens", "output tokens")
_SECONDARY = 60.0  # GitHub: "wait for at least one minute"
_LONGEST_TEXT = 1000
_MOST = 10**15
_SMALLEST_INSTANT = 1_000_000_000  # a reset of this size is not in seconds from now, but in seconds since 1970 …
_SMALLEST_IN_MILLISECONDS = 100_000_000_000  # … and one of this size is in milliseconds since 1970
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|[smhd]))+", re.ASCII)
_PART = re.compile(r"([0-9.]+)(ms|[smhd])", re.ASCII)
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(\.[0-9]{1,9})?)?"
    r"(?:[Zz]|([+-])([0-9]{2}):?([0-9]{2}))?",
    re.ASCII,
)
_ITEM = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^,"])+')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_PARAMETER = re.compile(
    r"(?:^|[;,\s])(limit|remaining|reset|r|t|q|w)\s*=\s*(-?[0-9]{1,18})\b", re.ASCII | re.IGNORECASE
)
_QUOTA_UNIT = re.compile(r';\s*qu\s*=\s*"([^"\\]*)"', re.ASCII | re.IGNORECASE)
_USED = re.compile(r"(?:api-usage=)?\s*([0-9]{1,15})\s*/\s*([0-9]{1,15})\b", re.ASCII)


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


def _rate_limit(fields: _Fields) -> list[Reading]:
    """Read `RateLimit`: a list of policies since version 8, or one policy as `limit=…, remaining=…` in version 7."""
    text = fields.text("ratelimit")
    parameters = _parameters_in(text)
    if "reset" in parameters:
        window = fields.window("ratelimit-policy")
        return _policy(fields, "", parameters.get("remaining"), parameters["reset"], parameters.get("limit"), window)
    policies = {each.name: each for each in _policies_in(fields.text("ratelimit-policy"))}
    readings: list[Reading] = []
    for each in _policies_in(text):
        says, policy = each.parameters, policies.get(each.name, each)
        if "r" in says or "t" in says:
            unit, (limit, window) = each.unit or policy.unit, (policy.parameters.get(name) for name in "qw")
            readings += _policy(fields, unit, says.get("r"), says.get("t"), limit, window)
        else:
            fields.unreadable.append("ratelimit")
    return readings


def _policy(
    fields: _Fields, unit: str, remaining: float | None, reset: float | None, limit: float | None, window: float | None
) -> list[Reading]:
    kind = "requests" if unit in ("", "request") else unit
    if kind not in UNITS:  # bytes, or requests at one time
        return []
    if reset is not None and reset < 0:
        fields.unreadable.append("ratelimit")
        return []
    return [Reading(kind, _whole(remaining), reset, _whole(limit), window)]


def _family(prefix: str, *, first: str = "") -> Callable[[_Fields], list[Reading]]:
    """
    Read Limit, Remaining and Reset after one prefix. *first* is a header with a more exact reset, which is used if
    present.
    """

    def read(fields: _Fields) -> list[Reading]:
        remaining, limit = fields.units(f"{prefix}-remaining"), fields.units(f"{prefix}-limit", least=False)
        reset = fields.reset(first)
        reset = fields.reset(f"{prefix}-reset") if reset is None else reset
        if remaining is None and reset is None:
            return []
        return [Reading("requests", remaining, reset, limit, fields.window(f"{prefix}-remaining", f"{prefix}-limit"))]

    return read


def _of_each_unit(pattern: str, units: Mapping[str, Unit]) -> Callable[[_Fields], list[Reading]]:
    """Read limit, remaining and reset of each unit. These limits are buckets. *pattern* has {unit} and {what}."""

    def read(fields: _Fields) -> list[Reading]:
        readings: list[Reading] = []
        for name, unit in units.items():
            remaining = fields.units(pattern.format(unit=name, what="remaining"))
            limit = fields.units(pattern.format(unit=name, what="limit"), least=False)
            reset = fields.reset(pattern.format(unit=name, what="reset"))
            if remaining is not None or reset:  # Azure sends -1 and a reset of 0 for a limit that it does not report
                readings.append(Reading(unit, remaining, reset, limit, refills=True))
        return readings

    return read


def _used_of(name: str) -> Callable[[_Fields], list[Reading]]:
    def read(fields: _Fields) -> list[Reading]:
        text = fields.text(name)
        found = _used_in(text)
        if found is None:
            if text:
                fields.unreadable.append(name)
            return []
        used, limit = found
        return [Reading("requests", max(0, limit - used), None, limit)]

    return read


def _hubspot(fields: _Fields) -> list[Reading]:
    prefix = "x-hubspot-ratelimit-"
    remaining, limit = fields.units(f"{prefix}remaining"), fields.units(f"{prefix}max", least=False)
    window = fields.wait(f"{prefix}interval-milliseconds", parts=1000)
    return [] if remaining is None else [Reading("requests", remaining, None, limit, window or None)]


def _wait_of(name: str, parts: int = 1) -> Callable[[_Fields], float | None]:
    return lambda fields: fields.wait(name, parts)


def _secondary(fields: _Fields) -> float | None:
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
    read: Callable[[_Fields], list[Reading]] | None = None
    wait: Callable[[_Fields], float | None] | None = None


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
    texts = _fold(headers, _NAMES)
    fields = _Fields(texts, now, status)
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
    cached = (_number_in(texts.get("age", "")) or 0) > 0
    return ReportedLimits(
        () if cached else tuple(readings), retry_after, status, tuple(dict.fromkeys(fields.unreadable))
    )


# Values


class _Fields:
    """
    The headers of one response. Each method returns None if the header is missing or cannot be read.

    Args:
        texts: The values by their names in lower case.
        now: The time in seconds since 1970, for a response without a Date.

    Attributes:
        status: The status of the response; None if it is not known.
        now: The time of the response's own Date, so a wrong local clock does no harm.
        unreadable: The names of headers that cannot be read.
    """

    def __init__(self, texts: Mapping[str, str], now: float, status: int | None = None) -> None:
        self._texts = texts
        self.unreadable: list[str] = []
        self.status = status
        date = self.text("date")
        sent = _date(date) if date else None
        self.now = now if sent is None else sent

    def text(self, name: str) -> str:
        return self._texts.get(name, "")

    def units(self, name: str, *, least: bool = True) -> int | None:
        """Return a whole number of at least 0. Of several numbers, return the smallest if *least*, or the first."""
        numbers = self._numbers(name)
        if numbers and min(numbers) >= 0:
            return _whole(min(numbers) if least else numbers[0])
        if self.text(name):
            self.unreadable.append(name)
        return None

    def reset(self, name: str) -> float | None:
        """
        Return the seconds until a reset, which may be given in seconds, as a time in seconds or milliseconds since
        1970, as a duration like 6m0s, or as a date of ISO 8601 or HTTP. Of several, the latest. None if it is past.
        """
        text, numbers = self.text(name), self._numbers(name)
        if not text:
            return None
        found = _duration(text) if numbers is None else max(map(self._from_now, numbers))
        if found is None:
            at = _iso(text)
            at = _date(text) if at is None else at
            if at is None:
                self.unreadable.append(name)
                return None
            found = at - self.now
        return found if found >= 0 else None

    def wait(self, name: str, parts: int = 1) -> float | None:
        """Return the seconds of a header like Retry-After: a number of 1/*parts* seconds, or an HTTP date."""
        text, numbers = self.text(name), self._numbers(name)
        if not text:
            return None
        at = _date(text) if numbers is None else None
        found = max(numbers) / parts if numbers else None if at is None else at - self.now
        if found is None:
            self.unreadable.append(name)
        return found if found is not None and found >= 0 else None

    def window(self, *names: str) -> float | None:
        """Return the parameter w, as in `100;w=60`, of the first header of *names* that has it."""
        return next((found for name in names if (found := _parameters_in(self.text(name)).get("w", 0)) > 0), None)

    def _numbers(self, name: str) -> list[float] | None:
        """Return the numbers of a header that was sent once or several times, without parameters after a ";"."""
        found = [_number_in(each.partition(";")[0]) for each in self.text(name).split(",")]
        numbers = [each for each in found if each is not None]
        return numbers if len(numbers) == len(found) else None

    def _from_now(self, number: float) -> float:
        if number < _SMALLEST_INSTANT:
            return number
        return (number / 1000 if number >= _SMALLEST_IN_MILLISECONDS else number) - self.now


class _Policy(NamedTuple):
    """One item of a structured list: its name, its numeric parameters, and the unit that it counts."""

    name: str
    parameters: Mapping[str, float]
    unit: str


def _fold(headers: Any, names: Collection[str]) -> dict[str, str]:
    """
    Return the *headers* with *names*, by their names in lower case. A header that was sent twice becomes a list.

    Args:
        headers: A mapping, an object with `get`, or pairs of name and value; text or bytes. Other objects have none.
    """
    texts: dict[str, str] = {}
    try:
        for name, value in _pairs(headers, names):
            key = _text(name).lower()
            if key in names and value is not None and len(text := _text(value).strip()) <= _LONGEST_TEXT:
                texts[key] = f"{texts[key]}, {text}" if texts.get(key) else text
    except Exception:
        return texts  # an object that is not a header ends the list
    return texts


def _whole(number: float | None) -> int | None:
    return None if number is None or number < 0 else int(min(_MOST, number))


def _number_in(text: str) -> float | None:
    try:
        number = float(text.strip())
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _parameters_in(text: str) -> dict[str, float]:
    """Return the parameters of one item, or of a text like `limit=100, remaining=50, reset=30`."""
    return {name.lower(): float(value) for name, value in _PARAMETER.findall(_QUOTED.sub("", text))}


def _policies_in(text: str) -> list[_Policy]:
    """Return the items of a structured list, such as `"default";q=100;w=60;qu="requests"`."""
    policies: list[_Policy] = []
    for item in _ITEM.findall(text):
        name, unit = _QUOTED.match(item.strip()), _QUOTA_UNIT.search(item)
        policies.append(
            _Policy(name[0] if name else item.partition(";")[0].strip(), _parameters_in(item), unit[1] if unit else "")
        )
    return policies


def _used_in(text: str) -> tuple[int, int] | None:
    """Return the used units and the limit of a text like `32/40`."""
    found = _USED.match(text)
    return None if found is None else (int(found[1]), int(found[2]))


def _pairs(headers: Any, names: Collection[str]) -> Iterable[tuple[Any, Any]]:
    if callable(getattr(headers, "items", None)):
        return cast(Iterable[tuple[Any, Any]], headers.items())
    if callable(getattr(headers, "get", None)):
        return ((name, headers.get(name)) for name in names)
    return cast(Iterable[tuple[Any, Any]], headers)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _duration(text: str) -> float | None:
    """Parse a duration like 7s, 6m0s, 1h2m3.5s or 20ms."""
    if _DURATION.fullmatch(text) is None:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))


def _iso(text: str) -> float | None:
    """Parse a time of ISO 8601 that has at least minutes. A time without a zone is in UTC."""
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    try:
        at = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=timezone.utc)
    except ValueError:
        return None
    ahead = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)).total_seconds()
    return at.timestamp() + float(fraction or 0) + (ahead if sign == "-" else -ahead)


def _date(text: str) -> float | None:
    from email.utils import parsedate_to_datetime  # `import throttlekit` does not need it

    try:
        date: datetime | None = parsedate_to_datetime(text)
        if date is None:  # pyright: ignore[reportUnnecessaryComparison]
            return None
        # A date without a zone is GMT in HTTP.
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None

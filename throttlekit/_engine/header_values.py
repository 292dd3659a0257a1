"""Parse the values of response headers: numbers, resets, durations, dates and lists. No value raises an error."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, cast

__all__ = ["Fields", "Policy", "fold", "number_in", "parameters_in", "policies_in", "used_in", "whole"]

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


class Fields:
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
            return whole(min(numbers) if least else numbers[0])
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
        return next((found for name in names if (found := parameters_in(self.text(name)).get("w", 0)) > 0), None)

    def _numbers(self, name: str) -> list[float] | None:
        """Return the numbers of a header that was sent once or several times, without parameters after a ";"."""
        found = [number_in(each.partition(";")[0]) for each in self.text(name).split(",")]
        numbers = [each for each in found if each is not None]
        return numbers if len(numbers) == len(found) else None

    def _from_now(self, number: float) -> float:
        if number < _SMALLEST_INSTANT:
            return number
        return (number / 1000 if number >= _SMALLEST_IN_MILLISECONDS else number) - self.now


class Policy(NamedTuple):
    """One item of a structured list: its name, its numeric parameters, and the unit that it counts."""

    name: str
    parameters: Mapping[str, float]
    unit: str


def fold(headers: Any, names: Collection[str]) -> dict[str, str]:
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


def whole(number: float | None) -> int | None:
    return None if number is None or number < 0 else int(min(_MOST, number))


def number_in(text: str) -> float | None:
    try:
        number = float(text.strip())
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def parameters_in(text: str) -> dict[str, float]:
    """Return the parameters of one item, or of a text like `limit=100, remaining=50, reset=30`."""
    return {name.lower(): float(value) for name, value in _PARAMETER.findall(_QUOTED.sub("", text))}


def policies_in(text: str) -> list[Policy]:
    """Return the items of a structured list, such as `"default";q=100;w=60;qu="requests"`."""
    policies: list[Policy] = []
    for item in _ITEM.findall(text):
        name, unit = _QUOTED.match(item.strip()), _QUOTA_UNIT.search(item)
        policies.append(
            Policy(name[0] if name else item.partition(";")[0].strip(), parameters_in(item), unit[1] if unit else "")
        )
    return policies


def used_in(text: str) -> tuple[int, int] | None:
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

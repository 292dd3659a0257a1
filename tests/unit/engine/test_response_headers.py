"""The headers of real services, in each dialect of the table; and hostile headers, which are ignored."""

from __future__ import annotations

import email.message
import random
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import HTTPHeaderDict

from throttlekit import FixedWindow, Limiter
from throttlekit._engine.response_headers import DIALECTS, UNITS, Reading, ReportedLimits, parse_headers, parse_response
from throttlekit.stores import MemoryStore

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc).timestamp()


class Example(NamedTuple):
    """The headers of a response, and what is read from them."""

    headers: dict[str, str]
    readings: list[Reading]
    retry_after: float | None = None


# As services send them; if a date is absolute, the response has a Date.
EXAMPLES: dict[str, list[Example]] = {
    "`retry-after-ms`": [Example({"retry-after-ms": "700", "retry-after": "1"}, [], 0.7)],
    "`Retry-After`": [
        Example({"Retry-After": "120"}, [], 120.0),
        Example({"Date": "Fri, 31 Dec 1999 23:58:59 GMT", "Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, [], 60.0),
    ],
    "IETF, from version 7 on": [
        Example(
            {"RateLimit": '"default";r=50;t=30', "RateLimit-Policy": '"default";q=100;w=60'},
            [Reading("requests", 50, 30.0, 100, 60.0)],
        ),
        Example(
            {
                "RateLimit-Policy": '"permin";q=50;w=60,"perhr";q=1000;w=3600;pk=:cHsdsRa894==:',
                "RateLimit": '"permin";r=48;t=40, "perhr";r=998;t=3000',
            },
            [Reading("requests", 48, 40.0, 50, 60.0), Reading("requests", 998, 3000.0, 1000, 3600.0)],
        ),
        Example({"RateLimit": '"default";r=999;pk=:dHJpYWwxMjEzMjM=:'}, [Reading("requests", 999, None)]),
        Example(
            {
                "RateLimit-Policy": '"peruser";q=65535;qu="content-bytes";w=10, "busy";q=5;qu="concurrent-requests"',
                "RateLimit": '"peruser";r=1;t=7, "busy";r=1;t=9',
            },
            [],
        ),
        Example(
            {"RateLimit": "limit=100, remaining=50, reset=5", "RateLimit-Policy": "100;w=60"},
            [Reading("requests", 50, 5.0, 100, 60.0)],
        ),
    ],
    "IETF, up to version 6": [
        Example(
            {"RateLimit-Limit": "100, 100;w=10", "RateLimit-Remaining": "50", "RateLimit-Reset": "5"},
            [Reading("requests", 50, 5.0, 100, 10.0)],
        ),
        Example(  # GitLab
            {
                "Date": "Thu, 30 Jan 2020 14:14:16 GMT",
                "RateLimit-Limit": "600",
                "RateLimit-Remaining": "595",
                "RateLimit-Reset": "1580393717",
                "RateLimit-ResetTime": "Thu, 30 Jan 2020 14:15:17 GMT",
            },
            [Reading("requests", 595, 61.0, 600)],
        ),
        Example(  # Docker Hub
            {"ratelimit-limit": "100;w=21600", "ratelimit-remaining": "76;w=21600"},
            [Reading("requests", 76, None, 100, 21_600.0)],
        ),
    ],
    "GitHub's secondary limits": [
        Example(
            {
                "Date": "Mon, 13 Jun 2022 11:48:53 GMT",
                "X-GitHub-Media-Type": "github.v3; format=json",
                "X-RateLimit-Limit": "30",
                "X-RateLimit-Remaining": "14",
                "X-RateLimit-Reset": "1655120964",
            },
            [Reading("requests", 14, 31.0, 30)],
            60.0,
        ),
    ],
    "`X-RateLimit-…`": [
        Example(  # GitHub
            {
                "Date": "Mon, 01 Jul 2013 17:37:06 GMT",
                "x-ratelimit-limit": "60",
                "x-ratelimit-remaining": "56",
                "x-ratelimit-used": "4",
                "x-ratelimit-reset": "1372700873",
            },
            [Reading("requests", 56, 647.0, 60)],
        ),
        Example(  # Discord
            {
                "X-RateLimit-Limit": "5",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "1470173023.123",
                "X-RateLimit-Reset-After": "64.57",
                "X-RateLimit-Bucket": "abcd1234",
            },
            [Reading("requests", 0, 64.57, 5)],
        ),
        Example(  # Jira
            {"X-RateLimit-Limit": "350", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2026-03-01T12:01Z"},
            [Reading("requests", 0, 60.0, 350)],
        ),
        Example(
            {"X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "2026-03-01T14:00:30.5+02:00"},
            [Reading("requests", 9, 30.5)],
        ),
        Example(
            {"X-RateLimit-Remaining": "25", "X-RateLimit-Reset": str(int(NOW + 17) * 1000)},
            [Reading("requests", 25, 17.0)],
        ),
        Example(
            {"X-RateLimit-Limit": "30", "X-RateLimit-Remaining": "25", "X-RateLimit-Reset": "17"},
            [Reading("requests", 25, 17.0, 30)],
        ),
    ],
    "`X-Rate-Limit-…`": [
        Example(  # Okta
            {
                "Date": "Thu, 31 Dec 2020 23:59:30 GMT",
                "X-Rate-Limit-Limit": "1200",
                "X-Rate-Limit-Remaining": "1199",
                "X-Rate-Limit-Reset": "1609459200",
            },
            [Reading("requests", 1199, 30.0, 1200)],
        ),
    ],
    "OpenAI, Azure, Groq": [
        Example(
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-limit-tokens": "150000",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            [
                Reading("requests", 59, 1.0, 60, refills=True),
                Reading("tokens", 149_984, 360.0, 150_000, refills=True),
            ],
        ),
        Example(  # Azure, for a limit that it does not report
            {"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"},
            [],
        ),
    ],
    "Anthropic": [
        Example(
            {
                "date": "Thu, 21 Aug 2025 12:40:30 GMT",
                "anthropic-ratelimit-input-tokens-limit": "80000",
                "anthropic-ratelimit-input-tokens-remaining": "79000",
                "anthropic-ratelimit-input-tokens-reset": "2025-08-21T12:40:59Z",
                "anthropic-ratelimit-output-tokens-limit": "16000",
                "anthropic-ratelimit-output-tokens-remaining": "16000",
                "anthropic-ratelimit-output-tokens-reset": "2025-08-21T12:40:30Z",
                "anthropic-ratelimit-requests-limit": "1000",
                "anthropic-ratelimit-requests-remaining": "999",
                "anthropic-ratelimit-requests-reset": "2025-08-21T12:40:31Z",
                "anthropic-ratelimit-tokens-limit": "96000",
                "anthropic-ratelimit-tokens-remaining": "95000",
                "anthropic-ratelimit-tokens-reset": "2025-08-21T12:40:59Z",
            },
            [
                Reading("requests", 999, 1.0, 1000, refills=True),
                Reading("tokens", 95_000, 29.0, 96_000, refills=True),
                Reading("input tokens", 79_000, 29.0, 80_000, refills=True),
                Reading("output tokens", 16_000, 0.0, 16_000, refills=True),
            ],
        ),
    ],
    "HubSpot": [
        Example(
            {
                "X-HubSpot-RateLimit-Max": "100",
                "X-HubSpot-RateLimit-Remaining": "98",
                "X-HubSpot-RateLimit-Interval-Milliseconds": "10000",
            },
            [Reading("requests", 98, None, 100, 10.0)],
        ),
    ],
    "Shopify": [
        Example({"X-Shopify-Shop-Api-Call-Limit": "32/40"}, [Reading("requests", 8, None, 40)]),
        Example(
            {"X-Shopify-Shop-Api-Call-Limit": "41/40", "Retry-After": "2.0"}, [Reading("requests", 0, None, 40)], 2.0
        ),
    ],
    "Salesforce": [
        Example({"Sforce-Limit-Info": "api-usage=10018/100000"}, [Reading("requests", 89_982, None, 100_000)]),
    ],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, found in EXAMPLES.items() for number in range(len(found))]
)
def test_each_dialect_is_read(name: str, number: int) -> None:
    """The headers of a service are read, whatever the case of their names."""
    headers, readings, retry_after = EXAMPLES[name][number]
    for cased in (headers, {key.lower(): value for key, value in headers.items()}):
        reported = parse_headers(cased, NOW)
        assert (list(reported.readings), reported.retry_after) == (readings, retry_after)


def test_each_dialect_has_an_example() -> None:
    """Each format has the headers of a real service."""
    assert list(EXAMPLES) == [dialect.name for dialect in DIALECTS]
    assert all(name == name.lower() for dialect in DIALECTS for name in dialect.headers)


def _message(headers: Mapping[str, str]) -> email.message.Message:
    message = email.message.Message()
    for name, value in headers.items():
        message[name] = value
    return message


class Response:
    def __init__(self, headers: Any, **attributes: Any) -> None:
        self.headers = headers
        vars(self).update(attributes)


class _GetOnly:
    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = {name.lower(): value for name, value in headers.items()}

    def get(self, name: str) -> str | None:
        return self._headers.get(name)


@pytest.mark.parametrize(
    "make",
    [
        dict,
        _message,
        HTTPHeaderDict,
        _GetOnly,
        lambda headers: list(headers.items()),
        lambda headers: [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        lambda headers: iter(headers.items()),
    ],
    ids=["mapping", "HTTPMessage", "urllib3", "get", "WSGI", "ASGI", "iterator"],
)
def test_headers_of_each_type_are_read(make: Any) -> None:
    """Mappings, messages of http.client, lists of pairs as text or bytes, and objects that only have `get`."""
    headers = {"X-RateLimit-Remaining": "25", "X-RateLimit-Reset": "17"}
    reported = parse_response(Response(make(headers), status_code=429), NOW)
    assert reported == ReportedLimits((Reading("requests", 25, 17.0),), None, 429)
    assert parse_response(make(headers), NOW).readings == reported.readings


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        ({"status_code": 429}, 429),
        ({"status": 503}, 503),
        ({"code": 403}, 403),
        ({"status": "429 no"}, None),
        ({}, None),
    ],
)
def test_the_status_is_read_from_every_client(attributes: dict[str, Any], status: int | None) -> None:
    """requests and httpx call it status_code, aiohttp and urllib3 status, an HTTPError of urllib code."""
    assert parse_response(Response({}, **attributes), NOW).status == status


@pytest.mark.parametrize(
    ("headers", "readings"),
    [
        # Twice: the stricter one is used, whether the client joins them or not.
        (
            [
                ("X-RateLimit-Remaining", "9"),
                ("X-RateLimit-Remaining", "7"),
                ("X-RateLimit-Reset", "5"),
                ("X-RateLimit-Reset", "8"),
            ],
            [Reading("requests", 7, 8.0)],
        ),
        ({"X-RateLimit-Remaining": "9, 7", "X-RateLimit-Reset": "5, 8"}, [Reading("requests", 7, 8.0)]),
        # Several dialects: the first with a reset is used.
        (
            {"RateLimit": '"a";r=5;t=6', "RateLimit-Remaining": "1", "X-RateLimit-Remaining": "2"},
            [Reading("requests", 5, 6.0)],
        ),
        (
            {"RateLimit": '"a";r=5', "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "9"},
            [Reading("requests", 5, None), Reading("requests", 2, 9.0)],
        ),
        (
            {"X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "9", "x-ratelimit-remaining-tokens": "70"},
            [Reading("requests", 2, 9.0), Reading("tokens", 70, None, refills=True)],
        ),
        (
            {"X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "2026-03-01t10:30:09-01:30"},
            [Reading("requests", 9, 9.0)],
        ),
        # From a cache: it is outdated.
        ({"Age": "3", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "9"}, []),
        ({"Age": "0", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "9"}, [Reading("requests", 2, 9.0)]),
        # Clamped, or ignored.
        ({"X-RateLimit-Remaining": "1e300"}, [Reading("requests", 10**15, None)]),
        ({"X-RateLimit-Remaining": "7.9"}, [Reading("requests", 7, None)]),
        ({"X-RateLimit-Remaining": "-1", "X-RateLimit-Reset": "9"}, [Reading("requests", None, 9.0)]),
        ({"X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "-9"}, [Reading("requests", 2, None)]),
        ({"X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "2015-10-21T07:28:00Z"}, [Reading("requests", 2, None)]),
        ({"X-RateLimit-Remaining": "1" + "0" * 400}, []),
        ({"X-RateLimit-Remaining": "nan", "X-RateLimit-Reset": "inf"}, []),
        ({"X-RateLimit-Remaining": "0" * 5000 + "7"}, []),
        ({"RateLimit": '"a";r=1' + "0" * 30 + ";t=5"}, [Reading("requests", None, 5.0)]),
        ({"RateLimit": '"a";r=-1;t=5'}, [Reading("requests", None, 5.0)]),
        ({"RateLimit": '"a;r=9;t=9'}, [Reading("requests", 9, 9.0)]),
        ({"RateLimit": '"' * 999}, []),
        ({"X-Shopify-Shop-Api-Call-Limit": "a/b"}, []),
        ({"X-Shopify-Shop-Api-Call-Limit": "-32/40"}, []),
        (
            {"X-HubSpot-RateLimit-Remaining": "5", "X-HubSpot-RateLimit-Interval-Milliseconds": "0"},
            [Reading("requests", 5, None)],
        ),
    ],
)
def test_the_stricter_value_is_used_and_unreadable_ones_are_ignored(headers: Any, readings: list[Reading]) -> None:
    """The stricter duplicate and the first format with a reset are used; cached and invalid values are ignored."""
    assert list(parse_headers(headers, NOW).readings) == readings


def test_unreadable_headers_are_listed() -> None:
    """Each unreadable header is listed once; a negative value is unreadable, a date in the past is not."""
    headers = {
        "X-RateLimit-Reset": "soon",
        "RateLimit": "many",
        "Retry-After": "later",
        "x-ratelimit-remaining-tokens": "-1",
        "x-rate-limit-reset": "1",
    }
    assert set(parse_headers(headers, NOW).unreadable) == {
        "x-ratelimit-reset",
        "ratelimit",
        "retry-after",
        "x-ratelimit-remaining-tokens",
    }
    assert parse_headers({"X-RateLimit-Reset": "2015-10-21T07:28:00Z"}, NOW).unreadable == ()


@pytest.mark.parametrize("status", [None, 403, 429])
def test_a_secondary_limit_of_github_is_a_minute(status: int | None) -> None:
    """GitHub denies although requests remain; a Retry-After is used if there is one."""
    headers = {"X-GitHub-Request-Id": "0:1:2", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "900"}
    assert parse_headers(headers, NOW, status).wait == 60.0
    assert parse_headers({**headers, "Retry-After": "9"}, NOW, status).wait == 9.0
    assert parse_headers({**headers, "X-RateLimit-Remaining": "0"}, NOW, status).wait == 900.0
    assert parse_headers(headers, NOW, 200).retry_after is None


@pytest.mark.parametrize(
    ("reading", "units"),
    [
        (Reading("requests", 30, 30.0, 60), 30),
        (Reading("requests", 30, 30.0, 60, refills=True), 60),
        (Reading("requests", 30, 30.0, refills=True), 30),
        (Reading("requests", None, 30.0, 60, refills=True), None),
    ],
)
def test_a_buckets_refill_counts_until_its_reset(reading: Reading, units: int | None) -> None:
    """The reset of a bucket is the time when it is full again: until then it admits its whole capacity."""
    assert reading.until_reset == units


def test_headers_of_a_decision_are_read() -> None:
    """A service that uses throttlekit sends a known dialect, whichever of its header families is read."""
    limit = FixedWindow('a, "b"; c', "6/minute")
    headers = Limiter(MemoryStore(clock_us=lambda: 1_800_000_000_000_000)).acquire(limit).headers()
    assert parse_headers(headers, NOW).readings == (Reading("requests", 5, 60.0, 6, 60.0),)
    old = {name: value for name, value in headers.items() if name not in ("RateLimit", "RateLimit-Policy")}
    assert parse_headers(old, NOW).readings == (Reading("requests", 5, 60.0, 6),)


_TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "nan", "-1", "1e999", "9" * 400, '"a";r=0;t=', "6m0s", "99999999999h", "32/"]),
    st.sampled_from(["2026-13-01T00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]),
    st.just("Sun, 01 Mar 2026 12:00:00 -9999"),
    st.integers().map(str),
    st.floats().map(str),
)
_NAMES = sorted({"date", "age"} | {name for dialect in DIALECTS for name in dialect.headers})


@given(st.lists(st.tuples(st.sampled_from(_NAMES), _TEXT | st.binary(max_size=20) | st.none() | st.integers())))
def test_no_header_raises(headers: list[tuple[str, Any]]) -> None:
    """Whatever the headers are, units are whole and at least 0, seconds finite and at least 0."""
    reported = parse_headers(headers, NOW, random.Random(len(headers)).choice([None, 200, 429]))
    for each in reported.readings:
        assert each.unit in UNITS
        assert each.remaining is None or (isinstance(each.remaining, int) and 0 <= each.remaining <= 10**15)
        assert each.reset is None or 0 <= each.reset < float("inf")
        assert each.window is None or 0 < each.window < float("inf")
    assert reported.wait is None or 0 <= reported.wait < float("inf")


@pytest.mark.parametrize(
    "response", [None, 7, "429", b"x", object(), Response(None), Response(7), Response([9]), [], [(1,)]]
)
def test_other_objects_have_no_readings(response: Any) -> None:
    """Objects that are no responses do not raise either."""
    assert parse_response(response, NOW)[:2] == ((), None)

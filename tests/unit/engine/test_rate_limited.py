"""The retry time of a response, in every form that is in use; and responses without one."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest

from throttlekit import ConfigurationError, RateLimited, ThrottleError, TokenBucket

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
DATE = format_datetime(NOW, usegmt=True)
EPOCH = int(NOW.timestamp())
LIMIT = TokenBucket("partner", "1/s")


class Response:
    def __init__(self, headers: Any) -> None:
        self.headers = headers


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "30"}, 30.0),
        ({"Retry-After": " 7 "}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "-5"}, 30.0),
        ({"Date": DATE, "Retry-After": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"Date": DATE, "Retry-After": "Sunday, 01-Mar-26 12:01:30 GMT"}, 90.0),
        ({"Date": DATE, "Retry-After": format_datetime(NOW - timedelta(seconds=90), usegmt=True)}, 30.0),
        ({"Date": DATE, "Retry-After": "Sun, 01 Mar 2026 13:00:45 +0100"}, 45.0),
        ({"Date": DATE, "X-RateLimit-Reset": f"{EPOCH + 40}.25"}, 40.25),
        ({"Date": DATE, "X-RateLimit-Reset": str(EPOCH - 40)}, 30.0),
        ({"Date": DATE, "X-RateLimit-Reset": str(EPOCH)}, 0.0),
        # A time in the past is ignored: the next header is used.
        ({"Retry-After": "-1", "RateLimit-Reset": "12"}, 12.0),
        ({"Date": DATE, "Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT", "X-RateLimit-Reset": "50"}, 50.0),
        ({"Retry-After-Ms": "-700", "Retry-After": "2"}, 2.0),
        ({"RateLimit": '"default";r=0;t=-7'}, 30.0),
        # The field of the IETF, in both of its forms.
        ({"RateLimit": '"default"; r=0; t=7'}, 7.0),
        ({"RateLimit": '"burst";r=0;t=7, "day";r=50;t=3000'}, 7.0),
        ({"RateLimit": '"burst";r=0;t=7, "day";r=0;t=3000'}, 3000.0),
        ({"RateLimit": '"burst";r=1;t=7, "day";r=50;t=3000'}, 7.0),
        ({"RateLimit": '"t=9;reset=9,";r=0;t=7'}, 7.0),
        ({"RateLimit": '"default";r=0;t=7;pk=:QXBwLTk5OQ==:'}, 7.0),
        ({"RateLimit": '"default";r=0'}, 30.0),
        ({"RateLimit": "limit=100,remaining=0,reset=7"}, 7.0),
        ({"RateLimit": "remaining=0;reset=7"}, 7.0),
        # Durations of requests and tokens.
        ({"X-RateLimit-Reset-Requests": "0h59m3.5s"}, 3543.5),
        ({"X-RateLimit-Reset-Requests": "20ms"}, 0.02),
        ({"X-RateLimit-Reset-Tokens": "1m30s", "X-RateLimit-Reset-Requests": "7s"}, 90.0),
        (
            {
                "X-RateLimit-Remaining-Requests": "0",
                "X-RateLimit-Reset-Requests": "7s",
                "X-RateLimit-Remaining-Tokens": "149984",
                "X-RateLimit-Reset-Tokens": "6m0s",
            },
            7.0,
        ),
        ({"X-RateLimit-Reset-Requests": "soon"}, 30.0),
        ({"X-RateLimit-Reset-Tokens": "7"}, 7.0),  # Azure has no unit there
        ({"Retry-After": "3", "X-RateLimit-Reset-Requests": "6m0s"}, 3.0),
        # In this order; an unreadable header is ignored.
        ({"Retry-After": "3", "RateLimit-Reset": "12", "X-RateLimit-Reset": "50"}, 3.0),
        ({"Retry-After": "soon", "RateLimit-Reset": "12", "X-RateLimit-Reset": "50"}, 12.0),
        ({"Retry-After": "", "RateLimit-Reset": "later", "X-RateLimit-Reset": "50"}, 50.0),
        # At most an hour, and half a minute if there is no header.
        ({"Retry-After": "86400"}, 3600.0),
        ({"Retry-After": str(EPOCH)}, 3600.0),
        ({"Date": DATE, "X-RateLimit-Reset": str(EPOCH * 10**6)}, 3600.0),
        ({}, 30.0),
        ({"Retry-After": "nan"}, 30.0),
        ({"Retry-After": "inf"}, 30.0),
        ({"Retry-After": "1_000"}, 30.0),
        ({"Retry-After": "0x10"}, 30.0),
        ({"Retry-After": "Sun, 99 Foo 2026 99:99:99 GMT"}, 30.0),
        ({"Date": "yesterday", "Retry-After": "9"}, 9.0),
    ],
)
def test_retry_time_is_read_from_the_response(headers: dict[str, str], seconds: float) -> None:
    """
    Seconds, dates relative to the response's own Date, and resets in both of their meanings. The usual headers of each
    dialect are in test_response_headers.py.
    """
    assert RateLimited.from_response(Response(headers)).retry_after == pytest.approx(seconds)


def test_without_a_date_the_local_clock_is_used() -> None:
    """A date a minute from now is a minute, to within the test."""
    at = datetime.now(timezone.utc) + timedelta(seconds=60)
    response = Response({"Retry-After": format_datetime(at, usegmt=True)})
    assert 50 < RateLimited.from_response(response).retry_after <= 60


@pytest.mark.parametrize("response", [None, 7, "429", object(), Response(None), Response([9]), {}])
def test_other_objects_have_no_retry_time(response: Any) -> None:
    """For an object that is not a response, the default applies, as for a response without such a header."""
    assert RateLimited.from_response(response).retry_after == 30.0
    assert RateLimited.from_response(response, default=5).retry_after == 5.0


def test_caller_sets_cap_and_default() -> None:
    """A caller can set the default and the cap, up to the longest possible pause."""
    day, ever = Response({"Retry-After": "86400"}), Response({"Retry-After": "1e300"})
    assert RateLimited.from_response(day, longest=10).retry_after == 10.0
    assert RateLimited.from_response(day, longest=10**6).retry_after == 86_400.0
    assert RateLimited.from_response(ever, longest=float("inf")).retry_after == 366 * 86_400.0
    assert RateLimited.from_response(day, limit=LIMIT).limit is LIMIT


@pytest.mark.parametrize("retry_after", [-1, float("nan"), float("inf"), "30", None, True, EPOCH, 10**300])
def test_invalid_retry_after_is_refused(retry_after: Any) -> None:
    """The error for an invalid `retry_after` names the value, and how to read a response."""
    with pytest.raises(ConfigurationError, match=r"from 0 to 366 days.*not .*RateLimited.from_response\(response\)"):
        RateLimited(retry_after)


@pytest.mark.parametrize("limit", [7, ["partner"], object()])
def test_invalid_limit_is_refused(limit: Any) -> None:
    """The limit of the error must be a limit or its name."""
    with pytest.raises(ConfigurationError, match="limit must be a limit of the job, or its name, not"):
        RateLimited(limit=limit)


def test_rate_limited_is_an_error_that_can_be_pickled() -> None:
    """The error states the retry time, accepts a timedelta, and does not change when it is pickled."""
    error = RateLimited(timedelta(minutes=1), limit="partner")
    assert isinstance(error, ThrottleError)
    assert str(error) == "rate limited by downstream; retry in 60 s"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.retry_after, again.limit, str(again)) == (RateLimited, 60.0, "partner", str(error))
    assert RateLimited().retry_after == 30.0

"""Rate-limit headers of a response, applied by a job and by other code: which limit they concern, and their effect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from support.hearing import Recording
from support.servers.away import Away
from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    Limit,
    Limiter,
    Running,
    StoreUnavailable,
    TokenBucket,
    current,
)
from throttlekit._core.slowdown import Remaining
from throttlekit._engine.apply_response import remaining_of
from throttlekit._engine.response_headers import parse_response
from throttlekit._util.log_limiter import Every

PARTNER = TokenBucket("partner", "60/minute", burst=20)
ACCOUNT = TokenBucket("account", "10/s", key="{account}")
TOKENS = TokenBucket("tokens", "90000/minute", burst=9000, cost=lambda job: job.kwargs["n"])
OUT = TokenBucket("out", "16000/minute", burst=16000, cost=7)
SLOTS = Concurrency("slots", 3)
SPENT = {"RateLimit": '"default";r=5;t=30'}
LLM = {
    "anthropic-ratelimit-requests-remaining": "2",
    "anthropic-ratelimit-requests-reset": "2026-03-01T12:00:30Z",
    "anthropic-ratelimit-tokens-remaining": "300",
    "anthropic-ratelimit-tokens-reset": "2026-03-01T12:00:40Z",
    "anthropic-ratelimit-output-tokens-remaining": "100",
    "anthropic-ratelimit-output-tokens-reset": "2026-03-01T12:00:50Z",
    "date": "Sun, 01 Mar 2026 12:00:00 GMT",
}


class Response:
    def __init__(self, headers: Any, status_code: int = 200) -> None:
        self.headers, self.status_code = headers, status_code


@pytest.fixture
def limiter() -> Recording:
    return Recording()


def _job(limiter: Limiter, *limits: Limit, **kwargs: Any) -> Running:
    job = Job(kwargs={"account": 7, "n": 50, **kwargs})
    return Running(limiter, limiter.acquire(*limits, job=job), job=job)


def _bucket(limiter: Limiter, limit: Limit) -> str:
    charged = limiter.acquire(limit, job=Job(kwargs={"account": 7, "n": 1})).charged
    return charged[0].bucket


@pytest.mark.parametrize(
    ("headers", "status", "pace"),
    [
        (SPENT, 200, (5, 30)),
        ({"RateLimit": '"a";r=1;t=7, "day";r=50;t=3000'}, 200, (50, 3000)),  # the fewest per second
        ({"RateLimit": '"a";r=0;t=7, "day";r=0;t=3000'}, 200, (0, 3000)),  # if equal, the longest
        ({"RateLimit": '"a";r=3;t=86400'}, 200, (3, 3600)),  # at most an hour
        ({"RateLimit": '"a";r=0;t=0'}, 200, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1e-300"}, 200, None),
        ({"RateLimit": '"a";t=9'}, 200, None),
        ({"RateLimit": '"a";r=500;t=30'}, 200, None),  # more than the limit admits by itself
        ({"RateLimit": '"a";r=50;t=30'}, 200, None),
        ({"RateLimit": '"a";r=49;t=30'}, 200, (49, 30)),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "60s",
                "x-ratelimit-limit-requests": "30",
            },
            200,
            (30, 60),
        ),  # a bucket: refilled units count too
        ({"X-HubSpot-RateLimit-Remaining": "3", "X-HubSpot-RateLimit-Interval-Milliseconds": "10000"}, 200, (3, 10)),
        ({"X-Shopify-Shop-Api-Call-Limit": "32/40"}, 200, (8, 8)),  # at the limit's own rate: no more at once
        ({"X-Shopify-Shop-Api-Call-Limit": "40/40"}, 200, (0, 1)),
        ({"Retry-After": "9"}, 429, (0, 9)),
        ({"Retry-After": "9"}, 503, (0, 9)),
        ({"Retry-After": "9"}, 200, None),  # for a 202 or a 301 it has another meaning
        ({"Retry-After": "9"}, 403, None),
        ({"Retry-After": "9", **SPENT}, 429, (0, 9)),
        ({"Retry-After": "0"}, 429, None),
        ({}, 429, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "60s"}, 200, None),  # tokens only
    ],
)
def test_the_strictest_header_is_used(headers: dict[str, str], status: int, pace: tuple[int, int] | None) -> None:
    """The strictest header of a response determines how many requests may be sent, and within how many seconds."""
    remaining = remaining_of(parse_response(Response(headers, status), 0.0), "requests", PARTNER)
    assert remaining == (pace and Remaining(pace[0], pace[1] * 1_000_000))


@pytest.mark.parametrize(
    "limit", [ACCOUNT, FixedWindow("daily", "100/day", tz="Asia/Kolkata")], ids=lambda limit: limit.name
)
def test_a_job_applies_headers_to_its_only_rate(limiter: Recording, limit: Limit) -> None:
    """Slots have no rate; the headers apply to the bucket that the job was charged under."""
    running = _job(limiter, limit, SLOTS)
    running.apply_response(Response(SPENT))
    assert running.decision is not None
    assert limiter.slowed == [(running.decision.charged[0].bucket, Remaining(5, 30_000_000))]


def test_a_job_with_several_rates_must_name_one(limiter: Recording) -> None:
    """A job with several rates raises unless it names one: a wrong guess would slow the wrong limit down."""
    running = _job(limiter, PARTNER, ACCOUNT)
    with pytest.raises(ConfigurationError, match=r"not clear which .* `current\(\).apply_response\(response, limit\)`"):
        running.apply_response(Response(SPENT))
    running.apply_response(Response(SPENT), ACCOUNT)
    assert [name for name, _ in limiter.slowed] == [_bucket(limiter, ACCOUNT)]


def test_token_headers_apply_to_the_limits_named_for_them(limiter: Recording) -> None:
    """Request headers apply to the only other limit."""
    running = _job(limiter, PARTNER, TOKENS, OUT)
    running.apply_response(Response(LLM), tokens=TOKENS, output_tokens=OUT)
    assert sorted(limiter.slowed) == sorted(
        [
            (_bucket(limiter, PARTNER), Remaining(2, 30_000_000)),
            (_bucket(limiter, TOKENS), Remaining(300, 40_000_000)),
            (_bucket(limiter, OUT), Remaining(100, 50_000_000)),
        ]
    )


def test_a_limit_with_a_callable_cost_counts_requests_only_if_named(limiter: Recording) -> None:
    """A callable cost may count tokens, or pages: only the caller knows what a request costs."""
    running = _job(limiter, TOKENS)
    with pytest.raises(ConfigurationError, match="not clear"):
        running.apply_response(Response(LLM))
    running.apply_response(Response(LLM), tokens=TOKENS)
    assert limiter.slowed == [(_bucket(limiter, TOKENS), Remaining(300, 40_000_000))]
    running.apply_response(Response(SPENT), TOKENS)
    assert limiter.slowed[1:] == [(_bucket(limiter, TOKENS), Remaining(5, 30_000_000))]


@pytest.mark.parametrize(
    ("limits", "named", "match"),
    [
        ((PARTNER,), (ACCOUNT,), "'account' is not one that the job was charged under; .* 'partner'"),
        ((SLOTS,), (), "not clear which"),
        ((SLOTS,), (SLOTS,), "has a rate, not"),
        ((SLOTS,), (PARTNER,), "charged under none that has a rate"),
        ((PARTNER,), ("partner",), "has a rate, not 'partner'"),
    ],
)
def test_an_invalid_limit_is_refused(limiter: Recording, limits: tuple[Limit, ...], named: Any, match: str) -> None:
    """The error for an invalid limit lists the limits of the job."""
    with pytest.raises(ConfigurationError, match=match):
        _job(limiter, *limits).apply_response(Response(SPENT), *named)


def test_headers_are_ignored_outside_a_job() -> None:
    """Outside a job, and in a job that runs uncharged, headers have no effect: tests and scripts can call a body."""
    current().apply_response(Response(SPENT), PARTNER)
    limiter = Recording(Away())
    mails = TokenBucket("mails", "1/s", on_store_failure="open")
    local = TokenBucket("local", "1/s", on_store_failure="local", processes=1)
    for limit in (mails, local):
        running = _job(limiter, limit)
        assert running.decision
        running.apply_response(Response(SPENT), limit)
        running.apply_response(Response(SPENT))
    assert limiter.slowed == []


def test_a_response_without_information_makes_no_request(limiter: Recording) -> None:
    """A response that allows more than the limit makes no request either."""
    limiter.slow_down = Mock(side_effect=AssertionError("a request was made"))  # type: ignore[method-assign]
    for headers in ({}, {"RateLimit": '"a";r=1000;t=30'}, {"X-RateLimit-Remaining": "many"}):
        limiter.apply_response(Response(headers), PARTNER)


def test_other_code_names_the_limit_and_the_key(limiter: Recording) -> None:
    """
    Code outside a job names the limit and the key, as for a pause, also for several limits of requests and tokens.
    """
    limiter.apply_response(Response(SPENT), ACCOUNT, key=7)
    limiter.apply_response(Response(LLM), PARTNER, tokens=OUT)
    assert limiter.slowed == [
        (_bucket(limiter, ACCOUNT), Remaining(5, 30_000_000)),
        (_bucket(limiter, PARTNER), Remaining(2, 30_000_000)),
        (_bucket(limiter, OUT), Remaining(300, 40_000_000)),
    ]
    with pytest.raises(ConfigurationError, match=r"name the limit .* limiter.apply_response\(response, partner\)"):
        limiter.apply_response(Response(SPENT))


def test_all_tiers_of_a_limit_slow_down(limiter: Recording) -> None:
    """If a job is given, only its tier slows down."""
    tiered = TokenBucket("tiered", {"free": "1/s", "pro": "100/s"}, burst={"free": 1, "pro": 9}, tier="{plan}")
    spent = Response({"RateLimit": '"a";r=0;t=30'})
    limiter.apply_response(spent, tiered)
    assert len(limiter.slowed) == 2
    limiter.apply_response(spent, tiered, job=Job(kwargs={"plan": "pro"}))
    assert len(limiter.slowed) == 3


@pytest.mark.parametrize(
    "apply",
    [
        lambda limiter: limiter.apply_response(Response(SPENT), PARTNER),
        lambda limiter: _job(limiter, PARTNER).apply_response(Response(SPENT)),
    ],
)
def test_an_unavailable_store_is_logged(
    limiter: Recording, apply: Callable[[Limiter], None], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """An unavailable store is logged and raises nothing, because the call to the partner was made."""
    monkeypatch.setattr("throttlekit._engine.apply_response._not_stored", Every())
    limiter.slow_down = Mock(side_effect=StoreUnavailable("the store is away"))  # type: ignore[method-assign]
    apply(limiter)
    apply(limiter)
    assert [each.message for each in caplog.records] == [
        "the store is away. The rate-limit headers of a response were not applied."
    ]


def test_unreadable_headers_are_logged_at_most_every_30_seconds(
    limiter: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """The log contains the names of the headers, and not their values."""
    monkeypatch.setattr("throttlekit._engine.rate_limited._unreadable", Every())
    with caplog.at_level(logging.INFO, logger="throttlekit"):
        for _ in range(2):
            limiter.apply_response(Response({"X-RateLimit-Remaining": "secret"}), PARTNER)
    assert [each.message for each in caplog.records] == [
        "A response has headers about rate limits that cannot be read: x-ratelimit-remaining."
    ]

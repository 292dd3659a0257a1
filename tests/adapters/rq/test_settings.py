"""Where the workers' limiter comes from, and what `configure` refuses."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_rq import configure
from throttlekit_rq._settings import _Process, limiter_for
from throttlekit_rq._wire import logged_key

pytestmark = QUIET


def test_the_jobs_own_connection_is_the_default(simple_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By default the limits are stored where the jobs are. $THROTTLEKIT_URL overrides this, and configure() overrides
    both.
    """
    server, _, own = simple_site.url.rpartition("/")
    elsewhere, configured, *_ = (f"{server}/{n}" for n in range(1, 16) if n != int(own))
    configure()
    simple_site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    simple_site.work()
    assert not simple_site.limiter.peek(jobs.HOURLY).allowed

    monkeypatch.setenv("THROTTLEKIT_URL", elsewhere)
    simple_site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    simple_site.work()
    assert len(simple_site.noted) == 2

    limiter = Limiter(configured)
    configure(limiter)
    simple_site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    simple_site.work()
    assert len(simple_site.noted) == 3
    for other in (limiter, limiter_for(simple_site.connection), Limiter(elsewhere)):
        other.reset(jobs.HOURLY)
        other.close()


def test_connections_to_one_server_have_one_limiter(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opens several connections counts, and reports, as one."""
    monkeypatch.setattr(_Process, "made", {})
    monkeypatch.delenv("THROTTLEKIT_URL", raising=False)
    configure()
    with redis.Redis.from_url(redis_url) as first, redis.Redis.from_url(redis_url) as second:
        with contextlib.closing(limiter_for(first)) as limiter:
            assert limiter_for(second) is limiter
            assert limiter.acquire(jobs.HOURLY).allowed
        with contextlib.closing(Limiter(redis_url)) as other:
            assert not other.peek(jobs.HOURLY).allowed


def test_services_of_two_sentinels_have_two_limiters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two deployments may use one name for their services, and their limits are stored in two places."""
    monkeypatch.setattr(_Process, "made", {})
    monkeypatch.delenv("THROTTLEKIT_URL", raising=False)
    configure()
    with caplog.at_level("WARNING", "throttlekit"):
        first, second = (Sentinel([("127.0.0.1", port)]).master_for("mymaster") for port in (1, 2))
        assert limiter_for(first) is not limiter_for(second)
        assert limiter_for(first) is limiter_for(first)


@pytest.mark.parametrize(("is_named", "level", "lines"), [(False, "INFO", 1), (True, "INFO", 0), (False, "WARNING", 0)])
def test_workers_log_that_no_store_is_configured(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_named: bool,
    level: str,
    lines: int,
) -> None:
    """
    The line is logged once for the fleet, although each work-horse is a new process. It is not logged if
    $THROTTLEKIT_URL names the same Redis. A line that is not logged costs no request: each work-horse would send one.
    """
    monkeypatch.setattr(_Process, "made", {})
    monkeypatch.delenv("THROTTLEKIT_URL", raising=False)
    if is_named:
        monkeypatch.setenv("THROTTLEKIT_URL", redis_url)
    configure()
    with contextlib.closing(redis.Redis.from_url(redis_url)) as connection, caplog.at_level(level, "throttlekit"):
        for _ in range(2):
            limiter_for(connection).close()
            _Process.made.clear()
        assert connection.exists(logged_key("own-store")) == lines
    assert sum("Limits are counted in RQ's own Redis" in message for message in caplog.messages) == lines


def test_an_invalid_url_fails_the_job_with_the_reason(simple_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job neither runs unthrottled nor is decided repeatedly. The message does not contain the URL."""
    configure()
    monkeypatch.setenv("THROTTLEKIT_URL", "reddis://:geheim@localhost")
    job = simple_site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    simple_site.work()
    result = simple_site.fetch(job).latest_result()
    assert simple_site.noted == []
    assert result is not None
    assert "no store is known" in result.exc_string
    assert "geheim" not in result.exc_string


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limiter": "redis://geheim"}, "takes a limiter"),
        ({"on_waited_too_long": "shrug"}, "on_waited_too_long"),
        ({"max_wait": -1}, "max_wait"),
        ({"max_deferrals": 1.5}, "max_deferrals"),
        ({"max_inline_wait": "long"}, "max_inline_wait"),
        ({"own_limits": "no"}, "own_limits"),
        ({"queues": {"work": "10/s"}}, "queue 'work'"),
        ({"queues": {"work": jobs.HOURLY}, "limiter": Limiter(), "max_wait": True}, "max_wait"),
    ],
)
def test_configure_refuses_arguments_that_can_never_work(options: dict[str, Any], message: str) -> None:
    """`configure` raises for an invalid value, and the error names the argument."""
    with pytest.raises(ConfigurationError, match=message):
        configure(**options)


def test_configure_refuses_a_name_with_two_definitions() -> None:
    """`configure` raises if the limiter knows another definition of a limit's name."""
    limiter = Limiter()
    limiter.declare(jobs.HOURLY)
    with pytest.raises(ConfigurationError, match="two limits"):
        configure(limiter, queues={"work": TokenBucket("hourly", "2/hour")})

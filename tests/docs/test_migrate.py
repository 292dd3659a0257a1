"""What docs/migrate.md states about jobs that were enqueued before the change."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import RateLimitExceeded
from redis import Redis
from rq import Queue

from support.dramatiq.helpers import working
from support.markdown import Page
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit.testing import allowing
from throttlekit_dramatiq import Throttle
from throttlekit_rq import ThrottledSimpleWorker, configure

_BEFORE, _AFTER = "def make_report(account_id): ...", "@throttled("


@pytest.mark.usefixtures("predefined")
def test_jobs_that_rq_holds_back_run_under_the_new_limit(redis_url: str, importable: Path) -> None:
    """Two jobs of the old code, one of them with the status rate_limited, are both decided by the new limit."""
    rq = pytest.importorskip("rq", minversion="3", reason="RQ 2 has no rate_limit")
    with Redis.from_url(redis_url) as redis:
        queue = Queue("reports", connection=redis)
        limit: Any = rq.RateLimit(key="reports-db", concurrency=1)
        jobs = [queue.enqueue("reports_migrated.make_report", n, rate_limit=limit) for n in range(2)]
        assert [str(job.get_status().value) for job in jobs] == ["queued", "rate_limited"]

        (after,) = [b.text for b in Page("docs/migrate.md").blocks("python") if _BEFORE in b.text and _AFTER in b.text]
        declared = after.partition("\n\nreports.enqueue")[0].replace("redis://localhost:6379/0", redis_url)
        (importable / "reports_migrated.py").write_text(
            declared.replace("redis://localhost:6379/1", redis_url), "utf-8"
        )
        importlib.import_module("reports_migrated")
        limiter = Limiter(redis_url)
        configure(limiter)  # replaces the page's own limiter, to record its decisions
        with allowing(limiter) as seen:
            ThrottledSimpleWorker([queue], connection=redis).work(burst=True, max_jobs=2, max_idle_time=1)
        assert [str(job.get_status(refresh=True).value) for job in jobs] == ["finished", "finished"]
        assert [event.decision.limit.name for event in seen.decisions] == ["reports-db", "reports-db"]


def test_messages_that_dramatiq_retries_are_decided_when_they_are_redelivered(redis_url: str) -> None:
    """A message that a limiter in its body denied is redelivered after its back-off, and the new limit decides it."""
    broker, limiter, ran = RedisBroker(url=redis_url, namespace="migrated"), Limiter(), list[int]()

    def denied(number: int) -> None:
        raise RateLimitExceeded("rate limit exceeded")

    dramatiq.actor(denied, actor_name="report", broker=broker, min_backoff=1_000, max_backoff=1_000).send(1)
    with contextlib.closing(broker):
        with working(broker):
            wait_until(lambda: _delayed(broker) == 1, description="the message waits for its back-off")
        broker.actors.clear()
        broker.add_middleware(Throttle(limiter))
        dramatiq.actor(ran.append, actor_name="report", broker=broker, throttle=[TokenBucket("partner-api", "100/m")])
        with contextlib.closing(limiter), allowing(limiter) as seen, working(broker):
            wait_until(lambda: ran == [1], description="the message has run")
            seen.assert_allowed("report", limit="partner-api")


def _delayed(broker: Any) -> int:
    return int(broker.client.hlen("migrated:default.DQ.msgs"))

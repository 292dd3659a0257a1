"""Waiting jobs follow a changed limit, on real workers of two frameworks with one limit."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
import redis

from support.dramatiq.workers import make_broker, workers
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import redis_server
from support.waiting import wait_until
from throttlekit import Control, Limiter, TokenBucket
from throttlekit_rq import ThrottledQueue

pytestmark = pytest.mark.workers

LIMIT = TokenBucket("partner", "40/s", burst=8)  # as in support.jobs.control
APPLIED_AFTER = 2.0
SLACK = 10.0  # additional time for a loaded machine


class Site:
    """Two workers, one of each framework, that share one limit, and the queues to send jobs to both."""

    def __init__(self, base: str) -> None:
        self.control = Control(f"{base}/1", by="test")
        self._limiter = Limiter(f"{base}/1")
        self._starts: Any = redis.Redis.from_url(f"{base}/2")
        self._broker = make_broker(f"{base}/3")
        self._broker.declare_queue("default")
        self._rq: Any = redis.Redis.from_url(f"{base}/4")
        self._queue = ThrottledQueue("default", connection=self._rq, limiter=self._limiter)
        self._sent = 0

    def send(self, each: int) -> None:
        for number in range(self._sent, self._sent + each):
            message: Any = dramatiq.Message(
                queue_name="default", actor_name="call", args=(number,), kwargs={}, options={}
            )
            self._broker.enqueue(message)
            self._queue.enqueue("support.jobs.control.call_rq", number, throttle=[LIMIT])
        self._sent += each

    def starts(self) -> list[float]:
        return sorted(json.loads(entry)[0] for entry in self._starts.lrange("starts", 0, -1))

    def waiting(self) -> int:
        """Return about how many jobs have been denied, and wait."""
        from throttlekit.fleet.snapshot import look

        keys = look(self.control._store).keys  # pyright: ignore[reportPrivateUsage]
        return sum(key.waiting for key in keys)

    def close(self) -> None:
        self.control.close()
        self._limiter.close()
        self._starts.close()
        self._broker.close()
        self._rq.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with redis_server() as base, contextlib.closing(Site(base)) as site:
        site.control.set("partner", "1/10s", burst=1)
        site.send(8)
        environment = {"TK_CONTROL": base}
        rq = rq_worker(
            f"{base}/4",
            "default",
            kind="throttlekit_rq.ThrottledSimpleWorker",
            options=["-c", "support.jobs.control"],
        )
        with workers("support.jobs.control", environment, processes=1, threads=4), Fleet([rq], environment):
            yield site


def test_waiting_jobs_follow_a_raised_and_a_lowered_limit(site: Site) -> None:
    """
    16 jobs wait at one in ten seconds, for 150 s. After the limit is raised to 100/s, all of them run soon after the
    two seconds in which the fleet applies a change. After it is scaled to 2/s during a backlog, no more jobs are
    admitted than that rate allows.
    """
    wait_until(lambda: site.waiting() >= 10, description="the jobs wait", timeout=30)
    site.control.set("partner", "100/s", burst=1)
    wait_until(lambda: len(site.starts()) == 16, description="all jobs have run", timeout=APPLIED_AFTER + SLACK)

    site.control.set("partner", "20/s", burst=1)
    time.sleep(APPLIED_AFTER)
    site.send(80)
    wait_until(lambda: len(site.starts()) >= 26, description="the backlog runs", timeout=30)
    site.control.scale("part*", 0.1)
    applied_at = (
        time.time() + APPLIED_AFTER + 2
    )  # a loaded machine can apply the change late, and start granted jobs late
    wait_until(lambda: time.time() > applied_at + 2, description="the fleet has applied the change, and continues")
    late = [at for at in site.starts() if at > applied_at]
    assert len(late) <= 1 + 2 * (time.time() - applied_at) + 4
    wait_until(lambda: any(at > applied_at for at in site.starts()), description="jobs run at the new rate")

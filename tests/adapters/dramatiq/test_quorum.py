"""
RabbitMQ's prefetch window: how many messages a worker fetches while it holds others, from classic and quorum queues.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Middleware

from support.dramatiq.helpers import Site, left_over, working
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

PAUSED = TokenBucket("paused", "10000/s")
OTHER = TokenBucket("other", "10000/s")
MANY = 300
THREADS = 2


class Quorum(RabbitmqBroker):
    """Declares its queues as a policy or the default queue type of a virtual host would."""

    def _build_queue_arguments(self, queue_name: str) -> Any:
        return {**super()._build_queue_arguments(queue_name), "x-queue-type": "quorum"}  # type: ignore[no-untyped-call]


class Redelivered(Middleware):
    """Counts the messages that RabbitMQ has delivered before."""

    def __init__(self) -> None:
        self.count = 0

    def before_process_message(self, broker: Any, message: Any) -> None:
        self.count += message.redelivered


@pytest.fixture(params=["classic", "quorum"])
def site(request: pytest.FixtureRequest, rabbit: Site, rabbitmq_url: str) -> Iterator[Site]:
    if request.param == "classic":
        yield rabbit
        return
    broker: Any = Quorum(url=rabbitmq_url, confirm_delivery=True)
    site = Site("rabbitmq", f"{rabbit.queue}-quorum", broker)
    yield site
    for name in (site.queue, f"{site.queue}.DQ", f"{site.queue}.XQ"):
        with contextlib.suppress(Exception):
            broker.channel.queue_delete(name)
    broker.close()


def count_consumers(worker: Any, site: Site) -> int:
    return len(worker.consumers[site.queue].consumer.channel.consumer_tags)


def test_messages_behind_held_messages_are_fetched(site: Site) -> None:
    """
    A worker holds 300 messages of a paused limit. Those of another limit run, and the held ones run after the pause.
    """
    limiter, redelivered = Limiter(), Redelivered()
    site.broker.add_middleware(redelivered)
    site.broker.add_middleware(Throttle(limiter))
    paused = site.actor(lambda n: site.ran.append(n), actor_name="paused", throttle=PAUSED, max_retries=0)
    other = site.actor(lambda n: site.ran.append(n), actor_name="other", throttle=OTHER, max_retries=0)
    limiter.pause(PAUSED, 600)
    for n in range(MANY):
        paused.send(n)
    for n in range(MANY, MANY + 20):
        other.send(n)
    with site.working(threads=THREADS) as worker:
        site.until_ran(20)
        site.until_held(worker, MANY)
        assert sorted(site.ran) == [*range(MANY, MANY + 20)]
        assert 2 < count_consumers(worker, site) < 40
        limiter.resume(PAUSED)
        site.until_ran(MANY + 20)
        wait_until(lambda: count_consumers(worker, site) <= 3, description="the additional consumers are cancelled")
        assert sorted(site.ran) == [*range(MANY + 20)]
        other.send(-1)
        site.until_ran(MANY + 21)
    assert redelivered.count == 0


def test_a_worker_that_held_many_messages_leaves_new_ones_to_others(site: Site) -> None:
    """
    While every thread is busy, a worker fetches less than three times as many messages as Dramatiq, which fetches 2 for
    each thread.
    """
    go = threading.Event()
    limiter, limit = site.send_paused(MANY)
    plain = site.actor(lambda: site.ran.append(go.wait(60)), actor_name="plain")
    with site.working(threads=THREADS) as worker:
        site.until_held(worker, MANY)
        limiter.resume(limit)
        site.until_ran(MANY)
        wait_until(lambda: count_consumers(worker, site) <= 3, description="the additional consumers are cancelled")
        for _ in range(50):
            plain.send()
        fetched = 0

        def is_unchanged() -> bool:
            nonlocal fetched
            before, fetched = fetched, 50 - left_over(site.broker, site.queue)
            return before == fetched > 0

        wait_until(is_unchanged, description="the worker fetches no more messages", every=0.5)
        go.set()
        site.until_ran(MANY + 50)
    assert THREADS * 2 <= fetched < 3 * THREADS * 2
    assert Counter(site.ran) == Counter([*range(MANY), *[True] * 50])


def test_messages_of_a_killed_connection_are_delivered_to_another_worker(site: Site) -> None:
    """
    The messages of a killed connection, including those of a consumer that was cancelled since, are delivered to
    another worker. Each runs once.
    """
    limiter, limit = site.send_paused(MANY)
    with working(site.broker, THREADS) as worker:
        site.until_held(worker, MANY)
    assert site.ran == []
    limiter.resume(limit)
    with site.working(threads=THREADS):
        site.until_ran(MANY)
    assert sorted(site.ran) == [*range(MANY)]

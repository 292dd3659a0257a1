"""Live control on a server: every process follows within 2 seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import redis

from support.waiting import wait_until
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._fleet.rules import RULES, Rule, field_of, written

LIMIT = TokenBucket("api", "1000/s", burst=100)


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    with contextlib.closing(Limiter(redis_url)) as limiter:
        yield limiter


def tell(redis_url: str, rule: Rule) -> None:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        client.hset(RULES, field_of(rule.what, rule.name, rule.part), written(rule))
        client.expire(RULES, 60)


def test_first_decision_of_a_process_knows_the_rules(redis_url: str, limiter: Limiter) -> None:
    """Whoever starts while a limit is paused lets nobody pass: not even once."""
    tell(redis_url, Rule(what="pause", name="api"))
    decision = limiter.acquire(LIMIT, job=Job(id="1"))
    assert (decision.allowed, decision.reason) == (False, "paused")


def test_running_process_follows(redis_url: str, limiter: Limiter) -> None:
    """What is told later is known within a beat or two."""
    assert limiter.acquire(LIMIT, job=Job(id="1"))
    tell(redis_url, Rule(what="pause", name="api"))
    wait_until(lambda: limiter.acquire(LIMIT, job=Job(id="1")).reason == "paused", description="it follows")

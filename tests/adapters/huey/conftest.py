"""A huey on a Redis of the tests, with workers that the test itself runs, one job at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from huey import PriorityRedisHuey, RedisHuey

from support.huey.hand import Hand
from throttlekit import Limiter
from throttlekit_huey import install

_NUMBERS = itertools.count(1)


@pytest.fixture(params=[RedisHuey, PriorityRedisHuey], ids=["list", "priorities"])
def hand(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Hand]:
    yield from _hand(request.param, redis_url)


@pytest.fixture
def plain(redis_url: str) -> Iterator[Hand]:
    """A huey with a list, for behaviour that does not depend on the kind of queue."""
    yield from _hand(RedisHuey, redis_url)


def _hand(kind: Any, url: str) -> Iterator[Hand]:
    huey: Any = kind(f"hand{next(_NUMBERS)}", url=url, read_timeout=0.2)
    limiter = Limiter("memory://")
    install(huey, limiter)
    hand = Hand(huey, limiter)
    yield hand
    hand.admission.waiting.close()
    limiter.close()
    huey.storage.pool.disconnect()

"""A huey on a Redis of the tests, with workers that the test itself runs, one job at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from huey import PriorityRedisHuey, RedisHuey

from support.huey.hand import Hand
from throttlekit import Limiter
from throttlekit_huey import install

_NUMBERS = itertools.count(1)


@pytest.fixture
def make_hand(redis_url: str) -> Iterator[Callable[..., Hand]]:
    """
    A function that makes a huey of a kind, with throttlekit. By default, its name and its limiter are its own. All of
    them are closed when the test ends.
    """
    with ExitStack() as stack:

        def make(kind: Any = RedisHuey, *, name: str = "", limiter: Limiter | None = None, **options: Any) -> Hand:
            huey: Any = kind(name or f"hand{next(_NUMBERS)}", url=redis_url, read_timeout=0.2, **options)
            limiter = stack.enter_context(limiter or Limiter("memory://"))
            install(huey, limiter)
            hand = Hand(huey, limiter)
            stack.callback(huey.storage.pool.disconnect)
            stack.callback(hand.admission.waiting.close)
            return hand

        yield make


@pytest.fixture(params=[RedisHuey, PriorityRedisHuey], ids=["list", "priorities"])
def hand(request: pytest.FixtureRequest, make_hand: Callable[..., Hand]) -> Hand:
    return make_hand(request.param)


@pytest.fixture
def plain(make_hand: Callable[..., Hand]) -> Hand:
    """A huey with a list, for behaviour that does not depend on the kind of queue."""
    return make_hand()

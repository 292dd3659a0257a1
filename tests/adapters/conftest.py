"""Brokers of three kinds, each with a queue that no other test uses."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from dramatiq.brokers.stub import StubBroker

from support.dramatiq_helpers import Site

_NUMBERS = itertools.count(1)


@pytest.fixture(params=["stub", "redis", "rabbitmq"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A broker of each kind in turn."""
    yield from _site(request, request.param)


@pytest.fixture
def stub(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Dramatiq's in-memory broker: for what does not depend on the broker."""
    yield from _site(request, "stub")


@pytest.fixture
def redis_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _site(request, "redis")


@pytest.fixture
def rabbit(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _site(request, "rabbitmq")


def _site(request: pytest.FixtureRequest, kind: str) -> Iterator[Site]:
    made: list[Any] = []
    url = {"stub": lambda: "", "redis": lambda: "redis_url", "rabbitmq": lambda: "rabbitmq_url"}[kind]()
    address = request.getfixturevalue(url) if url else ""

    def make(**options: Any) -> Any:
        if kind == "stub":
            made.append(StubBroker(fail_fast_default=False, **options))
        elif kind == "redis":
            from dramatiq.brokers.redis import RedisBroker

            made.append(RedisBroker(url=address, **options))
        else:
            from dramatiq.brokers.rabbitmq import RabbitmqBroker

            made.append(RabbitmqBroker(url=address, confirm_delivery=True, **options))
        return made[-1]

    site = Site(kind, f"q{os.getpid()}x{next(_NUMBERS)}", make)
    yield site
    if kind == "rabbitmq":
        for name in (site.queue, f"{site.queue}.DQ", f"{site.queue}.XQ"):
            with contextlib.suppress(Exception):
                site.broker.channel.queue_delete(name)
    for broker in made:
        broker.close()
        if kind == "redis":
            broker.client.close()
            broker.client.connection_pool.disconnect()

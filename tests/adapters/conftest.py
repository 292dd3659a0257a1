"""Brokers of three kinds, each with a queue that no other test uses, sites of RQ, a limiter in memory, and a Redis."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import rq
from dramatiq.brokers.stub import StubBroker

from support.dramatiq.helpers import Site
from support.dramatiq.workers import make_broker
from support.rq.helpers import FORKING, IN_PROCESS
from support.rq.helpers import Site as RqSite
from support.servers.flood import Servers, servers
from support.servers.processes import redis_server
from throttlekit import Limiter

_NUMBERS = itertools.count(1)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Contexts that a test enters. They are exited at its end."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    """A limiter in memory, for brokers and workers that a test runs in its own process."""
    with Limiter("memory://") as limiter:
        yield limiter


@pytest.fixture(scope="module")
def own_redis_base() -> Iterator[str]:
    """A Redis for this module only: its URL without a database number."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="module")
def on_redis() -> Iterator[Servers]:
    """The servers of floods, for this module only."""
    with servers("redis") as flood_servers:
        yield flood_servers


@pytest.fixture(scope="module")
def on_rabbitmq(rabbitmq_url: str, on_redis: Servers) -> Servers:
    return Servers("rabbitmq", rabbitmq_url, on_redis.redis_base)


@pytest.fixture(params=["redis", "rabbitmq"])
def flood_servers(request: pytest.FixtureRequest) -> Servers:
    """The brokers of a flood, each in turn."""
    return request.getfixturevalue(f"on_{request.param}")


@pytest.fixture(params=["stub", "redis", "rabbitmq"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site with a broker of each kind in turn."""
    yield from _site(request, request.param)


@pytest.fixture
def stub(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Dramatiq's in-memory broker, for behaviour that does not depend on the broker."""
    yield from _site(request, "stub")


@pytest.fixture
def redis_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _site(request, "redis")


@pytest.fixture
def rabbit(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _site(request, "rabbitmq")


def _site(request: pytest.FixtureRequest, kind: str) -> Iterator[Site]:
    address = request.getfixturevalue(f"{kind}_url") if kind != "stub" else ""
    broker: Any = make_broker(address) if address else StubBroker(fail_fast_default=False)
    site = Site(kind, f"q{os.getpid()}x{next(_NUMBERS)}", broker)
    yield site
    if kind == "rabbitmq":
        for name in (site.queue, f"{site.queue}.DQ", f"{site.queue}.XQ"):
            with contextlib.suppress(Exception):
                broker.channel.queue_delete(name)
    broker.close()
    if kind == "redis":
        broker.client.close()
        broker.client.connection_pool.disconnect()


def _rq_site(kind: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    if "spawn" in kind and [int(part) for part in rq.VERSION.split(".")[:2]] < [2, 6]:
        pytest.skip(f"SpawnWorker of RQ {rq.VERSION} does not support this redis-py")
    # for processes that a worker spawns
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    site = RqSite(redis_url, kind)
    yield site
    site.close()


@pytest.fixture(params=[*IN_PROCESS, "stock", "throttled"])
def rq_site(request: pytest.FixtureRequest, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    """RQ with workers of each kind in turn: stock and throttlekit's, forking and not."""
    yield from _rq_site(request.param, redis_url, monkeypatch)


@pytest.fixture(params=[*IN_PROCESS, *FORKING])
def any_site(request: pytest.FixtureRequest, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    """RQ with workers of each kind in turn, including those that spawn a process for each job."""
    yield from _rq_site(request.param, redis_url, monkeypatch)


@pytest.fixture(params=IN_PROCESS)
def simple_site(request: pytest.FixtureRequest, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    """RQ with a stock SimpleWorker and with throttlekit's, for behaviour that does not depend on where a job runs."""
    yield from _rq_site(request.param, redis_url, monkeypatch)


@pytest.fixture(params=["spawn", "throttled-spawn"])
def spawn_site(request: pytest.FixtureRequest, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    """RQ with workers that spawn a process for each job."""
    yield from _rq_site(request.param, redis_url, monkeypatch)


@pytest.fixture
def stock_site(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    """RQ with a stock SimpleWorker."""
    yield from _rq_site("simple", redis_url, monkeypatch)


@pytest.fixture
def throttled_site(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RqSite]:
    """RQ with throttlekit's SimpleWorker."""
    yield from _rq_site("throttled-simple", redis_url, monkeypatch)

"""The store through a client of the user's own: the whole suite, what its hooks see, and clients that cannot serve."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.servers.processes import Cluster
from throttlekit import Limiter, TokenBucket
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores import Store
from throttlekit.stores.client import ClientStore
from throttlekit.testing import StoreConformance

PARTNER = TokenBucket("partner", "1000/s", burst=1000)
FIT: dict[str, Any] = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}


class Hooked(redis.Redis):
    """A client as tracing makes it: each command passes through a wrapper."""

    seen: list[Any]

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        self.__dict__.setdefault("seen", []).append(arguments[0])
        return super().execute_command(*arguments, **options)


@pytest.fixture
def hooked(redis_url: str) -> Iterator[Hooked]:
    with contextlib.closing(Hooked.from_url(redis_url, **FIT)) as client:
        yield client


class TestClientStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hooked = hooked
        monkeypatch.setattr("throttlekit.testing.store._HISTORIES", 3)  # its commands are those of RedisStore

    def make_store(self) -> Store:
        return ClientStore(self.hooked)


def test_every_decision_passes_through_the_client(hooked: Hooked) -> None:
    """By its sha, after the first with the text, as any script of redis-py's."""
    limiter = Limiter(ClientStore(hooked))
    assert limiter.acquire(PARTNER)
    del hooked.seen[:]
    assert all(limiter.acquire(PARTNER) for _ in range(3))
    assert hooked.seen == ["EVALSHA"] * 3


def test_the_client_stays_open(hooked: Hooked) -> None:
    """It is the caller's."""
    with Limiter(ClientStore(hooked)) as limiter:
        assert limiter.acquire(PARTNER)
    assert hooked.ping()


def test_a_server_that_is_away() -> None:
    """Its errors are mapped as those of every store, with the server's name."""
    store = ClientStore(redis.Redis(port=1, **FIT))
    with pytest.raises(StoreUnavailable) as caught:
        Limiter(store).peek(PARTNER)
    assert caught.value.server == "localhost:1/0"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: None, "takes a redis.Redis, not a NoneType"),
        (lambda: redis.Redis(socket_timeout=1, retry=Retry(NoBackoff(), 1)), "charged twice"),
        (lambda: redis.Redis(retry=Retry(NoBackoff(), 0), socket_timeout=None), "without a time-out"),
        (lambda: redis.Redis(**FIT, decode_responses=True), "decodes replies"),
    ],
)
def test_clients_that_cannot_serve(make: Callable[[], Any], match: str) -> None:
    """The error says how to make one that can."""
    with pytest.raises(ConfigurationError, match=match):
        ClientStore(make())


def test_a_cluster_has_a_client_of_its_own(cluster: Cluster) -> None:
    """It is reached by a URL, or as client=."""
    host, _, port = cluster.url.rpartition("/")[2].partition(":")
    with pytest.raises(ConfigurationError, match="not a RedisCluster"):
        ClientStore(redis.RedisCluster(host=host, port=int(port)))

"""The store with a client that the user made: the whole suite, what the client's hooks see, and unusable clients."""

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
USABLE: dict[str, Any] = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}


class Hooked(redis.Redis):
    """A client as tracing libraries make it: it records each command."""

    seen: list[Any]

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        self.__dict__.setdefault("seen", []).append(arguments[0])
        return super().execute_command(*arguments, **options)


@pytest.fixture
def hooked(redis_url: str) -> Iterator[Hooked]:
    with contextlib.closing(Hooked.from_url(redis_url, **USABLE)) as client:
        yield client


class TestClientStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hooked = hooked
        monkeypatch.setattr("throttlekit.testing.store._HISTORIES", 3)  # its commands are those of RedisStore

    def make_store(self) -> Store:
        return ClientStore(self.hooked)


def test_every_decision_uses_the_client(hooked: Hooked) -> None:
    """The first decision sends the script's text, and the others its SHA, as with any script of redis-py."""
    limiter = Limiter(ClientStore(hooked))
    assert limiter.acquire(PARTNER)
    del hooked.seen[:]
    assert all(limiter.acquire(PARTNER) for _ in range(3))
    assert hooked.seen == ["EVALSHA"] * 3


def test_the_client_stays_open(hooked: Hooked) -> None:
    """When the limiter closes, the caller's client stays open."""
    with Limiter(ClientStore(hooked)) as limiter:
        assert limiter.acquire(PARTNER)
    assert hooked.ping()


def test_an_unreachable_server_is_an_outage() -> None:
    """The client's errors are mapped as in every store, with the server's name."""
    store = ClientStore(redis.Redis(port=1, **USABLE))
    with pytest.raises(StoreUnavailable) as caught:
        Limiter(store).peek(PARTNER)
    assert caught.value.server == "localhost:1/0"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: None, "takes a redis.Redis, not a NoneType"),
        (lambda: redis.Redis(socket_timeout=1, retry=Retry(NoBackoff(), 1)), "charged twice"),
        (lambda: redis.Redis(retry=Retry(NoBackoff(), 0), socket_timeout=None), "without a time-out"),
        (lambda: redis.Redis(**USABLE, decode_responses=True), "decodes replies"),
    ],
)
def test_unusable_clients_are_rejected(make: Callable[[], Any], match: str) -> None:
    """The error says how to create a usable client."""
    with pytest.raises(ConfigurationError, match=match):
        ClientStore(make())


def test_a_cluster_client_is_rejected(cluster: Cluster) -> None:
    """A cluster is given by a URL, or as client=, and not as a ClientStore."""
    host, _, port = cluster.url.rpartition("/")[2].partition(":")
    with pytest.raises(ConfigurationError, match="not a RedisCluster"):
        ClientStore(redis.RedisCluster(host=host, port=int(port)))

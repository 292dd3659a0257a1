"""
The suite for users' stores, on every store and supported server: each decides like `MemoryStore`.

`tests/unit/core` has the examples, with times that are calculated by hand. `tests/parity` compares the scripts, and
what they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.servers.processes import Cluster
from throttlekit.stores import MemoryStore, Store, StoreClaim
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    """`MemoryStore` is the specification, so two of them decide in the same way."""

    def make_store(self) -> Store:
        return MemoryStore()


class TestRedisStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self) -> Store:
        return RedisStore(self.url, timeout=5)


class TestRedisStoreOnOtherServers(TestRedisStore):
    @pytest.fixture(autouse=True, params=["redis_6_url", "valkey_url"])
    def _server(self, request: pytest.FixtureRequest) -> None:
        self.url = request.getfixturevalue(request.param)


class TestClusterStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _servers(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = cluster.url
        monkeypatch.setattr("throttlekit.testing.store._HISTORIES", 3)  # its answers are those of RedisStore

    def make_store(self) -> Store:
        return RedisClusterStore(self.url, timeout=5)

    def test_several_limits(self) -> None:
        pytest.skip("the claims of two keys are in two hash slots: see test_several_limits.py")


def _lacking(verb: str) -> type[MemoryStore]:
    """Return a class of stores whose method *verb* does nothing."""
    return type(f"Without_{verb}", (MemoryStore,), {verb: lambda self, *args, **options: None})


class _OneByOne(MemoryStore):
    """A wrong store: it charges the first limits although the last one denies."""

    def decide(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return [super(_OneByOne, self).decide([each], *args, **options) for each in claims][-1]


class _WithoutTenants(MemoryStore):
    def decide(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return super().decide([replace(each, tenant="", step=0) for each in claims], *args, **options)


class _InMilliseconds(MemoryStore):
    def decide(self, claims: Sequence[StoreClaim], requester: Any, now_us: int | None = None, **options: Any) -> Any:
        return super().decide(claims, requester, None if now_us is None else now_us // 1000 * 1000, **options)


class _OneKey(MemoryStore):
    """A wrong store: it counts all keys of a limit together."""

    def decide(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        claims = [replace(each, bucket=each.bucket.replace(":k}", ":}")) for each in claims]
        return super().decide(claims, *args, **options)


@pytest.mark.parametrize(
    "wrong",
    [
        *map(_lacking, ("settle", "release", "renew", "pause", "slow", "forget", "where", "return_units")),
        _OneByOne,
        _WithoutTenants,
        _InMilliseconds,
        _OneKey,
    ],
)
def test_the_suite_finds_a_wrong_store(wrong: type[MemoryStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one test of the suite fails, and its message has the request and both answers."""
    monkeypatch.setattr("throttlekit.testing.store._TRIES", 1)

    class Suite(StoreConformance):
        def make_store(self) -> Store:
            return wrong()

    expected = ("the specification", "apart", "received no wake")
    for name in [each for each in dir(Suite) if each.startswith("test_")]:
        try:
            getattr(Suite(), name)()
        except AssertionError as error:
            if any(words in str(error) for words in expected):
                return
    pytest.fail("no test fails")

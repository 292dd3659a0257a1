"""Claims in several hash slots of a Redis Cluster: charged one after the other, and returned when one denies."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import RedisClusterException

from conformance.bench import NOW_US, Bench, on_node
from support.servers.processes import Cluster, redis_cluster, stored
from support.waiting import wait_until
from throttlekit import (
    ConfigurationError,
    FixedWindow,
    Job,
    Limiter,
    SlidingLog,
    SlidingWindow,
    StoreUnavailable,
    TokenBucket,
)
from throttlekit._core.answer import Caller, Requester
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import bucket_name, wait_names
from throttlekit._core.waitlist import State
from throttlekit._engine.waker import Waker
from throttlekit.stores import Correction, MemoryStore
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.grouped import GroupedStore


@pytest.fixture
def limiter(cluster_store: RedisClusterStore) -> Limiter:
    return Limiter(cluster_store)


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that the test may break."""
    with redis_cluster() as cluster:
        yield cluster


@contextlib.contextmanager
def _nodes(cluster: Cluster) -> Iterator[list[Any]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(redis.Redis.from_url(url))) for url in cluster.node_urls]


def _remaining(limiter: Limiter, limits: Sequence[Limit]) -> list[int]:
    return [limiter.peek(limit).remaining for limit in limits]


def _calls(nodes: Sequence[Any], command: str) -> list[int]:
    return [node.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"] for node in nodes]


def _receivers(node: Any, owner: str) -> int:
    """Return how many connections to *node* receive the wakes of *owner*."""
    ((_, number),) = node.pubsub_numsub(f"tk1:{owner}")
    return int(number)


# Round trips


def test_one_call_for_each_hash_slot_and_one_more_to_return_units(cluster: Cluster, limiter: Limiter) -> None:
    """A grant is one EVALSHA for each hash slot; a denial ends the request, and earlier charges are returned."""
    limits = [on_node(node, TokenBucket, f"{10 + node}/h", burst=2) for node in range(3)]  # the scarcest first
    with _nodes(cluster) as nodes:
        for _ in range(2):  # for the second, each node knows every script
            limiter.acquire(*limits)
        limiter.reset(*limits)
        before = _calls(nodes, "evalsha")
        assert limiter.acquire(*limits)
        granted = _calls(nodes, "evalsha")
        assert [b - a for a, b in zip(before, granted, strict=True)] == [1, 1, 1]
        limiter.acquire(limits[1])
        limiter.reset(limits[0])
        limiter.acquire(limits[0], cost=0)
        limiter.settle(limiter.acquire(limits[0]), actual=0)  # the node knows both scripts
        before = _calls(nodes, "evalsha")
        assert not limiter.acquire(*limits)
        denied = _calls(nodes, "evalsha")
        assert [b - a for a, b in zip(before, denied, strict=True)] == [2, 1, 0]


# All or nothing


@pytest.mark.parametrize("denies", [0, 1, 2])
def test_a_denial_changes_no_stored_value(cluster: Cluster, limiter: Limiter, denies: int) -> None:
    """After a denial by any limit, the stored values are the same to the byte, also of limits that were used."""
    limits = [
        on_node(0, TokenBucket, "1/h", burst=5),
        on_node(1, FixedWindow, "5/year"),
        on_node(2, SlidingWindow, "5/365d"),
    ]
    for limit in limits:
        assert limiter.acquire(limit, cost=3)
    assert limiter.acquire(limits[denies], cost=2)
    names = [bucket_name(limit.name, "", limit.fingerprint) for limit in limits]
    with contextlib.closing(redis.RedisCluster.from_url(cluster.node_urls[0])) as client:
        before = [client.get(name) for name in names]
        for order in itertools.permutations(limits):
            assert not limiter.acquire(*order)
        assert [client.get(name) for name in names] == before
    assert None not in before


def test_every_verb_reaches_every_node(cluster: Cluster) -> None:
    """Each method works on limits of every node, by the nodes' own clocks, also after the limiter was closed."""
    limits = [on_node(node, SlidingLog, "9/h") for node in range(3)]
    limiter = Limiter(RedisClusterStore(cluster.url, timeout=5))
    decision = limiter.acquire(*limits, cost=9)
    assert decision.allowed
    assert not limiter.acquire(*limits, job=Job(id="1"))
    for limit in limits:
        decision = limiter.settle(decision, actual=1, limit=limit)
    assert _remaining(limiter, limits) == [8, 8, 8]
    limiter.close()
    assert _remaining(limiter, limits) == [8, 8, 8]
    limiter.reset(*limits)
    assert _remaining(limiter, limits) == [9, 9, 9]
    limiter.close()


# Names


@pytest.mark.parametrize("name", ["{a}", "}{", "a{b}c", "{}", "\n", "🙂{🙂}", "x" * 10_000 + "{tag}"])
def test_a_name_with_hash_tags_uses_one_hash_slot(cluster: Cluster, limiter: Limiter, name: str) -> None:
    """With any braces in a name or a key, the bucket and the waitlist share a hash slot, as the server computes it."""
    limit = TokenBucket(name, "1/h", key="{account}")
    buckets = [bucket_name(name, key, limit.fingerprint) for key in (name, "{x}", "}", "")]
    with _nodes(cluster) as nodes:
        for bucket in buckets:
            slots = {nodes[0].execute_command("CLUSTER KEYSLOT", each) for each in (bucket, wait_names(bucket)[0])}
            assert slots == {key_slot(bucket.encode())}
    for key in (name, "{x}", "}"):
        job = Job(id="1", kwargs={"account": key})
        outcomes = [limiter.acquire(limit, job=job).reason for _ in range(2)]
        assert outcomes == ["allowed", "exhausted"]


def test_keys_of_one_limit_are_spread(cluster: Cluster, limiter: Limiter) -> None:
    """The keys of one limit are on all nodes, not on one."""
    limit = TokenBucket("partner", "10/s", key="{account}")
    for account in range(60):
        limiter.acquire(limit, key=account)
    with _nodes(cluster) as nodes:
        sizes = [stored(node) for node in nodes]
    assert sum(sizes) == 60
    assert min(sizes) > 5, sizes


# A URL of one node only


def _server_error(error: ConfigurationError) -> str:
    """
    Return the first word of the server's error. redis-py 5.0 has classes for some, and uses them only in clusters.
    """
    kinds = {
        redis.exceptions.MovedError: "MOVED",
        redis.exceptions.AskError: "ASK",
        redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    }
    return kinds.get(type(error.__cause__)) or str(error.__cause__).split()[0]


def test_the_url_of_one_node_is_a_configuration_error(cluster: Cluster) -> None:
    """With redis:// and the address of one node, every method raises ConfigurationError for keys of other nodes."""
    limits = [on_node(node, TokenBucket, "10/s", burst=2) for node in range(3)]
    granted = Limiter().acquire(limits[1])
    with contextlib.closing(Limiter(cluster.node_urls[0])) as limiter:
        assert limiter.acquire(limits[0])
        calls = [
            lambda: limiter.acquire(limits[1], job=Job(id="1")),
            lambda: limiter.acquire(limits[0], limits[1]),
            lambda: limiter.peek(limits[2]),
            lambda: limiter.settle(granted, actual=2),
            lambda: limiter.reset(limits[2]),
        ]
        causes: list[str] = []
        for call in calls:
            with pytest.raises(ConfigurationError) as caught:
                call()
            assert str(caught.value).endswith("write its URL as redis+cluster://host:port")
            assert "127.0.0.1" not in str(caught.value)
            causes.append(_server_error(caught.value))
        assert causes == ["MOVED", "CROSSSLOT", "MOVED", "MOVED", "MOVED"]
        assert limiter.peek(limits[0]).remaining == 1


def test_an_unusable_cluster_is_logged_with_a_remedy(
    cluster: Cluster, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has a remedy for a server that is not a cluster, a user who cannot list nodes, and a wrong password."""
    allowed = ["~tk1:*", "+@read", "+@write", "+@connection", "-@dangerous", "+select", "+eval", "+evalsha", "+time"]
    with _nodes(cluster) as nodes:
        for node in nodes:
            node.execute_command("ACL", "SETUSER", "limits", "reset", "on", ">hunter2", *allowed)
        alone = redis_url.replace("redis://", "redis+cluster://").rpartition("/")[0]
        for url, message in (
            (alone, "it is not a node of a cluster, or its user may not list"),
            (cluster.url.replace("//", "//limits:hunter2@"), "+cluster"),
            (cluster.url.replace("//", "//limits:hunter3@"), "its user or password is missing or wrong"),
        ):
            caplog.clear()
            with contextlib.closing(Limiter(RedisClusterStore(url, timeout=5))) as limiter:
                assert limiter.acquire(TokenBucket("a", "1/s"), job=Job(id="1")).reason == "store unavailable"
            assert message in caplog.text
            assert "hunter" not in caplog.text
        for node in nodes:
            node.execute_command("ACL", "SETUSER", "limits", "+cluster", "+info")  # redis-py 5.0 needs both
        with contextlib.closing(
            Limiter(RedisClusterStore(cluster.url.replace("//", "//limits:hunter2@"), timeout=5))
        ) as limiter:
            assert limiter.peek(TokenBucket("a", "1/s"))
            limiter.reset(TokenBucket("a", "1/s"))
        for node in nodes:
            node.execute_command("ACL", "DELUSER", "limits")


def test_a_moving_hash_slot_is_a_failure(cluster: Cluster) -> None:
    """
    A node from which a hash slot moves away replies ASK. With redis:// that is the same configuration error. With the
    cluster's URL, jobs are deferred until the slot has moved, because Redis runs no command on two new keys of such a
    slot. Nothing is charged.
    """
    limit = on_node(0, TokenBucket, "10/s", burst=2)
    slot = key_slot(bucket_name(limit.name, "", limit.fingerprint).encode())
    with _nodes(cluster) as nodes, contextlib.closing(Limiter(cluster.node_urls[0])) as limiter:
        ids = [node.execute_command("CLUSTER MYID") for node in nodes]
        nodes[1].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        nodes[0].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        try:
            with pytest.raises(ConfigurationError, match=r"write its URL as redis\+cluster://") as caught:
                limiter.acquire(limit)
            assert _server_error(caught.value) == "ASK"
            with contextlib.closing(Limiter(RedisClusterStore(cluster.url, timeout=5))) as following:
                assert following.acquire(limit, job=Job(id="1")).reason == "store unavailable"
        finally:
            for node in nodes[:2]:
                node.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        assert [stored(node) for node in nodes] == [0, 0, 0]
        assert limiter.acquire(limit)


# Listeners


def test_an_owner_listens_at_each_node_that_it_calls(own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An owner listens at a node that its client did not know when it began: a node counts only its own receivers, and
    the waitlist may be on any node.
    """
    limit = on_node(1, TokenBucket, "1/h", burst=1)
    with contextlib.closing(RedisClusterStore(own_cluster.url, timeout=5)) as store:
        claim, received = Bench(store).claim(limit), list[str]()
        node = store._redis_py().get_node_from_key(claim.bucket)
        others = [each for each in store._redis_py().get_primaries() if each.name != node.name]
        listening: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(type(store._redis_py()), "get_primaries", lambda _: others)
            end = store.listen(
                "p", lambda _, wakes: received.extend(each.id for each in wakes), lambda: listening.append("")
            )
        assert store.decide([claim], Requester(Caller.JOB, "zero", "p", 2)).allowed
        assert store.decide([claim], Requester(Caller.JOB, "one", "p", 2)).kept is not None
        wait_until(lambda: len(listening) == 3, description="the owner listens at each of the three nodes")
        store.reset([claim.bucket])
        assert store.decide([claim], Requester(Caller.JOB, "zero", "p", 2)).allowed
        assert store.decide([claim], Requester(Caller.JOB, "one", "p", 2)).kept is not None
        store.settle([Correction(claim.bucket, claim.algorithm, 0, -claim.algorithm.size)])
        wait_until(lambda: received, description="the job is woken")
        found = store.where([claim], "one")
        assert found is not None
        assert found.state is State.WOKEN
        end()


def test_an_owner_listens_after_a_cluster_was_unavailable(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If no node answers when a process begins to listen, nothing is logged, and the other stores of its limiter are not
    affected. The process listens at a node from the first request that the node answers.
    """
    limit = on_node(1, TokenBucket, "1/h", burst=1)
    away, listening = RedisClusterException("no node answered"), list[str]()
    store, beside = RedisClusterStore(cluster.url, timeout=5), MemoryStore()
    with contextlib.closing(store), monkeypatch.context() as patched:
        patched.setattr(store, "_connect", Mock(side_effect=away))
        waker: Waker[str] = Waker(GroupedStore(beside, [("*", store)]), lambda: 1, lambda id, item: None)
        patched.setattr(waker, "on_missed", lambda: listening.append(""))
        waker.begin()
        wait_until(lambda: waker.listens, description="the waker listens")
        patched.undo()
        assert (listening, caplog.text) == ([], "")
        claim = Bench(store).claim(limit)
        assert store.decide([claim], Requester(Caller.JOB, "zero", waker.owner, 2)).allowed
        wait_until(lambda: listening, description="the owner listens at the node")
        waker.close()


def test_an_owner_does_not_listen_at_a_node_that_has_left(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When a node replaces another one, the owner listens at the new one only. If the old one returns, it listens there
    again.
    """
    listening, limits = list[str](), [on_node(node, TokenBucket, "1/h", burst=9) for node in range(2)]
    with contextlib.closing(RedisClusterStore(cluster.url, timeout=5)) as store, _nodes(cluster) as nodes:
        old, new = (Bench(store).claim(limit) for limit in limits)
        client, asks = store._redis_py(), Requester(Caller.JOB, "one", "p", 2)
        leaves = client.get_node_from_key(old.bucket)
        others = [each for each in client.get_nodes() if each.name != leaves.name]
        with monkeypatch.context() as patched:
            patched.setattr(type(client), "get_primaries", lambda _: [leaves])
            end = store.listen("p", lambda bucket, wakes: None, lambda: listening.append(""))
            wait_until(lambda: len(listening) == 1, description="the owner listens at the old node")
            patched.setattr(type(client), "get_nodes", lambda _: others)
            assert store.decide([new], asks).allowed
            wait_until(lambda: len(listening) == 2, description="the owner listens at the new node")
            wait_until(lambda: not _receivers(nodes[0], "p"), description="the owner left the old node")
        assert store.decide([old], asks).allowed
        wait_until(lambda: len(listening) == 3, description="the owner listens at the old node again")
        assert [_receivers(node, "p") for node in nodes[:2]] == [1, 1]
        end()


def test_an_owner_listens_once_a_thread_can_start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can start, no request fails, and the next request to each node tries again."""
    limit, listening = on_node(1, TokenBucket, "1/h", burst=9), list[str]()
    with contextlib.closing(RedisClusterStore(cluster.url, timeout=5)) as store:
        claim = Bench(store).claim(limit)
        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
            end = store.listen("p", lambda bucket, wakes: None, lambda: listening.append(""))
            assert store.decide([claim], Requester(Caller.JOB, "one", "p", 2)).allowed
        for id in ("two", "three"):
            assert store.decide([claim], Requester(Caller.JOB, id, "p", 2)).allowed
        wait_until(lambda: listening, description="the owner listens at the node")
        end()
        assert listening == [""]


def test_an_owner_that_does_not_listen_is_skipped(cluster_store: RedisClusterStore) -> None:
    """If the process of the first job is dead, a later job takes the unit at once."""
    store, claim = cluster_store, Bench(cluster_store).claim(on_node(1, TokenBucket, "1/s", burst=1))
    store.reset([claim.bucket])
    assert store.decide([claim], Requester(Caller.JOB, "zero", "p"), NOW_US).allowed
    assert not store.decide([claim], Requester(Caller.JOB, "one", "dead"), NOW_US).allowed
    store.look(claim, "p", 1, (), NOW_US + 1_000_000)
    assert store.decide([claim], Requester(Caller.JOB, "two", "p"), NOW_US + 1_000_000).allowed


# Nodes that fail


def test_a_node_that_is_down_leaves_no_charge_on_the_others(own_cluster: Cluster) -> None:
    """A killed master raises StoreUnavailable, in any order of limits; the limits of other nodes are unchanged."""
    limits = [on_node(node, SlidingLog, "5/h") for node in range(3)]
    limiter = Limiter(RedisClusterStore(own_cluster.url, timeout=5))
    assert limiter.acquire(*limits, cost=2)
    own_cluster.kill(2)
    store = RedisClusterStore(own_cluster.url, timeout=5)
    claims = [Bench(store).claim(limit) for limit in limits]
    for some in itertools.permutations(claims):
        with pytest.raises(StoreUnavailable):
            store.decide(some, Requester(Caller.JOB))
    for order in itertools.permutations(limits):
        decision = limiter.acquire(*order, job=Job(id="1"))
        assert (decision.allowed, decision.reason) == (False, "store unavailable")
    assert _remaining(limiter, limits[:2]) == [3, 3]
    assert limiter.acquire(*limits[:2])
    own_cluster.kill(0)  # the one that the URL names
    assert limiter.acquire(*limits[:2], job=Job(id="2")).reason == "store unavailable"
    assert limiter.acquire(limits[1])
    assert _remaining(limiter, limits[1:2]) == [1]
    store.close()
    limiter.close()


def test_a_node_that_hangs_is_called_once(cluster: Cluster) -> None:
    """A node that does not reply in time is StoreUnavailable, and the command is not sent again."""
    limits = [on_node(node, SlidingLog, "5/h") for node in range(3)]
    limiter = Limiter(RedisClusterStore(cluster.url, timeout=1))
    assert limiter.acquire(*limits)
    with _nodes(cluster) as nodes:
        before = _calls(nodes, "evalsha")[1]
        cluster.processes[1].send_signal(signal.SIGSTOP)
        try:
            assert limiter.acquire(*limits, job=Job(id="1")).reason == "store unavailable"
        finally:
            cluster.processes[1].send_signal(signal.SIGCONT)
        assert nodes[1].ping()
        assert _calls(nodes, "evalsha")[1] - before <= 1
    assert _remaining(limiter, [limits[0], limits[2]]) == [4, 4]
    wait_until(lambda: limiter.acquire(limits[1], cost=0), description="the node is called again")
    assert limiter.peek(limits[1]).remaining in (3, 4)  # whether it was charged cannot be known
    limiter.close()


def test_an_error_in_one_hash_slot_does_not_stop_the_others(cluster: Cluster, limiter: Limiter) -> None:
    """If the first key has another type, the charges in the other slots are settled, and the error is raised."""
    limits = [on_node(node, SlidingLog, "5/h", cost=lambda job: 3) for node in range(3)]
    granted = limiter.acquire(*limits, job=Job(id="1"))
    with redis.RedisCluster.from_url(cluster.node_urls[0]) as client:
        bucket = granted.charged[0].bucket
        client.delete(bucket)
        client.lpush(bucket, "not ours")
        with pytest.raises(StoreUnavailable, match="has a wrong type"):
            limiter.settle(granted, actual=1)
        client.delete(bucket)
    assert [limiter.peek(limit, cost=0).remaining for limit in limits[1:]] == [4, 4]
    limiter.reset(*limits, job=Job(id="1"))


def test_a_moved_hash_slot_is_followed_and_one_without_a_node_is_a_failure(own_cluster: Cluster) -> None:
    """
    After a hash slot has moved to another node, the next decision is made there, once. A cluster that does not cover
    all hash slots is StoreUnavailable, and the charges of other nodes are returned.
    """
    limits = [on_node(node, SlidingLog, "5/h") for node in range(3)]
    slot = key_slot(bucket_name(limits[2].name, "", limits[2].fingerprint).encode())
    limiter = Limiter(RedisClusterStore(own_cluster.url, timeout=5))
    assert limiter.acquire(*limits)
    limiter.reset(*limits)
    with _nodes(own_cluster) as nodes:
        receiver = nodes[1].execute_command("CLUSTER MYID")
        for node in nodes:
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", receiver)
        assert limiter.acquire(*limits, job=Job(id="1"))
        assert [stored(node) for node in nodes] == [1, 2, 0]
        assert _remaining(limiter, limits) == [4, 4, 4]
        nodes[1].execute_command("CLUSTER", "DELSLOTS", slot)
        decision = limiter.acquire(limits[0], limits[2], job=Job(id="1"))
        assert (decision.allowed, decision.reason) == (False, "store unavailable")
    assert _remaining(limiter, limits[:1]) == [4]
    limiter.close()

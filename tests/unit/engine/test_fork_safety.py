"""A fork while another thread holds a lock: the child must not wait for a thread that it does not have."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

import throttlekit_lua
from support.servers.processes import Cluster
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._engine.plugins import EventLog
from throttlekit._util import fork_safety
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._wiring import wiring_of
from throttlekit.hookspecs import Deferred
from throttlekit.stores import MemoryStore
from throttlekit.stores.breaker import CircuitBreaker
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.sentinel import RedisSentinelStore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
LIMIT = TokenBucket("partner", "10/s", burst=1)


def run_in_child(work: Callable[[], object]) -> int:
    """Run *work* in a forked child. Return its exit code, 0 for success, or minus the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test needs a fork among threads, which is risky
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def held_by_another_thread(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Another thread holds *lock*."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    try:
        yield
    finally:
        over.set()
        holder.join()


def test_deferrals_are_logged_in_a_child() -> None:
    """A deferral is logged in a child that was forked while another thread logged one."""
    log, limiter = EventLog(), Limiter()
    limiter.acquire(LIMIT)
    event = Deferred(Job(), limiter.peek(LIMIT))

    def log_deferral() -> bool:
        log.throttlekit_deferred(event)
        return True

    with log._deferrals._lock:
        assert run_in_child(log_deferral) == 0


def test_child_calls_a_shared_store() -> None:
    """Redis-py resets its pool in a child, under a lock that another thread may have held at the fork."""
    store = RedisStore("redis://127.0.0.1:1")
    limiter = Limiter(store)
    with held_by_another_thread(store._client.connection_pool._lock):
        assert run_in_child(lambda: limiter.acquire(LIMIT).reason == "store unavailable") == 0


def test_child_calls_the_store_in_an_outage() -> None:
    """A child that was forked during a call makes its own call after at most a second."""
    now = [0.0]
    limiter = Limiter("redis://127.0.0.1:1")
    wiring_of(limiter).stores.shared = guarded = CircuitBreaker(RedisStore("redis://127.0.0.1:1"), clock=lambda: now[0])
    assert limiter.acquire(LIMIT).reason == "store unavailable"
    now[0] += 1
    guarded._turn_away(["x"])  # another thread makes the call

    def work() -> bool:
        turned_away = limiter.acquire(LIMIT).reason == "store unavailable"
        now[0] += 1
        guarded._store = MemoryStore()
        return turned_away and limiter.acquire(LIMIT).allowed

    with guarded._lock:
        assert run_in_child(work) == 0


def test_child_calls_the_sentinels() -> None:
    """The pools of connections to the Sentinels are reset, too."""
    store = RedisSentinelStore("redis+sentinel://127.0.0.1:1,127.0.0.1:2/service")
    limiter = Limiter(store)
    with contextlib.ExitStack() as stack:
        pool = store._client.connection_pool
        for each in (pool, *(sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels)):
            stack.enter_context(held_by_another_thread(each._lock))
        assert run_in_child(lambda: limiter.acquire(LIMIT).reason == "store unavailable") == 0


def test_child_calls_a_cluster(cluster: Cluster) -> None:
    """The pool of each node of a cluster is reset, too."""
    store = RedisClusterStore(cluster.url, timeout=5)
    limiter = Limiter(store)
    hourly = TokenBucket("hourly", "1/h")
    limiter.acquire(hourly)
    with contextlib.ExitStack() as stack:
        for node in store._cluster.get_nodes():
            if node.redis_connection is not None:
                stack.enter_context(held_by_another_thread(node.redis_connection.connection_pool._lock))
        assert run_in_child(lambda: limiter.acquire(hourly).reason == "exhausted") == 0
    limiter.close()


def test_scripts_are_read_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import system has locks too: a child that was forked while another thread read a script would hang."""
    monkeypatch.delattr(throttlekit_lua, "files")
    throttlekit_lua.read.cache_clear()
    assert throttlekit_lua.read("decide")
    assert throttlekit_lua.read("wait_settle")


def test_memory_store_answers_in_a_child() -> None:
    """A store in memory works in a child that was forked in the middle of a decision."""
    store = MemoryStore()
    limiter = Limiter(store)
    with store._lock:
        assert run_in_child(lambda: limiter.acquire(LIMIT).allowed) == 0


def test_owner_is_not_kept_alive() -> None:
    """An owner that was garbage-collected is forgotten."""

    class Owner:
        lock = threading.Lock()

    owner = Owner()
    renew_lock_after_fork(owner, "lock")
    assert owner in fork_safety._owners
    del owner
    gc.collect()
    assert not [each for each in fork_safety._owners if isinstance(each, Owner)]

"""The store's connection pool: one call at a time on each connection, and no reply read for another call."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit.errors import StoreUnavailable
from throttlekit.stores import pool
from throttlekit.stores.pool import ConnectionPool
from throttlekit.stores.redis_waitlists import WaitlistRedisStore as RedisStore
from throttlekit.stores.wire import command

LIMIT = TokenBucket("partner", "1000/s", burst=1000)
NAME = "throttlekit-test-connections"
_NUMBERS = itertools.count(1)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        client.name_of_ours = f"{NAME}-{next(_NUMBERS)}"  # the threads of an earlier test's limiter may still connect
        yield client


@pytest.fixture
def store(redis_url: str, client: Any) -> Iterator[RedisStore]:
    mark = "&" if "?" in redis_url else "?"
    with contextlib.closing(RedisStore(f"{redis_url}{mark}client_name={client.name_of_ours}", timeout=5)) as store:
        yield store


def _ours(client: Any) -> list[str]:
    """The ids of the store's connections, as the server lists them."""
    return [each["id"] for each in client.client_list() if each["name"] == client.name_of_ours]


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_one_connection_serves_one_thread(client: Any, store: RedisStore) -> None:
    """Any number of calls, one after the other."""
    limiter = Limiter(store)
    assert all(limiter.acquire(LIMIT) for _ in range(20))
    assert len(_ours(client)) == 1


def test_a_connection_begins_without_looking_up_versions(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py would read its own metadata for each connection, and RQ's work-horses make one connection a job."""
    looked_up: list[str] = []
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: looked_up.append(name) or version(name))
    assert Limiter(store).acquire(LIMIT)
    assert looked_up == []


def test_as_many_connections_as_calls_at_once(client: Any, store: RedisStore) -> None:
    """They are kept for the next calls, and all are closed at the end."""
    limiter, together = Limiter(store), threading.Barrier(4)
    limiter.acquire(LIMIT)  # the first makes one call more: it reads the rules of live control
    store._pool.close_idle()
    make = store._pool._make
    store._pool._make = lambda: (together.wait(10), make())[1]
    threads = [threading.Thread(target=limiter.acquire, args=(LIMIT,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_ours(client)) == 4
    limiter.close()
    wait_until(lambda: not _ours(client), description="the connections are closed")


def test_connection_in_use_is_not_kept_after_the_close(client: Any, store: RedisStore) -> None:
    """A call that is under way when the store closes gets its reply, and then its connection is closed."""
    ask = store._pool.execute
    assert ask(command("ECHO", "first")) == b"first"
    ((connection, _),) = store._pool._idle
    read = connection.read_response
    connection.read_response = lambda: (store.close(), read())[1]
    assert ask(command("ECHO", "second")) == b"second"
    assert not store._pool._idle


def test_connection_that_the_server_closed_costs_no_decision(
    client: Any, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was idle for long is checked before it is used."""
    limiter = Limiter(store)
    assert limiter.acquire(LIMIT)
    (old,) = _ours(client)
    client.client_kill_filter(_id=old)
    monkeypatch.setattr(pool, "_CHECKED_AFTER_S", -1.0)
    assert limiter.acquire(LIMIT).reason == "allowed"
    assert _ours(client) != [old]


def test_reply_after_an_interrupt_is_never_read(client: Any, store: RedisStore) -> None:
    """A thread that is interrupted between a call and its reply closes its connection."""
    ask = store._pool.execute
    assert ask(command("ECHO", "first")) == b"first"
    ((connection, _),) = store._pool._idle
    read, connection.read_response = connection.read_response, _interrupt
    with pytest.raises(KeyboardInterrupt):
        ask(command("ECHO", "interrupted"))
    connection.read_response = read
    assert ask(command("ECHO", "second")) == b"second"
    assert connection not in [each for each, _ in store._pool._idle]


def test_error_reply_keeps_the_connection(client: Any, store: RedisStore) -> None:
    """An error reply was read to its end."""
    for _ in range(3):
        with pytest.raises(redis.ResponseError):
            store._pool.execute(command("EVALSHA", "0" * 40, 0))
    assert len(_ours(client)) == 1


def test_no_connection_is_used_in_a_child(client: Any, store: RedisStore) -> None:
    """A child makes its own, also on a platform without fork hooks; the parent's stays as it was."""
    assert store._pool.execute(command("ECHO", "parent")) == b"parent"
    before = _ours(client)
    ((connection, since),) = store._pool._idle
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            no_idle_ones = not store._pool._idle
            store._pool._idle.append((connection, since))
            fine = store._pool.execute(command("ECHO", "child")) == b"child" and no_idle_ones
            os._exit(0 if fine else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert store._pool.execute(command("ECHO", "again")) == b"again"
    assert _ours(client) == before


def test_command_is_sent_once(client: Any, redis_url: str) -> None:
    """An error while it is under way is raised, and it is not sent again."""
    sent: list[bytes] = []

    class Failing:
        pid = os.getpid()

        def connect(self) -> None: ...

        def disconnect(self) -> None: ...

        def send_packed_command(self, frames: tuple[bytes], check_health: bool) -> None:
            sent.extend(frames)
            raise redis.ConnectionError("gone")

    store = RedisStore(redis_url)
    with contextlib.closing(store):
        store._pool = ConnectionPool(Failing)
        with pytest.raises(StoreUnavailable):
            store.reset(["tk1:{x}"])
    assert len(sent) == 1

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

from support.threads import run_in_threads
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit.errors import StoreUnavailable
from throttlekit.stores import pool
from throttlekit.stores.pool import ConnectionPool
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.wire import command

LIMIT = TokenBucket("partner", "1000/s", burst=1000)
NAME = "throttlekit-test-connections"
_NUMBERS = itertools.count(1)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        client.limiter_name = f"{NAME}-{next(_NUMBERS)}"  # the threads of an earlier test's limiter may still connect
        yield client


@pytest.fixture
def store(redis_url: str, client: Any) -> Iterator[RedisStore]:
    with contextlib.closing(RedisStore(f"{redis_url}?client_name={client.limiter_name}", timeout=5)) as store:
        yield store


def _connection_ids(client: Any) -> list[str]:
    """Return the ids of the store's connections, as the server lists them."""
    return [each["id"] for each in client.client_list() if each["name"] == client.limiter_name]


def _raise_interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_one_connection_serves_one_thread(client: Any, store: RedisStore) -> None:
    """One thread makes any number of calls with one connection."""
    limiter = Limiter(store)
    assert all(limiter.acquire(LIMIT) for _ in range(20))
    assert len(_connection_ids(client)) == 1


def test_a_connection_begins_without_looking_up_versions(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A new connection does not read package metadata, as redis-py does: RQ's work-horses make one connection for each
    job.
    """
    looked_up: list[str] = []
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: looked_up.append(name) or version(name))
    assert Limiter(store).acquire(LIMIT)
    assert looked_up == []


def test_concurrent_calls_use_one_connection_each(client: Any, store: RedisStore) -> None:
    """Each concurrent call has a connection, which is kept for the next calls, and closed when the limiter closes."""
    limiter, together = Limiter(store), threading.Barrier(4)
    limiter.acquire(LIMIT)  # the first makes one more call: it reads the rules of live control
    store._pool.close_idle()
    make = store._pool._make
    store._pool._make = lambda: (together.wait(10), make())[1]
    run_in_threads(4, lambda _: limiter.acquire(LIMIT))
    assert len(_connection_ids(client)) == 4
    limiter.close()
    wait_until(lambda: not _connection_ids(client), description="the connections are closed")


def test_a_connection_in_use_is_not_kept_after_close(client: Any, store: RedisStore) -> None:
    """A call that is in progress when the store closes gets its reply, and then its connection is closed."""
    execute = store._pool.execute
    assert execute(command("ECHO", "first")) == b"first"
    ((connection, _),) = store._pool._idle
    read = connection.read_response
    connection.read_response = lambda: (store.close(), read())[1]
    assert execute(command("ECHO", "second")) == b"second"
    assert not store._pool._idle
    wait_until(lambda: not _connection_ids(client), description="the connection is closed")


def test_a_connection_closed_by_the_server_fails_no_decision(
    client: Any, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was idle for a long time is checked before it is used."""
    limiter = Limiter(store)
    assert limiter.acquire(LIMIT)
    (old,) = _connection_ids(client)
    client.client_kill_filter(_id=old)
    monkeypatch.setattr(pool, "_CHECKED_AFTER_S", -1.0)
    assert limiter.acquire(LIMIT).reason == "allowed"
    assert _connection_ids(client) != [old]


def test_a_reply_after_an_interrupt_is_never_read(client: Any, store: RedisStore) -> None:
    """A thread that is interrupted between a call and its reply closes its connection."""
    execute = store._pool.execute
    assert execute(command("ECHO", "first")) == b"first"
    ((connection, _),) = store._pool._idle
    read, connection.read_response = connection.read_response, _raise_interrupt
    with pytest.raises(KeyboardInterrupt):
        execute(command("ECHO", "interrupted"))
    connection.read_response = read
    assert execute(command("ECHO", "second")) == b"second"
    assert connection not in [each for each, _ in store._pool._idle]


def test_an_error_reply_keeps_the_connection(client: Any, store: RedisStore) -> None:
    """A connection is used again after an error reply, which was read completely."""
    for _ in range(3):
        with pytest.raises(redis.ResponseError):
            store._pool.execute(command("EVALSHA", "0" * 40, 0))
    assert len(_connection_ids(client)) == 1


def test_no_connection_is_used_in_a_child(client: Any, store: RedisStore) -> None:
    """A child process makes its own connection, and the parent's connection is unchanged."""
    assert store._pool.execute(command("ECHO", "parent")) == b"parent"
    before = _connection_ids(client)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            has_no_idle = not store._pool._idle
            is_correct = store._pool.execute(command("ECHO", "child")) == b"child" and has_no_idle
            os._exit(0 if is_correct else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert store._pool.execute(command("ECHO", "again")) == b"again"
    assert _connection_ids(client) == before


def test_a_command_is_sent_once(client: Any, redis_url: str) -> None:
    """An error during a command is raised, and the command is not sent again."""
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

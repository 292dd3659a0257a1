"""Servers that are up and reply with errors: no job is admitted, and the log has the remedy."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import redis

from support.acl import DOCS, acl_rights
from support.servers.processes import free_port, redis_6_binary, redis_binary, redis_process, redis_server, stored
from support.servers.proxy import Proxy
from support.threads import run_in_threads
from support.waiting import wait_until
from support.waitlists import check_wake
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
from throttlekit._core.slowdown import Refusal
from throttlekit._core.storage_keys import bucket_name
from throttlekit._engine.call import Call
from throttlekit.stores import Slowing
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "100/s", burst=50)
OTHER = TokenBucket("other", "100/s", burst=50)
SEVERAL = (LIMIT, FixedWindow("f", "50/d"), SlidingWindow("s", "50/d"), SlidingLog("l", "50/d"))
BUCKET = bucket_name(LIMIT.name, "", LIMIT.fingerprint)
JOB = Job(id="1", name="call_partner")


@pytest.fixture(params=["7", "6.2"])
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The client of a server that this test may break, of the newest and of the oldest supported version."""
    if request.param == "6.2":
        request.getfixturevalue("redis_6_base")  # skips the test if there is none
    binary = redis_binary() if request.param == "7" else redis_6_binary()
    with redis_server(binary=binary) as url, contextlib.closing(redis.Redis.from_url(url)) as client:
        yield client


def _url(client: Any, *, user: str = "", port: int | None = None) -> str:
    return f"redis://{user}127.0.0.1:{port or client.connection_pool.connection_kwargs['port']}/0"


def _assert_runs(client: Any, *limits: Any, user: str = "") -> None:
    """Assert that a request is admitted."""
    with contextlib.closing(Limiter(_url(client, user=user))) as limiter:
        assert limiter.acquire(*(limits or (LIMIT,)))


def _log_message(url: str, caplog: pytest.LogCaptureFixture, *limits: Any) -> str:
    """Return the log message when a job is deferred because of the server at *url*."""
    caplog.clear()
    limiter = Limiter(RedisStore(url, timeout=5))
    with caplog.at_level(logging.WARNING, "throttlekit"), contextlib.closing(limiter):
        decision = limiter.acquire(*(limits or (LIMIT,)), job=JOB)
    assert (decision.allowed, decision.reason) == (False, "store unavailable")
    assert "hunter2" not in caplog.text
    (message,) = [record.getMessage() for record in caplog.records]
    return message


@pytest.mark.parametrize(
    "limits", [*([each] for each in SEVERAL), SEVERAL], ids=[*(each.algorithm for each in SEVERAL), "several"]
)
def test_a_server_without_memory_is_logged(own_server: Any, caplog: pytest.LogCaptureFixture, limits: Any) -> None:
    """OOM with noeviction: no grant and no charge; jobs run as soon as there is memory again."""
    own_server.config_set("maxmemory", "1")
    assert "its memory is full and its policy evicts nothing: raise its maxmemory" in _log_message(
        _url(own_server), caplog, *limits
    )
    assert stored(own_server) == 0
    own_server.config_set("maxmemory", "0")
    _assert_runs(own_server, *limits)


def test_a_replica_is_logged(own_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """READONLY, as after a fail-over: a replica rejects writes, and the log names the remedy."""
    _assert_runs(own_server)
    own_server.config_set("replica-serve-stale-data", "yes")
    own_server.replicaof("127.0.0.1", free_port())
    message = _log_message(_url(own_server), caplog)
    assert "it is a replica, which rejects writes: name the master, or write the URL as redis+sentinel://" in message
    own_server.config_set("replica-serve-stale-data", "no")
    assert "it is a replica that has lost its master" in _log_message(_url(own_server), caplog)
    own_server.replicaof("NO", "ONE")
    _assert_runs(own_server)


def test_a_wrong_password_is_logged_without_it(own_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A missing or wrong password or an unknown user is logged at the first call, and the password never is."""
    own_server.config_set("requirepass", "hunter2hunter2")
    for user in ("", ":hunter2@", "nobody:hunter2@"):
        message = _log_message(_url(own_server, user=user), caplog)
        assert "its user or password is" in message, message
    own_server.execute_command("AUTH", "hunter2hunter2")
    _assert_runs(own_server, user=":hunter2hunter2@")


DOCUMENTED = acl_rights()
NEEDED = tuple(right for right in DOCUMENTED if right != "+info")  # only `throttlekit doctor` needs it


@pytest.mark.parametrize("lacking", ["~tk1:*", "+@write", "+evalsha", "+eval", "+time"])
def test_a_user_without_rights_is_logged_with_the_needed_rights(
    own_server: Any, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    """NOPERM for a key or a command: the log names all rights that the limiter needs."""
    rules = [rule for rule in NEEDED if rule != lacking]
    own_server.execute_command("ACL", "SETUSER", "limits", "reset", "on", ">hunter2", *rules)
    message = _log_message(_url(own_server, user="limits:hunter2@"), caplog)
    assert "its user lacks permissions that the limiter needs: ACL SETUSER … " + " ".join(NEEDED) in message


def test_the_documentation_names_the_rights_in_one_place() -> None:
    """Only one page has the rights, because two copies would differ one day."""
    assert [page.name for page in sorted(DOCS.glob("*.md")) if "+@write" in page.read_text()] == ["operations.md"]


def test_the_named_rights_are_enough(own_server: Any) -> None:
    """With the named rights, every method works for every algorithm, in a database other than 0."""
    own_server.execute_command("ACL", "SETUSER", "limits", "reset", "on", ">hunter2", *NEEDED)
    url = _url(own_server, user="limits:hunter2@").removesuffix("0") + "5"
    store = RedisStore(url, timeout=5)
    with contextlib.closing(Limiter(store)) as limiter:
        check_wake(store)
        decision = limiter.acquire(*SEVERAL, job=JOB, cost=3)
        limiter.settle(decision, actual=2, limit=LIMIT)
        assert not limiter.acquire(*SEVERAL, job=JOB, cost=49)
        assert limiter.peek(SEVERAL[-1]).remaining == 47
        claims = [each.claim for each in limiter.claims(Call(SEVERAL, JOB))]
        assert store.where(claims, JOB.id) is not None
        assert sum(store.list_waiting(each).jobs for each in claims) == 1
        store.slow([Slowing(claims[0], Refusal(None, 1_000_000, 50_000))])
        store.pause(claims, 1_000_000)
        store.forget(claims, [JOB.id])
        store.clear_waitlists([each.bucket for each in claims])
        limiter.reset(*SEVERAL)
        assert limiter.peek(SEVERAL[-1]).remaining == 50
    with contextlib.closing(redis.Redis.from_url(url)) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.flushdb()


@pytest.mark.parametrize("limit", SEVERAL, ids=lambda limit: limit.algorithm)
def test_a_key_of_another_type_stops_no_other_limit(
    own_server: Any, caplog: pytest.LogCaptureFixture, limit: Any
) -> None:
    """WRONGTYPE: jobs of that limit are deferred, others are not; when the key is deleted, all run again."""
    key = bucket_name(limit.name, "", limit.fingerprint)
    own_server.rpush(key, "x")
    with contextlib.closing(Limiter(RedisStore(_url(own_server), timeout=5))) as limiter:
        for _ in range(3):
            assert limiter.acquire(limit, job=JOB).reason == "store unavailable"
            assert limiter.acquire(OTHER, job=JOB)
        assert caplog.text.count("a key of a limit has a wrong type") == 1
        assert "Delete that key, and give the limiter its own database (server " in caplog.text
        assert "Other calls are not affected" in caplog.text
        own_server.delete(key)
        assert limiter.acquire(limit, job=JOB)


def test_a_server_that_loads_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LOADING after a restart: jobs wait until the server has read its data, and earlier charges still count."""
    port, slow = free_port(), ("--dir", str(tmp_path), "--enable-debug-command", "yes")
    with redis_process(redis_binary(), port, *slow), contextlib.closing(redis.Redis(port=port)) as client:
        limiter = Limiter(RedisStore(f"redis://127.0.0.1:{port}/0", timeout=5))
        hour = SlidingLog("log", "50/h")
        assert limiter.acquire(hour, cost=20)
        client.execute_command("DEBUG", "POPULATE", 20_000, "filler", 10)
        client.save()
        limiter.close()
    slow += ("--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024")
    with redis_process(redis_binary(), port, *slow, ready=False):

        def is_loading() -> bool:
            with contextlib.suppress(redis.ConnectionError), contextlib.closing(redis.Redis(port=port)) as client:
                return bool(client.info("persistence")["loading"])
            return False

        wait_until(is_loading, description="the server loads its data", every=0.01)
        assert "it is still loading its data" in _log_message(f"redis://127.0.0.1:{port}/0", caplog)
        with contextlib.closing(Limiter(RedisStore(f"redis://127.0.0.1:{port}/0", timeout=5))) as limiter:
            found = wait_until(lambda: limiter.acquire(hour), description="the server has loaded its data")
            assert found.remaining == 29


def test_a_server_that_cannot_save_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MISCONF: a server whose disk is gone rejects writes."""
    port, folder = free_port(), tmp_path / "gone"
    folder.mkdir()
    with (
        redis_process(redis_binary(), port, "--dir", str(folder)),
        contextlib.closing(redis.Redis(port=port)) as client,
    ):
        folder.rmdir()
        client.set("something", "changed")
        client.config_set("save", "3600 1")

        def has_failed() -> bool:
            with contextlib.suppress(redis.ResponseError):
                client.bgsave()
            persistence: Any = client.info("persistence")
            return bool(persistence["rdb_last_bgsave_status"] == "err")

        wait_until(has_failed, description="a save has failed", every=0.1)
        assert "it cannot save its data, so it rejects writes: see its log and its disk" in _log_message(
            f"redis://127.0.0.1:{port}/0", caplog
        )


def test_a_server_without_enough_replicas_is_logged(own_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """NOREPLICAS: the server rejects writes, so that a fail-over loses none."""
    own_server.config_set("min-replicas-to-write", "1")
    assert "too few replicas are connected, so it rejects writes: see its min-replicas-to-write" in _log_message(
        _url(own_server), caplog
    )
    own_server.config_set("min-replicas-to-write", "0")
    _assert_runs(own_server)


def _store_that_fails(url: str, text: str) -> RedisStore:
    """Return a store whose decisions get the error *text*."""
    store = RedisStore(url, timeout=5)

    def fail(_: bytes) -> None:
        raise redis.ResponseError(text)

    store._pool.execute = fail  # type: ignore[method-assign]
    return store


@pytest.mark.parametrize("lacking", ["redis.sha1hex", "cjson.decode", "cjson"])
def test_a_server_whose_lua_lacks_a_function_is_a_configuration_error(own_server: Any, lacking: str) -> None:
    """An imitation such as fakeredis raises ConfigurationError with the reason, and is no outage."""
    call = "redis.no_such('x')" if lacking == "redis.sha1hex" else "cjson.no_such('x')"
    with pytest.raises(redis.ResponseError) as caught:
        own_server.eval(f"return {call}", 0)
    module, _, function = lacking.partition(".")
    text = str(caught.value).replace("no_such", function or "decode")
    if not function:
        text = f"user_script:1: attempt to index global '{module}' (a nil value)"
    with contextlib.closing(Limiter(_store_that_fails(_url(own_server), text))) as limiter:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"lacks a function .* as fakeredis does"):
                limiter.acquire(LIMIT, job=JOB)


def test_a_script_that_fails_stops_no_other_limit(own_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Only the jobs whose script fails are deferred, and the log has the error once."""
    store = RedisStore(_url(own_server), timeout=5)
    execute = store._pool.execute

    def fail(frame: bytes) -> Any:
        if b"{partner:" in frame:
            raise redis.ResponseError("ERR user_script:40: attempt to compare nil with number")
        return execute(frame)

    store._pool.execute = fail  # type: ignore[method-assign]
    with contextlib.closing(Limiter(store)) as limiter:
        for _ in range(3):
            assert limiter.acquire(LIMIT, job=JOB).reason == "store unavailable"
            assert limiter.acquire(OTHER, job=JOB).reason == "allowed"
    assert caplog.text.count("Other calls are not affected") == 1


def test_a_server_without_scripts_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The log says that the server lacks a command: some hosts rename it, and old servers do not have it."""
    with redis_server("--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "") as url:
        assert "it lacks a command, because it is too old, or because a command is renamed: use" in _log_message(
            url, caplog
        )


def test_a_server_older_than_redis_5_is_an_outage_with_its_reason() -> None:
    """Before Redis 5, a script may not write after it has read the clock. (Here, only the server's error is used.)"""
    store = _store_that_fails(
        "redis://localhost:1/0",
        "Error running script (call to f_0): @user_script:9: @user_script: 9: Write commands not allowed after "
        "non deterministic commands. Call redis.replicate_commands() at the start of your script",
    )
    with pytest.raises(StoreUnavailable, match=r"it is older than Redis 5: use 6\.2 or later"):
        store.reset([BUCKET])


def test_an_evicted_key_is_a_full_bucket_and_no_error(own_server: Any) -> None:
    """A key that volatile-lru evicts counts as unused, as docs/guarantees.md says, and no call fails."""
    own_server.config_set("maxmemory-policy", "volatile-lru")
    with contextlib.closing(Limiter(RedisStore(_url(own_server), timeout=5))) as limiter:
        hour = SlidingLog("log", "5/h")
        assert limiter.acquire(hour, cost=5)
        assert not limiter.acquire(hour, job=JOB)
        own_server.config_set("maxmemory", "1mb")
        value, number = b"x" * 10_000, 0

        def are_evicted() -> bool:
            nonlocal number
            with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                number += 1
                own_server.set(f"cache:{number}", value)
            return own_server.info("stats")["evicted_keys"] >= 2

        wait_until(are_evicted, description="both keys of the limit are evicted", every=0)
        own_server.config_set("maxmemory", "0")
        assert limiter.acquire(hour, cost=5)


# Servers that are unreachable, or return


def test_a_restarted_server_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    """When a killed server is started again, jobs run, although each connection of the pool was broken."""
    port = free_port()
    limiter = Limiter(f"redis://127.0.0.1:{port}/0?socket_timeout=5")
    for _ in range(2):
        with redis_server(port=port):
            wait_until(lambda: limiter.acquire(LIMIT), description="a job runs")
        assert not limiter.acquire(LIMIT)
    limiter.close()
    messages = [record.getMessage() for record in caplog.records if record.name == "throttlekit"]
    assert "ConnectionError" in messages[0]


@pytest.fixture
def moved_store(own_server: Any) -> Iterator[tuple[RedisStore, Any, Callable[[], None]]]:
    """
    A store, the client of another server, and a function that makes that server the master. The store's address then
    leads there, but the old master, now a replica, keeps its connections.
    """
    port = own_server.connection_pool.connection_kwargs["port"]
    with contextlib.ExitStack() as stack:
        url, proxy = stack.enter_context(redis_server()), stack.enter_context(Proxy(port))
        master: Any = stack.enter_context(contextlib.closing(redis.Redis.from_url(url)))
        store = stack.enter_context(contextlib.closing(RedisStore(_url(own_server, port=proxy.port), timeout=5)))

        def move() -> None:
            proxy.target = master.connection_pool.connection_kwargs["port"]
            own_server.replicaof("127.0.0.1", free_port())

        yield store, master, move


def test_a_new_master_is_found_although_the_old_one_answers(moved_store: Any) -> None:
    """The second call after a fail-over reaches the new master."""
    store, _, move = moved_store
    store.reset([BUCKET])
    move()
    with pytest.raises(StoreUnavailable, match="it is a replica"):
        store.reset([BUCKET])
    store.reset([BUCKET])


def test_a_listener_follows_to_a_new_master(moved_store: Any) -> None:
    """After a fail-over the process receives the wakes that the new master publishes."""
    store, master, move = moved_store
    listening: list[str] = []
    end = store.listen("p", lambda bucket, wakes: None, lambda: listening.append(""))
    store.reset([BUCKET])
    wait_until(lambda: listening, description="the process listens")
    move()
    with pytest.raises(StoreUnavailable, match="it is a replica"):
        store.reset([BUCKET])
    wait_until(lambda: len(listening) == 2, description="the process listens again")
    assert master.pubsub_numsub("tk1:p") == [(b"tk1:p", 1)]
    end()


def test_a_hung_server_costs_one_time_out_per_second(own_server: Any) -> None:
    """Of 400 successive jobs on a stopped server, only the first waits; no command runs twice when it continues."""
    own_server.execute_command("PING")
    hour = SlidingLog("log", "50/h")
    pid = own_server.info("server")["process_id"]
    with contextlib.closing(Limiter(RedisStore(_url(own_server), timeout=1))) as limiter:
        assert limiter.acquire(hour)
        own_server.config_resetstat()
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            reasons = {limiter.acquire(hour, job=JOB).reason for _ in range(400)}
        finally:
            os.kill(pid, signal.SIGCONT)
        assert reasons == {"store unavailable"}
        wait_until(lambda: limiter.acquire(hour), description="the server is called again")
        seconds = time.monotonic() - begun
        # The server now runs the calls that it received while it was stopped: the first, and one in each second.
        calls = own_server.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls <= 1 + seconds + 2
        assert limiter.peek(hour).remaining >= 50 - 1 - calls


@pytest.mark.parametrize("by_client", [False, True], ids=["url", "client"])
def test_120_concurrent_calls_are_all_decided(
    own_server: Any, by_client: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of 120 concurrent calls are decided, as with greenlets: redis-py alone has a limit of 100 connections."""
    monkeypatch.setattr("throttlekit.stores.from_client._TIMEOUT", 20.0)
    limiter = Limiter(client=own_server) if by_client else Limiter(RedisStore(_url(own_server), timeout=20))
    busy = TokenBucket("busy", "1000/s", burst=1000)
    answers: list[str] = []
    own_server.execute_command("CLIENT", "PAUSE", 300)
    with contextlib.closing(limiter):
        run_in_threads(120, lambda _: answers.append(limiter.acquire(busy).reason))
    assert answers == ["allowed"] * 120


def test_broken_connections_are_one_failure(own_server: Any) -> None:
    """When one idle connection fails, all idle connections are closed, so that each is not a failure."""
    port = own_server.connection_pool.connection_kwargs["port"]
    with Proxy(port) as proxy, contextlib.closing(RedisStore(_url(own_server, port=proxy.port), timeout=5)) as store:
        with ThreadPoolExecutor(5) as threads:
            together = Barrier(5)
            store._pool._make = lambda make=store._pool._make: (together.wait(), make())[1]  # type: ignore[misc]
            list(threads.map(lambda _: store.reset([BUCKET]), range(5)))
        connections = [connection for connection, _ in store._pool._idle]
        assert len(connections) == 5
        pid = own_server.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            for each in connections:
                each.socket_timeout = 0.05
                each._sock.settimeout(0.05)
            with pytest.raises(StoreUnavailable):
                store.reset([BUCKET])
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [each._sock for each in connections] == [None] * 5

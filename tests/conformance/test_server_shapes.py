"""The kinds of servers that users run: with TLS, a Unix socket or Sentinel; and clients of redis-py."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from support.servers.certificates import self_signed, tls_options
from support.servers.processes import Cluster, redis_server, stored
from support.servers.sentinel import Watched, guarded
from support.servers.sentinel import watched as sentinel_watching
from support.threads import run_in_threads
from support.waiting import wait_until
from support.waitlists import check_wake
from throttlekit import ConfigurationError, Decision, Job, Limiter, SlidingLog, TokenBucket
from throttlekit._wiring import wiring_of
from throttlekit.stores.cluster import RedisClusterStore, _NodeRefresh
from throttlekit.stores.from_client import _ClusterOfClient
from throttlekit.stores.redis import RedisStore

HOUR = SlidingLog("hour", "50/h")
OTHER = TokenBucket("other", "5/h", burst=5)
JOB = Job(id="1", name="call_partner")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use long time-outs for a busy machine, because these tests do not measure speed."""
    monkeypatch.setattr("throttlekit.stores.from_client._TIMEOUT", 2.0)


def _url(watched: Watched) -> str:
    return f"{watched.url}?socket_timeout=2"


def _check_methods(limiter: Limiter) -> None:
    """Call every method, with grants and denials, and listen for a wake."""
    with contextlib.closing(limiter):
        check_wake(wiring_of(limiter).stores.shared)
        decision = _acquire_until_granted(limiter, 40)
        limiter.settle(decision, actual=30)
        assert limiter.peek(HOUR).remaining == 20
        assert limiter.acquire(HOUR, OTHER, job=JOB, cost=5)
        assert limiter.acquire(HOUR, job=JOB, cost=20).reason == "exhausted"
        limiter.reset(HOUR, OTHER)
        assert limiter.peek(HOUR).remaining == 50


def _acquire_until_granted(limiter: Limiter, cost: int) -> Decision:
    return wait_until(lambda: limiter.acquire(HOUR, cost=cost), description="the store has replied in time")


# TLS and Unix sockets


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_port(certificates: tuple[Path, Path]) -> Iterator[int]:
    """The port on which a server accepts TLS."""
    from support.servers.processes import free_port

    port = free_port()
    with redis_server("--tls-port", str(port), *tls_options(*certificates)):
        yield port


def test_tls(tls_port: int, certificates: tuple[Path, Path]) -> None:
    """A server with TLS works by a rediss:// URL and by a client, with the certificate's authority."""
    authority = str(certificates[0])
    store = RedisStore(f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={authority}", timeout=5)
    _check_methods(Limiter(store))
    client = redis.Redis(port=tls_port, host="127.0.0.1", ssl=True, ssl_ca_certs=authority)
    with contextlib.closing(Limiter(client=client)) as limiter:
        assert _acquire_until_granted(limiter, 1)
    client.close()


def test_an_untrusted_certificate_is_logged(tls_port: int, caplog: pytest.LogCaptureFixture) -> None:
    """If the certificate is not trusted, jobs are deferred, and the log has one record."""
    with contextlib.closing(Limiter(RedisStore(f"rediss://:hunter2@127.0.0.1:{tls_port}/0", timeout=5))) as limiter:
        assert limiter.acquire(HOUR, job=JOB).reason == "store unavailable"
    assert "hunter2" not in caplog.text
    assert len(caplog.records) == 1


def test_unix_socket(tmp_path: Path) -> None:
    """A Unix socket works by a unix:// URL with a database, and by a client."""
    path = tmp_path / "r.sock"
    with redis_server("--unixsocket", str(path)):
        _check_methods(Limiter(RedisStore(f"unix://{path}?db=3", timeout=5)))
        with redis.Redis(unix_socket_path=str(path)) as client, contextlib.closing(Limiter(client=client)) as limiter:
            assert limiter.acquire(HOUR)


# Sentinel


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A master, its replica, and a Sentinel, which the tests must not change."""
    with sentinel_watching() as found:
        yield found


@pytest.fixture
def own_watched() -> Iterator[Watched]:
    """A master, its replica, and a Sentinel, which one test may fail over."""
    with sentinel_watching() as found:
        yield found


def test_sentinel_by_url_and_by_client(watched: Watched) -> None:
    """The limiter uses the master that the Sentinel names; a Sentinel that is down is skipped."""
    _check_methods(Limiter(_url(watched)))
    _check_methods(Limiter(_url(watched).replace("//", "//127.0.0.1:1,").replace("redis+", "valkey+")))
    manager = Sentinel([("127.0.0.1", watched.port)])
    _check_methods(Limiter(client=manager.master_for("limits", decode_responses=True)))
    with pytest.raises(ConfigurationError, match=r"reads from replicas.*create it with Sentinel\.master_for"):
        Limiter(client=manager.slave_for("limits"))


def test_sentinel_with_tls_and_passwords_of_its_own(
    certificates: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """
    rediss+sentinel:// uses TLS for the master and the Sentinels. The URL's user is the master's, and its options have
    the Sentinels' user.
    """
    with guarded(*certificates) as port:
        url = f"rediss+sentinel://:master@127.0.0.1:{port}/limits/1?socket_timeout=5&socket_connect_timeout=5"
        url += f"&ssl_ca_certs={certificates[0]}"
        _check_methods(Limiter(f"{url}&sentinel_password=sentinel"))
        _check_methods(Limiter(f"{url}&sentinel_username=watcher&sentinel_password=watcher"))
        for wrong, whose in (
            (url, "the user or password of the Sentinels"),
            (f"{url}&sentinel_password=hunter2", "the user or password of the Sentinels"),
            (url.replace(":master@", "") + "&sentinel_password=sentinel", "its user or password"),
        ):
            caplog.clear()
            with contextlib.closing(Limiter(wrong)) as limiter:
                assert limiter.acquire(HOUR, job=JOB).reason == "store unavailable"
            assert f"{whose} is missing or wrong" in caplog.text
            assert "hunter2" not in caplog.text


def test_sentinel_without_the_service(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The log says that the Sentinels do not know the service, so that operators do not search for a dead master."""
    with contextlib.closing(Limiter(_url(watched).replace("/limits", "/another"))) as limiter:
        assert limiter.acquire(HOUR, job=JOB).reason == "store unavailable"
    assert "the Sentinels do not know the service named in the URL: see SENTINEL MASTERS" in caplog.text


@pytest.mark.parametrize(
    "end",
    ["", "/", "/service/one", "/service/0?nope=1", "/service?socket_timeout=soon", "/service/0/1", "/service?x"],
)
def test_an_unusable_sentinel_url_fails_at_once(end: str) -> None:
    """A wrong URL raises when the limiter is created; the message has the right form, and not the password."""
    with pytest.raises(
        ConfigurationError, match=r"redis\+sentinel://host:port,host:port/service/0|sentinel_password$"
    ) as caught:
        Limiter(f"redis+sentinel://user:hunter2@host:1,other{end}")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        Limiter("redis+sentinel://host:port/service/0")


def _wait_until_replicated(watched: Watched) -> None:
    """Wait until the replica has everything that the master wrote."""
    watched.master.client.set("last", "word")  # WAIT is for what the same connection has written
    assert watched.master.client.wait(1, 30_000) == 1


def test_a_fail_over_is_followed(own_watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """
    When the master is killed, jobs are deferred until the replica is the master. Then they run, and replicated charges
    still count. The same applies to a client of redis-py.
    """
    caplog.set_level(logging.WARNING, "throttlekit")
    manager = Sentinel([("127.0.0.1", own_watched.port)])
    by_url, by_client = Limiter(_url(own_watched)), Limiter(client=manager.master_for("limits"))
    with contextlib.closing(by_url), contextlib.closing(by_client):
        assert _acquire_until_granted(by_url, 10)
        assert _acquire_until_granted(by_client, 10)
        _wait_until_replicated(own_watched)
        own_watched.fail_over()
        for limiter in (by_url, by_client):
            assert _acquire_until_granted(limiter, 1)
        assert by_url.peek(HOUR).remaining == 28
    assert "the store gave no usable answer: " in caplog.text


def test_a_master_that_became_a_replica_is_no_longer_used(own_watched: Watched) -> None:
    """After a fail-over the old master, which is still up, grants nothing, and the new master is found."""
    with contextlib.closing(Limiter(_url(own_watched))) as limiter:
        assert _acquire_until_granted(limiter, 10)
        _wait_until_replicated(own_watched)
        own_watched.sentinel.execute_command("SENTINEL", "FAILOVER", "limits")
        new = own_watched.replica.client
        wait_until(lambda: new.role()[0] == "master", description="the replica has taken over")
        own_watched.master.client.replicaof(
            "127.0.0.1", own_watched.replica.port
        )  # as the Sentinel does, seconds later
        assert _acquire_until_granted(limiter, 1)
        assert stored(new) == 2, "the key of the replication check, and the limiter's key"
        assert limiter.peek(HOUR).remaining == 39


# Clients


@pytest.mark.parametrize("decoded", [False, True])
def test_the_address_and_user_of_a_client_are_used(redis_url: str, decoded: bool) -> None:
    """The client's address, database and user are used; its decoding, retries and time-outs are not."""
    retry = Retry(ConstantBackoff(0.01), 5)
    client = redis.Redis.from_url(
        redis_url,
        decode_responses=decoded,
        retry=retry,
        socket_timeout=60,
        health_check_interval=1,
        max_connections=1,
        protocol=3,
    )
    held = client.connection_pool.get_connection("PING")  # its only connection
    limiter = Limiter(client=client)
    client.connection_pool.release(held)
    assert _acquire_until_granted(limiter, 1)
    assert stored(client) == 1
    limiter.reset(HOUR)
    _check_methods(limiter)
    assert client.ping()
    assert client.get_retry() is retry
    client.close()


def test_the_retries_of_a_client_are_not_used(redis_base: str) -> None:
    """After a time-out the client would send a command five times, each with a charge. The limiter sends it once."""
    with redis_server() as url, redis.Redis.from_url(url) as control:
        client = redis.Redis.from_url(
            url,
            retry=Retry(ConstantBackoff(0.01), 5),
            retry_on_timeout=True,
            retry_on_error=[redis.TimeoutError],
            socket_timeout=30,
        )
        with contextlib.closing(Limiter(client=client)) as limiter:
            assert _acquire_until_granted(limiter, 1)
            pid = control.info("server")["process_id"]
            control.config_resetstat()
            os.kill(pid, signal.SIGSTOP)
            try:
                begun = time.monotonic()
                assert limiter.acquire(HOUR, job=JOB).reason == "store unavailable"
                assert time.monotonic() - begun < 30  # the client's time-out
            finally:
                os.kill(pid, signal.SIGCONT)
            control.ping()
            calls: Any = control.info("commandstats")
            assert calls.get("cmdstat_evalsha", {"calls": 0})["calls"] <= 1
            wait_until(lambda: limiter.acquire(HOUR), description="the server is called again")
            assert limiter.peek(HOUR).remaining in (46, 47)
        client.close()


def test_a_cluster_client_names_the_nodes(cluster: Cluster) -> None:
    """A redis.RedisCluster names the nodes, and the limiter works as with redis+cluster://."""
    limits = [TokenBucket(f"limit-{number}", "1/h", burst=2) for number in range(12)]
    with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0], decode_responses=True) as client:
        limiter = Limiter(client=client)
    with contextlib.closing(limiter), contextlib.closing(Limiter(RedisClusterStore(cluster.url, timeout=5))) as by_url:
        wait_until(lambda: limiter.acquire(*limits), description="the cluster has replied in time")
        assert [by_url.peek(limit).remaining for limit in limits] == [1] * 12
        assert by_url.acquire(*limits)
        assert not limiter.acquire(*limits, job=JOB)


def test_a_cluster_client_made_from_a_url_keeps_its_tls() -> None:
    """TLS settings are kept: redis-py stores the connection class of a client as an option, but does not accept it."""
    store = _ClusterOfClient.__new__(_ClusterOfClient)
    client: Any = redis.RedisCluster.__new__(redis.RedisCluster)
    options = {"connection_class": redis.SSLConnection, "ssl_ca_certs": "/ours.pem"}
    client.nodes_manager = SimpleNamespace(
        connection_kwargs=options,
        startup_nodes={"127.0.0.1:1": SimpleNamespace(host="127.0.0.1", port=1)},
        address_remap=None,
        nodes_cache={},
    )
    store.__init__(client)  # type: ignore[misc]
    assert store._settings["ssl"] is True
    assert "connection_class" not in store._settings


def test_nodes_that_hang_cost_one_time_out_for_all_threads() -> None:
    """If a cluster hangs, eight threads wait together for one or two time-outs, and not for one each."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hung:
        limiter = Limiter(RedisClusterStore(f"redis+cluster://127.0.0.1:{hung.getsockname()[1]}", timeout=1.0))
        begun = time.monotonic()
        run_in_threads(8, lambda _: limiter.acquire(HOUR, job=JOB))
        assert time.monotonic() - begun < 7


def test_threads_do_not_refresh_the_nodes_one_after_the_other() -> None:
    """
    Only one thread refreshes the nodes, and the others fail at once. redis-py refreshes them under a lock, so eight
    threads would time out one after the other.
    """
    refreshes, rejected = [], []
    manager = SimpleNamespace(
        initialize=lambda: (
            refreshes.append(1),
            wait_until(lambda: len(refreshes) > 1 or len(rejected) == 7, description="the others were rejected"),
        )
    )
    _NodeRefresh(manager, 0.1)

    def refresh(_: int) -> None:
        try:
            manager.initialize()
        except RedisClusterException as error:
            rejected.append(error)

    run_in_threads(8, refresh)
    assert (len(refreshes), len(rejected)) == (1, 7)
    refresh(8)
    assert len(refreshes) == 2


@pytest.mark.parametrize("client", [None, "redis://:hunter2@host", 5, redis.Redis])
def test_a_wrong_client_is_a_configuration_error(client: Any) -> None:
    """A value of another type as client= is rejected, and the message says what is right."""
    with pytest.raises(ConfigurationError, match=r"client= takes a redis\.Redis or redis\.RedisCluster, not") as caught:
        Limiter(client=client)
    assert "hunter2" not in str(caught.value)


def test_an_asyncio_client_is_a_configuration_error(redis_url: str) -> None:
    """An asyncio client is rejected, because it could be called only from an event loop."""
    from redis import asyncio

    with pytest.raises(ConfigurationError, match="not an asyncio client"):
        Limiter(client=asyncio.Redis.from_url(redis_url))


def test_a_store_and_a_client_are_a_configuration_error(redis_url: str) -> None:
    """A store and a client together are rejected, because the limiter would not know which to use."""
    with redis.Redis.from_url(redis_url) as client, pytest.raises(ConfigurationError, match="not both"):
        Limiter(redis_url, client=client)


def test_an_unknown_connection_class_is_a_configuration_error() -> None:
    """A connection class with other arguments is rejected at once, and the message does not repeat them."""

    class Own(redis.Connection):
        def __init__(self, host: str, password: str) -> None:
            super().__init__(host=host, password=password)

    pool = redis.ConnectionPool(connection_class=Own, host="host", password="hunter2")
    with pytest.raises(ConfigurationError, match="client= has a connection class with other arguments") as caught:
        Limiter(client=redis.Redis(connection_pool=pool))
    assert "hunter2" not in str(caught.value)


def test_greenlets_of_gevent_do_not_block_each_other(redis_url: str) -> None:
    """Fifty greenlets share one limiter. While the server hangs, one of them waits for it, and others still run."""
    script = textwrap.dedent(
        f"""
        from gevent import monkey
        monkey.patch_all()
        import gevent, time
        from throttlekit import Limiter, SlidingLog
        from throttlekit.stores.redis import RedisStore as RedisStore
        limit = SlidingLog("greenlets", "30/h")
        limiter = Limiter(RedisStore({redis_url!r}, timeout=10))
        jobs = [gevent.spawn(limiter.acquire, limit) for _ in range(50)]
        gevent.joinall(jobs)
        print(sum(job.value.allowed for job in jobs), sorted({{job.value.reason for job in jobs if not job.value}}))
        import socket
        hole = socket.create_server(("127.0.0.1", 0))
        away = Limiter(f"redis://127.0.0.1:{{hole.getsockname()[1]}}/0")
        ticks = []
        def tick():
            while True:
                ticks.append(1)
                gevent.sleep(0.005)
        ticking = gevent.spawn(tick)
        jobs = [gevent.spawn(away.acquire, limit) for _ in range(50)]
        gevent.joinall(jobs)
        print(sum(job.value.allowed for job in jobs), len(ticks) > 5)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["30 ['exhausted']", "0 True"], done.stderr

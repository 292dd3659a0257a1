"""The kinds of servers that people run: TLS, a Unix socket, Sentinel; and clients of redis-py."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
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

from support.servers.certificates import self_signed
from support.servers.processes import Cluster, redis_server, stored
from support.servers.sentinel import Watched, guarded
from support.servers.sentinel import watched as sentinel_watching
from support.waiting import wait_until
from throttlekit import ConfigurationError, Decision, Job, Limiter, SlidingLog, TokenBucket
from throttlekit.stores.cluster import RedisClusterStore, _NodeRefresh
from throttlekit.stores.from_client import _ClusterOfClient
from throttlekit.stores.redis import RedisStore

HOUR = SlidingLog("hour", "50/h")
OTHER = TokenBucket("other", "5/h", burst=5)
JOB = Job(id="1", name="call_partner")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a busy machine: these tests are not about speed."""
    monkeypatch.setattr("throttlekit.stores.from_client._TIMEOUT", 2.0)


def _url(watched: Watched) -> str:
    return f"{watched.url}?socket_timeout=2"


def _works(limiter: Limiter) -> None:
    """Every verb, allowed and denied."""
    with contextlib.closing(limiter):
        decision = _granted(limiter, 40)
        limiter.settle(decision, actual=30)
        assert limiter.peek(HOUR).remaining == 20
        assert limiter.acquire(HOUR, OTHER, job=JOB, cost=5)
        assert limiter.acquire(HOUR, job=JOB, cost=20).reason == "exhausted"
        limiter.reset(HOUR, OTHER)
        assert limiter.peek(HOUR).remaining == 50


def _granted(limiter: Limiter, cost: int) -> Decision:
    return wait_until(lambda: limiter.acquire(HOUR, cost=cost), description="the store has answered in time")


# TLS and Unix sockets


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_port(certificates: tuple[Path, Path]) -> Iterator[int]:
    """A server that speaks TLS on its own port."""
    from support.servers.processes import free_port

    certificate, key = map(str, certificates)
    port = free_port()
    with redis_server(
        "--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file",
        certificate, "--tls-auth-clients", "no",
    ):  # fmt: skip
        yield port


def test_tls(tls_port: int, certificates: tuple[Path, Path]) -> None:
    """rediss:// with the certificate's authority; as a URL, and as a client."""
    authority = str(certificates[0])
    store = RedisStore(f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={authority}", timeout=5)
    _works(Limiter(store))
    client = redis.Redis(port=tls_port, host="127.0.0.1", ssl=True, ssl_ca_certs=authority)
    with contextlib.closing(Limiter(client=client)) as limiter:
        assert _granted(limiter, 1)
    client.close()


def test_tls_that_is_not_trusted(tls_port: int, caplog: pytest.LogCaptureFixture) -> None:
    """With a certificate that is not trusted jobs are deferred, and the log says what failed."""
    with contextlib.closing(Limiter(RedisStore(f"rediss://:hunter2@127.0.0.1:{tls_port}/0", timeout=5))) as limiter:
        assert limiter.acquire(HOUR, job=JOB).reason == "store unavailable"
    assert "hunter2" not in caplog.text
    assert len(caplog.records) == 1


def test_unix_socket(tmp_path: Path) -> None:
    """unix:// with a database and a password."""
    path = tmp_path / "r.sock"
    with redis_server("--unixsocket", str(path)):
        _works(Limiter(RedisStore(f"unix://{path}?db=3", timeout=5)))
        with redis.Redis(unix_socket_path=str(path)) as client, contextlib.closing(Limiter(client=client)) as limiter:
            assert limiter.acquire(HOUR)


# Sentinel


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A master, its replica, and a Sentinel. Leave them as they are."""
    with sentinel_watching() as found:
        yield found


@pytest.fixture
def own_watched() -> Iterator[Watched]:
    """The same for one test, to fail over."""
    with sentinel_watching() as found:
        yield found


def test_sentinel_by_url_and_by_client(watched: Watched) -> None:
    """The limiter uses the master that the Sentinel names; a Sentinel that is down is skipped."""
    _works(Limiter(_url(watched)))
    _works(Limiter(_url(watched).replace("//", "//127.0.0.1:1,").replace("redis+", "valkey+")))
    manager = Sentinel([("127.0.0.1", watched.port)])
    _works(Limiter(client=manager.master_for("limits", decode_responses=True)))
    with pytest.raises(ConfigurationError, match=r"reads from replicas.*create it with Sentinel\.master_for"):
        Limiter(client=manager.slave_for("limits"))


def test_sentinel_with_tls_and_passwords_of_its_own(
    certificates: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """rediss+sentinel:// speaks TLS to both; the URL's user is the master's, its options name the Sentinel's."""
    with guarded(*certificates) as port:
        url = f"rediss+sentinel://:master@127.0.0.1:{port}/limits/1?socket_timeout=5&socket_connect_timeout=5"
        url += f"&ssl_ca_certs={certificates[0]}"
        _works(Limiter(f"{url}&sentinel_password=sentinel"))
        _works(Limiter(f"{url}&sentinel_username=watcher&sentinel_password=watcher"))
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
    """The log says that the Sentinels do not know the service, so the operator does not look for a dead master."""
    with contextlib.closing(Limiter(_url(watched).replace("/limits", "/another"))) as limiter:
        assert limiter.acquire(HOUR, job=JOB).reason == "store unavailable"
    assert "the Sentinels do not know the service named in the URL: see SENTINEL MASTERS" in caplog.text


@pytest.mark.parametrize(
    "end",
    ["", "/", "/service/one", "/service/0?nope=1", "/service?socket_timeout=soon", "/service/0/1", "/service?x"],
)
def test_sentinel_url_that_cannot_be_read_fails_at_once(end: str) -> None:
    """With what is right, and without the password."""
    with pytest.raises(
        ConfigurationError, match=r"redis\+sentinel://host:port,host:port/service/0|sentinel_password$"
    ) as caught:
        Limiter(f"redis+sentinel://user:hunter2@host:1,other{end}")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        Limiter("redis+sentinel://host:port/service/0")


def _replicated(watched: Watched) -> None:
    """Wait until the replica has all that the master wrote."""
    watched.master.client.set("last", "word")  # WAIT is for what the same connection has written
    assert watched.master.client.wait(1, 30_000) == 1


def test_fail_over_is_followed(own_watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """
    The master is killed: jobs are deferred until the replica is the master, then they run, and what was counted
    and replicated still counts. It is the same for a client of redis-py.
    """
    caplog.set_level(logging.WARNING, "throttlekit")
    manager = Sentinel([("127.0.0.1", own_watched.port)])
    by_url, by_client = Limiter(_url(own_watched)), Limiter(client=manager.master_for("limits"))
    with contextlib.closing(by_url), contextlib.closing(by_client):
        assert _granted(by_url, 10)
        assert _granted(by_client, 10)
        _replicated(own_watched)
        own_watched.fail_over()
        for limiter in (by_url, by_client):
            assert _granted(limiter, 1)
        assert by_url.peek(HOUR).remaining == 28
    assert "the store gave no usable answer: " in caplog.text


def test_a_master_that_became_a_replica_is_left(own_watched: Watched) -> None:
    """A fail-over while the old master is up: it never grants anything more, and the new one is found."""
    with contextlib.closing(Limiter(_url(own_watched))) as limiter:
        assert _granted(limiter, 10)
        _replicated(own_watched)
        own_watched.sentinel.execute_command("SENTINEL", "FAILOVER", "limits")
        new = own_watched.replica.client
        wait_until(lambda: new.role()[0] == "master", description="the replica has taken over")
        own_watched.master.client.replicaof(
            "127.0.0.1", own_watched.replica.port
        )  # as the Sentinel does, seconds later
        assert _granted(limiter, 1)
        assert stored(new) == 2, "what was said last, and what the limiter counts"
        assert limiter.peek(HOUR).remaining == 39


# Clients


@pytest.mark.parametrize("decoded", [False, True])
def test_a_client_gives_address_and_user(redis_url: str, decoded: bool) -> None:
    """Its database, its user and its client name are used; its decoding, retries and time-outs are not."""
    retry = Retry(ConstantBackoff(0.01), 5)
    client = redis.Redis.from_url(
        redis_url, decode_responses=decoded, retry=retry, socket_timeout=60, health_check_interval=1,
        max_connections=1, protocol=3,
    )  # fmt: skip
    held = client.connection_pool.get_connection("PING")  # its only one
    limiter = Limiter(client=client)
    client.connection_pool.release(held)
    assert _granted(limiter, 1)
    assert stored(client) == 1
    limiter.reset(HOUR)
    _works(limiter)
    assert client.ping()
    assert client.get_retry() is retry
    client.close()


def test_a_clients_retries_never_send_twice(redis_base: str) -> None:
    """The client would send five times after a time-out, each a charge. The limiter sends once."""
    with redis_server() as url, redis.Redis.from_url(url) as control:
        client = redis.Redis.from_url(
            url, retry=Retry(ConstantBackoff(0.01), 5), retry_on_timeout=True, retry_on_error=[redis.TimeoutError],
            socket_timeout=30,
        )  # fmt: skip
        with contextlib.closing(Limiter(client=client)) as limiter:
            assert _granted(limiter, 1)
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
            wait_until(lambda: limiter.acquire(HOUR), description="the server is asked again")
            assert limiter.peek(HOUR).remaining in (46, 47)
        client.close()


def test_a_cluster_client(cluster: Cluster) -> None:
    """A redis.RedisCluster names the nodes; the rest is as with redis+cluster://."""
    limits = [TokenBucket(f"limit-{number}", "1/h", burst=2) for number in range(12)]
    with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0], decode_responses=True) as client:
        limiter = Limiter(client=client)
    with contextlib.closing(limiter), contextlib.closing(Limiter(RedisClusterStore(cluster.url, timeout=5))) as by_url:
        wait_until(lambda: limiter.acquire(*limits), description="the cluster has answered in time")
        assert [by_url.peek(limit).remaining for limit in limits] == [1] * 12
        assert by_url.acquire(*limits)
        assert not limiter.acquire(*limits, job=JOB)


def test_a_cluster_client_made_from_a_url_keeps_its_tls() -> None:
    """redis-py keeps the connection class among the options, but does not accept it as one."""
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
    """Eight threads whose first call meets a cluster that hangs: a time-out or two, not one each."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hung:
        limiter = Limiter(RedisClusterStore(f"redis+cluster://127.0.0.1:{hung.getsockname()[1]}", timeout=1.0))
        threads = [threading.Thread(target=limiter.acquire, args=[HOUR], kwargs={"job": JOB}) for _ in range(8)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begun < 7


def test_threads_do_not_wait_in_turn_for_the_list_of_nodes() -> None:
    """redis-py refreshes the nodes under a lock: with nodes that hang, eight threads would time out in turn."""
    asked, refused = [], []
    manager = SimpleNamespace(
        initialize=lambda: (
            asked.append(1),
            wait_until(lambda: len(asked) > 1 or len(refused) == 7, description="the others have been refused"),
        )
    )
    _NodeRefresh(manager, 0.1)

    def ask() -> None:
        try:
            manager.initialize()
        except RedisClusterException as error:
            refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(asked), len(refused)) == (1, 7)
    ask()
    assert len(asked) == 2


@pytest.mark.parametrize("client", [None, "redis://:hunter2@host", 5, redis.Redis])
def test_a_wrong_client_is_a_configuration_error(client: Any) -> None:
    """The message says what is right."""
    with pytest.raises(ConfigurationError, match=r"client= takes a redis\.Redis or redis\.RedisCluster, not") as caught:
        Limiter(client=client)
    assert "hunter2" not in str(caught.value)


def test_an_asyncio_client_is_a_configuration_error(redis_url: str) -> None:
    """It could be called only from an event loop."""
    from redis import asyncio

    with pytest.raises(ConfigurationError, match="not an asyncio client"):
        Limiter(client=asyncio.Redis.from_url(redis_url))


def test_a_store_and_a_client_are_a_configuration_error(redis_url: str) -> None:
    """The limiter would not know which to use."""
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


def test_a_process_patched_by_gevent(redis_url: str) -> None:
    """Fifty greenlets on one server: while it is down, one waits for it at a time and the others go on."""
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

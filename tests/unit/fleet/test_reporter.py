"""The reporter: it runs its tasks once a second, beside the decisions."""

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
    """A reporter that does not run its task by itself during the test."""
    reporter = Reporter([task], every=60)
    yield reporter
    reporter.stop()


def test_first_run_is_in_the_callers_thread(task: _Task) -> None:
    """The first caller has the fleet's rules before it continues; later runs are in a thread of the reporter."""
    reporter = Reporter([task], every=0.01)
    reporter.ensure_started()
    assert task.threads[0] == threading.current_thread().name
    wait_until(lambda: len(task.threads) >= 3, description="the task runs by itself")
    assert set(task.threads[1:]) == {"throttlekit-reporter"}
    reporter.stop()


def test_reporter_runs_its_tasks_without_a_thread_if_none_can_be_started(
    reporter: Reporter, task: _Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If no thread can start, no decision fails: each runs the tasks itself, until a thread can be started."""

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


def test_a_second_start_does_nothing(reporter: Reporter, task: _Task) -> None:
    """A second start does nothing: only the first decision of a process pays for the start."""
    for _ in range(3):
        reporter.ensure_started()
    assert len(task.threads) == 1


def test_stop_runs_once_more_and_ends_the_thread(reporter: Reporter, task: _Task) -> None:
    """`stop` sends the last report of a process and ends the thread; the reporter can start again."""
    before = set(threading.enumerate())
    reporter.stop()
    assert task.threads == []
    reporter.ensure_started()
    reporter.stop()
    assert len(task.threads) == 2
    assert set(threading.enumerate()) <= before
    reporter.ensure_started()
    assert len(task.threads) == 3


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ValueError("a fault of ours")])
def test_failing_task_stops_no_other(error: Exception, task: _Task) -> None:
    """The other tasks still run, and the failing one runs again."""
    called: list[int] = []

    def fails() -> None:
        called.append(1)
        raise error

    reporter = Reporter([fails, task], every=0.01)
    reporter.ensure_started()
    wait_until(lambda: len(called) >= 2, description="the failing task is called again")
    reporter.stop()
    assert len(task.threads) >= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_starts_its_own(reporter: Reporter, task: _Task) -> None:
    """A child has none of its parent's threads: its first decision starts a new one."""
    reporter.ensure_started()
    child = os.fork()
    if child == 0:
        reporter.ensure_started()
        os._exit(len(task.threads))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2

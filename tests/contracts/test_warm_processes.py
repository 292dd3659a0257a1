"""Workers of tests that are forked from a process with their framework behave as started interpreters."""

from __future__ import annotations

import signal
import sys
from contextlib import closing

import pytest

from support.faults import warm
from support.faults.processes import Command
from support.rq.workers import rq_worker
from support.waiting import wait_until

HELP = [sys.executable, "-m", "rq.cli", "worker", "--help"]


def test_a_forked_command_prints_and_ends_as_a_started_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is in the log, and its exit code is that of the command, also if it fails."""
    shown: list[tuple[str, int | None]] = []
    for may_fork in (True, False):
        monkeypatch.setattr(Command, "may_fork", may_fork)
        for arguments in (HELP, [*HELP[:3], "no-such-command"]):
            with closing(Command(arguments, {})) as command:
                command.wait(60)
                shown.append((command.log(), command.exit_code))
    forked, started = shown[:2], shown[2:]
    assert forked == started
    assert [code for _, code in forked] == [0, 2]


def test_a_killed_command_has_the_code_of_its_signal(redis_url: str) -> None:
    """The end of a forked command is known although another process is its parent."""
    with closing(Command(rq_worker(redis_url, "work"), {})) as command:
        wait_until(lambda: "Listening on" in command.log(), description="the worker listens")
        assert command.exit_code is None
        command.signal(signal.SIGKILL)
        wait_until(lambda: not command.running, description="the command has ended")
        assert command.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("name", ["dramatiq_restart_delay", "PYTHONWARNINGS", "RQ_KEY_PREFIX"])
def test_a_command_with_a_variable_that_is_read_at_import_is_not_forked(name: str) -> None:
    """The framework of a forked command has already been imported, with other variables."""
    assert warm.WarmProcess.suits(HELP, {**warm._ENVIRONMENT, "TK_CONTRACT": "{}"})
    assert not warm.WarmProcess.suits(HELP, {**warm._ENVIRONMENT, name: "1"})

"""Commands under test: started, observed through /proc, and always stopped with all their child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from support.faults.warm import WarmProcess
from support.waiting import wait_until

__all__ = ["Command", "Fleet", "cpu_seconds"]

_TESTS = Path(__file__).resolve().parents[2]
_ROOT = _TESTS.parent
_ABSENT = _TESTS / "support" / "absent"  # optional imports that take a fifth of a worker's start
_SOURCES = [_ABSENT, _TESTS, _ROOT, _ROOT / "adapters", _ROOT / "lua"]
_TICK = os.sysconf("SC_CLK_TCK")


class Command:
    """
    One command and its descendants in a separate session, with the packages of the tests on its path.

    Args:
        cwd: The working directory. Default: the current one.
    """

    may_fork: ClassVar[bool] = False
    """Whether the worker of a framework may be a `WarmProcess`. The tests set it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="tk-workers-")  # noqa: SIM115  closed by close()
        path = os.pathsep.join([*map(str, _SOURCES), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        complete = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **environment}
        may_fork = self.may_fork and WarmProcess.suits(command, {**os.environ, **environment})
        start = WarmProcess if may_fork else _start_interpreter
        self._command = start(command, complete, cwd, self._log.fileno())

    @property
    def pid(self) -> int:
        return self._command.pid

    @property
    def running(self) -> bool:
        return self._command.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while the command runs."""
        return self._command.poll()

    def log(self) -> str:
        """Return everything that the processes have printed."""
        return Path(self._log.name).read_text(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to every process at once, as when a machine fails."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._command.wait()

        def have_ended() -> bool:
            members = self._members()
            for pid in members:  # processes in other process groups
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not members

        wait_until(have_ended, description="the killed processes have ended")

    def terminate(self) -> None:
        """Send SIGTERM to the command, as a deployment does, and return at once."""
        with contextlib.suppress(ProcessLookupError):
            self._command.terminate()

    def signal(self, number: int) -> None:
        """Send a signal only to the command itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        """Wait until the command ends."""
        assert self.ends_within(timeout), f"it still runs after {timeout} s: {self.log()[-3000:]}"

    def ends_within(self, timeout: float) -> bool:
        """Return whether the command ends within *timeout* seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._command.wait(timeout)
        return not self.running

    def stop(self, timeout: float = 60.0) -> None:
        """Send SIGTERM, as a deployment does, and SIGKILL to processes that still run after *timeout* seconds."""
        self.terminate()
        self.ends_within(timeout)
        self.kill()

    def close(self) -> None:
        self.kill()
        self._log.close()

    def children(self) -> list[int]:
        """Return the running processes that the command has started."""
        return [pid for pid in self._members() if pid != self.pid]

    def _members(self) -> list[int]:
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # The name, in parentheses, may have blanks: count the fields after it.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                state, session = fields[0], int(fields[3])
                if session == self.pid and state != "Z":
                    found.append(int(folder.name))
        return found


def _start_interpreter(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, log: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=environment, cwd=cwd, stdout=log, stderr=log, start_new_session=True)


class Fleet:
    """Several commands at once."""

    def __init__(self, commands: Iterable[Sequence[str]], environment: Mapping[str, str]) -> None:
        self.commands: list[Command] = []
        self._environment = environment
        for command in commands:
            self.add(command)

    def add(self, command: Sequence[str]) -> None:
        """Start another command."""
        self.commands.append(Command(command, self._environment))

    @property
    def running(self) -> bool:
        return all(command.running for command in self.commands)

    def log(self) -> str:
        return "".join(command.log() for command in self.commands)

    def cpu_seconds(self) -> float:
        return cpu_seconds(pid for command in self.commands for pid in (command.pid, *command.children()))

    def signal(self, number: int) -> None:
        """Send a signal only to each command itself."""
        for command in self.commands:
            command.signal(number)

    def ends_within(self, timeout: float) -> bool:
        """Return whether all commands end, each within *timeout* seconds."""
        return all(command.ends_within(timeout) for command in self.commands)

    def stop(self, timeout: float = 60.0) -> None:
        """Send SIGTERM to all commands, and SIGKILL to processes that still run after *timeout* seconds."""
        for command in self.commands:
            command.terminate()
        self.ends_within(timeout)
        self.kill()

    def kill(self) -> None:
        for command in self.commands:
            command.kill()

    def close(self) -> None:
        for command in self.commands:
            command.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the user and system time of these processes and of their children that have ended."""
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, fields[11:15]))
    return used / _TICK

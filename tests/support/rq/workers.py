"""Real `rq worker` processes, each started by the command line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.faults.processes import Command

__all__ = ["Fleet", "rq_waker", "rq_worker"]


def rq_worker(url: str, *queues: str, kind: str = "rq.Worker", options: Iterable[str] = ()) -> list[str]:
    """The command for one worker of class *kind*; "+scheduler" behind it adds RQ's scheduler."""
    name, _, scheduler = kind.partition("+")
    command = [sys.executable, "-m", "rq.cli", "worker", *queues, "--url", url, "--worker-class", name]
    return [*command, *(["--with-scheduler"] if scheduler else []), *options]


def rq_waker(url: str, *queues: str, store: str = "") -> list[str]:
    """The command that wakes the jobs of stock workers. *store*: "" is that of $THROTTLEKIT_URL."""
    command = [sys.executable, "-m", "throttlekit_cli", "wake", "--rq", url, *(["--url", store] if store else [])]
    return [*command, *(each for name in queues for each in ("--queue", name))]


class Fleet:
    """Several commands at once."""

    def __init__(self, commands: Iterable[list[str]], environment: Mapping[str, str]) -> None:
        self.commands = [Command(command, environment) for command in commands]

    @property
    def running(self) -> bool:
        return all(command.running for command in self.commands)

    def cpu_seconds(self) -> float:
        """User and system time that the workers have used, those of their children that have ended included."""
        return sum(_cpu_with_children(command.pid) for command in self.commands)

    def log(self) -> str:
        return "".join(command.log() for command in self.commands)

    def stop(self) -> None:
        """SIGTERM to all, once: RQ takes a second one that comes a second later for an order to drop its job."""
        for command in self.commands:
            command.terminate()
        for command in self.commands:
            if not command.ends_within(30):
                command.terminate()  # again: the first can go by where RQ's handler raises inside a destructor
            command.ends_within(30)
            command.kill()

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


def _cpu_with_children(pid: int) -> float:
    fields: Any = []
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

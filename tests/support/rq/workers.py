"""Real `rq worker` processes, each started by the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from support.faults import processes
from throttlekit import hookimpl
from throttlekit.hookspecs import Deferred

__all__ = ["Deferrals", "Fleet", "rq_waker", "rq_worker"]


def rq_worker(url: str, *queues: str, kind: str = "rq.Worker", options: Iterable[str] = ()) -> list[str]:
    """Return the command of a worker of class *kind*. The suffix "+scheduler" adds RQ's scheduler."""
    name, _, scheduler = kind.partition("+")
    command = [sys.executable, "-m", "rq.cli", "worker", *queues, "--url", url, "--worker-class", name]
    return [*command, *(["--with-scheduler"] if scheduler else []), *options]


def rq_waker(url: str, *queues: str, store: str = "") -> list[str]:
    """Return the command that wakes jobs of stock workers. The default of *store* is $THROTTLEKIT_URL."""
    command = [sys.executable, "-m", "throttlekit_cli", "wake", "--rq", url, *(["--url", store] if store else [])]
    return [*command, *(each for name in queues for each in ("--queue", name))]


class Deferrals:
    """A plugin that counts deferrals, each of which is another delivery."""

    def __init__(self, count: Callable[[str], object]) -> None:
        self._count = count

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        self._count("deliveries")


class Fleet(processes.Fleet):
    """Several workers at once."""

    def stop(self, timeout: float = 30.0) -> None:
        """Send one SIGTERM to all: after a second one, a second later, RQ drops its job."""
        for command in self.commands:
            command.terminate()
        for command in self.commands:
            if not command.ends_within(timeout):
                command.terminate()  # again: the first is lost if RQ's handler raises inside a destructor
            command.ends_within(timeout)
            command.kill()

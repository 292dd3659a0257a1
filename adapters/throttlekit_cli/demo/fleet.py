"""Start the processes of a run: the partner, and the workers."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from throttlekit_cli.demo.frameworks import DemoFramework
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.processes import DemoError, Processes, pause

__all__ = ["Call", "Fleet", "Partner", "start_fleet", "start_partner"]

_READY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the partner received: when, in seconds by the partner's clock, and the status of the answer."""

    arrived: float
    status: int


@dataclass(frozen=True, slots=True)
class Partner:
    """The partner's process, and its record of calls."""

    port: int

    def counts(self) -> tuple[int, int]:
        """The number of calls, and how many of them were answered with 429."""
        counts = self._get("/counts")
        return counts["calls"], counts["refused"]

    def record(self) -> list[Call]:
        return [Call(arrived_ns / 1e9, status) for arrived_ns, status in self._get("/record")]

    def _get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers' processes."""

    process: subprocess.Popen[bytes]
    processes: Processes

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        """The last lines of the workers' log."""
        return self.processes.log(_LOG)


_LOG = "workers.log"


def start_partner(processes: Processes, plan: Plan) -> Partner:
    """Start the partner. It accepts calls when this returns."""
    port_file = processes.folder / "partner.port"
    process = processes.start(
        [
            sys.executable, "-m", "throttlekit_cli.demo.partner", "--port-file", str(port_file),
            "--amount", str(plan.amount), "--period", repr(plan.period), "--burst", str(plan.partner_burst),
        ],
        log="partner.log", environment=_packages(),
    )  # fmt: skip
    until = time.monotonic() + _READY_TIMEOUT_S
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise DemoError(f"the partner did not start:\n{processes.log('partner.log')}")
        pause(0.01)
    return Partner(int(port_file.read_text("ascii")))


def start_fleet(processes: Processes, plan: Plan, settings: Settings, framework: DemoFramework) -> Fleet:
    """Start the workers with their framework's own command. All are ready when this returns."""
    process = processes.start(
        framework.command(plan, processes.folder), log=_LOG, environment=_packages() | settings.environment()
    )
    fleet = Fleet(process, processes)
    until = time.monotonic() + _READY_TIMEOUT_S
    while framework.ready() < plan.workers:
        if not fleet.alive or time.monotonic() > until:
            raise DemoError(f"the workers did not start:\n{fleet.log}")
        pause(0.05)
    return fleet


def _packages() -> dict[str, str]:
    """A PYTHONPATH with which child processes find the same packages as this process."""
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}

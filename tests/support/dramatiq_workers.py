"""Real `dramatiq` worker processes: started by the command line, watched through /proc, stopped for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.waiting import wait_until

__all__ = ["Workers", "clean_up_when_terminated", "make_broker", "workers"]

_TESTS = Path(__file__).resolve().parents[1]
_ROOT = _TESTS.parent
_SOURCES = [_TESTS, _ROOT, _ROOT / "adapters", _ROOT / "lua", _ROOT / "cli"]
_TICK = os.sysconf("SC_CLK_TCK")


class Workers:
    """One `dramatiq` command with its worker processes, in a session of its own."""

    def __init__(self, module: str, environment: Mapping[str, str], *, processes: int, threads: int) -> None:
        path = os.pathsep.join([*map(str, _SOURCES), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._log = tempfile.NamedTemporaryFile(prefix="tk-workers-")  # noqa: SIM115  closed by close()
        self._command = subprocess.Popen(
            [sys.executable, "-m", "dramatiq", module, "-p", str(processes), "-t", str(threads)],
            env={**os.environ, **environment, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        return self._command.poll() is None

    def cpu_seconds(self) -> float:
        """User and system time that the living worker processes have used, without the command that watches them."""
        return sum(_ticks(fields) for pid, fields in self._members() if pid != self._command.pid) / _TICK

    def log(self) -> str:
        """Everything that the processes have printed."""
        return Path(self._log.name).read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to every process at once, as when a machine dies."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._command.pid, signal.SIGKILL)
        self._command.wait()
        wait_until(lambda: not self._members(), description="the killed workers are gone")

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, as a deployment does; SIGKILL for what is still there after *timeout* seconds."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._command.terminate()
            self._command.wait(timeout)
        self.kill()

    def close(self) -> None:
        self.kill()
        self._log.close()

    def _members(self) -> list[tuple[int, list[str]]]:
        found: list[tuple[int, list[str]]] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold blanks: count the fields behind it.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                state, session = fields[0], int(fields[3])
                if session == self._command.pid and state != "Z":
                    found.append((int(folder.name), fields))
        return found


@contextlib.contextmanager
def workers(module: str, environment: Mapping[str, str], *, processes: int = 2, threads: int = 4) -> Iterator[Workers]:
    """Run the actors of *module*; when the block ends every process is gone."""
    running = Workers(module, environment, processes=processes, threads=threads)
    try:
        yield running
    finally:
        running.close()


def clean_up_when_terminated() -> None:
    """For commands: let SIGTERM (a cancelled CI job, `timeout`) unwind as Ctrl-C does: nothing stays behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def make_broker(url: str, **options: Any) -> Any:
    """The RedisBroker or RabbitmqBroker for *url*. Their constructors are untyped, so this is too."""
    factory: Any
    if url.startswith("redis"):
        from dramatiq.brokers.redis import RedisBroker

        factory = RedisBroker
    else:
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        factory = RabbitmqBroker
    return factory(url=url, **options)


def _ticks(fields: list[str]) -> int:
    return int(fields[11]) + int(fields[12])

"""Start processes, and make sure that none outlives the demo."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

__all__ = ["DemoError", "Processes", "Stopped", "defer_signals", "pause"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLEEP_S = 0.05
_pending: list[int] = []


class DemoError(Exception):
    """The demo cannot run. The message says why, and what to do."""


class Stopped(Exception):
    """The demo received a signal to end; carries its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """
    Record signals like Ctrl-C, so that they raise `Stopped` only in `pause`.

    So no signal interrupts the demo between the start of a process and the record that it was started,
    or while it cleans up.
    """

    def note(number: int, _: FrameType | None) -> None:
        _pending.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        _pending.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def pause(seconds: float) -> None:
    """Sleep for *seconds*; raise `Stopped` as soon as a signal has come."""
    until = time.monotonic() + seconds
    while True:
        if _pending:
            raise Stopped(_pending[0])
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _SLEEP_S))


class Processes:
    """
    The processes of one run and its folder, all removed at the end of the `with` block.

    Each process leads a group of its own: Ctrl-C in a terminal does not reach it, and its children are
    killed with it.
    """

    def __init__(self) -> None:
        self.folder = Path()
        self._started: list[subprocess.Popen[bytes]] = []
        self._guard: subprocess.Popen[bytes]

    def __enter__(self) -> Processes:
        self.folder = Path(tempfile.mkdtemp(prefix="throttlekit-demo-"))
        guard = Path(__file__).with_name("guard.py")
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-E", str(guard), str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return self

    def start(
        self, command: Sequence[str], *, log: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start *command* with *environment* added to the demo's; its output goes to the file *log* in the folder."""
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={**os.environ, **(environment or {})}, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        self._notify_guard(process.pid)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill *process* and all its children. Does nothing if it was killed already."""
        if process not in self._started:
            return
        # The group may outlive its leader.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._started.remove(process)
        self._notify_guard(-process.pid)

    def log(self, name: str, lines: int = 20) -> str:
        """The last lines of a log."""
        path = self.folder / name
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def end_all(self) -> None:
        """Kill all processes that are still running."""
        for process in reversed(list(self._started)):
            self.end(process)

    def __exit__(self, *_: object) -> None:
        self.end_all()
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _notify_guard(self, group: int) -> None:
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(f"{group}\n".encode())
                self._guard.stdin.flush()

"""Starting processes, and making sure that none outlives the demo."""

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

__all__ = ["CannotRun", "Processes", "Stopped", "pause", "signals_noted"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLICE = 0.05
_noted: list[int] = []


class CannotRun(Exception):
    """The demo cannot be run here. The message says why, and what to do."""


class Stopped(Exception):
    """A signal asked the demo to end; carries its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def signals_noted() -> Iterator[None]:
    """
    Note Ctrl-C and its like, in place of raising at any instant: `pause` raises `Stopped`.

    So no signal comes between the start of a process and the note that it has been started, and none
    interrupts the cleaning up.
    """

    def note(number: int, _: FrameType | None) -> None:
        _noted.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        _noted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def pause(seconds: float) -> None:
    """Sleep for *seconds*; raise `Stopped` as soon as a signal has been noted."""
    until = time.monotonic() + seconds
    while True:
        if _noted:
            raise Stopped(_noted[0])
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _SLICE))


class Processes:
    """
    The processes of one run and its folder; all gone at the end of the `with` block.

    Each is the leader of a group of its own: Ctrl-C in a terminal does not reach it, and its
    children go with it.
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
        """Start *command* with *environment* added to our own; what it says goes to the file *log* in our folder."""
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={**os.environ, **(environment or {})}, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        self._tell_guard(process.pid)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill *process* and all its children. Nothing happens if that has been done."""
        if process not in self._started:
            return
        # The group may be there when its leader is not.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._started.remove(process)
        self._tell_guard(-process.pid)

    def log(self, name: str, lines: int = 20) -> str:
        """The last lines of a log."""
        path = self.folder / name
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def end_all(self) -> None:
        """Kill whatever has been started and not yet ended."""
        for process in reversed(list(self._started)):
            self.end(process)

    def __exit__(self, *_: object) -> None:
        self.end_all()
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell_guard(self, group: int) -> None:
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(f"{group}\n".encode())
                self._guard.stdin.flush()

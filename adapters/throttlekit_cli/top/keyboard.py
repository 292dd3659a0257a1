"""Read the keys that an operator presses while `top` runs."""

from __future__ import annotations

import codecs
import os
import select
import sys
import time
from typing import Any

try:
    import termios
    import tty
except ImportError:  # Windows: top runs, and Ctrl-C ends it
    termios = tty = None  # type: ignore[assignment]

__all__ = ["ESCAPE", "PAGE_DOWN", "PAGE_UP", "Keyboard"]

ESCAPE = "\x1b"
PAGE_UP, PAGE_DOWN = "\x1b[5~", "\x1b[6~"
_SEQUENCE_WITHIN_S = 0.05
"""The time within which an arrow key sends more characters after ESC. Without them, ESC is the Escape key."""


class Keyboard:
    """Reads single keys from the terminal, as a context manager. Without a terminal, it only waits."""

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if termios is not None and sys.stdin.isatty() else None
        self._before: Any = None

    @property
    def reads(self) -> bool:
        """Whether there is a terminal from which keys are read."""
        return self._terminal is not None

    def __enter__(self) -> Keyboard:
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal)
        return self

    def __exit__(self, *error: object) -> None:
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def key(self, within: float) -> str:
        """Return the next key that is pressed within *within* seconds, or "" for no key or an unknown key."""
        if self._terminal is None:
            time.sleep(within)
            return ""
        if not _readable(self._terminal, within):
            return ""
        pressed = os.read(self._terminal, 1)
        if not pressed:  # the terminal was closed
            raise KeyboardInterrupt
        if pressed == b"\x1b" and _readable(self._terminal, _SEQUENCE_WITHIN_S):
            sequence = (pressed + os.read(self._terminal, 32)).decode("utf-8", "replace")
            return sequence if sequence in (PAGE_UP, PAGE_DOWN) else ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        letter = decoder.decode(pressed)
        while not letter and _readable(self._terminal, _SEQUENCE_WITHIN_S):  # a letter of several bytes
            letter = decoder.decode(os.read(self._terminal, 1))
        return letter


def _readable(terminal: int, within: float) -> bool:
    return bool(select.select([terminal], [], [], within)[0])

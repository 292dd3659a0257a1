"""The screen of `throttlekit top` at every width, and its keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from rich.console import Console

from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import Concurrency, Control, Job, LeakyBucket, Limiter, TokenBucket
from throttlekit_cli.store import open_store
from throttlekit_cli.top.watch import View

WAITING = TokenBucket("partner-api-of-a-quite-long-name", "12/hour", burst=20)
TOKENS = TokenBucket("language-model:tokens", "6000/day", burst=1200)
ACCOUNT = TokenBucket("account", "1/minute", key="{account}")
SLOTS = Concurrency("reports-db", 4)
QUIET = LeakyBucket("quiet", "5/s")


@pytest.fixture
def busy(redis_url: str) -> str:
    """A store with full, waiting, paused and quiet limits; returns its URL."""
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        for _ in range(20):
            limiter.acquire(WAITING)
        for number in range(12):
            limiter.acquire(WAITING, job=Job(id=f"w{number}"))
            limiter.acquire(TOKENS, job=Job(id=f"t{number}"), cost=400)
        limiter.acquire(QUIET)
        for account in range(3):
            limiter.acquire(ACCOUNT, key=account)
            limiter.acquire(ACCOUNT, job=Job(id=f"a{account}"), key=account)
        limiter.acquire(SLOTS)
    with Control(patient(redis_url), by="ann") as control:
        control.pause("quiet", for_=3600)
    return redis_url


def lines_at(url: str, width: int, **options: str) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"), force_terminal=True, highlight=False)  # noqa: SIM115
    view = View(order=options.get("order", "wait"), most=50, name=options.get("name", ""), show_keys=False)
    with contextlib.closing(open_store(url)) as store, contextlib.closing(console.file):
        console.print(view.screen(view.look(store), width))
        return console.export_text().splitlines()


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.lstrip().startswith(name))


@pytest.mark.parametrize("width", [60, 80, 100, 150, 250])
def test_what_matters_is_there_at_every_width(busy: str, width: int) -> None:
    """The limit, what is used, how many wait and for how long; no line is longer, and no number is cut."""
    lines = lines_at(busy, width)
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "limit / key" in line)
    assert all(title in head for title in ("now", "waiting", "oldest"))
    waiting = row(lines, "partner-api")
    assert re.search(r"\b20/20\b", waiting)
    assert re.search(r"~1[0-2]\b", waiting)
    assert "token-bucket 12/hour burst 20" in "\n".join(lines)


def test_wide_screens_show_more(busy: str) -> None:
    """At 80 columns the bar and the state are there; at 170 each column is, with the definition beside the name."""
    narrow, wide = lines_at(busy, 80), lines_at(busy, 170)
    assert "full" in row(narrow, "partner-api")
    assert "last starts" not in "\n".join(narrow)
    head = next(line for line in wide if "limit / key" in line)
    for title in ("definition", "now", "use", "units/min", "share", "waiting", "last starts", "oldest"):
        assert title in head
    assert "token-bucket 12/hour burst 20" in row(wide, "partner-api")
    assert "██████████" in row(wide, "partner-api")
    assert "paused" in row(wide, "quiet")
    assert "paused by ann, for " in "\n".join(wide)


def test_jobs_and_units_are_not_confused(busy: str) -> None:
    """3 jobs of 400 units passed, and 9 wait for 3 600, or somewhat more by what the line says."""
    assert re.search(r"~(9|10) \(3\d\d\d units\)", row(lines_at(busy, 150), "language-model"))


def test_full_and_paused_have_colours(busy: str) -> None:
    """A full limit is yellow, a paused one magenta."""
    console = Console(width=150, force_terminal=True, color_system="standard", highlight=False)
    view = View(order="wait", most=50, name="", show_keys=False)
    with contextlib.closing(open_store(busy)) as store, console.capture() as captured:
        console.print(view.screen(view.look(store), 150))
    assert re.search(r"\x1b\[1;33m *20/20", captured.get())
    assert re.search(r"\x1b\[1;35mpaused", captured.get())


class Terminal:
    """`throttlekit top` in a terminal of 80 × 24."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment = {name: each for name, each in environment.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "throttlekit_cli", "top", "--url", url, "--interval", "0.5"]
        self.process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self._written = b""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def shows(self, text: str) -> None:
        """Wait until *text*, a pattern, is written after what was waited for last."""

        def is_written() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                self._written += os.read(self._ours, 1 << 20)
            plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._written.decode("utf-8", "replace"))
            assert self.process.poll() is None or re.search(text, plain), plain
            if not re.search(text, plain):
                return False
            self._written = b""
            return True

        wait_until(is_written, description=f"top shows {text!r}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(busy: str) -> Iterator[Terminal]:
    with contextlib.closing(Terminal(busy)) as terminal:
        terminal.shows("q quit")
        yield terminal


@pytest.mark.parametrize("key", ["q", "\x1b"])
def test_q_and_escape_quit(terminal: Terminal, key: str) -> None:
    """With exit code 0; an arrow key, which begins with ESC, does not."""
    terminal.press("\x1b[A")
    terminal.shows("s sort: wait")
    terminal.press(key)
    wait_until(lambda: terminal.process.poll() is not None, description="top has ended")
    assert terminal.process.returncode == 0


def test_s_sorts_and_slash_filters(terminal: Terminal) -> None:
    """s goes to the next order; / takes a part of a name until Enter, and ESC drops what was typed."""
    terminal.press("s")
    terminal.shows("s sort: use")
    terminal.press("/reports")
    terminal.shows("/ filter: reports▏")
    terminal.press("\r")
    terminal.shows(r"/ filter: reports\s")
    terminal.press("/zzz\r")
    terminal.shows("Nothing was decided")
    terminal.press("/abc")
    terminal.shows("abc▏")
    terminal.press("\x1b")
    terminal.shows(r"/ filter: zzz\s")

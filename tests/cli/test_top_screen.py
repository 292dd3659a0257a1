"""The screen of `throttlekit top` at every width, and its keyboard commands."""

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
    """Fill a store with full, waiting, paused and quiet limits, and return its URL."""
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
        control.pause("quiet", duration=3600)
    return redis_url


def lines_at(url: str, width: int, *, store: str = "", updates: int = 0) -> list[str]:
    """Return what `top` shows once, or in a live terminal after this many *updates*."""
    console = Console(width=width, record=True, file=open(os.devnull, "w"), force_terminal=True, highlight=False)  # noqa: SIM115
    view = View(order="wait", most=50, name="", show_keys=False, store=store)
    with contextlib.closing(open_store(url)) as opened, contextlib.closing(console.file):
        shown = view.screen(view.look(opened), width, live=updates > 0)
        for _ in range(updates - 1):
            shown = view.screen(view.look(opened), width, live=True)
        console.print(shown)
        return console.export_text().splitlines()


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.lstrip().startswith(name))


def test_the_important_columns_are_shown_at_every_width(busy: str) -> None:
    """
    The limit, its use, the number of waiting jobs and their waiting time are shown. No line is longer, and no number is
    cut.
    """
    for width in (60, 80, 100, 150, 250):
        lines = lines_at(busy, width)
        assert max(map(len, lines)) <= width
        head = next(line for line in lines if "limit / key" in line)
        assert all(title in head for title in ("now", "waiting", "oldest")), width
        waiting = row(lines, "partner-api")
        assert re.search(r"\b20/20\b", waiting), width
        assert re.search(r"~1[0-2]\b", waiting), width
        assert "token-bucket 12/hour burst 20" in "\n".join(lines), width


def test_wide_screens_show_more(busy: str) -> None:
    """At 80 columns the bar and the state are shown, and at 170 each column, with the definition beside the name."""
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


def test_the_head_is_one_line_that_names_the_store(busy: str) -> None:
    """The head is one line: less important parts are left out, and a longer name is cut."""
    store = "production (redis-limits.example.com:6379/1)"
    for width in (40, 60, 80, 150):
        head, blank, titles, *_ = lines_at(busy, width, store=store)
        assert len(head) <= width
        assert (blank, "now" in titles) == ("", True), width
        assert ("production" in head, store in head) == (True, width >= 60)
        assert (" UTC" in head, "processes: " in head) == (width >= 80, width >= 80)


def test_the_row_of_a_limit_with_keys_covers_all_keys(busy: str) -> None:
    """The note below the table does not say "sum": the longest wait of a limit's own row is not a sum."""
    lines = lines_at(busy, 100)
    assert "Only the most pressing keys are shown; a limit's own row covers all its keys." in lines


@pytest.mark.parametrize("updates", [1, 2, 20])
def test_no_title_is_cut_after_any_number_of_updates(busy: str, updates: int) -> None:
    """No column's title is cut, also when it is wider than the first few measurements."""
    known = {
        "limit / key",
        "definition",
        "now",
        "use",
        "units/min",
        "share",
        "waiting",
        "last starts",
        "oldest",
        "429s",
        "denied",
        "recent use",
    }
    for width in (80, 90, 120, 150, 170):
        lines = lines_at(busy, width, updates=updates)
        titles = next(line for line in lines if "limit / key" in line)
        assert {*re.split(r" {2,}", titles.strip())} <= known
        assert max(map(len, lines)) <= width


def test_jobs_and_units_are_not_confused(busy: str) -> None:
    """3 jobs of 400 units were admitted, and 9 wait for 3 600 units, or slightly more by the estimate."""
    assert re.search(r"~(9|10) \(3\d\d\d units\)", row(lines_at(busy, 150), "language-model"))


def colours_at(url: str) -> str:
    """Return what `top` shows once, with the sequences that set colours."""
    console = Console(width=150, force_terminal=True, color_system="standard", highlight=False)
    view = View(order="wait", most=50, name="", show_keys=False)
    with contextlib.closing(open_store(url)) as store, console.capture() as captured:
        console.print(view.screen(view.look(store), 150))
    return captured.get()


def test_growing_and_paused_limits_have_colours(busy: str) -> None:
    """A limit whose backlog grows is yellow, with its note. A paused limit is magenta."""
    shown = colours_at(busy)
    assert re.search(r"\x1b\[1;33m *20/20", shown)
    assert re.search(r"\x1b\[33m *grows: \d+ arrived in the last minute", shown)
    assert re.search(r"\x1b\[1;35mpaused", shown)


def test_a_full_limit_has_no_colour(redis_url: str) -> None:
    """A full limit works as intended: its use is bold while its backlog does not grow."""
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        for _ in range(20):
            limiter.acquire(WAITING)
        limiter.acquire(WAITING, job=Job(id="waits"))
    shown = colours_at(redis_url)
    assert re.search(r"\x1b\[1m *20/20.*full", shown)
    assert not re.search(r"\x1b\[(1;)?3[1-6]m", shown.partition("limit / key")[2])


class Terminal:
    """`throttlekit top` in a terminal of 80 × 24."""

    def __init__(self, url: str, *options: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment = {name: each for name, each in environment.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "throttlekit_cli", "top", "--url", url, "--interval", "0.5", *options]
        self.process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self._written = b""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait until *text*, a pattern, is written after the text of the previous wait."""

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

    def screen(self, text: str) -> list[str]:
        """
        Return the lines of the first whole screen with *text*, a pattern, that is drawn after the text of the previous
        wait.
        """

        def drawn() -> list[str] | None:
            with contextlib.suppress(BlockingIOError, OSError):
                self._written += os.read(self._ours, 1 << 20)
            for part in self._written.decode("utf-8", "replace").split("\x1b[H")[1:]:
                lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part).replace("\r", "").split("\n")
                if len(lines) == 24 and len(lines[-1]) == 80 and re.search(text, "\n".join(lines)):
                    return lines
            return None

        found = wait_until(drawn, description=f"top draws a screen with {text!r}")
        self._written = b""
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def full(busy: str) -> str:
    """Fill a store with more limits than a screen has lines, and return its URL."""
    with contextlib.closing(Limiter(patient(busy))) as limiter:
        for number in range(25):
            limiter.acquire(TokenBucket(f"limit-{number:02}", "10/s"))
    return busy


@pytest.fixture
def terminal(busy: str) -> Iterator[Terminal]:
    with contextlib.closing(Terminal(busy)) as terminal:
        terminal.wait_for("q quit")
        yield terminal


@pytest.mark.parametrize("key", ["q", "\x1b"])
def test_q_and_escape_quit(terminal: Terminal, key: str) -> None:
    """After q or Escape the exit code is 0. An arrow key, whose sequence begins with ESC, does not quit."""
    terminal.press("\x1b[A")
    terminal.wait_for("s sort: wait")
    terminal.press(key)
    wait_until(lambda: terminal.process.poll() is not None, description="top has ended")
    assert terminal.process.returncode == 0


def test_s_sorts_and_slash_filters(terminal: Terminal) -> None:
    """The key s selects the next order. The key / reads a part of a name until Enter, and ESC clears it."""
    terminal.press("s")
    terminal.wait_for("s sort: use")
    terminal.press("/reports")
    terminal.wait_for("/ filter: reports▏")
    terminal.press("\r")
    terminal.wait_for(r"/ filter: reports\s")
    terminal.press("/zzz\r")
    terminal.wait_for("Nothing was decided")
    terminal.press("/abc")
    terminal.wait_for("abc▏")
    terminal.press("\x1b")
    terminal.wait_for(r"/ filter: zzz\s")


def names_on(lines: list[str]) -> set[str]:
    return {*re.findall(r"^limit-\d\d", "\n".join(lines), re.MULTILINE)}


def test_80_columns_and_24_lines_show_whole_words(full: str) -> None:
    """
    The head with the store's name, the keys and the titles take one line each. Each other line has a limit or a key.
    """
    with contextlib.closing(Terminal(full, "--title", "production")) as terminal:
        place = full.partition("://")[2].partition("?")[0]
        head, menu, blank, titles, *body = terminal.screen("page 1/2")
        assert re.match(rf"(throttlekit )?top  production \({re.escape(place)}\)  .*UTC  processes: \d", head)
        assert menu.startswith("q quit   s sort: wait   n show notes   space/b page 1/2   / filter: all")
        assert blank.strip() == ""
        assert titles.split()[:3] == ["limit", "/", "key"]
        assert all(re.match(r"(  #|\S)", line) for line in body), "neither notes nor definitions are shown"
        assert re.search(r"^partner-api.*20/20.*full", "\n".join(body), re.MULTILINE)


def test_n_shows_the_notes_and_hides_them(terminal: Terminal) -> None:
    """The key n shows or hides the notes (definitions, pauses and rules), which take additional lines."""
    terminal.screen("n show notes")
    terminal.press("n")
    shown = "\n".join(terminal.screen("n hide notes"))
    assert "token-bucket 12/hour burst 20" in shown
    assert "paused by ann" in shown
    terminal.press("n")
    hidden = "\n".join(terminal.screen("n show notes"))
    assert "paused by ann" not in hidden
    assert "paused" in hidden, "the state of the limit is shown"


def test_keys_change_the_page(full: str) -> None:
    """
    Every limit is on one of the pages. The first page follows the last one. Another order starts at the first page.
    """
    with contextlib.closing(Terminal(full)) as terminal:
        names = names_on(terminal.screen("page 1/2"))
        for forward, back in ((" ", "b"), ("\x1b[6~", "\x1b[5~")):
            terminal.press(forward)
            second = names_on(terminal.screen("page 2/2"))
            assert second
            assert len(names | second) == 25
            terminal.press(forward)
            terminal.screen("page 1/2")
            terminal.press(back)
            terminal.screen("page 2/2")
            terminal.press(back)
            terminal.screen("page 1/2")
        terminal.press(" ")
        terminal.screen("page 2/2")
        terminal.press("s")
        terminal.screen("s sort: use.*page 1/2")

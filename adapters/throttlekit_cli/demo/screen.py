"""The display of a run: live in a terminal, else one plain line a second."""

from __future__ import annotations

import abc
import math
import sys
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from throttlekit_cli.demo.plan import TRAVEL, Plan
from throttlekit_cli.demo.progress import Sample, Second

__all__ = ["Screen", "clock", "open_screen"]

_WIDTH = 100
_MAX_BAR_WIDTH = 36
_TEXT_WIDTH = 44  # of the columns beside the bar
_MAX_ROWS = 12
_OTHER_LINES = 14  # lines of the live display that are not rows, the shell's prompt included


def open_screen(plan: Plan) -> Screen:
    """The right screen for the standard output."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")  # an old code page must not end the demo
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return _Live(plan, console)
    return _Plain(plan, Console(highlight=False, width=_WIDTH, no_color=True))


def clock(seconds: float) -> str:
    """Seconds as a person reads them: 8 s, 1:05 min."""
    whole = math.ceil(seconds - 0.05)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d} min"


class Screen(abc.ABC):
    """Shows a run. The live display is on within its `with` block."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.console = console

    def begin(self, server: str) -> None:
        """Print what the run will do."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for label, text in _introduction(self.plan, server):
            grid.add_row(Text(label, style="bold"), Text(text))
        self.put(grid)
        self.console.print()

    def put(self, renderable: RenderableType) -> None:
        """Print *renderable* without the spaces that tables leave at the ends of lines."""
        with self.console.capture() as capture:
            self.console.print(renderable)
        for line in capture.get().splitlines():
            self.console.file.write(line.rstrip() + "\n")
        self.console.file.flush()

    def say(self, text: str | Text) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    @abc.abstractmethod
    def show(self, sample: Sample, eta: float | None, second: Second | None) -> None:
        """Show the state of the run, and the second that has just ended, if one has."""

    def show_end(self, sample: Sample, second: Second | None) -> None:
        """Show the state at the end, and the last, unfinished second, if anything happened in it."""
        self.show(sample, None, second)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Plain(Screen):
    def show(self, sample: Sample, eta: float | None, second: Second | None) -> None:
        if second is None:
            return
        end = second.end
        left = "-" if second.eta is None else clock(second.eta)
        print(
            f"{second.number:4} s   calls {second.calls:3}   429s {second.refused:3}   waiting {end.waiting:4}   "
            f"running {end.running:2}   done {end.done}/{self.plan.jobs} {end.done / self.plan.jobs:.0%}   ETA {left}",
            flush=True,
        )


class _Live(Screen):
    def __init__(self, plan: Plan, console: Console) -> None:
        super().__init__(plan, console)
        self._live = Live(console=console, auto_refresh=False)
        self._rows: deque[Second] = deque(maxlen=max(3, min(_MAX_ROWS, console.height - _OTHER_LINES)))
        self._padded = True
        self._most = plan.burst + plan.per_second
        self._bar_width = max(0, min(_MAX_BAR_WIDTH, console.width - _TEXT_WIDTH))

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, sample: Sample, eta: float | None, second: Second | None) -> None:
        if second is not None:
            self._rows.append(second)
            self._most = max(self._most, second.calls)
        self._live.update(Group(self._table(), Text(), self._progress(sample, eta)), refresh=True)

    def show_end(self, sample: Sample, second: Second | None) -> None:
        self._padded = False
        self.show(sample, None, second)

    def _table(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in ("second", "calls", "429s", "waiting", "running"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("[green]answered[/] [dim]and[/] [red]refused[/]" if self._bar_width else "", no_wrap=True)
        for row in self._rows:
            refused = Text(str(row.refused), style="bold red" if row.refused else "dim")
            table.add_row(
                str(row.number), str(row.calls), refused, str(row.end.waiting), str(row.end.running), self._bar(row)
            )
        for _ in range((self._rows.maxlen or 0) - len(self._rows) if self._padded else 0):
            table.add_row()  # so that the lines below do not move
        return table

    def _bar(self, row: Second) -> Text:
        scale = min(1.0, self._bar_width / self._most)
        whole = round(row.calls * scale)
        refused = min(whole, -int(-row.refused * scale // 1)) if row.refused else 0
        return Text("█" * (whole - refused), style="green").append("█" * refused, style="red")

    def _progress(self, sample: Sample, eta: float | None) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        width = max(10, self._bar_width)
        grid.add_row(
            ProgressBar(total=self.plan.jobs, completed=sample.done, width=width, complete_style="cyan"),
            f"{sample.done}/{self.plan.jobs} jobs",
            f"{sample.done / self.plan.jobs:.0%}",
            clock(sample.at),
            "" if eta is None else f"ETA {clock(eta)}",
        )
        return grid


def _introduction(plan: Plan, server: str) -> list[tuple[str, str]]:
    workers = f"{plan.workers} worker processes" if plan.workers > 1 else "1 worker process"
    each = f"of {plan.threads} threads" if plan.threads > 1 else "of RQ, one job at a time"
    lines = [
        ("Jobs", f"{plan.jobs}, each one call, for {workers} {each}. Seed {plan.seed}."),
        ("Server", f"{server}."),
        ("Partner", f"answers {plan.rate}, bursts of {plan.partner_burst}, in any window; 429 to every other call."),
    ]
    return [*lines, *(_with(plan) if plan.throttled else _without(plan))]


def _with(plan: Plan) -> list[tuple[str, str]]:
    room = plan.partner_burst - plan.burst
    return [
        ("Limit", f'TokenBucket("partner-api", "{plan.rate}", burst={plan.burst}), one for all workers.'),
        ("", f"Its burst is {room} less than the partner's: an allowed call may arrive {TRAVEL:g} s late."),
        ("", f"It lets all jobs pass in {clock(plan.ideal)}, and no sooner."),
    ]


_RETRIED = {
    "dramatiq": "Dramatiq retries it after 0.5 s, 1 s, 2 s …",
    "celery": "Celery retries it after up to 1 s, 2 s, 4 s …",
    "taskiq": "taskiq retries it after 0.5 s, 1 s, 2 s …",
    "huey": "huey retries it after 1 s, and again …",
    "rq": "RQ retries it after 1 s, 1 s, 2 s, 4 s …",
}


def _without(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("Limit", "none: throttlekit is left out. A job that gets a 429 fails,"),
        ("", f"and {_RETRIED[plan.framework]} up to 8 s."),
        ("", f"At the partner's rate, all jobs would take {clock(plan.ideal)}."),
    ]

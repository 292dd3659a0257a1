"""The commands and their options. The code of a command is imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import logging
import sys

import click

from throttlekit_cli import _control, _demo, _records, _view, _wake, _web
from throttlekit_cli._common import CommandFailed, require, url_option

__all__ = ["cli", "doctor"]

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Commands(click.Group):
    """The group of all commands. `why` is an alias of `explain`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, {"why": "explain"}.get(cmd_name, cmd_name))


@click.group(cls=_Commands, context_settings=_CONTEXT)
@click.version_option(package_name="throttlekit-jobs", message="throttlekit %(version)s")
def cli() -> None:
    """
    One rate limit for a whole fleet of job workers.

    Limits are declared in your code, beside the jobs, and counted in a Redis or Valkey server.
    These commands show and change what the limits do.

    \b
    Examples:
      throttlekit demo                                    see it work on this machine, in a minute
      throttlekit doctor --url redis://localhost:6379/1   check your set-up, and list what to change
      throttlekit top --url redis://localhost:6379/1      what the limits are doing now, live
      throttlekit web --url redis://localhost:6379/1      the same, as a web page
      throttlekit explain JOB_ID                          why that job is waiting
      throttlekit pause partner-api --for 10m             stop all jobs of a limit, in the whole fleet

    \b
    Environment:
      THROTTLEKIT_URL      the store, for each command that takes --url

    \b
    Exit codes:
      0  done, and no problem was found
      1  done, and a problem was found: the command prints it
      2  not done: a wrong option, no server, a package that is not installed

    `throttlekit COMMAND --help` is the manual of each command, with examples.
    """
    # Each command prints its own errors. Without a handler, Python would also print the library's warnings.
    logging.getLogger("throttlekit").addHandler(logging.NullHandler())


for _command in (_demo.demo, _view.top, _view.explain, _web.web, _wake.wake, *_control.COMMANDS, *_records.COMMANDS):
    cli.add_command(_command)


@cli.command(short_help="Check a live set-up, and list what to change.")
@url_option()
@click.option("--dramatiq", metavar="MODULE[:BROKER]", help="Check the middleware of a Dramatiq broker.")
@click.option("--celery", metavar="MODULE[:APP]", help="Check a Celery app, named as for celery -A.")
@click.option("--taskiq", metavar="MODULE:BROKER", help="Check a taskiq broker, named as for taskiq worker.")
@click.option("--huey", metavar="MODULE.HUEY", help="Check a huey, named as for huey_consumer.")
@click.option("--rq", metavar="URL", help="Check the queues and workers in RQ's Redis.")
@click.option(
    "--app",
    "apps",
    multiple=True,
    metavar="MODULE",
    help="Compare the limits of this module with those that workers use. Can be repeated.",
)
@click.option("--strict", is_flag=True, help="Treat warnings as faults.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects: grade, about, what, remedy.")
def doctor(url: str | None, apps: tuple[str, ...], strict: bool, as_json: bool, **named: str | None) -> None:
    """
    Check a live set-up, and list what to change.

    The store: whether a limit can be decided, the server's version, eviction, persistence, role,
    connections, round trip and clock; what workers report to it, and whether all workers have the
    same limits. Dramatiq: the middleware, its order, and confirmed delivery. Celery: whether install
    was called, misspelt options, and the broker's time-outs. taskiq: the middleware, and whether the
    broker has acknowledgements. huey: whether install was called, immediate mode, polling, and whether
    its denied jobs are requeued. RQ: whether a worker listens to each queue, whether its denied jobs
    are requeued, and which store its workers use. For each framework, whether it uses the store that
    --url names, and whether that is separate from the broker's database.

    The limits that the imported modules declare (those of --app, --celery and so on) are compared with the limits that
    workers have reported to the store in the last hour. If the algorithm, rate, burst or scope of a limit differs,
    a warning shows both. Use this with --strict as a check before a deployment.

    The installation: whether another distribution has installed a package named throttlekit.

    The command does not change your data: it writes only its own keys to the store, and deletes them.
    It imports the named modules in the same way as the workers.

    \b
    Exit codes:
      0  nothing has to change; without --strict, there may be warnings
      1  something has to change
      2  something that you named cannot be checked

    \b
    Examples:
      throttlekit doctor --url redis://localhost:6379/0
      throttlekit doctor --url $REDIS --celery shop.tasks --strict
      throttlekit doctor --url $REDIS --app shop.limits --strict
      throttlekit doctor --url $REDIS --rq redis://localhost:6379/0 --json
    """
    named = {name: named[name] for name in ("dramatiq", "celery", "taskiq", "huey", "rq")}  # not as they were given
    if apps and url is None:
        raise click.UsageError("--app compares limits with those that workers report to the store: add --url")
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
        findings = examine(url, named, apps)
    except (ExaminationError, ConfigurationError) as error:
        raise CommandFailed(str(error)) from None
    print_findings(findings, as_json=as_json)
    sys.exit(exit_code(findings, strict=strict))

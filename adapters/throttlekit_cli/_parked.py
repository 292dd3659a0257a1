"""The commands for jobs that are parked in a broker's Redis: what is there, and their release."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from throttlekit_cli._common import CommandFailed, broker_option, require, store_errors, url_option

if TYPE_CHECKING:
    from throttlekit_cli.parks import ParkedJobs

__all__ = ["COMMANDS", "parked", "release"]

_F = TypeVar("_F", bound=Callable[..., Any])
_NOTHING = 1  # exit code
_MAX_NAMES = 20


def _broker_options(command: _F) -> _F:
    return url_option()(broker_option()(command))


@click.command(short_help="Show how many jobs are parked in the broker, for which limits.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--show-jobs", "most", type=click.IntRange(0, 10_000), default=0, metavar="N",
    help="Show the first N jobs of each limit and queue too: their ids and functions.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@_broker_options
def parked(name: str | None, most: int, as_json: bool, broker: str | None, url: str | None) -> None:
    """
    Show how many jobs are parked, for the limit NAME or for all limits, in each queue.

    Where the broker of Dramatiq or Celery is Redis, a job that is due in more than some seconds waits there, and no
    worker holds it. One of the workers wakes it when it is nearly due. If no worker runs that can do so, the command
    says it: see `throttlekit release`.

    Jobs that are due sooner are held by workers, and are not counted here. A job is named by the id that its
    framework gives it; if its message is not JSON, by its id in the park.

    \b
    Exit codes:
      0  jobs are parked
      1  no job is parked
      2  not done: a wrong option, or the broker is not a single Redis, or does not answer

    \b
    Examples:
      throttlekit parked --broker redis://localhost:6379/0
      throttlekit parked partner-api --show-jobs 10 --broker redis://localhost:6379/0
    """
    from throttlekit_cli.formatting import printable

    with _found(name, broker, url) as found:
        rows = [(each, each.first(most), each.park.has_promoter()) for each in found]
    if as_json:
        shown = [
            {
                "limit": each.limit, "framework": each.park.framework, "queue": each.park.queue, "jobs": each.jobs,
                "lines": len(each.lines), "woken_by_worker": promoted,
                "first": [{"id": job.id, "function": job.function} for job in jobs],
            } for each, jobs, promoted in rows
        ]  # fmt: skip
        click.echo(json.dumps(shown, indent=2))
    for each, jobs, promoted in () if as_json else rows:
        lines = f" in {len(each.lines)} lines" if len(each.lines) > 1 else ""
        now = "" if promoted else "; no worker runs that wakes them"
        queue = f"{each.park.framework} queue {each.park.queue}"
        click.echo(printable(f"{each.limit}: {each.jobs} parked{lines}, {queue}{now}"))
        for job in jobs:
            click.echo(printable(f"  {job.id}  {job.function or ''}".rstrip()))
    sys.exit(0 if rows else _NOTHING)


@click.command(short_help="Wake parked jobs now: they go back to the queue of their broker.")
@click.argument("name", metavar="NAME")
@click.option("--job", "id", metavar="ID", help="Only this job, by its framework's id, or its id in the park.")
@click.option("--most", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs.")
@click.option("--all", "everything", is_flag=True, help="All jobs that are parked now.")
@click.option("--yes", is_flag=True, help="Release all of them although workers run that wake them.")
@_broker_options
def release(
    name: str, id: str | None, most: int | None, everything: bool, yes: bool, broker: str | None, url: str | None
) -> None:
    """
    Wake parked jobs of the limit NAME now: they go to the front of the queue that they came from.

    No job passes its limit earlier by that. A released job asks its limits like any other, and keeps its place in
    their lines: a worker that takes it holds it until it is due, or parks it again.

    It is for a roll-back to a release that does not park jobs: stop the workers, and `release --all` gives every job
    back to its broker. And for one job that is to be looked at, or a line that does not move.

    While workers run that wake parked jobs, --all needs --yes: they would hold many of the jobs in their memory.
    Jobs are released in batches of 500, in their order. To find one by its id, their messages are read.

    \b
    Exit codes:
      0  done
      1  no such job is parked
      2  not done, or not wholly: a wrong option, --all without --yes while workers wake jobs,
         or the broker is not a single Redis, or does not answer

    \b
    Examples:
      throttlekit release partner-api --all --broker redis://localhost:6379/0
      throttlekit release partner-api --most 100
      throttlekit release partner-api --job 4f1c6f0e-8a2b-4c55-9f0f-2f9d7f3b9a51
    """
    from throttlekit_cli.formatting import printable

    if (id is not None) + (most is not None) + everything != 1:
        raise click.UsageError("name what is to be released: --job ID, --most N or --all")
    with _found(name, broker, url) as found:
        if everything and not yes and any(each.park.has_promoter() for each in found):
            raise CommandFailed("workers run that wake these jobs when they are due: to release all now, add --yes")
        released = 0
        for each in found:
            if id is None:
                released += each.release(each.jobs if most is None else max(0, most - released))
            else:
                released = released or int(each.release_job(id))
    if released or found:
        click.echo(printable(f"{name}: {released} released"), err=not released)
    if found and not released and id is not None:
        click.echo("No job with this id is parked for this limit.", err=True)
    sys.exit(0 if released else _NOTHING)


@contextmanager
def _found(name: str | None, broker: str | None, url: str | None) -> Generator[list[ParkedJobs], None, None]:
    """What is parked for the limit *name*, or for all; if that is nothing, the error output says it."""
    where = broker or url
    if where is None:
        raise click.UsageError("name the broker's Redis: --broker URL, or THROTTLEKIT_BROKER in the environment")
    require(["redis"])
    from throttlekit_cli.formatting import printable
    from throttlekit_cli.parks import asking, find_parked, open_broker

    with store_errors(), closing(open_broker(where)) as store, asking(store) as client:
        every, _ = find_parked(client)
        found = [each for each in every if name in (None, each.limit)]
        if not found:
            of_name = "" if name is None else f" for {name!r}"
            others = sorted({each.limit for each in every})[:_MAX_NAMES]
            click.echo(printable(f"No job is parked{of_name} in {store.address}."), err=True)
            if others:
                click.echo(printable(f"Jobs are parked there for {', '.join(others)}."), err=True)
            elif broker is None:
                click.echo("That is the limiter's store. If the broker is another Redis, add --broker URL.", err=True)
        yield found


COMMANDS = (parked, release)

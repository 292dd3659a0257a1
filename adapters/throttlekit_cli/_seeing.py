"""The commands that look: top and explain."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from throttlekit_cli._extras import missing

__all__ = ["explain", "top"]

_URL = click.option(
    "--url", metavar="URL", envvar="THROTTLEKIT_URL", show_envvar=True, required=True,
    help="The limiter's store, as in Limiter(URL).",
)  # fmt: skip
_SHOW_KEYS = click.option("--show-keys", is_flag=True, help="Show keys in clear. They may be made of jobs' arguments.")


@click.command(short_help="The fleet at a glance: limits, use, waiting lines, denials.")
@_URL
@click.option(
    "--sort", "order", type=click.Choice(["wait", "use", "name", "denied"]), default="wait", show_default=True,
    help="What comes first: the longest line, the fullest limit, the name, the most denials.",
)  # fmt: skip
@click.option("--filter", "name", default="", metavar="TEXT", help="Only limits with this in their name.")
@click.option(
    "--limit", "most", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N",
    help="How many keys to show, the most pressing ones.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show it once, and exit. So it is where the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a look, on one line.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS",
    help="From one look to the next.",
)  # fmt: skip
@_SHOW_KEYS
def top(
    url: str, order: str, name: str, most: int, once: bool, as_json: bool, interval: float, show_keys: bool
) -> None:
    """
    Show what the whole fleet's limits are doing now: from the store alone, with no code of yours.

    Each worker process tells the store once a second what it has decided. For each limit, and for
    the keys that press most:

    \b
      now             what is used of the limit now, of the most that can be
      last minute     units that passed, and their share of what the rate allows
      waiting         about how many jobs stand in line
      last starts in  when the last of them starts
      oldest wait     the longest that a job had waited that asked in the last minute
      denied          in the last minute, by reason: "exhausted" (no unit left), "in line"
                      (others have waited longer), "early" (back before its slot, which it
                      keeps), "queue full", "paused". It costs the job nothing but its delay.

    Below a limit stand pauses, how long slots are held, and what an operator has told the fleet.
    "processes" are those that were heard of in the last 15 seconds; "store" is how long it takes
    for their reports, by the median. A process that ends within two seconds, like RQ's work-horse,
    tells what it decided, and is not counted.

    A waiting line that grows from look to look is demand that has outgrown the limit.

    Keys are shown by their digest, because they may be made of a job's arguments. The work is
    bounded: with a million keys in use as with ten, a look is three short questions.

    \b
    Exit codes:
      0    shown
      2    the store gives no answer, or is none that a fleet shares
      130  stopped by Ctrl-C

    \b
    Examples:
      throttlekit top --url redis://localhost:6379/1
      throttlekit top --url redis://localhost:6379/1 --once --sort denied --filter partner
      throttlekit top --url redis://localhost:6379/1 --once --json
    """
    if text := missing(["redis", "rich"]):
        raise _CannotLook(text)
    from throttlekit_cli.top import watch

    sight = watch.Sight(order=order, most=most, name=name, show_keys=show_keys)
    with _told():
        try:
            watch.top(url, sight, once=once, as_json=as_json, interval=interval)
        except KeyboardInterrupt:
            sys.exit(130)


@click.command(short_help="Why one job waits: which limit, since when, its slot.")
@click.argument("job_id")
@_URL
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_SHOW_KEYS
def explain(job_id: str, url: str, as_json: bool, show_keys: bool) -> None:
    """
    Say why a job waits: which limit holds it back, since when, how often it was deferred, when its
    slot comes, and what stands before it.

    From the store alone: each process tells once a second which jobs it has denied, up to 100 a
    second, by their ids and nothing else. The last 10 000 of the fleet are known, for an hour.

    JOB_ID is the framework's own: Dramatiq's message_id, RQ's job id, Celery's task id.

    \b
    Exit codes:
      0  the job is known: it waits, or has been allowed to run
      1  nothing is known of it: it was not denied lately, or too many others were
      2  the store gives no answer, or is none that a fleet shares

    \b
    Examples:
      throttlekit explain 4f1c6f0e-8a2b-4c55-9f0f-2f9d7f3b9a51 --url redis://localhost:6379/1
      throttlekit explain 4f1c6f0e-8a2b-4c55-9f0f-2f9d7f3b9a51 --url redis://localhost:6379/1 --json
    """
    if text := missing(["redis", "rich"]):
        raise _CannotLook(text)
    from throttlekit_cli.top.explain import explained

    with _told():
        known = explained(url, job_id, as_json=as_json, show_keys=show_keys)
    sys.exit(0 if known else 1)


@contextmanager
def _told() -> Generator[None, None, None]:
    """What cannot be looked at is one line, and the exit code 2."""
    from throttlekit import ConfigurationError, StoreUnavailable

    try:
        yield
    except (ConfigurationError, ImportError, StoreUnavailable) as error:
        raise _CannotLook(str(error)) from None


class _CannotLook(click.ClickException):
    exit_code = 2

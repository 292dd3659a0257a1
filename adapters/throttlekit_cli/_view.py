"""The commands that show the state of the fleet: top and explain."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from throttlekit_cli._common import require, show_keys_option, store_errors, title_option, url_option

__all__ = ["explain", "top"]


@click.command(short_help="Show the fleet's limits: use, waiting jobs, denials.")
@url_option(required=True)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["wait", "use", "name", "denied"]),
    default="wait",
    show_default=True,
    help="What is listed first: the longest waits, the fullest limits, names from A to Z, or the most denials.",
)
@click.option("--filter", "name", default="", metavar="TEXT", help="Only limits whose name contains TEXT.")
@click.option(
    "--limit",
    "most",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    metavar="N",
    help="How many keys to show: the most pressing ones.",
)
@click.option("--once", is_flag=True, help="Print the state once, and exit. The default if the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per update, on one line.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two updates.",
)
@show_keys_option
@title_option
def top(
    url: str, order: str, name: str, most: int, once: bool, as_json: bool, interval: float, show_keys: bool, title: str
) -> None:
    """
    Show the state of all limits of the fleet. The command needs only the store, and none of your code.

    Each worker process reports its decisions to the store once a second. The columns, for each
    limit and for its most pressing keys:

    \b
      now             units used now, and the maximum
      use             a bar: units of the last minute, as a share of what the rate allows (for slots, and for windows
                      longer than a minute: the use now); then "full", "slow" or "paused"
      units/min       units used in the last minute, after corrections by settle()
      share           the same, as a percentage of what the rate allows
      waiting         about how many jobs wait, and their units if a job takes more than one
      last starts     the time until the last of them starts
      oldest          the longest wait of a job that was decided in the last minute, or that is
                      first on a waitlist now
      definition      beside the name, or below it
      denied          denials in the last minute, by reason: "exhausted" (no unit left),
                      "in line" (other jobs have waited longer), "queue full", "paused".
                      A denied job is only delayed.

    A narrow terminal shows the most important columns. Notes below a limit show pauses, the reduced
    rate of a limit that is slowed down (by adapt=, or by the partner's response headers), how long
    slots are held, and changes by an operator.

    In a terminal, q or Esc quits, s changes the order, n shows or hides the notes, space and b
    (or Page Down and Page Up) turn the page, and / filters: type a part of the name, then Enter.
    "recent use" shows the use at the last updates.

    The first line names the store, and the median response time of the store. "processes" counts
    the processes that reported in the last 15 seconds. The decisions of a process that ends within two seconds, like
    RQ's work-horse, are included, but the process is not counted.

    If `waiting` grows from update to update, more jobs arrive than the limit admits.

    Keys and tenants are shown as digests, because they may contain arguments of jobs: see --show-keys.
    Limits with show_key=True show their keys. An update takes a few short
    calls to the store, with ten keys or with a million.

    \b
    Exit codes:
      0    shown
      2    the store does not answer, or is not one that a fleet shares
      130  stopped by Ctrl-C

    \b
    Examples:
      throttlekit top --url redis://localhost:6379/1 --title production
      throttlekit top --url redis://localhost:6379/1 --once --sort denied --filter partner
      throttlekit top --url redis://localhost:6379/1 --once --json
    """
    require(["redis", "rich"])
    from throttlekit_cli.store import name_store, open_store
    from throttlekit_cli.top import watch

    with store_errors(), closing(open_store(url)) as store:
        view = watch.View(order=order, most=most, name=name, show_keys=show_keys, store=name_store(store, title))
        try:
            watch.top(store, view, once=once, as_json=as_json, interval=interval)
        except KeyboardInterrupt:
            sys.exit(130)


@click.command(short_help="Show why a job waits: which limit, since when, until when.")
@click.argument("job_id")
@url_option(required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@show_keys_option
def explain(job_id: str, url: str, as_json: bool, show_keys: bool) -> None:
    """
    Show why a job waits: which limit denied it, since when, how often it was deferred, when its
    turn is, and how many jobs are before it.

    The command needs only the store. It finds each waiting job by its id on the waitlist of its
    limit. If the job is on no list that workers have reported, the command searches the keys of the
    store, at most 2 million, which may take some seconds. The store keeps the outcome of the last
    10 000 jobs that had waited for an hour; each process reports up to 100 per second.

    JOB_ID is the framework's own id: Dramatiq's message_id, RQ's job id, Celery's and huey's task id.

    With --json, "known" is false if the job is not known, and "state" is one of these:

    \b
      waiting  it waits for the named limit
      woken    it may start: it is being sent to a worker, or waits for a free one
      kept     it keeps its position while an operator's pause or another limit denies it
      allowed  it waited, and was allowed to run
      left     it was denied, and is on no waitlist now
      unknown  it is on no waitlist, and no worker has reported it

    \b
    Exit codes:
      0  the job is known: it waits, or it had waited
      1  the job is not known: it does not wait for a limit of this store
      2  the store does not answer, or is not one that a fleet shares

    \b
    Examples:
      throttlekit explain 4f1c6f0e-8a2b-4c55-9f0f-2f9d7f3b9a51 --url redis://localhost:6379/1
      throttlekit explain 4f1c6f0e-8a2b-4c55-9f0f-2f9d7f3b9a51 --url redis://localhost:6379/1 --json
    """
    require(["redis", "rich"])
    from throttlekit_cli.top.explain import print_explanation

    with store_errors():
        known = print_explanation(url, job_id, as_json=as_json, show_keys=show_keys)
    sys.exit(0 if known else 1)

"""The commands of live control: pause a limit, change its rate, or put it into shadow mode, in the whole fleet."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from throttlekit_cli._common import CommandFailed, require, store_errors, url_option

if TYPE_CHECKING:
    from throttlekit import Control
    from throttlekit.fleet.changes import Change

__all__ = [
    "COMMANDS",
    "NOTHING_CHANGED",
    "clear_line",
    "enforce",
    "open_control",
    "pause",
    "reset",
    "resume",
    "set_",
    "shadow",
    "unset",
    "weight",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NOTHING_CHANGED = 1  # exit code
_MAX_NAMES = 20


def _parse_duration(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """90s, 10m, 1h30m or 2d, in seconds."""
    if text is None:
        return None
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?[smhd])+", text):
        raise click.BadParameter(f"{text!r} is not a duration: write it as 90s, 10m, 1h30m or 2d.", param=parameter)
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhd])", text))


_name = click.argument("name", metavar="NAME")
_key = click.option("--key", metavar="KEY", help="Only this key, as the limit's template or callable gives it.")
_for = click.option(
    "--for", "for_", callback=_parse_duration, metavar="TIME", help="End by itself after 90s, 10m, 1h30m, 2d."
)
_tier = click.option("--tier", metavar="TIER", help="Only this tier of a limit with tiers.")
_yes = click.option(
    "--yes", is_flag=True, help="Store it although the fleet has not used this name, or this tier, in the last hour."
)


def _common(command: _F) -> _F:
    command = click.option(
        "--by", metavar="WHO", envvar="THROTTLEKIT_BY", show_envvar=True,
        help="Who makes the change, for the history.  [default: user@host]",
    )(command)  # fmt: skip
    return url_option()(command)


@contextmanager
def open_control(
    url: str | None, by: str | None = None, name: str | None = None, *, yes: bool = True, tier: str | None = None
) -> Generator[Control, None, None]:
    """
    Open live control of the store at *url*.

    Args:
        name: The limit to change. If the fleet has not used it, or its *tier*, lately, a warning is printed.
        yes: Whether to go on then.
    """
    if url is None:
        raise click.UsageError("name the limiter's store: --url URL, or THROTTLEKIT_URL in the environment")
    require(["redis"])
    from throttlekit import Control

    with store_errors(), Control(url, by=by) as control:
        if name is not None and not _is_known(control, name, tier) and not yes:
            raise CommandFailed("nothing was changed. If the limit is deployed later, repeat the command with --yes")
        yield control


def _print_changes(changes: Sequence[Change], nothing: str, *, follow: bool = True) -> None:
    from throttlekit_cli.formatting import format_change

    if not changes:
        click.echo(nothing, err=True)
        sys.exit(NOTHING_CHANGED)
    for change in changes:
        click.echo(format_change(change))
    if follow:
        click.echo("Running workers follow within 2 seconds.")


def _is_known(control: Control, name: str, tier: str | None) -> bool:
    """Whether the fleet has used the limit *name*, and its *tier*, lately. If not, a warning is printed."""
    import difflib

    from throttlekit_cli.formatting import printable

    names = control.names()
    if name in names:
        tiers = control.tiers(name) if tier is not None else ()
        if tier is None or tier in tiers or not tiers:  # without tiers, `Control.set` refuses
            return True
        click.echo(printable(f"warning: the fleet has not used tier {tier!r} of {name!r} in the last hour."), err=True)
        click.echo(printable(f"It has used {', '.join(tiers)}."), err=True)
        return False
    click.echo(printable(f"warning: the fleet has not used a limit named {name!r} in the last hour."), err=True)
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        click.echo(printable(f"Did you mean {' or '.join(near)}?"), err=True)
    elif names:
        more = f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        click.echo(printable(f"It has used {', '.join(names[:_MAX_NAMES])}{more}."), err=True)
    else:
        click.echo("It has used no limit at all: is this the store that the workers use?", err=True)
    return False


@click.command(short_help="Stop all jobs of a limit, in the whole fleet.")
@_name
@_key
@_for
@_yes
@_common
def pause(name: str, key: str | None, for_: float | None, yes: bool, url: str | None, by: str | None) -> None:
    """
    Stop all jobs of the limit NAME, in the whole fleet: for every key, or for one key.

    The jobs are deferred: they are not charged, lose no retry, and keep their places in the waiting line. What is
    counted stays, so up to a full burst can pass after the pause.

    With --for the jobs come back after the pause has ended, in their order. Without --for the pause lasts until
    `throttlekit resume`; then waiting jobs come back within half the time that the pause has lasted, and within a
    minute at most.

    \b
    Exit codes:
      0  done
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a change that the limit cannot take, or the store does not answer

    \b
    Examples:
      throttlekit pause partner-api --for 10m
      throttlekit pause partner-api --key 42 --by "ann, ticket 815"
      throttlekit pause partner-api
    """
    with open_control(url, by, name, yes=yes) as control:
        _print_changes(control.pause(name, key=key, for_=for_), "")


@click.command(short_help="End a pause.")
@_name
@_key
@_common
def resume(name: str, key: str | None, url: str | None, by: str | None) -> None:
    """
    End the pause of the limit NAME: for one key, or for all keys.

    It does not end a pause that a 429 response has caused, because the partner asked for it. To end that as well, use
    `throttlekit reset`.

    \b
    Exit codes:
      0  done
      1  there was no pause made by `throttlekit pause`
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit resume partner-api
      throttlekit resume partner-api --key 42
    """
    with open_control(url, by, name) as control:
        _print_changes(control.resume(name, key=key), f"{name} is not paused.")


@click.command("set", short_help="Change the rate of a limit, in the whole fleet.")
@_name
@click.argument("rate", metavar="RATE")
@click.option("--burst", type=int, metavar="N", help="The new burst.  [default: as declared]")
@_tier
@_for
@_yes
@_common
def set_(
    name: str, rate: str, burst: int | None, tier: str | None, for_: float | None, yes: bool, url: str, by: str | None
) -> None:
    """
    Change the RATE of the limit NAME, in the whole fleet: 50/s, 300/minute, 5/10s. For a concurrency limit, RATE is
    the number of slots: 4.

    All other options of the limit stay as declared. What the limit cannot take is refused: a rate for a concurrency
    limit, a burst where it has none, tiers without --tier, a rate at which a job's cost would never pass.

    Workers follow within 2 seconds. Units that are left stay, at most the new burst; waiting jobs keep their order,
    and a pause after a 429 response lasts. A SlidingLog, and a window of another period, begin anew with all of their
    amount. Jobs that hold a slot count in a changed concurrency limit.

    \b
    Exit codes:
      0  done
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a change that the limit cannot take, or the store does not answer

    \b
    Examples:
      throttlekit set partner-api 50/s --burst 5 --for 1h
      throttlekit set reports-db 4
      throttlekit set partner-api 10/minute --tier free
    """
    with open_control(url, by, name, yes=yes, tier=tier) as control:
        _print_changes(control.set(name, rate, burst=burst, tier=tier, for_=for_), "")


@click.command(short_help="Give a limit its declared rate back.")
@_name
@_tier
@_common
def unset(name: str, tier: str | None, url: str | None, by: str | None) -> None:
    """
    Give the limit NAME its declared rate back.

    \b
    Exit codes:
      0  done
      1  the rate was not changed by `throttlekit set`
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit unset partner-api
    """
    with open_control(url, by, name) as control:
        _print_changes(control.unset(name, tier=tier), f"{name} already has its declared rate.")


@click.command(short_help="Shadow mode: a limit decides and counts, and denies no job.")
@_name
@_for
@_yes
@_common
def shadow(name: str, for_: float | None, yes: bool, url: str | None, by: str | None) -> None:
    """
    Let the limit NAME decide and count, and deny no job: to try a limit on live traffic first.

    How many jobs it would have held back stands in each worker's log every 30 seconds. With `throttlekit set` before
    it, that is how a lower rate is tried.

    \b
    Exit codes:
      0  done
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a change that the limit cannot take, or the store does not answer

    \b
    Examples:
      throttlekit shadow partner-api --for 1h
    """
    with open_control(url, by, name, yes=yes) as control:
        _print_changes(control.shadow(name, for_=for_), "")


@click.command(short_help="Let a limit in shadow mode deny again.")
@_name
@_common
def enforce(name: str, url: str | None, by: str | None) -> None:
    """
    Let the limit NAME deny again.

    \b
    Exit codes:
      0  done
      1  it was not in shadow mode
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit enforce partner-api
    """
    with open_control(url, by, name) as control:
        _print_changes(control.enforce(name), f"{name} is not in shadow mode: it denies.")


@click.command(short_help="Give a tenant of a shared limit another weight.")
@_name
@click.argument("tenant", metavar="TENANT")
@click.argument("weight", metavar="[WEIGHT]", type=float, required=False)
@click.option("--unset", is_flag=True, help="Give the tenant the weight back that the limit's share has for it.")
@_for
@_yes
@_common
def weight(
    name: str, tenant: str, weight: float | None, unset: bool, for_: float | None, yes: bool, url: str, by: str | None
) -> None:
    """
    Give TENANT another WEIGHT in the limit NAME, whose tenants share it: with 3, it gets three times as much as a
    tenant of weight 1 while both wait.

    It counts for jobs that begin to wait from now on. Jobs that wait already keep their places.

    \b
    Exit codes:
      0  done
      1  with --unset: no weight was set by `throttlekit weight`
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a limit that tenants do not share, or the store does not answer

    \b
    Examples:
      throttlekit weight partner-api acme 3
      throttlekit weight partner-api acme 0.1 --for 1h
      throttlekit weight partner-api acme --unset
    """
    if unset == (weight is not None):
        raise click.UsageError("name the new weight, as in `throttlekit weight NAME TENANT 3`, or --unset")
    with open_control(url, by, name, yes=yes or unset) as control:
        changes = control.weight(name, tenant, weight, for_=for_)
        _print_changes(changes, f"{name} already has its own weight for tenant {tenant}.")


@click.command(short_help="Delete the counts of a limit: it begins as if unused.")
@_name
@_key
@_common
def reset(name: str, key: str | None, url: str | None, by: str | None) -> None:
    """
    Delete the counts of the limit NAME, for one key or for all keys: full buckets, empty waiting lines, no held slots,
    no pause after a 429 response. Changes by `pause`, `set` and `shadow` stay.

    Afterwards one full burst can pass at once. For a concurrency limit, as many jobs as it has slots can start beside
    the jobs that run already. The command scans all keys of the store: with millions, that takes some seconds.

    \b
    Exit codes:
      0  done
      1  there were no counts
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit reset partner-api
      throttlekit reset partner-api --key 42
    """
    with open_control(url, by, name) as control:
        _print_changes(control.reset(name, key=key), f"There are no counts for {name}.", follow=False)


@click.command("clear-line", short_help="Empty a waiting line, and keep what was counted.")
@_name
@_key
@_common
def clear_line(name: str, key: str | None, url: str | None, by: str | None) -> None:
    """
    Empty the waiting line of the limit NAME, for one key or for all keys. What was counted stays: no burst follows.
    Pauses and changes by `set` and `shadow` stay too.

    Use it after a purge: the jobs in the line are gone, and new jobs wait behind them for nothing. Jobs that do come
    back have lost their places, and lose nothing else. The command scans all keys of the store: with millions, that
    takes some seconds.

    \b
    Exit codes:
      0  done
      1  no job waited
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit clear-line partner-api
      throttlekit clear-line partner-api --key 42
    """
    with open_control(url, by, name) as control:
        _print_changes(control.clear_line(name, key=key), f"No job waits for {name}.", follow=False)


COMMANDS = (pause, resume, set_, unset, shadow, enforce, weight, reset, clear_line)

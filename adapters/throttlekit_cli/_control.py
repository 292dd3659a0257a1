"""The commands of live control: what an operator tells the fleet about a limit."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from throttlekit_cli._extras import missing

if TYPE_CHECKING:
    from throttlekit import Control
    from throttlekit.fleet.control import Change

__all__ = ["COMMANDS", "enforce", "history", "pause", "reset", "resume", "rules", "set_", "shadow", "unset"]

_F = TypeVar("_F", bound=Callable[..., Any])
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NOTHING, _CANNOT = 1, 2
_MOST_NAMES = 20


def _seconds(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """90s, 10m, 1h30m, 2d, in seconds."""
    if text is None:
        return None
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?[smhd])+", text):
        raise click.BadParameter(f"{text!r} is no length of time: write it as 90s, 10m, 1h30m or 2d.", param=parameter)
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhd])", text))


class _Cannot(click.ClickException):
    exit_code = _CANNOT


_name = click.argument("name", metavar="NAME")
_key = click.option("--key", metavar="KEY", help="Only this key, as the limit's template or callable gives it.")
_for = click.option("--for", "for_", callback=_seconds, metavar="TIME", help="End by itself: 90s, 10m, 1h30m, 2d.")
_tier = click.option("--tier", metavar="TIER", help="Of a limit with tiers: which one's.")
_json = click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")


def _common(command: _F) -> _F:
    command = click.option(
        "--by", metavar="WHO", envvar="THROTTLEKIT_BY", show_envvar=True,
        help="Who says so, for the history.  [default: user@host]",
    )(command)  # fmt: skip
    return _url(command)


def _url(command: _F) -> _F:
    return click.option(
        "--url", metavar="URL", envvar="THROTTLEKIT_URL", show_envvar=True,
        help="The limiter's store, as in Limiter(URL).",
    )(command)  # fmt: skip


@contextmanager
def _control(url: str | None, by: str | None = None, name: str | None = None) -> Generator[Control, None, None]:
    """*name*: the limit that a change is for; a warning is shown if the fleet does not know it."""
    if url is None:
        raise click.UsageError("name the limiter's store: --url URL, or THROTTLEKIT_URL in the environment")
    if text := missing(["redis"]):
        raise _Cannot(text)
    from throttlekit import ConfigurationError, Control, StoreUnavailable

    try:
        with Control(url, by=by) as control:
            if name is not None:
                _warn(control, name)
            yield control
    except (ConfigurationError, StoreUnavailable, ImportError) as error:
        raise _Cannot(str(error)) from None


def _tell(changes: Sequence[Change], nothing: str, *, follow: bool = True) -> None:
    from throttlekit_cli.wording import told

    if not changes:
        click.echo(nothing, err=True)
        sys.exit(_NOTHING)
    for change in changes:
        click.echo(told(change))
    if follow:
        click.echo("Running workers follow within 2 seconds.")


def _warn(control: Control, name: str) -> None:
    """Say it of a name that the fleet does not know. What was asked for is done all the same: it may be to come."""
    import difflib

    from throttlekit_cli.top.words import plainly

    names = control.names()
    if name in names:
        return
    click.echo(plainly(f"warning: the fleet has used no limit called {name!r} lately."), err=True)
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        click.echo(plainly(f"Did you mean {' or '.join(near)}?"), err=True)
    elif names:
        more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        click.echo(plainly(f"It knows {', '.join(names[:_MOST_NAMES])}{more}."), err=True)
    else:
        click.echo("It knows none: has any worker used this store within the hour?", err=True)


@click.command(short_help="Let nobody pass a limit, in the whole fleet.")
@_name
@_key
@_for
@_common
def pause(name: str, key: str | None, for_: float | None, url: str | None, by: str | None) -> None:
    """
    Let nobody pass the limit NAME, in the whole fleet: of every key, or of one.

    Its jobs are deferred: they are not charged, lose no retry, and keep their places. With --for they come back behind
    its end, in their order. Without, it lasts until `throttlekit resume`; jobs that wait then come back within half
    the time that it has lasted, and within a minute at most.

    \b
    Exit codes:
      0  done
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit pause partner-api --for 10m
      throttlekit pause partner-api --key 42 --by "ann, ticket 815"
      throttlekit pause partner-api
    """
    with _control(url, by, name) as control:
        _tell(control.pause(name, key=key, for_=for_), "")


@click.command(short_help="End a pause.")
@_name
@_key
@_common
def resume(name: str, key: str | None, url: str | None, by: str | None) -> None:
    """
    End the pause of the limit NAME: of one key, or of all.

    A pause that a job's 429 has caused is not ended by it: its partner asked for that. If you know better,
    `throttlekit reset` forgets it.

    \b
    Exit codes:
      0  done
      1  nothing was paused by `throttlekit pause`
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit resume partner-api
      throttlekit resume partner-api --key 42
    """
    with _control(url, by, name) as control:
        _tell(control.resume(name, key=key), f"{name} is not paused.")


@click.command("set", short_help="Give a limit another rate, in the whole fleet.")
@_name
@click.argument("rate", metavar="RATE")
@click.option("--burst", type=int, metavar="N", help="How many may pass at once.  [default: as declared]")
@_tier
@_for
@_common
def set_(
    name: str, rate: str, burst: int | None, tier: str | None, for_: float | None, url: str, by: str | None
) -> None:
    """
    Give the limit NAME another RATE, in the whole fleet: 50/s, 300/minute, 5/10s; or, if it is a concurrency limit,
    another amount: 4.

    All else of the limit stays as it is declared. A limit that cannot take it (its kind has no burst, it has tiers and
    no --tier was named) stays as it is, and says so in the workers' log.

    While the workers follow, up to 2 seconds, the old rate and the new one both admit, and the new one begins with a
    full burst. A pause after a 429 does not hold for the new one: `throttlekit pause` does. The amount of a
    concurrency limit counts those who hold a slot already.

    \b
    Exit codes:
      0  done
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit set partner-api 50/s --burst 5 --for 1h
      throttlekit set reports-db 4
      throttlekit set partner-api 10/minute --tier free
    """
    with _control(url, by, name) as control:
        _tell(control.set(name, rate, burst=burst, tier=tier, for_=for_), "")


@click.command(short_help="Give a limit back the rate that it was declared with.")
@_name
@_tier
@_common
def unset(name: str, tier: str | None, url: str | None, by: str | None) -> None:
    """
    Give the limit NAME back the rate that it was declared with.

    \b
    Exit codes:
      0  done
      1  no other rate was set
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit unset partner-api
    """
    with _control(url, by, name) as control:
        _tell(control.unset(name, tier=tier), f"{name} has the rate that it was declared with.")


@click.command(short_help="Shadow mode: a limit decides and counts, and denies no job.")
@_name
@_for
@_common
def shadow(name: str, for_: float | None, url: str | None, by: str | None) -> None:
    """
    Let the limit NAME decide and count, and deny no job: to try a limit on live traffic first.

    How many jobs it would have held back stands in each worker's log every 30 seconds. With `throttlekit set` before
    it, that is how a lower rate is tried.

    \b
    Exit codes:
      0  done
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit shadow partner-api --for 1h
    """
    with _control(url, by, name) as control:
        _tell(control.shadow(name, for_=for_), "")


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
    with _control(url, by, name) as control:
        _tell(control.enforce(name), f"{name} is not in shadow mode: it denies.")


@click.command(short_help="Forget what was counted under a limit.")
@_name
@_key
@_common
def reset(name: str, key: str | None, url: str | None, by: str | None) -> None:
    """
    Forget what was counted under the limit NAME: of one key, or of all. Full buckets, empty lines, no holders, no
    pause after a 429. What `pause`, `set` and `shadow` said stays.

    As many as the burst pass at once afterwards; of a concurrency limit, as many as its amount besides those that are
    at work. It looks at every name in the store: some seconds, where there are millions.

    \b
    Exit codes:
      0  done
      1  nothing was counted
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit reset partner-api
      throttlekit reset partner-api --key 42
    """
    with _control(url, by, name) as control:
        _tell(control.reset(name, key=key), f"Nothing is counted under {name}.", follow=False)


@click.command(short_help="What was changed: who, when, from, to.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--limit", "most", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="How many."
)
@_json
@_url
def history(name: str | None, most: int, as_json: bool, url: str | None) -> None:
    """
    What was changed by these commands, the newest first: when, by whom, from, to. Of the limit NAME, or of all. The
    last 1 000 changes are kept.

    \b
    Exit codes:
      0  done
      1  there was no change
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit history
      throttlekit history partner-api --json
    """
    from throttlekit_cli.wording import data, told

    with _control(url) as control:
        changes = control.history(name)[:most]
        if as_json:
            click.echo(data(changes))
        elif not changes:
            click.echo("Nothing was changed.", err=True)
        for change in () if as_json else changes:
            click.echo(told(change, when=True))
        sys.exit(0 if changes else _NOTHING)


@click.command(short_help="What is in force now: pauses, other rates, limits in shadow mode.")
@_json
@_url
def rules(as_json: bool, url: str | None) -> None:
    """
    What is in force now: which limits are paused, have another rate, or are in shadow mode; since when, until when, and
    by whom.

    \b
    Exit codes:
      0  done
      1  every limit is as it was declared
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit rules
      throttlekit rules --json
    """
    from throttlekit_cli.wording import data, rule_told

    with _control(url) as control:
        found = control.rules()
        if as_json:
            click.echo(data(found))
        elif not found:
            click.echo("Every limit is as it was declared.", err=True)
        for rule in () if as_json else found:
            click.echo(rule_told(rule))
        sys.exit(0 if found else _NOTHING)


COMMANDS = (pause, resume, set_, unset, shadow, enforce, reset, rules, history)

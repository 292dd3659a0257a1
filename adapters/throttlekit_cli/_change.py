"""Code shared by the commands of live control: options, opening the store, and the command that makes a change."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from throttlekit_cli._common import CommandFailed, require, store_errors, url_option

if TYPE_CHECKING:
    from throttlekit import Control
    from throttlekit.fleet.changes import Change

__all__ = [
    "NOTHING_CHANGED",
    "MakesChange",
    "change_command",
    "for_option",
    "key_option",
    "open_control",
    "tier_option",
    "yes_option",
]

_Parameter: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
MakesChange: TypeAlias = "Callable[[Control], Sequence[Change]]"
_Plan: TypeAlias = Callable[..., MakesChange]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NOTHING_CHANGED = 1  # exit code
_MAX_NAMES = 20


def _parse_duration(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Convert a text such as 90s, 10m, 1h30m or 2d to seconds."""
    if text is None:
        return None
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?[smhd])+", text):
        raise click.BadParameter(f"{text!r} is not a duration: write it as 90s, 10m, 1h30m or 2d.", param=parameter)
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhd])", text))


_name_argument = click.argument("name", metavar="NAME")
_by_option = click.option(
    "--by",
    metavar="WHO",
    envvar="THROTTLEKIT_BY",
    show_envvar=True,
    help="Your name, for the history.  [default: user@host]",
)
key_option = click.option("--key", metavar="KEY", help="Only this key, as the limit's template or callable returns it.")
for_option = click.option(
    "--for", "duration", callback=_parse_duration, metavar="TIME", help="End automatically after 90s, 10m, 1h30m, 2d."
)
tier_option = click.option("--tier", metavar="TIER", help="Only this tier of a limit with tiers.")
yes_option = click.option(
    "--yes", is_flag=True, help="Store it even if the fleet has not used this name, or this tier, in the last hour."
)


def change_command(
    short_help: str, *parameters: _Parameter, nothing: str = "", follow: bool = True, pattern: bool = False
) -> Callable[[_Plan], click.Command]:
    """
    Make a command that changes a limit. The decorated function takes the limit's name and the values of *parameters*,
    and returns a function that makes the change. Its name and its docstring are those of the command.

    If the fleet has not used the limit, or its tier, in the last hour, a warning is printed. A command with
    `yes_option` then changes nothing without it. If there are no changes, the exit code is `NOTHING_CHANGED`.

    Args:
        nothing: The text to print if there are no changes, with names of parameters in braces.
        follow: Whether to print that workers apply the change within 2 seconds.
        pattern: Whether the command takes a pattern of names, with "*", in place of a name.
    """

    def decorate(plan: _Plan) -> click.Command:
        @functools.wraps(plan)
        def run(name: str, url: str | None, by: str | None, yes: bool = True, **options: Any) -> None:
            from throttlekit_cli.formatting import format_change

            change, ends_rules = plan(name, **options), options.get("unset", False)
            with open_control(url, by) as (control, store):
                where = f"Store: {store}"
                ends_pattern = pattern and ends_rules and "*" in name
                is_known = ends_pattern or _is_known(control, name, options.get("tier"), pattern=pattern)
                if not (is_known or yes or ends_rules):
                    raise CommandFailed(
                        f"nothing was changed. If the limit is deployed later, repeat the command with --yes. {where}"
                    )
                changes = change(control)
            if not changes:
                click.echo(f"{nothing.format(name=name, **options)} {where}.", err=True)
                sys.exit(NOTHING_CHANGED)
            click.echo("\n".join(map(format_change, changes)))
            click.echo(f"{where}. Running workers apply it within 2 seconds." if follow else f"{where}.")

        command: Callable[..., None] = run
        own: list[_Parameter] = [_name_argument, *parameters, url_option(), _by_option]
        for parameter in reversed(own):
            command = parameter(command)
        return click.command(plan.__name__.rstrip("_").replace("_", "-"), short_help=short_help)(command)

    return decorate


@contextmanager
def open_control(url: str | None, by: str | None = None) -> Generator[tuple[Control, str], None, None]:
    """Open live control of the store at *url*. Yield it, and the name of the store."""
    if url is None:
        raise click.UsageError("name the limiter's store: --url URL, or THROTTLEKIT_URL in the environment")
    require(["redis"])
    from throttlekit import Control
    from throttlekit_cli.store import name_store, open_store

    with store_errors():
        store = open_store(url)
        with Control(store, by=by) as control:
            yield control, name_store(store)


def _is_known(control: Control, name: str, tier: str | None, *, pattern: bool) -> bool:
    """Return whether the fleet has used the limit *name*, and its *tier*, in the last hour. If not, print a warning."""
    from throttlekit._core.spelling import similar_names
    from throttlekit.fleet.rules import Rule
    from throttlekit_cli.formatting import printable

    names = control.names()
    if pattern and any(Rule(what="scale", name=name).is_for(each) for each in names):
        return True
    if name in names:
        tiers = control.tiers(name) if tier is not None else ()
        if tier is None or tier in tiers or not tiers:  # if the limit has no tiers, `Control.set` raises an error
            return True
        click.echo(printable(f"warning: the fleet has not used tier {tier!r} of {name!r} in the last hour."), err=True)
        click.echo(printable(f"It has used {', '.join(tiers)}."), err=True)
        return False
    click.echo(printable(f"warning: the fleet has not used a limit named {name!r} in the last hour."), err=True)
    if near := similar_names(name, names, most=3):
        click.echo(printable(f"Did you mean {' or '.join(near)}?"), err=True)
    elif names:
        more = f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        click.echo(printable(f"It has used {', '.join(names[:_MAX_NAMES])}{more}."), err=True)
    else:
        click.echo("It has used no limit at all. Is this the store that the workers use?", err=True)
    return False

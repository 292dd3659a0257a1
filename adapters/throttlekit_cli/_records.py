"""The commands that read the rules in force and the history of changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn, TypeVar

import click

from throttlekit_cli._change import NOTHING_CHANGED, open_control
from throttlekit_cli._common import url_option

__all__ = ["COMMANDS", "history", "rules"]

_T = TypeVar("_T")
_json = click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")


@click.command(short_help="List the changes: when, by whom, the old and the new value.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--limit",
    "most",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="How many changes to show.",
)
@_json
@url_option()
def history(name: str | None, most: int, as_json: bool, url: str | None) -> None:
    """
    List the changes of the limit NAME, or of all limits, the newest first: when, by whom, and the old and the new
    value. The store keeps the last 1 000 changes.

    \b
    Exit codes:
      0  done
      1  there were no changes
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit history
      throttlekit history partner-api --json
    """
    from throttlekit_cli.formatting import format_change
    from throttlekit_cli.state import change_state

    with open_control(url) as (control, _):
        changes = control.history(name)[:most]
    _print(changes, change_state, partial(format_change, when=True), "There were no changes.", as_json=as_json)


@click.command(short_help="List the rules in force: pauses, changed rates, limits in shadow mode.")
@_json
@url_option()
def rules(as_json: bool, url: str | None) -> None:
    """
    List the rules in force: which limits are paused, have a changed rate, or are in shadow mode; since when, until
    when, and by whom.

    \b
    Exit codes:
      0  done
      1  every limit is as declared
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit rules
      throttlekit rules --json
    """
    from throttlekit_cli.formatting import format_rule
    from throttlekit_cli.state import rule_state

    with open_control(url) as (control, _):
        found = control.rules()
    _print(found, rule_state, format_rule, "Every limit is as declared.", as_json=as_json)


def _print(
    found: Sequence[_T],
    state_of: Callable[..., Any],
    format_one: Callable[[_T], str],
    nothing: str,
    *,
    as_json: bool,
) -> NoReturn:
    """Print what was *found*, as JSON or one per line, or *nothing*. Then exit."""
    if as_json:
        click.echo(json.dumps([asdict(state_of(each, clear=True)) for each in found], indent=2))
    elif not found:
        click.echo(nothing, err=True)
    else:
        click.echo("\n".join(map(format_one, found)))
    sys.exit(0 if found else NOTHING_CHANGED)


COMMANDS = (rules, history)

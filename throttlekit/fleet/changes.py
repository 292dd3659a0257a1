"""The history of live control: each change, with its time, its operator, and the rules before and after it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from throttlekit._core.number import LARGEST_EXACT
from throttlekit.fleet.rule_follower import KEPT_MS
from throttlekit.fleet.rules import HISTORY, Rule, as_text, data_of, plain, rule_of

__all__ = ["Change", "Verb", "change_of", "history_commands", "this_operator"]

_MOST_CHANGES = 1000
_VERSION = 1

Verb: TypeAlias = Literal[
    "set", "unset", "pause", "resume", "shadow", "enforce", "reset", "clear-waitlist", "weight", "scale"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    One change by an operator.

    Attributes:
        at: The time by the store's clock, in seconds since 1970.
        by: The operator.
        verb: The command.
        name: The limit's name.
        part: The key, the tier or the tenant; None for all of them.
        before, after: The rule before and after the change; None if there was no rule, so the limit was as declared.
        forgotten: The number of stored values that "reset" deleted, or of waitlists that "clear-waitlist" emptied.
    """

    at: float
    by: str
    verb: Verb
    name: str
    part: str | None = None
    before: Rule | None = None
    after: Rule | None = None
    forgotten: int = 0


def history_commands(change: Change) -> list[tuple[str | int, ...]]:
    """Return the commands that record *change*. Send them before the change, so that each change is recorded."""
    entry = {
        "v": _VERSION,
        "at": round(change.at * 1_000_000),
        "by": change.by,
        "verb": change.verb,
        "name": change.name,
        "part": change.part,
        "before": _kept(change.before),
        "after": _kept(change.after),
        "forgotten": change.forgotten,
    }
    return [
        ("LPUSH", HISTORY, as_text(entry)),
        ("LTRIM", HISTORY, 0, _MOST_CHANGES - 1),
        ("PEXPIRE", HISTORY, KEPT_MS),
    ]


def _kept(rule: Rule | None) -> list[Any] | None:
    return None if rule is None else [[rule.what, rule.name, rule.part], plain(rule)]


def change_of(kept: bytes) -> Change | None:
    """Return the change that is stored as *kept*, or None if another release wrote it."""
    entry = data_of(kept)
    try:
        at, part = entry["at"], entry["part"]
        if (
            entry["v"] != _VERSION
            or type(at) is not int
            or not 0 <= at <= LARGEST_EXACT
            or type(part) not in (str, type(None))
        ):
            return None
        before, after = (None if each is None else rule_of(*each) for each in (entry["before"], entry["after"]))
        return Change(
            at=at / 1_000_000,
            by=str(entry["by"]),
            verb=entry["verb"],
            name=str(entry["name"]),
            part=part,
            before=before,
            after=after,
            forgotten=int(entry["forgotten"]),
        )
    except (TypeError, KeyError, ValueError):
        return None


def this_operator() -> str:
    """Return the operator of this process, as "user@host"."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run under a number that has no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"

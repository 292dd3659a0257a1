"""Read a stored waitlist, to show it to users. lua/throttlekit_lua/waitlist.lua writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from throttlekit._core.slowdown import Pause, Slowdown, pace_of
from throttlekit._core.storage_keys import wait_names
from throttlekit._core.waitlist import DEAF, State
from throttlekit.stores.wire import PLACE, STATES

__all__ = [
    "Entry",
    "ListNow",
    "SlowNow",
    "entries_question",
    "entry_from",
    "list_from",
    "list_questions",
    "listens",
    "owner_question",
]

_SAMPLE = 20
"""The number of jobs of a list that are read to estimate its costs and waits."""
_FIELDS = 11


class SlowNow(NamedTuple):
    """
    A temporary slow-down of a limit.

    Attributes:
        rate: The largest number of units per second that is granted now.
        by: The cause: "adapt" if the partner rejected calls, "headers" if its headers reported the remaining units.
        ends: The seconds until its end, if no other response changes it.
    """

    rate: float
    by: str
    ends: float


class Entry(NamedTuple):
    """
    One job on a list.

    Attributes:
        owner: The worker process that has the job's message.
        since: The time of its first denial, in seconds of the store's clock; 0.0 if not known.
        denials: The number of its denials.
    """

    state: State
    owner: str
    cost: int
    since: float
    denials: int


class ListNow(NamedTuple):
    """
    A waitlist.

    Attributes:
        jobs: The number of waiting jobs, including woken jobs that have not sent their request.
        owners: The number of owners with waiting jobs.
        ids: The ids of some of the jobs, including the first one.
        paused: The seconds for which no job is admitted from now on; None if the limit is not paused.
        slowed: The slow-down, or None.
    """

    jobs: int
    owners: int
    ids: tuple[bytes, ...]
    paused: float | None
    slowed: SlowNow | None


def list_questions(bucket: str) -> list[tuple[str | int, ...]]:
    """Return the commands for one waitlist, whose replies `list_from` reads."""
    record, order, _, _ = wait_names(bucket)
    return [
        ("HMGET", record, "paused", "from", "slow"),
        ("ZLEXCOUNT", order, "[o", "(p"),
        ("ZLEXCOUNT", order, "[w", "(x"),
        ("ZLEXCOUNT", order, "[h", "(i"),
        ("ZRANGEBYLEX", order, "[h", "(i", "LIMIT", 0, 1),
        ("ZRANGEBYLEX", order, "[o", "(x", "LIMIT", 0, _SAMPLE),
    ]


def list_from(answers: Iterator[Any], now_us: int, mark: int) -> ListNow:
    """
    Read one waitlist from the next *answers*.

    Args:
        mark: The mark of the limit's algorithm, see `Algorithm.mark`.
    """
    (until, begun, slow), waiting, woken, owners, first, some = (next(answers) for _ in range(6))
    pause = Pause(int(until or 0), int(begun or 0)).at(now_us)
    paused = (pause.until_us - now_us) / 1e6 if pause.until_us > now_us else None
    ids = dict.fromkeys(id for id in map(_id_of, [*first, *some]) if id is not None)
    return ListNow(waiting + woken, owners, tuple(ids), paused, _slow_now((slow or b"").split(b" "), mark, now_us))


def entries_question(bucket: str, ids: tuple[bytes | str, ...]) -> tuple[Any, ...]:
    """Return the command whose reply has the entries of *ids*. `entry_from` reads each of them."""
    return "HMGET", wait_names(bucket)[2], *ids


def owner_question(bucket: str, owner: str) -> tuple[str | int, ...]:
    """Return the command whose reply `listens` reads."""
    return "HGET", wait_names(bucket)[0], f"p{owner}"


def listens(free: bytes | None) -> bool:
    """Whether an owner listened when it was last woken, according to its stored number of free threads."""
    return free is None or int(free) != DEAF


def entry_from(text: bytes | None) -> Entry | None:
    """Parse a stored entry. Return None if there is none, or another release wrote it."""
    fields = (text or b"").split(b" ", _FIELDS - 1)
    try:
        state, owner, _, cost, _, _, _, since_us, denials, *_ = fields
        return Entry(STATES[state], owner.decode("utf-8", "replace"), int(cost), int(since_us) / 1e6, int(denials))
    except (KeyError, ValueError):
        return None


def _id_of(member: bytes) -> bytes | None:
    """Return the job id in a member of the order, or None if it has none."""
    if member[:1] == b"h":
        return member[1 + PLACE :].partition(b"|")[2]
    if member[:1] in (b"o", b"w"):
        return member.split(b"|", 2)[2]
    return None


def _slow_now(fields: Sequence[bytes], mark: int, now_us: int) -> SlowNow | None:
    """Return the current slow-down that is stored as *fields*, or None. For *mark* see `Algorithm.mark`."""
    try:
        slow = Slowdown(*map(int, fields)).at(now_us)
        pace = pace_of(slow, mark, 1, now_us)
    except (TypeError, ValueError, ZeroDivisionError):  # another release wrote it
        return None
    if pace is None:
        return None
    by_headers = now_us < slow.reported_until_us and pace.each == slow.each_ns
    ends_us = slow.reported_until_us if by_headers else slow.back_us
    return SlowNow(1e9 / pace.each, "headers" if by_headers else "adapt", (ends_us - now_us) / 1e6)

"""What a stored waitlist contains, for people. Reads what lua/throttlekit_lua/waitlist.lua writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from throttlekit._core.slowdown import Pause, Slowdown, pace_of
from throttlekit._core.storage_keys import wait_names
from throttlekit._core.waitlist import DEAF, State

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
]  # fmt: skip

_SAMPLE = 20
"""The costs and the waits of a list are those of so many of its jobs."""
_PLACE, _INSTANT = 30, 16
_FIELDS = 11
_STATES = {b"o": State.WAITING, b"w": State.WOKEN, b"p": State.WOKEN, b"k": State.KEPT}


class SlowNow(NamedTuple):
    """
    A limit that is slower for a while.

    Attributes:
        rate: Units a second that pass now, at most.
        by: "adapt": downstream refused calls; "headers": downstream said how much is left.
        ends: In how many seconds it is over, if no other response changes it.
    """

    rate: float
    by: str
    ends: float


class Entry(NamedTuple):
    """
    One job on a list.

    Attributes:
        owner: The worker process that has its message.
        since: When it was first denied, in seconds of the store's clock; 0.0: not known.
        denials: How often it was denied.
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
        jobs: How many wait, those included that were woken and have not asked.
        owners: How many owners have jobs in the order.
        ids: Of some of the jobs, the first of them among these.
        paused: For how many more seconds no job passes; None: the limit is not paused.
        slowed: How it is slowed down; None: it is not.
    """

    jobs: int
    owners: int
    ids: tuple[bytes, ...]
    paused: float | None
    slowed: SlowNow | None


def list_questions(bucket: str) -> list[tuple[str | int, ...]]:
    """The commands whose answers `list_from` reads."""
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
    What the next of *answers* say.

    Args:
        mark: That of the limit's algorithm, see `Algorithm.mark`.
    """
    (until, begun, slow), waiting, woken, owners, first, some = (next(answers) for _ in range(6))
    pause = Pause(int(until or 0), int(begun or 0)).at(now_us)
    paused = (pause.until_us - now_us) / 1e6 if pause.until_us > now_us else None
    ids = dict.fromkeys(id for id in map(_id_of, [*first, *some]) if id is not None)
    return ListNow(waiting + woken, owners, tuple(ids), paused, _slow_now((slow or b"").split(b" "), mark, now_us))


def entries_question(bucket: str, ids: tuple[bytes | str, ...]) -> tuple[Any, ...]:
    """The command whose answer has the entries of *ids*, each of which `entry_from` reads."""
    return "HMGET", wait_names(bucket)[2], *ids


def owner_question(bucket: str, owner: str) -> tuple[str | int, ...]:
    """The command whose answer `listens` reads."""
    return "HGET", wait_names(bucket)[0], f"p{owner}"


def listens(free: bytes | None) -> bool:
    """Whether an owner was listening when it was last called, by the free threads that are stored of it."""
    return free is None or int(free) != DEAF


def entry_from(text: bytes | None) -> Entry | None:
    """An entry as it is stored; None: there is none, or it is of another release."""
    fields = (text or b"").split(b" ", _FIELDS - 1)
    try:
        state, owner, _, cost, _, _, _, since_us, denials, *_ = fields
        return Entry(_STATES[state], owner.decode("utf-8", "replace"), int(cost), int(since_us) / 1e6, int(denials))
    except (KeyError, ValueError):
        return None


def _id_of(member: bytes) -> bytes | None:
    """The id in a member of the order; None: it has none that is of use here."""
    if member[:1] == b"h":
        return member[1 + _PLACE :].partition(b"|")[2]
    if member[:1] in (b"o", b"w"):
        return member.split(b"|", 2)[2]
    return None


def _slow_now(fields: Sequence[bytes], mark: int, now_us: int) -> SlowNow | None:
    """The slowdown that is stored as *fields*; None: there is none now. *mark*: `Algorithm.mark`."""
    try:
        slow = Slowdown(*map(int, fields)).at(now_us)
        pace = pace_of(slow, mark, 1, now_us)
    except (TypeError, ValueError, ZeroDivisionError):  # of another release
        return None
    if pace is None:
        return None
    by_headers = now_us < slow.reported_until_us and pace.each == slow.each_ns
    ends_us = slow.reported_until_us if by_headers else slow.back_us
    return SlowNow(1e9 / pace.each, "headers" if by_headers else "adapt", (ends_us - now_us) / 1e6)

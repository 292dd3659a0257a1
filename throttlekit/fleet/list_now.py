"""What a stored waitlist contains, for people. Reads what lua/throttlekit_lua/waitlist.lua writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from throttlekit._core.slowdown import Pause
from throttlekit._core.storage_keys import wait_names
from throttlekit._core.waitlist import DEAF, State
from throttlekit.fleet.line_now import SlowNow, slow_now

__all__ = [
    "Entry", "ListNow", "entries_question", "entry_from", "list_from", "list_questions", "listens", "owner_question",
]  # fmt: skip

_SAMPLE = 20
"""The costs and the waits of a list are those of so many of its jobs."""
_PLACE, _INSTANT = 30, 16
_FIELDS = 11
_STATES = {b"o": State.WAITING, b"w": State.WOKEN, b"p": State.WOKEN, b"k": State.KEPT}


class Entry(NamedTuple):
    """
    One job on a list.

    Attributes:
        owner: The worker process, or the park, that has its message.
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
        owners: How many worker processes and parks have jobs in the order.
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
    return ListNow(waiting + woken, owners, tuple(ids), paused, slow_now((slow or b"").split(b" "), mark, now_us))


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

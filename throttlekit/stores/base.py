"""The interface between the limiter and the store that keeps its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.answer import Answer, Look, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.latency import Drop
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit._core.wait_control import Charge, Waiting, Where
from throttlekit._core.waitlist import Wake

__all__ = [
    "OF_SENTINELS",
    "Correction",
    "Lease",
    "Request",
    "Slowing",
    "Store",
    "SupportsBatch",
    "SupportsCommands",
    "SupportsParts",
    "SupportsScan",
    "decide_or_error",
    "is_same_address",
    "key_of",
]

OF_SENTINELS = " of the Sentinels "
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Request(NamedTuple):
    """
    The arguments of `Store.decide`. No two claims share a name.

    Attributes:
        attempt: The name of this request; see `Store.decide`.
    """

    claims: Sequence[StoreClaim]
    requester: Requester
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """
    A correction of what one limit charged at *granted_us*: *by* is added to it, as a size of the algorithm.
    """

    bucket: str
    algorithm: Algorithm
    granted_us: int
    by: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot of a concurrency limit, which the holder of the algorithm has held since *granted_us*."""

    bucket: str
    algorithm: Algorithm
    granted_us: int


@dataclass(frozen=True, slots=True)
class Slowing:
    """A reason to slow down the limit of *claim* for a while, or to reduce its slots."""

    claim: StoreClaim
    why: Refusal | Remaining | Drop

    @property
    def bucket(self) -> str:
        return self.claim.bucket


class Store(Protocol):
    """
    Keeps the state of each limit and its waitlist, decides requests atomically, and wakes waiting jobs after each
    change.

    All times are those of the store's clock; the caller's clock is never used. A missing name means an unused limit or
    an empty waitlist. Every value expires when nothing in it counts any more. Threads can share a store, also across a
    fork.

    A method raises StoreUnavailable if the store sent no usable reply. It is unknown whether the call had an effect.

    `now_us` is for tests: the time of the decision.
    """

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        """
        Decide like `throttlekit._core.decide.decide`, and store the new state.

        Args:
            attempt: A name for this request of the job. If the reply is lost and the caller sends the request again,
                a grant is not charged again.
        """
        ...

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        """Return units that `decide` charged, because another store denied: see `wait_control.return_units`."""
        ...

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None
    ) -> Look:
        """Look at one waitlist, like `throttlekit._core.decide.look`."""
        ...

    def forget(
        self,
        claims: Sequence[StoreClaim],
        ids: Sequence[str],
        owner: str = "",
        now_us: int | None = None,
        *,
        keep: bool = False,
    ) -> None:
        """
        Remove jobs from the waitlists of *claims*. Then wake other jobs. Without *ids*, only wake jobs.

        Args:
            owner: The owner whose entries are removed; "" for any owner.
            keep: Whether the jobs keep their positions, because something outside the store delays them.
        """
        ...

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        """Return where a job waits, given its claims, or None if it is on none of their waitlists."""
        ...

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        """Count the jobs on one waitlist, and return the first ones: at most *most*, and at most `MOST_LISTED`."""
        ...

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """
        Listen for wakes of *owner* that calls of other processes cause.

        Args:
            on_wakes: Called with the bucket and the wakes, in any thread.
            missed: Called if wakes may have been missed.

        Returns:
            A function that stops listening.
        """
        ...

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        """Correct charges, like `Algorithm.settle`."""
        ...

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        """
        Release slots, like `throttlekit._core.algorithms.concurrency`. If a holder has no slot, nothing changes.
        A slot that was not released is free when its lease ends.
        """
        ...

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        """Extend each slot by one lease. Return, for each lease in order, whether its holder now has a slot."""
        ...

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        """
        Deny every request for *for_us*, like `throttlekit._core.wait_control.pause`. If it is None, end the pause.

        Args:
            emptied: Whether the partner sent a 429. If so, the limits count as used up until the end of *for_us*.
        """
        ...

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        """Slow limits down for a while, like `throttlekit._core.wait_control.slow`."""
        ...

    def reset(self, buckets: Sequence[str]) -> None:
        """Delete the whole state of *buckets*, so that the limits are unused and the waitlists are empty."""
        ...

    def clear_waitlists(self, buckets: Sequence[str]) -> int:
        """Empty the waitlists of *buckets*. Counts and pauses are not changed. Return how many waitlists had jobs."""
        ...

    def close(self) -> None:
        """Close all connections. The store may be used again afterwards."""
        ...


def decide_or_error(store: Store, request: Request) -> Answer | Exception:
    """Decide *request*. Return an error in place of raising it."""
    try:
        return store.decide(request.claims, request.requester, attempt=request.attempt)
    except Exception as error:
        return error


@runtime_checkable
class SupportsBatch(Protocol):
    """A store that decides several requests in one round trip. Optional."""

    def decide_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        """
        Decide each of *requests* independently, one after the other, like `Store.decide`. An error of one request
        replaces its answer.

        Raises:
            StoreUnavailable: There was no usable answer to any of them. It is unknown which were charged.
        """
        ...


@runtime_checkable
class SupportsParts(Protocol):
    """A store of several parts that fail independently, like the nodes of a cluster. Optional."""

    def part_of(self, name: str) -> str:
        """Return the part that keeps *name*, as in `StoreUnavailable.part`; "" if unknown. The store is not called."""
        ...


@runtime_checkable
class SupportsCommands(Protocol):
    """A store that the whole fleet shares, for live control and for activity reports. Optional."""

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        Run Redis *commands* in order, not atomically, in one round trip (on a cluster: one round trip each).

        Args:
            commands: The second word of each is a key (for EVAL, the fourth). All keys share one hash slot.

        Returns:
            The replies, as redis-py parses them, with text as bytes.

        Raises:
            StoreUnavailable: There was no usable answer to one of them. It is unknown which of the others ran.
        """
        ...


def key_of(command: Sequence[str | int]) -> str:
    """Return the key of a command of `SupportsCommands.commands`."""
    return str(command[3 if command[0] == "EVAL" else 1])


@runtime_checkable
class SupportsScan(Protocol):
    """A store that lists names by a pattern, page by page, for operators. Optional."""

    def scan(self, pattern: str, cursor: str = "") -> tuple[str, list[str]]:
        """
        Return the cursor of the next page, "" after the last one, and the names of this page that match *pattern*, as
        SCAN reads it. A page covers about 1 000 names. A name that exists during the whole scan is on some page.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...


def is_same_address(one: str, other: str) -> bool:
    """
    Whether two values of a store's `address` mean the same database. All names of this machine count as equal, and so
    do all Sentinels.
    """
    return bool(one) and _plain(one) == _plain(other)


def _plain(address: str) -> str:
    service, is_service, _ = address.partition(OF_SENTINELS)
    host, colon, rest = address.rpartition(":")
    return service if is_service else f"localhost{colon}{rest}" if host in _LOOPBACK else address

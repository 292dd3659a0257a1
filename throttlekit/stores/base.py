"""The contract between the limiter and the store that keeps its state."""

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
    "Correction",
    "Lease",
    "Request",
    "Slowing",
    "Store",
    "SupportsBatch",
    "SupportsCommands",
    "SupportsForget",
    "SupportsParts",
    "SupportsScan",
    "decide_or_error",
    "is_same_address",
]

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Request(NamedTuple):
    """
    The arguments of `Store.decide`. No two claims share a name.

    Attributes:
        attempt: The name of this request of the job; see `Store.decide`.
    """

    claims: Sequence[StoreClaim]
    requester: Requester
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """
    A change of what one limit was charged at *granted_us*: *by* more, in the algorithm's own measure; less if negative.
    """

    bucket: str
    algorithm: Algorithm
    granted_us: int
    by: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot of a concurrency limit, held since *granted_us* by the holder that the algorithm names."""

    bucket: str
    algorithm: Algorithm
    granted_us: int


@dataclass(frozen=True, slots=True)
class Slowing:
    """Why the limit of *claim* is to be slower for a while, or to have fewer slots in use."""

    claim: StoreClaim
    why: Refusal | Remaining | Drop

    @property
    def bucket(self) -> str:
        return self.claim.bucket


class Store(Protocol):
    """
    Keeps the state of each limit and its waitlist, decides over them atomically, and wakes the jobs that wait: also
    after a pause, a slowdown, a correction or a release.

    The store owns the clock: the caller's time never enters a decision. A missing name means an unused limit
    or an empty waitlist. Every value expires by itself, once nothing in it counts any more. Safe to share between
    threads, and across a fork.

    A method raises StoreUnavailable if there was no usable answer: it is unknown whether it was done.

    `now_us` is for tests: the time to decide at.
    """

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        """
        Decide as `throttlekit._core.decide.decide` does, and store the new state.

        Args:
            attempt: Names this question of the job. If it is repeated after an answer that was lost, so is a grant.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the request was charged.
        """
        ...

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        """Return what `ask` charged, because another store denied it: as `wait_control.return_units` does."""
        ...

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None
    ) -> Look:
        """Look at one waitlist, as `throttlekit._core.decide.look` does."""
        ...

    def wake(self, claims: Sequence[StoreClaim], now_us: int | None = None) -> None:
        """Wake jobs for which there are units."""
        ...

    def forget(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str = "", now_us: int | None = None, *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        """
        Remove jobs from the waitlists of *claims*; then wake others.

        Args:
            owner: Only jobs that it owns; "": all of them.
            keep: They keep their positions, and wait for nothing that the store knows.
        """
        ...

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        """Find where a job waits, given its claims; None: on none of their waitlists."""
        ...

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        """Count the jobs on one waitlist, and name at most *most* of the first, and at most `MOST_LISTED`."""
        ...

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """
        Listen for wakes of *owner* that other callers make.

        Args:
            on_wakes: Called with the bucket and the wakes, in any thread.
            missed: Called when wakes may have been missed.

        Returns:
            A function that ends it.
        """
        ...

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        """
        Correct what was charged, as `Algorithm.settle` does.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the charge was corrected.
        """
        ...

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        """
        Release slots, as `throttlekit._core.algorithms.concurrency` does. A holder without a slot changes nothing.

        Raises:
            StoreUnavailable: There was no usable answer. A slot that was not released is free when its lease ends.
        """
        ...

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        """
        Extend each slot by one lease. Returns, for each lease in order, whether its holder now has a slot.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the leases were renewed.
        """
        ...

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        """
        Deny every request for *for_us*, as `throttlekit._core.wait_control.pause` does. None ends the pause.

        Args:
            emptied: The service downstream answered 429: the limits count as used up to the end of *for_us*.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the limit is paused.
        """
        ...

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        """
        Slow limits down for a while, as `throttlekit._core.wait_control.slow` does.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the limits are slower.
        """
        ...

    def reset(self, buckets: Sequence[str]) -> None:
        """
        Delete all that is stored for *buckets*: the limits are unused, the waitlists are empty.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...

    def clear_waitlists(self, buckets: Sequence[str]) -> None:
        """
        Empty the waitlists of *buckets*. What is counted stays, and so do pauses.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...

    def close(self) -> None:
        """Close all connections. The store may be used again afterwards."""
        ...


def decide_or_error(store: Store, request: Request) -> Answer | Exception:
    """Ask *request*. Returns an error, and does not raise it."""
    try:
        return store.decide(request.claims, request.requester, attempt=request.attempt)
    except Exception as error:
        return error


@runtime_checkable
class SupportsBatch(Protocol):
    """A store that answers several requests in one round trip. Optional."""

    def decide_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        """
        Decide each of *requests* by itself, one after the other, as `Store.decide` does. An error of one request
        replaces its answer.

        Raises:
            StoreUnavailable: There was no usable answer to any. It is unknown which were charged.
        """
        ...


@runtime_checkable
class SupportsParts(Protocol):
    """A store of several parts that fail one by one, like the nodes of a cluster. Optional."""

    def part_of(self, name: str) -> str:
        """The part that keeps *name*, as `StoreUnavailable.part` names it; "" if not known. Makes no call."""
        ...


@runtime_checkable
class SupportsCommands(Protocol):
    """A store that the whole fleet shares, for live control and for activity reports. Optional."""

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        Run Redis *commands* in order, not atomically, in one round trip (on a cluster: one round trip each).

        Args:
            commands: The second word of each is a key; of EVAL, the fourth. All keys share one hash slot.

        Returns:
            The replies, as redis-py reads them, with text as bytes.

        Raises:
            StoreUnavailable: There was no usable answer to one of them. It is unknown which of the others ran.
        """
        ...


@runtime_checkable
class SupportsForget(Protocol):
    """A store that deletes names by a pattern. For operators: it may take seconds. Optional."""

    def delete_matching(self, pattern: str, *, waitlists_only: bool = False) -> int:
        """
        Delete every name that matches *pattern*, as SCAN reads it. Scans all names, a thousand at a time.

        Args:
            waitlists_only: Of these, empty the waitlists, as `Store.clear_waitlists` does, and leave all else.

        Returns:
            The number of names deleted, or of waitlists emptied.

        Raises:
            StoreUnavailable: There was no usable answer. Some names may be deleted, or waitlists emptied.
        """
        ...


@runtime_checkable
class SupportsScan(Protocol):
    """A store that lists names by a pattern, page by page. For operators. Optional."""

    def scan(self, pattern: str, cursor: str = "") -> tuple[str, list[str]]:
        """
        Return the cursor of the next page, "" after the last one, and the names of this page that match *pattern*, as
        SCAN reads it. A page covers some 1 000 names of the store. A name that exists all the time is on some page.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...


def is_same_address(one: str, other: str) -> bool:
    """Whether two of a store's `address` name one server and database. The names of this machine are one."""
    return bool(one) and _plain(one) == _plain(other)


def _plain(address: str) -> str:
    host, colon, rest = address.rpartition(":")
    return f"localhost{colon}{rest}" if host in _LOOPBACK else address

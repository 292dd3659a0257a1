"""
Forward the store's answers to the process that wakes a job, if the job's own process ends with the job.

A stock RQ worker forks a process for each job, and the limits are checked in that process. It ends when its job is
denied, so the job waits under the name of another process, the waker (`throttlekit wake`). In the job's process, a
`Relay` replaces the `Waker`, and sends notes: which jobs the store has woken, which lists the waker should look at, and
on which list the job waits. The waker reads each note with `read_note`, as if it had made the request itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.algorithms.gcra import GcraAlgorithm
from throttlekit._core.answer import NOT_WAITED, Answer, Caller, Kept, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.waitlist import LEAD_US, Wake
from throttlekit._engine.call import WaitlistStore
from throttlekit._engine.waker import Waker
from throttlekit.errors import ConfigurationError, StoreUnavailable

__all__ = ["Relay", "read_note"]

_VERSION = 1


class Relay:
    """
    The `JobHolder` of one job, in a process that does not wake it.

    Args:
        store: The store that decides on the job.
        owner: The process that wakes the job.
        free: The number of jobs that this process can start at once.
        send: Sends a note at once.

    Attributes:
        kept: The note that the job waits, or None if the job waits on no list. The adapter sends it once the waker can
            start the job.
    """

    def __init__(self, store: WaitlistStore, owner: str, free: int, send: Callable[[dict[str, Any]], None]) -> None:
        self._store, self._owner, self._free, self._send = store, owner, free, send
        self._waited = NOT_WAITED
        self.kept: dict[str, Any] | None = None

    def begin_request(
        self, id: str, buckets: Sequence[str], caller: Caller, ends_in_us: Callable[[int], int | None]
    ) -> tuple[Requester, str]:
        requester = Requester(caller, id, self._owner, self._free, ends_in_us(0), early_us=LEAD_US)
        return requester, os.urandom(4).hex()

    def waited_of(self, id: str) -> Waited:
        return self._waited

    def apply_answer(
        self, id: str, item: Any, units: Sequence[StoreClaim], answer: Answer, ends_in_us: int | None = None
    ) -> None:
        self._waited = answer.waited or NOT_WAITED
        own = [each for each in answer.wakes if each[1].id == id]
        others = [each for each in answer.wakes if each[1].id != id]
        if others or answer.looks:
            self._send(_note(id, units, None, others, answer.looks))
        self.kept = None if answer.kept is None else _note(id, units, answer.kept, own)

    def record_no_answer(self, id: str, units: Sequence[StoreClaim], attempt: str) -> None:
        """
        Do nothing, because no wake is known. The waker's next look finds the jobs that the store has woken.
        """

    def hold(
        self,
        id: str,
        item: Any,
        in_us: int,
        waited: Waited | None = None,
        *,
        ends_in_us: int | None = None,
        claims: Sequence[StoreClaim] = (),
        stops: str = "",
    ) -> None:
        """Stop waiting for a wake, and keep the job's positions: its framework redelivers it after *in_us*."""
        self._waited, self.kept = waited or self._waited, None
        self._remove(id, claims, keep=True)

    def leave(self, id: str, claims: Sequence[StoreClaim]) -> None:
        self.kept = None
        self._remove(id, claims)

    def leave_lists(self, id: str, claims: Sequence[StoreClaim]) -> None:
        self._remove(id, claims)

    def pass_on(self, id: str) -> None:
        """Do nothing, because the framework delivers the job in any case."""

    def done(self, id: str) -> None:
        """Do nothing, because the job ends with this process."""

    def _remove(self, id: str, claims: Sequence[StoreClaim], *, keep: bool = False) -> None:
        if claims:
            with suppress(StoreUnavailable):  # without an answer, the job is removed once it is woken again
                self._store.forget(claims, [id], "", keep=keep)


def read_note(waker: Waker[Any], note: Mapping[str, Any], item: Any, ends_in_us: int | None = None) -> None:
    """
    Read a note of a `Relay`, as if it were the answer to a request of this process.

    Args:
        item: The object that *waker* starts once the job is woken, if it waits.
        ends_in_us: As for `Waker.apply_answer`.

    Raises:
        ConfigurationError: A `Relay` of this release did not write *note*.
    """
    try:
        if note["v"] != _VERSION:
            raise ValueError(f"version {note['v']!r}")
        units = [_read_unit(*each) for each in note["units"]]
        kept = None if note["kept"] is None else Kept(*note["kept"])
        wakes = tuple((number, Wake(id, in_us)) for number, id, in_us in note["wakes"])
        looks = tuple((number, in_us) for number, in_us in note["looks"])
        for number in (*(n for n, _ in (*wakes, *looks)), *(() if kept is None else (kept.claim,))):
            units[number]
        id = str(note["id"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"this release of throttlekit cannot read a note to the waker ({error!r}): "
            "do the workers run another release? Update the waker first"
        ) from None
    reason = Reason.ALLOWED if kept is None else Reason.EXHAUSTED
    waker.apply_answer(id, item, units, Answer(reason, 0, 0, 0, (), kept, wakes, looks), ends_in_us)


def _note(
    id: str,
    units: Sequence[StoreClaim],
    kept: Kept | None,
    wakes: Sequence[tuple[int, Wake]] = (),
    looks: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    written = [_write_unit(each.bucket, each.algorithm) for each in units]
    woken = [(number, *wake) for number, wake in wakes]
    return {"v": _VERSION, "id": id, "units": written, "kept": kept and kept[:2], "wakes": woken, "looks": looks}


@dataclass(frozen=True, slots=True)
class _WrittenAlgorithm:
    """The part of an algorithm, for one unit, that a look at a waitlist needs. It makes no decisions."""

    code: str
    size: int
    params: tuple[int | str, int | str, int | str]
    mark: int
    estimates: bool
    holder: ClassVar[str] = ""

    @property
    def overflows(self) -> bool:
        return self.code == GcraAlgorithm.code

    def of_one(self) -> _WrittenAlgorithm:
        return self


def _write_unit(bucket: str, algorithm: Algorithm) -> list[Any]:
    return [bucket, algorithm.code, algorithm.size, algorithm.params, algorithm.mark, algorithm.estimates]


def _read_unit(
    bucket: str, code: str, size: int, params: Sequence[int | str], mark: int, estimates: bool
) -> StoreClaim:
    first, second, third = params
    written: Any = _WrittenAlgorithm(code, size, (first, second, third), mark, estimates)
    return StoreClaim(bucket, written)

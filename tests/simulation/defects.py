"""
Defects that are inserted into the shipped code, one at a time: each breaks a promise within a few hundred seeds.

They show that the checks can fail. `test_simulation.py` runs each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from throttlekit._core import decide, late, waitlist
from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm
from throttlekit._core.algorithms.fixed_window import FixedWindowAlgorithm
from throttlekit._core.algorithms.gcra import GcraAlgorithm
from throttlekit._core.slowdown import Pause
from throttlekit._engine import pipeline, room, waker
from throttlekit.stores import breaker, memory

__all__ = ["DEFECTS", "Defect", "put_in"]


@dataclass(frozen=True)
class Defect:
    """
    A change of the shipped code.

    Attributes:
        name: The name in *where* whose value is replaced.
        make: A function from the original value to the new one.
        faults: The faults that reveal the defect. None: any.
    """

    what: str
    where: Any
    name: str
    make: Callable[[Any], Any]
    faults: str | None = ""


@contextmanager
def put_in(defect: Defect) -> Iterator[None]:
    original = vars(defect.where)[defect.name]
    setattr(defect.where, defect.name, defect.make(original))
    try:
        yield
    finally:
        setattr(defect.where, defect.name, original)


def _returns_two_slots(original: Any) -> Any:
    return lambda self, state: original(self, state)._replace(leases=original(self, state).leases[1:])


def _charges_less(original: Any) -> Any:
    def admit(self: Any, state: Any, now_us: int, begins_us: int | None = None) -> Any:
        return original(replace(self, size=self.size * 9 // 10), state, now_us, begins_us)

    return admit


def _charges_denials(original: Any) -> Any:
    def stored(found: Any) -> Any:
        after = original(found)
        is_denied = found.entry is None and after.waitlist is not None and found.passes_us > found.until_us
        return after._replace(taken=found.claim.algorithm.admit(found.taken, found.passes_us)) if is_denied else after

    return stored


def _orders_by_id(original: Any) -> Any:
    def make_entry(found: Any, now_us: int, requester: Any, epoch: str) -> Any:
        entry = original(found, now_us, requester, epoch)
        entry.place = entry.place._replace(number=crc32(entry.id.encode()))
        return entry

    return make_entry


def _charges_the_previous_window(original: Any) -> Any:
    return lambda self, state, now_us: original(self, state, now_us - 200_000)


def _grants_during_an_outage(original: Any) -> Any:
    def decide_without_store(*arguments: Any) -> Any:
        outcome, decision = original(*arguments)
        return outcome, replace(decision, allowed=True)

    return decide_without_store


def _wakes_no_process(original: Any) -> Any:
    def listen(self: Any, owner: str, on_wakes: Any, on_missed: Any = None) -> Any:
        return original(self, owner, lambda bucket, wakes: None, on_missed)

    return listen


def _renews_nothing(original: Any) -> Any:
    return lambda self, state, now_us: (state, original(self, state, now_us)[1])


def _forgets_tenants(original: Any) -> Any:
    def new_place(self: Any, tenant: str, step: int, rank: int, *, first: bool) -> Any:
        return original(self, "", step, rank, first=first)

    return new_place


def _returns_twice(original: Any) -> Any:
    def return_units(charge: Any, state: Any, *arguments: Any) -> Any:
        return original(charge, original(charge, state, *arguments), *arguments)

    return return_units


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _returns(value: Any = None) -> Callable[[Any], Any]:
    return lambda _: lambda *arguments, **options: value


DEFECTS: dict[str, Defect] = {
    "slot-counted-twice": Defect(
        "the release of a slot releases another one too", ConcurrencyAlgorithm, "_without", _returns_two_slots
    ),
    "charge-too-small": Defect("a unit charges a bucket too little", GcraAlgorithm, "admit", _charges_less),
    "charge-on-denial": Defect("a denial charges", decide, "_state_to_store", _charges_denials),
    "order-by-id": Defect("jobs are granted in the order of their ids", decide, "make_entry", _orders_by_id),
    "previous-window": Defect(
        "a job at the begin of a window is charged in the previous one",
        FixedWindowAlgorithm,
        "admit",
        _charges_the_previous_window,
    ),
    "too-early": Defect("a job is granted 100 ms before its unit is free", late, "EARLY_US", _always(100_000)),
    "outage-is-grant": Defect(
        "a time-out is a grant", pipeline, "decide_without_store", _grants_during_an_outage, "stall"
    ),
    "no-wakes": Defect("no process receives wakes", memory.MemoryStore, "listen", _wakes_no_process),
    "no-looks": Defect(
        "a lost wake is never found by a look", room._List, "period_us", _returns(10**15), "lose-wakes,lose-answers"
    ),
    "endless-patience": Defect(
        "jobs wait for those of a dead process", waitlist, "PATIENCE_US", _always(10**12), "kill,hang"
    ),
    "not-requested-again": Defect(
        "jobs that the store lost make no new request", room.Room, "_request_again", _returns(), "flush"
    ),
    "lease-not-renewed": Defect("a renewal extends no lease", ConcurrencyAlgorithm, "renew", _renews_nothing),
    "pause-ignored": Defect("a pause is over at once", Pause, "at", _returns(Pause())),
    "wrong-clock-kept": Defect(
        "a state that a wrong clock wrote counts",
        GcraAlgorithm,
        "sanitize",
        lambda _: lambda self, state, now_us: state,
        "clock-ahead",
    ),
    "wrong-wake-kept": Defect(
        "a job that a wrong clock woke waits until that time",
        decide,
        "_in_us",
        lambda _: lambda at_us, now_us: max(0, at_us - now_us),
        "clock-ahead,lose-answers,stall",
    ),
    "endless-outage": Defect(
        "a store that replies again is called only once per second",
        breaker.CircuitBreaker,
        "_record_answer",
        _returns(),
        "stall",
    ),
    "shares-forgotten": Defect("all jobs count as one tenant's", waitlist.Waitlist, "new_place", _forgets_tenants),
    "returned-twice": Defect(
        "units are returned twice after a denial by another store", memory, "return_units", _returns_twice
    ),
    "wake-forgotten": Defect("a woken job is not started", waker.Waker, "_start_one", _returns()),
}

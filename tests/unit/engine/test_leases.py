"""The heartbeat: one thread that does not exist when idle, one round trip for all leases, one report per loss."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from support.servers.stores import Passing
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limiter, hookimpl
from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm
from throttlekit._engine.leases import Heartbeat
from throttlekit._engine.running import Running
from throttlekit.errors import LeaseLost, StoreUnavailable
from throttlekit.hookspecs import SlotLost
from throttlekit.stores import Lease, MemoryStore

SHORT = 0.03


def lease(name: str) -> Lease:
    return Lease("bucket", ConcurrencyAlgorithm(1, 1, 1_000_000, name), 0)


def heartbeat_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "throttlekit-heartbeat"}


class Renewals:
    """Answers renewals with *answer*, and records them."""

    def __init__(self, answer: Callable[[Lease], bool] = lambda lease: True) -> None:
        self.answer = answer
        self.rounds: list[set[str]] = []

    def __call__(self, leases: Sequence[Lease]) -> Sequence[bool]:
        self.rounds.append({lease.algorithm.holder for lease in leases})  # type: ignore[attr-defined]
        return [self.answer(lease) for lease in leases]


@pytest.fixture
def lost() -> list[str]:
    return []


def test_no_thread_before_the_first_lease() -> None:
    """A limiter that keeps no lease starts no thread."""
    before = heartbeat_threads()
    renewals = Renewals()
    heartbeat = Heartbeat(renewals)
    limiter = Limiter()
    limiter.release(limiter.acquire(Concurrency("slots", 1)))
    heartbeat.drop(lease("never kept"))
    assert heartbeat_threads() <= before
    assert renewals.rounds == []


def test_idle_thread_ends(monkeypatch: pytest.MonkeyPatch, lost: list[str]) -> None:
    """A process that creates many limiters is left with no threads; the next lease is renewed as usual."""
    monkeypatch.setattr("throttlekit._engine.leases._IDLE_SECONDS", 0.01)
    before, renewals = heartbeat_threads(), Renewals()
    heartbeat = Heartbeat(renewals)
    for name in ("first", "second"):
        heartbeat.keep(lease(name), SHORT, lambda: lost.append("lost"))
        wait_until(lambda name=name: {name} in renewals.rounds, description="the lease is renewed")  # type: ignore[misc]
        heartbeat.drop(lease(name))
        wait_until(lambda: heartbeat_threads() <= before, description="the heartbeat's thread has ended")
    assert lost == []


def test_one_thread_and_one_round_trip_for_all(lost: list[str]) -> None:
    """However many leases are kept, one thread renews all of them in one round trip."""
    before, renewals = heartbeat_threads(), Renewals()
    heartbeat = Heartbeat(renewals)
    names = {f"h{number}" for number in range(50)}
    for name in names:
        heartbeat.keep(lease(name), SHORT, lambda: lost.append("lost"))
    wait_until(lambda: renewals.rounds.count(names) >= 3, description="three rounds with all leases")
    assert len(heartbeat_threads() - before) == 1
    for name in names:
        heartbeat.drop(lease(name))
    rounds = len(renewals.rounds)
    time.sleep(3 * SHORT)
    assert len(renewals.rounds) == rounds, "nothing is renewed when nothing is kept"
    assert lost == []
    heartbeat.keep(lease("again"), SHORT, lambda: None)
    wait_until(lambda: {"again"} in renewals.rounds, description="the thread continues with the next lease")
    assert len(heartbeat_threads() - before) == 1
    heartbeat.drop(lease("again"))


def test_lost_lease_is_reported_once_and_retried(lost: list[str]) -> None:
    """The holder is notified the first time that others have all slots; a slot that becomes free is taken again."""
    have = {"mine": False}
    renewals = Renewals(lambda lease: have["mine"])
    heartbeat = Heartbeat(renewals)
    heartbeat.keep(lease("mine"), SHORT, lambda: lost.append("mine"))
    wait_until(lambda: len(renewals.rounds) >= 4, description="the lease is retried")
    have["mine"] = True
    rounds = len(renewals.rounds)
    wait_until(lambda: len(renewals.rounds) >= rounds + 3, description="the lease is kept again")
    heartbeat.drop(lease("mine"))
    assert lost == ["mine"]


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), RuntimeError("a store of one's own"), ValueError("1 of 2")]
)
def test_lease_that_ends_during_an_outage_is_lost(error: Exception) -> None:
    """A failure or two lose nothing; once the lease must have ended, it is lost. The thread keeps running."""
    failing = threading.Event()
    failing.set()
    reported_at: list[float] = []

    def renew(leases: Sequence[Lease]) -> Sequence[bool]:
        if failing.is_set():
            raise error
        return [True] * len(leases)

    heartbeat = Heartbeat(renew)
    began = time.monotonic()
    heartbeat.keep(lease("mine"), 0.3, lambda: reported_at.append(time.monotonic()))
    wait_until(lambda: bool(reported_at), description="the loss is reported")
    assert reported_at[0] - began > 0.3
    failing.clear()
    renewals = Renewals()
    heartbeat._renew = renewals  # type: ignore[method-assign]
    wait_until(lambda: len(renewals.rounds) >= 2, description="the lease is renewed again")
    heartbeat.drop(lease("mine"))
    assert len(reported_at) == 1


def test_an_unavailable_bucket_does_not_affect_other_leases(lost: list[str]) -> None:
    """If a node of a cluster is unavailable, or a key has another type, all other leases are renewed."""
    renewals = Renewals()

    def renew(leases: Sequence[Lease]) -> Sequence[bool]:
        if any(each.bucket == "away" for each in leases):
            raise StoreUnavailable("away", part="one of them")
        return renewals(leases)

    heartbeat = Heartbeat(renew)
    away = Lease("away", ConcurrencyAlgorithm(1, 1, 1_000_000, "theirs"), 0)
    heartbeat.keep(away, SHORT, lambda: lost.append("theirs"))
    for name in ("mine", "another"):
        heartbeat.keep(lease(name), 0.3, lambda: lost.append("mine"))
    wait_until(
        lambda: renewals.rounds.count({"mine", "another"}) >= 10, description="the others are renewed in one call"
    )
    for each in (away, lease("mine"), lease("another")):
        heartbeat.drop(each)
    assert lost == ["theirs"]


def test_callback_may_release_and_may_raise() -> None:
    """Dropping the lost lease within the callback, or raising in it, does not affect other leases."""
    renewals = Renewals(lambda lease: lease.algorithm.holder == "other")  # type: ignore[attr-defined]
    heartbeat, reported = Heartbeat(renewals), threading.Event()

    def give_up() -> None:
        heartbeat.drop(lease("mine"))
        reported.set()
        raise RuntimeError("a plugin's own")

    heartbeat.keep(lease("mine"), SHORT, give_up)
    heartbeat.keep(lease("other"), SHORT, lambda: None)
    wait_until(reported.is_set, description="the loss is reported")
    wait_until(lambda: {"other"} in renewals.rounds[-2:], description="the other lease is renewed without it")
    heartbeat.drop(lease("other"))


def test_dropped_lease_is_not_renewed_by_a_running_round() -> None:
    """`drop` returns when no renewal can take the slot again, so a released slot stays released."""
    inside, go_on, dropped = threading.Event(), threading.Event(), threading.Event()

    def renew(leases: Sequence[Lease]) -> Sequence[bool]:
        inside.set()
        assert go_on.wait(60)
        return [True] * len(leases)

    heartbeat = Heartbeat(renew)
    heartbeat.keep(lease("mine"), SHORT, lambda: None)
    assert inside.wait(60)

    def drop() -> None:
        heartbeat.drop(lease("mine"))
        dropped.set()

    thread = threading.Thread(target=drop)
    thread.start()
    assert not dropped.wait(0.1)
    go_on.set()
    thread.join(60)
    assert dropped.is_set()


def test_many_threads_keep_and_drop() -> None:
    """In any order, nothing is kept in the end, and no loss is reported."""
    renewals, lost_of = Renewals(), list[str]()
    heartbeat = Heartbeat(renewals)

    def work(number: int) -> None:
        for turn in range(100):
            name = f"{number}-{turn}"
            heartbeat.keep(lease(name), SHORT, lambda: lost_of.append("lost"))
            heartbeat.drop(lease(name))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert heartbeat._known.kept == {}
    assert lost_of == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_keeps_its_own_leases_only() -> None:
    """A child renews none of its parent's leases, and its own ones in a thread of its own; even if forked mid-round."""
    inside = threading.Event()

    def renew(leases: Sequence[Lease]) -> Sequence[bool]:
        inside.set()
        time.sleep(0.05)
        return [True] * len(leases)

    heartbeat = Heartbeat(renew)
    heartbeat.keep(lease("parents"), SHORT, lambda: None)
    assert inside.wait(60)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            renewals = Renewals()
            heartbeat._renew = renewals  # type: ignore[method-assign]
            heartbeat.keep(lease("childs"), SHORT, lambda: None)
            deadline = time.monotonic() + 60
            while len(renewals.rounds) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            heartbeat.drop(lease("childs"))
            os.write(
                writing, b"own only" if renewals.rounds[:2] == [{"childs"}] * 2 else repr(renewals.rounds).encode()
            )
        finally:
            os._exit(0)
    os.close(writing)
    try:
        assert os.read(reading, 1000) == b"own only"
    finally:
        os.close(reading)
        os.waitpid(child, 0)
        heartbeat.drop(lease("parents"))


# With the limiter


class CountingStore(Passing):
    """A memory store that counts renewals."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.renewals = 0

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        self.renewals += 1
        return super().renew(leases, now_us)


def test_body_longer_than_its_lease_keeps_its_slot() -> None:
    """While a body runs, no other job gets its slot; after its end the slot is free at once, and nothing is renewed."""
    store, slots = CountingStore(), Concurrency("slots", 1, lease=2)
    limiter = Limiter(store)
    with limiter.hold(slots) as held:
        until = time.monotonic() + 4.5
        while time.monotonic() < until:
            assert not limiter.peek(slots)
            time.sleep(0.02)
        assert not held.lost
    assert limiter.peek(slots).remaining == 1
    renewals = store.renewals
    assert renewals >= 2
    time.sleep(0.8)
    assert store.renewals == renewals


def test_lost_slot_is_reported_to_the_body_and_to_plugins() -> None:
    """`lost` turns true, `check` raises, and the hook is called once with the decision and the limit."""
    events: list[SlotLost] = []

    class Listener:
        @hookimpl
        def throttlekit_slot_lost(self, event: SlotLost) -> None:
            events.append(event)
            limiter.release(event.decision)

    store, slots = CountingStore(), Concurrency("slots", 1, lease=5)
    limiter = Limiter(store, plugins=[Listener()])
    with limiter.hold(slots) as held:
        held.check()
        limiter.reset(slots)
        assert limiter.acquire(slots, job=Job(id="another"))
        wait_until(lambda: bool(events), description="the loss is reported")
        assert held.lost
        with pytest.raises(LeaseLost, match="slot of a concurrency limit is lost"):
            held.check()
    assert [(event.decision, event.limit) for event in events] == [(held.decision, slots)]
    assert limiter.peek(slots).remaining == 0, "the other holds its slot"


def test_a_slot_of_this_process_is_released_while_the_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's slot is freed with its lease; the other one is renewed here, and nothing else would free it."""
    store = CountingStore()
    limiter = Limiter(store)
    shared, own = Concurrency("shared", 1), Concurrency("own", 1, scope="process")
    running = Running(limiter, limiter.acquire(shared, own))
    running.keep()
    for verb in ("renew", "release", "settle"):
        monkeypatch.setattr(store, verb, Mock(side_effect=StoreUnavailable("away", part=None)))
    running.release()
    assert limiter.acquire(own)
    assert not limiter.acquire(shared)
    assert not any(heartbeat._known.kept for heartbeat in limiter._leases._heartbeats.values())


def test_leases_of_the_store_are_handed_over() -> None:
    """A body in another process renews the leases in the store; those of this process are released here."""
    limiter = Limiter()
    shared, own = Concurrency("shared", 1), Concurrency("own", 1, scope="process")
    decision = limiter.acquire(shared, own)
    limiter.keep(decision, lambda: None)
    left = limiter.hand_over(decision, os.getpid() + 1)
    assert [each.limit for each in left.leases] == [own]
    assert limiter.hand_over(left, os.getpid()).leases == ()
    limiter.release(decision)

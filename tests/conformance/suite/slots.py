"""A store's tests for the slots of a concurrency limit: held, released, lost."""

from __future__ import annotations

from conformance.suite.bench import NAME, SECOND_US, TEN, Bench, ConformanceSuite, run_in_threads
from throttlekit._core.algorithms.by_latency import ByLatency
from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.answer import Answer, Caller, Reason
from throttlekit._core.latency import Drop
from throttlekit._core.limit.base import Limit
from throttlekit.stores.base import Correction, Lease, Slowing

__all__ = ["SlotConformance"]

_SLOTS = Concurrency(NAME, 3, lease=30)
_DEAR = Concurrency(NAME, 5, lease=30)
_LEASE_US = 30 * SECOND_US
_ADAPTS = Concurrency(NAME, 9, lease=30, adapt=ByLatency(2, timeout=20))


def _take(
    bench: Bench,
    holder: str,
    *limits: Limit,
    caller: Caller = Caller.WITHOUT_JOB,
    job: str = "",
    cost: int | None = None,
) -> Answer:
    return bench.ask(*(limits or (_SLOTS,)), holder=holder, caller=caller, job=job, cost=cost)


def _lease(
    bench: Bench, holder: str, granted_us: int | None = None, limit: Limit = _SLOTS, cost: int | None = None
) -> Lease:
    claim = bench.claim(limit, cost=cost, holder=holder)
    return Lease(claim.bucket, claim.algorithm, bench.now_us if granted_us is None else granted_us)


def _round(bench: Bench, limit: Limit, holds: int, us: int = SECOND_US) -> int:
    """Hold all slots that there are, until so many holds have ended; returns how many could be held at last."""
    most = number = 0
    while number < holds:
        held: list[str] = []
        while _take(bench, f"h{number}#{len(held)}", limit).allowed:
            held.append(f"h{number}#{len(held)}")
        granted_us, most = bench.now_us, len(held)
        bench.now_us += us
        bench.store.release([_lease(bench, each, granted_us, limit) for each in held], now_us=bench.now_us)
        number += most
    return most


def _held(bench: Bench, limit: Limit = _SLOTS) -> int:
    use = _take(bench, "look", limit, caller=Caller.PEEK).uses[0]
    assert use is not None
    return use.units


class SlotConformance(ConformanceSuite):
    def test_as_many_as_the_amount_hold_a_slot(self) -> None:
        """Three of three pass, and no fourth; a slot that is released is free for the next job."""
        with self.bench() as bench:
            assert [_take(bench, f"h#{number}").allowed for number in range(4)] == [True, True, True, False]
            bench.store.release([_lease(bench, "h#1")], now_us=bench.now_us)
            assert _held(bench) == 2
            assert _take(bench, "h#5").allowed
            assert _held(bench) == 3

    def test_only_the_holder_releases_its_slot(self) -> None:
        """A release by a stranger, or a second release, changes nothing."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.store.release([_lease(bench, "stranger#1")], now_us=bench.now_us)
            assert _held(bench) == 3
            for _ in range(3):
                bench.store.release([_lease(bench, "h#0")], now_us=bench.now_us)
            assert _held(bench) == 2

    def test_lease_ends_to_the_microsecond(self) -> None:
        """A slot that is not renewed is free when its lease ends, and not before."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.now_us += _LEASE_US - 1
            assert not _take(bench, "next#1").allowed
            bench.now_us += 1
            assert _take(bench, "next#1").allowed
            assert _held(bench) == 1

    def test_renewal_keeps_a_slot_and_takes_no_other(self) -> None:
        """In time it keeps the slot; too late it takes a free one, and returns False where none is free."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.now_us += _LEASE_US - 1
            leases = [_lease(bench, "h#0"), _lease(bench, "h#1")]
            assert list(bench.store.renew(leases, now_us=bench.now_us)) == [True, True]
            bench.now_us += 2
            assert _held(bench) == 2
            assert _take(bench, "next#1").allowed
            renewed = bench.store.renew([_lease(bench, "h#0"), _lease(bench, "h#2")], now_us=bench.now_us)
            assert list(renewed) == [True, False]
            bench.store.release([_lease(bench, "next#1")], now_us=bench.now_us)
            assert list(bench.store.renew([_lease(bench, "h#2")], now_us=bench.now_us)) == [True]
            assert _held(bench) == 3

    def test_leases_of_several_limits_go_in_one_call(self) -> None:
        """Each lease has its own result, in the order of the call."""
        others = [Concurrency(f"{NAME}-{number}", 1) for number in range(3)]
        with self.bench() as bench:
            for limit in others[:2]:
                assert _take(bench, "h#1", limit).allowed
            assert _take(bench, "other#1", others[2]).allowed
            leases = [_lease(bench, "h#1", limit=limit) for limit in (others[2], others[0], others[1])]
            assert list(bench.store.renew(leases, now_us=bench.now_us)) == [False, True, True]
            bench.store.release(leases, now_us=bench.now_us)
            assert [_held(bench, limit) for limit in others] == [0, 0, 1]

    def test_jobs_are_told_by_the_mean_hold(self) -> None:
        """Where three slots were held for three seconds each, jobs are told instants one second apart."""
        with self.bench() as bench:
            granted_us = bench.now_us
            for number in range(3):
                _take(bench, f"a#{number}")
            bench.now_us += 3 * SECOND_US
            bench.store.release([_lease(bench, f"a#{number}", granted_us) for number in range(3)], now_us=bench.now_us)
            for number in range(3):
                _take(bench, f"b#{number}")
            told = [_take(bench, f"w#{number}", job=f"w{number}").retry_us - bench.now_us for number in range(3)]
            assert told == [1_000_000, 2_000_000, 3_000_000], told

    def test_release_wakes_the_first(self) -> None:
        """The slot is for the job that came first; one that was not woken does not take it, and a newcomer neither."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            for number in range(2):
                assert _take(bench, f"w#{number}", job=f"w{number}").reason is Reason.EXHAUSTED
            bench.store.release([_lease(bench, "h#0")], now_us=bench.now_us)
            assert bench.woken(_SLOTS) == ["w0"]
            assert _take(bench, "w#1", job="w1").reason is Reason.IN_LINE
            assert _take(bench, "newcomer#1").reason is Reason.IN_LINE
            assert _take(bench, "w#0", job="w0").allowed

    def test_jobs_hold_as_many_slots_as_they_cost(self) -> None:
        """The sum of the costs counts: one that does not fit is denied, and one that does passes."""
        with self.bench() as bench:
            assert _take(bench, "two", _DEAR, cost=2).allowed
            assert _take(bench, "one", _DEAR).allowed
            assert _held(bench, _DEAR) == 3
            assert not _take(bench, "three", _DEAR, cost=3).allowed
            assert _take(bench, "other", _DEAR, cost=2).allowed
            assert not _take(bench, "none", _DEAR, cost=1).allowed
            assert _take(bench, "free", _DEAR, cost=0).allowed
            for holder, cost, left in (("one", 2, 5), ("two", 1, 5), ("two", 2, 3), ("two", 2, 3), ("one", 1, 2)):
                bench.store.release([_lease(bench, holder, limit=_DEAR, cost=cost)], now_us=bench.now_us)
                assert _held(bench, _DEAR) == left, (holder, cost)
            claim = bench.claim(_DEAR, cost=2, holder="other")
            bench.store.settle([Correction(claim.bucket, claim.algorithm, bench.now_us, -2)], now_us=bench.now_us)
            assert _held(bench, _DEAR) == 0

    def test_lease_of_several_slots_ends_and_is_renewed_as_one(self) -> None:
        """All of a holder's slots are free when its lease ends; renewed too late it gets as many, or none."""
        with self.bench() as bench:
            _take(bench, "dead", _DEAR, cost=3)
            bench.now_us += _LEASE_US // 2
            _take(bench, "lives", _DEAR, cost=2)
            bench.now_us += _LEASE_US // 2
            assert _held(bench, _DEAR) == 2
            dead, lives = (_lease(bench, name, limit=_DEAR, cost=cost) for name, cost in (("dead", 3), ("lives", 2)))
            assert _take(bench, "next", _DEAR, cost=1).allowed
            assert list(bench.store.renew([dead, lives], now_us=bench.now_us)) == [False, True]
            bench.store.release([_lease(bench, "next", limit=_DEAR)], now_us=bench.now_us)
            assert list(bench.store.renew([dead], now_us=bench.now_us)) == [True]
            assert _held(bench, _DEAR) == 5
            bench.now_us += _LEASE_US
            assert _held(bench, _DEAR) == 0
            assert _take(bench, "all", _DEAR, cost=5).allowed
            assert _held(bench, _DEAR) == 5

    def test_large_cost_is_not_passed(self) -> None:
        """Slots that come free are kept for the job that came first, until there are as many as it costs."""
        with self.bench() as bench:
            for number in range(5):
                assert _take(bench, f"s{number}", _DEAR).allowed
            assert not _take(bench, "large", _DEAR, job="large", cost=4).allowed
            for number in range(5):
                assert not _take(bench, f"w{number}", _DEAR, job=f"small {number}").allowed
            for number in range(4):
                assert bench.woken(_DEAR) == []
                bench.store.release([_lease(bench, f"s{number}", limit=_DEAR)], now_us=bench.now_us)
            assert bench.woken(_DEAR) == ["large"]
            assert _take(bench, "large", _DEAR, job="large", cost=4).allowed

    def test_denial_of_another_limit_leaks_no_slot(self) -> None:
        """With a rate beside it, a slot is held only if the rate passes, and the rate is charged only with a slot."""
        with self.bench() as bench:
            bench.drain(TEN)
            for number in range(5):
                assert not _take(bench, f"h#{number}", _SLOTS, TEN).allowed
            assert _held(bench) == 0
            bench.now_us += SECOND_US
            for number in range(3):
                _take(bench, f"h#{number}")
            assert not _take(bench, "h#9", _SLOTS, TEN).allowed
            assert bench.left(TEN) == TEN.capacity

    def test_threads_share_the_slots(self) -> None:
        """With any number of threads, as many jobs hold a slot as the amount."""
        with self.bench() as bench:
            granted: list[str] = []

            def work(thread: int) -> None:
                for turn in range(10):
                    if _take(bench, f"{thread}-{turn}#1").allowed:
                        granted.append(f"{thread}-{turn}#1")

            run_in_threads(8, work)
            assert len(granted) == 3
            bench.store.release([_lease(bench, granted[0])], now_us=bench.now_us)
            assert _held(bench) == 2

    def test_slots_can_be_released_during_a_pause(self) -> None:
        """Jobs that hold a slot run on."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.store.pause([bench.claim(_SLOTS)], 10 * SECOND_US, now_us=bench.now_us)
            bench.store.release([_lease(bench, "h#0")], now_us=bench.now_us)
            assert _take(bench, "n#1").reason is Reason.PAUSED
            assert list(bench.store.renew([_lease(bench, "h#1")], now_us=bench.now_us)) == [True]
            bench.now_us += 10 * SECOND_US
            assert _take(bench, "n#1").allowed

    def test_slots_that_adapt_begin_at_the_floor_and_double(self) -> None:
        """Two of nine are in use; after a round of 16 holds, four. Held for longer than before, they are no more."""
        with self.bench() as bench:
            assert _round(bench, _ADAPTS, 16) == 2
            assert _round(bench, _ADAPTS, 16) == 4
            assert _round(bench, _ADAPTS, 200, 2 * SECOND_US) < 8

    def test_hold_that_ends_badly_takes_slots_away_once(self) -> None:
        """Refusals of jobs that were admitted before the last fall change nothing; held slots stay held."""
        with self.bench() as bench:
            assert _round(bench, _ADAPTS, 140) == 9
            granted_us = bench.now_us
            for number in range(9):
                assert _take(bench, f"s#{number}", _ADAPTS).allowed
            bench.now_us += SECOND_US
            claim = bench.claim(_ADAPTS)
            for _ in range(5):
                bench.store.slow([Slowing(claim, Drop(granted_us))], now_us=bench.now_us)
            assert _held(bench, _ADAPTS) == 9
            bench.store.release([_lease(bench, "s#0", granted_us, _ADAPTS)], now_us=bench.now_us)
            assert not _take(bench, "n#1", _ADAPTS).allowed
            bench.store.release([_lease(bench, "s#1", granted_us, _ADAPTS)], now_us=bench.now_us)
            assert _take(bench, "n#2", _ADAPTS).allowed
            bench.store.slow([Slowing(claim, Drop(None))], now_us=bench.now_us)
            bench.store.release([_lease(bench, "s#2", granted_us, _ADAPTS)], now_us=bench.now_us)
            assert not _take(bench, "n#3", _ADAPTS).allowed

    def test_time_outs_and_ended_leases_take_slots_away(self) -> None:
        """A hold of 20 seconds is a drop, and so is a lease of 30 that ended."""
        with self.bench() as bench:
            for us, begin in [(20 * SECOND_US, "s"), (_LEASE_US, "w")]:
                assert _round(bench, _ADAPTS, 70) == 9
                granted_us = bench.now_us
                assert _take(bench, f"{begin}#1", _ADAPTS).allowed
                bench.now_us += us
                bench.store.release([_lease(bench, f"{begin}#1", granted_us, _ADAPTS)], now_us=bench.now_us)
                taken = [_take(bench, f"{begin}{number}#1", _ADAPTS).allowed for number in range(9)]
                assert taken == [True] * 8 + [False]
                ends = [_lease(bench, f"{begin}{number}#1", bench.now_us, _ADAPTS) for number in range(8)]
                bench.store.release(ends, now_us=bench.now_us)

    def test_limit_without_adapt_has_all_slots(self) -> None:
        """Where one process adapts and another does not, both count the same holders."""
        plain = Concurrency(NAME, 9, lease=30)
        with self.bench() as bench:
            assert _round(bench, _ADAPTS, 4) == 2
            for number in range(9):
                assert _take(bench, f"h#{number}", plain).allowed
            assert not _take(bench, "n#1", _ADAPTS).allowed
            assert _held(bench, plain) == 9

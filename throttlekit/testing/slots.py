"""What a store must do with slots that are held, given back and lost, and with pauses."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import threading
from collections.abc import Sequence

from throttlekit._core.acquire import Caller, Place, Reason, Verdict
from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.claim import StoreClaim
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import bucket_name, line_name
from throttlekit.stores.base import Lease, Request
from throttlekit.testing.bench import NAME, SECOND_US, TEN, Bench, OnTheBench
from throttlekit.testing.rules import RULES, Rule, each

__all__ = ["PauseConformance", "SlotConformance"]

_SLOTS = Concurrency(NAME, 3, lease=30)
_LEASE_US = 30 * SECOND_US


def _claim(bench: Bench, limit: Limit, holder: str = "") -> StoreClaim:
    algorithm = limit.bind(1, bench.now_us, holder)
    name = f"{limit.name}-{limit.fingerprint}" if bench.spread else limit.name
    bucket = bucket_name(name, "", limit.fingerprint)
    return StoreClaim(bucket, line_name(bucket), algorithm, algorithm.spacing_us(0), limit.max_queue_us(algorithm))


def _take(
    bench: Bench,
    holder: str,
    limit: Limit = _SLOTS,
    *,
    caller: Caller = Caller.GUEST,
    due_us: int | None = None,
    beside: Sequence[Limit] = (),
) -> Verdict:
    claims = [_claim(bench, limit, holder), *(_claim(bench, other) for other in beside)]
    place = None if due_us is None else Place(0, due_us)
    return bench.store.acquire(Request(claims, caller, place), now_us=bench.now_us)


def _lease(bench: Bench, holder: str, granted_us: int | None = None, limit: Limit = _SLOTS) -> Lease:
    claim = _claim(bench, limit, holder)
    return Lease(claim.bucket, claim.algorithm, bench.now_us if granted_us is None else granted_us)


def _held(bench: Bench, limit: Limit = _SLOTS) -> int:
    use = _take(bench, "look", limit, caller=Caller.PEEK).uses[0]
    assert use is not None
    return use.units


class SlotConformance(OnTheBench):
    def test_as_many_as_the_amount_hold_a_slot(self) -> None:
        """Three of three pass, and no fourth; a slot that is given back is free for the next."""
        with self.bench() as bench:
            assert [_take(bench, f"h#{number}").allowed for number in range(4)] == [True, True, True, False]
            bench.store.release([_lease(bench, "h#1")], now_us=bench.now_us)
            assert _held(bench) == 2
            assert _take(bench, "h#5").allowed
            assert _held(bench) == 3

    def test_only_who_holds_a_slot_gives_it_back(self) -> None:
        """A release by somebody else, or for the second time, changes nothing."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.store.release([_lease(bench, "stranger#1")], now_us=bench.now_us)
            assert _held(bench) == 3
            for _ in range(3):
                bench.store.release([_lease(bench, "h#0")], now_us=bench.now_us)
            assert _held(bench) == 2

    def test_lease_ends_to_the_microsecond(self) -> None:
        """A holder that is not heard of is gone when its lease ends, and not before."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.now_us += _LEASE_US - 1
            assert not _take(bench, "next#1").allowed
            bench.now_us += 1
            assert _take(bench, "next#1").allowed
            assert _held(bench) == 1

    def test_renewal_keeps_a_slot_and_takes_no_other(self) -> None:
        """In time it keeps what is held; too late it takes what is free, and is told no where nothing is."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.now_us += _LEASE_US - 1
            leases = [_lease(bench, "h#0"), _lease(bench, "h#1")]
            assert list(bench.store.renew(leases, now_us=bench.now_us)) == [True, True]
            bench.now_us += 2
            assert _held(bench) == 2
            assert _take(bench, "next#1").allowed
            told = bench.store.renew([_lease(bench, "h#0"), _lease(bench, "h#2")], now_us=bench.now_us)
            assert list(told) == [True, False]
            bench.store.release([_lease(bench, "next#1")], now_us=bench.now_us)
            assert list(bench.store.renew([_lease(bench, "h#2")], now_us=bench.now_us)) == [True]
            assert _held(bench) == 3

    def test_leases_of_several_limits_go_in_one_call(self) -> None:
        """Each is answered for itself, in the order of the call."""
        others = [Concurrency(f"{NAME}-{number}", 1) for number in range(3)]
        with self.bench() as bench:
            for limit in others[:2]:
                assert _take(bench, "h#1", limit).allowed
            assert _take(bench, "other#1", others[2]).allowed
            leases = [_lease(bench, "h#1", limit=limit) for limit in (others[2], others[0], others[1])]
            assert list(bench.store.renew(leases, now_us=bench.now_us)) == [False, True, True]
            bench.store.release(leases, now_us=bench.now_us)
            assert [_held(bench, limit) for limit in others] == [0, 0, 1]

    def test_line_is_paced_by_the_mean_hold(self) -> None:
        """Where three slots were held for three seconds each, waiters stand one second, and 4 %, apart."""
        with self.bench() as bench:
            granted_us = bench.now_us
            for number in range(3):
                _take(bench, f"a#{number}")
            bench.now_us += 3 * SECOND_US
            bench.store.release([_lease(bench, f"a#{number}", granted_us) for number in range(3)], now_us=bench.now_us)
            for number in range(3):
                _take(bench, f"b#{number}")
            slots = [_take(bench, f"w#{number}", caller=Caller.JOB).due_us - bench.now_us for number in range(3)]
            assert slots == [1_000_000, 2_040_000, 3_080_000], slots

    def test_waiter_that_comes_early_passes_if_a_slot_is_free(self) -> None:
        """Else it keeps its slot, and nothing is booked."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            denied = _take(bench, "w#1", caller=Caller.JOB)
            early = _take(bench, "w#2", caller=Caller.JOB, due_us=denied.due_us)
            assert (early.reason, early.due_us) == (Reason.EARLY, denied.due_us)
            bench.store.release([_lease(bench, "h#0")], now_us=bench.now_us)
            assert _take(bench, "newcomer#1").reason is Reason.IN_LINE
            assert _take(bench, "w#3", caller=Caller.JOB, due_us=denied.due_us).allowed

    def test_denial_of_another_limit_leaks_no_slot(self) -> None:
        """With a rate beside it, a slot is held if the rate passes too, and the rate is charged if a slot is free."""
        with self.bench() as bench:
            bench.drain(TEN)
            for number in range(5):
                assert not _take(bench, f"h#{number}", beside=[TEN]).allowed
            assert _held(bench) == 0
            bench.now_us += SECOND_US
            for number in range(3):
                _take(bench, f"h#{number}")
            assert not _take(bench, "h#9", beside=[TEN]).allowed
            assert bench.left(TEN) == TEN.capacity

    def test_threads_share_the_slots(self) -> None:
        """However many threads ask at once, as many as the amount hold a slot; when all gave back, nobody does."""
        with self.bench() as bench:
            granted: list[str] = []

            def work(thread: int) -> None:
                for turn in range(10):
                    if _take(bench, f"{thread}-{turn}#1").allowed:
                        granted.append(f"{thread}-{turn}#1")

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(granted) == 3
            bench.store.release([_lease(bench, granted[0])], now_us=bench.now_us)
            assert _held(bench) == 2


class PauseConformance(OnTheBench):
    @each(RULES)
    def test_nobody_passes_while_it_is_paused(self, bench: Bench, rule: Rule) -> None:
        """To the last microsecond, whoever asks; and at its end nothing has come back yet."""
        bench.store.pause([bench.claim(rule.limit)], 7200 * SECOND_US, now_us=bench.now_us)
        until_us = bench.now_us + 7200 * SECOND_US
        for now_us in (bench.now_us, until_us - 1):
            bench.now_us = now_us
            for caller in (Caller.PEEK, Caller.GUEST):
                verdict = bench.ask(rule.limit, caller=caller, due_us=1)
                assert (verdict.reason, verdict.retry_us > until_us) == (Reason.PAUSED, True), verdict
        bench.now_us = until_us
        assert bench.passing(rule.limit) <= 2

    @each(RULES)
    def test_resume_ends_a_pause_and_no_burst_follows(self, bench: Bench, rule: Rule) -> None:
        """From then on it fills; all of it is there no sooner than after it was used up."""
        claims = [bench.claim(rule.limit)]
        bench.store.pause(claims, None, now_us=bench.now_us)
        assert bench.untouched(rule.limit)
        bench.store.pause(claims, 7200 * SECOND_US, now_us=bench.now_us)
        bench.store.pause(claims, None, now_us=bench.now_us)
        seen = bench.look(rule.limit, cost=rule.limit.capacity)
        assert seen.reason is Reason.EXHAUSTED, seen
        bench.now_us = seen.retry_us
        assert bench.ask(rule.limit).allowed

    @each(RULES)
    def test_longer_pause_wins(self, bench: Bench, rule: Rule) -> None:
        """A later one that ends sooner shortens nothing."""
        claims = [bench.claim(rule.limit)]
        bench.store.pause(claims, 60 * SECOND_US, now_us=bench.now_us)
        bench.store.pause(claims, SECOND_US, now_us=bench.now_us)
        bench.now_us += 60 * SECOND_US - 1
        assert bench.look(rule.limit).reason is Reason.PAUSED

    @each(RULES)
    def test_other_keys_are_not_paused(self, bench: Bench, rule: Rule) -> None:
        """A pause is of the key that is named."""
        bench.store.pause([bench.claim(rule.limit, "a")], 60 * SECOND_US, now_us=bench.now_us)
        assert bench.look(rule.limit, key="b").allowed
        assert bench.look(rule.limit, key="a").reason is Reason.PAUSED

    @each(RULES)
    def test_those_in_line_are_sent_behind_the_pause(self, bench: Bench, rule: Rule) -> None:
        """In the order in which they come back, and newcomers behind them."""
        bench.drain(rule.limit)
        slots = [bench.ask(rule.limit).due_us for _ in range(3)] if rule.label != "leaky_bucket" else [bench.now_us]
        until_us = slots[-1] + 3600 * SECOND_US
        bench.store.pause([bench.claim(rule.limit)], until_us - bench.now_us, now_us=bench.now_us)
        bench.now_us = slots[-1]
        behind = [bench.ask(rule.limit, due_us=due_us).due_us for due_us in slots]
        behind.append(bench.ask(rule.limit).due_us)
        assert until_us < behind[0], behind
        assert behind == sorted(set(behind)), behind

    def test_paused_slots_can_be_given_back(self) -> None:
        """Those who hold them run on."""
        with self.bench() as bench:
            for number in range(3):
                _take(bench, f"h#{number}")
            bench.store.pause([_claim(bench, _SLOTS)], 10 * SECOND_US, now_us=bench.now_us)
            bench.store.release([_lease(bench, "h#0")], now_us=bench.now_us)
            assert _take(bench, "n#1").reason is Reason.PAUSED
            assert list(bench.store.renew([_lease(bench, "h#1")], now_us=bench.now_us)) == [True]
            bench.now_us += 10 * SECOND_US
            assert _take(bench, "n#1").allowed

"""What a store must do with buckets, and as a store."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import threading

from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.limits import TokenBucket
from throttlekit._testing.bench import NOW_US, ONE, SECOND_US, SLOW, STEP_US, TEN, OnTheBench
from throttlekit.stores._base import Request

__all__ = ["BucketConformance"]


class BucketConformance(OnTheBench):
    def test_full_bucket_passes_its_burst_at_once(self) -> None:
        """A bucket that nobody has used passes as many units as its burst, and not one more."""
        with self.bench() as bench:
            passed = [bench.ask(TEN).allowed for _ in range(7)]
        assert passed == [True] * 5 + [False] * 2, passed

    def test_denied_just_before_the_promised_instant(self) -> None:
        """One microsecond before the instant that a denial named, the request is denied again."""
        with self.bench() as bench:
            bench.drain(TEN)
            bench.now_us = bench.ask(TEN, caller=Caller.GUEST).retry_us - 1
            assert not bench.ask(TEN, caller=Caller.GUEST).allowed

    def test_admitted_at_the_promised_instant(self) -> None:
        """At the instant that a denial named, the request passes."""
        with self.bench() as bench:
            bench.drain(TEN)
            denied = bench.ask(TEN, cost=3, caller=Caller.GUEST)
            assert denied.retry_us == bench.now_us + 3 * STEP_US, denied
            bench.now_us = denied.retry_us
            assert bench.ask(TEN, cost=3, caller=Caller.GUEST).allowed

    def test_verdict_tells_the_buckets_after_the_decision(self) -> None:
        """A grant tells when each bucket is full again, the grant itself included."""
        with self.bench() as bench:
            verdict = bench.ask(TEN, SLOW)
        assert verdict.tats_us == (NOW_US + STEP_US, NOW_US + SECOND_US), verdict

    def test_cost_zero_only_looks(self) -> None:
        """A cost of 0 passes an empty bucket, and takes nothing."""
        with self.bench() as bench:
            bench.drain(TEN)
            before = bench.tat(TEN)
            assert bench.ask(TEN, cost=0).allowed
            assert bench.tat(TEN) == before

    def test_cost_zero_leaves_no_trace_of_a_fresh_key(self) -> None:
        """A look at a key that has never been used leaves it unused."""
        with self.bench() as bench:
            assert bench.ask(TEN, cost=0).tats_us == (None,)
            assert bench.tat(TEN) is None

    def test_names_are_counted_apart(self) -> None:
        """Two keys of one limit do not share a bucket."""
        with self.bench() as bench:
            assert bench.ask(ONE, key="a").allowed
            assert not bench.ask(ONE, key="a").allowed
            assert bench.ask(ONE, key="b").allowed

    def test_denial_by_one_claim_charges_no_other(self) -> None:
        """All or nothing: a request that one bucket denies takes nothing from the others."""
        with self.bench() as bench:
            bench.drain(SLOW)
            for limits in ((TEN, SLOW), (SLOW, TEN)):
                assert not bench.ask(*limits).allowed
            assert bench.tat(TEN) is None

    def test_grant_charges_every_claim(self) -> None:
        """A request that passes takes its units from every bucket."""
        with self.bench() as bench:
            assert bench.ask(ONE, SLOW).allowed
            assert not bench.ask(ONE).allowed
            assert not bench.ask(SLOW).allowed

    def test_binding_claim_has_the_latest_slot(self) -> None:
        """Of several buckets that deny, the one that opens last binds, in any order."""
        with self.bench() as bench:
            bench.drain(ONE)
            bench.drain(SLOW)
            for binding, limits in ((1, (ONE, SLOW)), (0, (SLOW, ONE))):
                verdict = bench.ask(*limits, caller=Caller.PEEK)
                assert (verdict.claim, verdict.slot_us) == (binding, NOW_US + SECOND_US), verdict

    def test_peek_charges_nothing(self) -> None:
        """A peek that would pass leaves the bucket as it was."""
        with self.bench() as bench:
            for _ in range(9):
                assert bench.ask(TEN, caller=Caller.PEEK).allowed
            assert bench.tat(TEN) is None

    def test_peek_books_nothing(self) -> None:
        """A peek that would be denied leaves the line as it was."""
        with self.bench() as bench:
            bench.drain(TEN)
            for _ in range(9):
                verdict = bench.ask(TEN, caller=Caller.PEEK)
                assert (verdict.reason, verdict.slot_us) == (Reason.EXHAUSTED, NOW_US + STEP_US), verdict
            assert bench.ask(TEN).slot_us == NOW_US + STEP_US

    def test_reset_fills_the_bucket(self) -> None:
        """After a reset the whole burst passes again."""
        with self.bench() as bench:
            bench.drain(TEN)
            bench.reset(TEN)
            bench.drain(TEN)

    def test_reset_empties_the_line(self) -> None:
        """After a reset nobody waits: the first to be denied gets the first slot."""
        with self.bench() as bench:
            bench.drain(TEN)
            for _ in range(9):
                bench.ask(TEN)
            bench.reset(TEN)
            bench.drain(TEN)
            assert bench.ask(TEN).slot_us == NOW_US + STEP_US

    def test_reset_of_what_is_not_there_is_quiet(self) -> None:
        """Forgetting what was never known is no error."""
        with self.bench() as bench:
            bench.reset(TEN)
            assert bench.tat(TEN) is None

    def test_raised_limit_takes_effect_at_once(self) -> None:
        """One a day turned into a hundred a second does not block for a day."""
        day, fast = TokenBucket("redefined", "1/day"), TokenBucket("redefined", "100/s", burst=10)
        with self.bench() as bench:
            bench.drain(day)
            assert bench.ask(fast).allowed

    def test_two_definitions_hold_each_by_itself(self) -> None:
        """While a fleet holds two definitions, neither gives back what the other has taken."""
        small, large = TokenBucket("redefined", "1/minute", burst=10), TokenBucket("redefined", "1/minute", burst=100)
        with self.bench() as bench:
            bench.drain(large)
            bench.drain(small)
            for _ in range(3):
                assert not bench.ask(small).allowed
                assert not bench.ask(large).allowed
            assert bench.tat(large) == NOW_US + 100 * 60 * SECOND_US

    def test_looking_at_a_stale_bucket_changes_nothing(self) -> None:
        """A peek, and a cost of 0, leave what was written when the clock was far ahead."""
        with self.bench() as bench:
            bench.now_us = NOW_US + 86_400 * SECOND_US
            bench.drain(TEN)
            before = bench.tat(TEN)
            bench.now_us = NOW_US
            bench.ask(TEN, caller=Caller.PEEK)
            bench.ask(TEN, cost=0)
            bench.now_us = NOW_US + 86_400 * SECOND_US
            assert bench.tat(TEN) == before

    def test_lowered_limit_admits_its_new_burst_at_most(self) -> None:
        """A lowered limit passes no more than its new burst, whatever the old one had left."""
        fast, slow = TokenBucket("redefined", "100/s", burst=100), TokenBucket("redefined", "1/minute", burst=3)
        with self.bench() as bench:
            assert bench.ask(fast).allowed
            passed = [bench.ask(slow, caller=Caller.GUEST).allowed for _ in range(9)]
        assert sum(passed) <= 3, passed

    def test_clock_that_falls_back_admits_nothing_extra(self) -> None:
        """After the clock has jumped back, nothing passes that would not have passed before."""
        with self.bench() as bench:
            bench.drain(TEN)
            for back_us in (1, STEP_US, 30 * SECOND_US):
                bench.now_us = NOW_US - back_us
                assert not bench.ask(TEN, caller=Caller.GUEST).allowed

    def test_clock_that_was_far_ahead_does_not_block_for_long(self) -> None:
        """After the clock has been a day ahead, units pass at the limit's rate again, and no faster."""
        with self.bench() as bench:
            bench.now_us = NOW_US + 86_400 * SECOND_US
            bench.drain(TEN)
            bench.now_us = NOW_US
            denied = bench.ask(TEN, caller=Caller.GUEST)
            assert (denied.allowed, denied.retry_us) == (False, NOW_US + STEP_US), denied
            bench.now_us = denied.retry_us
            assert bench.ask(TEN, caller=Caller.GUEST).allowed
            assert not bench.ask(TEN, caller=Caller.GUEST).allowed

    def test_long_periods_are_exact_to_the_microsecond(self) -> None:
        """A period of days loses no microsecond on its way through the store."""
        long = TokenBucket("conformance-long", (3, 100_000.000_003), burst=3)
        with self.bench() as bench:
            bench.now_us += 7
            bench.ask(long)
            assert bench.tat(long) == NOW_US + 7 + 33_333_333_335

    def test_store_owns_the_clock(self) -> None:
        """Without a time given, the store tells its own, and it goes on."""
        with self.bench() as bench:
            request = Request([bench.claim(TEN, "", 1)], Caller.JOB)
            verdicts = [bench.store.acquire(request) for _ in range(3)]
        assert verdicts[0].now_us > 0
        assert [v.now_us for v in verdicts] == sorted(v.now_us for v in verdicts)
        assert all(v.allowed for v in verdicts)

    def test_works_again_after_close(self) -> None:
        """A store that was closed may be used again."""
        with self.bench() as bench:
            assert bench.ask(TEN).allowed
            bench.store.close()
            assert bench.ask(TEN).allowed

    def test_threads_share_one_budget(self) -> None:
        """However many threads ask at once, exactly the burst passes, and no two waiters share a slot."""
        limit = TokenBucket("conformance-threads", "1/s", burst=40)
        verdicts: list[Verdict] = []
        with self.bench() as bench:

            def ask_often() -> None:
                for _ in range(20):
                    verdicts.append(bench.ask(limit))

            threads = [threading.Thread(target=ask_often) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        slots = [verdict.slot_us for verdict in verdicts if not verdict.allowed]
        assert len(verdicts) == 160
        assert len(slots) == 120
        assert len(set(slots)) == 120

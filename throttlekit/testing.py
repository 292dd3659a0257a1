"""
For the tests of those who use throttlekit: a clock that stands still, and the behaviour every store must show.

    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    …
    clock.advance(0.6)

    class TestMyStore(StoreConformance):
        def make_store(self) -> Store:
            return MyStore(...)
"""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from throttlekit._core.acquire import Ask, Caller, Place, Reason, Verdict
from throttlekit._core.keys import bucket_name, line_name
from throttlekit._core.limits import TokenBucket
from throttlekit._core.line import GRACE_US, GUESTS_US
from throttlekit.stores._base import Claim, Request, Store

__all__ = ["FakeClock", "StoreConformance"]

_NOW_US = 1_800_000_000_000_000
_SECOND_US = 1_000_000


class FakeClock:
    """
    A clock that moves only when it is told to. Call it to read it, in microseconds.

    Args:
        start_us: What it shows at first.
    """

    def __init__(self, start_us: int = _NOW_US) -> None:
        self._now_us = start_us

    def __call__(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move on by *seconds*; back, if negative. Rounded to whole microseconds."""
        self._now_us += round(seconds * _SECOND_US)


class _Bench:
    """A store under test, and the time it is told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_us = _NOW_US

    def ask(
        self,
        *limits: TokenBucket,
        key: str = "",
        cost: int | None = None,
        caller: Caller = Caller.JOB,
        slot_us: int | None = None,
        of: int = 0,
    ) -> Verdict:
        """One request for *limits*; with *slot_us*, by a holder of that slot in the line of claim *of*."""
        claims = [self.claim(limit, key, cost) for limit in limits]
        place = None if slot_us is None else Place(of, slot_us)
        return self.store.acquire(Request(claims, caller, place), now_us=self.now_us)

    def drain(self, limit: TokenBucket) -> None:
        """Take everything that *limit* has."""
        assert self.ask(limit, cost=limit.burst).allowed, "a bucket that nobody has used is full"

    def tat(self, limit: TokenBucket) -> int | None:
        return self.ask(limit, caller=Caller.PEEK).tats_us[0]

    def reset(self, limit: TokenBucket) -> None:
        claim = self.claim(limit, "", 1)
        self.store.reset([claim.bucket, claim.line])

    @staticmethod
    def claim(limit: TokenBucket, key: str, cost: int | None) -> Claim:
        charge = limit.bucket.charge(limit.cost_of(None) if cost is None else cost)
        return Claim(
            bucket_name(limit.name, key),
            line_name(limit.name, key, limit.fingerprint),
            Ask(charge, charge.charge_us),
        )


_TEN = TokenBucket("conformance", "10/s", burst=5)
_ONE = TokenBucket("conformance-one", "10/s", burst=1)
_SLOW = TokenBucket("conformance-slow", "1/s", burst=1)
_STEP_US = 100_000


class StoreConformance:
    """
    What a store must do, as tests: subclass it in a test module and give `make_store`.

    Needs pytest, or any runner that finds methods by their name. Times are told to the store, so
    nothing sleeps.
    """

    def make_store(self) -> Store:
        """Return a store that knows nothing yet. Called once in each test, and closed at its end."""
        raise NotImplementedError

    def test_full_bucket_passes_its_burst_at_once(self) -> None:
        """A bucket that nobody has used passes as many units as its burst, and not one more."""
        with self._bench() as bench:
            passed = [bench.ask(_TEN).allowed for _ in range(7)]
        assert passed == [True] * 5 + [False] * 2, passed

    def test_denied_just_before_the_promised_instant(self) -> None:
        """One microsecond before the instant that a denial named, the request is denied again."""
        with self._bench() as bench:
            bench.drain(_TEN)
            bench.now_us = bench.ask(_TEN, caller=Caller.GUEST).retry_us - 1
            assert not bench.ask(_TEN, caller=Caller.GUEST).allowed

    def test_admitted_at_the_promised_instant(self) -> None:
        """At the instant that a denial named, the request passes."""
        with self._bench() as bench:
            bench.drain(_TEN)
            denied = bench.ask(_TEN, cost=3, caller=Caller.GUEST)
            assert denied.retry_us == bench.now_us + 3 * _STEP_US, denied
            bench.now_us = denied.retry_us
            assert bench.ask(_TEN, cost=3, caller=Caller.GUEST).allowed

    def test_verdict_tells_the_buckets_after_the_decision(self) -> None:
        """A grant tells when each bucket is full again, the grant itself included."""
        with self._bench() as bench:
            verdict = bench.ask(_TEN, _SLOW)
        assert verdict.tats_us == (_NOW_US + _STEP_US, _NOW_US + _SECOND_US), verdict

    def test_cost_zero_only_looks(self) -> None:
        """A cost of 0 passes an empty bucket, and takes nothing."""
        with self._bench() as bench:
            bench.drain(_TEN)
            before = bench.tat(_TEN)
            assert bench.ask(_TEN, cost=0).allowed
            assert bench.tat(_TEN) == before

    def test_cost_zero_leaves_no_trace_of_a_fresh_key(self) -> None:
        """A look at a key that has never been used leaves it unused."""
        with self._bench() as bench:
            assert bench.ask(_TEN, cost=0).tats_us == (None,)
            assert bench.tat(_TEN) is None

    def test_names_are_counted_apart(self) -> None:
        """Two keys of one limit do not share a bucket."""
        with self._bench() as bench:
            assert bench.ask(_ONE, key="a").allowed
            assert not bench.ask(_ONE, key="a").allowed
            assert bench.ask(_ONE, key="b").allowed

    def test_denial_by_one_claim_charges_no_other(self) -> None:
        """All or nothing: a request that one bucket denies takes nothing from the others."""
        with self._bench() as bench:
            bench.drain(_SLOW)
            for limits in ((_TEN, _SLOW), (_SLOW, _TEN)):
                assert not bench.ask(*limits).allowed
            assert bench.tat(_TEN) is None

    def test_grant_charges_every_claim(self) -> None:
        """A request that passes takes its units from every bucket."""
        with self._bench() as bench:
            assert bench.ask(_ONE, _SLOW).allowed
            assert not bench.ask(_ONE).allowed
            assert not bench.ask(_SLOW).allowed

    def test_binding_claim_has_the_latest_slot(self) -> None:
        """Of several buckets that deny, the one that opens last binds, in any order."""
        with self._bench() as bench:
            bench.drain(_ONE)
            bench.drain(_SLOW)
            for binding, limits in ((1, (_ONE, _SLOW)), (0, (_SLOW, _ONE))):
                verdict = bench.ask(*limits, caller=Caller.PEEK)
                assert (verdict.claim, verdict.slot_us) == (binding, _NOW_US + _SECOND_US), verdict

    def test_denial_books_in_the_binding_line_only(self) -> None:
        """A job that two buckets deny joins one line; the other line stays as it was."""
        with self._bench() as bench:
            bench.drain(_ONE)
            bench.drain(_SLOW)
            bench.ask(_ONE, _SLOW)
            assert bench.ask(_ONE).slot_us == _NOW_US + _STEP_US

    def test_waiters_get_slots_one_charge_apart(self) -> None:
        """No two waiters are told the same instant: their slots stand one charge apart."""
        with self._bench() as bench:
            bench.drain(_TEN)
            slots = [bench.ask(_TEN, cost=cost).slot_us - _NOW_US for cost in (1, 1, 2, 1)]
        assert slots == [1 * _STEP_US, 2 * _STEP_US, 3 * _STEP_US, 5 * _STEP_US], slots

    def test_holder_passes_at_its_slot(self) -> None:
        """A job that comes back at its slot passes while later slots still wait."""
        with self._bench() as bench:
            bench.drain(_TEN)
            first, second = bench.ask(_TEN), bench.ask(_TEN)
            bench.now_us = first.slot_us
            assert bench.ask(_TEN, slot_us=first.slot_us).allowed
            assert bench.ask(_TEN, slot_us=second.slot_us).reason is Reason.EARLY

    def test_newcomer_waits_behind_those_who_wait(self) -> None:
        """While somebody waits, a newcomer is denied though a unit is free, and joins the end."""
        with self._bench() as bench:
            bench.drain(_TEN)
            slots = [bench.ask(_TEN).slot_us for _ in range(4)]
            bench.now_us = slots[1]
            newcomer = bench.ask(_TEN)
            assert newcomer.reason is Reason.IN_LINE, newcomer
            assert newcomer.slot_us == slots[-1] + _STEP_US, newcomer

    def test_exhausted_bucket_is_told_from_a_line(self) -> None:
        """A denial says whether the units are gone or whether others have waited longer."""
        with self._bench() as bench:
            bench.drain(_TEN)
            assert bench.ask(_TEN).reason is Reason.EXHAUSTED
            bench.now_us += _STEP_US
            assert bench.ask(_TEN).reason is Reason.IN_LINE

    def test_early_return_keeps_its_slot(self) -> None:
        """A job that comes back before its slot is told the same slot again."""
        with self._bench() as bench:
            bench.drain(_TEN)
            slots = [bench.ask(_TEN).slot_us for _ in range(3)]
            bench.now_us = slots[1] - 1
            verdict = bench.ask(_TEN, slot_us=slots[1])
        assert (verdict.reason, verdict.slot_us, verdict.retry_us) == (Reason.EARLY, slots[1], slots[1]), verdict

    def test_early_return_books_nothing(self) -> None:
        """A job that comes back before its slot moves nobody behind it."""
        with self._bench() as bench:
            bench.drain(_TEN)
            slot_us = bench.ask(_TEN).slot_us
            for _ in range(3):
                bench.ask(_TEN, slot_us=slot_us)
            assert bench.ask(_TEN).slot_us == slot_us + _STEP_US

    def test_slot_beyond_the_line_is_ignored(self) -> None:
        """A slot further ahead than its line reaches was never given: the job books like a newcomer."""
        with self._bench() as bench:
            bench.drain(_TEN)
            end_us = bench.ask(_TEN).slot_us + _STEP_US
            verdict = bench.ask(_TEN, slot_us=end_us)
        assert (verdict.reason, verdict.slot_us) == (Reason.EXHAUSTED, end_us), verdict

    def test_slot_in_the_past_does_not_fire_by_itself(self) -> None:
        """A slot is right of way only: a holder is denied while the bucket has no unit."""
        with self._bench() as bench:
            bench.drain(_TEN)
            verdict = bench.ask(_TEN, slot_us=_NOW_US - 1)
        assert (verdict.reason, verdict.slot_us) == (Reason.EXHAUSTED, _NOW_US + _STEP_US), verdict

    def test_displaced_holders_line_up_before_newcomers(self) -> None:
        """Holders that come late in a bunch get the next instants in turn, before the rest of the line."""
        with self._bench() as bench:
            bench.drain(_ONE)
            slots = [bench.ask(_ONE).slot_us for _ in range(9)]
            bench.now_us = slots[2]
            outcomes = [bench.ask(_ONE, slot_us=slot_us) for slot_us in slots[:3]]
        assert outcomes[0].allowed
        assert [o.slot_us - slots[2] for o in outcomes[1:]] == [_STEP_US, 2 * _STEP_US], outcomes

    def test_displaced_holders_go_before_newcomers(self) -> None:
        """A newcomer stands behind the displaced, even when nobody else is left in line."""
        with self._bench() as bench:
            bench.drain(_ONE)
            slots = [bench.ask(_ONE).slot_us for _ in range(2)]
            bench.now_us = slots[1] + _STEP_US // 2
            assert bench.ask(_ONE, slot_us=slots[0]).allowed
            displaced = bench.ask(_ONE, slot_us=slots[1])
            assert bench.ask(_ONE).slot_us == displaced.slot_us + _STEP_US

    def test_guests_never_push_jobs_back(self) -> None:
        """A caller that cannot come back takes no place: the next job gets the slot it would have got."""
        with self._bench() as bench:
            bench.drain(_TEN)
            for _ in range(20):
                bench.ask(_TEN, caller=Caller.GUEST)
            assert bench.ask(_TEN).slot_us == _NOW_US + _STEP_US

    def test_guests_are_spread_out(self) -> None:
        """Guests are told different instants, one charge apart."""
        with self._bench() as bench:
            bench.drain(_TEN)
            slots = [bench.ask(_TEN, caller=Caller.GUEST).slot_us - _NOW_US for _ in range(3)]
        assert slots == [_STEP_US, 2 * _STEP_US, 3 * _STEP_US], slots

    def test_guests_are_not_sent_away_for_long(self) -> None:
        """However many guests have asked, the next one is told an instant within the spread."""
        with self._bench() as bench:
            bench.drain(_SLOW)
            for _ in range(100):
                verdict = bench.ask(_SLOW, caller=Caller.GUEST)
        assert verdict.slot_us == verdict.retry_us + GUESTS_US, verdict

    def test_guest_waits_behind_jobs(self) -> None:
        """A guest is a newcomer: it does not pass while jobs wait."""
        with self._bench() as bench:
            bench.drain(_TEN)
            slots = [bench.ask(_TEN).slot_us for _ in range(4)]
            bench.now_us = slots[1]
            verdict = bench.ask(_TEN, caller=Caller.GUEST)
        assert (verdict.reason, verdict.slot_us) == (Reason.IN_LINE, slots[-1] + _STEP_US), verdict

    def test_line_is_honoured_up_to_the_grace_time(self) -> None:
        """Just before the bucket has stood full for the grace time, a newcomer still waits."""
        with self._bench() as bench:
            self._abandoned(bench)
            bench.now_us -= 1
            assert bench.ask(_TEN).reason is Reason.IN_LINE

    def test_abandoned_line_lets_a_newcomer_pass(self) -> None:
        """Once the bucket has stood full for the grace time, those in line are not coming: a newcomer passes."""
        with self._bench() as bench:
            self._abandoned(bench)
            assert bench.ask(_TEN).allowed

    def test_holder_passes_after_the_grace_time(self) -> None:
        """A holder that comes after all passes at its slot like any other."""
        with self._bench() as bench:
            last_us = self._abandoned(bench)
            bench.now_us = last_us
            assert bench.ask(_TEN, slot_us=last_us).allowed

    def test_peek_charges_nothing(self) -> None:
        """A peek that would pass leaves the bucket as it was."""
        with self._bench() as bench:
            for _ in range(9):
                assert bench.ask(_TEN, caller=Caller.PEEK).allowed
            assert bench.tat(_TEN) is None

    def test_peek_books_nothing(self) -> None:
        """A peek that would be denied leaves the line as it was."""
        with self._bench() as bench:
            bench.drain(_TEN)
            for _ in range(9):
                verdict = bench.ask(_TEN, caller=Caller.PEEK)
                assert (verdict.reason, verdict.slot_us) == (Reason.EXHAUSTED, _NOW_US + _STEP_US), verdict
            assert bench.ask(_TEN).slot_us == _NOW_US + _STEP_US

    def test_reset_fills_the_bucket(self) -> None:
        """After a reset the whole burst passes again."""
        with self._bench() as bench:
            bench.drain(_TEN)
            bench.reset(_TEN)
            bench.drain(_TEN)

    def test_reset_empties_the_line(self) -> None:
        """After a reset nobody waits: the first to be denied gets the first slot."""
        with self._bench() as bench:
            bench.drain(_TEN)
            for _ in range(9):
                bench.ask(_TEN)
            bench.reset(_TEN)
            bench.drain(_TEN)
            assert bench.ask(_TEN).slot_us == _NOW_US + _STEP_US

    def test_reset_of_what_is_not_there_is_quiet(self) -> None:
        """Forgetting what was never known is no error."""
        with self._bench() as bench:
            bench.reset(_TEN)
            assert bench.tat(_TEN) is None

    def test_raised_limit_takes_effect_at_once(self) -> None:
        """One a day turned into a hundred a second does not block for a day."""
        day, fast = TokenBucket("redefined", "1/day"), TokenBucket("redefined", "100/s", burst=10)
        with self._bench() as bench:
            bench.drain(day)
            denied = bench.ask(fast)
            assert denied.slot_us == _NOW_US + 10_000, denied
            bench.now_us = denied.slot_us
            assert bench.ask(fast, slot_us=denied.slot_us).allowed

    def test_looking_at_a_stale_bucket_changes_nothing(self) -> None:
        """A peek under a new definition leaves what the old one wrote."""
        day, fast = TokenBucket("redefined", "1/day"), TokenBucket("redefined", "100/s", burst=10)
        with self._bench() as bench:
            bench.drain(day)
            before = bench.tat(day)
            bench.ask(fast, caller=Caller.PEEK)
            bench.ask(fast, cost=0)
            assert bench.tat(day) == before

    def test_two_definitions_do_not_forgive_each_other(self) -> None:
        """While a fleet holds two definitions of a limit, a denial by the smaller one gives nothing back to the larger."""
        small, large = TokenBucket("redefined", "100/s", burst=100), TokenBucket("redefined", "100/s", burst=1000)
        with self._bench() as bench:
            bench.drain(large)
            assert not bench.ask(small).allowed
            assert not bench.ask(large).allowed
            assert bench.tat(large) == _NOW_US + 10 * _SECOND_US

    def test_lowered_limit_admits_its_new_burst_at_most(self) -> None:
        """A lowered limit passes no more than its new burst, whatever the old one had left."""
        fast, slow = TokenBucket("redefined", "100/s", burst=100), TokenBucket("redefined", "1/minute", burst=3)
        with self._bench() as bench:
            assert bench.ask(fast).allowed
            passed = [bench.ask(slow, caller=Caller.GUEST).allowed for _ in range(9)]
        assert sum(passed) <= 3, passed

    def test_clock_that_falls_back_admits_nothing_extra(self) -> None:
        """After the clock has jumped back, nothing passes that would not have passed before."""
        with self._bench() as bench:
            bench.drain(_TEN)
            for back_us in (1, _STEP_US, 30 * _SECOND_US):
                bench.now_us = _NOW_US - back_us
                assert not bench.ask(_TEN, caller=Caller.GUEST).allowed

    def test_clock_that_was_far_ahead_does_not_block_for_long(self) -> None:
        """After the clock has been a day ahead, units pass at the limit's rate again, and no faster."""
        with self._bench() as bench:
            bench.now_us = _NOW_US + 86_400 * _SECOND_US
            bench.drain(_TEN)
            bench.now_us = _NOW_US
            denied = bench.ask(_TEN, caller=Caller.GUEST)
            assert (denied.allowed, denied.retry_us) == (False, _NOW_US + _STEP_US), denied
            bench.now_us = denied.retry_us
            assert bench.ask(_TEN, caller=Caller.GUEST).allowed
            assert not bench.ask(_TEN, caller=Caller.GUEST).allowed

    def test_long_periods_are_exact_to_the_microsecond(self) -> None:
        """A period of days loses no microsecond on its way through the store."""
        long = TokenBucket("conformance-long", (3, 100_000.000_003), burst=3)
        with self._bench() as bench:
            bench.now_us += 7
            bench.ask(long)
            assert bench.tat(long) == _NOW_US + 7 + 33_333_333_335 - 1

    def test_store_owns_the_clock(self) -> None:
        """Without a time given, the store tells its own, and it goes on."""
        with self._bench() as bench:
            request = Request([bench.claim(_TEN, "", 1)], Caller.JOB)
            verdicts = [bench.store.acquire(request) for _ in range(3)]
        assert verdicts[0].now_us > 0
        assert [v.now_us for v in verdicts] == sorted(v.now_us for v in verdicts)
        assert all(v.allowed for v in verdicts)

    def test_works_again_after_close(self) -> None:
        """A store that was closed may be used again."""
        with self._bench() as bench:
            assert bench.ask(_TEN).allowed
            bench.store.close()
            assert bench.ask(_TEN).allowed

    def test_threads_share_one_budget(self) -> None:
        """However many threads ask at once, exactly the burst passes, and no two waiters share a slot."""
        limit = TokenBucket("conformance-threads", "1/s", burst=40)
        verdicts: list[Verdict] = []
        with self._bench() as bench:

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

    @contextlib.contextmanager
    def _bench(self) -> Iterator[_Bench]:
        store = self.make_store()
        try:
            yield _Bench(store)
        finally:
            store.close()

    @staticmethod
    def _abandoned(bench: _Bench) -> int:
        """Line up more jobs than come back, go to the end of the grace time, and return the last slot."""
        bench.drain(_TEN)
        for _ in range(100):
            last_us = bench.ask(_TEN).slot_us
        full_us = bench.tat(_TEN)
        assert full_us is not None
        bench.now_us = full_us + GRACE_US
        return last_us

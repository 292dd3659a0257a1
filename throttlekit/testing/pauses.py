"""A store's tests for pauses, for each algorithm."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller, Reason
from throttlekit.testing.bench import SECOND_US, Bench, ConformanceSuite
from throttlekit.testing.cases import CASES, Case, for_each

__all__ = ["PauseConformance"]


class PauseConformance(ConformanceSuite):
    @for_each(CASES)
    def test_nothing_passes_during_a_pause(self, bench: Bench, case: Case) -> None:
        """To the last microsecond, for every caller; at its end nothing has refilled yet."""
        bench.store.pause([bench.claim(case.limit)], 7200 * SECOND_US, now_us=bench.now_us)
        until_us = bench.now_us + 7200 * SECOND_US
        for now_us in (bench.now_us, until_us - 1):
            bench.now_us = now_us
            for caller in (Caller.PEEK, Caller.GUEST):
                verdict = bench.ask(case.limit, caller=caller)
                assert (verdict.reason, verdict.retry_us > until_us) == (Reason.PAUSED, True), verdict
        bench.now_us = until_us
        assert bench.passing(case.limit) <= 2

    @for_each(CASES)
    def test_resume_ends_a_pause_and_no_burst_follows(self, bench: Bench, case: Case) -> None:
        """From then on it refills; the whole capacity is there no sooner than after it was used up."""
        claims = [bench.claim(case.limit)]
        bench.store.pause(claims, None, now_us=bench.now_us)
        assert bench.untouched(case.limit)
        bench.store.pause(claims, 7200 * SECOND_US, now_us=bench.now_us)
        bench.store.pause(claims, None, now_us=bench.now_us)
        seen = bench.look(case.limit, cost=case.limit.capacity)
        assert seen.reason is Reason.EXHAUSTED, seen
        bench.now_us = seen.retry_us
        assert bench.ask(case.limit).allowed

    @for_each(CASES)
    def test_longer_pause_wins(self, bench: Bench, case: Case) -> None:
        """A later pause that ends sooner shortens nothing."""
        claims = [bench.claim(case.limit)]
        bench.store.pause(claims, 60 * SECOND_US, now_us=bench.now_us)
        bench.store.pause(claims, SECOND_US, now_us=bench.now_us)
        bench.now_us += 60 * SECOND_US - 1
        assert bench.look(case.limit).reason is Reason.PAUSED

    @for_each(CASES)
    def test_other_keys_are_not_paused(self, bench: Bench, case: Case) -> None:
        """A pause concerns the key that it names."""
        bench.store.pause([bench.claim(case.limit, "a")], 60 * SECOND_US, now_us=bench.now_us)
        assert bench.look(case.limit, key="b").allowed
        assert bench.look(case.limit, key="a").reason is Reason.PAUSED

    @for_each(CASES)
    def test_waiting_jobs_are_due_after_the_pause(self, bench: Bench, case: Case) -> None:
        """In their order, and newcomers after them; when they come back then, they pass."""
        bench.drain(case.limit)
        waiting = [bench.ask(case.limit) for _ in range(3)]
        until_us = waiting[-1].due_us + 3600 * SECOND_US
        bench.store.pause([bench.claim(case.limit)], until_us - bench.now_us, now_us=bench.now_us)
        bench.now_us = waiting[-1].due_us
        paused = [bench.ask(case.limit, back=denied) for denied in waiting[::-1]][::-1]
        due = [denied.due_us for denied in (*paused, bench.look(case.limit))]
        assert until_us < due[0], due
        assert due == sorted(due), due
        for denied in paused:
            assert denied.reason is Reason.PAUSED
            again = denied
            while not again.allowed:
                bench.now_us = max(bench.now_us, again.due_us)
                again = bench.ask(case.limit, back=again)
            assert bench.now_us <= due[-1] + 4 * case.next_us, "each comes a few times at most"

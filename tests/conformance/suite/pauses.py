"""A store's tests for pauses, for each algorithm."""

from __future__ import annotations

from conformance.suite.bench import SECOND_US, Bench, ConformanceSuite
from conformance.suite.cases import CASES, Case, for_each
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.answer import Caller, Reason

__all__ = ["PauseConformance"]

_KINDS = (("pause", False), ("429", True))
"""The keys that tests use, and whether a 429 pauses them."""


class PauseConformance(ConformanceSuite):
    @for_each(CASES)
    def test_nothing_passes_during_a_pause(self, bench: Bench, case: Case) -> None:
        """To the last microsecond, for every caller. At its end all is there; after a 429 nothing has refilled yet."""
        until_us = bench.now_us + 7200 * SECOND_US
        for key, emptied in _KINDS:
            bench.store.pause([bench.claim(case.limit, key)], 7200 * SECOND_US, now_us=bench.now_us, emptied=emptied)
        for now_us in (bench.now_us, until_us - 1):
            bench.now_us = now_us
            for key, _ in _KINDS:
                for caller in (Caller.PEEK, Caller.WITHOUT_JOB):
                    answer = bench.ask(case.limit, key=key, caller=caller)
                    assert (answer.reason, answer.retry_us >= until_us) == (Reason.PAUSED, True), answer
        bench.now_us = until_us
        assert bench.passing(case.limit, key="pause") == case.limit.capacity
        # Of a fixed window as much is left as of its time.
        most = case.limit.capacity - 1 if isinstance(case.limit, FixedWindow) else 2
        assert bench.passing(case.limit, key="429") <= most

    @for_each(CASES)
    def test_a_pause_leaves_what_is_counted(self, bench: Bench, case: Case) -> None:
        """What is used stays so until its time, and what is there passes after `resume`."""
        claims = [bench.claim(case.limit)]
        assert bench.ask(case.limit).allowed
        before = bench.use(case.limit)
        bench.store.pause(claims, 7200 * SECOND_US, now_us=bench.now_us)
        assert bench.use(case.limit) == before
        bench.store.pause(claims, None, now_us=bench.now_us)
        assert bench.use(case.limit) == before
        assert bench.passing(case.limit) == case.limit.capacity - 1

    @for_each(CASES)
    def test_a_pause_and_a_429_end_each_in_its_own_time(self, bench: Bench, case: Case) -> None:
        """In either order: jobs pass once both are over, and the limit fills from the end of the 429."""
        hour_us = 3600 * SECOND_US
        for key, order in (("a", (True, False)), ("b", (False, True))):
            for emptied in order:
                for_us = SECOND_US if emptied else hour_us
                bench.store.pause([bench.claim(case.limit, key)], for_us, now_us=bench.now_us, emptied=emptied)
            assert bench.look(case.limit, key=key).reason is Reason.PAUSED
        bench.now_us += hour_us - 1
        assert [bench.look(case.limit, key=key).reason for key in "ab"] == [Reason.PAUSED] * 2
        alone = bench.claim(case.limit, "c")
        bench.store.pause([alone], 0, now_us=bench.now_us + 1 - hour_us + SECOND_US, emptied=True)
        bench.now_us += 1
        passing = [bench.passing(case.limit, key=key) for key in "abc"]
        assert passing[:2] == passing[2:] * 2

    @for_each(CASES)
    def test_resume_after_a_429_lets_no_burst_follow(self, bench: Bench, case: Case) -> None:
        """From then on it refills; the whole capacity is there no sooner than after it was used up."""
        claims = [bench.claim(case.limit)]
        bench.store.pause(claims, None, now_us=bench.now_us)
        assert bench.untouched(case.limit)
        bench.now_us += case.limit.period_us // 3
        bench.store.pause(claims, 7200 * SECOND_US, now_us=bench.now_us, emptied=True)
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
    def test_jobs_that_wait_pass_after_the_pause(self, bench: Bench, case: Case) -> None:
        """None is woken before its end; then they pass in their order, and newcomers after them."""
        for key, emptied in _KINDS:
            bench.now_us = case.start_us
            bench.drain(case.limit, key=key)
            ids = [f"{key} {number}" for number in range(3)]
            until_us = max(bench.ask(case.limit, key=key, job=id).retry_us for id in ids) + 3600 * SECOND_US
            claims = [bench.claim(case.limit, key)]
            bench.store.pause(claims, until_us - bench.now_us, now_us=bench.now_us, emptied=emptied)
            bench.now_us = until_us - 1
            assert bench.woken(case.limit, key) == []
            assert bench.ask(case.limit, key=key, job=ids[0]).reason is Reason.PAUSED
            passed, bench.now_us = list[str](), until_us
            while len(passed) < len(ids):
                for id in bench.woken(case.limit, key):
                    passed += [id] * bench.ask(case.limit, key=key, job=id).allowed
                bench.now_us = max(bench.now_us + 1, bench.look(case.limit, key=key, job=ids[-1]).retry_us)
            assert passed == ids

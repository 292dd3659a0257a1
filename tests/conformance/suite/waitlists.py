"""A store's tests for waitlists: an order, and who may ask next."""

from __future__ import annotations

from conformance.suite.bench import NOW_US, SECOND_US, SLOW, STEP_US, TEN, Bench, ConformanceSuite
from conformance.suite.cases import CASES, Case, for_each
from throttlekit._core.answer import Caller, Reason
from throttlekit._core.waitlist import State

__all__ = ["WaitlistConformance"]


class WaitlistConformance(ConformanceSuite):
    @for_each(CASES)
    def test_jobs_are_told_by_rank_and_rate(self, bench: Bench, case: Case) -> None:
        """A denial tells about when the job passes: from the units that wait before it, and from the rate."""
        jobs = case.limit.amount
        retries = [bench.ask(case.limit, job=id).retry_us for id in _denied(bench, case, jobs)]
        assert retries == [case.passes_us(ahead) for ahead in range(jobs)], retries

    def test_job_of_more_units_takes_as_much_of_the_rate(self) -> None:
        """A job that costs two units passes when two are there, and jobs behind it later."""
        with self.bench() as bench:
            bench.drain(TEN)
            for id, cost in (("a", 1), ("b", 2), ("c", 1)):
                bench.ask(TEN, cost=cost, job=id)
            passed: list[tuple[str, int]] = []
            for step in range(1, 5):
                bench.now_us = NOW_US + step * STEP_US
                for id in bench.woken(TEN):
                    assert bench.ask(TEN, cost=2 if id == "b" else 1, job=id).allowed
                    passed.append((id, step))
            assert passed == [("a", 1), ("b", 3), ("c", 4)], passed

    @for_each(CASES)
    def test_every_job_passes_when_it_is_woken(self, bench: Bench, case: Case) -> None:
        """Jobs are woken in the order in which they came, each when its units are there, and then pass."""
        ids, passed = _denied(bench, case, 12), list[str]()
        while len(passed) < len(ids):
            bench.now_us = max(bench.now_us + 1, bench.look(case.limit, job=ids[len(passed)]).retry_us)
            now = bench.pass_woken(case.limit)
            assert now, "who is told an instant passes then"
            passed += now
        assert passed == ids, passed

    @for_each(CASES)
    def test_as_many_pass_as_there_are_units(self, bench: Bench, case: Case) -> None:
        """When some units are back, those pass who came first, and no other."""
        ids = _denied(bench, case, 7)
        bench.now_us = case.start_us + case.first_us
        assert not bench.ask(case.limit, job=ids[-1]).allowed
        assert bench.pass_woken(case.limit) == ids[: case.together]
        assert not any(bench.ask(case.limit, job=id).allowed for id in ids[case.together :])

    @for_each(CASES)
    def test_newcomer_waits_behind_those_that_wait(self, bench: Bench, case: Case) -> None:
        """While jobs wait for all the units that are there, neither a new job passes nor a caller without one."""
        ids = _denied(bench, case, 5)
        bench.now_us = case.start_us + case.first_us
        assert [bench.ask(case.limit, job="new").reason, bench.ask(case.limit).reason] == [Reason.IN_LINE] * 2
        assert bench.pass_woken(case.limit) == ids[: case.together]
        assert bench.store.where([bench.claim(case.limit)], "new") is not None

    @for_each(CASES)
    def test_job_that_asks_too_soon_keeps_its_position(self, bench: Bench, case: Case) -> None:
        """It takes nothing, and leaves the others as they are."""
        ids = _denied(bench, case, 7)
        before = bench.use(case.limit)
        for now_us in (case.start_us, case.start_us + case.first_us - SECOND_US // 20):
            bench.now_us = now_us
            assert not bench.ask(case.limit, job=ids[-1]).allowed
        assert bench.use(case.limit) == before
        found = bench.store.where([bench.claim(case.limit)], ids[-1], bench.now_us)
        assert found is not None
        assert (found.state, found.position) == (State.WAITING, 6), found

    @for_each(CASES)
    def test_units_that_are_gone_as_a_job_asks(self, bench: Bench, case: Case) -> None:
        """A job that was woken, and finds no unit, is denied; it stays before the others."""
        first, second = _denied(bench, case, 2)
        bench.now_us = case.start_us + case.first_us
        assert first in bench.woken(case.limit)
        bench.settle(case.limit, was=0, actual=case.limit.capacity)
        assert bench.ask(case.limit, job=first).reason is Reason.EXHAUSTED
        bench.now_us = bench.look(case.limit, job=first).retry_us
        assert bench.pass_woken(case.limit)[0] == first
        assert bench.store.where([bench.claim(case.limit)], first) is None, second

    def test_reason_says_exhausted_or_in_line(self) -> None:
        """A denial says whether no unit is left or whether other jobs wait before this one."""
        with self.bench() as bench:
            bench.drain(TEN)
            assert bench.ask(TEN, job="first").reason is Reason.EXHAUSTED
            bench.now_us += STEP_US
            assert bench.ask(TEN, job="second").reason is Reason.IN_LINE

    @for_each(CASES)
    def test_job_that_waits_no_longer_holds_no_other_back(self, bench: Bench, case: Case) -> None:
        """Those behind it move up at once; to forget a job a second time changes nothing."""
        first, second, third = _denied(bench, case, 3)
        for _ in range(2):
            bench.forget(case.limit, job=first)
            assert bench.store.list_waiting(bench.claim(case.limit), 3).first == (("bench", second), ("bench", third))
        bench.now_us = case.start_us + case.first_us
        assert bench.woken(case.limit)[0] == second
        assert bench.ask(case.limit, job=second).allowed

    @for_each(CASES)
    def test_job_that_ran_goes_before_those_that_did_not(self, bench: Bench, case: Case) -> None:
        """A job that has to wait once more passes before all that wait."""
        _denied(bench, case, 3)
        assert not bench.ask(case.limit, job="again", caller=Caller.AGAIN).allowed
        bench.now_us = case.start_us + case.first_us
        assert bench.woken(case.limit)[0] == "again"
        assert bench.ask(case.limit, job="again").allowed

    @for_each(CASES)
    def test_callers_without_a_job_keep_no_position(self, bench: Bench, case: Case) -> None:
        """They are told instants apart; and the next job passes when it would have."""
        bench.drain(case.limit)
        retries = [bench.ask(case.limit).retry_us for _ in range(12)]
        assert retries == sorted(retries), retries
        assert retries[1] > retries[0], retries
        assert bench.ask(case.limit, job="first").retry_us == case.passes_us(0)
        assert bench.store.list_waiting(bench.claim(case.limit)).jobs == 1

    @for_each(CASES)
    def test_job_that_is_held_back_elsewhere_keeps_its_position(self, bench: Bench, case: Case) -> None:
        """A job that another limit denies has a position here, and passes before all that came later."""
        bench.now_us = case.start_us
        bench.drain(SLOW)
        denied = bench.ask(case.limit, SLOW, job="both")
        assert (denied.reason, denied.claim) == (Reason.EXHAUSTED, 1)
        bench.drain(case.limit)
        assert not bench.ask(case.limit, job="later").allowed
        bench.now_us = case.start_us + max(case.first_us, SECOND_US)
        assert bench.woken(SLOW) == ["both"]
        if not bench.ask(case.limit, SLOW, job="both").allowed:  # now it waits here, and is the first
            assert bench.woken(case.limit)[0] == "both"
            assert bench.ask(case.limit, SLOW, job="both").allowed

    def test_tenants_take_turns(self) -> None:
        """Of a limit with shares, the job of a tenant with few passes before the many of another."""
        with self.bench() as bench:
            bench.drain(TEN)
            for number in range(5):
                bench.ask(TEN, job=f"many {number}", tenant="many")
            bench.ask(TEN, job="few", tenant="few")
            bench.now_us += 2 * STEP_US
            assert sorted(bench.woken(TEN)) == ["few", "many 0"]


def _denied(bench: Bench, case: Case, jobs: int) -> list[str]:
    """The ids of so many jobs that wait for a limit whose capacity was just taken."""
    bench.now_us = case.start_us
    bench.drain(case.limit)
    ids = [f"job {number}" for number in range(jobs)]
    for id in ids:
        assert not bench.ask(case.limit, job=id).allowed
    return ids

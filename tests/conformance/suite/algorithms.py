"""A store's tests for one limit, for each algorithm."""

from __future__ import annotations

from conformance.suite.bench import SECOND_US, Bench, ConformanceSuite, run_in_threads
from conformance.suite.cases import BURST_CASES, CASES, Case, for_each
from throttlekit._core.answer import Answer, Caller, Reason
from throttlekit._core.limit.base import altered

__all__ = ["AlgorithmConformance"]

_FAR_US = 40 * 86_400 * SECOND_US


class AlgorithmConformance(ConformanceSuite):
    @for_each(CASES)
    def test_whole_capacity_passes_one_by_one(self, bench: Bench, case: Case) -> None:
        """An unused limit lets as many units pass as it can hold at once, and no more."""
        capacity = case.limit.capacity
        passed = [bench.ask(case.limit).allowed for _ in range(capacity + 2)]
        assert passed == [True] * capacity + [False] * 2, passed

    @for_each(CASES)
    def test_whole_capacity_passes_in_one(self, bench: Bench, case: Case) -> None:
        """One request may take the whole capacity; then nothing is left."""
        bench.drain(case.limit)
        assert (bench.left(case.limit), bench.passing(case.limit)) == (0, 0)

    @for_each(BURST_CASES)
    def test_request_takes_as_many_units_as_it_costs(self, bench: Bench, case: Case) -> None:
        """A cost counts in full: of 5 units, after 3 are taken, another 3 do not pass, and 2 do."""
        assert bench.ask(case.limit, cost=3).allowed
        assert not bench.ask(case.limit, cost=3, caller=Caller.WITHOUT_JOB, max_wait_us=0).allowed
        assert bench.left(case.limit) == 2
        assert bench.ask(case.limit, cost=2).allowed
        assert bench.left(case.limit) == 0

    @for_each(CASES)
    def test_one_unit_passes_at_the_promised_instant(self, bench: Bench, case: Case) -> None:
        """A request is denied one microsecond before the instant that its denial named, and passes at that instant."""
        bench.drain(case.limit)
        denied = bench.ask(case.limit, caller=Caller.WITHOUT_JOB)
        assert (denied.reason, denied.retry_us) == (Reason.EXHAUSTED, case.start_us + case.first_us), denied
        bench.now_us = denied.retry_us - 1
        assert not bench.ask(case.limit, caller=Caller.WITHOUT_JOB).allowed
        bench.now_us = denied.retry_us
        assert bench.ask(case.limit, caller=Caller.WITHOUT_JOB).allowed

    @for_each(CASES)
    def test_whole_capacity_passes_at_the_promised_instant(self, bench: Bench, case: Case) -> None:
        """The same holds for a request that costs the whole capacity."""
        limit = case.limit
        bench.drain(limit)
        denied = bench.ask(limit, cost=limit.capacity, caller=Caller.WITHOUT_JOB)
        assert denied.retry_us == case.start_us + case.whole_us, denied
        bench.now_us = denied.retry_us - 1
        assert not bench.ask(limit, cost=limit.capacity, caller=Caller.WITHOUT_JOB).allowed
        bench.now_us = denied.retry_us
        assert bench.ask(limit, cost=limit.capacity, caller=Caller.WITHOUT_JOB).allowed

    @for_each(CASES)
    def test_verdict_has_the_use(self, bench: Bench, case: Case) -> None:
        """A answer has how much is left after the request, and when nothing counts any more."""
        limit = case.limit
        use = bench.ask(limit, cost=limit.capacity).uses[0]
        assert use is not None
        assert use.full_us == case.start_us + case.full_us, use
        assert limit.remaining(use, bench.now_us) == 0, use

    @for_each(CASES)
    def test_nothing_counts_once_it_is_full(self, bench: Bench, case: Case) -> None:
        """At that instant all units are back, and not more than all."""
        bench.drain(case.limit)
        bench.now_us += case.full_us
        assert bench.left(case.limit) == case.limit.capacity
        assert bench.passing(case.limit) == case.limit.capacity

    @for_each(CASES)
    def test_nothing_counts_long_after(self, bench: Bench, case: Case) -> None:
        """A limit that was idle for long is full, and not fuller: its old state does no harm."""
        bench.drain(case.limit)
        bench.now_us += _FAR_US
        assert bench.passing(case.limit) == case.limit.capacity

    @for_each(CASES)
    def test_cost_zero_takes_nothing(self, bench: Bench, case: Case) -> None:
        """A cost of 0 passes when nothing is left, and takes nothing."""
        bench.drain(case.limit)
        before = bench.use(case.limit)
        assert bench.ask(case.limit, cost=0).allowed
        assert bench.use(case.limit) == before

    @for_each(CASES)
    def test_cost_zero_leaves_no_trace_of_a_fresh_key(self, bench: Bench, case: Case) -> None:
        """A cost of 0 leaves a key that was never used unused."""
        assert bench.ask(case.limit, cost=0).uses == ((0, bench.now_us),)
        assert bench.untouched(case.limit)

    @for_each(CASES)
    def test_peek_takes_nothing(self, bench: Bench, case: Case) -> None:
        """A peek that would pass leaves the limit as it was."""
        for _ in range(9):
            assert bench.look(case.limit).allowed
        assert bench.untouched(case.limit)

    @for_each(CASES)
    def test_peek_keeps_no_position(self, bench: Bench, case: Case) -> None:
        """A peek that would be denied leaves the waitlist as it was."""
        bench.drain(case.limit)
        first_us = case.start_us + case.first_us
        for _ in range(9):
            answer = bench.look(case.limit)
            assert (answer.reason, answer.retry_us) == (Reason.EXHAUSTED, first_us), answer
        assert bench.ask(case.limit, job="first").retry_us == first_us

    @for_each(CASES)
    def test_denial_takes_nothing(self, bench: Bench, case: Case) -> None:
        """Any number of denials changes neither what is used nor when the request would pass."""
        bench.drain(case.limit)
        before = bench.use(case.limit)
        assert not any(bench.ask(case.limit).allowed for _ in range(9))
        assert (bench.look(case.limit).retry_us, bench.use(case.limit)) == (case.start_us + case.first_us, before)

    @for_each(CASES)
    def test_keys_are_counted_apart(self, bench: Bench, case: Case) -> None:
        """Two keys of one limit share neither units nor a waitlist."""
        bench.drain(case.limit, key="a")
        bench.ask(case.limit, key="a", job="waits")
        assert bench.left(case.limit, key="b") == case.limit.capacity
        assert bench.passing(case.limit, key="b") == case.limit.capacity

    @for_each(CASES)
    def test_definitions_of_one_name_are_counted_apart(self, bench: Bench, case: Case) -> None:
        """Limits of one name and key with another algorithm or other numbers do not share state."""
        for other in CASES:
            if other is not case:
                bench.drain(other.limit)
                bench.ask(other.limit, job="waits")
        assert bench.untouched(case.limit)
        assert bench.passing(case.limit) == case.limit.capacity

    @for_each(CASES)
    def test_limit_defined_anew_begins_anew(self, bench: Bench, case: Case) -> None:
        """A new rate counts by itself, at once; the old rate still holds for processes that have it."""
        limit = case.limit
        raised = type(limit)(limit.name, "700/h")
        bench.drain(limit)
        assert bench.untouched(raised)
        bench.drain(raised)
        assert (bench.passing(limit), bench.passing(raised)) == (0, 0)

    @for_each(CASES)
    def test_rate_that_is_set_counts_in_the_same_place(self, bench: Bench, case: Case) -> None:
        """
        At ten times the rate a bucket that was used up is used up, and a window has what its amount has more; what
        the declared rate charged is given back there; and a caller that looks by the declared rate changes nothing.
        """
        limit = case.limit
        if (rate := limit.rate_from(10 * limit.amount, limit.period_us)) is None or not limit.period_us:
            return
        faster = altered(limit, rate)
        if faster.declared is None:
            return
        bench.drain(limit)
        assert bench.passing(faster) == max(0, faster.amount - limit.amount) * (not hasattr(limit, "bucket"))
        assert bench.left(limit) == 0
        bench.settle(limit, was=1, actual=0)
        assert (bench.passing(faster), bench.left(limit), bench.left(faster)) == (1, 0, 0)
        if hasattr(limit, "bucket"):
            bench.now_us += -(-case.first_us // 10) + 1
            assert bench.left(limit) <= 1
            assert bench.passing(faster) == 1

    @for_each(CASES)
    def test_reset_gives_everything_back(self, bench: Bench, case: Case) -> None:
        """After a reset the limit is as if it had never been used."""
        bench.drain(case.limit)
        bench.reset(case.limit)
        assert bench.untouched(case.limit)
        assert bench.passing(case.limit) == case.limit.capacity

    @for_each(CASES)
    def test_reset_empties_the_waitlist(self, bench: Bench, case: Case) -> None:
        """After a reset nobody waits: the first job that is denied gets the first position."""
        bench.drain(case.limit)
        for number in range(9):
            bench.ask(case.limit, job=f"before {number}")
        bench.reset(case.limit)
        bench.drain(case.limit)
        assert bench.ask(case.limit, job="after").retry_us == case.start_us + case.first_us

    @for_each(CASES)
    def test_reset_of_an_unused_limit(self, bench: Bench, case: Case) -> None:
        """To reset an unused limit is not an error."""
        bench.reset(case.limit)
        assert bench.untouched(case.limit)

    @for_each(CASES)
    def test_clock_that_steps_back_admits_nothing_extra(self, bench: Bench, case: Case) -> None:
        """After the clock has stepped back, nothing passes that would not have passed before."""
        bench.drain(case.limit)
        for back_us in (1, 100_000, 30 * SECOND_US, 60 * SECOND_US):
            bench.now_us = case.start_us - back_us
            assert bench.passing(case.limit) == 0, back_us
        bench.now_us = case.start_us + case.first_us - 1
        assert bench.passing(case.limit) == 0

    @for_each(BURST_CASES)
    def test_units_taken_on_a_clock_that_stepped_back_count(self, bench: Bench, case: Case) -> None:
        """Units taken after the clock has stepped back count with the rest, in whichever window they fall."""
        assert bench.ask(case.limit, cost=2).allowed
        bench.now_us -= 30 * SECOND_US
        passed = bench.passing(case.limit)
        assert passed <= 3, passed
        bench.now_us = case.start_us
        assert passed + bench.passing(case.limit) == 3
        assert bench.look(case.limit, cost=5).retry_us == case.start_us + case.whole_us

    @for_each(CASES)
    def test_clock_that_was_far_ahead_does_not_block_for_long(self, bench: Bench, case: Case) -> None:
        """After the clock was far ahead, the limit counts as just used up: for no longer, and no shorter."""
        bench.now_us += _FAR_US
        bench.drain(case.limit)
        bench.now_us = case.start_us
        denied = bench.ask(case.limit, caller=Caller.WITHOUT_JOB)
        assert (denied.reason, denied.retry_us) == (Reason.EXHAUSTED, case.start_us + case.first_us), denied
        bench.now_us = denied.retry_us
        assert bench.passing(case.limit) >= 1
        bench.now_us = case.start_us + 2 * case.full_us
        assert bench.passing(case.limit) <= case.limit.capacity

    @for_each(CASES)
    def test_threads_share_one_budget(self, bench: Bench, case: Case) -> None:
        """With any number of threads, exactly the capacity passes, and each job that waits has a rank of its own."""
        limit = case.limit
        answers: list[Answer] = []

        bench.ask(limit, cost=0, job="listens")

        def work(thread: int) -> None:
            answers.extend(bench.ask(limit, job=f"{thread}-{number}") for number in range(10))

        run_in_threads(8, work)
        retries = [answer.retry_us for answer in answers if not answer.allowed]
        assert len(retries) == 80 - limit.capacity
        assert sorted(retries)[: limit.amount] == [case.passes_us(ahead) for ahead in range(limit.amount)]

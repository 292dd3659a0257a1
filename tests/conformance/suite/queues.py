"""A store's tests for the bounded queue of a limit."""

from __future__ import annotations

from conformance.suite.bench import NAME, NOW_US, SLOW, STEP_US, ConformanceSuite
from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket
from throttlekit._core.answer import Caller, Reason

__all__ = ["QueueConformance"]


class QueueConformance(ConformanceSuite):
    def test_full_queue_denies_newcomers(self) -> None:
        """As many jobs wait as the queue takes; the next is denied with "queue full", and does not wait."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            waiting = [bench.ask(limit, job=str(number)).reason for number in range(3)]
            assert waiting == [Reason.EXHAUSTED] * 3, waiting
            for number in range(5):
                assert bench.ask(limit, job=f"new {number}").reason is Reason.FULL
            assert bench.ask(limit).reason is Reason.FULL
            assert bench.look(limit).reason is Reason.FULL
            assert bench.store.list_waiting(bench.claim(limit)).jobs == 3

    def test_jobs_in_a_full_queue_keep_their_positions(self) -> None:
        """A job that waits in a full queue is no newcomer: it is not refused, and passes in its turn."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            for number in range(3):
                bench.ask(limit, job=str(number))
            assert bench.ask(limit, job="new").reason is Reason.FULL
            assert bench.ask(limit, job="2").reason is Reason.EXHAUSTED
            for number in range(3):
                bench.now_us += STEP_US
                assert bench.woken(limit) == [str(number)]
                assert bench.ask(limit, job=str(number)).allowed

    def test_queue_has_room_again_when_a_job_has_passed_or_left(self) -> None:
        """Each job that passes, or waits no longer, makes room for one."""
        limit = LeakyBucket(NAME, "10/s", queue=2)
        with self.bench() as bench:
            bench.drain(limit)
            for id in ("first", "second"):
                bench.ask(limit, job=id)
            assert bench.ask(limit, job="third").reason is Reason.FULL
            bench.now_us += STEP_US
            assert bench.woken(limit) == ["first"]
            assert bench.ask(limit, job="first").allowed
            assert [bench.ask(limit, job=id).reason for id in ("third", "fourth")] == [Reason.EXHAUSTED, Reason.FULL]
            bench.forget(limit, job="second")
            assert [bench.ask(limit, job=id).reason for id in ("fourth", "fifth")] == [Reason.EXHAUSTED, Reason.FULL]

    def test_job_that_ran_passes_a_full_queue(self) -> None:
        """The queue is for new jobs: one that ran, and has to wait once more, waits however full the queue is."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert bench.ask(limit, job="new").reason is Reason.FULL
            again = bench.ask(limit, job="ran", caller=Caller.AGAIN)
            assert (again.reason, again.retry_us) == (Reason.EXHAUSTED, NOW_US + STEP_US), again

    def test_queue_of_zero_lets_no_job_wait(self) -> None:
        """Without a queue a job passes or is denied with "queue full"."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert [bench.ask(limit, job=str(number)).reason for number in range(3)] == [Reason.FULL] * 3
            bench.now_us += STEP_US
            assert bench.ask(limit, job="new").allowed

    def test_full_queue_binds_before_other_denials(self) -> None:
        """A full queue binds though another limit would delay the job for longer; in any order."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            bench.drain(SLOW)
            for number, limits in enumerate([(limit, SLOW), (SLOW, limit)]):
                answer = bench.ask(*limits, job="new")
                assert (answer.reason, answer.claim) == (Reason.FULL, number), answer
            assert bench.store.list_waiting(bench.claim(SLOW)).jobs == 0, "a job that was refused waits nowhere"

    def test_queue_counts_jobs_of_any_limit(self) -> None:
        """A window's jobs and those that wait for slots too, whatever they cost: two wait, and no third."""
        limits = [
            TokenBucket(NAME, "10/s", burst=5, queue=2),
            FixedWindow(NAME, "5/m", queue=2),
            SlidingWindow(NAME, "5/m", queue=2),
            SlidingLog(NAME, "5/m", queue=2),
            Concurrency(NAME, 5, cost=2, queue=2),
        ]
        with self.bench() as bench:
            for limit in limits:
                bench.drain(limit)
                waiting = [bench.ask(limit, cost=cost, job=f"costs {cost}").reason for cost in (3, 2)]
                assert waiting == [Reason.EXHAUSTED] * 2, limit
                assert bench.ask(limit, cost=1, job="new").reason is Reason.FULL, limit
                bench.forget(limit, job="costs 2")
                assert bench.ask(limit, cost=1, job="new").reason is Reason.EXHAUSTED, limit

"""A store's tests for the bounded queue of a limit."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.leaky_bucket import LeakyBucket
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.verdict import Caller, Reason
from throttlekit.testing.bench import NAME, NOW_US, SLOW, STEP_US, ConformanceSuite

__all__ = ["QueueConformance"]


class QueueConformance(ConformanceSuite):
    def test_full_queue_denies_newcomers(self) -> None:
        """As many jobs wait as the queue takes; the next is denied with "queue full", and gets no place."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            waiting = [bench.ask(limit).reason for _ in range(3)]
            assert waiting == [Reason.EXHAUSTED] * 3, waiting
            for caller in (*[Caller.JOB] * 5, Caller.GUEST, Caller.PEEK):
                refused = bench.ask(limit, caller=caller)
                assert (refused.reason, refused.places) == (Reason.FULL, ()), refused
            assert bench.look(LeakyBucket(NAME, "10/s")).retry_us == NOW_US + 4 * STEP_US + 3 * (STEP_US // 25)

    def test_jobs_in_a_full_queue_keep_their_places(self) -> None:
        """A job that waits in a full queue is not a newcomer: early, late or due, it is not refused, and passes."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            waiting = [bench.ask(limit) for _ in range(3)]
            assert bench.ask(limit).reason is Reason.FULL
            assert bench.ask(limit, back=waiting[2]).reason is Reason.EARLY
            bench.now_us = waiting[0].due_us
            bench.settle(limit, was=0, actual=1)
            waiting[0] = bench.ask(limit, back=waiting[0])
            assert waiting[0].reason is Reason.EXHAUSTED, waiting[0]
            for denied in waiting:
                bench.now_us = max(bench.now_us + STEP_US, denied.due_us)
                assert bench.ask(limit, back=denied).allowed

    def test_queue_has_room_again_when_a_job_has_passed_or_left(self) -> None:
        """Each job that passes, leaves, or does not come and is set aside, makes room for one."""
        limit = LeakyBucket(NAME, "10/s", queue=2)
        with self.bench() as bench:
            bench.drain(limit)
            first, second = (bench.ask(limit) for _ in range(2))
            assert bench.ask(limit).reason is Reason.FULL
            bench.now_us = first.due_us
            assert bench.ask(limit, back=first).allowed
            assert [bench.ask(limit).reason for _ in range(2)] == [Reason.EXHAUSTED, Reason.FULL]
            bench.leave(limit, denied=second)
            assert [bench.ask(limit).reason for _ in range(2)] == [Reason.EXHAUSTED, Reason.FULL]
            answers: list[Reason] = []
            for _ in range(3):
                bench.now_us += STEP_US
                answers.append(bench.ask(limit, max_wait_us=0).reason)
            assert answers == [Reason.FULL, Reason.IN_LINE, Reason.ALLOWED], answers

    def test_job_that_ran_passes_a_full_queue(self) -> None:
        """The queue is for new jobs: one that ran, and has to wait once more, waits however full the queue is."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert bench.ask(limit).reason is Reason.FULL
            again = bench.ask(limit, caller=Caller.AGAIN)
            assert (again.reason, again.due_us) == (Reason.EXHAUSTED, NOW_US + STEP_US), again

    def test_queue_of_zero_lets_no_job_wait(self) -> None:
        """Without a queue a job passes or is denied with "queue full"; it never gets a place."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert [bench.ask(limit).reason for _ in range(3)] == [Reason.FULL] * 3
            bench.now_us += STEP_US
            assert bench.ask(limit).allowed

    def test_full_queue_binds_before_other_denials(self) -> None:
        """A full queue binds though another limit would delay the job for longer; in any order."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            bench.drain(SLOW)
            for number, limits in enumerate([(limit, SLOW), (SLOW, limit)]):
                verdict = bench.ask(*limits)
                assert (verdict.reason, verdict.claim) == (Reason.FULL, number), verdict
            assert bench.look(SLOW).due_us == NOW_US + 10 * STEP_US, "a job that was refused waits in no line"

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
                waiting = [bench.ask(limit, cost=3), bench.ask(limit, cost=2)]
                assert [each.reason for each in waiting] == [Reason.EXHAUSTED] * 2, limit
                assert bench.ask(limit, cost=1).reason is Reason.FULL, limit
                bench.leave(limit, denied=waiting[1])
                assert bench.ask(limit, cost=1).reason is Reason.EXHAUSTED, limit

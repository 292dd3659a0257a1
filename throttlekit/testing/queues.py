"""A store's tests for the bounded queue of a leaky bucket."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller, Reason
from throttlekit._core.algorithms.leaky_bucket import LeakyBucket
from throttlekit.testing.bench import NAME, NOW_US, SLOW, STEP_US, ConformanceSuite

__all__ = ["QueueConformance"]


class QueueConformance(ConformanceSuite):
    def test_full_queue_denies_newcomers(self) -> None:
        """As many jobs wait as the queue takes; the next is denied with "queue full", and gets no place."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            due = [bench.ask(limit).due_us - NOW_US for _ in range(3)]
            refused = [bench.ask(limit, caller=caller) for caller in (*[Caller.JOB] * 5, Caller.GUEST, Caller.PEEK)]
            assert due == [STEP_US, 2 * STEP_US, 3 * STEP_US], due
            assert {verdict.reason for verdict in refused} == {Reason.FULL}, refused
            assert bench.ask(LeakyBucket(NAME, "10/s")).due_us == NOW_US + 4 * STEP_US

    def test_jobs_in_a_full_queue_keep_their_places(self) -> None:
        """A job that waits in a full queue is not a newcomer: early it keeps its due instant, and then it passes."""
        limit = LeakyBucket(NAME, "10/s", queue=3)
        with self.bench() as bench:
            bench.drain(limit)
            due = [bench.ask(limit).due_us for _ in range(3)]
            assert bench.ask(limit).reason is Reason.FULL
            assert bench.ask(limit, due_us=due[2]).reason is Reason.EARLY
            for due_us in due:
                bench.now_us = due_us
                assert bench.ask(limit, due_us=due_us).allowed

    def test_displaced_job_passes_a_full_queue(self) -> None:
        """A late job that finds no unit waits on, however full the queue is."""
        limit = LeakyBucket(NAME, "10/s", queue=0)
        with self.bench() as bench:
            bench.drain(limit)
            assert bench.ask(limit).reason is Reason.FULL
            late = bench.ask(limit, due_us=NOW_US - 1)
            assert (late.reason, late.due_us) == (Reason.EXHAUSTED, NOW_US + STEP_US), late

    def test_queue_has_room_again_when_one_job_has_passed(self) -> None:
        """Each job that passes makes room for one."""
        limit = LeakyBucket(NAME, "10/s", queue=2)
        with self.bench() as bench:
            bench.drain(limit)
            due = [bench.ask(limit).due_us for _ in range(2)]
            bench.now_us = due[0]
            assert bench.ask(limit, due_us=due[0]).allowed
            outcomes = [bench.ask(limit) for _ in range(2)]
            assert [verdict.reason for verdict in outcomes] == [Reason.EXHAUSTED, Reason.FULL], outcomes
            assert outcomes[0].due_us == due[1] + STEP_US, outcomes

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
            assert bench.ask(SLOW).due_us == NOW_US + 10 * STEP_US, "a job that was refused waits in no line"

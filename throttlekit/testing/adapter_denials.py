"""Promises about denials: what a denial must not change."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import logging
import time

from throttlekit.adapter.options import WaitRules
from throttlekit.testing.adapter_bench import CLOCKS, PAUSES, OnSite, logged
from throttlekit.testing.adapter_site import COUNT, QUEUED, RATE, SHARED, STEADY, End, Settings, wait_until

__all__ = ["DenialConformance"]


class DenialConformance(OnSite):
    def test_a_denial_costs_no_retry(self) -> None:
        """A job that was denied still has all its retries."""
        with self.bench() as bench:
            bench.deny(0.5)
            sent = bench.send("retried", "fail", "return")
            assert bench.end(sent) == End("succeeded", sent.name)
            assert (bench.runs(sent), bench.failures(sent)) == (2, 1)

    def test_a_denial_keeps_identity(self) -> None:
        """The body of a job that was denied gets the id, the arguments and the options that were sent."""
        with self.bench() as bench:
            free = bench.send("rate")
            as_sent = dict(bench.begun(free).seen)
            bench.deny(0.5)
            denied = bench.send("rate")
            seen = dict(bench.begun(denied).seen)
            assert (as_sent.pop("id"), seen.pop("id")) == (bench.site.id_of(free.job), bench.site.id_of(denied.job))
            assert seen == as_sent

    def test_a_denial_keeps_dependents(self) -> None:
        """A job that follows a denied job runs once, after that job has succeeded."""
        with self.bench() as bench:
            until = bench.deny(0.5)
            sent, following = bench.send_with_next("rate")
            assert bench.begun(following).at >= bench.body_ended(sent).at >= until - CLOCKS
            bench.until_empty()
            assert bench.notes.runs() == [sent.name, following]

    def test_a_denial_is_invisible_to_result_readers(self) -> None:
        """A reader of the result keeps waiting, and gets the value that the body returns."""
        with self.bench() as bench:
            until = bench.deny(1.0)
            sent = bench.send("rate")
            assert bench.end(sent) == End("succeeded", sent.name)
            assert time.time() >= until - CLOCKS
            assert bench.failures(sent) == 0

    def test_a_denial_loses_nothing(self) -> None:
        """If workers are killed with SIGKILL while jobs wait, other workers run every job."""
        with self.bench(Settings(killed=True)) as bench:
            bench.deny(2.0)
            waiting = [bench.send("rate") for _ in range(8)]
            bench.begun(bench.send("free"))
            bench.site.kill()
            bench.site.start()
            for sent in waiting:
                bench.begun(sent)

    def test_a_denial_is_quiet(self) -> None:
        """Twenty denials log at most one line at INFO for their limit, no warning and no stack trace."""
        with self.bench() as bench, logged() as records:
            bench.deny(0.5)
            for sent in [bench.send("rate") for _ in range(20)]:
                bench.begun(sent)
            bench.until_empty()
            lines = bench.log().splitlines()
            loud = [record for record in records if record.levelno >= logging.WARNING or record.exc_info]
            assert [record.getMessage() for record in loud] == []
            assert [line for line in lines if any(word in line for word in ("Traceback", "WARNING", "ERROR"))] == []
            lines += [record.getMessage() for record in records]
            summaries = [line for line in lines if repr(RATE.name) in line]
            assert len(summaries) <= bench.site.processes, summaries

    def test_a_denial_holds_no_worker(self) -> None:
        """While more jobs wait than there are workers, a job without limits runs."""
        assert any(self._others_run_during_pause(seconds) for seconds in PAUSES)

    def _others_run_during_pause(self, seconds: float) -> bool:
        with self.bench() as bench:
            until = bench.deny(seconds)
            waiting = [bench.send("rate") for _ in range(bench.site.slots + 2)]
            free = bench.send("free")
            for sent in waiting:
                assert bench.begun(sent).at >= until - CLOCKS
            return bench.begun(free).at < until

    def test_a_denial_is_capped(self) -> None:
        """A delay that is too long for the framework is split, and the job stays ahead of later jobs."""
        with self.bench(Settings(longest=0.6)) as bench:
            assert bench.site.limiter.acquire(STEADY, key=bench.key).allowed
            early = [bench.send("steady") for _ in range(4)]
            bench.begun(early[0])
            late = bench.send("steady")
            began = [bench.begun(sent).at for sent in early]
            assert bench.begun(late).at > max(began)
            # Four intervals of 0.5 s between grants. A body may begin some time after its grant.
            assert bench.begun(late).at - min(began) > 1.5

    def test_a_tenant_holds_no_other_up(self) -> None:
        """A light tenant's job runs long before the last of five jobs that another tenant enqueued first."""
        with self.bench() as bench:
            began = time.monotonic()
            for sent in [bench.send("free") for _ in range(6)]:
                bench.begun(sent)
            # All six make a request before the limit admits one. Otherwise they may run in the order of a slow queue.
            bench.deny(2.0 + 2 * (time.monotonic() - began), SHARED)
            heavy = [bench.send("shared", "tenant heavy") for _ in range(5)]
            light = bench.send("shared", "tenant light")
            at = bench.begun(light).at
            assert sum(bench.begun(sent).at > at for sent in heavy) >= 2

    def test_the_body_runs_only_after_a_grant(self) -> None:
        """Each of several denied jobs runs once, after the denial has ended, and is charged once."""
        with self.bench() as bench:
            until = bench.deny(1.0)
            jobs = [bench.send("counted") for _ in range(5)]
            assert all(bench.begun(sent).at >= until - CLOCKS for sent in jobs)
            bench.until_empty()
            assert sorted(bench.notes.runs()) == sorted(sent.name for sent in jobs)
            assert bench.remaining(COUNT) == COUNT.burst - 5

    def test_an_expired_job_is_never_charged(self) -> None:
        """A job that expires while it waits does not run, and is not charged."""
        with self.bench() as bench:
            bench.deny(2.0)
            sent = bench.send("counted", expires=1.0)
            bench.begun(bench.send("counted"))
            bench.until_empty()
            assert (bench.runs(sent), bench.remaining(COUNT)) == (0, COUNT.burst - 1)

    def test_a_cancelled_job_is_never_charged(self) -> None:
        """A job that is cancelled while it waits does not run, and is not charged."""
        assert any(self._cancelled_job_does_not_run(seconds) for seconds in PAUSES)

    def _cancelled_job_does_not_run(self, seconds: float) -> bool:
        with self.bench() as bench:
            until = bench.deny(seconds)
            sent = bench.send("counted")
            bench.begun(bench.send("free"))
            bench.site.cancel(sent.job)
            in_time = time.time() < until
            bench.begun(bench.send("counted"))
            bench.until_empty()
            if in_time:
                assert (bench.runs(sent), bench.remaining(COUNT)) == (0, COUNT.burst - 1)
            return in_time

    def test_max_wait_ends_in_failure(self) -> None:
        """After `max_wait`, a job fails with `WaitedTooLong`, without a run or after runs that all got a 429."""
        with self.bench(Settings(WaitRules(max_wait=0.5))) as bench:
            angry = bench.send("rate", "429 0.1", key=f"{bench.key}-angry")
            bench.deny(30)
            denied = bench.send("retried")
            assert [bench.end(sent).error for sent in (denied, angry)] == ["WaitedTooLong"] * 2
            assert (bench.runs(denied), bench.remaining(COUNT)) == (0, COUNT.burst)
            assert 1 <= bench.runs(angry) <= 7

    def test_max_deferrals_ends_in_failure(self) -> None:
        """With `max_deferrals=2` a job is redelivered twice; the third denial ends it with `WaitedTooLong`."""
        with self.bench(Settings(WaitRules(max_deferrals=2))) as bench:
            sent = bench.send("retried", "429 0.1")
            assert bench.end(sent).error == "WaitedTooLong"
            bench.until_empty()
            assert bench.runs(sent) == 3

    def test_a_job_has_a_max_wait_of_its_own(self) -> None:
        """The option `throttle_max_wait` of a job overrides the adapter's `max_wait`."""
        with self.bench() as bench:
            bench.deny(30)
            sent = bench.send("hasty")
            assert bench.end(sent).error == "WaitedTooLong"
            assert (bench.runs(sent), bench.remaining(COUNT)) == (0, COUNT.burst)

    def test_max_wait_can_drop_a_job(self) -> None:
        """`on_waited_too_long="drop"` ends a job without a run or a failure; after a 429, without another run."""
        with self.bench(Settings(WaitRules(max_deferrals=0, on_waited_too_long="drop"))) as bench:
            angry = bench.send("counted", "429 0.1", key=f"{bench.key}-angry")
            bench.deny(30)
            denied = bench.send("counted")
            assert [bench.end(sent).how for sent in (denied, angry)] == ["dropped"] * 2
            assert [(bench.runs(sent), bench.failures(sent)) for sent in (denied, angry)] == [(0, 0), (1, 0)]

    def test_max_wait_can_run_a_job(self) -> None:
        """`on_waited_too_long="run"` runs a job once, uncharged. A 429 is then an error like any other."""
        with self.bench(Settings(WaitRules(max_deferrals=0, on_waited_too_long="run"))) as bench:
            angry = bench.send("counted", "429 0.1", key=f"{bench.key}-angry")
            bench.deny(30)
            denied = bench.send("counted")
            assert bench.end(denied) == End("succeeded", denied.name)
            assert bench.end(angry).error == "RateLimited"
            assert [bench.runs(sent) for sent in (denied, angry)] == [1, 1]
            assert bench.remaining(COUNT) == COUNT.burst

    def test_a_full_queue_ends_in_failure(self) -> None:
        """If a limit's `queue=` is full, a job fails at once with `WaitedTooLong`, without a run."""
        with self.bench() as bench:
            bench.deny(30, QUEUED)
            sent = [bench.send("queued") for _ in range(2)]
            ended = wait_until(
                lambda: [each for each in sent if bench.site.end(each.job) is not None], "one of two jobs has failed"
            )
            assert [bench.end(each).error for each in ended] == ["WaitedTooLong"]
            bench.site.limiter.resume(QUEUED, key=bench.key)
            for each in sent:
                if each not in ended:
                    bench.begun(each)
            bench.until_empty()
            assert sorted(bench.runs(each) for each in sent) == [0, 1]

    def test_several_limits_are_all_or_nothing(self) -> None:
        """If one limit denies a job, the job's other limits do not charge it."""
        with self.bench(Settings(WaitRules(max_deferrals=0, on_waited_too_long="drop"))) as bench:
            bench.deny(30)
            sent = bench.send("counted")
            assert bench.end(sent).how == "dropped"
            assert bench.remaining(COUNT) == COUNT.burst

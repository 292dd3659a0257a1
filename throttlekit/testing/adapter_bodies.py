"""Promises about a job's body while it runs, and when it ends: charges, leases, and 429s."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import time

from throttlekit.testing.adapter_bench import CLOCKS, PAUSES, OnSite
from throttlekit.testing.adapter_site import COUNT, LONG_SLOT, RATE, SLOT, TOKENS, End, Settings, wait_until

__all__ = ["BodyConformance"]


class BodyConformance(OnSite):
    def test_retries_are_charged_again(self) -> None:
        """Each run of a body is charged, because each calls downstream."""
        with self.bench() as bench:
            sent = bench.send("retried", "fail", "return")
            assert bench.end(sent) == End("succeeded", sent.name)
            assert bench.remaining(COUNT) == COUNT.burst - 2

    def test_settle(self) -> None:
        """A body that settles its cost returns the units that it did not use, and the next job can use them."""
        with self.bench() as bench:
            for left in (90, 80):
                bench.begun(sent := bench.send("tokens", "settle 10"))
                assert bench.end(sent).how == "succeeded"
                assert bench.remaining(TOKENS) == left

    def test_plugins_see_the_body(self) -> None:
        """A plugin is notified when a body begins, how it ends, and of each 429, in the same way in every framework."""
        seen = ["started", f"429 on {RATE.name}", "rate limited", "started", "failed", "started", "succeeded"]
        with self.bench() as bench:
            sent = bench.send("retried", "429 0.3", "fail", "return")
            assert bench.end(sent).how == "succeeded"
            wait_until(lambda: len(bench.notes.of("plugin", sent.name)) == len(seen), "the plugin has seen all of it")
            # A framework may begin the retry before it reports the end of the run.
            assert sorted(note.seen["seen"] for note in bench.notes.of("plugin", sent.name)) == sorted(seen)

    def test_leases_are_released(self) -> None:
        """The slot of a concurrency limit is free when the body has returned, failed or raised `RateLimited`."""
        with self.bench() as bench:
            for step in ("return", "fail", "429 1"):
                bench.body_ended(sent := bench.send("long_slot", step, "return"))
                wait_until(lambda: bench.allowed(LONG_SLOT), f"the slot is free after {step!r}", within=20)
                bench.end(sent)

    def test_leases_are_renewed(self) -> None:
        """While a body runs, its slot stays taken, even for longer than its lease."""
        with self.bench() as bench:
            sent = bench.send("slot", "wait")
            until = bench.begun(sent).at + 2 * SLOT.lease
            while time.time() < until:
                assert not bench.allowed(SLOT)
                time.sleep(0.05)
            bench.let_end(sent)
            wait_until(lambda: bench.allowed(SLOT), "the slot is free")

    def test_a_killed_worker_frees_its_lease(self) -> None:
        """After SIGKILL, the slot of the body is free again within the lease time."""
        with self.bench(Settings(killed=True)) as bench:
            sent = bench.send("slot", "wait")
            bench.begun(sent)
            bench.site.kill()
            free_at = time.time() + SLOT.lease + CLOCKS
            wait_until(lambda: time.time() > free_at, "the lease has ended")
            assert bench.allowed(SLOT)
            bench.let_end(sent)
            bench.site.start()

    def test_a_429_pauses_the_fleet(self) -> None:
        """After a 429, no job of its key runs until the pause is over. Jobs of other keys run in the meantime."""
        assert any(self._others_run_after_429(seconds) for seconds in PAUSES)

    def _others_run_after_429(self, seconds: float) -> bool:
        with self.bench() as bench:
            angry = bench.send("counted", f"429 {seconds}", "return")
            until = bench.body_ended(angry).at + seconds
            wait_until(lambda: bench.paused(RATE) or time.time() > until, "the key is paused")
            assert not bench.paused(COUNT), "throttle_on_429 names another limit"
            held = [bench.send("counted") for _ in range(3)]
            other = bench.send("counted", key=f"{bench.key}-other")
            assert min(bench.begun(sent).at for sent in held) >= until - CLOCKS
            assert bench.begun(angry, 2).at >= until - CLOCKS
            return bench.begun(other).at < until

    def test_a_429_defers_uncharged(self) -> None:
        """A job that receives one 429 is charged for its two runs, and not for its wait between them."""
        with self.bench() as bench:
            sent = bench.send("counted", "429 0.5", "return")
            bench.body_ended(sent)
            wait_until(lambda: bench.paused(RATE), "the key is paused")
            assert bench.remaining(COUNT) == COUNT.burst - 1
            bench.body_ended(sent, 2)
            bench.until_empty()
            assert (bench.runs(sent), bench.remaining(COUNT)) == (2, COUNT.burst - 2)

    def test_a_429_costs_no_retry(self) -> None:
        """A job with one retry gets a 429, fails, gets a 429, and succeeds: only the failure used a retry."""
        with self.bench() as bench:
            sent = bench.send("retried", "429 0.2", "fail", "429 0.2", "return")
            assert bench.end(sent) == End("succeeded", sent.name)
            assert (bench.runs(sent), bench.failures(sent)) == (4, 1)

    def test_a_429_is_invisible_to_result_readers(self) -> None:
        """A reader of the result keeps waiting, as do jobs that follow. The framework reports no failure."""
        with self.bench() as bench:
            sent = bench.send("counted", "429 1", "return")
            assert bench.end(sent) == End("succeeded", sent.name)
            assert (bench.runs(sent), bench.failures(sent)) == (2, 0)

    def test_a_429_without_limits_is_an_error(self) -> None:
        """A job without limits fails with `RateLimited`, as with any error."""
        with self.bench() as bench:
            assert bench.end(bench.send("free", "429 0.1")).error == "RateLimited"

"""What a store must do as a store, whatever it is asked about."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

from throttlekit._core.acquire import Caller
from throttlekit.stores.base import Correction, Request
from throttlekit.testing.bench import NOW_US, ONE, STEP_US, TEN, OnTheBench
from throttlekit.testing.rules import RULES

__all__ = ["BasicConformance"]


class BasicConformance(OnTheBench):
    def test_promise_counts_the_units_asked_for(self) -> None:
        """Three units pass when three are there, and not a microsecond before."""
        with self.bench() as bench:
            bench.drain(TEN)
            denied = bench.ask(TEN, cost=3, caller=Caller.GUEST)
            assert denied.retry_us == NOW_US + 3 * STEP_US, denied
            bench.now_us = denied.retry_us - 1
            assert not bench.ask(TEN, cost=3, caller=Caller.GUEST).allowed
            bench.now_us = denied.retry_us
            assert bench.ask(TEN, cost=3, caller=Caller.GUEST).allowed

    def test_keys_may_hold_any_text(self) -> None:
        """Keys that look like one another, or like something else, are counted apart."""
        keys = [
            "",
            "a",
            "A",
            "a:",
            ":a",
            "a:b",
            "a}b",
            "{a}",
            "}{",
            "a\n",
            "a\0",
            "é",
            "e\u0301",
            "🙂",
            "%41",
            "~",
            "x" * 10_000,
        ]
        with self.bench() as bench:
            for key in keys:
                assert bench.ask(ONE, key=key).allowed, key[:20]
            for key in keys:
                assert not bench.ask(ONE, key=key, caller=Caller.GUEST).allowed, key[:20]

    def test_store_owns_the_clock(self) -> None:
        """Without a time given, the store tells its own, and it goes on."""
        with self.bench() as bench:
            request = Request([bench.claim(TEN)], Caller.JOB)
            verdicts = [bench.store.acquire(request) for _ in range(3)]
        assert verdicts[0].now_us > 0
        assert [v.now_us for v in verdicts] == sorted(v.now_us for v in verdicts)
        assert all(v.allowed for v in verdicts)

    def test_every_algorithm_goes_by_the_stores_clock(self) -> None:
        """Without a time given, a limit passes, is settled down by what it took, and passes in full again."""
        with self.bench() as bench:
            for rule in RULES:
                claim = bench.claim(rule.limit, cost=rule.limit.capacity)
                for _ in range(3):
                    verdict = bench.store.acquire(Request([claim], Caller.JOB))
                    assert verdict.allowed, (rule.label, verdict)
                    back = Correction(claim.bucket, claim.algorithm, verdict.now_us, -claim.algorithm.size)
                    bench.store.settle([back])

    def test_works_again_after_close(self) -> None:
        """A store that was closed may be used again."""
        with self.bench() as bench:
            assert bench.ask(TEN).allowed
            bench.store.close()
            assert bench.ask(TEN).allowed

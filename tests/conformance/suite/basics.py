"""A store's tests for keys, its clock and `close`, with any algorithm."""

from __future__ import annotations

from conformance.suite.bench import NOW_US, ONE, STEP_US, TEN, ConformanceSuite
from conformance.suite.cases import CASES
from throttlekit._core.answer import WITHOUT_JOB, Caller
from throttlekit.stores.base import Correction

__all__ = ["BasicConformance"]


class BasicConformance(ConformanceSuite):
    def test_promised_instant_depends_on_the_cost(self) -> None:
        """A cost of three passes when three units are there, and not a microsecond before."""
        with self.bench() as bench:
            bench.drain(TEN)
            denied = bench.ask(TEN, cost=3, caller=Caller.WITHOUT_JOB)
            assert denied.retry_us == NOW_US + 3 * STEP_US, denied
            bench.now_us = denied.retry_us - 1
            assert not bench.ask(TEN, cost=3, caller=Caller.WITHOUT_JOB).allowed
            bench.now_us = denied.retry_us
            assert bench.ask(TEN, cost=3, caller=Caller.WITHOUT_JOB).allowed

    def test_keys_may_hold_any_text(self) -> None:
        """Keys that look alike, or like a part of a stored name, are counted apart."""
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
                assert not bench.ask(ONE, key=key, caller=Caller.WITHOUT_JOB).allowed, key[:20]

    def test_store_owns_the_clock(self) -> None:
        """Without a time given, a answer has the store's own time, which goes on."""
        with self.bench() as bench:
            answers = [bench.store.ask([bench.claim(TEN)], WITHOUT_JOB) for _ in range(3)]
        assert answers[0].now_us > 0
        assert [v.now_us for v in answers] == sorted(v.now_us for v in answers)
        assert all(v.allowed for v in answers)

    def test_every_algorithm_goes_by_the_stores_clock(self) -> None:
        """Without a time given, the capacity passes, is given back by a correction, and passes again."""
        with self.bench() as bench:
            for case in CASES:
                claim = bench.claim(case.limit, cost=case.limit.capacity)
                for _ in range(3):
                    answer = bench.store.ask([claim], WITHOUT_JOB)
                    assert answer.allowed, (case.label, answer)
                    back = Correction(claim.bucket, claim.algorithm, answer.now_us, -claim.algorithm.size)
                    bench.store.settle([back])

    def test_works_again_after_close(self) -> None:
        """A store may be used again after `close`."""
        with self.bench() as bench:
            assert bench.ask(TEN).allowed
            bench.store.close()
            assert bench.ask(TEN).allowed

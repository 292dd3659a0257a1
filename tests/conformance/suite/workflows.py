"""A store's tests for slots that workflows hold: they stay from job to job, until the workflow is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.suite.bench import NAME, SECOND_US, TEN, Bench, ConformanceSuite
from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.answer import Answer, Caller, Reason
from throttlekit._core.storage_keys import workflow_name
from throttlekit.stores.base import Correction, Lease

__all__ = ["WorkflowConformance"]

_SLOTS = Concurrency(NAME, 2, lease=30)
_NONE_WAIT = Concurrency(NAME, 2, lease=30, queue=0)
_LEASE_US = 30 * SECOND_US


def _ask(bench: Bench, workflow: str, *others: Any, job: str = "") -> Answer:
    return bench.ask(_SLOTS, *others, holder=workflow_name(workflow), job=job)


def _lease(bench: Bench, workflow: str, *, done: bool = False) -> Lease:
    claim = bench.claim(_SLOTS, holder=workflow_name(workflow))
    algorithm: Any = claim.algorithm
    return Lease(claim.bucket, replace(algorithm, lease_us=0) if done else algorithm, bench.now_us)


def _held(bench: Bench) -> int:
    use = bench.ask(_SLOTS, holder="look", caller=Caller.PEEK).uses[0]
    assert use is not None
    return use.units


class WorkflowConformance(ConformanceSuite):
    def test_jobs_of_a_workflow_hold_one_slot(self) -> None:
        """Each passes while the slot is held, and takes no other; a third workflow does not pass."""
        with self.bench() as bench:
            for _ in range(3):
                assert _ask(bench, "a").allowed
                assert _ask(bench, "b").allowed
                assert not _ask(bench, "c").allowed
            assert _held(bench) == 2

    def test_slot_stays_when_a_job_ends_and_is_free_when_its_workflow_is_done(self) -> None:
        """Said again, and by a renewal that comes late, nothing changes."""
        with self.bench() as bench:
            _ask(bench, "a")
            bench.store.release([_lease(bench, "a")], now_us=bench.now_us)
            assert _held(bench) == 1
            for _ in range(2):
                bench.store.release([_lease(bench, "a", done=True)], now_us=bench.now_us)
                assert _held(bench) == 0
            assert list(bench.store.renew([_lease(bench, "a")], now_us=bench.now_us)) == [False]
            bench.store.release([_lease(bench, "a")], now_us=bench.now_us)
            assert _held(bench) == 0

    def test_workflow_is_done_by_a_correction_too(self) -> None:
        """As slots are given back whose release got no answer."""
        with self.bench() as bench:
            _ask(bench, "a")
            _ask(bench, "a")
            lease = _lease(bench, "a", done=True)
            bench.store.settle([Correction(lease.bucket, lease.algorithm, 0, -1)], now_us=bench.now_us)
            assert _held(bench) == 0

    def test_each_job_makes_the_lease_begin_anew(self) -> None:
        """When it begins, renews and ends; a lease after the last of these the slot is free."""
        with self.bench() as bench:
            _ask(bench, "a")
            for keep in (bench.store.release, bench.store.renew):
                bench.now_us += _LEASE_US - 1
                keep([_lease(bench, "a")], now_us=bench.now_us)
            bench.now_us += _LEASE_US - 1
            assert _ask(bench, "a").allowed
            bench.now_us += _LEASE_US
            assert _held(bench) == 1
            bench.now_us += 1
            assert _held(bench) == 0

    def test_cancelled_grant_gives_back_only_what_it_took(self) -> None:
        """The slot of the first job, until another job of its workflow begins."""
        with self.bench() as bench:
            for granted in ((1, 0), (2, 1)):
                for _ in range(granted[0]):
                    _ask(bench, "a")
                lease = _lease(bench, "a")
                bench.store.settle([Correction(lease.bucket, lease.algorithm, bench.now_us, -1)], now_us=bench.now_us)
                assert _held(bench) == granted[1]

    def test_job_of_a_workflow_that_holds_passes_those_that_wait(self) -> None:
        """It takes no turn: what comes free is for the first that waits; all jobs of its workflow pass with it."""
        with self.bench() as bench:
            _ask(bench, "a")
            _ask(bench, "b")
            for id, workflow in (("first", "c"), ("second", "c"), ("last", "d")):
                assert not _ask(bench, workflow, job=id).allowed
            assert _ask(bench, "a", job="passes").allowed
            bench.store.release([_lease(bench, "a", done=True)], now_us=bench.now_us)
            assert bench.woken(_SLOTS)[0] == "first"
            assert _ask(bench, "e", job="new").reason is Reason.IN_LINE
            assert _ask(bench, "c", job="first").allowed
            assert _ask(bench, "c", job="second").allowed
            bench.store.release([_lease(bench, "b", done=True)], now_us=bench.now_us)
            assert bench.woken(_SLOTS) == ["last"]
            assert _ask(bench, "d", job="last").allowed

    def test_pause_holds_for_a_workflow_that_holds(self) -> None:
        """Its next job waits for the end of the pause, also where the queue is full, and passes then."""
        with self.bench() as bench:
            _ask(bench, "a")
            bench.store.pause([bench.claim(_SLOTS)], 10 * SECOND_US, now_us=bench.now_us)
            denied = bench.ask(_NONE_WAIT, holder=workflow_name("a"), job="of a")
            assert denied.reason is Reason.PAUSED
            assert bench.ask(_NONE_WAIT, holder=workflow_name("b"), job="of b").reason is Reason.FULL
            bench.now_us += 10 * SECOND_US
            assert _ask(bench, "a", job="of a").allowed
            assert _held(bench) == 1

    def test_denial_by_another_limit_changes_no_slot(self) -> None:
        """It takes none for a workflow, and leaves it the one that it has."""
        with self.bench() as bench:
            _ask(bench, "a")
            bench.drain(TEN)
            assert not _ask(bench, "a", TEN).allowed
            assert not _ask(bench, "b", TEN).allowed
            assert _held(bench) == 1

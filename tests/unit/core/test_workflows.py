"""`held_by=`: the jobs of one workflow hold one slot, which stays taken between them."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from support.waiting import wait_until
from throttlekit import (
    AsyncLimiter,
    ByLatency,
    Concurrency,
    ConfigurationError,
    Decision,
    FixedWindow,
    Job,
    Limiter,
    Share,
    TokenBucket,
    current,
)
from throttlekit._core.answer import Reason
from throttlekit._core.claim import StoreClaim
from throttlekit._core.serialize import dump, load
from throttlekit._core.storage_keys import workflow_name
from throttlekit.adapter import begin, decision_from_receipt, end, receipt, running
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

GPU = Concurrency("gpu", 2, held_by="{workflow}")
HOUR = 3600.0


def job_of(workflow: object, id: str = "", **arguments: Any) -> Job:
    """Return a job of a workflow; with an *id*, that job again."""
    return Job(id=id or f"{workflow}-{random.random()}", kwargs={"workflow": workflow, **arguments}, name="step")


def free(limiter: Limiter) -> int:
    return limiter.peek(GPU).remaining


# What a workflow holds


def test_jobs_of_one_workflow_hold_one_slot(limiter: Limiter) -> None:
    """One workflow holds one slot for any number of jobs; there can be as many workflows as slots."""
    assert all(limiter.acquire(GPU, job=job_of("a")).allowed for _ in range(5))
    assert limiter.acquire(GPU, job=job_of("b")).allowed
    denied = limiter.acquire(GPU, job=job_of("c"))
    assert (denied.allowed, denied.reason, free(limiter)) == (False, "exhausted", 0)
    assert limiter.acquire(GPU, job=job_of("a")).allowed


def test_slot_stays_taken_when_a_body_ends(limiter: Limiter) -> None:
    """A release does not free the slot; `done` for the workflow does, once."""
    with running(limiter, limiter.acquire(GPU, job=job_of("a")), job_of("a")):
        pass
    assert free(limiter) == 1
    limiter.done(GPU, "a")
    assert free(limiter) == 2
    limiter.done(GPU, job=job_of("a"))
    assert free(limiter) == 2


def test_last_job_frees_the_slot_in_its_body(limiter: Limiter) -> None:
    """After `done` in a body the slot is free at once, and the end of the body does not take it again."""
    first, last = limiter.acquire(GPU, job=job_of("a")), limiter.acquire(GPU, job=job_of("a"))
    with running(limiter, first, job_of("a")):
        assert free(limiter) == 1
    with running(limiter, last, job_of("a")):
        current().done(GPU)
        assert free(limiter) == 2
        current().done(GPU)
    assert free(limiter) == 2


def test_lease_counts_from_the_end_of_the_last_job(limiter: Limiter, clock: FakeClock) -> None:
    """The lease is an hour by default, from the start of each job, each renewal, and each end."""
    assert GPU.lease == HOUR
    decision = limiter.acquire(GPU, job=job_of("a"))
    clock.advance(HOUR - 1)
    limiter.release(decision)
    clock.advance(HOUR - 1)
    assert free(limiter) == 1
    again = limiter.acquire(GPU, job=job_of("a"))
    clock.advance(HOUR)
    assert free(limiter) == 1
    clock.advance(0.001)
    assert free(limiter) == 2
    limiter.release(again)
    assert free(limiter) == 2


def test_late_job_of_a_finished_workflow_takes_a_new_slot(limiter: Limiter) -> None:
    """A job that is delivered again waits for a slot like any first job, and its own `done` frees that slot."""
    for workflow in "ab":
        limiter.acquire(GPU, job=job_of(workflow))
    limiter.done(GPU, "a")
    assert limiter.acquire(GPU, job=job_of("c")).allowed
    assert not limiter.acquire(GPU, job=job_of("a")).allowed
    limiter.done(GPU, "c")
    assert limiter.acquire(GPU, job=job_of("b")).allowed


def test_job_that_runs_uncharged_can_free_the_slot(limiter: Limiter) -> None:
    """The last job ran without a decision on slots: its `done` still frees the slot of its workflow."""
    limiter.acquire(GPU, job=job_of("a"))
    rate = TokenBucket("rate", "10/s")
    with running(limiter, limiter.acquire(rate, job=job_of("a")), job_of("a")):
        current().done(GPU)
    assert free(limiter) == 2


def test_cancelled_grant_returns_what_it_took(limiter: Limiter) -> None:
    """The cancellation frees the slot if the grant took it and no other job of the workflow has joined since."""
    limiter.cancel(limiter.acquire(GPU, job=job_of("a")))
    assert free(limiter) == 2
    first, second = limiter.acquire(GPU, job=job_of("a")), limiter.acquire(GPU, job=job_of("a"))
    limiter.cancel(second)
    assert free(limiter) == 1
    limiter.cancel(first)
    assert free(limiter) == 1


def test_lost_slot_is_not_renewed(limiter: Limiter, clock: FakeClock) -> None:
    """After the end of the lease a renewal fails, even if a slot is free: the workflow may be done."""
    claim = StoreClaim("gpu", GPU.bind(1, 0, workflow_name("a")))
    taken = claim.algorithm.admit(None, 1_000)
    assert claim.algorithm.renew(taken, 2_000)[1]  # type: ignore[attr-defined]
    assert not claim.algorithm.renew(taken, 4_000_000_000)[1]  # type: ignore[attr-defined]
    assert not claim.algorithm.renew(None, 2_000)[1]  # type: ignore[attr-defined]


def test_workflows_and_jobs_share_the_slots(limiter: Limiter) -> None:
    """A limit of the same name without `held_by` counts in the same slots."""
    plain = Concurrency("gpu", 2, lease=HOUR)
    assert limiter.acquire(GPU, job=job_of("a")).allowed
    single = limiter.acquire(plain, job=job_of("a"))
    assert single.allowed
    assert not limiter.acquire(GPU, job=job_of("b")).allowed
    limiter.release(single)
    assert limiter.acquire(GPU, job=job_of("a")).allowed
    assert free(limiter) == 1


def test_each_key_has_slots_of_its_own(limiter: Limiter) -> None:
    """Each key and each tier has its own slots; `done` without a job applies to all tiers."""
    limit = Concurrency("g", {"s": 1, "l": 2}, tier="{tier}", key="{host}", held_by="{workflow}")
    for host in ("x", "y"):
        assert limiter.acquire(limit, job=job_of("a", host=host, tier="s")).allowed
        assert not limiter.acquire(limit, job=job_of("b", host, host=host, tier="s")).allowed
    limiter.done(limit, "a", key="x")
    assert limiter.acquire(limit, job=job_of("b", "x", host="x", tier="s")).allowed
    assert not limiter.acquire(limit, job=job_of("b", "y", host="y", tier="s")).allowed


# The waitlist


def test_job_of_a_workflow_with_a_slot_overtakes_waiting_jobs(limiter: Limiter) -> None:
    """The job uses no turn: the job that waited first gets the next free slot."""
    limiter.acquire(GPU, job=job_of("a"))
    limiter.acquire(GPU, job=job_of("b"))
    assert not limiter.acquire(GPU, job=job_of("c", "first")).allowed
    for _ in range(9):
        assert limiter.acquire(GPU, job=job_of("a")).allowed
    limiter.done(GPU, "a")
    assert limiter.acquire(GPU, job=job_of("d")).reason == "in line"
    assert limiter.acquire(GPU, job=job_of("c", "first")).allowed


def test_all_waiting_jobs_of_a_workflow_are_granted_once_it_has_a_slot(limiter: Limiter) -> None:
    """Two jobs wait and the first is granted: the other takes no slot, and both leave the waitlist."""
    for workflow in "ab":
        limiter.acquire(GPU, job=job_of(workflow))
    for id in ("one", "two"):
        assert not limiter.acquire(GPU, job=job_of("c", id)).allowed
    assert not limiter.acquire(GPU, job=job_of("d", "last")).allowed
    limiter.done(GPU, "a")
    assert limiter.acquire(GPU, job=job_of("c", "one")).allowed
    assert limiter.acquire(GPU, job=job_of("c", "two")).allowed
    limiter.done(GPU, "b")
    assert limiter.acquire(GPU, job=job_of("d", "last")).allowed


def test_tenant_is_not_charged_for_jobs_that_overtake(limiter: Limiter) -> None:
    """In a shared limit, a workflow uses one turn of its tenant, however many jobs it has."""
    shared = Concurrency("gpu", 1, held_by="{workflow}", share=Share("{tenant}"))
    limiter.acquire(shared, job=job_of("a", tenant="x"))
    waiting = {workflow: job_of(workflow, tenant="x") for workflow in "bcd"} | {"e": job_of("e", tenant="y")}
    for workflow in "bcd":
        assert not limiter.acquire(shared, job=waiting[workflow])
    for _ in range(20):
        assert limiter.acquire(shared, job=job_of("a", tenant="y")).allowed
    assert not limiter.acquire(shared, job=waiting["e"])
    held, order = "a", ""
    while waiting:
        limiter.done(shared, held)
        held = next(workflow for workflow, job in waiting.items() if limiter.acquire(shared, job=job))
        del waiting[held]
        order += held
    assert order == "becd"


def test_pause_applies_to_a_workflow_with_a_slot(limiter: Limiter, clock: FakeClock) -> None:
    """A job of the workflow waits until the pause is over, even if the queue is full; the slot stays taken."""
    short = Concurrency("gpu", 2, held_by="{workflow}", queue=0)
    limiter.acquire(short, job=job_of("a"))
    limiter.pause(short, 30)
    denied = limiter.acquire(short, job=job_of("a", "waits"))
    assert (denied.allowed, denied.reason, denied.delay) == (False, "paused", 30.0)
    assert limiter.acquire(short, job=job_of("b")).reason == "queue full"
    clock.advance(30)
    assert limiter.acquire(short, job=job_of("a", "waits")).allowed
    assert limiter.peek(short).remaining == 1


def test_denial_of_another_store_returns_what_the_job_took() -> None:
    """The slot of a first job is returned, and not the slot that a workflow held before."""
    limiter, rate = Limiter(MemoryStore(), stores={"rate": MemoryStore()}), TokenBucket("rate", "1/hour", burst=1)
    limiter.acquire(rate)
    assert not limiter.acquire(GPU, rate, job=job_of("a")).allowed
    assert free(limiter) == 2
    limiter.acquire(GPU, job=job_of("a"))
    assert not limiter.acquire(GPU, rate, job=job_of("a")).allowed
    assert free(limiter) == 1


def test_running_job_of_a_finished_workflow_has_lost_its_slot() -> None:
    """The job runs on when another job frees the slot, and sees the loss at its next renewal."""
    limiter, short = Limiter(), Concurrency("gpu", 2, lease=1, held_by="{workflow}")
    with limiter.hold(short, job=job_of("a")) as still:
        limiter.done(short, "a")
        wait_until(lambda: still.lost, description="the renewal finds no slot")
    assert limiter.peek(short).remaining == 2


# Outside of jobs


def test_hold_outside_a_job(limiter: Limiter) -> None:
    """After the `with` block of a hold, the workflow keeps its slot until `done`."""
    with limiter.hold(GPU, job=job_of("a")):
        pass
    assert free(limiter) == 1
    with limiter.hold(GPU, job=job_of("a")) as held:
        held.done(GPU)
    assert free(limiter) == 2


def test_caller_without_a_job_has_no_workflow(limiter: Limiter) -> None:
    """To take a slot without a workflow is an error; peek, pause and reset need no workflow."""
    with pytest.raises(ConfigurationError, match=r"takes its held_by from the job \('{workflow}'\): pass job="):
        limiter.acquire(GPU)
    limiter.acquire(GPU, job=job_of("a"))
    assert free(limiter) == 1
    limiter.pause(GPU, 1)
    limiter.resume(GPU)
    limiter.reset(GPU)
    assert free(limiter) == 2
    with pytest.raises(ConfigurationError, match="pass job="):
        limiter.done(GPU)


def test_done_outside_a_job_does_nothing() -> None:
    """`done` outside a job does nothing, because tests and scripts can call a body directly."""
    current().done(GPU)


@pytest.mark.parametrize("limit", [Concurrency("x", 1), TokenBucket("x", "1/s"), "x", None])
def test_done_needs_a_limit_with_workflows(limiter: Limiter, limit: Any) -> None:
    """`done` of a limit without workflows raises; the message says that slots become free by themselves."""
    for verb in (limiter.done, current().done):
        with pytest.raises(ConfigurationError, match="has no held_by="):
            verb(limit)


def test_done_needs_the_name_of_a_workflow(limiter: Limiter) -> None:
    """An empty name is not one, as in a job: otherwise `done` would silently release nothing."""
    with pytest.raises(ConfigurationError, match=r"limit 'gpu': the held_by '\{workflow\}' is empty"):
        limiter.done(GPU, "")


# Between processes


def test_receipt_of_another_process_keeps_the_slot(limiter: Limiter) -> None:
    """The process that runs the body knows that the slot stays taken, and can free it."""
    decision = decision_from_receipt(receipt(limiter.acquire(GPU, job=job_of("a"))))
    limiter.release(decision)
    assert free(limiter) == 1
    begin(limiter, decision, job_of("a"))
    try:
        current().done(GPU)
    finally:
        end()
    assert free(limiter) == 2


def test_limit_in_a_message_names_the_workflow(limiter: Limiter) -> None:
    """A limit in a message has the name of its job's workflow; a limit without workflows sends none."""
    data = dump(GPU, job_of("a"))
    assert data["held_by"] == "a"
    assert "held_by" not in dump(Concurrency("gpu", 2), job_of("a"))
    assert limiter.acquire(load(data), job=Job()).allowed
    assert limiter.acquire(GPU, job=job_of("a")).allowed
    assert free(limiter) == 1
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load({**data, "held_by": 7})


# Invalid options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_by": ""}, "the held_by template '' names no argument"),
        ({"held_by": "workflow"}, "names no argument"),
        ({"held_by": 7}, "the held_by must be a template"),
        ({"held_by": "{w}", "cost": 2}, "a workflow holds one slot"),
        ({"held_by": "{w}", "cost": lambda job: 1}, "a workflow holds one slot"),
        ({"held_by": "{w}", "adapt": ByLatency(1)}, "leave out it or held_by="),
        ({"held_by": "{w}", "scope": "process"}, 'leave out scope="process"'),
        ({"held_by": "{w}", "on_store_failure": "local", "processes": 1}, 'leave out on_store_failure="local"'),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    """An option that does not work with `held_by` raises; the message names the limit and the option to leave out."""
    with pytest.raises(ConfigurationError, match=f"limit 'x': .*{message}"):
        Concurrency("x", 2, **options)


@pytest.mark.parametrize("kind", [TokenBucket, FixedWindow])
def test_rates_have_no_slots(kind: Any) -> None:
    """Only a concurrency limit has slots."""
    with pytest.raises(ConfigurationError, match="held_by= is for the slots of a Concurrency limit"):
        kind("x", "1/s", held_by="{w}")


@pytest.mark.parametrize("workflow", ["", None, 1.5, True])
def test_workflow_without_a_name_is_refused(limiter: Limiter, workflow: Any) -> None:
    """A workflow without a name raises: all such jobs would share one slot."""
    with pytest.raises(ConfigurationError, match="limit 'gpu': "):
        limiter.acquire(GPU, job=job_of(workflow))
    with pytest.raises(ConfigurationError, match="limit 'gpu': "):
        limiter.acquire(Concurrency("gpu", 2, lease=HOUR, held_by=lambda job: workflow), job=job_of("a"))


def test_limits_with_workflows_are_values() -> None:
    """Two limits are equal if `held_by` is; the repr shows it; the definition is that of a limit without it."""
    again = Concurrency("gpu", 2, held_by="{workflow}")
    plain = Concurrency("gpu", 2, lease=HOUR)
    assert again == GPU
    assert plain != GPU
    assert GPU.definition == plain.definition
    assert repr(GPU) == "Concurrency('gpu', 2, lease=3600.0, held_by='{workflow}')"
    assert Concurrency("gpu", 2, held_by="{w}", lease=5).lease == 5


def test_amount_that_depends_on_the_job(limiter: Limiter) -> None:
    """If the amount depends on the job, workflows share the slots of every amount."""
    limit = Concurrency("gpu", lambda job: job.kwargs["n"], held_by="{workflow}")
    assert limiter.acquire(limit, job=job_of("a", n=1)).allowed
    assert limiter.acquire(limit, job=job_of("b", n=2)).allowed
    assert not limiter.acquire(limit, job=job_of("c", n=2)).allowed
    assert limiter.acquire(limit, job=job_of("a", n=1)).allowed
    assert limiter.acquire(limit, job=job_of("b", n=1)).allowed


def test_decision_marks_the_slots_that_stay_taken(limiter: Limiter) -> None:
    """`Charged.stays` is true only for the slot of a workflow."""
    decision: Decision = limiter.acquire(GPU, Concurrency("other", 1), job=job_of("a"))
    assert [each.stays for each in decision.leases] == [True, False]
    assert Reason.ALLOWED.value == decision.reason


def test_done_from_an_event_loop(limiter: Limiter) -> None:
    """`AsyncLimiter.done` works the same; a `hold` that is cancelled while it waits takes no slot for its workflow."""

    async def main() -> None:
        in_loop = AsyncLimiter(limiter)
        await in_loop.acquire(GPU, job=job_of("a"))
        await in_loop.acquire(GPU, job=job_of("b"))

        async def hold() -> None:
            async with in_loop.hold(GPU, job=job_of("c")):
                raise AssertionError("it was cancelled")

        waiting = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await in_loop.done(GPU, "a")
        await in_loop.done(GPU, job=job_of("b"))

    asyncio.run(main())
    assert free(limiter) == 2

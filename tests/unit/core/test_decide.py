"""Which job is granted, which waits, and which is woken next: decisions over waitlists, with the store in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from throttlekit import Concurrency, FixedWindow, LeakyBucket, Share, SlidingLog, TokenBucket
from throttlekit._core.answer import Answer, Caller, Reason, Requester, Waited
from throttlekit._core.claim import CLASS, StoreClaim
from throttlekit._core.late import EARLY_US, late_owner
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate
from throttlekit._core.storage_keys import bucket_name, holder_name, workflow_name
from throttlekit._core.waitlist import KEPT_US, LEAD_US, PATIENCE_US, TRIAL_US, Entry, State, Wake
from throttlekit.stores.base import Correction, Lease
from throttlekit.stores.memory import MemoryStore

SECOND, MS = 1_000_000, 1_000
LIMIT = TokenBucket("partner", "1/s", burst=1)


class Lists:
    """A store at an explicit time, and owners that listen."""

    def __init__(self, *not_listening: str) -> None:
        self.now = 10**15
        self.store = MemoryStore(clock_us=lambda: self.now)
        self.notified: list[tuple[str, Wake]] = []
        self.on_wakes: list[str] = []
        for owner in {"a", "b", "c"} - {*not_listening}:
            self.listen(owner)

    def listen(self, owner: str) -> None:
        def on_wakes(_: str, wakes: Sequence[Wake]) -> None:
            self.on_wakes.append(owner)
            self.notified += ((owner, wake) for wake in wakes)

        self.store.listen(owner, on_wakes)

    def claim(self, limit: Limit, *, key: str = "", cost: int = 1, job: str = "", **more: Any) -> StoreClaim:
        holder = ""
        if isinstance(limit, Concurrency):
            holder = more.pop("workflow", "") or holder_name(job, "0", 0)
        bucket = bucket_name(limit.name, key, limit.fingerprint)
        return StoreClaim(bucket, limit.bind(cost, 0, holder), cost, limit.queue, **more)

    def decide(
        self, job: str, *limits: Limit | StoreClaim, owner: str = "a", free: int = 3, attempt: str = "", **more: Any
    ) -> Answer:
        extra = {name: more.pop(name) for name in ("caller", "max_wait_us", "waited", "early_us") if name in more}
        claims = [
            each if isinstance(each, StoreClaim) else self.claim(each, job=job, **more) for each in limits or [LIMIT]
        ]
        requester = Requester(extra.pop("caller", Caller.JOB), job, owner, free, **extra)
        return self.store.decide(claims, requester, attempt=attempt)

    def look(self, owner: str = "a", ids: Sequence[str] = (), *, limit: Limit = LIMIT, **more: Any) -> Any:
        return self.store.look(self.claim(limit), owner, more.pop("free", 3), ids, **more)

    def forget(self, *jobs: str, limit: Limit = LIMIT, owner: str = "") -> None:
        self.store.forget([self.claim(limit)], jobs, owner)

    def entries(self, job: str, *limits: Limit) -> list[Entry]:
        """Return the entries of a job on the waitlists of *limits*."""
        claims = [self.claim(limit) for limit in limits or [LIMIT]]
        return [self.store._stored(claim, self.now).waitlist.entries[job] for claim in claims]  # type: ignore[union-attr]  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]

    def woken(self) -> list[str]:
        """Return the ids of the jobs whose owners were notified since the last call."""
        found, self.notified = [wake.id for _, wake in self.notified], []
        return found


@pytest.fixture
def lists() -> Lists:
    return Lists()


def test_a_job_is_granted_while_units_are_free_and_waits_otherwise(lists: Lists) -> None:
    """A denial charges nothing, and names the waitlist on which the job waits."""
    assert lists.decide("one").reason is Reason.ALLOWED
    denied = lists.decide("two")
    assert (denied.reason, denied.kept is not None) == (Reason.EXHAUSTED, True)
    assert denied.retry_us == lists.now + SECOND
    lists.now += SECOND
    assert lists.decide("three", owner="b").reason is Reason.IN_LINE, "the second job is ahead of it"


def test_the_first_job_is_woken_shortly_before_its_unit_is_free(lists: Lists) -> None:
    """
    The owner of the first job gets a wake message if another process polls, and the wake in the reply if it polls
    itself.
    """
    for job, owner in (("one", "a"), ("two", "a"), ("three", "b")):
        lists.decide(job, owner=owner)
    lists.now += SECOND - LEAD_US - 1
    assert (lists.look("b").wakes, lists.woken()) == ((), [])
    lists.now += 1
    assert lists.look("b").wakes == ()
    assert lists.notified == [("a", Wake("two", LEAD_US))]
    assert lists.look("a").wakes == (Wake("two", LEAD_US),), "a look returns all woken jobs that have not requested yet"


def test_a_woken_job_is_granted_early_for_the_time_of_its_unit(lists: Lists) -> None:
    """A woken job is granted before its unit is free: the bound holds for the time at which its body may begin."""
    lists.decide("one")
    lists.decide("two")
    lists.now += SECOND - LEAD_US
    lists.look()
    lists.now += LEAD_US - EARLY_US - 1
    assert lists.decide("two").reason is Reason.EXHAUSTED, "too early"
    lists.now += 1
    lists.look()
    granted = lists.decide("two")
    assert (granted.reason, granted.retry_us - lists.now) == (Reason.ALLOWED, EARLY_US)
    assert lists.decide("three").retry_us == lists.now + EARLY_US + SECOND
    assert lists.decide("four", SlidingLog("log", "1/s")).retry_us == lists.now, (
        "a job that was not woken is not granted early"
    )


def test_a_requester_states_how_early_its_job_may_be_granted(lists: Lists) -> None:
    """A stock RQ worker makes the request of a job some 20 ms after its start, so its `Relay` states a longer time."""
    lists.decide("one")
    lists.decide("two")
    lists.now += SECOND - LEAD_US
    lists.look()
    granted = lists.decide("two", early_us=LEAD_US)
    assert (granted.reason, granted.retry_us - lists.now) == (Reason.ALLOWED, LEAD_US)


def test_a_job_of_a_window_or_a_log_is_not_granted_early(lists: Lists) -> None:
    """A window or a log grants no job early: it would stop counting the job less than a period after its body began."""
    log = SlidingLog("log", "100/s")
    lists.decide("one", LIMIT, log)
    lists.decide("two", LIMIT, log)
    lists.now += SECOND - LEAD_US
    lists.look()
    lists.now += LEAD_US - EARLY_US
    assert lists.decide("two", LIMIT, log).reason is Reason.EXHAUSTED


def test_a_change_of_the_rate_keeps_the_debt_of_an_early_grant() -> None:
    """After an early grant the bucket is below empty until the body begins, even if the rate changes."""
    algorithm, now = TokenBucket("partner", "1/s", burst=1).bind(1), 10**15
    full = algorithm.admit(None, now)
    early = algorithm.admit(full, now + SECOND - EARLY_US, now + SECOND)
    assert early is not None
    assert (early.at_us, early.debt_us) == (now + 2 * SECOND, EARLY_US)
    other, changed = change_rate(TokenBucket("partner", "1/s", burst=1), "2/s").bind(1), now + SECOND - EARLY_US
    assert other.ready_us(other.adopt_rate(early, changed), changed) == changed + SECOND // 2 + EARLY_US // 2


def test_a_new_job_is_granted_if_no_waiting_job_can_be_woken() -> None:
    """If the process of the waiting job does not listen on its channel, a new job is granted."""
    lists = Lists("b")
    lists.decide("one")
    lists.decide("two", owner="b")
    lists.now += SECOND
    assert lists.look("a").wakes == ()
    assert lists.decide("three").reason is Reason.ALLOWED


def test_the_entries_of_a_dead_process_end_after_two_days() -> None:
    """
    A job that its broker delivers again has another owner by then. A caller without a job never returns, and its entry
    must not stay on a list that is in use. The owner's next entries end with the first one.
    """
    lists = Lists("b")
    for job, owner in (("one", "a"), ("two", "b"), ("three", "b")):
        lists.decide(job, owner=owner)
    lists.now += SECOND
    lists.look()
    assert [each.until_us for job in ("two", "three") for each in lists.entries(job)] == [lists.now + KEPT_US, None]
    for _ in range(2):
        lists.now += KEPT_US // 2
        lists.look()
    (last,) = lists.entries("three")
    assert last.until_us == lists.now, "it has waited for two days, too"
    lists.look()
    assert lists.store._stored(lists.claim(LIMIT), lists.now).waitlist is None  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("leaves", ["forgotten", "redelivered", "without a free thread"])
def test_each_first_entry_of_a_dead_process_ends(leaves: str) -> None:
    """Its entry before may leave the list in any way. The process may also have ended while no thread was free."""
    lists = Lists("b")
    lists.decide("one")
    for job in ("two", "three"):
        lists.decide(job, owner="b", free=3)
    if leaves == "without a free thread":
        lists.look("b", free=0)
        lists.now += TRIAL_US + 1
    else:
        lists.now += SECOND
        lists.look()
        if leaves == "forgotten":
            lists.forget("two")
        else:
            lists.decide("two")
    for _ in range(2):
        lists.look()
    (first,) = lists.entries("two" if leaves == "without a free thread" else "three")
    assert first.until_us == lists.now + KEPT_US


def test_jobs_of_a_dead_process_do_not_count_when_one_of_them_ends() -> None:
    """Otherwise a full queue would refuse a new job, although no process waits for it to pass."""
    lists, limit = Lists("b"), TokenBucket("short", "1/s", burst=1, queue=2)
    lists.decide("one", limit)
    lists.decide("two", limit, owner="b", max_wait_us=3 * SECOND)
    lists.decide("three", limit, owner="b")
    lists.decide("four", limit, owner="b", caller=Caller.AGAIN, max_wait_us=3 * SECOND)
    lists.now += SECOND
    assert lists.decide("next", limit).reason is Reason.FULL, "b has not been tried"
    lists.look(limit=limit)
    assert lists.decide("next", limit).reason is Reason.ALLOWED
    lists.now += 3 * SECOND
    assert lists.decide("last", limit).reason is Reason.ALLOWED
    assert lists.decide("new", limit).reason is Reason.EXHAUSTED
    (ends,) = lists.entries("three", limit)
    assert ends.until_us == 10**15 + KEPT_US, "it follows the job whose longest wait has ended"


def test_other_jobs_wait_while_an_owner_has_an_unanswered_wake(lists: Lists) -> None:
    """At slow rates an owner has one wake at a time. It is skipped if the wake is overdue, or if no thread is free."""
    limit = TokenBucket("slow", "1/s", burst=9)
    lists.store.pause([lists.claim(limit)], 10 * SECOND)
    for number, owner in enumerate("aabab"):
        lists.decide(f"old{number}", limit, owner=owner)
    lists.now += 10 * SECOND
    look = lists.look("c", limit=limit)
    assert (lists.woken(), look.look_in_us) == (["old0"], PATIENCE_US)
    assert lists.decide("new", limit, owner="c").reason is Reason.IN_LINE
    assert lists.decide("old0", limit).reason is Reason.ALLOWED
    assert [wake.id for wake in lists.look(limit=limit).wakes] == ["old1"]
    assert lists.woken() == ["old2"]
    lists.now += PATIENCE_US
    assert [wake.id for wake in lists.look("c", limit=limit).wakes] == ["new"]
    lists.look("a", limit=limit, free=0)
    lists.look("b", limit=limit, free=0)
    lists.forget("new", limit=limit)
    assert lists.decide("newest", limit, owner="c").reason is Reason.ALLOWED


def test_an_owner_has_no_more_wakes_than_free_threads(lists: Lists) -> None:
    """Jobs of another owner are woken before those of an owner whose threads are all busy."""
    limit = TokenBucket("wide", "10/s", burst=10)
    for number in range(10):
        lists.decide(f"first{number}", limit)
    for number in range(4):
        lists.decide(f"full{number}", limit, owner="b", free=0)
    lists.decide("other", limit, owner="c", free=5)
    lists.now += SECOND
    lists.look("a", limit=limit)
    assert lists.woken() == ["full0", "other"], "the thread that requested is free once its job waits"
    assert [wake.id for wake in lists.look("b", limit=limit, free=2).wakes] == ["full0", "full1"]


def test_a_wake_that_is_not_answered_gives_its_unit_to_the_next(lists: Lists) -> None:
    """After 0.25 s the next job is woken; the first keeps its position, and is granted if it still requests."""
    lists.decide("one")
    lists.decide("two", owner="b")
    lists.decide("three", owner="c")
    lists.now += SECOND
    lists.look()
    lists.now += PATIENCE_US - 1
    lists.look()
    assert lists.woken() == ["two"]
    lists.now += 1
    lists.look()
    assert lists.woken() == ["three"]
    assert lists.decide("two", owner="b").reason is Reason.ALLOWED


def test_an_owner_whose_wakes_are_overdue_is_probed(lists: Lists) -> None:
    """If no woken job of an owner sends a request, as after a purge, its next job is woken once a second."""
    lists.decide("one")
    for number in range(4):
        lists.decide(f"lost{number}", owner="b", free=0)
    lists.now += SECOND
    for _ in range(8):
        lists.look("a")
        lists.now += TRIAL_US // 2 + 1
    assert lists.woken() == ["lost0", "lost1", "lost2", "lost3"]


def test_an_owner_without_a_free_thread_is_found_to_be_dead(lists: Lists) -> None:
    """
    An owner without a free thread gets no wakes, so a poll checks once a second whether it listens. If it does not, its
    jobs fill no queue.
    """
    limit = TokenBucket("short", "1/minute", burst=1, queue=2)
    lists.decide("one", limit)
    for number in range(2):
        lists.decide(f"lost{number}", limit, owner="b")
    lists.look("b", limit=limit, free=0)
    lists.now += TRIAL_US
    lists.look("c", limit=limit)
    assert lists.on_wakes == [], "b has just reported that no thread is free"
    lists.now += 1
    for _ in range(2):
        lists.look("c", limit=limit)
    assert (lists.on_wakes, lists.woken()) == (["b"], []), "b gets no wake, but listens"
    lists.store.listen("b", lambda *_: None)()
    lists.decide("other", limit)
    lists.now += TRIAL_US
    assert lists.decide("four", limit).reason is Reason.FULL
    lists.now += 1
    lists.look("c", limit=limit)
    assert lists.decide("four", limit).reason is not Reason.FULL


def test_requests_repeat_no_look_while_every_free_thread_has_a_wake(lists: Lists) -> None:
    """
    No job can be woken then until a woken one makes its request. So one look is requested at a time, for the time at
    which the units of the first wake are no longer kept.
    """
    limit, woken = TokenBucket("fast", "100/s", burst=1), list[tuple[int, int]]()

    def request(job: int) -> Answer:
        answer = lists.decide(str(job), limit, owner="ab"[job % 2], free=1)
        for wake in [wake for _, wake in (*answer.wakes, *lists.notified)]:
            woken.append((lists.now + wake.in_us, int(wake.id)))
        lists.notified.clear()
        return answer

    for job in range(60):
        request(job)
    looks = 0
    for _ in range(40):
        lists.now, job = first = min(woken)
        woken.remove(first)
        granted = request(job)
        assert granted.reason is Reason.ALLOWED
        looks += len(granted.looks)
    assert looks == 2, "in 400 ms"


def test_a_job_that_begins_to_wait_checks_no_owner_while_no_unit_is_near(lists: Lists) -> None:
    """
    A new waiting job checks no owner, because the poll that it schedules is in time for the unit. A poll checks owners.
    """
    limit = TokenBucket("slow", "1/minute", burst=1)
    lists.decide("one", limit)
    lists.decide("two", limit, owner="b")
    lists.look("b", limit=limit, free=0)
    lists.now += TRIAL_US + 1
    denied = lists.decide("three", limit)
    assert (lists.on_wakes, denied.looks) == ([], ((0, 60 * SECOND - LEAD_US - TRIAL_US - 1),))
    lists.look("c", limit=limit)
    assert lists.on_wakes == ["b"]
    lists.now += denied.looks[0][1]
    lists.decide("four", limit, owner="c")
    assert lists.woken() == ["three"], "b has no free thread"


def test_a_job_keeps_its_position_on_the_waitlist_of_each_limit(lists: Lists) -> None:
    """A job waits on the list of the limit that delays it longest. A job that is granted, or leaves, is on no list."""
    slow, fast = TokenBucket("slow", "1/minute", burst=1), TokenBucket("fast", "1/s", burst=1)
    lists.decide("one", slow, fast)
    denied = lists.decide("two", slow, fast)
    assert denied.kept is not None
    assert denied.claim == denied.kept.claim == 0
    lists.decide("three", fast, owner="b")
    lists.now += SECOND
    lists.look("a", limit=fast)
    assert lists.woken() == ["three"], "the job that waits for the slow limit blocks no other"
    lists.now += 60 * SECOND
    assert [wake.id for wake in lists.look("a", limit=slow).wakes] == ["two"]
    assert lists.decide("two", slow, fast).reason is Reason.ALLOWED


def test_a_job_that_was_woken_keeps_its_turn_while_another_limit_delays_it(lists: Lists) -> None:
    """The unit of the scarcer limit is reserved for the woken job for a second: another job of that limit waits."""
    scarce, wide = TokenBucket("scarce", "1/s", burst=1), TokenBucket("wide", "10/s", burst=1)
    lists.decide("one", scarce, wide)
    lists.decide("two", scarce, wide)
    lists.now += SECOND - LEAD_US
    lists.look("a", limit=scarce)
    lists.now += LEAD_US
    lists.decide("fast", wide)
    denied = lists.decide("two", scarce, wide)
    assert (denied.reason, denied.claim) == (Reason.EXHAUSTED, 1)
    assert lists.decide("three", scarce, owner="b").reason is Reason.EXHAUSTED or lists.decide("three").claim == 0
    lists.now += SECOND // 10
    lists.look("a", limit=wide)
    assert lists.decide("two", scarce, wide).reason is Reason.ALLOWED


def test_a_full_queue_refuses_new_jobs_only(lists: Lists) -> None:
    """A waiting job is never refused; jobs of dead processes do not count."""
    limit = TokenBucket("short", "1/s", burst=1, queue=2)
    lists.decide("one", limit)
    lists.decide("two", limit)
    lists.decide("three", limit)
    for job, caller in (("four", Caller.JOB), ("", Caller.WITHOUT_JOB), ("", Caller.PEEK)):
        assert lists.decide(job, limit, caller=caller).reason is Reason.FULL
    assert lists.decide("three", limit).reason is Reason.EXHAUSTED
    assert lists.decide("ran", limit, caller=Caller.AGAIN).reason is Reason.EXHAUSTED
    lists.forget("ran", limit=limit)
    assert lists.decide("four", limit, waited=Waited(0, 1)).reason is Reason.EXHAUSTED, (
        "the job waited before the store lost its state"
    )
    lists.forget("four", limit=limit)
    lists.now += SECOND
    lists.store.listen("a", lambda *_: None)()
    lists.look("b", limit=limit)
    assert lists.decide("five", limit, owner="b").reason is Reason.ALLOWED, "the process of all waiting jobs is gone"
    assert lists.decide("six", limit, owner="b").reason is Reason.EXHAUSTED


def test_a_pause_denies_every_job_and_every_job_waits(lists: Lists) -> None:
    """After a 429 the limit counts as used up once the pause is over; the end of a pause wakes the first job."""
    claim = lists.claim(LIMIT)
    lists.store.pause([claim], 10 * SECOND, emptied=True)
    denied = lists.decide("one")
    assert (denied.reason, denied.retry_us - lists.now) == (Reason.PAUSED, 11 * SECOND)
    assert denied.looks == ((0, 10 * SECOND),)
    lists.now += 11 * SECOND - LEAD_US
    assert [wake.id for wake in lists.look().wakes] == ["one"]
    lists.now += LEAD_US
    assert lists.decide("one").reason is Reason.ALLOWED
    assert lists.decide("two").retry_us == lists.now + SECOND, "a grant ends a pause"


def test_resuming_wakes_the_first_job(lists: Lists) -> None:
    """An operator ends the pause early: the first job does not wait for the next look."""
    claim = lists.claim(LIMIT)
    lists.store.pause([claim], 3600 * SECOND)
    lists.decide("one", owner="b")
    lists.store.pause([claim], None)
    assert lists.woken() == ["one"]


def test_a_job_that_ran_before_goes_to_the_front(lists: Lists) -> None:
    """A body that received a 429 waits again, ahead of the jobs that have not run, also if its unit was used up."""
    lists.decide("one")
    lists.decide("two")
    lists.decide("ran", caller=Caller.AGAIN)
    lists.now += SECOND
    assert [wake.id for wake in lists.look().wakes] == ["ran"]
    claim = lists.claim(LIMIT)
    lists.store.settle([Correction(claim.bucket, claim.algorithm, lists.now, claim.algorithm.size)])
    assert lists.decide("ran").reason is Reason.EXHAUSTED
    lists.now += SECOND
    assert [wake.id for wake in lists.look().wakes] == ["ran"]


def test_tenants_share_a_limit(lists: Lists) -> None:
    """A light tenant's job is granted before a heavy tenant's backlog, and weights count."""
    limit = TokenBucket("shared", "1/s", burst=1, share=Share("{tenant}"))
    heavy = {"tenant": "heavy", "step": SECOND}
    lists.decide("first", limit, **heavy)
    for number in range(5):
        lists.decide(f"heavy{number}", limit, **heavy)
    lists.decide("light", limit, tenant="light", step=SECOND)
    order: list[str] = []
    for _ in range(6):
        lists.now += SECOND
        (wake,) = lists.look(limit=limit).wakes
        order.append(wake.id)
        tenant = "light" if wake.id == "light" else "heavy"
        assert lists.decide(wake.id, limit, tenant=tenant, step=SECOND).reason is Reason.ALLOWED
    assert order.index("light") <= 1
    assert [each for each in order if each != "light"] == [f"heavy{number}" for number in range(5)]


@pytest.mark.parametrize("expire", [True, False])
def test_jobs_that_leave_do_not_use_up_the_share_of_their_tenant(lists: Lists, expire: bool) -> None:
    """
    Jobs that expire at the end of their `max_wait`, or are removed, block no other, and the next job of their tenant
    gets the position that it would have without them.
    """
    limit = TokenBucket("shared", "1/s", burst=1, share=Share("{tenant}"))
    lists.decide("first", limit, tenant="patient", step=SECOND)
    for number in range(5):
        lists.decide(f"left{number}", limit, tenant="brief", step=SECOND, max_wait_us=SECOND // 2 if expire else None)
        lists.decide(f"patient{number}", limit, tenant="patient", step=SECOND)
    if not expire:
        lists.forget(*(f"left{number}" for number in range(5)), limit=limit)
    lists.now += SECOND
    assert [wake.id for wake in lists.look(limit=limit).wakes] == ["patient0"]
    assert lists.decide("patient0", limit, tenant="patient", step=SECOND).reason is Reason.ALLOWED
    lists.decide("next", limit, tenant="brief", step=SECOND)
    lists.now += SECOND
    (wake,) = lists.look(limit=limit).wakes
    assert lists.decide(wake.id, limit, tenant="patient", step=SECOND).reason is Reason.ALLOWED
    lists.now += SECOND
    assert {wake.id, *(each.id for each in lists.look(limit=limit).wakes)} == {"patient1", "next"}


def test_a_higher_priority_class_is_woken_first(lists: Lists) -> None:
    """A job of a higher class is woken first, whatever jobs of its class were granted before."""
    lists.decide("one", step=1, tenant="1")
    lists.decide("low", step=1, tenant="0")
    lists.decide("high", step=1, tenant="1", lead=CLASS)
    lists.now += SECOND
    assert [wake.id for wake in lists.look().wakes] == ["high"]


def test_a_job_that_leaves_makes_room_for_the_next(lists: Lists) -> None:
    """If a woken job leaves the waitlist, its unit goes to the next job at once."""
    lists.decide("one")
    lists.decide("two", owner="b")
    lists.decide("three", owner="c")
    lists.now += SECOND
    lists.look()
    assert lists.woken() == ["two"]
    lists.forget("two")
    assert lists.woken() == ["three"]


def test_an_owner_removes_no_job_of_another_owner(lists: Lists) -> None:
    """A message was delivered to another process; its first owner is woken late, and no longer has the job."""
    other = TokenBucket("other", "1/s", burst=1)
    lists.decide("one", LIMIT, other)
    lists.decide("two", LIMIT, other, owner="a")
    lists.decide("two", LIMIT, other, owner="b")
    for limit in (LIMIT, other):
        lists.forget("two", limit=limit, owner="a")
    lists.now += SECOND
    lists.look("c")
    assert lists.woken() == ["two"]
    assert lists.look("c", limit=other).epoch != "", "its position on the other list is kept"
    for limit in (LIMIT, other):
        lists.forget("two", limit=limit, owner="b")
        assert lists.look("c", limit=limit).epoch == "", "the waitlist is empty"


def test_a_look_returns_jobs_that_must_request_again(lists: Lists) -> None:
    """A look names the jobs that the store lost, and the jobs that another process has now."""
    lists.decide("one")
    lists.decide("mine")
    lists.decide("moved")
    lists.decide("moved", owner="b")
    epoch = lists.look().epoch
    assert lists.look("a", ["mine", "moved", "lost"]).again == ("moved", "lost")
    lists.store.reset(list(lists.store._values))
    lists.decide("one")
    lists.decide("other", owner="b")
    assert lists.look("a", ["mine"]).again == ("mine",)
    assert lists.look("a").epoch not in ("", epoch)


def test_a_grant_is_repeated_for_the_same_attempt_only(lists: Lists) -> None:
    """If the reply was lost, the process repeats the request as the same attempt, and is not charged twice."""
    lists.decide("one")
    lists.decide("two", attempt="1")
    lists.now += SECOND
    lists.look()
    assert lists.decide("two", attempt="2").reason is Reason.ALLOWED
    assert lists.decide("two", attempt="2").reason is Reason.ALLOWED, "the same attempt"
    assert lists.decide("two", attempt="2", owner="b").reason is Reason.EXHAUSTED, "another process has a copy"
    lists.now += SECOND
    assert lists.decide("three", attempt="1").reason is not Reason.FULL


def test_entries_record_the_wait_and_the_denials_of_a_job(lists: Lists) -> None:
    """All waitlists record the same, whichever limit denies; the answer names the list on which the job waits."""
    other = TokenBucket("other", "1/s", burst=1)
    limits = (LIMIT, other)
    first_us = lists.now
    assert lists.decide("one", *limits).waited is None, "the job was never denied"
    assert lists.decide("two", *limits).waited == Waited(0, 1, 0)
    lists.now += 300 * MS
    assert lists.decide("two", *limits).waited == Waited(300 * MS, 2, 0)
    lists.store.pause([lists.claim(other)], 3 * SECOND)
    lists.now += 100 * MS
    assert lists.decide("two", *limits).waited == Waited(400 * MS, 3, 1), (
        "the job waits for the end of the pause from now on"
    )
    assert [(e.since_us, e.denials) for e in lists.entries("two", *limits)] == [(first_us, 3)] * 2
    assert lists.decide("two", *limits, caller=Caller.PEEK).waited is None, "a peek is no denial"
    lists.now += 4 * SECOND
    for limit in limits:
        lists.look(limit=limit)
    granted = lists.decide("two", *limits)
    assert (granted.reason, granted.waited) == (Reason.ALLOWED, Waited(4_400 * MS, 3, 1))
    assert lists.decide("two", *limits).waited == Waited(0, 1, 0), "the next run of the job waits from now on"


@pytest.mark.parametrize("lost", [True, False])
def test_the_process_provides_the_wait_of_a_job_that_the_store_lost(lists: Lists, *, lost: bool) -> None:
    """The process's values replace what the store has lost; a process that has none gets them from the store."""
    lists.decide("one")
    lists.decide("two")
    lists.now += 200 * MS
    if lost:
        lists.store.reset([lists.claim(LIMIT).bucket])
        lists.decide("one")
    denied = lists.decide("two", waited=Waited(90 * SECOND, 7))
    assert denied.waited == Waited(90 * SECOND, 8, 0)
    (entry,) = lists.entries("two")
    assert (entry.since_us, entry.denials) == (lists.now - 90 * SECOND, 8)
    lists.now += SECOND
    lists.look()
    assert lists.decide("two").waited == Waited(91 * SECOND, 8, 0)


def test_a_job_on_no_list_has_the_wait_that_its_process_reports(lists: Lists) -> None:
    """
    If the store has lost its state and no job waits, the reply names no waitlist, and has the wait that the process
    sent.
    """
    assert lists.decide("one", waited=Waited(SECOND, 2)).waited == Waited(SECOND, 2, None)


def test_an_owner_woken_before_the_clock_was_set_back_blocks_no_other(lists: Lists) -> None:
    """If an owner hangs whose wake would be overdue only in an hour, the other owners continue at once."""
    for job, owner in (("one", "a"), ("two", "a"), ("three", "a"), ("four", "b")):
        lists.decide(job, owner=owner)
    lists.now += SECOND
    lists.look("b")
    assert lists.woken() == ["two"]
    lists.now -= 3_600 * SECOND
    lists.look("b")
    lists.now += SECOND
    assert [wake.id for wake in lists.look("b").wakes] == ["four"]


def test_a_job_woken_before_the_clock_was_set_back_is_woken_at_the_next_look(lists: Lists) -> None:
    """A job whose wake message was lost, and whose wake is for a time in an hour, is woken at the next poll."""
    for job in ("one", "two"):
        lists.decide(job)
    lists.now += 3_600 * SECOND
    lists.look("b")
    assert lists.woken() == ["two"]
    lists.now -= 3_599 * SECOND
    assert lists.look("a", ["two"]).wakes == (Wake("two", 0),)


def test_a_wait_longer_than_the_clock_began_at_zero(lists: Lists) -> None:
    """A wait that a process sends is at most as long as the clock's own time."""
    lists.decide("one")
    lists.decide("two", waited=Waited(2 * lists.now, 1))
    assert [entry.since_us for entry in lists.entries("two")] == [0]


def test_a_caller_without_a_job_keeps_no_position(lists: Lists) -> None:
    """The caller is granted if no job waits, and otherwise gets a retry time. A peek changes nothing."""
    assert lists.decide("", caller=Caller.PEEK).reason is Reason.ALLOWED
    assert lists.decide("", caller=Caller.WITHOUT_JOB).reason is Reason.ALLOWED
    denied = lists.decide("", caller=Caller.WITHOUT_JOB)
    assert (denied.reason, denied.kept, denied.retry_us - lists.now) == (Reason.EXHAUSTED, None, SECOND)
    lists.decide("job")
    assert lists.decide("", caller=Caller.PEEK).retry_us - lists.now == 2 * SECOND


def test_released_slots_go_to_the_first_job(lists: Lists) -> None:
    """A release wakes the first job at once, without a poll."""
    limit = Concurrency("slots", 1, lease=30)
    lists.decide("one", limit)
    lists.decide("two", limit, owner="b")
    assert lists.look(limit=limit).look_in_us is None
    claim = lists.claim(limit, job="one")
    lists.store.release([Lease(claim.bucket, claim.algorithm, lists.now)])
    lists.store.forget([lists.claim(limit)], ())
    assert lists.woken() == ["two"]
    assert lists.decide("two", limit, owner="b").reason is Reason.ALLOWED


def test_a_job_that_needs_several_slots_does_not_starve(lists: Lists) -> None:
    """No smaller job takes the slots that are free until the first job has enough of them."""
    limit = Concurrency("slots", 2, lease=30)
    for job in ("one", "two"):
        lists.decide(job, limit)
    lists.decide("large", limit, cost=2, owner="b")
    lists.decide("small", limit, owner="c")
    for job, woken in (("one", []), ("two", ["large"])):
        claim = lists.claim(limit, job=job)
        lists.store.release([Lease(claim.bucket, claim.algorithm, lists.now)])
        assert lists.decide("new", limit, caller=Caller.WITHOUT_JOB).reason is Reason.IN_LINE
        assert lists.woken() == woken
    assert lists.decide("large", limit, cost=2, owner="b").reason is Reason.ALLOWED


def test_windows_are_used_from_their_start(lists: Lists) -> None:
    """All units of a fixed window are free at its start, and as many jobs are granted."""
    limit = FixedWindow("window", "3/minute")
    for number in range(3):
        lists.decide(f"first{number}", limit)
    waits = [lists.decide(f"next{number}", limit, free=9) for number in range(4)]
    lists.now = waits[0].retry_us
    assert [wake.id for wake in lists.look(limit=limit, free=9).wakes] == ["next0"], "a quarter of a second of the rate"
    for number in range(3):
        assert lists.decide(f"next{number}", limit, free=9).reason is Reason.ALLOWED
    assert lists.decide("next3", limit, free=9).reason is Reason.EXHAUSTED


def test_the_jobs_of_a_workflow_that_has_a_slot_are_woken_at_once(lists: Lists) -> None:
    """Jobs of a workflow that has a slot take no other slot, and none of them waits for jobs of other workflows."""
    limit = Concurrency("flows", 1, lease=60, held_by="{workflow}")
    a, b = workflow_name("a"), workflow_name("b")
    lists.decide("a1", limit, workflow=b)
    for job, workflow, owner in (("b1", a, "b"), ("b2", b, "c"), ("b3", a, "c")):
        lists.decide(job, limit, workflow=workflow, owner=owner)
    assert lists.decide("b2", limit, workflow=b, owner="c").reason is Reason.ALLOWED
    lists.now += 61 * SECOND
    lists.look(limit=limit)
    assert lists.woken() == ["b1"]
    assert lists.decide("b1", limit, workflow=a, owner="b").reason is Reason.ALLOWED
    assert lists.woken() == ["b3"]


def test_a_job_whose_workflow_has_the_slot_is_first_after_a_pause(lists: Lists) -> None:
    """The job waited only for the pause. If the workflow is done by then, the job waits for a slot like any other."""
    limit = Concurrency("flows", 1, lease=60, held_by="{workflow}", share=Share("{tenant}"))
    a, b = workflow_name("a"), workflow_name("b")
    claim = lists.claim(limit, workflow=a, tenant="x", step=10)
    lists.decide("a1", claim)
    lists.decide("b1", limit, workflow=b, owner="b")
    lists.store.pause([claim], 10 * SECOND)
    for job in ("a2", "a3", "a4"):
        denied = lists.decide(job, claim)
        assert (denied.reason, denied.retry_us) == (Reason.PAUSED, lists.now + 10 * SECOND)
    lists.now += 10 * SECOND
    assert [wake.id for wake in lists.look(limit=limit).wakes] == ["a2"], "one at a time may be unanswered"
    answer = lists.decide("a2", claim)
    assert (answer.reason, [wake.id for _, wake in answer.wakes]) == (Reason.ALLOWED, ["a3", "a4"])
    lists.store.release([Lease(claim.bucket, replace(claim.algorithm, lease_us=0), 0)])
    assert lists.decide("b1", limit, workflow=b, owner="b").reason is Reason.ALLOWED
    assert lists.decide("a3", claim).reason is Reason.EXHAUSTED
    assert lists.look(limit=limit).wakes == (Wake("a4", 0),)
    (entry,) = lists.entries("a3", limit)
    assert (entry.state, entry.cost, entry.place.rank > 0) == (State.WAITING, 1, True)


def test_a_raised_rate_spreads_callers_again(lists: Lists) -> None:
    """
    After a raise of the rate, callers without a position get retry times at the new rate, also if a job was granted
    before.
    """
    for granted in (False, True):
        slow = TokenBucket(f"api {granted}", "1/30s", burst=1)
        fast = change_rate(slow, "100/s")
        for _ in range(4):
            answer = lists.decide("", slow, caller=Caller.WITHOUT_JOB)
        assert answer.retry_us == lists.now + 90 * SECOND
        if granted:
            lists.now += 30 * SECOND
            assert lists.decide("one", fast).reason is Reason.ALLOWED
        assert lists.decide("", fast, caller=Caller.WITHOUT_JOB).retry_us <= lists.now + 10 * MS


@pytest.mark.parametrize("owner", [late_owner(0.05), late_owner(2.1)])
def test_jobs_redelivered_after_a_delay_count_until_they_are_overdue(lists: Lists, owner: str) -> None:
    """
    Until they are overdue, jobs that their framework redelivers are granted before later jobs, and count for a full
    queue.
    """
    limit = TokenBucket("fleet", "1/s", burst=6, queue=3)
    lists.decide("zero", limit, cost=6)
    for job in ("one", "two", "three"):
        lists.decide(job, limit, owner=owner)
    lists.now += SECOND
    assert lists.decide("four", limit, owner=owner).reason is Reason.FULL, (
        "job one was woken, and is not redelivered yet"
    )
    fourth = lists.decide("four", limit, owner=owner, waited=Waited(0, 1))
    assert (fourth.reason, fourth.retry_us) == (Reason.IN_LINE, lists.now + 3 * SECOND)
    assert lists.decide("one", limit, owner=owner).reason is Reason.ALLOWED


@pytest.mark.parametrize("owner", [late_owner(0.05), late_owner(2.1)])
def test_a_denial_has_the_number_of_jobs_ahead(lists: Lists, owner: str) -> None:
    """A denial has the number of jobs ahead, also if the job would be woken sooner than its framework redelivers it."""
    limit = TokenBucket("fleet", "10/s", burst=1)
    lists.listen(owner)
    lists.decide("zero", limit, owner=owner)
    jobs = [f"job {number}" for number in range(30)]
    for again in range(2):
        answers = [lists.decide(job, limit, owner=owner, free=0) for job in jobs]
        denied = [answer.kept.position for answer in answers if answer.kept is not None]
        assert len(denied) >= 28
        assert denied == [*range(len(denied))], again


def test_the_estimated_wait_counts_the_units_of_the_jobs_ahead(lists: Lists) -> None:
    """Behind two jobs of ten units each, a job of ten units is granted after 30 units, not after 12."""
    limit = TokenBucket("tokens", "1/s", burst=10)
    lists.decide("zero", limit, cost=10)
    for number, job in enumerate(("one", "two", "three"), 1):
        answer = lists.decide(job, limit, cost=10)
        assert answer.retry_us - lists.now == 10 * number * SECOND
    found = lists.store.where([lists.claim(limit, cost=10)], "three", lists.now)
    assert found is not None
    assert (found.position, found.in_us) == (2, 30 * SECOND)


def test_a_job_delayed_for_another_reason_keeps_its_position_and_blocks_no_other(lists: Lists) -> None:
    """
    A job that something else delays is not woken any more, but the next job is. When it requests again, it is first.
    """
    for job in ("zero", "one", "two", "three"):
        lists.decide(job)
    lists.store.forget([lists.claim(LIMIT)], ["one"], "a", keep=True)
    assert [entry.state for entry in lists.entries("one")] == [State.KEPT]
    lists.now += SECOND
    assert [wake.id for wake in lists.look().wakes] == ["two"]
    assert lists.decide("two").reason is Reason.ALLOWED
    lists.decide("one")
    lists.now += SECOND
    assert [wake.id for wake in lists.look().wakes] == ["one"]


def test_lost_jobs_block_others_only_for_a_short_time(lists: Lists) -> None:
    """At burst 1 no unit can be reserved for lost jobs: they are skipped at the limit's pace, several per request."""
    for number in range(100):
        lists.decide(f"lost{number}", owner=late_owner(0.05))
    lists.now += 200 * SECOND
    lists.decide("new", owner=late_owner(0.05))
    lists.now += 200 * SECOND
    requests = 0
    while lists.decide("new", owner=late_owner(0.05)).reason is not Reason.ALLOWED:
        requests += 1
        lists.now += SECOND
    assert requests <= 8


def test_overdue_jobs_fill_no_queue(lists: Lists) -> None:
    """Jobs count for a full queue until they are overdue; then new jobs are no longer refused."""
    short = LeakyBucket("even", "1/s", queue=2)
    for job in ("one", "two", "three"):
        lists.decide(job, short, owner=late_owner(0.05))
    assert lists.decide("four", short, owner=late_owner(0.05)).reason is Reason.FULL
    for _ in range(4):
        lists.now += 2 * SECOND
        lists.store.forget([lists.claim(short)], ())
    lists.decide("five", short, owner=late_owner(0.05))
    assert lists.decide("six", short, owner=late_owner(0.05)).reason is not Reason.FULL

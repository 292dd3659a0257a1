"""The decision over several claims, and the waiting line, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.claims import claim_of
from throttlekit._core.absence import BATCH, DOUBT, MOST_BATCH
from throttlekit._core.acquire import State, acquire, kept_until_us, leave
from throttlekit._core.algorithm import STALE_US, Algorithm, Use
from throttlekit._core.algorithms.fixed_window import Count, FixedWindowAlgorithm
from throttlekit._core.algorithms.gcra import Bucket, Tat
from throttlekit._core.algorithms.sliding_log import Log, SlidingLogAlgorithm
from throttlekit._core.algorithms.sliding_window import Counts, SlidingWindowAlgorithm
from throttlekit._core.claim import StoreClaim
from throttlekit._core.line import (
    EMPTY,
    EXACT,
    FAR,
    GRACE_US,
    GUESTS_US,
    LOOK_US,
    UNIT,
    Entry,
    Line,
    Place,
    joined,
    signed,
    standing,
)
from throttlekit._core.slowdown import Heard, heard
from throttlekit._core.verdict import Caller, Reason, Verdict

NOW = 1_800_000_000_000_000
STEP = 100_000
LAST_TAG, FIRST_TAG = 2**52, EMPTY.v
FIVE = Bucket.of(10, 1_000_000, 5)
FULL = State()
SPENT = State(Tat(NOW + 5 * STEP))


def _ask(cost: int = 1, max_queue: int | None = None, *, tenant: str = "", weight: int = 1) -> StoreClaim:
    return claim_of(FIVE.bind(cost), cost, max_queue, tenant=tenant, weight=weight)


class Desk:
    """Limits of ten a second, up to five at once, that were used up at `NOW`; and their lines."""

    def __init__(self, limits: int = 1, state: State = SPENT) -> None:
        self.states: list[State] = [state] * limits
        self.now_us = NOW

    def ask(
        self, *claims: StoreClaim, back: Verdict | None = None, caller: Caller = Caller.JOB,
        places: Sequence[Place | None] = (), max_wait_us: int | None = None, grace_us: int = GRACE_US,
    ) -> Verdict:  # fmt: skip
        verdict, after = acquire(
            claims or [_ask()] * len(self.states), self.states, self.now_us, caller=caller,
            places=places or (() if back is None else back.places), max_wait_us=max_wait_us, grace_us=grace_us,
            secret="secret",
        )  # fmt: skip
        self.states = list(after)
        return verdict

    def waiting(self, jobs: int, claim: StoreClaim | None = None) -> list[Verdict]:
        """So many newcomers, all denied."""
        denied = [self.ask(*([claim] if claim else [])) for _ in range(jobs)]
        assert not any(each.allowed for each in denied)
        return denied

    def leave(self, back: Verdict, number: int = 0) -> None:
        place = back.places[number]
        assert place is not None
        self.states[number] = leave(self.states[number], _ask(), place, self.now_us)

    def passes(self, ms: float) -> None:
        self.now_us += round(ms * 1000)

    @property
    def line(self) -> Line:
        line = self.states[0].line
        assert line is not None
        return line

    @property
    def numbers(self) -> list[int]:
        return [entry.number for entry in self.line.jobs]


def _dues(denied: Sequence[Verdict]) -> list[int]:
    return [each.due_us - NOW for each in denied]


# One limit


def test_grant_says_everything() -> None:
    """A grant names the first claim, this instant, and the new state. Where no job waits, no line is written."""
    desk = Desk(state=FULL)
    assert desk.ask(_ask(2)) == Verdict(Reason.ALLOWED, 0, NOW, NOW, NOW, (Use(0, NOW + 2 * STEP),))
    assert desk.states == [State(Tat(NOW + 2 * STEP), None)]


def test_denial_says_everything() -> None:
    """A denial names the binding claim, the instant to come back at, and the place; it charges nothing."""
    desk = Desk()
    verdict = desk.ask()
    place = signed(desk.line, "bucket", FIRST_TAG, 1, NOW + STEP)
    assert verdict == Verdict(Reason.EXHAUSTED, 0, NOW, NOW + STEP, NOW + STEP, (Use(0, NOW + 5 * STEP),), (place,))
    assert desk.states[0].taken is SPENT.taken
    assert (place.epoch, desk.line.jobs) == (NOW, (Entry(FIRST_TAG, 1, 1),))


@pytest.mark.parametrize("caller", list(Caller))
def test_look_changes_nothing(caller: Caller) -> None:
    """A cost of 0 passes whatever waits, and changes nothing."""
    desk = Desk()
    desk.waiting(3)
    before = desk.states[0]
    assert desk.ask(_ask(0), caller=caller).allowed
    assert desk.states[0] is before


@pytest.mark.parametrize("state", [FULL, SPENT, State(Tat(NOW + STALE_US))])
def test_peek_changes_nothing(state: State) -> None:
    """A peek returns the very states that it was given."""
    states = [state]
    _, after = acquire([_ask()], states, NOW, caller=Caller.PEEK)
    assert after is states


def test_one_state_is_needed_for_each_claim() -> None:
    """A store that gives fewer states than claims has a fault: an error at once, and no decision."""
    with pytest.raises(ValueError, match="zip"):
        acquire([_ask(), _ask()], [FULL], NOW, caller=Caller.JOB)


def test_denial_forgets_what_is_stale() -> None:
    """A denial over a stale bucket writes down that it is empty, for every claim with a charge."""
    stale = State(Tat(NOW + STALE_US + 10**9))
    _, after = acquire([_ask(), _ask(), _ask(0)], [SPENT, stale, stale], NOW, caller=Caller.JOB)
    assert [state.taken for state in after[:2]] == [Tat(NOW + 5 * STEP)] * 2
    assert after[2] is stale


# First come, first served


def test_each_waiter_is_due_when_all_before_it_have_passed() -> None:
    """Twelve newcomers: one more unit each. The instants follow the work before a job, and its own cost."""
    desk = Desk()
    assert _dues(desk.waiting(12)) == [STEP * number for number in range(1, 13)]
    assert _dues(desk.waiting(2, _ask(3))) == [STEP * 15, STEP * 18]
    assert len(desk.line.jobs) + desk.line.extra == 18


def test_newcomer_does_not_pass_those_who_wait() -> None:
    """A unit is there, for the job in front: the newcomer waits, and the first passes."""
    desk = Desk()
    first, _ = desk.waiting(2)
    desk.passes(100)
    newcomer = desk.ask(caller=Caller.PEEK)
    assert (newcomer.reason, newcomer.retry_us) == (Reason.IN_LINE, NOW + 3 * STEP)
    assert desk.ask().due_us == NOW + STEP + GRACE_US, "the unit may be its own by then, if the first does not come"
    assert desk.ask(back=first).allowed
    assert desk.numbers == [2, 3]


@pytest.mark.parametrize("late_ms", [0, 1, 59, 10_000])
def test_job_in_line_keeps_its_place_however_late_it_comes(late_ms: int) -> None:
    """No job asked in between, so none was set aside: it passes those behind it."""
    desk = Desk()
    first, *_ = desk.waiting(10)
    desk.passes(100 + late_ms)
    assert desk.ask(back=first).allowed


def test_early_return_keeps_its_place() -> None:
    """Back before it is due, a job finds the same place; the denial says so, and it stands there once."""
    desk = Desk()
    denied = desk.waiting(3)
    desk.passes(50)
    again = desk.ask(back=denied[1])
    assert (again.reason, again.due_us, again.places) == (Reason.EARLY, NOW + 2 * STEP, denied[1].places)
    assert desk.numbers == [1, 2, 3]


def test_due_job_passes_where_the_limit_has_units_for_all_before_it() -> None:
    """Rule 2: the third of three passes once three units are there, though the first two have not come."""
    desk = Desk()
    denied = desk.waiting(3)
    desk.passes(299)
    assert not desk.ask(back=denied[2]).allowed
    desk.passes(1)
    assert desk.ask(back=denied[2]).allowed
    assert desk.numbers == [1, 2]


@pytest.mark.parametrize(
    ("tenant", "late_us", "numbers"), [("", 49_999, [1, 2]), ("", 50_000, []), ("a", 90_000, [1, 2])]
)
def test_jobs_that_were_due_and_have_not_come_leave_the_line_as_their_units_are_lost(
    tenant: str, late_us: int, numbers: list[int]
) -> None:
    """Behind them all would be told an instant too late. With shares they may have been told a later one than it."""
    desk, one = Desk(state=State(Tat(NOW + STEP))), claim_of(Bucket.of(10, 1_000_000, 1).bind(1), tenant=tenant)
    denied = desk.waiting(3, one)
    desk.now_us = NOW + 4 * STEP
    desk.states[0] = State(Tat(desk.now_us - late_us), desk.line)
    verdict = desk.ask(one, back=denied[2])
    assert (verdict.allowed, verdict.uses) == (True, (Use(late_us, desk.now_us + STEP),))
    assert desk.numbers == numbers
    assert (desk.line.gone, desk.line.extra) == (3 - len(numbers), 0)
    again = desk.ask(one, back=denied[0])
    assert (again.due_us, desk.numbers) == (desk.now_us + STEP, [1, *numbers[1:]])


@pytest.mark.parametrize("why", ["paused", "slowed", "the rate has changed", "the queue is bounded"])
def test_jobs_that_may_not_be_due_stay_in_the_line(why: str) -> None:
    """In a pause, or while it is slowed down, the limit has lost nothing; and late jobs count in a bounded queue."""
    bound = 5 if why == "the queue is bounded" else None
    desk, one = Desk(state=State(Tat(NOW + STEP))), claim_of(Bucket.of(10, 1_000_000, 1).bind(1), max_queue=bound)
    denied = desk.waiting(3, one)
    desk.now_us, line = NOW + 4 * STEP, desk.line
    if why == "paused":
        line = replace(line, paused_us=desk.now_us - 1, paused_from_us=NOW)
    elif why == "the rate has changed":
        line = replace(line, since_us=desk.now_us + 1)
    elif why == "slowed":
        slow = heard(None, Heard(50, 10_000_000), 100, NOW)
        line = replace(line, slow=slow)
    desk.states[0] = State(Tat(desk.now_us - STEP), line)
    verdict = desk.ask(one, back=denied[2])
    assert verdict.allowed
    assert verdict.uses == (Use(0 if why in ("paused", "slowed") else STEP, desk.now_us + STEP),)
    assert desk.numbers == [1, 2]


def test_no_more_than_so_many_leave_the_line_at_once_as_they_have_not_come() -> None:
    desk, one = Desk(state=State(Tat(NOW + STEP))), claim_of(Bucket.of(10, 1_000_000, 1).bind(1))
    last = desk.waiting(MOST_BATCH + 9, one)[-1]
    desk.now_us = NOW + 2 * (MOST_BATCH + 9) * STEP
    assert desk.ask(one, back=last).allowed
    assert len(desk.line.jobs) == 8


def test_job_that_leaves_makes_way() -> None:
    """Expired, revoked or deleted: all behind it are due one unit sooner. A place that is not there changes nothing."""
    desk = Desk()
    denied = desk.waiting(3)
    desk.leave(denied[0])
    left = desk.states[0]
    desk.leave(denied[0])
    assert desk.states[0] is left
    assert desk.ask(back=denied[2]).due_us == NOW + 2 * STEP
    assert leave(FULL, _ask(), denied[0].places[0] or Place(0, 0, 0, 0, ""), NOW) is FULL


def test_rate_that_was_raised_counts_at_the_next_question() -> None:
    """The instant is worked out anew each time: at ten times the rate, the tenth is due ten times sooner."""
    desk = Desk()
    tenth = desk.waiting(10)[-1]
    fast = Bucket.of(100, 1_000_000, 50).bind(1)
    desk.states[0] = State(Tat(NOW + 500_000), desk.line)
    assert desk.ask(claim_of(fast), back=tenth).due_us == NOW + 10 * 10_000


def test_job_that_ran_before_stands_in_front() -> None:
    """A job that has to wait once more after it ran waits for no job that has not run, and its tenant pays nothing."""
    desk = Desk()
    desk.waiting(3)
    before = desk.line.finishes
    again = desk.ask(caller=Caller.AGAIN)
    assert (again.due_us, desk.numbers[0], desk.line.finishes) == (NOW + STEP, 4, before)
    desk.passes(100)
    assert desk.ask(back=again).allowed


@pytest.mark.parametrize("max_wait_us", [STEP - 1, 0])
def test_job_that_will_not_wait_takes_no_place(max_wait_us: int) -> None:
    """Its denial says when it would pass. A job that stood in the line leaves it."""
    desk = Desk()
    verdict = desk.ask(max_wait_us=max_wait_us)
    assert (verdict.due_us, verdict.places, desk.states) == (NOW + STEP, (), [SPENT])
    first, second = desk.waiting(2)
    assert desk.ask(back=second, max_wait_us=0).places != (), "back before it is due, it waits on"
    desk.passes(100)
    desk.states[0] = State(Tat(NOW + 7 * STEP), desk.line)
    assert desk.ask(back=first, max_wait_us=max_wait_us).places == ()
    assert desk.numbers == [2]


@pytest.mark.parametrize(
    "change", [{"start": 0}, {"number": 1}, {"due_us": NOW}, {"epoch": NOW - 1}, {"seal": "0" * 10}, {"seal": ""}]
)
def test_forged_place_is_none(change: dict[str, int]) -> None:
    """A place that its line did not give is no place: the job stands at the end."""
    desk = Desk()
    denied = desk.waiting(4)
    place = denied[3].places[0]
    assert place is not None
    assert desk.ask(places=(place._replace(**change),)).due_us == NOW + 5 * STEP  # type: ignore[arg-type]


def test_places_of_a_line_that_lost_its_state_are_none() -> None:
    """Another epoch has begun: all come as newcomers, in the order in which they come."""
    desk = Desk()
    denied = desk.waiting(4)
    desk.states = [SPENT]
    desk.passes(1)
    assert [desk.ask(back=each).due_us for each in denied[::-1]] == [NOW + n * STEP for n in range(1, 5)]


def test_tags_at_the_end_of_their_range_begin_anew() -> None:
    """Then a new epoch begins; all book again, and none is lost."""
    desk = Desk()
    denied = desk.waiting(2)
    desk.states[0] = State(SPENT.taken, replace(desk.line, v=LAST_TAG))
    desk.passes(1)
    assert desk.ask(back=denied[1]).due_us == NOW + STEP
    assert (desk.line.v, desk.line.epoch, desk.numbers) == (FIRST_TAG, NOW + 1000, [1])


def test_line_is_kept_until_the_last_job_is_due() -> None:
    """The furthest instant that a denial named, or the end of a pause; and the limit's refill after a 429."""
    desk = Desk()
    desk.waiting(7)
    assert kept_until_us(desk.states[0], FIVE.bind(1), NOW) == NOW + 7 * STEP
    heard_429 = State(None, Line(paused_us=NOW + 10**7, emptied_us=NOW + 10**7))
    assert kept_until_us(heard_429, FIVE.bind(1), NOW) == NOW + 10**7 + 5 * STEP
    assert kept_until_us(State(None, Line(paused_us=NOW + 10**7)), FIVE.bind(1), NOW) == NOW + 10**7
    assert kept_until_us(State(None, Line(guest_us=NOW + 9)), FIVE.bind(1), NOW) == NOW + 9


# Jobs that do not come


@pytest.mark.parametrize(("lying_us", "waiting"), [(GRACE_US - 1, [1, 2, 3, 4]), (GRACE_US, [2, 3, 4])])
def test_job_whose_unit_lay_there_for_the_grace_time_is_set_aside(lying_us: int, waiting: list[int]) -> None:
    """Rule 4: not a microsecond sooner. The denial that found it out asks its job back after a grace time."""
    desk = Desk()
    desk.waiting(2)
    desk.passes(100)
    desk.waiting(1)  # finds the unit there
    desk.now_us += lying_us
    verdict = desk.ask()
    assert desk.numbers == waiting
    due_us = desk.now_us + GRACE_US if len(waiting) == 3 else NOW + 4 * STEP
    assert verdict.due_us == due_us
    assert verdict.retry_us == NOW + (len(waiting)) * STEP


def test_grace_time_is_that_of_the_slowest_delivery() -> None:
    """A job whose framework delivers a second late keeps its place so long, and so do all who wait with it."""
    desk, watch = Desk(), _ask(5)
    desk.ask(grace_us=1_000_000)
    desk.waiting(1)
    for ms, numbers in ((1000, [1, 2]), (999, [1, 2]), (1, [])):
        desk.passes(ms)
        desk.ask(watch, caller=Caller.GUEST)
        assert desk.numbers == numbers


def _dead(burst: int, jobs: int) -> tuple[Desk, StoreClaim]:
    """So many wait for a bucket that is full since now; and a claim of all its units, which does not pass."""
    bucket = Bucket.of(1, 60_000_000, burst)
    claim, watch = claim_of(bucket.bind(1)), claim_of(bucket.bind(burst), burst)
    desk = Desk(state=State(bucket.bind(1).exhausted(None, NOW)))
    desk.waiting(jobs, claim)
    desk.states[0] = State(None, desk.line)
    desk.passes(100)
    desk.ask(watch, caller=Caller.GUEST)
    return desk, watch


def _set_aside(desk: Desk, watch: StoreClaim, after_us: int) -> int:
    before = len(desk.line.jobs)
    desk.now_us += after_us
    assert not desk.ask(watch, caller=Caller.GUEST).allowed
    return before - len(desk.line.jobs)


def test_only_as_many_are_set_aside_as_units_lay_there() -> None:
    """A budget, spent once in each grace time: what a second question finds lies for the next in front."""
    desk, watch = _dead(5, 50)
    assert [_set_aside(desk, watch, us) for us in (GRACE_US, GRACE_US - 1, 1)] == [5, 0, 5 * (1 + 5 // DOUBT)]


def test_no_more_than_a_batch_is_set_aside_in_one_question() -> None:
    """That bounds the work of one request. The budget grows while none comes back that was set aside."""
    desk, watch = _dead(1000, 300)
    assert [_set_aside(desk, watch, GRACE_US) for _ in range(2)] == [BATCH, BATCH * (1 + BATCH // DOUBT)]


def test_budget_shrinks_as_jobs_come_back() -> None:
    """Each that comes back halves the doubt."""
    desk = Desk()
    denied = desk.waiting(2)
    desk.states[0] = State(SPENT.taken, replace(desk.line, jobs=desk.line.jobs[1:], doubt=9, aside_us=NOW))
    desk.ask(back=denied[0])
    assert (desk.numbers, desk.line.doubt) == ([1, 2], 4)


def test_job_that_makes_the_request_is_not_set_aside() -> None:
    """However late: it is here. Nor is any behind it."""
    desk = Desk()
    first, *_ = desk.waiting(9)
    desk.passes(1000)
    assert not desk.ask(_ask(5), caller=Caller.GUEST).allowed
    desk.passes(1000)
    assert desk.ask(back=first).allowed
    assert desk.numbers == [2, 3, 4, 5, 6, 7, 8, 9]


def test_none_is_set_aside_before_every_process_could_look() -> None:
    """After a pause, and once the rate was raised, the grace time begins half a second later."""
    for paused in (True, False):
        desk = Desk()
        desk.waiting(3)
        watch = claim_of((FIVE if paused else Bucket.of(50, 1_000_000, 5)).bind(5), 5)
        desk.states[0] = State(None, replace(desk.line, low=5, paused_us=NOW if paused else 0))
        for us, waiting in ((0, 3), (LOOK_US + GRACE_US - 1, 3), (LOOK_US + GRACE_US, 0)):
            desk.now_us = NOW + us
            desk.ask(watch, caller=Caller.GUEST)
            assert len(desk.line.jobs) == waiting


@pytest.mark.parametrize(
    ("behind", "late_us", "same"),
    [
        (0, 10**9, True),
        (1, GRACE_US, True),
        (1, GRACE_US + 1, False),
        (FAR * UNIT, GRACE_US, True),
        (FAR * UNIT + 1, 0, False),
    ],
)
def test_job_that_was_set_aside_comes_in_again(behind: int, late_us: int, same: bool) -> None:
    """At its own place, while it comes in time and jobs of its start pass; else no faster than its tenant's share."""
    v = FIRST_TAG + behind
    line = Line(epoch=NOW, v=v, number=9, secret="s", returns={"a": v + 7})
    place = signed(line, "bucket", FIRST_TAG, 3, NOW)
    stands = standing(line, "a", 1, UNIT, 0, place, NOW + late_us, GRACE_US, first=False)
    assert (stands.waits, stands.back) == (False, True)
    assert stands.entry == (Entry(FIRST_TAG, 3, 1) if same else Entry(v + 7, 10, 1))
    assert stands.tags == ("" if same else "returns")


# Shares


def _order_of(desk: Desk, claims: dict[str, StoreClaim], rounds: int) -> list[str]:
    """The order in which waiting jobs of those tenants pass. Each tenant has *rounds* of them."""
    names: dict[int, str] = {}
    for name, claim in claims.items():
        for _ in range(rounds):
            desk.waiting(1, claim)
            names[desk.line.number] = name
    return [names[entry.number] for entry in desk.line.jobs]


def test_tenants_take_turns() -> None:
    """A tenant with one job stands behind one job of each other tenant, and not behind all that wait."""
    assert _order_of(Desk(), {"heavy": _ask(tenant="heavy"), "light": _ask(tenant="light")}, 3) == [
        "heavy", "light", "heavy", "light", "heavy", "light",
    ]  # fmt: skip


def test_weights_and_costs_are_shares() -> None:
    """A weight of 3 passes three times as many units; a job of two units counts as two."""
    claims = {"one": _ask(tenant="one"), "three": _ask(tenant="three", weight=3)}
    assert _order_of(Desk(), claims, 8)[:8].count("three") == 6
    claims = {"small": _ask(tenant="small"), "large": _ask(2, tenant="large")}
    assert _order_of(Desk(), claims, 8)[:9].count("large") == 3


def test_tenant_that_had_nothing_waiting_has_no_credit() -> None:
    """It starts at the job that passed last, and not before: idle time is not saved up."""
    desk = Desk()
    heavy = [desk.ask(_ask(tenant="heavy")) for _ in range(5)]
    desk.passes(200)
    for each in heavy[:2]:
        assert desk.ask(_ask(tenant="heavy"), back=each).allowed
    late = [desk.ask(_ask(tenant="late")) for _ in range(3)]
    assert [entry.number for entry in desk.line.jobs] == [6, 3, 7, 4, 8, 5]
    assert late[0].due_us == NOW + 3 * STEP


def test_line_that_is_empty_forgets_what_tenants_owe() -> None:
    """Where no job waits, no tenant has to wait for a share of the past."""
    desk = Desk()
    jobs = [desk.ask(_ask(tenant="heavy")) for _ in range(5)]
    for each in jobs:
        desk.leave(each)
    desk.ask(_ask(tenant="heavy"))
    assert desk.line.jobs[0].start == FIRST_TAG


def test_tags_that_no_longer_count_are_dropped() -> None:
    """A tenant's tag is kept only while it is beyond the last job that passed: names do not pile up."""
    tags = {"past": 5 * UNIT, "present": 5 * UNIT + 1}
    line = Line(epoch=NOW, v=5 * UNIT, finishes=tags, returns=tags)
    stands = standing(line, "", 1, UNIT, 0, None, NOW, GRACE_US, first=False)
    line = joined(line, stands, 0, 0, NOW, NOW, GRACE_US)
    assert (line.finishes, line.returns) == ({"present": 5 * UNIT + 1},) * 2


# Costs that differ


def _line_of(costs: Sequence[int], mean: int = 1024) -> Desk:
    """A line of jobs of such costs, all of which wait."""
    tags = {"": FIRST_TAG + UNIT * len(costs)}
    line = Line(epoch=NOW, secret="secret", mean=mean, since_us=NOW, number=len(costs), finishes=tags)
    for number, cost in enumerate(costs, 1):
        stands = standing(line, "", cost, UNIT, 0, None, NOW, GRACE_US, first=False)
        stands = stands._replace(entry=Entry(FIRST_TAG + UNIT * number - UNIT, number, cost))
        line = joined(line, stands, 0, FIVE.bind(1).mark, NOW, NOW, GRACE_US)
    return Desk(state=State(SPENT.taken, line))


def test_costs_in_front_are_added_exactly() -> None:
    """The work before a job is the sum of the costs, one by one for the first of the line."""
    assert _line_of([1, 3, 1, 5] * (EXACT // 4)).ask().due_us == NOW + (10 * EXACT // 4 + 1) * STEP


@pytest.mark.parametrize(("mean", "estimated"), [(1024, 20), (2048, 40), (5 * 1024, 100)])
def test_costs_far_back_are_estimated_by_the_mean(mean: int, estimated: int) -> None:
    """Where a line is long, the rest counts with the mean cost of the jobs that passed."""
    assert _line_of([2] * EXACT + [3] * 20, mean).ask().due_us == NOW + (2 * EXACT + estimated + 1) * STEP


def test_costs_of_one_are_exact_however_long_the_line() -> None:
    """Where each job costs one unit, nothing is estimated."""
    assert _line_of([1] * 500, mean=9 * 1024).ask().due_us == NOW + 501 * STEP


def test_no_job_passes_by_an_estimate() -> None:
    """The mean says that there is room for all; the largest cost that waits says that there may not be. It waits."""
    desk, large = _line_of([1] * EXACT + [9], mean=1024), Bucket.of(1, 60_000_000, EXACT + 5)
    claim = claim_of(large.bind(1))
    desk.states[0] = State(None, replace(desk.line, mark=large.bind(1).mark))
    verdict = desk.ask(claim)
    assert (verdict.reason, verdict.due_us) == (Reason.IN_LINE, NOW + GRACE_US)


# Callers without a job


def test_guests_come_one_after_the_other_behind_those_who_wait() -> None:
    """A guest gets an instant of its own, and no place; jobs do not wait for guests."""
    desk = Desk()
    desk.waiting(3)
    guests = [desk.ask(caller=Caller.GUEST) for _ in range(3)]
    assert _dues(guests) == [4 * STEP, 5 * STEP, 6 * STEP]
    assert all(each.places == () for each in guests)
    assert desk.ask().due_us == NOW + 4 * STEP
    assert desk.ask(caller=Caller.PEEK).due_us == NOW + 5 * STEP


def test_guests_are_spread_over_a_minute_at_most() -> None:
    """They may never come back."""
    desk = Desk()
    for _ in range(1000):
        last = desk.ask(caller=Caller.GUEST)
    assert last.due_us == NOW + STEP + GUESTS_US
    assert last.retry_us == NOW + STEP


# A queue that is full


@pytest.mark.parametrize("caller", [Caller.JOB, Caller.GUEST, Caller.PEEK])
def test_queue_takes_so_many_jobs(caller: Caller) -> None:
    """The newcomer that finds as many waiting is refused, and changes nothing. Who waits already is not refused."""
    desk = Desk()
    denied = desk.waiting(2)
    assert desk.ask(_ask(max_queue=3), caller=Caller.PEEK).reason is Reason.EXHAUSTED
    before = desk.states[0]
    verdict = desk.ask(_ask(max_queue=2), caller=caller)
    assert (verdict.reason, verdict.retry_us, verdict.places) == (Reason.FULL, NOW + 3 * STEP, ())
    assert desk.states[0] is before
    assert desk.ask(_ask(max_queue=0), back=denied[0]).reason is Reason.EARLY
    assert desk.ask(_ask(max_queue=0), caller=Caller.AGAIN).reason is Reason.EXHAUSTED


def test_queue_counts_jobs_and_not_units() -> None:
    """Two jobs of three units are two."""
    desk = Desk()
    desk.waiting(2, _ask(3))
    assert desk.ask(_ask(max_queue=2)).reason is Reason.FULL
    assert desk.ask(_ask(max_queue=3)).reason is Reason.EXHAUSTED


def test_queue_of_none_passes_what_needs_not_wait() -> None:
    """With a queue of 0 a job passes at once or is refused."""
    assert Desk(state=FULL).ask(_ask(max_queue=0)).allowed
    assert Desk().ask(_ask(max_queue=0)).reason is Reason.FULL


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_full_queue_binds_whatever_else_denies(order: tuple[int, int]) -> None:
    """Another limit opens later: but asking again is not what is wanted."""
    asks = [(_ask(max_queue=0), _ask())[i] for i in order]
    states = [(SPENT, State(Tat(NOW + 9 * STEP)))[i] for i in order]
    verdict, after = acquire(asks, states, NOW, caller=Caller.JOB)
    assert (verdict.reason, verdict.claim) == (Reason.FULL, order.index(0))
    assert (verdict.due_us, verdict.retry_us) == (NOW + STEP, NOW + 5 * STEP)
    assert after == states


# Several limits


def _two() -> Desk:
    """The second opens later."""
    desk = Desk(2)
    desk.states[1] = State(Tat(NOW + 9 * STEP))
    return desk


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_job_stands_in_the_line_of_each_limit_that_denies(order: tuple[int, int]) -> None:
    """The limit that opens last binds. In both lines the job is due then, and so it is late in neither."""
    states = [(SPENT, State(Tat(NOW + 9 * STEP)))[i] for i in order]
    verdict, after = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB, secret="secret")
    assert (verdict.claim, verdict.due_us, verdict.retry_us) == (order.index(1), NOW + 5 * STEP, NOW + 5 * STEP)
    assert [place.due_us for place in verdict.places if place] == [NOW + 5 * STEP] * 2
    assert [len(state.line.jobs) for state in after if state.line] == [1, 1]


def test_first_of_equal_instants_binds() -> None:
    """Two limits open at the same instant: the first claim is named."""
    assert Desk(2).ask().claim == 0


def test_job_leaves_the_line_of_a_limit_that_would_pass_it() -> None:
    """It holds no other job back there, keeps its place, and stands there again once that limit denies."""
    desk = _two()
    job = desk.ask()
    desk.passes(100)
    waits = desk.ask(back=job)
    lines = [state.line for state in desk.states]
    assert [len(line.jobs) for line in lines if line] == [0, 1]
    assert (waits.reason, waits.claim, waits.due_us) == (Reason.EARLY, 1, NOW + 5 * STEP)
    desk.states[0] = State(Tat(NOW + 8 * STEP), lines[0])
    back = desk.ask(back=waits)
    assert [place and place[1:3] for place in back.places] == [place and place[1:3] for place in job.places]


@pytest.mark.parametrize("ask", [_ask(tenant="a"), _ask(max_queue=9)], ids=["shared", "bounded queue"])
def test_denial_by_one_limit_charges_no_other(ask: StoreClaim) -> None:
    """All or nothing: what has units keeps them, and gets no line."""
    desk = _two()
    desk.states[0] = FULL
    verdict = desk.ask(ask, _ask())
    assert (verdict.claim, desk.states[0]) == (1, FULL)
    assert verdict.places[0] is None


@pytest.mark.parametrize("waiting", [0, 2], ids=["no job waits", "jobs wait"])
def test_denied_job_gets_a_place_also_where_it_would_pass(waiting: int) -> None:
    """Jobs that the limit denies meanwhile stand behind it, and it takes nothing of what they wait for."""
    desk = _two()
    front = Desk()
    front.waiting(waiting)
    desk.states[0] = State(None, front.line) if waiting else FULL
    desk.passes(1000 if waiting else 0)
    desk.states[1] = State(Tat(desk.now_us + 9 * STEP))
    first = desk.ask()
    assert (first.claim, first.places[0] and first.places[0].number) == (1, waiting + 1)
    assert desk.states[0].taken is None
    assert len(desk.line.jobs) == waiting
    desk.states[0] = State(Tat(desk.now_us + 9 * STEP), desk.states[0].line)
    later = desk.ask()
    assert desk.numbers[-1:] == [later.places[0] and later.places[0].number] == [waiting + 2]
    desk.passes(200)
    back = desk.ask(back=first)
    assert [place and place[1:3] for place in back.places] == [place and place[1:3] for place in first.places]
    assert desk.numbers[-2:] == [waiting + 1, waiting + 2]


def test_job_without_a_share_keeps_its_place_however_far_the_line_has_gone_on() -> None:
    """It is late, and forty jobs behind it have passed: it stands in front of all that wait."""
    desk = Desk()
    first, *others = desk.waiting(60)
    desk.leave(first)
    for each in others[:40]:
        desk.now_us = each.due_us
        assert desk.ask(back=each).allowed
    desk.states[0] = State(Tat(desk.now_us + 9 * STEP), desk.line)
    assert desk.ask(back=first).places[0] == signed(desk.line, "bucket", FIRST_TAG, 1, desk.now_us + 5 * STEP)
    assert desk.numbers == [1, *range(42, 61)]


def test_job_without_a_share_stands_behind_those_that_shared_the_limit() -> None:
    """A deploy has taken the shares away: no job that waits is passed for ever."""
    desk = Desk()
    desk.waiting(3, _ask(tenant="a"))
    desk.waiting(2)
    assert desk.numbers == [1, 2, 3, 4, 5]


def test_right_of_way_in_one_line_does_not_count_in_another() -> None:
    """A tenant's job at the head of one line stands at the end of the other."""
    desk, asks = _two(), (_ask(tenant="a"), _ask())
    desk.states[0] = FULL
    first = desk.ask(*asks)
    front = Desk()
    front.waiting(3, _ask(tenant="a"))
    desk.now_us = NOW + 5 * STEP
    desk.states[0] = State(Tat(desk.now_us + 4 * STEP), front.line)
    verdict = desk.ask(*asks, back=first)
    assert (verdict.reason, verdict.claim, verdict.retry_us) == (Reason.IN_LINE, 0, NOW + 8 * STEP)


# Every algorithm, in one decision

MINUTE = 60_000_000
MIXED: dict[str, tuple[Algorithm, object, int]] = {
    # what is asked, a state that denies it, and the instant from which it passes
    "token bucket": (FIVE.bind(1), Tat(NOW + 5 * STEP), NOW + STEP),
    "fixed window": (FixedWindowAlgorithm(1, 3, MINUTE), Count(NOW // MINUTE, 3), (NOW // MINUTE + 1) * MINUTE),
    "sliding window": (
        SlidingWindowAlgorithm(1, 3, MINUTE, 1), Counts(NOW // MINUTE, 0, 3), (NOW // MINUTE + 1) * MINUTE + 1,
    ),
    "sliding log": (SlidingLogAlgorithm(1, 3, MINUTE), Log((NOW - 30_000_000,) * 3), NOW + 30_000_000),
}  # fmt: skip


@pytest.mark.parametrize("denying", MIXED)
@pytest.mark.parametrize("caller", [Caller.JOB, Caller.GUEST])
def test_denial_by_one_algorithm_charges_no_other(denying: str, caller: Caller) -> None:
    """All or nothing: while one denies, nothing is taken of the others, and of shared limits only its line changes."""
    asks = [claim_of(charge, tenant="a") for charge, _, _ in MIXED.values()]
    states = [State(taken if name == denying else None) for name, (_, taken, _) in MIXED.items()]
    number, opens_us = list(MIXED).index(denying), MIXED[denying][2]
    verdict, after = acquire(asks, states, NOW, caller=caller)
    assert (verdict.reason, verdict.claim) == (Reason.EXHAUSTED, number)
    assert (verdict.retry_us, verdict.due_us) == (opens_us, opens_us)
    assert [a is b for a, b in zip(after, states, strict=True)] == [i != number for i in range(len(states))]
    assert after[number].taken is states[number].taken
    assert after[number].line is not None


def test_grant_charges_every_algorithm() -> None:
    """A grant takes its units of each limit, whatever its algorithm."""
    asks = [claim_of(charge) for charge, _, _ in MIXED.values()]
    verdict, after = acquire(asks, [State()] * len(asks), NOW, caller=Caller.JOB)
    assert verdict.allowed
    taken = [Tat(NOW + STEP), Count(NOW // MINUTE, 1), Counts(NOW // MINUTE, 0, 1), Log((NOW,))]
    assert [state.taken for state in after] == taken
    ends = [NOW + STEP, (NOW // MINUTE + 1) * MINUTE, (NOW // MINUTE + 2) * MINUTE, NOW + MINUTE]
    assert verdict.uses == tuple(Use(i > 0, end_us) for i, end_us in enumerate(ends))


@pytest.mark.parametrize("name", MIXED)
def test_latest_algorithm_to_open_binds(name: str) -> None:
    """Of several algorithms that deny, the one that opens last binds."""
    own = MIXED[name]
    others = [entry for other, entry in MIXED.items() if other != name and entry[2] < own[2]]
    asks = [claim_of(charge) for charge, _, _ in [*others, own]]
    verdict, _ = acquire(asks, [State(taken) for _, taken, _ in [*others, own]], NOW, caller=Caller.PEEK)
    assert (verdict.claim, verdict.retry_us) == (len(others), own[2])


@pytest.mark.parametrize("name", MIXED)
def test_a_line_in_which_no_job_comes_is_cleared_whatever_the_algorithm(name: str) -> None:
    """Its units have come back, and lie there: within three questions a newcomer passes."""
    charge, taken, opens_us = MIXED[name]
    claim, states, now_us = claim_of(charge), [State(taken)], opens_us + 3 * MINUTE
    for _ in range(6):
        _, states = acquire([claim], states, NOW, caller=Caller.JOB)
    allowed: list[bool] = []
    for _ in range(3):
        verdict, states = acquire([claim], states, now_us, caller=Caller.JOB)
        allowed.append(verdict.allowed)
        now_us += GRACE_US
    assert (allowed[0], allowed[-1]) == (False, True)

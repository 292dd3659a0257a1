"""The decision over several claims, and the waiting line, as pure functions."""

from __future__ import annotations

import pytest

from support.claims import claim_of
from throttlekit._core.acquire import ELSEWHERE, Caller, Place, Reason, State, Verdict, acquire
from throttlekit._core.algorithm import STALE_US, Algorithm, Use
from throttlekit._core.algorithms.fixed_window import Count, FixedWindowAlgorithm
from throttlekit._core.algorithms.gcra import Bucket, Tat
from throttlekit._core.algorithms.sliding_log import Log, SlidingLogAlgorithm
from throttlekit._core.algorithms.sliding_window import Counts, SlidingWindowAlgorithm
from throttlekit._core.claim import StoreClaim
from throttlekit._core.line import EMPTY, GRACE_US, GUESTS_US, Line, window_spacing_us, window_tight

NOW = 1_800_000_000_000_000
STEP = 100_000
FIVE = Bucket.of(10, 1_000_000, 5)
FULL = State()
SPENT = State(Tat(NOW + 5 * STEP))


def _ask(cost: int = 1, bucket: Bucket = FIVE, room: int | None = None) -> StoreClaim:
    charge = bucket.bind(cost)
    return claim_of(charge, charge.size, room)


def _tat(tat_us: int | None) -> Tat | None:
    return None if tat_us is None else Tat(tat_us)


def _one(
    state: State, *, cost: int = 1, caller: Caller = Caller.JOB, slot: int | None = None, now: int = NOW
) -> tuple[Verdict, State]:
    place = None if slot is None else Place(0, slot)
    verdict, (after,) = acquire([_ask(cost)], [state], now, caller=caller, place=place)
    return verdict, after


def test_grant_tells_everything() -> None:
    """A grant names the first claim, this instant, and the new state."""
    verdict, after = _one(FULL, cost=2)
    assert verdict == Verdict(Reason.ALLOWED, 0, NOW, NOW, NOW, (Use(0, NOW + 2 * STEP),))
    assert verdict.allowed
    assert after == State(Tat(NOW + 2 * STEP), None)


def test_denial_tells_everything() -> None:
    """A denial names the binding claim, the instant to come back at, and the state as it was."""
    verdict, after = _one(SPENT)
    assert verdict == Verdict(Reason.EXHAUSTED, 0, NOW, NOW + STEP, NOW + STEP, (Use(0, NOW + 5 * STEP),))
    assert not verdict.allowed
    assert after == State(Tat(NOW + 5 * STEP), Line(NOW + 2 * STEP, 0, 0))


def test_denied_states_stay_the_same_objects() -> None:
    """Where nothing changed, the very objects come back: a store writes only what changed."""
    states = [FULL, SPENT, State(Tat(NOW))]
    _, after = acquire([_ask(), _ask(), _ask()], states, NOW, caller=Caller.JOB)
    assert [a is b for a, b in zip(after, states, strict=True)] == [True, False, True]


def test_grant_leaves_lines_alone() -> None:
    """A grant charges the bucket, and keeps its line."""
    line = Line(NOW - 1, NOW - 2, NOW + 9)
    _, after = _one(State(Tat(NOW), line))
    assert after == State(Tat(NOW + STEP), line)


@pytest.mark.parametrize("caller", list(Caller))
def test_look_changes_nothing(caller: Caller) -> None:
    """A cost of 0 passes whoever asks, and changes nothing."""
    state = State(Tat(NOW + 5 * STEP), Line(NOW + 10**9, 0, 0))
    verdict, after = _one(state, cost=0, caller=caller)
    assert verdict.allowed
    assert after is state


@pytest.mark.parametrize("state", [FULL, SPENT, State(Tat(NOW + STALE_US))])
def test_peek_changes_nothing(state: State) -> None:
    """A peek answers, and gives back the states that it was given."""
    states = [state]
    _, after = acquire([_ask()], states, NOW, caller=Caller.PEEK)
    assert after is states


@pytest.mark.parametrize("cost", [0, 1])
def test_peek_replaces_what_is_stale(cost: int) -> None:
    """Else each peek would take the bucket for just used up, for as long as the clock was wrong."""
    stale, line = Tat(NOW + 10**12), Line(NOW + 5)
    _, after = acquire([_ask(), _ask(cost)], [FULL, State(stale, line)], NOW, caller=Caller.PEEK)
    assert list(after) == [FULL, State(_ask().algorithm.sanitized(stale, NOW), line)]


def test_peek_ignores_the_guests() -> None:
    """A peek tells when the request could pass, not where the guests are."""
    verdict, _ = _one(State(Tat(NOW + 5 * STEP), Line(0, 0, NOW + 10**7)), caller=Caller.PEEK)
    assert verdict.due_us == NOW + STEP


@pytest.mark.parametrize(
    ("line", "caller", "slot", "booked"),
    [
        (EMPTY, Caller.JOB, STEP, Line(NOW + 2 * STEP, 0, 0)),
        (Line(NOW + 7 * STEP, 0, 0), Caller.JOB, 7 * STEP, Line(NOW + 8 * STEP, 0, 0)),
        (Line(0, NOW + 7 * STEP, 0), Caller.JOB, 7 * STEP, Line(NOW + 8 * STEP, NOW + 7 * STEP, 0)),
        (Line(NOW + 3 * STEP, NOW + 7 * STEP, 5), Caller.JOB, 7 * STEP, Line(NOW + 8 * STEP, NOW + 7 * STEP, 5)),
        (EMPTY, Caller.GUEST, STEP, Line(0, 0, NOW + 2 * STEP)),
        (Line(NOW + 7 * STEP, 3, 0), Caller.GUEST, 7 * STEP, Line(NOW + 7 * STEP, 3, NOW + 8 * STEP)),
        (Line(3, 4, NOW + 9 * STEP), Caller.GUEST, 9 * STEP, Line(3, 4, NOW + 10 * STEP)),
        (Line(3, 4, NOW + STEP + GUESTS_US), Caller.GUEST, STEP + GUESTS_US, Line(3, 4, NOW + STEP + GUESTS_US)),
    ],
)
def test_newcomer_books(line: Line, caller: Caller, slot: int, booked: Line) -> None:
    """A newcomer stands behind both lines; a guest behind the guests too, and moves only those."""
    verdict, after = _one(State(Tat(NOW + 5 * STEP), line), caller=caller)
    assert verdict.due_us == NOW + slot
    assert after.line == booked


@pytest.mark.parametrize(
    ("line", "slot", "booked"),
    [
        (Line(NOW + 7 * STEP, 0, 9), STEP, Line(NOW + 7 * STEP, NOW + 2 * STEP, 9)),
        (Line(NOW + 7 * STEP, NOW + 3 * STEP, 9), 3 * STEP, Line(NOW + 7 * STEP, NOW + 4 * STEP, 9)),
        (Line(NOW + 7 * STEP, NOW - 1, 9), STEP, Line(NOW + 7 * STEP, NOW + 2 * STEP, 9)),
    ],
)
@pytest.mark.parametrize("caller", [Caller.JOB, Caller.GUEST])
def test_displaced_holder_books_in_the_second_line(line: Line, slot: int, booked: Line, caller: Caller) -> None:
    """A holder that finds no unit gets the next instant of the second line, and moves only that."""
    verdict, after = _one(State(Tat(NOW + 5 * STEP), line), slot=NOW, caller=caller)
    assert verdict.due_us == NOW + slot
    assert after.line == booked


@pytest.mark.parametrize("slot", [NOW, NOW - 1, 1, 0])
def test_holder_passes_those_who_wait(slot: int) -> None:
    """At or after its slot a holder passes, however long the lines are."""
    verdict, _ = _one(State(Tat(NOW), Line(NOW + 10**9, NOW + 10**9, 0)), slot=slot)
    assert verdict.allowed


@pytest.mark.parametrize(
    ("line", "early"),
    [
        (Line(NOW + 2, 0, 0), True),
        (Line(0, NOW + 2, 0), True),
        (Line(NOW + 1, 0, 0), False),
        (Line(0, 0, NOW + 9), False),
        (None, False),
    ],
)
def test_place_ahead_counts_if_its_line_reaches_so_far(line: Line | None, early: bool) -> None:
    """A slot ahead is kept if one of the lines has gone past it, and is nothing otherwise."""
    verdict, _ = _one(State(Tat(NOW + 5 * STEP), line), slot=NOW + 1)
    assert (verdict.reason is Reason.EARLY) == early


def test_early_return_answers_with_its_slot_and_changes_nothing() -> None:
    """A job that is early is told its own slot, by its own claim, and nothing is written."""
    states = [FULL, State(Tat(NOW + 5 * STEP), Line(NOW + 9 * STEP, 0, 0))]
    verdict, after = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB, place=Place(1, NOW + STEP))
    assert verdict == Verdict(Reason.EARLY, 1, NOW, NOW + STEP, NOW + STEP, (Use(0, NOW), Use(0, NOW + 5 * STEP)))
    assert after is states


@pytest.mark.parametrize(
    ("tat", "living"), [(NOW - GRACE_US + 1, True), (NOW - GRACE_US, False), (None, False), (NOW + 1, True)]
)
def test_line_lives_for_a_grace_time(tat: int | None, living: bool) -> None:
    """A line counts until its bucket has stood full for the grace time, and without a bucket not at all."""
    verdict, _ = _one(State(_tat(tat), Line(NOW + 10**7, 0, 0)))
    assert verdict.allowed != living


@pytest.mark.parametrize("caller", [Caller.JOB, Caller.GUEST])
@pytest.mark.parametrize("tat", [NOW - GRACE_US, None])
def test_newcomer_that_passes_a_line_given_up_ends_it(tat: int | None, caller: Caller) -> None:
    """A line that was given up is gone once somebody without right of way has passed."""
    _, after = _one(State(_tat(tat), Line(NOW + 10**9, 0, 0)), caller=caller)
    assert after == State(Tat(NOW + STEP), None)


@pytest.mark.parametrize("tat", [NOW - GRACE_US, None])
def test_holder_that_passes_a_line_given_up_keeps_it(tat: int | None) -> None:
    """Somebody of the line has come after all: it goes on."""
    line = Line(NOW + 10**9, 0, 0)
    _, after = _one(State(_tat(tat), line), slot=NOW)
    assert after == State(Tat(NOW + STEP), line)


@pytest.mark.parametrize(("cost", "caller"), [(0, Caller.JOB), (1, Caller.PEEK)])
def test_looking_ends_no_line(cost: int, caller: Caller) -> None:
    """Neither a look nor a peek ends a line that was given up."""
    state = State(Tat(NOW - GRACE_US), Line(NOW + 10**9, 0, 0))
    _, after = _one(state, cost=cost, caller=caller)
    assert after is state


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_latest_slot_binds(order: tuple[int, int]) -> None:
    """Of two denials, the later slot binds, and only its line is booked."""
    states = [(SPENT, State(Tat(NOW + 5 * STEP), Line(NOW + 3 * STEP, 0, 0)))[i] for i in order]
    verdict, after = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB)
    late = order.index(1)
    assert (verdict.claim, verdict.due_us, verdict.retry_us) == (late, NOW + 3 * STEP, NOW + 3 * STEP)
    assert verdict.reason is Reason.EXHAUSTED
    assert after[1 - late] is states[1 - late]


def test_first_of_equal_slots_binds() -> None:
    """Of two denials for the same instant, the first claim binds."""
    verdict, _ = acquire([_ask(), _ask()], [SPENT, SPENT], NOW, caller=Caller.JOB)
    assert verdict.claim == 0


def test_retry_is_when_every_bucket_is_open() -> None:
    """With guests spread far, the instant to retry is that of the last bucket to open, not the slot."""
    states = [State(Tat(NOW + 5 * STEP), Line(0, 0, NOW + 9 * STEP)), State(Tat(NOW + 7 * STEP))]
    verdict, _ = acquire([_ask(), _ask()], states, NOW, caller=Caller.GUEST)
    assert (verdict.claim, verdict.due_us, verdict.retry_us) == (0, NOW + 9 * STEP, NOW + 3 * STEP)


def test_reason_is_that_of_the_binding_claim() -> None:
    """A line that binds is told as a line, though another bucket is exhausted."""
    states = [SPENT, State(Tat(NOW), Line(NOW + 9 * STEP, 0, 0))]
    verdict, _ = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB)
    assert (verdict.claim, verdict.reason) == (1, Reason.IN_LINE)


def test_spacing_is_the_asks_own() -> None:
    """The line moves on by the spacing that the request brings."""
    ask = claim_of(FIVE.bind(1), 123)
    _, (after,) = acquire([ask], [SPENT], NOW, caller=Caller.JOB)
    assert after.line == Line(NOW + STEP + 123, 0, 0)


def test_denial_forgets_what_is_stale() -> None:
    """A denial over a stale bucket writes down that it is empty, for every claim with a charge."""
    stale, look = State(Tat(NOW + STALE_US + 10**9)), State(Tat(NOW + STALE_US + 10**9))
    verdict, after = acquire([_ask(), _ask(), _ask(0)], [SPENT, stale, look], NOW, caller=Caller.JOB)
    assert verdict.uses == (Use(0, NOW + 5 * STEP),) * 3
    assert [state.taken for state in after[:2]] == [Tat(NOW + 5 * STEP)] * 2
    assert after[2] is look


def test_grant_that_looks_at_a_stale_bucket_leaves_it() -> None:
    """A look at a stale bucket writes nothing, whatever else is charged."""
    stale = State(Tat(NOW + STALE_US + 10**9))
    verdict, after = acquire([_ask(), _ask(0)], [FULL, stale], NOW, caller=Caller.JOB)
    assert verdict.allowed
    assert after[1] is stale


def test_end_of_a_line_is_behind_both() -> None:
    """A newcomer stands behind the first and the second line."""
    assert (Line(1, 2, 9).end_us, Line(2, 1, 9).end_us, EMPTY.end_us) == (2, 2, 0)


# A slot that nobody will wait for


@pytest.mark.parametrize(("max_wait_us", "booked"), [(STEP - 1, None), (STEP, Line(NOW + 2 * STEP)), (0, None)])
def test_slot_beyond_the_patience_is_told_and_not_booked(max_wait_us: int, booked: Line | None) -> None:
    """A job that will not wait for its slot is told it, and leaves it to the next."""
    verdict, (after,) = acquire([_ask()], [SPENT], NOW, caller=Caller.JOB, max_wait_us=max_wait_us)
    assert (verdict.reason, verdict.due_us) == (Reason.EXHAUSTED, NOW + STEP)
    assert after.line == booked


# A queue that is full


@pytest.mark.parametrize(
    ("state", "max_queue_us", "full"),
    [
        (SPENT, 0, True),
        (SPENT, STEP - 1, True),
        (SPENT, STEP, False),
        (State(Tat(NOW), Line(NOW + 3 * STEP)), 3 * STEP - 1, True),
        (State(Tat(NOW), Line(NOW + 3 * STEP)), 3 * STEP, False),
        (State(Tat(NOW + 5 * STEP), Line(0, 0, NOW + 9 * STEP)), STEP, False),
        (FULL, 0, False),
    ],
)
@pytest.mark.parametrize("caller", list(Caller))
def test_queue_is_full_once_the_next_slot_is_too_far_off(
    state: State, max_queue_us: int, full: bool, caller: Caller
) -> None:
    """A newcomer whose place would be beyond the room is refused; where the guests stand does not matter."""
    verdict, _ = acquire([_ask(room=max_queue_us)], [state], NOW, caller=caller)
    assert (verdict.reason is Reason.FULL) == full


@pytest.mark.parametrize("caller", list(Caller))
def test_full_queue_books_nothing(caller: Caller) -> None:
    """A refused job moves no line: it is not coming back."""
    states = [FULL, SPENT]
    verdict, after = acquire([_ask(), _ask(room=0)], states, NOW, caller=caller)
    assert verdict == Verdict(Reason.FULL, 1, NOW, NOW + STEP, NOW + STEP, (Use(0, NOW), Use(0, NOW + 5 * STEP)))
    assert [a is b for a, b in zip(after, states, strict=True)] == [True, True]


def test_full_queue_forgets_what_is_stale() -> None:
    """A refusal writes down what was not believed, as every denial does."""
    stale = State(Tat(NOW + STALE_US + 10**9))
    verdict, after = acquire([_ask(room=0)], [stale], NOW, caller=Caller.JOB)
    assert (verdict.reason, after) == (Reason.FULL, [State(Tat(NOW + 5 * STEP))])


@pytest.mark.parametrize("slot", [NOW, NOW - 10**9])
def test_holder_is_never_refused(slot: int) -> None:
    """Who has waited for its slot is in the queue already: displaced, it waits on, however full the queue is."""
    verdict, (after,) = acquire([_ask(room=0)], [SPENT], NOW, caller=Caller.JOB, place=Place(0, slot))
    assert verdict.reason is Reason.EXHAUSTED
    assert after.line == Line(0, NOW + 2 * STEP, 0)


def test_job_that_is_early_is_not_refused() -> None:
    """Back before its slot, a job keeps it, however full the queue is by now."""
    state = State(Tat(NOW + 5 * STEP), Line(NOW + 9 * STEP))
    verdict, (after,) = acquire([_ask(room=0)], [state], NOW, caller=Caller.JOB, place=Place(0, NOW + STEP))
    assert verdict.reason is Reason.EARLY
    assert after is state


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_full_queue_binds_whatever_else_denies(order: tuple[int, int]) -> None:
    """A full queue is told though another limit opens later: asking again is not what is wanted."""
    asks = [(_ask(room=0), _ask())[i] for i in order]
    states = [(SPENT, State(Tat(NOW + 5 * STEP), Line(NOW + 9 * STEP)))[i] for i in order]
    verdict, after = acquire(asks, states, NOW, caller=Caller.JOB)
    assert (verdict.reason, verdict.claim) == (Reason.FULL, order.index(0))
    assert (verdict.due_us, verdict.retry_us) == (NOW + STEP, NOW + 9 * STEP)
    assert [a is b for a, b in zip(after, states, strict=True)] == [True, True]


def test_first_of_two_full_queues_binds() -> None:
    """Of two full queues, the first claim binds."""
    verdict, _ = acquire([_ask(room=0), _ask(room=0)], [SPENT, SPENT], NOW, caller=Caller.JOB)
    assert (verdict.reason, verdict.claim) == (Reason.FULL, 0)


# A place in a line that is kept elsewhere


def test_slot_kept_elsewhere_is_right_of_way_once_it_has_come() -> None:
    """A job whose slot stands in another store's line passes this one's line when the slot has come."""
    state = State(Tat(NOW), Line(NOW + 9 * STEP))
    verdict, _ = acquire([_ask()], [state], NOW, caller=Caller.JOB, place=Place(ELSEWHERE, NOW))
    assert verdict.allowed


def test_slot_kept_elsewhere_that_lies_ahead_is_nothing_here() -> None:
    """Only the store that keeps the line can say that a job is early: here it is a newcomer."""
    state = State(Tat(NOW), Line(NOW + 9 * STEP))
    verdict, (after,) = acquire([_ask()], [state], NOW, caller=Caller.JOB, place=Place(ELSEWHERE, NOW + 1))
    assert verdict.reason is Reason.IN_LINE
    assert after.line == Line(NOW + 10 * STEP)


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
    """All or nothing: while one denies, nothing is taken of the others, and only its line moves."""
    asks = [claim_of(charge, charge.spacing_us(0)) for charge, _, _ in MIXED.values()]
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
    asks = [claim_of(charge, 1) for charge, _, _ in MIXED.values()]
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
    asks = [claim_of(charge, 1) for charge, _, _ in [*others, own]]
    verdict, _ = acquire(asks, [State(taken) for _, taken, _ in [*others, own]], NOW, caller=Caller.PEEK)
    assert (verdict.claim, verdict.retry_us) == (len(others), own[2])


@pytest.mark.parametrize("name", MIXED)
def test_line_of_every_algorithm_is_given_up_a_grace_time_after_it_lay_idle(name: str) -> None:
    """A line counts until the limit has lain idle for the grace time, whatever the algorithm."""
    charge, taken, _ = MIXED[name]
    idle_us = charge.busy_until_us(taken, NOW)
    state = State(taken, Line(NOW + 10**12))
    for now_us, lives in ((idle_us + GRACE_US - 1, True), (idle_us + GRACE_US + 10 * MINUTE, False)):
        verdict, (after,) = acquire([claim_of(charge, 1)], [state], now_us, caller=Caller.JOB)
        assert verdict.allowed != lives
        assert (after.line is None) != lives


@pytest.mark.parametrize(
    ("units", "amount", "period_us", "lateness_us", "spacing"),
    [
        (1, 100, 60_000_000, 0, 600_000),
        (1, 100, 60_000_000, 50_000, 600_500),
        (2, 100, 60_000_000, 50_000, 1_201_000),
        (1, 3, 1_000_000, 50_000, 333_334 + 13_333),
        (1, 10, 1_000_000, 10**9, 104_000),
        (0, 10, 1_000_000, 50_000, 0),
    ],
)
def test_slots_of_a_window_stand_apart_by_its_lateness_share(
    units: int, amount: int, period_us: int, lateness_us: int, spacing: int
) -> None:
    """One charge, rounded up, and the lateness's share of the period more; 1/25 at most."""
    assert window_spacing_us(units, amount, period_us, lateness_us) == spacing


@pytest.mark.parametrize(("lateness_us", "tight"), [(0, False), (40_000, False), (40_001, True)])
def test_window_is_tight_where_the_lateness_is_a_good_part_of_it(lateness_us: int, tight: bool) -> None:
    """A window shorter than 25 latenesses is tight."""
    assert window_tight(1_000_000, lateness_us) is tight


def test_one_state_is_needed_for_each_claim() -> None:
    """A store that gives fewer states than claims has a fault: it is told at once, and nothing is decided."""
    with pytest.raises(ValueError, match="zip"):
        acquire([_ask(), _ask()], [FULL], NOW, caller=Caller.JOB)

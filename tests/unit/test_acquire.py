"""The decision over several claims, and the waiting line, as pure functions."""

from __future__ import annotations

import pytest

from throttlekit._core.acquire import Ask, Caller, Place, Reason, State, Verdict, acquire
from throttlekit._core.gcra import STALE_US, Bucket, Charge
from throttlekit._core.line import EMPTY, GRACE_US, GUESTS_US, Line, spacing_us

NOW = 1_800_000_000_000_000
STEP = 100_000
FIVE = Bucket.of(10, 1_000_000, 5)
FULL = State()
SPENT = State(NOW + 5 * STEP)


def _ask(cost: int = 1, bucket: Bucket = FIVE) -> Ask:
    charge = bucket.charge(cost)
    return Ask(charge, charge.charge_us)


def _one(
    state: State, *, cost: int = 1, caller: Caller = Caller.JOB, slot: int | None = None, now: int = NOW
) -> tuple[Verdict, State]:
    place = None if slot is None else Place(0, slot)
    verdict, (after,) = acquire([_ask(cost)], [state], now, caller=caller, place=place)
    return verdict, after


def test_grant_tells_everything() -> None:
    """A grant names the first claim, this instant, and the new state."""
    verdict, after = _one(FULL, cost=2)
    assert verdict == Verdict(Reason.ALLOWED, 0, NOW, NOW, NOW, (NOW + 2 * STEP,))
    assert verdict.allowed
    assert after == State(NOW + 2 * STEP, None)


def test_denial_tells_everything() -> None:
    """A denial names the binding claim, the instant to come back at, and the state as it was."""
    verdict, after = _one(SPENT)
    assert verdict == Verdict(Reason.EXHAUSTED, 0, NOW, NOW + STEP, NOW + STEP, (NOW + 5 * STEP,))
    assert not verdict.allowed
    assert after == State(NOW + 5 * STEP, Line(NOW + 2 * STEP, 0, 0))


def test_denied_states_stay_the_same_objects() -> None:
    """Where nothing changed, the very objects come back: a store writes only what changed."""
    states = [FULL, SPENT, State(NOW)]
    _, after = acquire([_ask(), _ask(), _ask()], states, NOW, caller=Caller.JOB)
    assert [a is b for a, b in zip(after, states, strict=True)] == [True, False, True]


def test_grant_leaves_lines_alone() -> None:
    """A grant charges the bucket, and keeps its line."""
    line = Line(NOW - 1, NOW - 2, NOW + 9)
    _, after = _one(State(NOW, line))
    assert after == State(NOW + STEP, line)


@pytest.mark.parametrize("caller", list(Caller))
def test_look_changes_nothing(caller: Caller) -> None:
    """A cost of 0 passes whoever asks, and changes nothing."""
    state = State(NOW + 5 * STEP, Line(NOW + 10**9, 0, 0))
    verdict, after = _one(state, cost=0, caller=caller)
    assert verdict.allowed
    assert after is state


@pytest.mark.parametrize("state", [FULL, SPENT, State(NOW + 10**12)])
def test_peek_changes_nothing(state: State) -> None:
    """A peek answers, and gives back the states that it was given."""
    states = [state]
    _, after = acquire([_ask()], states, NOW, caller=Caller.PEEK)
    assert after is states


def test_peek_ignores_the_guests() -> None:
    """A peek tells when the request could pass, not where the guests are."""
    verdict, _ = _one(State(NOW + 5 * STEP, Line(0, 0, NOW + 10**7)), caller=Caller.PEEK)
    assert verdict.slot_us == NOW + STEP


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
    verdict, after = _one(State(NOW + 5 * STEP, line), caller=caller)
    assert verdict.slot_us == NOW + slot
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
    verdict, after = _one(State(NOW + 5 * STEP, line), slot=NOW, caller=caller)
    assert verdict.slot_us == NOW + slot
    assert after.line == booked


@pytest.mark.parametrize("slot", [NOW, NOW - 1, 1, 0])
def test_holder_passes_those_who_wait(slot: int) -> None:
    """At or after its slot a holder passes, however long the lines are."""
    verdict, _ = _one(State(NOW, Line(NOW + 10**9, NOW + 10**9, 0)), slot=slot)
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
    verdict, _ = _one(State(NOW + 5 * STEP, line), slot=NOW + 1)
    assert (verdict.reason is Reason.EARLY) == early


def test_early_return_answers_with_its_slot_and_changes_nothing() -> None:
    """A job that is early is told its own slot, by its own claim, and nothing is written."""
    states = [FULL, State(NOW + 5 * STEP, Line(NOW + 9 * STEP, 0, 0))]
    verdict, after = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB, place=Place(1, NOW + STEP))
    assert verdict == Verdict(Reason.EARLY, 1, NOW, NOW + STEP, NOW + STEP, (None, NOW + 5 * STEP))
    assert after is states


@pytest.mark.parametrize(
    ("tat", "living"), [(NOW - GRACE_US + 1, True), (NOW - GRACE_US, False), (None, False), (NOW + 1, True)]
)
def test_line_lives_for_a_grace_time(tat: int | None, living: bool) -> None:
    """A line counts until its bucket has stood full for the grace time, and without a bucket not at all."""
    verdict, _ = _one(State(tat, Line(NOW + 10**7, 0, 0)))
    assert verdict.allowed != living


@pytest.mark.parametrize("caller", [Caller.JOB, Caller.GUEST])
@pytest.mark.parametrize("tat", [NOW - GRACE_US, None])
def test_newcomer_that_passes_a_line_given_up_ends_it(tat: int | None, caller: Caller) -> None:
    """A line that was given up is gone once somebody without right of way has passed."""
    _, after = _one(State(tat, Line(NOW + 10**9, 0, 0)), caller=caller)
    assert after == State(NOW + STEP, None)


@pytest.mark.parametrize("tat", [NOW - GRACE_US, None])
def test_holder_that_passes_a_line_given_up_keeps_it(tat: int | None) -> None:
    """Somebody of the line has come after all: it goes on."""
    line = Line(NOW + 10**9, 0, 0)
    _, after = _one(State(tat, line), slot=NOW)
    assert after == State(NOW + STEP, line)


@pytest.mark.parametrize(("cost", "caller"), [(0, Caller.JOB), (1, Caller.PEEK)])
def test_looking_ends_no_line(cost: int, caller: Caller) -> None:
    """Neither a look nor a peek ends a line that was given up."""
    state = State(NOW - GRACE_US, Line(NOW + 10**9, 0, 0))
    _, after = _one(state, cost=cost, caller=caller)
    assert after is state


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_latest_slot_binds(order: tuple[int, int]) -> None:
    """Of two denials, the later slot binds, and only its line is booked."""
    states = [(SPENT, State(NOW + 5 * STEP, Line(NOW + 3 * STEP, 0, 0)))[i] for i in order]
    verdict, after = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB)
    late = order.index(1)
    assert (verdict.claim, verdict.slot_us, verdict.retry_us) == (late, NOW + 3 * STEP, NOW + 3 * STEP)
    assert verdict.reason is Reason.EXHAUSTED
    assert after[1 - late] is states[1 - late]


def test_first_of_equal_slots_binds() -> None:
    """Of two denials for the same instant, the first claim binds."""
    verdict, _ = acquire([_ask(), _ask()], [SPENT, SPENT], NOW, caller=Caller.JOB)
    assert verdict.claim == 0


def test_retry_is_when_every_bucket_is_open() -> None:
    """With guests spread far, the instant to retry is that of the last bucket to open, not the slot."""
    states = [State(NOW + 5 * STEP, Line(0, 0, NOW + 9 * STEP)), State(NOW + 7 * STEP)]
    verdict, _ = acquire([_ask(), _ask()], states, NOW, caller=Caller.GUEST)
    assert (verdict.claim, verdict.slot_us, verdict.retry_us) == (0, NOW + 9 * STEP, NOW + 3 * STEP)


def test_reason_is_that_of_the_binding_claim() -> None:
    """A line that binds is told as a line, though another bucket is exhausted."""
    states = [SPENT, State(NOW, Line(NOW + 9 * STEP, 0, 0))]
    verdict, _ = acquire([_ask(), _ask()], states, NOW, caller=Caller.JOB)
    assert (verdict.claim, verdict.reason) == (1, Reason.IN_LINE)


def test_spacing_is_the_asks_own() -> None:
    """The line moves on by the spacing that the request brings."""
    ask = Ask(FIVE.charge(1), 123)
    _, (after,) = acquire([ask], [SPENT], NOW, caller=Caller.JOB)
    assert after.line == Line(NOW + STEP + 123, 0, 0)


def test_denial_forgets_what_is_stale() -> None:
    """A denial over a stale bucket writes down that it is empty, for every claim with a charge."""
    stale, look = State(NOW + STALE_US + 10**9), State(NOW + STALE_US + 10**9)
    verdict, after = acquire([_ask(), _ask(), _ask(0)], [SPENT, stale, look], NOW, caller=Caller.JOB)
    assert verdict.tats_us == (NOW + 5 * STEP, NOW + 5 * STEP, NOW + 5 * STEP)
    assert [state.tat_us for state in after[:2]] == [NOW + 5 * STEP, NOW + 5 * STEP]
    assert after[2] is look


def test_grant_that_looks_at_a_stale_bucket_leaves_it() -> None:
    """A look at a stale bucket writes nothing, whatever else is charged."""
    stale = State(NOW + STALE_US + 10**9)
    verdict, after = acquire([_ask(), _ask(0)], [FULL, stale], NOW, caller=Caller.JOB)
    assert verdict.allowed
    assert after[1] is stale


@pytest.mark.parametrize(
    ("charge_us", "headroom_us", "lateness_us", "spacing"),
    [
        (100_000, 50_000, 50_000, 100_000),
        (100_000, 49_999, 50_000, 104_000),
        (100_000, 0, 50_000, 104_000),
        (100_000, 0, 0, 100_000),
        (500_000, 0, 50_000, 520_000),
        (86_400_000_000, 0, 50_000, 86_400_020_000),
        (24, 0, 50_000, 24),
        (0, 0, 50_000, 0),
    ],
)
def test_slots_of_a_tight_bucket_stand_further_apart(
    charge_us: int, headroom_us: int, lateness_us: int, spacing: int
) -> None:
    """Where the bucket has less room than the delivery is late, slots stand 1/25 further apart, 20 ms at most."""
    assert spacing_us(Charge(charge_us, headroom_us, 10**12), lateness_us) == spacing


def test_end_of_a_line_is_behind_both() -> None:
    """A newcomer stands behind the first and the second line."""
    assert (Line(1, 2, 9).end_us, Line(2, 1, 9).end_us, EMPTY.end_us) == (2, 2, 0)

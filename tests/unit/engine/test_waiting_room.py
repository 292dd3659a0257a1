"""The jobs that wait in one process become due later together, as their line moves slower than it was told."""

from __future__ import annotations

import math
import random

import pytest

from throttlekit import Limiter, TokenBucket
from throttlekit._core.line import Place
from throttlekit._engine.ticket import Ticket
from throttlekit.adapter import Entry, Lane, WaitingRoom, lane_in, leaves_units


def lane(number: int, name: str = "a") -> Lane:
    return Lane(name, 0, number)


def asked_in_vain(room: WaitingRoom[str], entry: Entry[str], due: float, lane: Lane | None = None) -> Entry[str]:
    """*entry* is taken out, or was before, is denied, and put back; in another *lane*, if it is given."""
    assert entry.gone or room.remove(entry)
    return room.put(entry.item, due, lane or entry.lane, before=entry.waited)


def test_what_stands_behind_a_job_that_asked_in_vain_is_due_as_much_later() -> None:
    """So it asks once, at its turn, and not at each instant that it was told before others came in front of it."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second = room.put("first", 10, lane(1)), room.put("second", 12, lane(2))
    other, outside = room.put("other", 11, lane(1, "b")), room.put("outside", 11.5)
    first = asked_in_vain(room, first, 15)
    assert [room.due(each) for each in (first, second, other, outside)] == [15, 17, 11, 11.5]
    first = asked_in_vain(room, first, 16)
    assert room.due(second) == 18
    later = room.put("later", 19, lane(3))
    told = []
    while (entry := room.first()) is not None:
        told.append((entry.item, entry.due))
        room.remove(entry)
    assert told == [("other", 11), ("outside", 11.5), ("first", 16), ("second", 18), ("later", 19)]
    assert later.gone


def test_a_lane_becomes_later_by_steps_towards_how_late_its_first_job_is_in_all() -> None:
    """
    Of jobs that ask early, one stands before the other, and each second answer says little: without the steps, all of
    them would come as early for ever.
    """
    room: WaitingRoom[str] = WaitingRoom()
    first, second, third = (room.put(str(n), 10 + n, lane(n)) for n in (1, 2, 3))
    second = asked_in_vain(room, second, 13)
    assert room.remove(first)
    assert room.due(third) == 13
    second = asked_in_vain(room, second, 13.01)
    assert room.due(third) == pytest.approx(13.05)
    for number in range(30):
        second = asked_in_vain(room, second, 13.01 + number / 1000)
    assert room.due(third) == pytest.approx(14 + 0.039)


def test_an_answer_that_is_given_again_makes_no_lane_later() -> None:
    """A job is asked for ten times before it is due, as ten jobs before it are granted at once: it is due as before."""
    room: WaitingRoom[str] = WaitingRoom()
    told = Lane("a", 0, 1, told_us=10_000_000)
    first, second = room.put("first", 10, told), room.put("second", 12, lane(2))
    later = told._replace(told_us=15_000_000)
    first = asked_in_vain(room, first, 15, later)
    assert room.due(second) == 17
    for _ in range(10):
        first = asked_in_vain(room, first, 15, later)
    assert [room.due(each) for each in (first, second)] == [15, 17]
    asked_in_vain(room, first, 16, told._replace(told_us=16_000_000))
    assert room.due(second) == 18


def test_an_answer_that_is_given_again_ends_the_lateness_that_another_job_brought() -> None:
    """Jobs of another tenant came before the first, and left: what stands next is told what it was told before."""
    room: WaitingRoom[str] = WaitingRoom()
    told = [Lane("a", 0, n, told_us=n * 1_000_000) for n in (9, 10, 12)]
    first, second, third = (room.put(str(each.number), each.number, each) for each in told)
    first = asked_in_vain(room, first, 14, told[0]._replace(told_us=14_000_000))
    assert [room.due(each) for each in (second, third)] == [15, 17]
    assert room.remove(first)
    second = asked_in_vain(room, second, 10)
    assert [room.due(each) for each in (second, third)] == [10, 12]


def test_a_guess_makes_no_lane_sooner_or_later() -> None:
    """A job is told to come soon, as those before it seem not to come: it does, and those behind it wait as before."""
    room: WaitingRoom[str] = WaitingRoom(second=1000)
    first, second, third = (room.put(str(n), 10_000 + 2_000 * n, lane(n)) for n in range(3))
    first = asked_in_vain(room, first, 15_000)
    assert [room.due(each) for each in (second, third)] == [17_000, 19_000]
    first = asked_in_vain(room, first, 11_060, first.lane._replace(sooner=4.0))
    assert [room.due(each) for each in (first, second, third)] == [11_060, 17_000, 19_000]
    assert room.first() is first
    first = asked_in_vain(room, first, 15_500, lane(0))
    assert [room.due(each) for each in (first, second, third)] == [15_500, 17_500, 19_500]


def test_what_a_look_finds_makes_a_lane_later_by_that_alone() -> None:
    """It is asked for by itself, so its answer is the lane's: no step beyond it."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second, third = (room.put(str(n), 10 + n, lane(n)) for n in (1, 2, 3))
    second = asked_in_vain(room, second, 13)
    assert room.remove(first)
    assert room.to_look_at(5, 0.5, 5.25) is second
    asked_in_vain(room, second, 13.25)
    assert room.due(third) == 13.25


def test_a_lane_is_read_off_a_ticket() -> None:
    """Also by how much sooner than its place says the job is to come."""
    place = Place(1, 7, 3, 9_000_000, "seal")
    ticket = Ticket(9_000_000, "x:x", 1, 5, "line", places={"x:x": place})
    assert lane_in(ticket.write()) == Lane("line", 7, 3, told_us=9_000_000)
    assert lane_in(ticket._replace(due_us=8_500_000).write()) == Lane("line", 7, 3, sooner=0.5, told_us=9_000_000)
    assert lane_in(ticket._replace(places={}).write()) == Lane("line")
    assert lane_in(None) == Lane()


def test_a_job_that_is_told_another_instant_keeps_its_place() -> None:
    """What it is told at each answer is no part of where it stands."""
    place = Place(1, 7, 3, 9_000_000, "seal")
    before = Ticket(9_000_000, "x:x", 1, 5, "line", places={"x:x": place})
    after = before._replace(due_us=8_000_000, places={"x:x": place._replace(due_us=9_500_000)})
    assert lane_in(before.write()).place == lane_in(after.write()).place == ("line", 7, 3)


def test_a_process_looks_at_the_first_of_a_lane_that_has_fallen_behind() -> None:
    """However long ago it was to be due: it may be due sooner than the lane says."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second = room.put("first", 10, lane(1)), room.put("second", 12, lane(2))
    room.remove(asked_in_vain(room, first, 30))
    assert room.due(second) == 32
    assert room.to_look_at(15, 0.5, 15.25) is second
    assert room.to_look_at(15.1, 0.5, 15.35) is None
    assert room.to_look_at(31.9, 0.5, 32.15) is None


def test_those_that_became_later_with_their_lane_are_due_sooner_again_with_it() -> None:
    """A pause ends before its time: what was taken up meanwhile, and found to be due later, is due at once."""
    room: WaitingRoom[str] = WaitingRoom()
    entries = [room.put(f"job {n}", 10 + n, lane(n)) for n in range(6)]
    other = room.put("another", 90, Lane("another"))
    paused = asked_in_vain(room, entries[0], 110)
    assert room.first() is other
    again = asked_in_vain(room, paused, 20)
    assert room.first() is again
    found: list[tuple[str, float]] = []
    while (entry := room.first()) is not None:
        found.append((entry.item, entry.due))
        room.remove(entry)
    assert found == [
        ("job 0", 20),
        *((f"job {n}", pytest.approx(20 + n, abs=0.05)) for n in range(1, 6)),
        ("another", 90),
    ]
    assert not list(room)


def test_only_the_first_of_a_lane_says_how_far_the_lane_is_behind() -> None:
    """What holds a later one up may stand behind the first."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second = room.put("first", 10, lane(1)), room.put("second", 12, lane(2))
    asked_in_vain(room, second, 30)
    assert room.due(first) == 10


def test_a_job_that_came_in_front_meanwhile_is_due_as_it_was_told() -> None:
    """What holds up the job that asks may be that very one."""
    room: WaitingRoom[str] = WaitingRoom()
    first = room.put("first", 10, lane(2))
    assert room.remove(first)
    light = room.put("light", 11, lane(1))
    asked_in_vain(room, first, 30)
    assert room.due(light) == 11


def test_a_job_that_was_parked_meanwhile_makes_no_other_later() -> None:
    """It left before a pause, and those that came since know of the pause. Its next answer here counts again."""
    room: WaitingRoom[str] = WaitingRoom()
    first = room.put("first", 10, lane(1))
    assert room.remove(first)
    second = room.put("second", 13.5, lane(2))
    first = room.put("first", 13, first.lane)
    assert [room.due(each) for each in (first, second)] == [13, 13.5]
    asked_in_vain(room, first, 15)
    assert room.due(second) == 15.5


def test_answers_that_come_in_another_order_count_once() -> None:
    """Two jobs of a lane ask at once, and what holds the second up is not what holds the first."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second, third = (room.put(str(n), 10 + n, lane(n)) for n in (1, 2, 3))
    assert room.remove(first)
    assert room.remove(second)
    asked_in_vain(room, second, 15)
    assert room.due(third) == 16
    asked_in_vain(room, first, 11)
    assert room.due(third) == 16
    assert third.lane.number == 3


def test_a_line_that_moves_faster_again_makes_no_job_due_later_than_its_first_says() -> None:
    """And none earlier than by its own answer: the first is looked at, and wakes those behind it."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second = room.put("first", 10, lane(1)), room.put("second", 12, lane(2))
    first = asked_in_vain(room, first, 20)
    assert room.due(second) == 22
    asked_in_vain(room, first, 8)
    assert room.due(second) == 12


def test_jobs_that_leave_and_never_come_back_are_forgotten() -> None:
    """Thousands that were admitted leave a few numbers behind, and the order by due stays whole."""
    room: WaitingRoom[str] = WaitingRoom()
    generator = random.Random(1)
    for number in range(5_000):
        room.put(str(number), number, lane(number))
    last, left = 0.0, 0
    while (entry := room.first()) is not None:
        assert entry.due >= last - 3
        last = entry.due
        if generator.random() < 0.2:
            asked_in_vain(room, entry, entry.due + generator.randrange(1, 4))
        else:
            room.remove(entry)
            left += 1
    assert left == 5_000
    assert not room.lanes or room.first_in("a") is None


def test_a_job_is_held_no_longer_than_its_broker_allows() -> None:
    """However late its lane becomes."""
    room: WaitingRoom[str] = WaitingRoom()
    first = room.put("first", 1.0, Lane("one", 5, 1))
    second = room.put("second", 2.0, Lane("one", 9, 2), latest=4.0)
    third = room.put("third", 3.0, Lane("one", 9, 3))
    asked_in_vain(room, first, 11.0)
    assert (room.due(second), room.due(third)) == (4.0, 13.0)


def test_a_job_that_is_told_an_earlier_instant_was_expected_later_all_the_same() -> None:
    """Those behind it know no more than its lane did: if it is granted by what it was told, its line moves faster."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second = room.put("first", 10, lane(1)), room.put("second", 12, lane(2))
    assert [each.expected for each in (first, second)] == [10, 12]
    first = asked_in_vain(room, first, 5)
    assert [(room.due(each), each.expected) for each in (first, second)] == [(5, 10), (12, 12)]
    first = asked_in_vain(room, first, 6)
    assert first.expected == 10
    first = asked_in_vain(room, first, 15)
    assert room.remove(first)
    assert room.remove(second)
    assert [(room.due(each), each.expected) for each in (first, second)] == [(15, 15), (17, 17)]
    assert room.put("first", 4, first.lane).expected == 4


def test_a_job_that_has_lost_its_place_is_granted_before_it_was_expected() -> None:
    """So the next one asks: those that waited behind it have lost theirs too. Not where another limit denies it now."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second = room.put("first", 10, lane(1)), room.put("second", 12, lane(2))
    asked_in_vain(room, first, 30)
    assert room.remove(second)
    assert second.waited == (lane(2), 32)
    assert room.put("second", 40, lane(9), before=second.waited).expected == math.inf
    assert room.put("second", 7, lane(9, "b"), before=second.waited).expected == 7


def test_two_that_ask_at_the_same_time_make_a_lane_sooner_once() -> None:
    """What stands behind them would be due too soon, and ask in vain."""
    room: WaitingRoom[str] = WaitingRoom()
    first = room.put("first", 10, lane(1))
    second, third, fourth = (room.put(str(n), 20 + n, lane(n)) for n in (2, 3, 4))
    assert room.remove(asked_in_vain(room, first, 30))
    assert [room.due(each) for each in (second, third, fourth)] == [42, 43, 44]
    assert room.remove(second)
    assert room.remove(third)
    asked_in_vain(room, third, 33)
    assert room.due(fourth) == pytest.approx(34)
    asked_in_vain(room, second, 32.5)
    assert room.due(fourth) == pytest.approx(34)


def test_a_grant_that_leaves_units_calls_for_the_next_job() -> None:
    """Those that lie there for longer than a job is late; a body that runs uncharged is no grant."""
    limiter, slow, fast = Limiter(), TokenBucket("slow", "1/d", burst=4), TokenBucket("fast", "100/s", burst=6)
    assert [leaves_units(limiter.acquire(slow)) for _ in range(5)] == [True, True, True, False, False]
    assert [leaves_units(limiter.acquire(fast)) for _ in range(3)] == [True, True, False]
    assert not leaves_units(None)

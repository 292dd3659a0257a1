"""The jobs that wait in one process become due later together, as their line moves slower than it was told."""

from __future__ import annotations

import random
from typing import Any

from throttlekit import Limiter, TokenBucket
from throttlekit.adapter import Entry, Lane, WaitingRoom, leaves_most


def lane(number: int, name: str = "a") -> Lane:
    return Lane(name, 0, number)


def asked_in_vain(room: WaitingRoom[str], entry: Entry[str], due: float) -> Entry[str]:
    """*entry* was taken out, denied, and is put back."""
    assert room.remove(entry)
    return room.put(entry.item, due, entry.lane)


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
    told: list[tuple[str, float]] = []
    while (entry := room.first()) is not None:
        told.append((entry.item, entry.due))
        room.remove(entry)
    assert told == [("other", 11), ("outside", 11.5), ("first", 16), ("second", 18), ("later", 19)]
    assert later.gone


def test_an_answer_says_nothing_of_those_in_front() -> None:
    """What holds a later one up may stand behind the first."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second, third = (room.put(str(n), 10 + n, lane(n)) for n in (1, 2, 3))
    second = asked_in_vain(room, second, 30)
    assert [room.due(each) for each in (first, second, third)] == [11, 30, 31]
    first = asked_in_vain(room, first, 14)
    assert [room.due(each) for each in (first, second, third)] == [14, 30, 31]
    asked_in_vain(room, first, 40)
    assert [room.due(each) for each in (second, third)] == [41, 42]


def test_jobs_learn_of_what_came_in_front_while_another_stood_first() -> None:
    """
    A light tenant's job is first in the lane, and due as it was told. The heavy tenant's behind it know nothing of it
    and its like: one asks in vain, and not each of them.
    """
    room: WaitingRoom[str] = WaitingRoom()
    heavy = [room.put(f"heavy {n}", 10 + n, lane(10 + n)) for n in range(50)]
    light = room.put("light", 10.5, lane(1))
    asks = 0
    while (entry := room.first()) is not None:
        asks += 1
        room.remove(entry)
        late = 5 if entry.item.startswith("heavy") else 0
        true = 10 + int(entry.item.split()[1]) + late if late else 10.5
        if entry.due < true:
            room.put(entry.item, true, entry.lane)
    assert asks == len(heavy) + 2
    assert light.gone


def test_a_job_that_asked_before_its_turn_makes_none_late() -> None:
    """It was to ask soon, as those in front of it may not be coming; or it could be held no longer."""
    room: WaitingRoom[str] = WaitingRoom(second=1000)
    soon = room.put("soon", 1_000, Lane("a", 0, 1, early=20.0))
    cut = room.put("cut", 4_000, lane(2), latest=4_000)
    behind = room.put("behind", 22_000, lane(3))
    assert room.due(soon) == 1_000
    assert room.remove(soon)
    room.put("soon", 21_000, lane(1))
    assert room.due(behind) == 22_000
    asked_in_vain(room, cut, 50_000)
    assert room.due(behind) == 22_000


def test_a_guess_when_a_slot_comes_free_counts_for_the_first_only() -> None:
    """That of one behind it says nothing of the rest."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second, third = (room.put(str(n), 10 + n, Lane("a", 0, n, slots=True)) for n in (1, 2, 3))
    asked_in_vain(room, second, 30)
    assert room.due(third) == 13
    asked_in_vain(room, first, 15)
    assert room.due(third) == 17


def test_answers_that_rise_from_place_to_place_are_kept_in_part() -> None:
    """A few numbers a lane. What is forgotten makes jobs late that are gone by then."""
    room: WaitingRoom[str] = WaitingRoom()
    entries = [room.put(str(n), n, lane(n)) for n in range(1, 300)]
    for n, entry in enumerate(entries, 1):
        asked_in_vain(room, entry, 2 * n)
    untyped: Any = room
    (standing,) = untyped._lanes.values()
    assert len(standing.steps) == len(standing.late) == 64
    assert room.due(room.put("last", 1000, lane(1000))) == 1000


def test_a_job_that_came_in_front_meanwhile_is_due_as_it_was_told() -> None:
    """What holds up the job that asks may be that very one."""
    room: WaitingRoom[str] = WaitingRoom()
    first = room.put("first", 10, lane(2))
    assert room.remove(first)
    light = room.put("light", 11, lane(1))
    room.put(first.item, 30, first.lane)
    assert room.due(light) == 11


def test_answers_that_come_in_another_order_count_once() -> None:
    """Two jobs of a lane ask at once, and what holds the second up is not what holds the first."""
    room: WaitingRoom[str] = WaitingRoom()
    first, second, third = (room.put(str(n), 10 + n, lane(n)) for n in (1, 2, 3))
    assert room.remove(first)
    assert room.remove(second)
    room.put("2", 15, lane(2))
    assert room.due(third) == 16
    room.put("1", 11, lane(1))
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
    room.remove(first)
    room.put("first", 11.0, Lane("one", 5, 1))
    assert (room.due(second), room.due(third)) == (4.0, 13.0)


def test_grant_that_leaves_most_of_the_limit_calls_for_the_next_job() -> None:
    """More than half of what can pass at once; a denial leaves nothing, and a body that runs uncharged is no grant."""
    limiter, limit = Limiter(), TokenBucket("x", "1/d", burst=4)
    assert [leaves_most(limiter.acquire(limit)) for _ in range(5)] == [True, False, False, False, False]
    assert not leaves_most(None)

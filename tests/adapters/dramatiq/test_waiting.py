"""The delay queue that knows who waits for which slot: in all else a queue like Dramatiq's."""

from __future__ import annotations

import itertools
import random
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from throttlekit_dramatiq._message_state import TICKET
from throttlekit_dramatiq._waiting import Waiting, due_and_message


def item(due: int, lane: Any = None) -> Any:
    options = {} if lane is None else {TICKET: {"lane": lane}}
    return due, SimpleNamespace(options=options)


def filled(*items: Any) -> Waiting:
    waiting = Waiting()
    for each in items:
        waiting.put(each)
    return waiting


def drained(waiting: Waiting) -> list[int]:
    return [waiting.get_nowait()[0] for _ in range(waiting.qsize())]


def test_it_gives_out_what_is_due_first_and_what_came_first_of_two_due_at_once() -> None:
    """By due, then by the order of coming; then it is empty."""
    items = [item(3), item(1), item(2), item(1)]
    waiting = filled(*items)
    assert [waiting.get_nowait() for _ in range(4)] == [items[1], items[3], items[2], items[0]]
    with pytest.raises(Empty):
        waiting.get_nowait()


def test_the_first_of_a_lane_is_taken_out_from_behind_others() -> None:
    """Of those with the lane the one due first; once; the others are as they were, and in their order."""
    waiting = filled(item(1), item(5, "b"), item(9, "a"), item(7, "a"), item(8))
    first = waiting.first_in("a")
    assert first is not None
    assert first.due == 7
    assert waiting.remove(first)
    assert not waiting.remove(first)
    waiting.task_done()
    assert waiting.qsize() == waiting.unfinished_tasks == 4
    assert drained(waiting) == [1, 5, 8, 9]


def test_a_lane_that_nobody_stirs_is_told_of_and_each_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a second in which nobody of it was brought up; then not again before another half second."""
    now = 100.0
    monkeypatch.setattr("throttlekit_dramatiq._waiting.time", SimpleNamespace(monotonic=lambda: now))
    waiting = filled(item(1), item(5, "a"), item(9, "b"), item(3, "a"))
    assert [waiting.first_in_still_lane() for _ in range(4)] == [None] * 4
    now = 100.5
    told = [waiting.first_in_still_lane() for _ in range(2)]
    assert [entry and entry.due for entry in told] == [3, 9]
    assert waiting.remove(told[0])  # type: ignore[arg-type]
    told = [waiting.first_in_still_lane() for _ in range(2)]
    assert [entry and entry.due for entry in told] == [None, 9]
    assert Waiting().first_in_still_lane() is None


def test_what_was_given_out_is_in_no_lane_any_more() -> None:
    """A message that left in its turn is not woken; a lane that nobody waits in has nobody."""
    waiting = filled(item(1, "a"), item(2, "a"))
    waiting.get_nowait()
    first = waiting.first_in("a")
    assert first is not None
    assert first.due == 2
    waiting.get_nowait()
    assert waiting.first_in("a") is waiting.first_in("none") is waiting.first() is None


@pytest.mark.parametrize("ticket", ["text", 7, [], {"lane": 7}, {"lane": ["x"]}, {}])
def test_a_forged_lane_is_none(ticket: Any) -> None:
    """Whatever a message carries, it waits, and comes out in its turn."""
    waiting = Waiting()
    waiting.put((1, SimpleNamespace(options={TICKET: ticket})))
    assert waiting.first_in("x") is None
    assert drained(waiting) == [1]


def test_it_tells_all_that_wait() -> None:
    """For whoever has to give them back: nothing that was taken out is among them."""
    items = [item(due, "a") for due in (1, 2, 3)]
    waiting = filled(*items)
    waiting.remove(waiting.first_in("a"))  # type: ignore[arg-type]
    assert [id(message) for message in waiting.messages()] == [id(each[1]) for each in items[1:]]


def test_random_histories_are_those_of_a_sorted_list() -> None:
    """Put, give out, take from a lane, 20 000 times in any order: as a plain list does it, and kept small."""
    chance, numbers = random.Random(6), itertools.count()
    waiting, model = Waiting(), list[tuple[int, int, Any]]()
    for _ in range(20_000):
        act = chance.random()
        if act < 0.5 or not model:
            each = item(chance.randrange(50), chance.choice([None, "a", "b"]))
            waiting.put(each)
            model.append((each[0], next(numbers), each))
            model.sort(key=lambda entry: entry[:2])
        elif act < 0.7:
            assert waiting.get_nowait() is model.pop(0)[2]
            waiting.task_done()
        else:
            lane = chance.choice("ab")
            in_lane = [entry for entry in model if entry[2][1].options.get(TICKET) == {"lane": lane}]
            first = waiting.first_in(lane)
            assert (first and first.item.item) is (in_lane[0][2] if in_lane else None)
            if first is not None and waiting.remove(first):
                waiting.task_done()
                model.remove(in_lane[0])
        assert waiting.qsize() == waiting.unfinished_tasks == len(model)
        assert len(waiting._room._entries) <= 2 * len(model) + 1001


def test_a_queue_whose_messages_are_all_taken_from_lanes_stays_small() -> None:
    """Ten thousand that come, and are woken before they are due: nothing is left of them."""
    waiting = filled(*(item(10**6, "a") for _ in range(5)))
    for due in range(10_000):
        waiting.put(item(due, "a"))
        assert waiting.remove(waiting.first_in("a"))  # type: ignore[arg-type]
    assert len(waiting._room._entries) + sum(len(lane.entries) for lane in waiting._room._lanes.values()) < 5_000
    assert waiting.qsize() == 5


def test_items_of_old_and_new_dramatiq_are_read() -> None:
    """A pair before 2.2; an object since."""
    message = SimpleNamespace(options={})
    assert due_and_message((7, message)) == (7, message)
    assert due_and_message(SimpleNamespace(priority=7, message=message)) == (7, message)

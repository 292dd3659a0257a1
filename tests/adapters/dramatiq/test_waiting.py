"""The delay queue that knows which message stands first in each line: in all else a queue like Dramatiq's."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from support.dramatiq.helpers import Site
from support.servers.stores import Recording
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit._core.line import Place
from throttlekit._engine.ticket import Ticket
from throttlekit.adapter import lane_in
from throttlekit_dramatiq import Throttle
from throttlekit_dramatiq._message_state import TICKET
from throttlekit_dramatiq._waiting import Retimed, Waiting, due_and_message

_NUMBERS = itertools.count(1)


def item(due: int, lane: str = "", start: int = 0) -> Any:
    place = Place(1, start or due, next(_NUMBERS), due, "seal")
    ticket = Ticket(due, "limit", line=lane, places={"limit": place}).write()
    return due, SimpleNamespace(options={TICKET: ticket} if lane else {})


def answered(item: Any, due: int) -> None:
    """The message of *item* was denied again, and is due at *due*: it carries that, and keeps its place."""
    ticket = Ticket.read(item[1].options[TICKET])
    place = ticket.places["limit"]._replace(due_us=due)
    item[1].options[TICKET] = ticket._replace(due_us=due, places={"limit": place}).write()


def filled(*items: Any) -> Waiting:
    waiting = Waiting()
    for each in items:
        waiting.put(each)
    return waiting


def line_of(each: Any) -> str:
    return lane_in(each[1].options.get(TICKET)).name


def stand(entry: tuple[int, int, Any]) -> tuple[int, int]:
    """Where a message of the model stands in its line: by its start, then by when it came."""
    return lane_in(entry[2][1].options[TICKET]).start, entry[1]


def drained(waiting: Waiting) -> list[int]:
    return [waiting.get_nowait()[0] for _ in range(waiting.qsize())]


def test_it_gives_out_what_is_due_first_and_what_came_first_of_two_due_at_once() -> None:
    """By due, then by the order of coming; then it is empty."""
    items = [item(3), item(1), item(2), item(1)]
    waiting = filled(*items)
    assert [waiting.get_nowait() for _ in range(4)] == [items[1], items[3], items[2], items[0]]
    with pytest.raises(Empty):
        waiting.get_nowait()


def test_join_returns_when_every_message_is_dealt_with() -> None:
    """Not when the last one was given out: `Worker.join` waits until it has been enqueued elsewhere."""
    waiting, joined = filled(item(1), item(2)), threading.Event()

    def join() -> None:
        waiting.join()
        joined.set()

    thread = threading.Thread(target=join)
    thread.start()
    for _ in range(2):
        waiting.get_nowait()
        assert not joined.is_set()
        waiting.task_done()
    thread.join(60)
    assert joined.is_set()


def test_the_first_of_a_lane_is_taken_out_from_behind_others() -> None:
    """Of those with the lane the first of the line, once; the others are as they were, and in the order of due."""
    waiting = filled(item(1), item(5, "b"), item(7, "a", start=4), item(9, "a", start=3), item(8))
    first = waiting.first_in("a")
    assert first is not None
    assert first.due == 9
    assert waiting.remove(first)
    assert not waiting.remove(first)
    waiting.task_done()
    assert waiting.qsize() == waiting.unfinished_tasks == 4
    assert drained(waiting) == [1, 5, 7, 8]


def test_each_lane_is_looked_at_now_and_then_and_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of it, half a second after the last look; but not if that one is due in a moment anyway."""
    now = 100.0
    monkeypatch.setattr("throttlekit_dramatiq._waiting.time", SimpleNamespace(monotonic=lambda: now))
    waiting = filled(item(1), item(500, "a"), item(900, "b"), item(400, "a"))

    def looks(at_ms: int) -> list[float | None]:
        return [entry and entry.due for entry in (waiting.to_look_at(at_ms) for _ in range(4))]

    assert looks(0) == [None] * 4
    now = 100.5
    assert looks(0) == [400, 900, None, None]
    now = 101.0
    assert looks(150) == [None, 900, None, None]
    assert Waiting().to_look_at(0) is None


def test_a_message_that_goes_on_waiting_is_due_anew() -> None:
    """It is where its new instant puts it, before what stands behind it; what is given out is what Dramatiq put in."""
    items = [item(1, "a"), item(2, "a"), item(3)]
    waiting = filled(*items)
    first = waiting.first_in("a")
    assert first is not None
    assert waiting.remove(first)
    answered(first.item.item, 5)
    waiting.put(Retimed(first.item.item, 5, first.item.since, first.waited))
    first = waiting.first_in("a")
    assert first is not None
    assert (first.due, first.expected) == (5, 5)
    assert [waiting.get_nowait() for _ in range(3)] == [items[2], items[0], items[1]]


def test_a_message_that_has_lost_its_place_is_granted_before_it_was_expected() -> None:
    """What stands behind the place that it had is to ask as well."""
    waiting = filled(item(9, "a", start=3), item(20, "a", start=4))
    first = waiting.first_in("a")
    assert first is not None
    assert waiting.remove(first)
    elsewhere = item(5, "a", start=7)
    waiting.put(Retimed(elsewhere, 5, first.item.since, first.waited))
    entry = waiting.first()
    assert entry is not None
    assert (entry.due, entry.expected) == (5, math.inf)


@pytest.mark.parametrize(("stayed", "due"), [(True, 1690), (False, 900)])
def test_only_a_message_that_goes_on_waiting_here_makes_those_behind_it_due_later(stayed: bool, due: int) -> None:
    """Not one that left, was parked, and comes from the broker again: those that came since know what it knows."""
    first, second = item(10, "a"), item(900, "a")
    waiting = filled(first)
    entry = waiting.first()
    assert entry is not None
    waiting.get_nowait()
    waiting.put(second)
    answered(first, 800)
    waiting.put(Retimed(first, 800, 0.0, entry.waited) if stayed else (800, first[1]))
    waiting.get_nowait()
    left = waiting.first()
    assert left is not None
    assert left.due == due


def test_what_was_given_out_is_in_no_lane_any_more() -> None:
    """A message that left in its turn is not woken; a lane in which no message waits has no first."""
    waiting = filled(item(1, "a"), item(2, "a"))
    waiting.get_nowait()
    first = waiting.first_in("a")
    assert first is not None
    assert first.due == 2
    waiting.get_nowait()
    assert waiting.first_in("a") is waiting.first_in("none") is waiting.first() is None


@pytest.mark.parametrize(
    "ticket", ["text", 7, [], {"line": "x"}, {**Ticket().write(), "line": 7}, {**Ticket().write(), "line": ["x"]}]
)
def test_a_forged_lane_is_none(ticket: Any) -> None:
    """Whatever a message carries, it waits, and comes out in its turn."""
    waiting = Waiting()
    waiting.put((1, SimpleNamespace(options={TICKET: ticket})))
    assert waiting.first_in("x") is None
    assert drained(waiting) == [1]


def test_it_lists_all_that_wait() -> None:
    """What goes back to the broker: no message that was taken out is among them."""
    items = [item(due, "a") for due in (1, 2, 3)]
    waiting = filled(*items)
    waiting.remove(waiting.first_in("a"))  # type: ignore[arg-type]
    assert [id(message) for message in waiting.messages()] == [id(each[1]) for each in items[1:]]


def test_random_histories_are_those_of_a_sorted_list() -> None:
    """Put, give out, take from a lane, 6 000 times in any order: as a plain list does it, and kept small."""
    chance, numbers = random.Random(6), itertools.count()
    waiting, model = Waiting(), list[tuple[int, int, Any]]()
    for _ in range(6_000):
        act = chance.random()
        if act < 0.5 or not model:
            each = item(chance.randrange(50), chance.choice(["", "a", "b"]), start=chance.randrange(1, 50))
            waiting.put(each)
            model.append((each[0], next(numbers), each))
            model.sort(key=lambda entry: entry[:2])
        elif act < 0.7:
            assert waiting.get_nowait() is model.pop(0)[2]
            waiting.task_done()
        else:
            lane = chance.choice("ab")
            in_lane = sorted((entry for entry in model if line_of(entry[2]) == lane), key=stand)
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


def sent_in_a_pause(site: Site, store: Recording, jobs: int, seconds: float) -> tuple[Limiter, TokenBucket]:
    """*jobs* messages wait for a limit of 50/s that is paused for *seconds*, once a worker has taken them."""
    limiter, limit = Limiter(store), TokenBucket("paused", "50/s", burst=1)
    site.broker.add_middleware(Throttle(limiter, max_inline_wait=0, parking=False))

    @site.actor(throttle=limit, max_retries=0)
    def job(n: int) -> None:
        site.ran.append(n)

    limiter.pause(limit, seconds)
    for n in range(jobs):
        job.send(n)
    return limiter, limit


def test_a_line_that_had_fallen_behind_moves_on_with_the_first_that_is_admitted(redis_site: Site) -> None:
    """
    A pause makes all that wait later by what its first message is. It ends when each was to be due long ago: the first
    asks, is admitted, and brings up the next. Not by two a second, until the pause would have been over.
    """
    site, store, jobs = redis_site, Recording(), 60
    limiter, limit = sent_in_a_pause(site, store, jobs, 1.5)
    with site.working():
        wait_until(lambda: store.denials >= jobs, description="all wait")
        limiter.pause(limit, 120.0)
        paused = store.denials
        wait_until(lambda: store.denials > paused, description="the first has asked, and makes the others later")
        told_us = max(verdict.due_us for verdict in store.verdicts[:jobs])
        wait_until(lambda: time.time() * 1e6 > told_us, description="all were to be due by now")
        assert not site.ran
        limiter.resume(limit)
        wait_until(lambda: len(site.ran) >= jobs, description="all ran, and not two a second", timeout=jobs / 2 - 5)
    assert sorted(site.ran) == [*range(jobs)]


def test_a_line_that_moves_faster_than_its_messages_know_is_used_to_the_full(redis_site: Site) -> None:
    """
    By their answers all are due in minutes, and then the pause ends. Each job that runs brings up the next, also one
    that asked a moment too early, got a new instant, and came at that: not two of them at each look of half a second.
    """
    site, store, jobs = redis_site, Recording(), 200
    limiter, limit = sent_in_a_pause(site, store, jobs, 120.0)
    with site.working():
        wait_until(lambda: store.denials >= jobs, description="all wait")
        limiter.resume(limit)
        wait_until(lambda: len(site.ran) >= jobs, description="all ran, and not four a second", timeout=jobs / 8)
    assert sorted(site.ran) == [*range(jobs)]

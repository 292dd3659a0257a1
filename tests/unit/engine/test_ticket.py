"""What a denied job carries: read back as written, and nothing else believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import TokenBucket
from throttlekit._core.acquire import Place
from throttlekit._engine.ticket import Ticket

LIMIT = TokenBucket("partner", "10/s", burst=5)
OTHER = TokenBucket("account", "10/s", burst=5)
GOOD = {"v": 1, "slot": 5, "ticket": "x", "n": 2, "since": 3}


@given(
    due_us=st.integers(0, 2**53 - 1),
    limit_ref=st.text(),
    deferrals=st.integers(0, 2**53 - 1),
    since_us=st.integers(0, 2**53 - 1),
)
def test_what_was_written_is_read(due_us: int, limit_ref: str, deferrals: int, since_us: int) -> None:
    """What a job carries survives a trip through JSON."""
    ticket = Ticket(due_us, limit_ref, deferrals, since_us)
    assert Ticket.read(json.loads(json.dumps(ticket.write()))) == ticket


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        [],
        "waited",
        {**GOOD, "v": 2},
        {**GOOD, "v": None},
        {**GOOD, "slot": -1},
        {**GOOD, "slot": 2**53},
        {**GOOD, "slot": 1.5},
        {**GOOD, "slot": "5"},
        {**GOOD, "ticket": None},
        {**GOOD, "ticket": 7},
        {**GOOD, "n": None},
        {**GOOD, "n": -1},
        {**GOOD, "since": "now"},
        {**GOOD, "since": 2**60},
        {"v": 1},
    ],
)
def test_anything_else_is_a_job_that_has_not_waited(data: Any) -> None:
    """Forged, torn, or of another version: the job starts anew, and nothing is raised."""
    assert Ticket.read(data) == Ticket()


def test_ticket_stands_for_a_place_of_its_limit() -> None:
    """A ticket is found among the limits wherever its own stands."""
    ticket = Ticket().denied(LIMIT, 700, 500)
    assert ticket.place([OTHER, LIMIT]) == Place(1, 700)


@pytest.mark.parametrize(
    "limits", [[], [OTHER], [TokenBucket("partner", "10/s", burst=6)], [TokenBucket("partner", "11/s", burst=5)]]
)
def test_ticket_of_a_limit_that_is_gone_is_no_place(limits: list[TokenBucket]) -> None:
    """A ticket means nothing once its limit is not asked any more, or is defined anew."""
    assert Ticket().denied(LIMIT, 700, 500).place(limits) is None


def test_job_without_a_slot_has_no_place() -> None:
    """A job that has not been denied has no place."""
    assert Ticket().place([LIMIT]) is None


def test_denials_are_counted_from_the_first() -> None:
    """Each denial counts, and the first one's time stays."""
    ticket = Ticket().denied(LIMIT, 700, 500).denied(OTHER, 900, 600)
    assert (ticket.deferrals, ticket.since_us, ticket.due_us) == (2, 500, 900)
    assert ticket.place([LIMIT, OTHER]) == Place(1, 900)


@pytest.mark.parametrize(("since_us", "now_us", "seconds"), [(0, 10**15, 0), (10**6, 25 * 10**5, 1.5), (10**6, 1, 0)])
def test_time_waited(since_us: int, now_us: int, seconds: float) -> None:
    """A job has waited since its first denial; a clock that fell back makes it nothing, never negative."""
    assert Ticket(since_us=since_us).seconds(now_us) == seconds


def test_denial_that_does_not_count() -> None:
    """Being told again of a slot that has not come yet is no deferral, though the slot is kept."""
    ticket = Ticket().denied(LIMIT, 700, 500).denied(LIMIT, 700, 600, counts=False)
    assert (ticket.deferrals, ticket.since_us, ticket.due_us) == (1, 500, 700)


@pytest.mark.parametrize(
    ("ticket", "max_wait_us"),
    [
        (Ticket(), 1000),
        (Ticket(due_us=5300, since_us=5000), 700),
        (Ticket(due_us=6001, since_us=5000), 0),
        (Ticket(due_us=4000, since_us=5000), 1000),
        (Ticket(due_us=4000), 1000),
    ],
)
def test_patience_is_what_the_promised_slot_leaves(ticket: Ticket, max_wait_us: int) -> None:
    """A job that may wait 1 ms waits for that long; once it has a slot, for what is left after it."""
    assert ticket.max_wait_us(1000) == max_wait_us


def test_lane_travels_and_slot_of_none_is_no_place() -> None:
    """What is written is read again; a lane that is no text is none, and a job without a slot has no place."""
    limit = TokenBucket("partner", "10/s")
    ticket = Ticket().denied(limit, 7, 5, lane="c0ffee")
    assert Ticket.read(ticket.write()) == ticket
    assert Ticket.read({**ticket.write(), "lane": 5}).lane == ""
    assert Ticket(limit_ref=ticket.limit_ref).place([limit]) is None
    assert (ticket.first_again(limit).due_us, ticket.first_again(limit).place([limit])) == (1, Place(0, 1))

"""What a denied job carries: read back as written, and nothing else believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import TokenBucket
from throttlekit._core.line import Place
from throttlekit._engine.ticket import Ticket, limit_ref

LIMIT = TokenBucket("partner", "10/s", burst=5)
OTHER = TokenBucket("account", "10/s", burst=5)
GOOD = {"v": 2, "slot": 5, "ticket": "x", "n": 2, "since": 3}


@given(
    due_us=st.integers(0, 2**53 - 1),
    limit_ref=st.text(),
    deferrals=st.integers(0, 2**53 - 1),
    since_us=st.integers(0, 2**53 - 1),
)
def test_what_was_written_is_read(due_us: int, limit_ref: str, deferrals: int, since_us: int) -> None:
    """What a job carries survives a trip through JSON."""
    place = Place(due_us, since_us, deferrals, due_us, "0a1b")
    ticket = Ticket(due_us, limit_ref, deferrals, since_us, "line", True, {limit_ref: place}, deferrals)
    assert Ticket.read(json.loads(json.dumps(ticket.write()))) == ticket


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        [],
        "waited",
        {**GOOD, "v": 3},
        {**GOOD, "v": None},
        {**GOOD, "slot": -1},
        {**GOOD, "slot": 2**53},
        {**GOOD, "slot": 1.5},
        {**GOOD, "slot": "5"},
        {**GOOD, "ticket": None},
        {**GOOD, "ticket": 7},
        {**GOOD, "ticket": "fingerprint:\ud800"},
        {**GOOD, "n": None},
        {**GOOD, "n": -1},
        {**GOOD, "since": "now"},
        {**GOOD, "since": 2**60},
        {"v": 2},
    ],
)
def test_anything_else_is_a_job_that_has_not_waited(data: Any) -> None:
    """Forged, torn, or of another version: the job starts anew, and nothing is raised."""
    assert Ticket.read(data) == Ticket()


PLACE, OTHERS = Place(1, 2, 3, 700, "0a1b"), Place(4, 5, 6, 700, "2c3d")


def test_job_has_a_place_in_the_line_of_each_limit() -> None:
    """Each is found by its limit, wherever that stands; in a line that did not deny the job it has none."""
    ticket = Ticket().denied(LIMIT, 700, 500, {limit_ref(LIMIT): PLACE, limit_ref(OTHER): OTHERS})
    third = TokenBucket("third", "1/s")
    assert ticket.places_in([OTHER, third, LIMIT]) == (OTHERS, None, PLACE)
    assert ticket.binding([OTHER, third, LIMIT]) is LIMIT


@pytest.mark.parametrize(
    "limits", [[], [OTHER], [TokenBucket("partner", "10/s", burst=6)], [TokenBucket("partner", "11/s", burst=5)]]
)
def test_ticket_of_a_limit_that_is_gone_is_no_place(limits: list[TokenBucket]) -> None:
    """A place means nothing once its limit counts no longer, or is defined anew."""
    ticket = Ticket().denied(LIMIT, 700, 500, {limit_ref(LIMIT): PLACE})
    assert (ticket.binding(limits), ticket.places_in(limits)) == (None, (None,) * len(limits))


@pytest.mark.parametrize(
    "places",
    [
        None, [], "x", {"a": None}, {"a": [1, 2, 3, 4]}, {"a": [1, 2, 3, 4, 5]}, {"a": [1, 2, 3, -4, "s"]},
        {"a": [1, 2, 3, 4, "\ud800"]}, {"\udfff": [1, 2, 3, 4, "s"]}, {"a": [1, 2, 3, 4, "s;1 2 3 4 s"]},
        {"a": [1, 2, 3, 4, "s" * 41]}, {"a": [1, 2, 3, 2**53, "s"]},
        {"a": [1, 2, 3.0, 4, "s"]}, {"a": [1, 2, True, 4, "s"]}, {7: [1, 2, 3, 4, "s"]},
        {str(number): [1, 2, 3, 4, "s"] for number in range(33)},
    ],
)  # fmt: skip
def test_places_that_are_none(places: Any) -> None:
    """The job has waited, but has no place: it stands at the end."""
    ticket = Ticket.read({**GOOD, "places": places})
    assert (ticket.deferrals, ticket.places) == (2, {})


def test_ticket_of_the_release_before_says_how_long_the_job_waited() -> None:
    """Version 1 had an instant, and no place that a line knows: deferrals and the first denial count on."""
    before = {"v": 1, "slot": 5, "ticket": "x", "n": 2, "since": 3, "lane": "l", "places": {"x": [1, 2, 3, 4, "s"]}}
    assert Ticket.read(before) == Ticket(5, "x", 2, 3)


def test_job_that_was_not_denied_has_no_place() -> None:
    """Nor does a limit bind it."""
    assert (Ticket().binding([LIMIT]), Ticket().places_in([LIMIT])) == (None, (None,))


def test_denials_are_counted_from_the_first() -> None:
    """Each denial counts, and the first one's time stays."""
    ticket = Ticket().denied(LIMIT, 700, 500).denied(OTHER, 900, 600)
    assert (ticket.deferrals, ticket.since_us, ticket.due_us) == (2, 500, 900)
    assert ticket.binding([LIMIT, OTHER]) is OTHER


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


def test_what_a_job_was_told_first_is_kept_while_it_is_due_sooner() -> None:
    """Those behind it in the line know no more. Another limit's line has its own; what is forged is nothing."""
    sooner = Ticket().denied(LIMIT, 900, 500).denied(LIMIT, 600, 510)
    assert (sooner.told_us, sooner.denied(LIMIT, 650, 520).told_us) == (900, 900)
    assert Ticket.read(sooner.write()) == sooner
    assert (sooner.denied(OTHER, 700, 520).told_us, sooner.denied(LIMIT, 950, 520).told_us) == (0, 0)
    assert [Ticket.read({**sooner.write(), "told": told}).told_us for told in (-1, "900", None, 2**60)] == [0] * 4
    assert "told" not in Ticket().denied(LIMIT, 900, 500).write()


def test_line_and_slots_travel() -> None:
    """What is written is read again, and what is of another kind is none."""
    ticket = Ticket().denied(LIMIT, 7, 5, line="c0ffee", slots=True)
    assert Ticket.read(ticket.write()) == ticket
    for line in (5, "\ud800"):
        read = Ticket.read({**ticket.write(), "line": line, "slots": 1})
        assert (read.line, read.slots) == ("", False)

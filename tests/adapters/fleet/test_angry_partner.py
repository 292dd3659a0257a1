"""The strict partner of the tests does what it says: the tests of three frameworks believe it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.partner.angry import AngryPartner
from support.waiting import wait_until


@pytest.fixture
def partner(redis_url: str) -> Iterator[AngryPartner]:
    partner = AngryPartner(redis_url)
    yield partner
    partner.close()


def test_it_is_angry_from_the_call_on_that_it_was_told_and_says_for_how_long(partner: AngryPartner) -> None:
    """The third call is refused with the whole seconds that are left; another key is answered."""
    partner.be_angry("one", 30, from_call=3)
    answers = [partner.call("one", str(number)) for number in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert [answer.headers for answer in answers] == [{}, {}, {"Retry-After": "30"}, {"Retry-After": "30"}]
    assert partner.call("two", "x").status_code == 200
    assert partner.told("one").answered == ["0", "1"]


def test_its_anger_ends(partner: AngryPartner) -> None:
    """After the seconds that it was told it answers again; told to calm down, at once."""
    partner.be_angry("one", 0.5, retry_after=7)
    assert partner.call("one", "a").headers == {"Retry-After": "7"}
    wait_until(lambda: partner.call("one", "b").status_code == 200, description="it answers again")
    refused = partner.told("one").refused
    assert refused[-1].at_us - refused[0].at_us < 500_000
    partner.be_angry("one")
    assert partner.call("one", "c").status_code == 429
    partner.calm_down("one")
    assert partner.call("one", "d").status_code == 200


def test_it_knows_which_bodies_were_running(partner: AngryPartner) -> None:
    """Begun and not called yet, at a given instant."""
    partner.begin("one", "a")
    partner.begin("one", "b")
    partner.call("one", "a")
    told = partner.told("one")
    assert told.running_at(told.calls[0].at_us) == 1
    assert told.running_at(told.begun[0].at_us) == 1
    assert told.between(told.begun[1].at_us, told.calls[0].at_us) == told.calls
    assert told.begun_after(told.begun[0].at_us - 1) == told.calls
    assert told.begun_after(told.begun[0].at_us) == []

"""The strict partner of the tests works as described, since the tests of three frameworks depend on it."""

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


def test_the_partner_answers_429_from_the_given_call_on_with_the_remaining_time(partner: AngryPartner) -> None:
    """The third call is refused with the remaining whole seconds. A call of another key is answered."""
    partner.be_angry("one", 30, from_call=3)
    answers = [partner.call("one", str(number)) for number in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert [answer.headers for answer in answers] == [{}, {}, {"Retry-After": "30"}, {"Retry-After": "30"}]
    assert partner.call("two", "x").status_code == 200
    assert partner.record_of("one").answered == ["0", "1"]


def test_the_partner_answers_again_after_the_given_time(partner: AngryPartner) -> None:
    """After the given seconds it answers again. After `calm_down` it answers at once."""
    partner.be_angry("one", 0.5, retry_after=7)
    assert partner.call("one", "a").headers == {"Retry-After": "7"}
    wait_until(lambda: partner.call("one", "b").status_code == 200, description="the partner answers again")
    refused = partner.record_of("one").refused
    assert refused[-1].at_us - refused[0].at_us < 500_000
    partner.be_angry("one")
    assert partner.call("one", "c").status_code == 429
    partner.calm_down("one")
    assert partner.call("one", "d").status_code == 200


def test_the_partner_records_which_bodies_were_running(partner: AngryPartner) -> None:
    """A body runs at a given time if it has begun and has not called yet."""
    partner.begin("one", "a")
    partner.begin("one", "b")
    partner.call("one", "a")
    log = partner.record_of("one")
    assert log.running_at(log.calls[0].at_us) == 1
    assert log.running_at(log.begun[0].at_us) == 1
    assert log.between(log.begun[1].at_us, log.calls[0].at_us) == log.calls
    assert log.begun_after(log.begun[0].at_us - 1) == log.calls
    assert log.begun_after(log.begun[0].at_us) == []

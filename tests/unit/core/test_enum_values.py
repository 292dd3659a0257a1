"""An enum's member with a value of str or int counts as its value, in every framework and version of Python."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from throttlekit import Concurrency, ConfigurationError, FixedWindow, Job, Limiter, TokenBucket


class Plan(str, enum.Enum):
    FREE = "free"
    PRO = "pro"


class Region(enum.IntEnum):
    EU = 1


class Loud(str):
    """A subclass whose text representations all differ from its value."""

    def __str__(self) -> str:
        return "LOUD"

    def __repr__(self) -> str:
        return "LOUD"

    def __format__(self, spec: str) -> str:
        return "LOUD"


TEMPLATES = ["{what}", "{what}:x", "{what:>6}", "{what!s}", "{what!r}", "{what!s:>6}"]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("member", "value"), [(Plan.FREE, "free"), (Region.EU, 1), (Loud("quiet"), "quiet")])
def test_member_of_an_enum_has_the_key_of_its_value(template: str, member: Any, value: Any) -> None:
    """RQ pickles the member, Celery and Dramatiq send its value as JSON: one tenant has one key."""
    limit = TokenBucket("partner", "1/h", key=template)
    keys = {limit.key_of(Job(kwargs={"what": what})) for what in (member, value)}
    assert len(keys) == 1
    assert "free" in keys.pop() or value != "free"


def test_keys_of_callables_and_calls_are_values_too() -> None:
    """A key from a callable or a call is the value of the enum's member too, so one limit counts."""
    limiter = Limiter()
    by_callable = TokenBucket("partner", "1/h", key=lambda job: job.arguments["plan"])
    assert limiter.acquire(by_callable, job=Job(kwargs={"plan": Plan.FREE})).key == "free"
    assert not limiter.acquire(by_callable, job=Job(kwargs={"plan": "free"}))
    assert not limiter.acquire(by_callable, key=Plan.FREE)
    assert limiter.acquire(by_callable, key=Region.EU).key == "1"


def test_names_and_queues_are_values_too() -> None:
    """If the limit's name or the job's queue is a member of an enum, the stored name contains its value."""
    limiter = Limiter()
    assert limiter.acquire(FixedWindow(Plan.FREE, "1/d", scope="queue"), job=Job(queue=Plan.PRO))
    assert not limiter.acquire(FixedWindow("free", "1/d", scope="queue"), job=Job(queue="pro"))


@pytest.mark.parametrize("tier", ["{plan}", lambda job: job.arguments["plan"]], ids=["template", "callable"])
def test_tiers_are_values_too(tier: Any) -> None:
    """Tiers may be named by members of an enum, and a job's tier may be a member or its value."""
    named = TokenBucket("api", {Plan.FREE: "2/h", Plan.PRO: "4/h"}, burst={Plan.FREE: 2, Plan.PRO: 3}, tier=tier)
    plain = TokenBucket("api", {"free": "2/h", "pro": "4/h"}, burst={"free": 2, "pro": 3}, tier=tier)
    assert named == plain
    for plan in (Plan.PRO, "pro"):
        assert named.for_job(Job(kwargs={"plan": plan})).capacity == 3


def test_costs_are_values_too() -> None:
    """If a cost is a member of an enum, the store gets its value, a plain number."""
    for limit in (FixedWindow("a", "5/d", cost=Region.EU), FixedWindow("b", "5/d", cost=lambda job: Region.EU)):
        assert type(limit.cost_of(Job())) is int
        assert Limiter().acquire(limit, job=Job()).remaining == 4
    assert Limiter().acquire(Concurrency("c", 2), cost=Region.EU)


def test_other_types_are_refused_as_before() -> None:
    """An enum without a value of str or int is not a valid key; neither is a bool."""

    class Colour(enum.Enum):
        RED = "red"

    for key in (Colour.RED, True, 1.5, None, b"x"):
        with pytest.raises(ConfigurationError, match="a key must be text or a whole number"):
            TokenBucket("partner", "1/h", key=lambda job, key=key: key).key_of(Job())

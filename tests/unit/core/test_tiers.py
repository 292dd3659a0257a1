"""Tiers: one limit with a rate for each tier, and each job is limited by its own tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.servers.blocking import either
from throttlekit import (
    ConfigurationError,
    CostExceedsLimit,
    FixedWindow,
    Job,
    LeakyBucket,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit.stores import MemoryStore

RATES = {"free": "10/minute", "pro": "100/minute"}
ALGORITHMS: tuple[Any, ...] = (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog)


def job(plan: Any, id: str = "1", **kwargs: Any) -> Job:
    return Job(id=id, name="call_partner", kwargs={"plan": plan, **kwargs})


@pytest.fixture(params=["sync", "async"])
def limiter(request: pytest.FixtureRequest, store: MemoryStore) -> Iterator[Limiter]:
    with either(request.param, store) as limiter:
        yield limiter


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("tier", ["{plan}", lambda job: job.kwargs["plan"]])
def test_job_is_limited_by_its_tier(algorithm: Any, tier: Any) -> None:
    """The tier of a job comes from a template or a callable, for every algorithm."""
    limit = algorithm("api", RATES, tier=tier, key="{account}", scope="queue", cost=1)
    free, pro = limit.for_job(job("free")), limit.for_job(job("pro"))
    assert (free.amount, pro.amount) == (10, 100)
    assert (free.of_tier, pro.of_tier) == ("free", "pro")
    for own in (free, pro):
        assert type(own) is algorithm
        assert (own.name, own.key, own.cost, own.scope, own.tiers) == ("api", "{account}", 1, "queue", None)
        assert own.for_job(job("other")) is own


def test_tiers_are_counted_apart_even_with_equal_rates(limiter: Limiter) -> None:
    """Each tier has a budget of its own: using up one tier takes nothing from another."""
    limit = FixedWindow("api", {"free": "1/day", "pro": "1/day"}, tier="{plan}")
    assert limiter.acquire(limit, job=job("free"))
    assert not limiter.acquire(limit, job=job("free"))
    assert limiter.acquire(limit, job=job("pro"))
    assert limit.tiers is not None
    assert limit.tiers["free"].fingerprint != limit.tiers["pro"].fingerprint


def test_unknown_tier_is_an_error_that_names_the_tiers() -> None:
    """A job of a tier without a rate fails for good, and the message says what would be right."""
    limit = TokenBucket("api", RATES, tier="{plan}")
    with pytest.raises(ConfigurationError) as caught:
        limit.for_job(job("gold"))
    assert str(caught.value) == (
        "limit 'api': the tier '{plan}' is not one of 'free', 'pro' on job 'call_partner': "
        "add a rate for it, or name a default_tier="
    )


@pytest.mark.parametrize("plan", ["gold", "", "Free", " free", None, 7, True, ["free"], {"free": 1}])
def test_unknown_tier_is_the_default_if_there_is_one(plan: Any) -> None:
    """If a default is named, it applies to every tier without a rate, and to a value that is not text."""
    callable_tier = TokenBucket("api", RATES, tier=lambda job: job.kwargs["plan"], default_tier="free")
    assert callable_tier.for_job(job(plan)).of_tier == "free"
    if plan is None or (isinstance(plan, (str, int)) and not isinstance(plan, bool)):
        template = TokenBucket("api", RATES, tier="{plan}", default_tier="free")
        assert template.for_job(job(plan)).of_tier == "free"


@pytest.mark.parametrize("plan", [None, 7, ["free"]])
def test_tier_must_be_text(plan: Any) -> None:
    """A callable that returns anything but the name of a tier raises, and its value is not shown."""
    limit = TokenBucket("api", RATES, tier=lambda job: job.kwargs["plan"])
    with pytest.raises(ConfigurationError, match="is not one of 'free', 'pro'"):
        limit.for_job(job(plan))


def test_missing_argument_does_not_use_the_default() -> None:
    """A default is for tiers without a rate: a template that names no argument of the job still raises."""
    limit = TokenBucket("api", RATES, tier="{level}", default_tier="free")
    with pytest.raises(ConfigurationError, match=r"the tier '{level}' names 'level', which job 'call_partner'"):
        limit.for_job(job("free"))


@pytest.mark.parametrize("verb", ["acquire", "peek", "reset"])
def test_tier_without_a_job_is_refused(limiter: Limiter, verb: str) -> None:
    """The tier comes from the job: without one, the message says what to pass."""
    with pytest.raises(ConfigurationError) as caught:
        getattr(limiter, verb)(TokenBucket("api", RATES, tier="{plan}"))
    assert str(caught.value) == "limit 'api': it takes its tier from the job ('{plan}'): pass job="


def test_one_tier_can_be_used_by_itself(limiter: Limiter) -> None:
    """Code outside a job names a tier, and uses that tier's budget."""
    limit = TokenBucket("api", RATES, burst=1, tier="{plan}")
    assert limit.tiers is not None
    assert limiter.acquire(limit.tiers["pro"])
    assert not limiter.acquire(limit, job=job("pro"))
    limiter.reset(limit.tiers["pro"])
    assert limiter.acquire(limit, job=job("pro"))


NAMED_BY = 'the rates of tiers must be named by some text, like {"free": "10/m"}'
EACH_OF = "burst= must have a value for each of the tiers 'free', 'pro'"
# Each message begins with "limit 'api': ".
TIER_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"tier": None}, "a rate for each tier needs tier=, the tier of a job"),
    *(({"rate": rate}, NAMED_BY) for rate in ({}, {"": "1/s"}, {7: "1/s"})),
    ({"rate": {"free": {"a": "1/s"}}}, "the rate of tier 'free' must be a rate, not {'a': '1/s'}"),
    (
        {"rate": {"free": "10/minit"}},
        "'minit' in rate '10/minit' is not a unit of time: use s, m, h, d, w, or second … week; "
        "a FixedWindow also takes month and year.",
    ),
    ({"tier": 7}, 'the tier must be a template like "{account_id}" or a callable, not 7'),
    (
        {"tier": "plan"},
        "the tier template 'plan' names no argument: write one in braces, like \"{account_id}\", "
        "or leave it out to count everything together",
    ),
    ({"tier": "{0}"}, "the tier template '{0}' must name its arguments, like \"{account_id}\""),
    ({"tier": "{"}, "the tier template '{' cannot be read: Single '{' encountered in format string"),
    *(({"default_tier": tier}, f"default_tier={tier!r} is not one of its tiers 'free', 'pro'") for tier in ("gold", 7)),
    *(({"burst": burst}, EACH_OF) for burst in ({}, {"free": 1}, {"free": 1, "pro": 2, "gold": 3})),
    (
        {"burst": {"free": 1, "pro": 0}},
        "the burst must be a whole number of at least 1, not 0: it includes the first unit",
    ),
    ({"cost": -1}, "a cost must be a whole number of at least 0, not -1"),
    ({"scope": "tier"}, 'the scope must be "global", "queue", "job" or "process", not \'tier\''),
    ({"key": "{"}, "the key template '{' cannot be read: Single '{' encountered in format string"),
]


@pytest.mark.parametrize(
    ("algorithm", "wrong", "message"),
    [
        *((TokenBucket, *fault) for fault in TIER_FAULTS),
        (TokenBucket, {"queue": {"free": 0}}, "queue= must have a value for each of the tiers 'free', 'pro'"),
        (LeakyBucket, {"queue": {"free": 1}}, "queue= must have a value for each of the tiers 'free', 'pro'"),
        (LeakyBucket, {"queue": {"free": 1, "pro": -1}}, "the queue must be a whole number of at least 0, not -1"),
        (FixedWindow, {"tz": {"free": "UTC"}}, "tz= must have a value for each of the tiers 'free', 'pro'"),
    ],
)
def test_tiers_that_cannot_work_are_refused_when_made(algorithm: Any, wrong: dict[str, Any], message: str) -> None:
    """A mistake in the tiers, or in an option of one of them, raises at the declaration, and says what is right."""
    values: dict[str, Any] = {"rate": RATES, "tier": "{plan}", **wrong}
    with pytest.raises(ConfigurationError) as caught:
        algorithm("api", values.pop("rate"), **values)
    assert str(caught.value) == f"limit 'api': {message}"


@pytest.mark.parametrize(("burst", "bursts"), [(None, [1, 1]), (7, [7, 7]), ({"free": 2, "pro": 20}, [2, 20])])
def test_burst_is_for_all_tiers_or_for_each(burst: Any, bursts: list[int]) -> None:
    """One burst applies to every tier; a mapping gives each its own; by default each tier has a second's worth."""
    limit = TokenBucket("api", RATES, burst=burst, tier="{plan}")
    assert [limit.for_job(job(plan)).capacity for plan in ("free", "pro")] == bursts


def test_queue_is_for_all_tiers_or_for_each(limiter: Limiter) -> None:
    """A queue can be for all tiers or for each: one tier's queue is full while another's has room."""
    limit = LeakyBucket("api", {"free": "1/m", "pro": "1/m"}, queue={"free": 0, "pro": 1}, tier="{plan}")
    for plan in ("free", "pro"):
        limiter.acquire(limit, job=job(plan))
    assert [limiter.acquire(limit, job=job(*each)).reason for each in (("free", "a"), ("pro", "b"), ("pro", "c"))] == [
        "queue full",
        "exhausted",
        "queue full",
    ]


def test_cost_that_no_tier_admits_is_refused_when_made() -> None:
    """A fixed cost above every tier's capacity fails at once, and names the largest one; any other fails in its job."""
    with pytest.raises(CostExceedsLimit) as caught:
        TokenBucket("api", RATES, burst={"free": 2, "pro": 20}, tier="{plan}", cost=21)
    assert (caught.value.cost, caught.value.most, caught.value.limit) == (21, 20, "api")
    assert caught.value.remedy == "raise the burst to at least 21"


def test_cost_that_only_some_tiers_admit_fails_in_the_others(limiter: Limiter) -> None:
    """A cost that the job's own tier can never admit raises for that job."""
    limit = TokenBucket("api", RATES, burst={"free": 2, "pro": 20}, tier="{plan}", cost=3)
    assert limiter.acquire(limit, job=job("pro")).cost == 3
    with pytest.raises(CostExceedsLimit) as caught:
        limiter.acquire(limit, job=job("free"))
    assert (caught.value.cost, caught.value.most) == (3, 2)


@pytest.mark.parametrize("attribute", ["amount", "period_us", "capacity", "burst", "bucket"])
def test_a_limit_with_tiers_says_where_its_rates_are(attribute: str) -> None:
    """A limit with tiers has no rate of its own: the message says where to look."""
    limit = TokenBucket("api", RATES, tier="{plan}")
    with pytest.raises(AttributeError) as caught:
        getattr(limit, attribute)
    assert str(caught.value) == f"limit 'api' has tiers, and a '{attribute}' for each: read it from one of its .tiers"


def test_definition_includes_all_tiers() -> None:
    """A change of a rate, a name or the number of tiers makes another definition; the order of the tiers does not."""
    limits = [
        TokenBucket("api", rates, tier="{plan}")
        for rates in (
            RATES,
            {"free": "10/minute", "pro": "101/minute"},
            {"free": "10/minute", "gold": "100/minute"},
            {**RATES, "gold": "100/minute"},
            {"pro": "10/minute", "free": "100/minute"},
        )
    ]
    assert len({limit.fingerprint for limit in limits}) == len(limits)
    turned = TokenBucket("api", dict(reversed(RATES.items())), tier="{plan}")
    assert turned.fingerprint == limits[0].fingerprint
    assert turned == limits[0]


def test_tiers_are_copied() -> None:
    """A later change of the mapping does not change the limit."""
    rates = dict(RATES)
    limit = TokenBucket("api", rates, tier="{plan}")
    rates["free"] = "1000/s"
    assert limit == TokenBucket("api", RATES, tier="{plan}")
    assert limit.rate == RATES

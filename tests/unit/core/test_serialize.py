"""Limits sent in a message: they arrive unchanged, and a modified message is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ids import stable_repr
from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.serialize import dump, load
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

NOW = 1_800_000_000_000_000
RATES = {"free": "10/minute", "pro": "100/minute"}
JOB = Job(id="1", name="send", queue="mail", kwargs={"plan": "pro", "account": 42, "size": 1})
LIMITS: list[Limit] = [
    TokenBucket("partner", "10/s", burst=3, cost=2),
    TokenBucket("partner", (7, 0.3)),
    LeakyBucket("partner", "10/s"),
    LeakyBucket("partner", "10/s", queue=0),
    LeakyBucket("partner", "10/s", queue=7, key="{account}"),
    FixedWindow("partner", "5/hour"),
    FixedWindow("partner", "5/day", tz="Europe/Berlin", cost=lambda job: job.kwargs["size"]),
    FixedWindow("partner", "5/day", tz="UTC"),
    SlidingWindow("partner", "5/hour", scope="queue"),
    SlidingLog("partner", "5/hour", scope="job", key=lambda job: job.kwargs["account"]),
    SlidingLog("partner", "5/hour", scope="process"),
    TokenBucket("partner", RATES, burst={"free": 1, "pro": 9}, tier="{plan}", cost=2),
    FixedWindow("partner", RATES, tier="{plan}", scope="queue", key="{account}"),
    LeakyBucket("partner", RATES, queue={"free": 0, "pro": 3}, tier="{plan}", default_tier="free"),
    Concurrency("partner", 1, lease=45, key="{account}"),
]


def sent(limit: Limit, job: Job = JOB) -> dict[str, Any]:
    """Return the data of *limit* after it was sent."""
    arrived: dict[str, Any] = json.loads(json.dumps(dump(limit, job)))
    return arrived


def assert_same_limit(loaded: Limit, limit: Limit, job: Job) -> None:
    """*loaded* limits *job* exactly as *limit* does."""
    own = limit.for_job(job)
    assert type(loaded) is type(own)
    for attribute in ("fingerprint", "name", "scope", "of_tier", "capacity", "queue"):
        assert getattr(loaded, attribute) == getattr(own, attribute), attribute
    assert loaded.for_job(job) is loaded
    cost = loaded.cost_of(None)
    assert (loaded.key_of(job), cost, loaded.part_of(job)) == (own.key_of(job), own.cost_of(job), own.part_of(job))
    assert loaded.bind(cost, NOW) == own.bind(cost, NOW)


@pytest.mark.parametrize("limit", LIMITS, ids=stable_repr)
def test_limit_is_the_same_on_arrival(limit: Limit) -> None:
    """Definition, key and cost arrive, for every algorithm, option, scope and tier."""
    loaded = load(sent(limit))
    assert_same_limit(loaded, limit, JOB)
    assert loaded.by_value
    assert not limit.by_value
    assert sent(loaded) == sent(limit)


names = st.text(min_size=1)
keys = st.text() | st.integers()
periods = st.sampled_from([1, 1000, 1_000_000, 10_000_000, 3_600_000_000, 86_400_000_000])


@given(
    kind=st.sampled_from([TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog]),
    name=names,
    rate=st.tuples(st.integers(1, 10**5), periods.map(lambda period_us: period_us / 1_000_000)),
    scope=st.sampled_from(["global", "queue", "job", "process"]),
    key=keys,
    cost=st.integers(0, 1),
)
def test_any_limit_survives_a_trip_through_a_message(
    kind: Any, name: str, rate: tuple[int, float], scope: Any, key: str | int, cost: int
) -> None:
    """Whatever its name, rate, key and scope, a limit arrives as it was sent."""
    limit = kind(name, rate, key="{key}", cost=cost, scope=scope)
    job = Job(name="send", queue="mail", kwargs={"key": key})
    assert_same_limit(load(sent(limit, job)), limit, job)


def test_message_format_does_not_change() -> None:
    """Releases that run side by side read each other's messages, so the format must not change."""
    assert [sent(limit) for limit in (LIMITS[0], LIMITS[4], LIMITS[6], LIMITS[8], LIMITS[11])] == [
        {"algorithm": "token-bucket", "name": "partner", "rate": [10, 1_000_000], "key": "", "cost": 2, "burst": 3},
        {"algorithm": "leaky-bucket", "name": "partner", "rate": [10, 1_000_000], "key": "42", "cost": 1, "queue": 7},
        {
            "algorithm": "fixed-window",
            "name": "partner",
            "rate": [5, 86_400_000_000],
            "key": "",
            "cost": 1,
            "tz": "Europe/Berlin",
        },
        {
            "algorithm": "sliding-window",
            "name": "partner",
            "rate": [5, 3_600_000_000],
            "key": "",
            "cost": 1,
            "scope": "queue",
        },
        {
            "algorithm": "token-bucket",
            "name": "partner",
            "rate": [100, 60_000_000],
            "key": "",
            "cost": 2,
            "tier": "pro",
            "burst": 9,
        },
    ]


@pytest.mark.parametrize("limit", LIMITS, ids=stable_repr)
def test_limit_from_a_message_shares_the_declared_limits_budget(limit: Limit) -> None:
    """If the definition is the same, both use one budget."""
    limiter = Limiter(MemoryStore(clock_us=FakeClock(NOW)))
    cost = limit.for_job(JOB).capacity
    assert limiter.acquire(limit, job=JOB, cost=cost)
    assert not limiter.acquire(load(sent(limit)), job=JOB, cost=1)


@pytest.mark.parametrize("share", [None, "{tenant}"])
@pytest.mark.parametrize("tenant", ["", "a"])
def test_a_shared_limit_stays_shared_whatever_its_tenant(share: str | None, tenant: str) -> None:
    """A job has another position in a shared waitlist, also the job of a tenant without a name."""
    limit = TokenBucket("partner", "10/s", share=share)
    loaded = load(sent(limit, Job(kwargs={"tenant": tenant})))
    assert (loaded.share is None) == (share is None)
    assert loaded.tenant_share_of(None).tenant == (tenant if share else "")


def test_limit_without_a_key_needs_no_job_on_arrival() -> None:
    """A limit that counts everything together is used without a job."""
    assert load(dump(TokenBucket("partner", "10/s"), Job())).key_of(None) == ""


def test_sender_resolves_what_depends_on_the_job() -> None:
    """Key, cost and tier are those of the sender's job, whatever job is used on arrival."""
    limit = TokenBucket("partner", RATES, burst=9, tier="{plan}", key="{account}", cost=lambda job: job.kwargs["size"])
    loaded, other = load(sent(limit)), Job(kwargs={"plan": "free", "account": 7, "size": 9})
    assert (loaded.of_tier, loaded.key_of(other), loaded.cost_of(other)) == ("pro", "42", 1)


@pytest.mark.parametrize(
    "job", [Job(kwargs={"account": 1}), Job(kwargs={"plan": "gold", "account": 1}), Job(kwargs={"plan": "pro"})]
)
def test_job_that_does_not_fit_fails_where_it_is_sent(job: Job) -> None:
    """A tier or key that cannot be resolved fails in the sender, not in the worker."""
    with pytest.raises(ConfigurationError, match="limit 'partner': "):
        dump(TokenBucket("partner", RATES, tier="{plan}", key="{account}"), job)


BUCKET, WINDOW, LEAKY = TokenBucket("partner", "10/s"), FixedWindow("partner", "10/s"), LeakyBucket("partner", "10/s")
SLOTS = Concurrency("partner", 2)


@pytest.mark.parametrize(
    ("limit", "wrong"),
    [
        (BUCKET, {"algorithm": "bucket-of-tokens"}),
        (BUCKET, {"algorithm": None}),
        (BUCKET, {"algorithm": ["token-bucket"]}),
        (BUCKET, {"algorithm": "sliding-log", "rate": [10**9, 1]}),
        (BUCKET, {"algorithm": "leaky-bucket"}),
        (BUCKET, {"name": None}),
        (BUCKET, {"name": ""}),
        (BUCKET, {"rate": None}),
        (BUCKET, {"rate": [1]}),
        (BUCKET, {"rate": [1, "x"]}),
        (BUCKET, {"rate": [0, 1]}),
        (BUCKET, {"rate": [1, 0]}),
        (BUCKET, {"rate": [1, 10**30]}),
        (BUCKET, {"rate": [1, float("nan")]}),
        (BUCKET, {"burst": 0}),
        (BUCKET, {"burst": {"pro": 1}}),
        (BUCKET, {"cost": -1}),
        (BUCKET, {"cost": 99}),
        (BUCKET, {"cost": None}),
        (BUCKET, {"key": 7}),
        (BUCKET, {"key": None}),
        (BUCKET, {"scope": "everywhere"}),
        (BUCKET, {"scope": ["queue"]}),
        (BUCKET, {"tier": 7}),
        (LEAKY, {"queue": -1}),
        (LEAKY, {"cost": 2}),
        (WINDOW, {"tz": "Nowhere"}),
        (WINDOW, {"tz": 7}),
        (WINDOW, {"rate": [1, 7_000_000]}),
        (SLOTS, {"rate": [2, 1]}),
        (SLOTS, {"rate": [0, 0]}),
        (SLOTS, {"lease": "30"}),
        (SLOTS, {"lease": 0}),
        (SLOTS, {"cost": 3}),
    ],
)
def test_limit_that_was_tampered_with_is_refused(limit: Limit, wrong: dict[str, Any]) -> None:
    """Data that `dump` does not write is a configuration error."""
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load({**dump(limit, Job()), **wrong})


@pytest.mark.parametrize("data", [None, 7, [], "token-bucket", {}])
def test_data_that_is_no_limit_is_refused(data: Any) -> None:
    """Anything that `dump` does not write is a configuration error, never another error."""
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load(data)


@pytest.mark.parametrize(
    ("limit", "part"),
    [
        *((BUCKET, part) for part in ("name", "rate", "burst", "key", "cost")),
        (LEAKY, "algorithm"),
        (LEAKY, "queue"),
        (WINDOW, "tz"),
    ],
)
def test_limit_that_lost_a_part_is_refused(limit: Limit, part: str) -> None:
    """Data without one of its parts is a configuration error."""
    data = dump(limit, Job())
    del data[part]
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load(data)


def test_limit_of_a_message_that_names_no_algorithm_is_a_token_bucket() -> None:
    """A message from before other algorithms existed is still read."""
    data = dump(BUCKET, Job())
    del data["algorithm"]
    assert load(data).fingerprint == BUCKET.fingerprint


def test_fault_in_a_message_does_not_show_the_key() -> None:
    """The key is an argument of the job: the error about another part does not contain it."""
    with pytest.raises(ConfigurationError) as caught:
        load({**dump(BUCKET, Job()), "key": "s3cret-argument", "rate": [0, 1]})
    assert "s3cret-argument" not in str(caught.value)

"""The options of a limit for an outage: on_store_failure, and the number of processes that share the limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.serialize import dump, load

ALGORITHMS: tuple[Any, ...] = (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog)
WINDOWS: tuple[Any, ...] = (FixedWindow, SlidingWindow, SlidingLog)


def _share(limit: Limit) -> Limit:
    assert limit.local_part is not None
    return limit.local_part


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_limit_is_closed_by_default(algorithm: Any) -> None:
    """The default policy is "closed", and every algorithm accepts the other policies."""
    closed, opened = algorithm("a", "8/m"), algorithm("a", "8/m", on_store_failure="open")
    local = algorithm("a", "8/m", on_store_failure="local", processes=4)
    assert [each.on_store_failure for each in (closed, opened, local)] == ["closed", "open", "local"]
    assert (closed.local_part, opened.local_part) == (None, None)
    assert local.local_part.scope == "process"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_outage_policy_does_not_affect_the_count(algorithm: Any) -> None:
    """The fingerprint is that of the closed limit, so both count together; but the values and their reprs differ."""
    closed = algorithm("a", "8/m")
    local = algorithm("a", "8/m", on_store_failure="local", processes=4)
    assert closed.fingerprint == local.fingerprint != local.local_part.fingerprint
    assert closed != local != algorithm("a", "8/m", on_store_failure="local", processes=2)
    assert closed != algorithm("a", "8/m", on_store_failure="open")
    assert "on_store_failure='local', processes=4" in repr(local)
    assert "on_store_failure" not in repr(closed)


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_a_window_is_divided_into_whole_units(algorithm: Any) -> None:
    """Of a window of 10 units, each of 4 processes has 2: together never more than the limit."""
    share = algorithm("a", "10/h", on_store_failure="local", processes=4).local_part
    assert (share.amount, share.period_us, share.capacity) == (2, 3_600_000_000, 2)


def test_a_bucket_is_divided_exactly() -> None:
    """The rate is divided exactly, the burst rounded down, with a minimum of one unit."""
    for rate, burst, processes, expected in (
        ("100/m", 20, 4, (25, 60_000_000, 5)),
        ("10/s", 5, 3, (10, 3_000_000, 1)),
        ("1/h", 1, 8, (1, 8 * 3_600_000_000, 1)),
    ):
        share = _share(TokenBucket("a", rate, burst=burst, on_store_failure="local", processes=processes))
        assert (share.amount, share.period_us, share.capacity) == expected
    leaky = _share(LeakyBucket("a", "10/s", queue=3, on_store_failure="local", processes=4))
    assert (leaky.amount, leaky.period_us, leaky.capacity) == (10, 4_000_000, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_tier_has_its_share(algorithm: Any) -> None:
    """Tiers are divided separately, and counted separately even if they are equal."""
    limit = algorithm(
        "a", {"free": "8/m", "pro": "8/m"}, tier="{plan}", on_store_failure="local", processes=4, cost=lambda job: 1
    )
    free, pro = limit.tiers["free"], limit.tiers["pro"]
    assert free.local_part.fingerprint != pro.local_part.fingerprint
    assert (free.local_part.cost, free.local_part.of_tier, limit.local_part) == (limit.cost, "free", None)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("tier", [None, "free"])
def test_the_option_is_serialized(algorithm: Any, tier: str | None) -> None:
    """A limit in a message keeps its policy and its share; the message of a closed limit does not change."""
    rate: Any = "8/m" if tier is None else {"free": "8/m"}
    limit = algorithm("a", rate, tier=tier and (lambda job: tier), on_store_failure="local", processes=4)
    found = load(json.loads(json.dumps(dump(limit, Job(id="1")))))
    declared = limit.for_job(Job(id="1"))
    assert (found.on_store_failure, found.processes) == ("local", 4)
    assert _share(found).fingerprint == declared.local_part.fingerprint
    assert not {"on_store_failure", "processes"} & dump(algorithm("a", "8/m"), Job(id="1")).keys()
    assert load(dump(algorithm("a", "8/m", on_store_failure="open"), Job(id="1"))).on_store_failure == "open"


def test_a_message_cannot_forge_the_policy() -> None:
    """A message that throttlekit did not write is refused."""
    data = dump(TokenBucket("a", "8/m"), Job(id="1"))
    for forged in ({"on_store_failure": "ajar"}, {"processes": 3}, {"on_store_failure": "local", "processes": "4"}):
        with pytest.raises(ConfigurationError, match="is not one that throttlekit wrote"):
            load({**data, **forged})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_store_failure": "ajar"}, """on_store_failure must be "closed", "open" or "local", not 'ajar'"""),
        ({"on_store_failure": None}, "on_store_failure must be"),
        ({"on_store_failure": []}, "on_store_failure must be"),
        ({"on_store_failure": "local"}, "needs processes=: how many processes share the limit"),
        ({"on_store_failure": "local", "processes": 0}, "from 1 to 1000000, not 0"),
        ({"on_store_failure": "local", "processes": True}, "not True"),
        ({"on_store_failure": "local", "processes": 2.5}, "not 2.5"),
        ({"on_store_failure": "local", "processes": 10**7}, "from 1 to 1000000"),
        ({"processes": 4}, 'processes=4 needs on_store_failure="local"'),
        ({"processes": 4, "on_store_failure": "open"}, 'processes=4 needs on_store_failure="local"'),
        ({"scope": "process", "on_store_failure": "open"}, "uses no store: leave on_store_failure= out"),
        ({"scope": "process", "on_store_failure": "local", "processes": 2}, "uses no store"),
        ({"on_store_failure": "local", "processes": 2, "cost": 5}, "never admits a cost of 5"),
    ],
)
def test_invalid_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    """The error is raised at the declaration, with the limit's name, the value, and what would be right."""
    with pytest.raises(ConfigurationError) as caught:
        TokenBucket("partner", "100/m", burst=8, **options)
    assert message in str(caught.value)
    assert str(caught.value).startswith("limit 'partner': ")


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_fewer_units_than_processes_cannot_be_divided(algorithm: Any) -> None:
    """A share of less than one unit is invalid."""
    with pytest.raises(ConfigurationError, match="an amount of 3 cannot be divided among processes=4"):
        algorithm("a", "3/h", on_store_failure="local", processes=4)


def test_a_share_that_is_too_slow_for_a_limit_is_refused() -> None:
    """A rate of one unit a year cannot be divided by four: one in four years is not a valid rate."""
    with pytest.raises(ConfigurationError, match="processes=4 leaves each of them a share that cannot be held"):
        TokenBucket("a", "1/365d", on_store_failure="local", processes=4)


def test_slots_are_divided_with_the_same_lease() -> None:
    """Of 8 slots, each of 4 processes has 2, with the same lease."""
    share = _share(Concurrency("a", 8, lease=60, on_store_failure="local", processes=4))
    assert (share.amount, share.capacity, share.most, share.scope) == (2, 2, 2, "process")
    assert repr(share) == "Concurrency('a', 2, lease=60.0, scope='process')"

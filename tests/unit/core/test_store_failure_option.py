"""What a limit may say of an outage: on_store_failure, and among how many processes it is shared."""

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
def test_a_limit_is_closed_unless_it_says_otherwise(algorithm: Any) -> None:
    """The default is closed; every algorithm takes the others."""
    closed, opened = algorithm("a", "8/m"), algorithm("a", "8/m", on_store_failure="open")
    local = algorithm("a", "8/m", on_store_failure="local", processes=4)
    assert [each.on_store_failure for each in (closed, opened, local)] == ["closed", "open", "local"]
    assert (closed.local_part, opened.local_part) == (None, None)
    assert local.local_part.scope == "process"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_happens_in_an_outage_changes_no_counting(algorithm: Any) -> None:
    """The fingerprint is that of the closed limit, so both count together; but they are two values, and show it."""
    closed = algorithm("a", "8/m")
    local = algorithm("a", "8/m", on_store_failure="local", processes=4)
    assert closed.fingerprint == local.fingerprint != local.local_part.fingerprint
    assert closed != local != algorithm("a", "8/m", on_store_failure="local", processes=2)
    assert closed != algorithm("a", "8/m", on_store_failure="open")
    assert "on_store_failure='local', processes=4" in repr(local)
    assert "on_store_failure" not in repr(closed)


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_a_window_is_shared_out_in_whole_units(algorithm: Any) -> None:
    """Of 10 units among 4 each has 2: together never more than the limit."""
    share = algorithm("a", "10/h", on_store_failure="local", processes=4).local_part
    assert (share.amount, share.period_us, share.capacity) == (2, 3_600_000_000, 2)


def test_a_bucket_is_shared_out_exactly() -> None:
    """The rate is divided exactly, the burst rounded down: but at least one unit passes at once."""
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
    """Tiers are shared out one by one, and counted apart also where they are equal."""
    limit = algorithm(
        "a", {"free": "8/m", "pro": "8/m"}, tier="{plan}", on_store_failure="local", processes=4, cost=lambda job: 1
    )
    free, pro = limit.tiers["free"], limit.tiers["pro"]
    assert free.local_part.fingerprint != pro.local_part.fingerprint
    assert (free.local_part.cost, free.local_part.of_tier, limit.local_part) == (limit.cost, "free", None)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("tier", [None, "free"])
def test_the_option_travels_by_value(algorithm: Any, tier: str | None) -> None:
    """A limit in a message keeps its policy and its share; a closed one's message is what it was."""
    rate: Any = "8/m" if tier is None else {"free": "8/m"}
    limit = algorithm("a", rate, tier=tier and (lambda job: tier), on_store_failure="local", processes=4)
    found = load(json.loads(json.dumps(dump(limit, Job(id="1")))))
    declared = limit.for_job(Job(id="1"))
    assert (found.on_store_failure, found.processes) == ("local", 4)
    assert _share(found).fingerprint == declared.local_part.fingerprint
    assert not {"on_store_failure", "processes"} & dump(algorithm("a", "8/m"), Job(id="1")).keys()
    assert load(dump(algorithm("a", "8/m", on_store_failure="open"), Job(id="1"))).on_store_failure == "open"


def test_a_message_cannot_bring_another_policy() -> None:
    """What throttlekit did not write is refused."""
    data = dump(TokenBucket("a", "8/m"), Job(id="1"))
    for forged in ({"on_store_failure": "ajar"}, {"processes": 3}, {"on_store_failure": "local", "processes": "4"}):
        with pytest.raises(ConfigurationError, match="is not one that throttlekit wrote"):
            load({**data, **forged})


@pytest.mark.parametrize(
    ("options", "told"),
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
def test_what_can_never_work_is_refused_at_once(options: dict[str, Any], told: str) -> None:
    """The error comes when the limit is made, with the limit's name, the value, and what would be right."""
    with pytest.raises(ConfigurationError) as caught:
        TokenBucket("partner", "100/m", burst=8, **options)
    assert told in str(caught.value)
    assert str(caught.value).startswith("limit 'partner': ")


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_fewer_units_than_processes_cannot_be_shared_out(algorithm: Any) -> None:
    """A share of less than one unit is none."""
    with pytest.raises(ConfigurationError, match="an amount of 3 cannot be divided among processes=4"):
        algorithm("a", "3/h", on_store_failure="local", processes=4)


def test_a_share_that_is_too_slow_for_a_limit_is_refused() -> None:
    """One unit a year among four would be one in four years."""
    with pytest.raises(ConfigurationError, match="processes=4 leaves each of them a share that cannot be held"):
        TokenBucket("a", "1/365d", on_store_failure="local", processes=4)


def test_slots_are_shared_out_with_their_lease() -> None:
    """Of 8 slots among 4 processes each has 2, for as long."""
    share = _share(Concurrency("a", 8, lease=60, on_store_failure="local", processes=4))
    assert (share.amount, share.capacity, share.most, share.scope) == (2, 2, 2, "process")
    assert repr(share) == "Concurrency('a', 2, lease=60.0, scope='process')"

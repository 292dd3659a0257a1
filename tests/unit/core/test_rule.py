"""A limit with another rule: a tier, a rate from a callable, a rate that is set or scaled, and one process's share."""

from __future__ import annotations

from typing import Any

import pytest

from throttlekit import Adapt, Concurrency, FixedWindow, Job, LeakyBucket, Limit, Share, SlidingWindow, TokenBucket
from throttlekit._core.limit.change import change_rate, scale_rate

DECLARED: dict[str, Any] = {
    "key": "{account}",
    "cost": lambda job: 1,
    "scope": "queue",
    "on_store_failure": "local",
    "processes": 2,
    "share": Share("{tenant}"),
    "queue": 9,
}
KINDS: tuple[tuple[Any, Any, Any], ...] = (
    (TokenBucket, "100/m", "40/m"),
    (LeakyBucket, "100/m", "40/m"),
    (FixedWindow, "100/m", "40/m"),
    (SlidingWindow, "100/m", "40/m"),
    (Concurrency, 100, 40),
)


def _options_of(limit: Limit, *left_out: str) -> dict[str, Any]:
    return {each: getattr(limit, each) for each in ("name", *DECLARED) if each not in left_out}


@pytest.mark.parametrize(("kind", "rate", "other"), KINDS)
def test_only_the_rate_changes(kind: Any, rate: Any, other: Any) -> None:
    """A rate that is set, scaled, of a tier or from a callable changes no other option of the limit."""
    limit: Limit = kind("api", rate, **DECLARED)
    tiered: Limit = kind("api", {"free": other}, tier="{plan}", **DECLARED)
    varying: Limit = kind("api", lambda job: other, **DECLARED)
    job = Job(kwargs={"plan": "free"})
    made = [change_rate(limit, other), scale_rate(limit, 400), tiered.for_job(job), varying.for_job(job)]
    assert [each.amount * (60_000_000 / each.period_us if each.period_us else 1) for each in made] == [40] * 4
    assert [_options_of(each) for each in made] == [_options_of(limit)] * 4
    assert [type(each) for each in made] == [kind] * 4
    assert [(each.tier, each.tiers, each.varies) for each in made] == [(None, None, False)] * 4


@pytest.mark.parametrize(("kind", "rate", "other"), KINDS)
def test_local_part_counts_in_process_memory(kind: Any, rate: Any, other: Any) -> None:
    """The local part has the limit's key and cost, but no queue, share or local part of its own."""
    part = kind("api", rate, **DECLARED).local_part
    assert (part.scope, part.on_store_failure, part.processes) == ("process", "closed", None)
    assert (part.share, part.adapt, part.queue, part.local_part) == (None, None, None, None)
    assert (part.name, part.key, part.cost) == ("api", DECLARED["key"], DECLARED["cost"])


def test_adaptive_limit_keeps_its_relative_floor_when_its_rate_is_set() -> None:
    """A floor of a tenth of the rate stays a tenth, also of a rate below the floor; each tier of a limit has it."""
    limit = TokenBucket("api", "100/s", adapt=Adapt("10/s"))
    for rate, amount in (("50/s", 50), ("3/s", 3)):
        changed = change_rate(limit, rate)
        assert (changed.rate, changed.amount) == (rate, amount)
        assert isinstance(changed.adapt, Adapt)
        assert changed.adapt.refusal(amount, 1_000_000, None).floor == 100_000
    tiered = TokenBucket("api", {"free": "100/s", "pro": "50/s"}, tier="{plan}", adapt=Adapt("10/s"))
    assert tiered.tiers is not None
    assert {tier: each.adapt == limit.adapt for tier, each in tiered.tiers.items()} == {"free": True, "pro": True}


def test_leaky_bucket_decides_like_a_token_bucket_of_burst_one() -> None:
    """A leaky bucket and a token bucket of burst 1 decide alike at every rate; only their definitions differ."""
    for rate in ("100/s", "1/m", "7/h", "3000/s"):
        leaky, token = LeakyBucket("api", rate), TokenBucket("api", rate, burst=1)
        assert leaky.bind(1) == token.bind(1)
        assert change_rate(leaky, "2/s").bind(1) == change_rate(token, "2/s", 1).bind(1)
        assert leaky.fingerprint != token.fingerprint

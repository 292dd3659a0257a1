"""How a rule of the fleet for one of its limits changes a decision."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.servers.stores import Passing, RuleStore
from throttlekit import (
    Concurrency,
    CostExceedsLimit,
    Decision,
    Delivery,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    RateLimited,
    SlidingLog,
    StoreUnavailable,
    TokenBucket,
    WaitedTooLong,
    hookimpl,
)
from throttlekit._core.limit.change import change_rate
from throttlekit._core.serialize import dump, load
from throttlekit._engine.call import Call
from throttlekit._wiring import wiring_of
from throttlekit.adapter import Run, decision_from_receipt, receipt
from throttlekit.adapter.rate_limited import deny_after_429
from throttlekit.errors import ConfigurationError
from throttlekit.fleet.rules import Rule, as_text, data_of, field_of, plain, rule_of
from throttlekit.hookspecs import ShadowDenied
from throttlekit.testing import FakeClock

PARTNER = TokenBucket("partner", "10/s", burst=3)
OTHER = TokenBucket("other", "10/s", burst=3)
KEYED = TokenBucket("keyed", "10/s", burst=3, key="{account}", scope="queue")
TIERED = TokenBucket("tiered", {"free": "1/s", "pro": "10/s"}, tier="{plan}")
SLOTS = Concurrency("slots", 2)


class Fleet:
    """A limiter, and the rules that apply to it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = RuleStore(self.clock)
        self.shadowed: list[ShadowDenied] = []
        self.limiter = Limiter(self.store, plugins=[self])
        self.limiter.fleet.follower._clock = lambda: self.clock() / 1_000_000

    @hookimpl
    def throttlekit_shadow_denied(self, event: ShadowDenied) -> None:
        self.shadowed.append(event)

    def set_rules(self, *rules: Rule) -> None:
        """Replace the rules that were set before."""
        known = [replace(rule, since_us=rule.since_us or self.clock(), by="ann") for rule in rules]
        self.store.rules = [(field_of(rule.what, rule.name, rule.part), as_text(plain(rule))) for rule in known]
        self.limiter.fleet.follower.follow()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.limiter.fleet.follower.follow()

    def decide(self, *limits: Limit, id: str = "1", delivery: Any = None, **arguments: Any) -> Decision:
        job = Job(id=id, queue="q", kwargs=arguments)
        return self.limiter.acquire(*limits, job=job, **({"delivery": delivery} if delivery else {}))

    def grants(self, limit: Limit, **arguments: Any) -> int:
        """Request until a denial; return the number of grants."""
        granted = 0
        while self.decide(limit, id="", **arguments):
            granted += 1
        return granted


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.limiter.close()


# Rules that set another rate


def test_set_rate_applies_until_the_rule_ends(fleet: Fleet) -> None:
    """While a rule is set, the limit has its rate and burst; afterwards its own. No change fills the limit."""
    assert fleet.grants(PARTNER) == 3
    fleet.set_rules(Rule(what="set", name="partner", rate="100/s", burst=7))
    decision = fleet.limiter.acquire(PARTNER)
    assert (decision.allowed, decision.limit.amount, decision.limit.capacity) == (False, 100, 7)
    fleet.limiter.clear_waitlist(PARTNER)
    fleet.advance(0.03)
    assert fleet.grants(PARTNER) == 3
    fleet.set_rules()
    assert not fleet.decide(PARTNER)
    fleet.limiter.clear_waitlist(PARTNER)
    fleet.advance(0.1)
    assert fleet.grants(PARTNER) == 1


@pytest.mark.parametrize(
    ("limit", "rate", "burst", "becomes"),
    [
        (TokenBucket("x", "10/s"), "50/s", None, TokenBucket("x", "50/s")),
        (TokenBucket("x", "10/s", burst=3), "50/s", None, TokenBucket("x", "50/s", burst=3)),
        (TokenBucket("x", "10/s", burst=3), "50/s", 9, TokenBucket("x", "50/s", burst=9)),
        (LeakyBucket("x", "10/s", queue=4), "50/s", None, LeakyBucket("x", "50/s", queue=4)),
        (FixedWindow("x", "10/s", tz="Asia/Tokyo"), "50/m", None, FixedWindow("x", "50/m", tz="Asia/Tokyo")),
        (SlidingLog("x", "10/s", key="{a}", scope="job"), "5/s", None, SlidingLog("x", "5/s", key="{a}", scope="job")),
        (Concurrency("x", 8, lease=60), 4, None, Concurrency("x", 4, lease=60)),
        (
            TokenBucket("x", "10/s", on_store_failure="local", processes=2),
            "4/s",
            None,
            TokenBucket("x", "4/s", on_store_failure="local", processes=2),
        ),
    ],
)
def test_set_rate_keeps_all_other_options(limit: Limit, rate: Any, burst: int | None, becomes: Limit) -> None:
    """A set rate keeps all options, and a burst that was not the default; earlier changes have no effect."""
    new = change_rate(limit, rate, burst)
    assert repr(new) == repr(becomes)
    assert new.definition != limit.definition
    assert change_rate(change_rate(limit, "7/d", None) if isinstance(rate, str) else limit, rate, burst) == new
    assert pickle.loads(pickle.dumps(new)) == new


def test_tier_with_a_set_rate_keeps_its_count() -> None:
    """The new rate of a tier counts as that tier; of a limit with tiers, one must be named."""
    limit = TokenBucket("x", {"free": "1/s", "pro": "9/s"}, tier="{plan}")
    assert limit.tiers is not None
    new = change_rate(limit.tiers["free"], "2/s")
    assert (new.of_tier, new.fingerprint) == ("free", limit.tiers["free"].fingerprint)
    with pytest.raises(ConfigurationError, match="limit 'x' has tiers: name the one whose rate is meant"):
        change_rate(limit, "2/s")


def test_holders_keep_counting(fleet: Fleet) -> None:
    """A lowered amount admits no job until enough have ended: old and new holders count together."""
    held = [fleet.decide(SLOTS) for _ in range(2)]
    fleet.set_rules(Rule(what="set", name="slots", rate=1))
    fleet.limiter.release(held[0])
    assert not fleet.limiter.peek(SLOTS)
    fleet.limiter.release(held[1])
    assert fleet.limiter.peek(SLOTS)
    fleet.set_rules(Rule(what="set", name="slots", rate=5))
    assert sum(fleet.decide(SLOTS).allowed for _ in range(9)) == 5


@pytest.mark.parametrize("rule", [Rule(what="set", name="gpu", rate=4), Rule(what="scale", name="g*", factor=0.5)])
def test_job_that_needs_more_slots_than_a_rule_allows_waits(fleet: Fleet, rule: Rule) -> None:
    """The job waits until the rule ends; running jobs keep their slots, and smaller jobs are granted after them."""
    gpu = Concurrency("gpu", 8, cost=lambda job: job.kwargs["gb"])
    held = fleet.decide(gpu, gb=6)
    fleet.set_rules(replace(rule, until_us=fleet.clock() + 20_000_000))
    assert fleet.limiter.peek(gpu, cost=0).remaining == 0
    denied = fleet.decide(gpu, gb=6)
    assert (denied.reason, round(denied.retry_after), denied.final) == ("paused", 20, False)
    fleet.limiter.release(held)
    small = fleet.decide(gpu, gb=3)
    assert small
    fleet.limiter.release(small)
    fleet.advance(21)
    assert fleet.decide(gpu, gb=6)


@pytest.mark.parametrize(
    ("limit", "rule", "message"),
    [
        (Concurrency("x", 3, cost=3), Rule(what="set", name="x", rate=2), "can never admit a cost of 3"),
        (FixedWindow("x", "3/s"), Rule(what="set", name="x", rate="5/s", burst=5), "a FixedWindow, which has no burst"),
        (FixedWindow("x", "3/s"), Rule(what="set", name="x", rate=5), "5 is not a rate"),
        (Concurrency("x", 3), Rule(what="set", name="x", rate="5/s"), "must be a whole number"),
        (TokenBucket("x", "3/s", cost=3), Rule(what="set", name="x", rate="2/s"), "can never admit a cost of 3"),
        (TokenBucket("x", {"a": "3/s"}, tier=lambda job: "a"), Rule(what="set", name="x", rate="5/s"), "names none"),
    ],
)
def test_rule_that_does_not_fit_is_logged_and_ignored(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, limit: Limit, rule: Rule, message: str
) -> None:
    """The limit stays as it was declared; one line in the log names the limit, the rule, its author and the mistake."""
    fleet.set_rules(rule)
    for _ in range(3):
        fleet.decide(limit)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert message in line
    assert "'x'" in line
    assert "ann" in line
    assert fleet.store.names() == {claim for claim in fleet.store.names() if limit.for_job(Job()).fingerprint in claim}


def test_limit_by_value_follows_rules_too(fleet: Fleet) -> None:
    """Rules apply to a limit from a message too, by its name, whichever process declared it."""
    fleet.set_rules(Rule(what="set", name="keyed", rate="10/s", burst=2), Rule(what="pause", name="keyed", part="8"))
    sent = [load(dump(KEYED, Job(queue="q", kwargs={"account": account}))) for account in (7, 8)]
    assert fleet.grants(sent[0]) == 2
    assert fleet.decide(sent[1]).reason == "paused"
    assert fleet.grants(KEYED, account=7) == 0, "it is the same budget"


def test_cost_above_a_set_rate_waits(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """An operator's rate does not fail a job; a job that the declared limit could never admit is refused as usual."""
    dear = TokenBucket("dear", "10/s", cost=lambda job: job.kwargs["cost"])
    fleet.set_rules(Rule(what="set", name="dear", rate="2/s"))
    assert fleet.decide(dear, cost=2)
    denied = fleet.decide(dear, OTHER, cost=5)
    assert (denied.allowed, denied.reason, denied.limit.name, denied.cost) == (False, "paused", "dear", 5)
    assert fleet.limiter.peek(dear, job=Job(kwargs={"cost": 5})).reason == "paused"
    assert "more than 2" in caplog.text
    with pytest.raises(CostExceedsLimit):
        fleet.decide(dear, cost=11)
    fleet.set_rules(Rule(what="set", name="dear", rate="2/s"), Rule(what="pause", name="dear"))
    assert fleet.decide(dear, cost=5).reason == "paused"
    assert fleet.limiter.peek(dear, job=Job(kwargs={"cost": 5})).reason == "paused"
    fleet.set_rules()
    fleet.advance(1)
    denied = fleet.decide(dear, cost=5)
    assert (denied.reason, denied.delay) == ("exhausted", 0.3), "the limit had filled up to the burst that was set"
    fleet.advance(0.3)
    assert fleet.decide(dear, cost=5)


def test_positions_and_pause_survive_a_change_of_the_rate(fleet: Fleet) -> None:
    """Jobs keep their order, and a pause after a 429 lasts, when a rate is set, set again, and at its end."""
    rules: list[tuple[Rule, ...]] = [
        (Rule(what="set", name="partner", rate="100/s"),),
        (Rule(what="set", name="partner", rate="1/s", burst=1),),
        (),
    ]
    for rule in rules:
        while fleet.limiter.acquire(PARTNER):
            pass
        first, second = fleet.decide(PARTNER, id="first"), fleet.decide(PARTNER, id="second")
        fleet.limiter.pause(PARTNER, 5, refused=True)
        fleet.set_rules(*rule)
        fleet.advance(4.9)
        assert fleet.limiter.acquire(PARTNER).reason == "paused"
        first, second = fleet.decide(PARTNER, id="first"), fleet.decide(PARTNER, id="second")
        assert first.delay <= second.delay, "jobs of a small bucket get a retry time a little before their units"
        fleet.advance(first.delay)
        assert not fleet.limiter.acquire(PARTNER)
        assert fleet.decide(PARTNER, id="first")
        fleet.advance(second.delay - first.delay)
        assert fleet.decide(PARTNER, id="second")


def test_429_pauses_the_limit_at_the_current_rate(fleet: Fleet) -> None:
    """A 429 applies to the rate that the body ran under, and so do `pause`, `resume`, `reset` and `peek`."""
    fleet.set_rules(Rule(what="set", name="partner", rate="20/s"))
    run = Run(Job(id="1"), (PARTNER,), None, Delivery())
    denied = deny_after_429(fleet.limiter, run, RateLimited(30), release=lambda: None)
    assert denied.delay >= 29
    assert fleet.decide(PARTNER).reason == "paused"
    fleet.limiter.reset(PARTNER)
    assert fleet.limiter.peek(PARTNER)
    fleet.limiter.pause(PARTNER, 5)
    assert fleet.limiter.peek(PARTNER).limit.amount == 20
    assert fleet.limiter.peek(PARTNER).reason == "paused"
    fleet.limiter.resume(PARTNER)
    fleet.limiter.pause(TIERED, 5)
    assert fleet.decide(TIERED, plan="pro").reason == "paused"


def test_a_job_that_a_rule_paused_leaves_its_waitlist_despite_prefetched_units(fleet: Fleet) -> None:
    """A job without a waker gets a position while its limit is paused. Only the store removes it."""
    metered = TokenBucket("metered", "1000/s", burst=1000, prefetch=16)
    claims = [each.claim for each in fleet.limiter.claims(Call([metered], Job(id="1")))]
    fleet.set_rules(Rule(what="pause", name="metered"))
    assert (fleet.decide(metered).reason, fleet.store.where(claims, "1") is None) == ("paused", False)
    assert fleet.decide(metered, id="").reason == "paused"
    fleet.set_rules()
    prefetcher = wiring_of(fleet.limiter).pipeline.prefetcher
    prefetcher._clock_us = fleet.clock
    for _ in range(100):
        fleet.limiter.acquire(metered)
    assert prefetcher.take_grants(), "callers without a job are granted prefetched units"
    assert fleet.decide(metered).allowed
    assert fleet.store.where(claims, "1") is None


def test_a_cost_is_computed_once_for_each_request(fleet: Fleet) -> None:
    """Also under a rule: a cost may take long to compute, and a second value may be above the rule's rate."""
    costs = iter([1, 99])
    metered = TokenBucket("metered", "100/s", burst=100, cost=lambda job: next(costs))
    fleet.set_rules(Rule(what="set", name="metered", rate="10/s", burst=3))
    assert (fleet.decide(metered).allowed, next(costs)) == (True, 99)


def test_a_429_of_a_job_that_costs_more_than_a_set_burst_pauses_the_limit(fleet: Fleet) -> None:
    """The job waits until the rule ends, like any job whose cost is above a set burst: it does not fail."""
    dear = TokenBucket("dear", "10/s", cost=lambda job: job.kwargs["cost"])
    job, delivery = Job(id="1", queue="q", kwargs={"cost": 5}), Delivery()
    assert fleet.limiter.acquire(dear, job=job, delivery=delivery)
    fleet.set_rules(Rule(what="set", name="dear", rate="2/s"))
    denied = deny_after_429(fleet.limiter, Run(job, (dear,), None, delivery), RateLimited(30), release=lambda: None)
    assert (denied.allowed, denied.reason, denied.final) == (False, "paused", False)
    fleet.set_rules()
    assert fleet.limiter.peek(dear, job=job).reason == "paused", "the pause was stored"


def test_a_caller_that_costs_more_than_a_set_burst_stops_waiting(fleet: Fleet) -> None:
    """The time-out raises the documented error, and nothing stays held."""
    fleet.set_rules(Rule(what="set", name="partner", rate="1/s", burst=1))
    with pytest.raises(WaitedTooLong):
        fleet.limiter.wait(PARTNER, cost=3, timeout=0.01)
    assert len(fleet.limiter.waker) == 0


# Rules that pause


def test_paused_limit_makes_no_request_and_charges_nothing(fleet: Fleet) -> None:
    """While a limit is paused, the job's other limits are not charged either; after the pause nothing remains of it."""
    fleet.set_rules(Rule(what="pause", name="partner"))
    requests = len(fleet.store.asked)
    for _ in range(5):
        decision = fleet.decide(OTHER, PARTNER)
        assert (decision.allowed, decision.reason, decision.limit) == (False, "paused", PARTNER)
    assert fleet.limiter.peek(OTHER, PARTNER).reason == "paused"
    assert fleet.limiter.acquire(PARTNER).reason == "paused"
    assert len(fleet.store.asked) == requests
    fleet.set_rules()
    assert fleet.grants(OTHER) == 3


@pytest.mark.parametrize(("part", "paused"), [(None, [7, 8]), ("7", [7]), ("q:7", [7]), ("9", [])])
def test_pause_of_a_key(fleet: Fleet, part: str | None, paused: list[int]) -> None:
    """A pause is for all keys, or for one: the key itself, or the key with its queue, as a decision shows it."""
    fleet.set_rules(Rule(what="pause", name="keyed", part=part))
    denied = [account for account in (7, 8) if fleet.decide(KEYED, account=account).reason == "paused"]
    assert denied == paused
    assert fleet.limiter.acquire(KEYED, job=Job(queue="q"), key=7).allowed is (7 not in paused)


def test_a_rule_reads_nothing_from_the_job_of_a_caller_that_has_none(fleet: Fleet) -> None:
    """A key that only a job has is an error at once, although the limit is paused; no function gets an empty job."""
    by_job = TokenBucket("by job", "10/s", key=lambda job: job.name)
    fleet.set_rules(Rule(what="pause", name="by job"))
    with pytest.raises(ConfigurationError, match="it takes its key from the job"):
        fleet.limiter.wait(by_job, timeout=0.1)


def test_job_keeps_its_position_during_a_pause(fleet: Fleet) -> None:
    """A job that waits through a pause is first when it is over, and the time that it has waited still counts."""
    fleet.grants(PARTNER)
    for id in ("first", "second"):
        assert not fleet.decide(PARTNER, id=id)
    fleet.set_rules(Rule(what="pause", name="partner", until_us=fleet.clock() + 10_000_000))
    fleet.advance(5)
    for id in ("new", "second", "first"):
        assert fleet.decide(PARTNER, id=id).reason == "paused"
    fleet.set_rules()
    fleet.limiter.reset(PARTNER)
    fleet.grants(PARTNER)
    fleet.advance(5.1)
    assert fleet.decide(PARTNER, id="first")


def test_pause_with_an_end_spreads_jobs_in_order_after_it(fleet: Fleet) -> None:
    """No job is redelivered before the end, and each later one later, within a tenth of the pause."""
    until_us = fleet.clock() + 60_000_000
    fleet.set_rules(Rule(what="pause", name="partner", until_us=until_us))
    retry_times = []
    for number in range(7):
        decision = fleet.decide(PARTNER, id=str(number))
        retry_times.append(fleet.clock() / 1e6 + decision.delay)
        fleet.advance(8)
    assert retry_times[0] == pytest.approx(until_us / 1e6, abs=0.1)
    assert retry_times == sorted(retry_times)
    assert retry_times[-1] <= until_us / 1e6 + 6.1
    assert len(set(retry_times)) == len(retry_times)


def test_job_with_a_slot_after_the_pause_is_redelivered_for_its_slot(fleet: Fleet) -> None:
    """Jobs far behind in a waitlist are not all redelivered at the end of the pause, only to be denied again."""
    slow = TokenBucket("slow", "1/minute", burst=1)
    assert fleet.decide(slow)
    for id in "abc":
        fleet.decide(slow, id=id)
    fleet.set_rules(Rule(what="pause", name="slow", until_us=fleet.clock() + 90_000_000))
    denied = [fleet.decide(slow, id=id) for id in "abc"]
    assert [round(each.retry_after) for each in denied] == [90] * 3
    assert [round(each.delay) for each in denied][1:] == [120, 180]
    assert 90 <= denied[0].delay < 99.1


def test_pause_without_an_end_causes_few_requests(fleet: Fleet) -> None:
    """A job requests again after a part of the time that the pause has lasted, or a minute: about 80 times an hour."""
    fleet.set_rules(Rule(what="pause", name="partner"))
    began, requests, delivery = fleet.clock(), 0, Delivery(max_deferrals=1)
    while fleet.clock() - began < 3600 * 1_000_000:
        decision = fleet.decide(PARTNER, delivery=delivery)
        assert not decision.final, "a repeated answer is no denial"
        assert 1 <= decision.delay <= 60
        fleet.clock.advance(decision.delay)
        requests += 1
    assert 60 <= requests <= 140


@pytest.mark.parametrize(
    ("delivery", "refused_after"), [(Delivery(max_wait=30), 30), (Delivery(max_deferrals=0), 0), (Delivery(), None)]
)
def test_job_past_its_max_wait_ends_in_a_pause(fleet: Fleet, delivery: Delivery, refused_after: int | None) -> None:
    """A job's `max_wait` and `max_deferrals` apply in a pause as usual."""
    fleet.set_rules(Rule(what="pause", name="partner"))
    decision = fleet.decide(PARTNER, delivery=delivery)
    assert decision.final is (refused_after == 0)
    fleet.advance(31)
    again = fleet.decide(PARTNER, delivery=delivery)
    assert again.final is (refused_after is not None)


def test_job_of_a_paused_limit_of_its_process_ends_at_its_max_wait(fleet: Fleet) -> None:
    """A job without a waker waits on the waitlist of its process if the fleet shares none of its limits."""
    own, delivery = TokenBucket("own", "10/s", scope="process"), Delivery(max_wait=30)
    wiring_of(fleet.limiter).stores.in_process._clock_us = fleet.clock
    fleet.set_rules(Rule(what="pause", name="own"))
    assert fleet.decide(own, delivery=delivery).reason == "paused"
    fleet.advance(20)
    again = fleet.decide(own, delivery=delivery)
    assert (again.reason, again.deferrals) == ("paused", 1)
    assert again.delay <= 10
    fleet.advance(11)
    assert fleet.decide(own, delivery=delivery).reason == "waited too long"
    assert fleet.decide(own, delivery=delivery).reason == "paused", "the next job with this id has not waited"


def test_job_that_costs_more_than_a_set_burst_ends_at_its_max_wait(fleet: Fleet) -> None:
    """A job without a waker, whose cost an operator's rate can never admit, waits no longer than its `max_wait`."""
    dear, delivery = TokenBucket("dear", "10/s", cost=lambda job: 5), Delivery(max_wait=30)
    fleet.set_rules(Rule(what="set", name="dear", rate="2/s"))
    claims = [each.claim for each in fleet.limiter.claims(Call([dear], Job(id="1")))]
    assert fleet.decide(dear, delivery=delivery).reason == "paused"
    assert fleet.store.where(claims, "1") is not None
    fleet.advance(31)
    assert fleet.decide(dear, delivery=delivery).reason == "waited too long"
    assert fleet.store.where(claims, "1") is None


def test_longest_pause_is_reported(fleet: Fleet) -> None:
    """Of several paused limits, and of the pauses of a key and of its limit, the one that ends last is reported."""
    soon, late = fleet.clock() + 5_000_000, fleet.clock() + 50_000_000
    fleet.set_rules(
        Rule(what="pause", name="partner", until_us=soon),
        Rule(what="pause", name="keyed", until_us=soon),
        Rule(what="pause", name="keyed", part="7", until_us=late),
    )
    assert fleet.decide(PARTNER, KEYED, account=7).retry_after == pytest.approx(50, abs=0.5)
    assert fleet.decide(PARTNER, KEYED, account=8).retry_after == pytest.approx(5, abs=0.5)


def test_tenant_has_another_weight_while_a_rule_is_set(fleet: Fleet) -> None:
    """Jobs that begin to wait get a position by the new weight; after the rule, by the weight of the share."""
    shared = TokenBucket("shared", "10/s", burst=5, share="{tenant}")

    def wait(number: int, tenant: str) -> float:
        job = Job(id=f"{tenant}{number}", queue="q", kwargs={"tenant": tenant})
        return round(fleet.limiter.acquire(shared, job=job).delay, 3)

    for n in range(5):
        wait(n, "b")
    assert [wait(n, "b") for n in (1, 2, 3)] == [0.1, 0.2, 0.3]
    fleet.set_rules(Rule(what="weight", name="shared", part="a", weight=3.0))
    assert [wait(n, "a") for n in (1, 2, 3)] == [0.2, 0.3, 0.4], "after b1, before b2"
    fleet.set_rules()
    assert wait(4, "a") == 0.6, "after b2, with b3"


def test_a_rule_that_has_ended_takes_no_memory(fleet: Fleet) -> None:
    """The limits with the rates of rules are kept while these are in force, and no longer."""
    overrides = fleet.limiter.fleet.overrides  # type: ignore[union-attr]
    for number in range(3):
        limit = TokenBucket(f"limit-{number}", "10/s")
        fleet.set_rules(Rule(what="set", name=limit.name, rate="20/s"))
        assert fleet.decide(limit).limit.amount == 20
        assert [name for name, _ in overrides._made] == [limit.name]
    fleet.set_rules()
    assert not overrides._made


# Rules that scale


SCALED = [TokenBucket("llm-a", "10/s"), TokenBucket("llm-b", "20/s"), TokenBucket("mail", "10/s")]


@pytest.mark.parametrize(
    ("rules", "amounts"),
    [
        ({"llm-a": 0.5}, [5, 20, 10]),
        ({"llm-*": 0.5}, [5, 10, 10]),
        ({"*": 0.5}, [5, 10, 5]),
        ({"*-*": 0.5, "llm-*": 0.1, "*a": 0.7}, [1, 2, 10]),
        ({"llm-*": 0.1, "llm-a": 1.0}, [10, 2, 10]),
        ({"llm-*": 0.1, "llm-a": 0.5}, [5, 2, 10]),
        ({"llm-?": 0.5, "LLM-*": 0.5, "*llm-aa": 0.5, "lm-*": 0.5}, [10, 20, 10]),
    ],
)
def test_factor_of_a_name_or_of_a_pattern(fleet: Fleet, rules: dict[str, float], amounts: list[int]) -> None:
    """A limit's own name takes precedence; of several patterns the lowest factor applies. Other limits stay."""
    fleet.set_rules(*(Rule(what="scale", name=name, factor=factor) for name, factor in rules.items()))
    assert [limit.amount for limit in fleet.limiter.in_force(SCALED, None)] == amounts
    assert [fleet.limiter.acquire(limit).limit.amount for limit in SCALED] == amounts
    fleet.set_rules()
    assert list(fleet.limiter.in_force(SCALED, None)) == SCALED


def test_factor_applies_to_a_set_rate(fleet: Fleet) -> None:
    """The order of the rules does not matter; all tiers are scaled alike, each from its own rate."""
    fleet.set_rules(Rule(what="scale", name="*", factor=0.5), Rule(what="set", name="partner", rate="40/s", burst=7))
    decision = fleet.limiter.acquire(PARTNER)
    assert (decision.limit.amount, decision.limit.capacity) == (20, 7)
    fleet.set_rules(Rule(what="scale", name="*", factor=0.5), Rule(what="set", name="tiered", part="pro", rate="40/s"))
    assert fleet.decide(TIERED, plan="pro").limit.amount == 20
    assert fleet.decide(TIERED, plan="free").limit.period_us == 2_000_000
    assert fleet.decide(SLOTS).limit.amount == 1
    fleet.set_rules(Rule(what="scale", name="*", factor=0.25))
    assert fleet.decide(TIERED, plan="pro").limit.amount == 5


def test_limit_that_cannot_be_scaled_is_logged(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """One line is logged per limit; the limit keeps its rate, or the one that was set."""
    logs = [SlidingLog("x", "8/s"), SlidingLog("y", "8/s")]
    fleet.set_rules(Rule(what="scale", name="*", factor=0.5), Rule(what="set", name="y", rate="4/s"))
    assert [fleet.grants(log) for log in logs] == [8, 4]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(": ")[0] for line in lines] == ["Limit 'x' stays as it is", "Limit 'y' stays as it is"]
    assert "the factor 0.5, which ann set" in lines[0]


def test_shared_store_keeps_no_position_under_a_limit_of_each_process(fleet: Fleet) -> None:
    """A job that a pause delays gets positions on the waitlists of the limits that the fleet shares, and no others."""
    own = TokenBucket("own", "10/s", scope="process")
    fleet.set_rules(Rule(what="pause", name="partner"))
    assert fleet.decide(own, PARTNER).reason == "paused"
    claims = [each.claim for each in fleet.limiter.claims(Call([own, PARTNER], Job(id="1")))]
    assert [fleet.store.inner.where([each], "1") is not None for each in claims] == [False, True]


# Shadow mode


def test_limit_in_shadow_mode_denies_no_job_and_counts(fleet: Fleet) -> None:
    """Every job runs; what the limit would have denied is an event, and what it grants is charged."""
    fleet.set_rules(Rule(what="shadow", name="partner"))
    decisions = [fleet.decide(PARTNER) for _ in range(10)]
    assert all(decision.allowed and decision.reason == "allowed" and decision.delay == 0 for decision in decisions)
    assert len(fleet.shadowed) == 7
    assert {event.decision.allowed for event in fleet.shadowed} == {False}
    assert {event.decision.limit for event in fleet.shadowed} == {PARTNER}
    fleet.set_rules()
    assert not fleet.decide(PARTNER), "three were charged"


def test_cost_above_a_shadow_rate_is_granted(fleet: Fleet) -> None:
    """A job whose cost is above a rate that is set in shadow mode runs, and its would-be denial is reported."""
    dear = TokenBucket("dear", "10/s", cost=lambda job: job.kwargs["cost"])
    fleet.set_rules(Rule(what="set", name="dear", rate="2/s"), Rule(what="shadow", name="dear"))
    assert fleet.limiter.peek(dear, job=Job(kwargs={"cost": 5}))
    for limits in ([dear], [OTHER, dear]):
        decision = fleet.decide(*limits, cost=5)
        assert (decision.allowed, decision.reason) == (True, "allowed")
        fleet.limiter.settle(decision, actual=7, limit=dear)
    assert [(event.decision.reason, event.decision.cost) for event in fleet.shadowed] == [("paused", 5)] * 2
    with pytest.raises(CostExceedsLimit):
        fleet.decide(dear, cost=11)


def test_slots_in_shadow_mode_are_released(fleet: Fleet) -> None:
    """Granted slots are held and released; a job without one runs too, and has none to release."""
    fleet.set_rules(Rule(what="shadow", name="slots"))
    decisions = [fleet.decide(SLOTS, OTHER) for _ in range(3)]
    assert [len(decision.leases) for decision in decisions] == [1, 1, 0]
    assert all(decision.allowed for decision in decisions)
    for decision in decisions:
        fleet.limiter.release(decision)
    fleet.set_rules()
    assert sum(fleet.decide(SLOTS).allowed for _ in range(3)) == 2


@pytest.mark.parametrize("limits", [[OTHER, "tokens"], ["tokens"]])
def test_settle_corrects_only_what_shadow_mode_granted(fleet: Fleet, limits: list[Any]) -> None:
    """The cost of a grant in shadow mode is settled; settling a would-be denial does nothing."""
    tokens = TokenBucket("tokens", "10/s", burst=10, cost=lambda job: 8)
    named = [tokens if limit == "tokens" else limit for limit in limits]
    fleet.set_rules(Rule(what="shadow", name="tokens"))
    granted, denied = fleet.decide(*named), fleet.decide(*named)
    assert len(fleet.shadowed) == 1
    for decision in (denied, decision_from_receipt(receipt(denied))):
        for meant in (None, tokens):
            assert fleet.limiter.settle(decision, actual=2, limit=meant)
    assert fleet.limiter.peek(tokens, job=Job()).allowed
    fleet.limiter.settle(granted, actual=2)
    fleet.set_rules()
    assert fleet.limiter.peek(tokens, job=Job()).allowed


@pytest.mark.parametrize("limits", [[PARTNER], [OTHER, PARTNER]])
def test_limit_in_shadow_mode_denies_no_job_in_an_outage(fleet: Fleet, limits: list[Limit]) -> None:
    """In an outage, jobs of a limit in shadow mode run, although its policy is "closed"."""
    fleet.set_rules(Rule(what="shadow", name="partner"))

    class Away(Passing):
        inner = fleet.store.inner

        def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
            if any("partner" in claim.bucket for claim in claims):
                raise StoreUnavailable("away")
            return super().decide(claims, requester, now_us, attempt=attempt)

    fleet.store.inner = Away()
    decision = fleet.decide(*limits)
    assert decision.allowed
    assert fleet.limiter.settle(decision, actual=0, limit=PARTNER).allowed


def test_would_be_denials_are_logged(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Shadow mode logs its would-be denials in one line every 30 seconds."""
    fleet.set_rules(Rule(what="shadow", name="partner"))
    with caplog.at_level(logging.INFO, "throttlekit"):
        for _ in range(9):
            fleet.decide(PARTNER)
    lines = [record.getMessage() for record in caplog.records if "would have held back" in record.getMessage()]
    assert lines == ["Limit 'partner', in shadow mode, would have held back 1 jobs since the last such line."]


# Following the rules


def test_without_rules_no_extra_request_is_made(fleet: Fleet) -> None:
    """A decision makes its usual requests; a rule for another limit adds none."""
    for rules in ([], [Rule(what="pause", name="somebody's")]):
        fleet.set_rules(*rules)
        before = len(fleet.store.asked)
        fleet.decide(PARTNER, OTHER)
        assert len(fleet.store.asked) == before + 1


def test_last_known_rules_apply_during_an_outage(fleet: Fleet) -> None:
    """In an outage the last known rules apply, except those that end in the meantime, by the time that has elapsed."""
    fleet.set_rules(Rule(what="pause", name="partner"))
    fleet.store.fault = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        fleet.limiter.fleet.follower.follow()
    assert fleet.decide(PARTNER).reason == "paused"


@pytest.mark.parametrize(
    "entry",
    [
        ("torn", '{"v":1'),
        ('["set","partner"]', "{}"),
        ('["set","partner",null]', '{"v":2,"since":1,"until":0,"by":"x","rate":"1/day"}'),
        ('["explode","partner",null]', '{"v":1,"since":1,"until":0,"by":"x"}'),
        ('["set","partner",null]', '{"v":1,"since":1,"until":0,"by":"x","rate":1.5}'),
        ('["scale","partner",null]', '{"v":1,"since":1,"until":0,"by":"x","factor":1.5}'),
        ('["scale","partner","k"]', '{"v":1,"since":1,"until":0,"by":"x","factor":0.5}'),
        ('["set","partner",null]', '{"v":1,"since":1,"until":0,"by":"x","rate":"1/d","factor":0.5}'),
        ('["pause","partner",7]', '{"v":1,"since":1,"until":0,"by":"x"}'),
        ("[" * 50_000, "x"),
    ],
)
def test_unreadable_rule_is_ignored_with_one_line(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, entry: tuple[str, str]
) -> None:
    """A rule of a later version, or one that is truncated or foreign, is ignored: the other rules still apply."""
    fleet.set_rules(Rule(what="pause", name="other"))
    fleet.store.rules.append(entry)
    for _ in range(3):
        fleet.limiter.fleet.follower.follow()
    assert fleet.decide(PARTNER)
    assert fleet.decide(OTHER).reason == "paused"
    assert caplog.text.count("which another release wrote") == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["v", "since", "until", "by", "rate", "burst", "x"]), inner, max_size=6)
    ),
    max_leaves=9,
)


@given(field=_JSON, data=_JSON)
def test_reading_a_rule_never_fails(field: Any, data: Any) -> None:
    """Reading a stored rule gives a rule or None, whatever the data."""
    rule = rule_of(field, data)
    assert rule is None or rule_of(data_of(field_of(rule.what, rule.name, rule.part)), plain(rule)) == rule

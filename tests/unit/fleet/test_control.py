"""What becomes of a decision when the fleet was told something about one of its limits."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.servers.stores import EventDispatcher, Passing
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
    hookimpl,
)
from throttlekit._core.limit.base import altered
from throttlekit._core.serialize import dump, load
from throttlekit._engine.call import Call
from throttlekit.adapter import decision_from_receipt, receipt
from throttlekit.adapter.rate_limited import limited
from throttlekit.errors import ConfigurationError
from throttlekit.fleet.rules import Rule, as_text, data_of, field_of, plain, rule_of
from throttlekit.hookspecs import Decided, ShadowDenied
from throttlekit.stores import Request
from throttlekit.testing import FakeClock

PARTNER = TokenBucket("partner", "10/s", burst=3)
OTHER = TokenBucket("other", "10/s", burst=3)
KEYED = TokenBucket("keyed", "10/s", burst=3, key="{account}", scope="queue")
TIERED = TokenBucket("tiered", {"free": "1/s", "pro": "10/s"}, tier="{plan}")
SLOTS = Concurrency("slots", 2)


class Fleet:
    """A limiter, and what is told to it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = EventDispatcher(self.clock)
        self.shadowed: list[ShadowDenied] = []
        self.decided: list[Decided] = []
        self.limiter = Limiter(self.store, plugins=[self])
        self.limiter.fleet._follower._clock = lambda: self.clock() / 1_000_000

    @hookimpl
    def throttlekit_shadow_denied(self, event: ShadowDenied) -> None:
        self.shadowed.append(event)

    @hookimpl
    def throttlekit_decided(self, event: Decided) -> None:
        self.decided.append(event)

    def tell(self, *rules: Rule) -> None:
        """In place of what was told before."""
        known = [replace(rule, since_us=rule.since_us or self.clock(), by="ann") for rule in rules]
        self.store.told = [(field_of(rule.what, rule.name, rule.part), as_text(plain(rule))) for rule in known]
        self.limiter.fleet.follow()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.limiter.fleet.follow()

    def decide(self, *limits: Limit, id: str = "1", delivery: Any = None, **arguments: Any) -> Decision:
        job = Job(id=id, queue="q", kwargs=arguments)
        return self.limiter.acquire(*limits, job=job, **({"delivery": delivery} if delivery else {}))

    def passing(self, limit: Limit, **arguments: Any) -> int:
        """How many pass now."""
        passed = 0
        while self.decide(limit, id="", **arguments):
            passed += 1
        return passed


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.limiter.close()


# Another rate


def test_rate_is_another_and_as_declared_again(fleet: Fleet) -> None:
    """While it is set, the limit has that rate and burst; afterwards its own. No change fills it."""
    assert fleet.passing(PARTNER) == 3
    fleet.tell(Rule(what="set", name="partner", rate="100/s", burst=7))
    decision = fleet.limiter.acquire(PARTNER)
    assert (decision.allowed, decision.limit.amount, decision.limit.capacity) == (False, 100, 7)
    fleet.limiter.clear_line(PARTNER)
    fleet.advance(0.03)
    assert fleet.passing(PARTNER) == 3
    fleet.tell()
    assert not fleet.decide(PARTNER)
    fleet.limiter.clear_line(PARTNER)
    fleet.advance(0.1)
    assert fleet.passing(PARTNER) == 1


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
def test_all_but_the_rate_stays(limit: Limit, rate: Any, burst: int | None, becomes: Limit) -> None:
    """The burst too, unless it was the one that the rate has by default; what was set before plays no part."""
    new = altered(limit, rate, burst)
    assert repr(new) == repr(becomes)
    assert new.definition != limit.definition
    assert altered(altered(limit, "7/d", None) if isinstance(rate, str) else limit, rate, burst) == new
    assert pickle.loads(pickle.dumps(new)) == new


def test_a_tier_stays_that_tier_and_all_of_them_have_no_rate() -> None:
    """A tier's new rate is counted as that tier; a limit with tiers cannot say which is meant."""
    limit = TokenBucket("x", {"free": "1/s", "pro": "9/s"}, tier="{plan}")
    assert limit.tiers is not None
    new = altered(limit.tiers["free"], "2/s")
    assert (new.of_tier, new.fingerprint) == ("free", limit.tiers["free"].fingerprint)
    with pytest.raises(ConfigurationError, match="limit 'x' has tiers: name the one whose rate is meant"):
        altered(limit, "2/s")


def test_holders_go_on_counting(fleet: Fleet) -> None:
    """An amount that was lowered admits nobody until as many have ended: not the old ones and the new besides."""
    held = [fleet.decide(SLOTS) for _ in range(2)]
    fleet.tell(Rule(what="set", name="slots", rate=1))
    fleet.limiter.release(held[0])
    assert not fleet.limiter.peek(SLOTS)
    fleet.limiter.release(held[1])
    assert fleet.limiter.peek(SLOTS)
    fleet.tell(Rule(what="set", name="slots", rate=5))
    assert sum(fleet.decide(SLOTS).allowed for _ in range(9)) == 5


@pytest.mark.parametrize("rule", [Rule(what="set", name="gpu", rate=4), Rule(what="scale", name="g*", factor=0.5)])
def test_job_that_needs_more_slots_than_a_rule_leaves_waits(fleet: Fleet, rule: Rule) -> None:
    """Until the rule ends; those that run keep all of theirs, and smaller jobs pass once they have ended."""
    gpu = Concurrency("gpu", 8, cost=lambda job: job.kwargs["gb"])
    held = fleet.decide(gpu, gb=6)
    fleet.tell(replace(rule, until_us=fleet.clock() + 20_000_000))
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
    ("limit", "rule", "told"),
    [
        (Concurrency("x", 3, cost=3), Rule(what="set", name="x", rate=2), "can never admit a cost of 3"),
        (FixedWindow("x", "3/s"), Rule(what="set", name="x", rate="5/s", burst=5), "a FixedWindow, which has no burst"),
        (FixedWindow("x", "3/s"), Rule(what="set", name="x", rate=5), "5 is not a rate"),
        (Concurrency("x", 3), Rule(what="set", name="x", rate="5/s"), "must be a whole number"),
        (TokenBucket("x", "3/s", cost=3), Rule(what="set", name="x", rate="2/s"), "can never admit a cost of 3"),
        (TokenBucket("x", {"a": "3/s"}, tier=lambda job: "a"), Rule(what="set", name="x", rate="5/s"), "names none"),
    ],
)
def test_what_a_limit_cannot_take_is_told_and_is_none(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, limit: Limit, rule: Rule, told: str
) -> None:
    """It stays as it was declared; one line in the log names the limit, what was said, by whom, and what is wrong."""
    fleet.tell(rule)
    for _ in range(3):
        fleet.decide(limit)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told in line
    assert "'x'" in line
    assert "ann" in line
    assert fleet.store.names() == {claim for claim in fleet.store.names() if limit.for_job(Job()).fingerprint in claim}


def test_limit_that_travels_by_value_follows_too(fleet: Fleet) -> None:
    """By its name, whoever declared it."""
    fleet.tell(Rule(what="set", name="keyed", rate="10/s", burst=2), Rule(what="pause", name="keyed", part="8"))
    travelled = [load(dump(KEYED, Job(queue="q", kwargs={"account": account}))) for account in (7, 8)]
    assert fleet.passing(travelled[0]) == 2
    assert fleet.decide(travelled[1]).reason == "paused"
    assert fleet.passing(KEYED, account=7) == 0, "it is the same budget"


def test_cost_that_the_rate_never_admits_waits(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A job is not failed by what an operator set; one that could never pass as declared either is refused as ever."""
    dear = TokenBucket("dear", "10/s", cost=lambda job: job.kwargs["cost"])
    fleet.tell(Rule(what="set", name="dear", rate="2/s"))
    assert fleet.decide(dear, cost=2)
    denied = fleet.decide(dear, OTHER, cost=5)
    assert (denied.allowed, denied.reason, denied.limit.name, denied.cost) == (False, "paused", "dear", 5)
    assert fleet.limiter.peek(dear, job=Job(kwargs={"cost": 5})).reason == "paused"
    assert "more than 2" in caplog.text
    with pytest.raises(CostExceedsLimit):
        fleet.decide(dear, cost=11)
    fleet.tell(Rule(what="set", name="dear", rate="2/s"), Rule(what="pause", name="dear"))
    assert fleet.decide(dear, cost=5).reason == "paused"
    assert fleet.limiter.peek(dear, job=Job(kwargs={"cost": 5})).reason == "paused"
    fleet.tell()
    fleet.advance(1)
    denied = fleet.decide(dear, cost=5)
    assert (denied.reason, denied.delay) == ("exhausted", 0.3), "it had filled up to the burst that was set"
    fleet.advance(0.3)
    assert fleet.decide(dear, cost=5)


def test_place_and_pause_outlive_a_change_of_the_rate(fleet: Fleet) -> None:
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
        fleet.tell(*rule)
        fleet.advance(4.9)
        assert fleet.limiter.acquire(PARTNER).reason == "paused"
        first, second = fleet.decide(PARTNER, id="first"), fleet.decide(PARTNER, id="second")
        assert first.delay <= second.delay, "jobs of a small bucket are told to come a little before their units"
        fleet.advance(first.delay)
        assert not fleet.limiter.acquire(PARTNER)
        assert fleet.decide(PARTNER, id="first")
        fleet.advance(second.delay - first.delay)
        assert fleet.decide(PARTNER, id="second")


def test_429_pauses_the_limit_that_is_in_force(fleet: Fleet) -> None:
    """What a body heard holds for the rate that it ran under, and so do `pause`, `resume`, `reset` and `peek`."""
    fleet.tell(Rule(what="set", name="partner", rate="20/s"))
    error = RateLimited(30)
    denied = limited(
        fleet.limiter, error, [PARTNER], job=Job(id="1"), delivery=Delivery(), release=lambda: None
    )  # fmt: skip
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


# Paused


def test_paused_limit_asks_nobody_and_charges_nothing(fleet: Fleet) -> None:
    """Not the job's other limits either; and its end leaves nothing behind."""
    fleet.tell(Rule(what="pause", name="partner"))
    asked = len(fleet.store.asked)
    for _ in range(5):
        decision = fleet.decide(OTHER, PARTNER)
        assert (decision.allowed, decision.reason, decision.limit) == (False, "paused", PARTNER)
    assert fleet.limiter.peek(OTHER, PARTNER).reason == "paused"
    assert fleet.limiter.acquire(PARTNER).reason == "paused"
    assert len(fleet.store.asked) == asked
    fleet.tell()
    assert fleet.passing(OTHER) == 3


@pytest.mark.parametrize(("part", "paused"), [(None, [7, 8]), ("7", [7]), ("q:7", [7]), ("9", [])])
def test_pause_of_a_key(fleet: Fleet, part: str | None, paused: list[int]) -> None:
    """All keys, or one: as it is, or as a decision tells it, with the queue that it is counted for."""
    fleet.tell(Rule(what="pause", name="keyed", part=part))
    denied = [account for account in (7, 8) if fleet.decide(KEYED, account=account).reason == "paused"]
    assert denied == paused
    assert fleet.limiter.acquire(KEYED, job=Job(queue="q"), key=7).allowed is (7 not in paused)


def test_job_keeps_its_place_through_a_pause(fleet: Fleet) -> None:
    """What it waited for before it still has, and is first when the pause is over."""
    fleet.passing(PARTNER)
    for id in ("first", "second"):
        assert not fleet.decide(PARTNER, id=id)
    fleet.tell(Rule(what="pause", name="partner", until_us=fleet.clock() + 10_000_000))
    fleet.advance(5)
    for id in ("new", "second", "first"):
        assert fleet.decide(PARTNER, id=id).reason == "paused"
    fleet.tell()
    fleet.limiter.reset(PARTNER)
    fleet.passing(PARTNER)
    fleet.advance(5.1)
    assert fleet.decide(PARTNER, id="first")


def test_pause_with_an_end_sends_jobs_behind_it_in_their_order(fleet: Fleet) -> None:
    """None comes back before it is over, and each later one later, over a tenth of its length."""
    until_us = fleet.clock() + 60_000_000
    fleet.tell(Rule(what="pause", name="partner", until_us=until_us))
    back = []
    for number in range(7):
        decision = fleet.decide(PARTNER, id=str(number))
        back.append(fleet.clock() / 1e6 + decision.delay)
        fleet.advance(8)
    assert back[0] == pytest.approx(until_us / 1e6, abs=0.1)
    assert back == sorted(back)
    assert back[-1] <= until_us / 1e6 + 6.1
    assert len(set(back)) == len(back)


def test_job_whose_slot_comes_after_the_pause_comes_back_for_it(fleet: Fleet) -> None:
    """Those behind a long line do not all come back when the pause ends, to be told that they are too early."""
    slow = TokenBucket("slow", "1/minute", burst=1)
    assert fleet.decide(slow)
    for id in "abc":
        fleet.decide(slow, id=id)
    fleet.tell(Rule(what="pause", name="slow", until_us=fleet.clock() + 90_000_000))
    denied = [fleet.decide(slow, id=id) for id in "abc"]
    assert [round(each.retry_after) for each in denied] == [90] * 3
    assert [round(each.delay) for each in denied][1:] == [120, 180]
    assert 90 <= denied[0].delay < 99.1


def test_pause_without_an_end_is_asked_about_a_few_times(fleet: Fleet) -> None:
    """A job asks after part of the time that it has lasted, a minute at most: about 80 times in an hour."""
    fleet.tell(Rule(what="pause", name="partner"))
    began, asked, delivery = fleet.clock(), 0, Delivery(max_deferrals=1)
    while fleet.clock() - began < 3600 * 1_000_000:
        decision = fleet.decide(PARTNER, delivery=delivery)
        assert not decision.final, "to be told again is no denial"
        assert 1 <= decision.delay <= 60
        fleet.clock.advance(decision.delay)
        asked += 1
    assert 60 <= asked <= 140


@pytest.mark.parametrize(
    ("delivery", "refused_after"), [(Delivery(max_wait=30), 30), (Delivery(max_deferrals=0), 0), (Delivery(), None)]
)
def test_job_that_may_not_wait_so_long_ends_as_it_was_told(
    fleet: Fleet, delivery: Delivery, refused_after: int | None
) -> None:
    """Its `max_wait` and `max_deferrals` hold in a pause as ever."""
    fleet.tell(Rule(what="pause", name="partner"))
    decision = fleet.decide(PARTNER, delivery=delivery)
    assert decision.final is (refused_after == 0)
    fleet.advance(31)
    again = fleet.decide(PARTNER, delivery=delivery)
    assert again.final is (refused_after is not None)


def test_longest_pause_tells(fleet: Fleet) -> None:
    """Of several limits that are paused, and of a key's pause and its limit's, the one that ends last."""
    soon, late = fleet.clock() + 5_000_000, fleet.clock() + 50_000_000
    fleet.tell(
        Rule(what="pause", name="partner", until_us=soon),
        Rule(what="pause", name="keyed", until_us=soon),
        Rule(what="pause", name="keyed", part="7", until_us=late),
    )
    assert fleet.decide(PARTNER, KEYED, account=7).retry_after == pytest.approx(50, abs=0.5)
    assert fleet.decide(PARTNER, KEYED, account=8).retry_after == pytest.approx(5, abs=0.5)


def test_tenant_has_another_weight_from_then_on(fleet: Fleet) -> None:
    """Jobs that begin to wait stand where the new weight says; with its end, where the share's own says."""
    shared = TokenBucket("shared", "10/s", burst=5, share="{tenant}")

    def wait(number: int, tenant: str) -> float:
        job = Job(id=f"{tenant}{number}", queue="q", kwargs={"tenant": tenant})
        return round(fleet.limiter.acquire(shared, job=job).delay, 3)

    for n in range(5):
        wait(n, "b")
    assert [wait(n, "b") for n in (1, 2, 3)] == [0.1, 0.2, 0.3]
    fleet.tell(Rule(what="weight", name="shared", part="a", weight=3.0))
    assert [wait(n, "a") for n in (1, 2, 3)] == [0.2, 0.3, 0.4], "after b1, before b2"
    fleet.tell()
    assert wait(4, "a") == 0.6, "after b2, with b3"


# Scaled


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
    """A limit's own name before a pattern, and of patterns the lowest; the others stay as they are."""
    fleet.tell(*(Rule(what="scale", name=name, factor=factor) for name, factor in rules.items()))
    assert [limit.amount for limit in fleet.limiter.in_force(SCALED, None)] == amounts
    assert [fleet.limiter.acquire(limit).limit.amount for limit in SCALED] == amounts
    fleet.tell()
    assert list(fleet.limiter.in_force(SCALED, None)) == SCALED


def test_factor_counts_on_top_of_the_rate_that_is_set(fleet: Fleet) -> None:
    """Whichever was first; with all tiers alike, each of its own rate."""
    fleet.tell(Rule(what="scale", name="*", factor=0.5), Rule(what="set", name="partner", rate="40/s", burst=7))
    decision = fleet.limiter.acquire(PARTNER)
    assert (decision.limit.amount, decision.limit.capacity) == (20, 7)
    fleet.tell(Rule(what="scale", name="*", factor=0.5), Rule(what="set", name="tiered", part="pro", rate="40/s"))
    assert fleet.decide(TIERED, plan="pro").limit.amount == 20
    assert fleet.decide(TIERED, plan="free").limit.period_us == 2_000_000
    assert fleet.decide(SLOTS).limit.amount == 1
    fleet.tell(Rule(what="scale", name="*", factor=0.25))
    assert fleet.decide(TIERED, plan="pro").limit.amount == 5


def test_what_a_limit_cannot_be_scaled_by_is_logged(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """One line a limit; it keeps its rate, or the one that was set."""
    logs = [SlidingLog("x", "8/s"), SlidingLog("y", "8/s")]
    fleet.tell(Rule(what="scale", name="*", factor=0.5), Rule(what="set", name="y", rate="4/s"))
    assert [fleet.passing(log) for log in logs] == [8, 4]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(": ")[0] for line in lines] == ["Limit 'x' stays as it is", "Limit 'y' stays as it is"]
    assert "the factor 0.5, which ann set" in lines[0]


def test_shared_store_keeps_no_position_under_a_limit_of_each_process(fleet: Fleet) -> None:
    """A job that a pause holds back gets a position on the lists of the limits that the fleet shares, and no other."""
    own = TokenBucket("own", "10/s", scope="process")
    fleet.tell(Rule(what="pause", name="partner"))
    assert fleet.decide(own, PARTNER).reason == "paused"
    claims = [each.claim for each in fleet.limiter.claims(Call([own, PARTNER], Job(id="1")))]
    assert [fleet.store.inner.where([each], "1") is not None for each in claims] == [False, True]


# ShadowDenied


def test_limit_in_shadow_mode_denies_no_job_and_counts(fleet: Fleet) -> None:
    """Every job runs; what the limit would have held back is told, and what it lets pass is charged."""
    fleet.tell(Rule(what="shadow", name="partner"))
    decisions = [fleet.decide(PARTNER) for _ in range(10)]
    assert all(decision.allowed and decision.reason == "allowed" and decision.delay == 0 for decision in decisions)
    assert len(fleet.shadowed) == 7
    assert {event.decision.allowed for event in fleet.shadowed} == {False}
    assert {event.decision.limit for event in fleet.shadowed} == {PARTNER}
    fleet.tell()
    assert not fleet.decide(PARTNER), "three were charged"


def test_cost_that_the_shadow_rate_never_admits_passes(fleet: Fleet) -> None:
    """It would have been held back for as long as that rate is set: that is told, and the job runs."""
    dear = TokenBucket("dear", "10/s", cost=lambda job: job.kwargs["cost"])
    fleet.tell(Rule(what="set", name="dear", rate="2/s"), Rule(what="shadow", name="dear"))
    assert fleet.limiter.peek(dear, job=Job(kwargs={"cost": 5}))
    for limits in ([dear], [OTHER, dear]):
        decision = fleet.decide(*limits, cost=5)
        assert (decision.allowed, decision.reason) == (True, "allowed")
        fleet.limiter.settle(decision, actual=7, limit=dear)
    assert [(event.decision.reason, event.decision.cost) for event in fleet.shadowed] == [("paused", 5)] * 2
    with pytest.raises(CostExceedsLimit):
        fleet.decide(dear, cost=11)


def test_slots_in_shadow_mode_are_given_back(fleet: Fleet) -> None:
    """Those that were given are held and released; who got none runs all the same, and has none to release."""
    fleet.tell(Rule(what="shadow", name="slots"))
    decisions = [fleet.decide(SLOTS, OTHER) for _ in range(3)]
    assert [len(decision.leases) for decision in decisions] == [1, 1, 0]
    assert all(decision.allowed for decision in decisions)
    for decision in decisions:
        fleet.limiter.release(decision)
    fleet.tell()
    assert sum(fleet.decide(SLOTS).allowed for _ in range(3)) == 2


@pytest.mark.parametrize("limits", [[OTHER, "tokens"], ["tokens"]])
def test_settle_is_right_whatever_was_in_shadow_mode(fleet: Fleet, limits: list[Any]) -> None:
    """What a limit in shadow mode gave is settled; to settle what it would not have given does nothing."""
    tokens = TokenBucket("tokens", "10/s", burst=10, cost=lambda job: 8)
    named = [tokens if limit == "tokens" else limit for limit in limits]
    fleet.tell(Rule(what="shadow", name="tokens"))
    given, not_given = fleet.decide(*named), fleet.decide(*named)
    assert len(fleet.shadowed) == 1
    for decision in (not_given, decision_from_receipt(receipt(not_given))):
        for meant in (None, tokens):
            assert fleet.limiter.settle(decision, actual=2, limit=meant)
    assert fleet.limiter.peek(tokens, job=Job()).allowed
    fleet.limiter.settle(given, actual=2)
    fleet.tell()
    assert fleet.limiter.peek(tokens, job=Job()).allowed


@pytest.mark.parametrize("limits", [[PARTNER], [OTHER, PARTNER]])
def test_limit_in_shadow_mode_of_a_store_that_is_away_denies_no_job(fleet: Fleet, limits: list[Limit]) -> None:
    """It says closed; but it is in shadow mode."""
    fleet.tell(Rule(what="shadow", name="partner"))

    class Away(Passing):
        inner = fleet.store.inner

        def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
            request = Request(claims, requester, attempt)
            if any("partner" in claim.bucket for claim in request.claims):
                raise StoreUnavailable("away")
            return super().decide(request.claims, request.requester, now_us, attempt=request.attempt)

    fleet.store.inner = Away()
    decision = fleet.decide(*limits)
    assert decision.allowed
    assert fleet.limiter.settle(decision, actual=0, limit=PARTNER).allowed


def test_what_it_would_have_held_back_stands_in_the_log(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """One line in 30 seconds."""
    fleet.tell(Rule(what="shadow", name="partner"))
    with caplog.at_level(logging.INFO, "throttlekit"):
        for _ in range(9):
            fleet.decide(PARTNER)
    lines = [record.getMessage() for record in caplog.records if "would have held back" in record.getMessage()]
    assert lines == ["Limit 'partner', in shadow mode, would have held back 1 jobs since the last such line."]


# Followed


def test_without_rules_nothing_is_asked_more(fleet: Fleet) -> None:
    """A decision costs what it costs; a rule for another limit costs no question either."""
    for rules in ([], [Rule(what="pause", name="somebody's")]):
        fleet.tell(*rules)
        before = len(fleet.store.asked)
        fleet.decide(PARTNER, OTHER)
        assert len(fleet.store.asked) == before + 1


def test_rules_known_last_stay_in_force_while_the_store_is_away(fleet: Fleet) -> None:
    """But for those that end meanwhile, by the time that has passed."""
    fleet.tell(Rule(what="pause", name="partner"))
    fleet.store.fault = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        fleet.limiter.fleet.follow()
    assert fleet.decide(PARTNER).reason == "paused"


@pytest.mark.parametrize(
    "told",
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
def test_what_is_not_ours_is_ignored_with_one_line(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, told: tuple[str, str]
) -> None:
    """Of a later version, torn, or foreign: the other rules hold all the same."""
    fleet.tell(Rule(what="pause", name="other"))
    fleet.store.told.append(told)
    for _ in range(3):
        fleet.limiter.fleet.follow()
    assert fleet.decide(PARTNER)
    assert fleet.decide(OTHER).reason == "paused"
    assert caplog.text.count("which another release wrote") == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["v", "since", "until", "by", "rate", "burst", "x"]), inner, max_size=6
    ),
    max_leaves=9,
)  # fmt: skip


@given(field=_JSON, told=_JSON)
def test_reading_a_rule_never_fails(field: Any, told: Any) -> None:
    """Whatever stands there is a rule or none."""
    rule = rule_of(field, told)
    assert rule is None or rule_of(data_of(field_of(rule.what, rule.name, rule.part)), plain(rule)) == rule

"""Live control, prefetched units and the circuit breaker are optional layers: without one of them the rest works."""

from __future__ import annotations

from typing import ClassVar

import pytest

from support.servers.away import Away
from support.servers.stores import RuleStore
from throttlekit import Concurrency, Delivery, Job, Limiter, TokenBucket
from throttlekit.fleet.rules import Rule, as_text, field_of, plain
from throttlekit.testing import FakeClock

PLAIN = TokenBucket("plain", "10/s", burst=2)
AHEAD = TokenBucket("ahead", "100/s", burst=40, prefetch=16)
OWN = TokenBucket("own", "100/s", burst=40, scope="process")
SLOTS = Concurrency("slots", 1)


class WithoutFleet(Limiter):
    _without: ClassVar = frozenset({"fleet"})


class WithoutPrefetch(Limiter):
    _without: ClassVar = frozenset({"prefetch"})


class WithoutBreaker(Limiter):
    _without: ClassVar = frozenset({"breaker"})


class WithoutAny(Limiter):
    _without: ClassVar = frozenset({"fleet", "prefetch", "breaker"})


EACH = [WithoutFleet, WithoutPrefetch, WithoutBreaker, WithoutAny]


@pytest.fixture
def store() -> RuleStore:
    return RuleStore(FakeClock())


@pytest.mark.parametrize("kind", EACH)
def test_every_verb_works_without_a_layer(kind: type[Limiter], store: RuleStore) -> None:
    """Decisions, positions, slots, corrections, pauses and resets are those of a complete limiter."""
    limiter = kind(store)
    first = [limiter.acquire(PLAIN, AHEAD, OWN, job=Job(id=str(n)), delivery=Delivery()) for n in range(3)]
    assert [decision.allowed for decision in first] == [True, True, False]
    assert first[2].delay == pytest.approx(0.1, abs=0.01)
    assert limiter.peek(PLAIN, job=Job(id="2")).reason == "exhausted"
    limiter.cancel(first[0])
    assert limiter.peek(PLAIN).remaining == 1
    limiter.clear_waitlist(PLAIN)
    held = limiter.acquire(SLOTS)
    assert not limiter.acquire(SLOTS).allowed
    limiter.release(held)
    with limiter.hold(SLOTS):
        assert not limiter.peek(SLOTS).allowed
    limiter.pause(AHEAD, 5)
    assert limiter.acquire(AHEAD).reason == "paused"
    limiter.resume(AHEAD)
    limiter.reset(PLAIN, AHEAD)
    assert limiter.settle(limiter.acquire(PLAIN), actual=2).cost == 2
    limiter.flush()
    limiter.close()


def test_without_the_fleet_no_rule_applies(store: RuleStore) -> None:
    """A limiter without live control follows no rule, and requests none."""
    rule = Rule(what="pause", name="plain", since_us=1, by="ann")
    store.rules = [(field_of(rule.what, rule.name, rule.part), as_text(plain(rule)))]
    whole = Limiter(store)
    assert [limiter.acquire(PLAIN).allowed for limiter in (WithoutFleet(store), whole)] == [True, False]
    whole.close()


def test_without_prefetch_each_unit_is_requested(store: RuleStore) -> None:
    """A limiter without this layer prefetches nothing: `prefetch` of a limit has no effect."""
    limiter = WithoutPrefetch(store)
    assert [limiter.acquire(AHEAD).remaining for _ in range(5)] == [39, 38, 37, 36, 35]


def test_without_the_breaker_each_call_reaches_the_store(store: RuleStore) -> None:
    """A limiter without the breaker calls an unavailable store each time; with it, once a second."""
    calls = []
    for kind in (WithoutBreaker, Limiter):
        away = Away(store)
        limiter = kind(away)
        assert {limiter.acquire(PLAIN).reason for _ in range(3)} == {"store unavailable"}
        calls.append(away.asked)
    assert calls == [3, 1]

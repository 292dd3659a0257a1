"""
More than 200 000 random values, from seeds, for all functions that take values from outside: they raise only documented
errors, do not hang, leave no data in memory, send no number in exponent form, and repeat no secret.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from support.faults.fuzz import Values, hanging_fails
from support.servers.stores import Listed
from throttlekit import (
    ConfigurationError,
    Delivery,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.durations import seconds_in
from throttlekit._core.limit.rate import LONGEST_PERIOD_US, parse_rate
from throttlekit._core.serialize import load, plain
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit.adapter import decision_from_receipt, receipt
from throttlekit.errors import StoreUnavailable

KINDS: list[tuple[type[Limit], list[str]]] = [
    (TokenBucket, ["burst", "prefetch", "prefetch_for"]),
    (LeakyBucket, ["queue"]),
    (FixedWindow, ["tz"]),
    (SlidingWindow, []),
    (SlidingLog, []),
]
DOCUMENTED = (ConfigurationError, ImportError)
FIVE = [
    plain(TokenBucket("a", "10/s", burst=5), "k", 1),
    plain(TokenBucket("a", "1000/s", burst=500, prefetch=50), "k", 1),
    plain(LeakyBucket("b", "10/s", queue=5), "k", 1),
    plain(FixedWindow("c", "10/s", tz="Europe/Berlin"), "", 1),
    plain(SlidingWindow("d", "10/s", scope="queue"), "", 1),
    plain(SlidingLog("e", "10/s"), "", 1),
]


class Sent(Listed):
    """A Redis store without a server, which checks that every server reads arguments of commands in the same way."""

    commands = 0

    def _command(self, *arguments: Any) -> Any:
        for each in arguments:
            assert type(each) in (str, bytes, int), f"{type(each).__name__} was sent"
            if isinstance(each, int):
                assert abs(each) < 2**53, "a number that a double does not hold was sent"
        Sent.commands += 1
        raise ResponseError("WRONGTYPE Operation against a key")  # an error of one key, so other keys are still called


def fuzz(seed: int, values: int, take: Callable[[Values], object]) -> int:
    """Let *take* draw and use a value, *values* times. Return how many were accepted."""
    drawn, accepted = Values(seed), 0
    with hanging_fails() as within:
        for _ in range(values):
            within()
            try:
                take(drawn)
                accepted += 1
            except DOCUMENTED as error:
                assert len(str(error)) < 30_000  # noqa: PT017  the fuzz accepts either
    return accepted


def draw_limit(drawn: Values) -> Limit:
    rnd = drawn.rnd
    kind, own = rnd.choice(KINDS)
    likely = {"key": "{a}", "cost": 1, "scope": "queue", "tier": "{a}", "burst": 5, "queue": 3, "tz": "UTC"}
    options = {
        name: likely.get(name, "free") if rnd.random() < 0.3 else drawn.any()
        for name in ("key", "cost", "scope", "tier", "default_tier", *own)
        if rnd.random() < 0.2
    }
    make: Any = kind
    limit: Limit = make(drawn.text() if rnd.random() < 0.9 else drawn.any(), drawn.rate(), **options)
    return limit


def draw_url(drawn: Values) -> Any:
    rnd = drawn.rnd
    schemes = ["redis", "rediss", "unix", "valkey", "memory", "redis+cluster", "redis+sentinel", "redis+x", "http"]
    parts = [
        [*schemes, drawn.text()],
        ["://", "://", "://", ":/", ""],
        ["", ":tr0ub4dor@", "user:tr0ub4dor@", "tr0ub4dor@", ":tr0ub/dor@"],
        ["", "localhost", "127.0.0.1", "[::1]", "::1", "[", drawn.text()],
        ["", ":6379", ":6379", ":99999", ":x", ":-1", drawn.text()],
        ["", "/0", "/x", "/99999999999", "/service/0", drawn.text()],
        ["", "", "?db=1", "?db=x", "?socket_timeout=1e400", "?foo=bar", "?max_connections=-1", "?" + drawn.text()],
    ]
    return "".join(rnd.choice(part) for part in parts) if rnd.random() < 0.9 else drawn.any()


def draw_job(drawn: Values) -> Any:
    rnd = drawn.rnd
    kind = rnd.random()
    if kind < 0.4:
        return Job(id=drawn.text(), kwargs={"a": drawn.any()})
    if kind < 0.8:
        texts = {field: drawn.text() for field in ("id", "name", "queue")}
        return Job(**texts, **{field: drawn.any() for field in ("args", "kwargs") if rnd.random() < 0.4})
    return None if kind < 0.95 else drawn.any()


@pytest.mark.parametrize("seed", [1, 2])
def test_limits_accept_valid_values_and_reject_others(seed: int) -> None:
    """Each of 60 000 random definitions makes a limit whose numbers are in range, or raises ConfigurationError."""

    def take(drawn: Values) -> None:
        limit = draw_limit(drawn)
        for one in (limit,) if limit.tiers is None else limit.tiers.values():
            hash(one), repr(one)
            if one.varying_us is not None:
                continue  # a limit with an amount for each rate
            assert type(one.amount) is int
            assert 1 <= one.amount < 10**12
            assert 1 <= one.period_us <= LONGEST_PERIOD_US
            assert one.capacity >= 1

    assert fuzz(seed, 30_000, take) > 1000


def test_rates_accept_valid_values_and_reject_others() -> None:
    """Each of 30 000 random rates gives whole numbers in range, or raises ConfigurationError."""

    def take(drawn: Values) -> None:
        amount, period_us = parse_rate(drawn.rate())
        assert type(amount) is type(period_us) is int
        assert 1 <= amount < 10**12
        assert 1 <= period_us <= LONGEST_PERIOD_US

    assert fuzz(3, 30_000, take) > 5000


def test_urls_are_accepted_or_rejected_without_their_password() -> None:
    """Each of 10 000 random URLs creates a store that is not connected yet, or an error that has no password."""
    hooks = plugin_manager([])

    def take(drawn: Values) -> None:
        try:
            store_from(draw_url(drawn), hooks).close()
        except DOCUMENTED as error:
            assert "tr0ub" not in f"{error}{error.__cause__}"  # noqa: PT017  the fuzz accepts either
            raise

    assert fuzz(4, 10_000, take) > 300


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_limiters_accept_valid_arguments_and_reject_others() -> None:
    """Each of 1 000 random argument lists makes a limiter that closes, or raises a documented error."""

    def take(drawn: Values) -> None:
        options = {"plugins": drawn.any()} if drawn.rnd.random() < 0.5 else {}
        Limiter(draw_url(drawn) if drawn.rnd.random() < 0.5 else drawn.any(), **options).close()

    fuzz(5, 1_000, take)


@pytest.mark.parametrize("seed", [6, 7])
def test_methods_return_or_raise_documented_errors(seed: int) -> None:
    """Each of 20 000 random acquires, peeks, resets and settles returns, or raises ConfigurationError."""
    limiter = Limiter()
    keys = [None, None, "{a}", "{a.b}", "{a[0]}", "{a!r:>10}"]

    def take(drawn: Values) -> None:
        rnd = drawn.rnd
        limit = TokenBucket(
            "x",
            "1000000/s",
            burst=100_000,
            key=rnd.choice([*keys, lambda job: drawn.any()]),
            cost=rnd.choice([1, 2, lambda job: drawn.any()]),
            scope=rnd.choice(["global", "queue", "job", "process"]),
            _sent=(None, None),  # type: ignore[call-arg]  # it is created each time, under one name
        )
        limits = [limit] if rnd.random() < 0.9 else [limit, drawn.any()]
        options = {name: drawn.any() for name in ("key", "cost") if rnd.random() < 0.2}
        verb = rnd.choice(["acquire", "acquire", "peek", "reset"])
        if verb == "reset":
            options.pop("cost", None)
        method: Any = getattr(limiter, verb)
        decision = method(*limits, job=draw_job(drawn), **options)
        if decision is None:
            return
        assert 0 <= decision.remaining <= limit.capacity
        assert 0.0 <= decision.delay < 1e9
        decision.headers()
        if verb == "acquire" and decision:
            limiter.settle(decision, actual=drawn.any() if rnd.random() < 0.5 else 1)

    assert fuzz(seed, 10_000, take) > 500


def test_only_text_and_whole_numbers_are_sent() -> None:
    """In 20 000 random requests, with jobs, max_wait and the largest costs, no number on the wire is a float."""
    limiter = Limiter(Sent("redis://nobody"))
    sent = Sent.commands

    def take(drawn: Values) -> None:
        rnd = drawn.rnd
        kind, _ = rnd.choice(KINDS)
        make: Any = kind
        rate = (rnd.choice([1, 7, 10**3, 10**6, 10**9, 10**12 - 1]), rnd.choice([1, 1e-6, 86_400, 366 * 86_400]))
        limit: Limit = make("x", rate, key="{a}", _sent=(None, None))
        job = Job(id=rnd.choice(["", drawn.text()]), kwargs={"a": drawn.text()})
        cost = rnd.choice([None, 0, 1, limit.capacity, rnd.randint(0, limit.capacity)])
        wait = rnd.choice([None, 0, 0.5, 1e6, 1e9, 1e308, 10**400, rnd.random() * 1e9])
        delivery = Delivery(max_wait=seconds_in("max_wait", wait))
        assert limiter.acquire(limit, job=job, cost=cost, delivery=delivery).reason == "store unavailable"
        if rnd.random() < 0.2:
            with pytest.raises(StoreUnavailable):
                limiter.reset(limit, job=job)

    assert fuzz(8, 20_000, take) > 5000
    assert Sent.commands - sent > 5000


def test_limits_in_messages_are_loaded_or_rejected() -> None:
    """Each of 30 000 random limits by value is loaded as a limit, or raises ConfigurationError."""

    def take(drawn: Values) -> None:
        data = drawn.rnd.choice(FIVE)
        limit = load(drawn.mutated(data) if drawn.rnd.random() < 0.95 else drawn.any())
        assert limit.by_value
        limit.cost_of(Job())

    assert fuzz(10, 30_000, take) > 3000


def test_receipts_are_loaded_or_rejected() -> None:
    """Each of 20 000 random receipts is loaded as a decision that has only keys of its limits, or is rejected."""
    with_two = receipt(Limiter().acquire(TokenBucket("x", "10/s", burst=5), SlidingLog("y", "10/s")))

    def take(drawn: Values) -> None:
        decision = decision_from_receipt(drawn.mutated(with_two) if drawn.rnd.random() < 0.95 else drawn.any())
        assert all(each.bucket == "" or each.bucket.startswith("tk1:{") for each in decision.charged)
        Limiter.settle(limiter, decision, actual=1, limit=decision.limit)

    limiter = Limiter()
    assert fuzz(11, 20_000, take) > 2000


@pytest.fixture
def blocks() -> Callable[[], int]:
    """A function that returns how many blocks of memory Python has allocated, after a collection."""

    def count() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    return count


def test_limits_in_messages_leave_nothing_in_memory(blocks: Callable[[], int]) -> None:
    """A limiter that has decided on 20 000 limits by value, each with another name, uses no more memory."""
    limiter = Limiter(Sent("redis://nobody"))

    def take(drawn: Values) -> None:
        name = str(drawn.rnd.random())
        limit = load({**drawn.rnd.choice(FIVE[:2]), "name": name, "key": name})
        limiter.acquire(limit, cost=1)

    fuzz(12, 2_000, take)
    before = blocks()
    fuzz(13, 20_000, take)
    assert blocks() - before < 5_000

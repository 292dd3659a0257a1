"""The scripts and the reference are the same function: every answer, every stored byte, every time to live."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parity.histories import (
    ALGORITHMS,
    ANYTHING,
    NOW_US,
    REASONS,
    History,
    Leased,
    Left,
    Paused,
    Reference,
    Rule,
    Slowed,
    Step,
    Waiting,
    rule,
    written_as,
)
from support.claims import claim_of
from support.ids import told
from support.servers.stores import Listed
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.acquire import Caller
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.algorithms.sliding_log import Log
from throttlekit._core.algorithms.sliding_window import Counts
from throttlekit._core.latency import Gauge
from throttlekit._core.limit.base import Limit
from throttlekit._core.line import EMPTY, FURTHEST_US, GRACE_US, UNIT, Place
from throttlekit._core.storage_keys import slots_of_holder
from throttlekit._core.time_zone import Zone
from throttlekit.stores import Correction, Lease, MemoryStore, Request, StoreClaim
from throttlekit.stores.redis import RedisStore

GAUGE = ("slots", "base", "sum", "spread", "holds", "skip", "peak", "rounds", "fell")
SLOWED = ("fall: True", "heard: True", "heard: False", "slowed", "paced")
LONG_RUN = int(os.environ.get("THROTTLEKIT_TEST_HISTORIES", "20000"))
HISTORY = 250

# What a step leaves, and how long that would live; then it lives on, since the test's clock stands still.
READ = """
local function read(key)
  if redis.call('TYPE', key).ok == 'zset' then return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  return redis.call('GET', key)
end
"""
LEFT = (
    READ
    + """
local left = {}
for i, key in ipairs(KEYS) do
  left[2 * i - 1] = read(key)
  local ms = redis.call('PTTL', key)
  left[2 * i] = ms < 0 and ms or ms - 3600000
  redis.call('PERSIST', key)
end
return left
"""
)

# Around the scripts: what they write lives an hour longer, or a busy machine would find the shortest-lived gone.
LONGER = """
local given = redis
local redis = {sha1hex = redis.sha1hex, call = function(...)
  local words = {...}
  local at = words[1] == 'PEXPIRE' and 3 or words[1] == 'SET' and 5
  if at and words[at] then words[at] = string.format('%.0f', words[at] + 3600000) end
  return given.call((unpack or table.unpack)(words))
end}
"""
# Around the scripts: every argument of redis.call must be text already, and no number in it in exponent form.
STRICT = """
local server = redis
local redis = {sha1hex = server.sha1hex, call = function(...)
  local command, key, value = ...
  for i = 1, select('#', ...) do
    local argument = select(i, ...)
    if type(argument) ~= 'string' then error('not text: ' .. tostring(argument)) end
    local ring = string.find(key or '', 'ring', 1, true) and #argument > 0 and #argument % 7 == 0
      and ((command == 'SETRANGE' and i == 4) or (command == 'SET' and i == 3))
    local holders = string.find(key or '', 'concurrency', 1, true) and (string.find(argument, '^%(?%-?%d+$')
      or string.find(argument, '^job%%3A%d+#%d?%*?%d*$') or string.find(argument, '^:%l+$')
      or argument == '-inf' or argument == '+inf' or argument == 'WITHSCORES' or argument == 'LIMIT')
    local line = string.find(key or '', ':order2$')
      and (string.find(argument, '^[%d ]+ %x* ?[%d ]*$') or argument == 'KEEPTTL')
      or string.find(key or '', ':jobs2$') and (string.find(argument, '^%(?%-?%d+$') or argument == '-inf'
      or argument == '+inf' or argument == 'LIMIT' or argument == 'WITHSCORES' or string.find(argument, '^[fr] '))
    if i > 2 and string.find(argument, '[^%d ]') and argument ~= 'PX' and not ring and not holders and not line then
      error('not whole: ' .. argument)
    end
  end
  -- Time to live to the millisecond, for LEFT_EXACTLY.
  local expiry = command == 'PEXPIRE' and value or command == 'SET' and select(5, ...)
  if expiry then server.call('HSET', 'expiry', key, expiry) end
  return server.call(...)
end}
"""
# Around the scripts: a server whose C has longs of 32 bits.
NARROW = """
local given = string
local string = setmetatable({format = function(form, ...)
  local numbers = {...}
  if given.find(form, '%d', 1, true) then
    for i, number in ipairs(numbers) do numbers[i] = (number + 2147483648) % 4294967296 - 2147483648 end
  end
  return given.format(form, (unpack or table.unpack)(numbers))
end}, {__index = string})
"""
LEFT_EXACTLY = (
    READ
    + """
local left = {}
for i, key in ipairs(KEYS) do
  left[2 * i - 1] = read(key)
  left[2 * i] = tonumber(redis.call('HGET', 'expiry', key) or left[2 * i - 1] and -1 or -2)
  redis.call('HDEL', 'expiry', key)
  redis.call('PERSIST', key)
end
return left
"""
)


class _Recorder(Listed):
    """Tells what a store would send, and sends nothing."""

    def __init__(self) -> None:
        super().__init__("redis://localhost")
        self._sent: tuple[str, list[Any]] = ("", [])

    def sent(self, step: Step) -> tuple[str, list[Any]]:
        """The script's text, and what it is run with."""
        if isinstance(step.question, Request):
            self.acquire(step.question, step.now_us)
        elif isinstance(step.question, Leased):
            (self.release if step.question.verb == "release" else self.renew)(step.question.leases, step.now_us)
        elif isinstance(step.question, Paused):
            of = step.question
            self.pause(of.claims, of.for_us, step.now_us, emptied=of.emptied)
        elif isinstance(step.question, Slowed):
            self.slow(step.question.slowings, step.now_us)
        elif isinstance(step.question, Left):
            self.leave(step.question.waits, step.now_us)
        elif step.question is not None:
            self.settle(step.question, step.now_us)
        return self._sent

    def _run(self, script: Any, arguments: list[Any]) -> Any:
        self._sent = (script.text, arguments)
        return b"0"


RECORDER = _Recorder()


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url, socket_timeout=60)
    yield client
    client.close()


class _Shas:
    """Scripts by their text, each loaded once."""

    def __init__(self, client: Any, before: str = "") -> None:
        self._client, self.before, self._known = client, before, dict[str, str]()

    def __getitem__(self, text: str) -> str:
        if text not in self._known:
            self._known[text] = self._client.script_load(LONGER + self.before + text)
        return self._known[text]


def _words(reply: Any) -> Any:
    """A reply as the reference gives it: the numbers, then the places."""
    if not isinstance(reply, bytes):
        return reply
    numbers, _, places = reply.decode().partition("|")
    first, *rest = map(int, numbers.split())
    told = [0, 1, first, first, first] if first >= 0 else [-first]
    return [*told, *rest, *filter(None, places.split(";"))]


def _check(client: Any, steps: Sequence[Step], shas: _Shas) -> None:
    """Run *steps* in one MULTI/EXEC and compare."""
    exactly = bool(shas.before)
    pipeline = client.pipeline(transaction=True)
    left = client.script_load(LEFT_EXACTLY if exactly else LEFT)
    for step in steps:
        if step.question is None:
            pipeline.execute_command("DEL", *step.keys)
            continue
        text, arguments = RECORDER.sent(step)
        pipeline.execute_command("EVALSHA", shas[text], *arguments)
        pipeline.execute_command("EVALSHA", left, len(step.keys), *step.keys)
        for key in _forgotten(step):
            pipeline.execute_command("DEL", key)
    replies = iter(pipeline.execute())
    for number, step in enumerate(steps):
        reply = next(replies)
        if step.question is None:
            continue
        assert _words(reply) == step.reply, f"step {number}: {step}"
        kept = next(replies)
        for i, key in enumerate(step.keys):
            stored, expiry_ms = written_as(step.stored[i]), step.expiry_ms[i]
            found, left_ms = _read(key, kept[2 * i], stored), kept[2 * i + 1]
            if stored is ANYTHING:
                continue
            if stored is None and isinstance(found, Waiting):
                assert not found.jobs, f"{key}, step {number}: {step}"  # what the places of the last jobs cost
            elif expiry_ms is None:
                assert (found, left_ms) == (stored, -2 if stored is None else -1), f"{key}, step {number}: {step}"
            else:
                assert found == stored, f"{key}, step {number}: {step}"
                told_ms = max(1, expiry_ms)  # what lives no longer is written all the same, for a moment
                assert told_ms - 10_000 * (not exactly) <= left_ms <= told_ms, f"{key}, step {number}: {step}"
        for _ in _forgotten(step):
            next(replies)


def _forgotten(step: Step) -> list[str]:
    return [key for key, left_ms in zip(step.keys, step.expiry_ms, strict=True) if left_ms is not None and left_ms < 1]


def _read(key: str, value: Any, expected: object) -> object:
    """What a key holds; a ring as its log, the oldest unit first, and a sorted set as its holders or waiting jobs."""
    if isinstance(value, list):
        pairs = [(name.decode(), int(float(score))) for name, score in zip(value[::2], value[1::2], strict=True)]
        if key.endswith(":jobs2"):
            jobs = [(score, int(name[:16]), int(name[17:])) for name, score in pairs if score >= 0]
            tags = {name: -1 - score for name, score in pairs if score < 0}
            kinds = ({name[2:]: tag for name, tag in tags.items() if name[:2] == kind} for kind in ("f ", "r "))
            return Waiting(jobs, *kinds)
        known = {name: -number for name, number in pairs if name[:1] == ":"}
        leases = tuple(pair for pair in pairs if pair[0][:1] != ":")
        assert known.get(":extra", 0) == sum(slots_of_holder(holder) - 1 for holder, _ in leases), pairs
        gauge = Gauge(*(known.get(":" + name, 0) for name in GAUGE)) if ":slots" in known else None
        return Holders(leases, *(known.get(name, 0) for name in (":mean", ":granted", ":lease")), gauge)
    if value is None or not isinstance(expected, Log):
        return value
    head, owed_until_us, *ring = (int.from_bytes(value[i : i + 7], "big") for i in range(0, len(value), 7))
    return Log(tuple(instant for instant in ring[head:] + ring[:head] if instant), owed_until_us)


OF_THE_LINE = [
    "set aside",
    "larger budget",
    "back",
    "in the line",
    "left the line",
    "tenants",
    "costs",
    "left",
]


OF_WORKFLOWS = ["of a workflow that holds", "past a line", "kept", "done"]
OF_TWO_RATES = ["at another rate", "looked at from another rate", "settled at another rate"]


@pytest.mark.parametrize(
    ("algorithms", "must_see"),
    [
        (["token-bucket"], ["in debt", "ahead", *OF_TWO_RATES]),
        (["leaky-bucket"], ["in debt", "ahead", *OF_TWO_RATES]),
        (["fixed-window"], ["in debt", "ahead"]),
        (["sliding-window"], ["in debt", "ahead"]),
        (["sliding-log"], ["ring wrapped", "ahead"]),
        (["concurrency"], ["ahead", "release: True", "release: False", "renew: True", "renew: False", *OF_WORKFLOWS]),
        (["adaptive-concurrency"], ["ahead", "release: True", "release: False", "renew: True", "renew: False"]),
        (ALGORITHMS, [*OF_THE_LINE, "in debt", "ahead", "ring wrapped", "several", "release: True", "renew: True"]),
    ],
    ids=[*ALGORITHMS, "mixtures"],
)
def test_long_random_histories(client: Any, algorithms: Sequence[str], must_see: Sequence[str]) -> None:
    """Over twenty thousand random steps, the scripts answer and store exactly what the reference does."""
    shas, seen, count = _Shas(client), Counter[str](), 0
    slots = algorithms[0].endswith("concurrency")
    settled = ["settled down"] if slots else ["settled up", "settled down"]
    slowed = ("drop: False",) if algorithms == ["adaptive-concurrency"] else SLOWED
    seldom = ["not settled", "resumed", "stale", "stale settled", "stale looked at"]
    seldom += ["pause begun anew", "a 429 within a pause"]
    least = dict.fromkeys([*REASONS, *settled, *slowed, "pauses", *must_see], LONG_RUN // 1000)
    least |= dict.fromkeys(seldom, LONG_RUN // 5000) | ({} if slots else {"fall: False": 0})
    # What is rarest is seen some dozen times: where chance brings less, the histories go on.
    while count < LONG_RUN or (count < 5 * LONG_RUN and any(seen[what] <= few for what, few in least.items())):
        seed = random.getrandbits(64)
        history = History(random.Random(seed), algorithms)
        steps = list(history.steps(HISTORY))
        client.flushdb()
        try:
            _check(client, steps, shas)
        except AssertionError as error:
            raise AssertionError(f"history {seed}, {error}") from None
        count += sum(step.question is not None for step in steps)
        seen += history.seen
    client.flushdb()
    assert not {what: seen[what] for what, few in least.items() if seen[what] <= few}


def test_histories_of_workflows(client: Any) -> None:
    """Where nearly all slots are held by workflows, whose jobs pass those that wait and those that do not come."""
    shas, seen = _Shas(client), Counter[str]()
    for seed in range(90):
        history = History(random.Random(seed), ["concurrency"], workflows=0.9)
        steps = list(history.steps(HISTORY))
        client.flushdb()
        _check(client, steps, shas)
        seen += history.seen
    client.flushdb()
    assert min(seen[what] for what in OF_WORKFLOWS) > 200, {what: seen[what] for what in OF_WORKFLOWS}


@pytest.mark.parametrize("algorithms", [ALGORITHMS, ["sliding-log"]], ids=["mixtures", "rings"])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1, 60))
def test_every_number_is_written_in_full(client: Any, algorithms: Sequence[str], seed: int, length: int) -> None:
    """
    Every argument that a script hands to the server is text, every number in it is plain digits, and every time to
    live is right to the millisecond.
    """
    client.flushdb()
    _check(client, list(History(random.Random(seed), algorithms).steps(length)), _Shas(client, STRICT))
    client.flushdb()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1, 60))
def test_servers_of_32_bits_write_the_same_numbers(client: Any, seed: int, length: int) -> None:
    """Where a long of C has 32 bits, as on old boards and on Windows, no number is cut."""
    client.flushdb()
    _check(client, list(History(random.Random(seed), ALGORITHMS).steps(length)), _Shas(client, STRICT + NARROW))
    client.flushdb()


_HOUR_US = 3_600_000_000
_MIDNIGHT_US = NOW_US // (24 * _HOUR_US) * 24 * _HOUR_US
_AUTUMN_US = _MIDNIGHT_US - 100 * 24 * _HOUR_US
_RULES = [
    rule(limit, zone, number)
    for number, (limit, zone) in enumerate(
        [
            (TokenBucket("x", "10/s", burst=5), Zone()),
            (TokenBucket("x", "300000/s", burst=9), Zone()),
            (TokenBucket("x", "3/100000s", burst=3), Zone()),
            (LeakyBucket("x", "7/s", queue=2), Zone()),
            (FixedWindow("x", "3/s"), Zone()),
            # Midnight is skipped, comes twice, and a whole day is skipped.
            (FixedWindow("x", "2/day"), Zone(0, ((_MIDNIGHT_US, _HOUR_US),))),
            (FixedWindow("x", "2/day"), Zone(0, ((_MIDNIGHT_US + _HOUR_US // 2, -_HOUR_US),))),
            (FixedWindow("x", "2/day"), Zone(-_HOUR_US, ((_MIDNIGHT_US + _HOUR_US, 23 * _HOUR_US),))),
            (FixedWindow("x", "4/hour"), Zone(0, ((NOW_US, _HOUR_US // 2), (NOW_US + 30 * _HOUR_US, 0)))),
            (FixedWindow("x", "4/month"), FixedWindow("x", "4/month", tz="Europe/Berlin").bind(1, NOW_US).zone),
            (FixedWindow("x", "3/month"), FixedWindow("x", "3/month", starts=15).bind(1, NOW_US).zone),
            # Longer than 31 days: Berlin's clocks go back between the two fifteenths.
            (
                FixedWindow("x", "3/month"),
                FixedWindow("x", "3/month", tz="Europe/Berlin", starts=15).bind(1, _AUTUMN_US).zone,
            ),
            (SlidingWindow("x", "3/s"), Zone()),
            (SlidingWindow("x", "7/10s"), Zone()),
            (SlidingWindow("x", f"{10**12 - 1}/366d"), Zone()),
            (SlidingLog("x", "1/s"), Zone()),
            (SlidingLog("x", "3/s"), Zone()),
            (SlidingLog("x", "5/day"), Zone()),
            (SlidingLog("x", "257/s"), Zone()),
            (Concurrency("x", 2, lease=1), Zone()),
            (Concurrency("x", 1), Zone()),
        ]
    )
]


class _Teller:
    """Draws a story, one step after the other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._rules = draw(st.lists(st.sampled_from(_RULES), min_size=1, max_size=3, unique=True))
        self._reference = Reference()
        self._now_us = NOW_US
        self._denied: list[tuple[list[tuple[Rule, StoreClaim]], Sequence[Place | None]]] = []
        self._instants = [NOW_US, *(at + by for rule in self._rules for at, _ in rule.zone.changes for by in (-1, 0))]

    def tell(self) -> list[Step]:
        steps = [self._step() for _ in range(self._draw(st.integers(1, 12)))]
        assume(not self._reference.is_reborn)
        return steps

    def _step(self) -> Step:
        moves = st.one_of(
            st.just(self._now_us),
            st.sampled_from(self._instants),
            st.integers(-6_000_000, 6_000_000).map(self._now_us.__add__),
            st.integers(-(10**12), 10**12).map(self._now_us.__add__),
        )
        self._now_us = self._draw(moves)
        return self._draw(
            st.sampled_from(
                [self._ask, self._ask, self._ask, self._ask, self._settle, self._lease, self._pause, self._leave]
            )
        )()

    def _ask(self) -> Step:
        back = self._denied and self._draw(st.booleans())
        if back:
            asked, places = self._draw(st.sampled_from(self._denied))
        else:
            asked, places = [(each, self._claim(each)) for each in self._rules], ()
        max_wait_us = self._draw(st.none() | st.none() | st.integers(0, 10**7))
        caller = self._draw(st.sampled_from(Caller))
        step = self._reference.ask(self._now_us, asked, caller, places, max_wait_us)
        assert isinstance(step.reply, list)
        self._instants += [self._now_us, step.reply[3], step.reply[4], step.reply[6], step.reply[4] + GRACE_US]
        if self._reference.places:
            self._denied.append((asked, self._reference.places))
        return step

    def _claim(self, of: Rule) -> StoreClaim:
        cost = self._draw(st.integers(0, min(9, of.limit.capacity)) | st.just(of.limit.capacity))
        tenant = self._draw(st.sampled_from(["", "", "a", "b"]))
        step = -(-min(cost, 1000) * UNIT // self._draw(st.integers(1, 3)))
        return claim_of(of.bind(cost, self._holder()), cost, of.limit.max_queue, tenant=tenant, step=step)

    def _leave(self) -> Step:
        if not self._denied:
            return self._ask()
        asked, places = self._draw(st.sampled_from(self._denied))
        known = [(each, place) for each, place in zip(asked, places, strict=True) if place is not None]
        return self._reference.leave(self._now_us, [each for each, _ in known], [place for _, place in known])

    def _holder(self) -> str:
        return f"job%3A{self._draw(st.integers(0, 3))}#0"

    def _lease(self) -> Step:
        slots = [rule for rule in self._rules if isinstance(rule.limit, Concurrency)]
        if not slots:
            return self._pause()
        granted_us = self._draw(st.sampled_from(self._instants))
        leases = [Lease(each.bucket, each.bind(1, self._holder()), granted_us) for each in slots]
        return self._reference.leased(self._now_us, self._draw(st.sampled_from(["release", "renew"])), leases)

    def _pause(self) -> Step:
        for_us = self._draw(st.none() | st.integers(0, 10**7) | st.just(7_200_000_000))
        return self._reference.pause(self._now_us, self._rules, for_us, self._draw(st.booleans()))

    def _settle(self) -> Step:
        corrections: list[Correction] = []
        for each in self._rules:
            charge = each.bind(1, self._holder())
            by = self._draw(st.sampled_from([-1, 1, 3, 10**12, 10**18]) | st.integers(-9, 9).filter(bool))
            granted_us = self._draw(st.sampled_from(self._instants))
            by = by * charge.size if isinstance(each.limit, (TokenBucket, LeakyBucket)) else by
            corrections.append(Correction(each.bucket, charge, granted_us, by))
        return self._reference.settle(self._now_us, corrections)


@st.composite
def _story(draw: st.DrawFn) -> list[Step]:
    """A short history over one to three limits that Hypothesis can shrink."""
    return _Teller(draw).tell()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_story())
def test_short_stories(client: Any, steps: list[Step]) -> None:
    """The same, over short histories that shrink to the smallest disagreement."""
    client.flushdb()
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket("x", "7/minute", burst=7),
        TokenBucket("x", "7/minute", burst=1),
        FixedWindow("x", "7/minute"),
        SlidingWindow("x", "7/minute"),
        SlidingLog("x", "7/minute"),
    ],
    ids=told,
)
@pytest.mark.parametrize("costs", [[1], [1, 3, 2]], ids=["ones", "mixed"])
def test_long_line_is_set_aside_alike(client: Any, limit: Limit, costs: list[int]) -> None:
    """A line of two hundred jobs, most of which never come, is told, set aside and passed alike at each microsecond."""
    kept, reference, rnd = rule(limit), Reference(), random.Random(7)
    asks = [claim_of(kept.bind(cost), cost, step=cost * UNIT) for cost in costs if cost <= limit.capacity]
    steps, waiting = list[Step](), list[tuple[int, StoreClaim, Sequence[Place | None]]]()
    for number in range(200):
        ask = asks[number % len(asks)]
        steps.append(reference.ask(NOW_US, [(kept, ask)], Caller.JOB))
        if reference.places and number % 9 == 0:
            waiting.append((NOW_US, ask, reference.places))
    now_us = NOW_US
    for _ in range(300):
        now_us += rnd.choice([GRACE_US // 2, GRACE_US, 500_000, 9_000_000])
        at, ask, places = waiting.pop(rnd.randrange(min(3, len(waiting)))) if waiting else (now_us, asks[0], ())
        steps.append(reference.ask(now_us, [(kept, ask)], Caller.JOB, places))
        if reference.places:
            waiting.append((at, ask, reference.places))
    assert reference.seen["set aside"] > 5
    assert reference.seen["allowed"] > 5
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize(("amount", "days"), [(333_333, 7), (999_983, 365)])
@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_line_of_more_units_than_a_product_holds_exactly_is_told_alike(
    client: Any, algorithm: Callable[..., Limit], amount: int, days: int
) -> None:
    """Some million units of a long period: what stands before a job, times the period, is more than 2**53."""
    if algorithm is FixedWindow:
        days = 7
    amount = min(amount, 100_000) if algorithm is SlidingLog else amount
    limit = algorithm("x", f"{amount}/{days}d", **({"burst": amount} if algorithm is TokenBucket else {}))
    kept, reference, rnd = rule(limit), Reference(), random.Random(7)
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(limit.amount), limit.amount))], Caller.JOB)]
    for number in range(300):
        cost = 1 if number % 3 else rnd.randint(1, limit.amount)
        caller = rnd.choice([Caller.JOB, Caller.JOB, Caller.GUEST])
        steps.append(reference.ask(NOW_US + number, [(kept, claim_of(kept.bind(cost), cost))], caller))
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_line_behind_a_debt_is_told_alike_where_no_double_holds_its_time(client: Any) -> None:
    """Some hundred jobs of one unit: so many periods of an odd number of microseconds are more than 2**53."""
    limit = SlidingWindow("x", (7, timedelta(days=365, microseconds=1)))
    kept, reference = rule(limit), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(limit.capacity), limit.capacity))], Caller.JOB)]
    steps.append(reference.settle(NOW_US, [Correction(kept.bucket, kept.bind(1), NOW_US, 10)]))
    steps += [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB) for _ in range(500)]
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_line_of_a_great_rate_is_told_alike_where_no_double_holds_its_time(client: Any) -> None:
    """The time of 301 units, as a fraction, is just above a whole microsecond, and in doubles that microsecond."""
    over_us, amount = 31_000_000_001_701, 291_593_750_016
    assert 301 * over_us % amount == 1
    assert int(301.0 * over_us) < 301 * over_us
    limit = TokenBucket("x", (amount, timedelta(microseconds=over_us)), burst=1)
    kept, reference = rule(limit), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB) for _ in range(305)]
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize(("burst", "grace_us"), [(7, GRACE_US), (300, 2 * GRACE_US)], ids=["units", "batches"])
def test_dead_line_is_set_aside_alike(client: Any, burst: int, grace_us: int) -> None:
    """Where no job comes back, more are set aside each time, up to a bound: as many units as lie there, or a batch."""
    kept, reference = rule(TokenBucket("x", f"{burst}/minute", burst=burst)), Reference()
    asked, now_us = [(kept, claim_of(kept.bind(1)))], NOW_US
    steps = [reference.ask(now_us, [(kept, claim_of(kept.bind(burst), burst))], Caller.JOB)]
    steps += [reference.ask(now_us, asked, Caller.JOB, grace_us=grace_us) for _ in range(1500)]
    now_us += 60_000_000
    while (line := reference.line(kept)) and len(line.jobs) > 10:
        now_us += grace_us
        steps.append(reference.ask(now_us, asked, Caller.JOB, max_wait_us=0, grace_us=grace_us))
    assert len(steps) < 1600
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_no_job_is_told_an_instant_beyond_a_hundred_years(client: Any) -> None:
    """After a change to a far slower rate, what waits before a job would take longer than any number counts."""
    fast = rule(TokenBucket("x", "2000/s", burst=2000))
    slow, reference = Rule(TokenBucket("x", "1/d"), fast.zone, fast.bucket), Reference()
    steps = [reference.ask(NOW_US, [(fast, claim_of(fast.bind(2000), 2000))], Caller.JOB) for _ in range(50)]
    steps.append(reference.ask(NOW_US, [(slow, claim_of(slow.bind(1)))], Caller.JOB))
    assert isinstance(steps[-1].reply, list)
    assert steps[-1].reply[4] == NOW_US + FURTHEST_US
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_no_job_of_a_long_line_is_told_an_instant_beyond_a_hundred_years(client: Any) -> None:
    """Also where no rate has changed: of a unit a year, all jobs after the hundredth are told the same instant."""
    kept, reference = rule(TokenBucket("x", "1/366d", burst=1)), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB) for _ in range(103)]
    told_us = [step.reply[4] for step in steps if isinstance(step.reply, list)]
    assert [at_us == NOW_US + FURTHEST_US for at_us in told_us] == [False] * 100 + [True] * 3
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_due_job_far_behind_passes_where_units_lie_alike(client: Any) -> None:
    """Where a unit that no job takes is lost, a job that is due takes it, and those before it have lost it."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    asked, places, steps = [(kept, claim_of(kept.bind(1)))], list[Sequence[Place | None]](), list[Step]()
    for _ in range(13):
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=60_000_000))
        places.append(reference.places)
    last = places[12][0]
    assert last is not None
    for number, now_us in (12, last.due_us), (10, last.due_us), (11, NOW_US + 61_000_000):
        if number == 11:  # a job that joins looks what lies there
            steps.append(reference.ask(now_us, asked, Caller.JOB, grace_us=60_000_000))
            line = reference.line(kept)
            assert line is not None
            assert line.low == 1
        steps.append(reference.ask(now_us, asked, Caller.JOB, places[number], grace_us=60_000_000))
    line = reference.line(kept)
    assert line is not None
    assert (line.low, len(line.jobs), reference.seen["allowed"]) == (0, 11, 3)
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_job_that_comes_back_as_it_is_due_is_not_early(client: Any) -> None:
    """If its unit has gone to a job that turned out dearer, the reason is that the limit is exhausted."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=5)), Reference()
    dear, asked = claim_of(kept.bind(5), 5), [(kept, claim_of(kept.bind(1)))]
    steps = [reference.ask(NOW_US, [(kept, dear)], Caller.JOB), reference.ask(NOW_US, asked, Caller.JOB)]
    now_us = NOW_US + 1_000_000
    steps.append(reference.settle(now_us, [Correction(kept.bucket, kept.bind(1), NOW_US, 1_000_000)]))
    for by_us in (0, 999_999):  # the second is early: it comes before the instant that it was told this time
        steps.append(reference.ask(now_us + by_us, asked, Caller.JOB, reference.places))
    reasons = [step.reply[0] for step in steps if isinstance(step.reply, list)]
    assert reasons == [REASONS.index(reason) for reason in ("allowed", "exhausted", "exhausted", "early")]
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_claim_without_a_size_takes_no_place_in_a_line(client: Any) -> None:
    """It only looks, also where jobs wait, and whatever its cost is said to be."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    asked = [(kept, claim_of(kept.bind(1)))]
    steps = [reference.ask(NOW_US, asked, Caller.JOB) for _ in range(2)]
    for places in (), reference.places:
        steps.append(reference.ask(NOW_US, [(kept, claim_of(kept.bind(0)))], Caller.JOB, places))
    assert reference.seen["allowed"] == 3
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_job_deep_in_a_line_of_many_costs_passes_alike(client: Any) -> None:
    """Beyond the first entries of a line, what is before a job is an estimate, and it passes by none."""
    kept, reference, rnd = rule(TokenBucket("x", "6000/minute", burst=200)), Reference(), random.Random(7)
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(200), 200))], Caller.JOB)]
    waiting: list[tuple[StoreClaim, Sequence[Place | None]]] = []
    for number in range(100):
        ask = claim_of(kept.bind(1 + number % 3), 1 + number % 3)
        steps.append(reference.ask(NOW_US, [(kept, ask)], Caller.JOB))
        waiting.append((ask, reference.places))
    for number in range(400):
        ask, places = waiting.pop(rnd.randrange(len(waiting)))
        now_us = NOW_US + 1_000_000 + 5_000 * number
        steps.append(reference.ask(now_us, [(kept, ask)], Caller.JOB, places, 0 if number % 50 == 7 else None))
        if reference.places:
            waiting.append((ask, reference.places))
        if not waiting:
            break
    assert reference.seen["guesses"] > 100
    assert reference.seen["allowed"] > 50
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize("passed", [1, 16, 17])
@pytest.mark.parametrize("late_us", [0, 1])
def test_job_that_left_the_line_comes_in_alike(client: Any, passed: int, late_us: int) -> None:
    """Up to 16 costs behind, and the grace time late, a tenant's job that is not in the line comes in at its place."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=100)), Reference()
    asked = [(kept, claim_of(kept.bind(1), tenant="a"))]
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(100), 100))], Caller.JOB)]
    places: list[Sequence[Place | None]] = []
    for _ in range(20):
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=60_000_000))
        places.append(reference.places)
    own = places[0][0]
    assert own is not None
    steps.append(reference.leave(NOW_US, asked, [own]))
    for number in range(1, passed + 1):
        steps.append(reference.ask(NOW_US + number * 1_000_000, asked, Caller.JOB, places[number], None, 60_000_000))
    assert reference.seen["allowed"] == 1 + passed
    now_us = own.due_us + (60_000_000 + late_us if passed == 1 else 30_000_000)
    steps.append(reference.settle(now_us, [Correction(kept.bucket, kept.bind(1), now_us, 100_000_000)]))
    steps.append(reference.ask(now_us, asked, Caller.JOB, places[0], None, 60_000_000))
    again = reference.places[0]
    assert again is not None
    assert (again.start == own.start) == (passed == 16 or (passed == 1 and late_us == 0))
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_place_among_many_of_one_start_is_found_alike(client: Any) -> None:
    """Tenants that begin at once all start at one tag; one that left comes in before those that came after it."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    asks = [claim_of(kept.bind(1), 1 + number % 2, tenant=f"t{number}") for number in range(40)]
    steps, places = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB)], list[Place | None]()
    for ask in asks:
        steps.append(reference.ask(NOW_US, [(kept, ask)], Caller.JOB))
        places.append(reference.places[0])
    assert len({place.start for place in places if place}) == 1
    gone = [0, 1, 7, 8, 20, 38, 39]
    for number in gone:
        steps.append(reference.leave(NOW_US, [(kept, asks[number])], [places[number]]))
    # Those that left, one of another cost than its entry's, and one whose entry is still there.
    for number, cost in [*((number, 1) for number in gone), (21, 3), (22, 1)]:
        ask = claim_of(kept.bind(1), cost, tenant=f"t{number}")
        for caller in (Caller.PEEK, Caller.JOB):
            steps.append(reference.ask(NOW_US, [(kept, ask)], caller, [places[number]]))
    line = reference.line(kept)
    assert line is not None
    assert [entry.number for entry in line.jobs] == sorted(place.number for place in places if place)
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_faster_rate_in_a_line_gives_its_jobs_no_more_time_alike(client: Any) -> None:
    """A job at a faster rate than those that wait marks the line as of that rate; one at a slower rate does not."""
    slow, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    fast = Rule(TokenBucket("x", "2/s", burst=1), slow.zone, slow.bucket)
    steps = [
        reference.ask(NOW_US + number, [(kept, claim_of(kept.bind(1)))], Caller.JOB)
        for number, kept in enumerate([slow, slow, slow, fast, fast, slow])
    ]
    line = reference.line(slow)
    assert line is not None
    assert (len(line.jobs), line.mark) == (5, fast.bind(1).mark)
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize("before_us", [-2_300_000, -1_000_000, 1_000_000])
def test_tags_at_their_end_begin_a_line_anew(client: Any, before_us: int) -> None:
    """Once a job has passed whose tag is the last, no place is good any more; also after a clock that steps back."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    far, one = claim_of(kept.bind(1), step=2**52 - EMPTY.v), claim_of(kept.bind(1), step=UNIT)
    steps = [reference.ask(NOW_US, [(kept, claim)], Caller.JOB) for claim in (one, far)]
    places: list[Sequence[Place | None]] = [reference.places]
    for _ in range(2):
        steps.append(reference.ask(NOW_US, [(kept, one)], Caller.JOB))
        places.append(reference.places)
    for number in (0, 1):
        steps.append(reference.ask(NOW_US + 1_100_000 * (number + 1), [(kept, one)], Caller.JOB, places[number]))
    assert reference.line(kept).v == 2**52  # type: ignore[union-attr]
    steps.append(reference.ask(NOW_US - before_us, [(kept, one)], Caller.JOB, places[2]))
    line = reference.line(kept)
    assert line is not None
    assert (line.epoch > NOW_US, line.number, len(line.jobs)) == (True, 1, 1)
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_guest_begins_a_line_anew_whose_tags_are_at_their_end(client: Any) -> None:
    """As a job does, where no job waits: the next place that the line gives is its first."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    far, one = claim_of(kept.bind(1), step=2**52 - EMPTY.v), claim_of(kept.bind(1), step=UNIT)
    steps, places = [reference.ask(NOW_US, [(kept, one)], Caller.JOB)], list[Sequence[Place | None]]()
    for claim in (far, one):
        steps.append(reference.ask(NOW_US, [(kept, claim)], Caller.JOB))
        places.append(reference.places)
    for number in (0, 1):
        steps.append(reference.ask(NOW_US + 1_100_000 * (number + 1), [(kept, one)], Caller.JOB, places[number]))
    line = reference.line(kept)
    assert line is not None
    assert (line.v, line.number, len(line.jobs)) == (2**52, 2, 0)
    steps += [reference.ask(NOW_US + 2_200_001, [(kept, one)], Caller.GUEST) for _ in range(2)]
    line = reference.line(kept)
    assert line is not None
    assert (line.epoch > NOW_US, line.v, line.number) == (True, EMPTY.v, 0)
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_guest_stands_behind_no_guests_that_are_further_off_than_a_minute(client: Any) -> None:
    """After some of a great cost, one of a small cost is told its own instant."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=30)), Reference()
    dear, one = claim_of(kept.bind(30)), claim_of(kept.bind(1))
    steps = [reference.ask(NOW_US, [(kept, dear)], Caller.GUEST) for _ in range(5)]
    line = reference.line(kept)
    assert line is not None
    assert line.guest_us == NOW_US + 90_000_000
    steps += [reference.ask(NOW_US, [(kept, one)], Caller.GUEST) for _ in range(2)]
    line = reference.line(kept)
    assert line is not None
    assert line.guest_us == NOW_US + 3_000_000
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_window_that_began_before_the_second_change_of_clocks_is_believed(client: Any) -> None:
    """Clocks that fall back over midnight: the day that had begun before goes on all the same."""
    changes = ((_MIDNIGHT_US - 100 * _HOUR_US, 0), (_MIDNIGHT_US + _HOUR_US // 2, -_HOUR_US))
    kept, reference = rule(FixedWindow("x", "2/day"), Zone(-_HOUR_US, changes)), Reference()
    asked, past_us = [(kept, claim_of(kept.bind(1)))], changes[1][0]
    steps = [reference.ask(now_us, asked, Caller.JOB) for now_us in (past_us - 1, past_us + 1, past_us + 2)]
    reasons = [step.reply[0] for step in steps if isinstance(step.reply, list)]
    assert reasons == [REASONS.index(reason) for reason in ("allowed", "allowed", "exhausted")]
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize("since_us", [0, 89_000_000, 91_000_000], ids=["at once", "almost stale", "stale"])
def test_leases_of_two_lengths_are_in_one_set(client: Any, since_us: int) -> None:
    """Defined anew with a shorter lease, a limit believes the longer ones of those who hold its slots already."""
    longer, shorter = rule(Concurrency("x", 1, lease=90)), rule(Concurrency("x", 1, lease=1))
    assert longer.bucket == shorter.bucket
    reference, now_us = Reference(), NOW_US - since_us
    asked = [(longer, "job%3A1#0"), (shorter, "job%3A2#0"), (shorter, "job%3A3#0")]
    steps = [reference.ask(NOW_US, [(asked[0][0], claim_of(longer.bind(1, asked[0][1])))], Caller.JOB)]
    for each, holder in asked[1:]:
        steps.append(reference.ask(now_us, [(each, claim_of(each.bind(1, holder)))], Caller.JOB))
    renewed = [Lease(shorter.bucket, shorter.bind(1, "job%3A1#0"), NOW_US)]
    steps.append(reference.leased(now_us, "renew", renewed))
    asks = [(shorter, claim_of(shorter.bind(1, "job%3A2#0")))]
    steps += [reference.ask(now_us - by_us, asks, Caller.JOB) for by_us in (0, 61_000_000, 140_000_000)]
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_window_that_a_greater_rate_wrote_counts_alike(client: Any) -> None:
    """A debt at a hundred times the rate: what counts of it is exact, though one product would not be."""
    greater, week_us = rule(SlidingWindow("x", "20000000/7d")), 7 * 24 * _HOUR_US
    smaller = Rule(SlidingWindow("x", "200000/7d"), greater.zone, greater.bucket)
    reference, begin_us = Reference(), NOW_US // week_us * week_us
    steps = [reference.ask(begin_us - week_us, [(greater, claim_of(greater.bind(513_002)))], Caller.JOB)]
    for _ in range(20):
        debt = Correction(greater.bucket, greater.bind(1), begin_us, 10_000_019)
        steps.append(reference.settle(begin_us, [debt]))
        for at_us in (begin_us, begin_us + week_us // 3, begin_us + week_us + 1):
            steps.append(reference.ask(at_us, [(smaller, claim_of(smaller.bind(1)))], Caller.PEEK))
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_correction_by_nothing_writes_no_log(client: Any) -> None:
    """What turned out neither dearer nor cheaper is not corrected."""
    kept, reference = rule(SlidingLog("x", "3/s")), Reference()
    charge = kept.bind(1)
    steps = [reference.ask(NOW_US, [(kept, claim_of(charge))], Caller.JOB)]
    steps.append(reference.settle(NOW_US, [Correction(kept.bucket, charge, NOW_US, 0)]))
    assert steps[-1].reply == 0
    _check(client, steps, _Shas(client))
    client.flushdb()


def test_changes_of_clocks_to_come_make_no_window_begin_earlier(client: Any) -> None:
    """A window that a wrong clock left half an hour ahead is not believed, though clocks will be set twice later on."""
    hour_us = NOW_US // _HOUR_US * _HOUR_US
    zone = Zone(0, ((NOW_US + 30 * _HOUR_US, _HOUR_US), (NOW_US + 60 * _HOUR_US, 0)))
    kept, reference = rule(FixedWindow("x", "4/hour"), zone), Reference()
    ask = (kept, claim_of(kept.bind(1)))
    steps = [reference.ask(now_us, [ask], Caller.JOB) for now_us in (hour_us, hour_us - _HOUR_US // 2)]
    assert isinstance(steps[-1].reply, list)
    assert steps[-1].reply[0] == REASONS.index("exhausted")
    _check(client, steps, _Shas(client))
    client.flushdb()


@pytest.mark.parametrize("rate", ["1/100000s", "9/366d", f"{10**12 - 1}/366d", f"{10**12 - 1}/day"])
@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_long_periods_are_written_in_full(client: Any, algorithm: type[TokenBucket], rate: str) -> None:
    """Periods of 100 000 seconds to a year, huge amounts and long lines are stored to the microsecond, in digits."""
    if algorithm is FixedWindow:
        rate = rate.split("/")[0] + "/day"
    if algorithm is SlidingLog:
        rate = "9/" + rate.split("/")[1]
    options = {"burst": min(10, int(rate.split("/")[0]))} if algorithm is TokenBucket else {}
    kept, steps, reference = rule(algorithm("x", rate, **options)), [], Reference()
    charge = kept.bind(kept.limit.capacity)
    ask = claim_of(charge, kept.limit.capacity)
    for now_us in (NOW_US, NOW_US, NOW_US + 1, NOW_US + kept.limit.period_us - 1, NOW_US + 2 * kept.limit.period_us):
        steps.append(reference.ask(now_us, [(kept, ask)], Caller.JOB))
        steps.append(reference.settle(now_us, [Correction(kept.bucket, charge, now_us, 7)]))
    _check(client, steps, _Shas(client, STRICT))
    client.flushdb()


@pytest.mark.parametrize("rate", [f"{10**12 - 1}/day", f"{10**12 - 1}/366d", f"{10**9 + 7}/s", "12345/day"])
def test_sliding_window_is_exact_in_deepest_debt(client: Any, rate: str) -> None:
    """However far settled costs drive two windows in a row beyond their amount, the load is exact to the unit."""
    kept, reference, steps = rule(SlidingWindow("x", rate)), Reference(), []
    period_us, amount = kept.limit.period_us, kept.limit.amount
    charge = kept.bind(1)
    for now_us in (NOW_US // period_us * period_us - 1, NOW_US // period_us * period_us, NOW_US):
        for by in (60 * amount - 7, 3, 10**18, -1):
            steps.append(reference.settle(now_us, [Correction(kept.bucket, charge, now_us, by)]))
            steps.append(reference.ask(now_us, [(kept, claim_of(charge))], Caller.PEEK))
    state = reference.kept[kept.bucket]
    assert isinstance(state, Counts)
    assert state.before + state.used > 118 * amount
    _check(client, steps, _Shas(client, STRICT))
    client.flushdb()


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket("x", "1/minute", burst=5),
        LeakyBucket("x", "1/hour"),
        FixedWindow("x", "5/day"),
        SlidingWindow("x", "5/366d"),
        SlidingLog("x", "5/hour"),
    ],
    ids=[name for name in ALGORITHMS if not name.endswith("concurrency")],
)
def test_server_clock_and_memory_clock_agree(
    redis_url: str, limit: TokenBucket | LeakyBucket | FixedWindow | SlidingWindow | SlidingLog
) -> None:
    """With the time left to each store's own clock, both pass what is there, deny the rest, and tell the same waits."""
    kept = rule(limit)
    charge, whole = kept.bind(1), kept.bind(limit.capacity)
    claim = StoreClaim(kept.bucket, charge)
    shared = RedisStore(redis_url, timeout=5)
    told: list[list[float]] = []
    for store in (MemoryStore(), shared):
        verdicts = [store.acquire(Request([claim], Caller.JOB)) for _ in range(limit.capacity + 2)]
        assert [v.reason.value for v in verdicts] == ["allowed"] * limit.capacity + ["exhausted"] * 2
        told.append([])
        for v in verdicts:
            instants_us = (v.due_us, v.retry_us, *(use.full_us for use in v.uses if use))
            told[-1] += [(at_us - v.now_us) / 1e6 for at_us in instants_us]
        assert all(wait_s > 0 for wait_s in told[-1][-6:])
        assert any(v.now_us % 1_000_000 for v in verdicts), "the clock tells parts of a second"
        store.settle([Correction(claim.bucket, charge, verdicts[0].now_us, -whole.size)])
        assert store.acquire(Request([claim], Caller.JOB, verdicts[-2].places)).allowed
    assert told[0] == pytest.approx(told[1], abs=5)
    shared.close()

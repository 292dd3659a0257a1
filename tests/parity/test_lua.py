"""The script and the reference are the same function: every answer, every stored byte, every time to live."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import throttlekit_lua
from parity.histories import NOW_US, History, Step
from throttlekit._core.acquire import Ask, Caller, Place, State, acquire
from throttlekit._core.gcra import Bucket
from throttlekit._core.line import spacing_us
from throttlekit.stores import Claim, MemoryStore, Request
from throttlekit.stores.redis import RedisStore

SCRIPT = throttlekit_lua.read("acquire")
REASONS = {"allowed": 0, "exhausted": 1, "in line": 2, "early": 3}

LONG_RUN = 100_000
HISTORY = 250

# Around the script: every argument of redis.call must be text already, and no number in it in exponent form.
STRICT = """
local server = redis
local redis = {call = function(...)
  for i = 1, select('#', ...) do
    local argument = select(i, ...)
    if type(argument) ~= 'string' then error('not text: ' .. tostring(argument)) end
    if i > 2 and string.find(argument, '[^%d ]') and argument ~= 'PX' then error('not whole: ' .. argument) end
  end
  return server.call(...)
end}
"""


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


def _arguments(step: Step) -> list[Any]:
    place = (0, 0) if step.place is None else (step.place.claim + 1, step.place.slot_us)
    patience = "" if step.patience_us is None else step.patience_us
    arguments = [len(step.keys), *step.keys, step.now_us, step.caller.value, *place, patience]
    for ask in step.asks:
        arguments += (ask.charge.charge_us, ask.charge.headroom_us, ask.charge.capacity_us, ask.spacing_us)
    return arguments


def _reply(step: Step) -> list[int]:
    assert step.verdict is not None
    v = step.verdict
    tats = [-1 if tat_us is None else tat_us for tat_us in v.tats_us]
    return [REASONS[v.reason.value], v.claim + 1, v.now_us, v.retry_us, v.slot_us, *tats]


def _check(client: Any, steps: Sequence[Step], command: tuple[str, str]) -> None:
    """
    Run *steps* in one MULTI/EXEC and compare.

    Keys expire on the server's clock while the test's stands still: so each key that is written loses
    its time to live in the same transaction, after it has been read.
    """
    pipeline = client.pipeline(transaction=True)
    for step in steps:
        if step.verdict is None:
            pipeline.execute_command("DEL", *step.keys)
            continue
        pipeline.execute_command(*command, *_arguments(step))
        pipeline.execute_command("MGET", *step.keys)
        for key in step.written:
            pipeline.execute_command("PTTL", key)
            pipeline.execute_command("PERSIST", key)
    replies = iter(pipeline.execute())
    for number, step in enumerate(steps):
        reply = next(replies)
        if step.verdict is None:
            continue
        where = f"step {number}: {step}"
        assert reply == _reply(step), where
        assert next(replies) == list(step.stored), where
        for key, expiry_ms in step.written.items():
            assert expiry_ms - 1000 < next(replies) <= expiry_ms, f"{key}, {where}"
            assert next(replies) == 1, f"{key} was written without a time to live, {where}"


def test_long_random_histories(client: Any) -> None:
    """Over a hundred thousand random steps, the script answers and stores exactly what the reference does."""
    sha = client.script_load(SCRIPT)
    seen: dict[str, int] = {}
    count = 0
    while count < LONG_RUN:
        seed = random.getrandbits(64)
        steps = list(History(random.Random(seed)).steps(HISTORY))
        client.flushdb()
        try:
            _check(client, steps, ("EVALSHA", sha))
        except AssertionError as error:
            raise AssertionError(f"history {seed}, {error}") from None
        for step in steps:
            if step.verdict is not None:
                count += 1
                seen[step.verdict.reason.value] = seen.get(step.verdict.reason.value, 0) + 1
    client.flushdb()
    assert count >= LONG_RUN
    assert all(seen.get(reason, 0) > LONG_RUN // 50 for reason in REASONS), seen


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1, 40))
def test_every_number_is_written_in_full(client: Any, seed: int, length: int) -> None:
    """Every argument that the script hands to the server is text, and every number in it is plain digits."""
    client.flushdb()
    _check(client, list(History(random.Random(seed)).steps(length)), ("EVAL", STRICT + SCRIPT))
    client.flushdb()


@st.composite
def _story(draw: st.DrawFn) -> list[Step]:
    """A short history over one or two limits that Hypothesis can shrink."""
    buckets = draw(
        st.lists(
            st.builds(
                Bucket.of,
                st.integers(1, 10**6),
                st.sampled_from([1_000_000, 10_000_000, 60_000_000, 86_400_000_000, 100_000_000_000]),
                st.integers(1, 20),
            ),
            min_size=1,
            max_size=2,
        )
    )
    keys = [f"{{x}}{i}{kind}" for i in range(len(buckets)) for kind in ("bucket", "line")]
    states: list[State] = [State() for _ in buckets]
    now_us, steps = NOW_US, []
    slots = [NOW_US]
    for _ in range(draw(st.integers(1, 12))):
        now_us = max(
            1,
            draw(
                st.one_of(
                    st.just(now_us),
                    st.sampled_from(slots),
                    st.integers(-6_000_000, 6_000_000).map(now_us.__add__),
                    st.integers(-(10**12), 10**12).map(now_us.__add__),
                )
            ),
        )
        asks = []
        for bucket in buckets:
            charge = bucket.charge(draw(st.integers(0, bucket.burst)))
            asks.append(Ask(charge, spacing_us(charge, draw(st.sampled_from([0, 50_000])))))
        caller = draw(st.sampled_from(Caller))
        place = draw(
            st.none()
            | st.builds(Place, st.integers(0, len(buckets) - 1), st.sampled_from(slots) | st.integers(0, 2 * NOW_US))
        )
        verdict, after = acquire(asks, states, now_us, caller=caller, place=place)
        slots.append(verdict.slot_us)
        states = list(after)
        stored: list[bytes | None] = []
        for state in states:
            stored.append(None if state.tat_us is None else str(state.tat_us).encode())
            line = state.line
            stored.append(None if line is None else f"{line.tail_us} {line.late_us} {line.guest_us}".encode())
        steps.append(Step(now_us, keys, asks, caller, place, None, verdict, stored))
    return steps


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_story())
def test_short_stories(client: Any, steps: list[Step]) -> None:
    """The same, over short histories that shrink to the smallest disagreement."""
    client.flushdb()
    _check(client, steps, ("EVAL", SCRIPT))
    client.flushdb()


@pytest.mark.parametrize(
    "bucket",
    [Bucket.of(1, 100_000_000_000, 1), Bucket.of(1, 366 * 86_400_000_000, 9), Bucket.of(1, 10**12, 10**2)],
    ids=["100000 s", "a year", "burst of years"],
)
def test_long_periods_are_written_in_full(client: Any, bucket: Bucket) -> None:
    """Periods of 100 000 seconds to a year, full bursts and long lines are stored to the microsecond, in digits."""
    charge = bucket.charge(bucket.burst)
    ask, keys, state, steps = Ask(charge, charge.charge_us), ("{x}b", "{x}l"), State(), []
    for _ in range(5):
        verdict, (state,) = acquire([ask], [state], NOW_US, caller=Caller.JOB)
        line = state.line
        stored = [
            str(state.tat_us).encode(),
            None if line is None else f"{line.tail_us} {line.late_us} {line.guest_us}".encode(),
        ]
        steps.append(Step(NOW_US, keys, [ask], Caller.JOB, None, None, verdict, stored))
    _check(client, steps, ("EVAL", STRICT + SCRIPT))
    client.flushdb()


def test_server_clock_and_memory_clock_agree(redis_url: str) -> None:
    """With the time left to each store's own clock, both pass the burst, deny the next, and tell the same waits."""
    charge = Bucket.of(1, 60_000_000, 5).charge(1)
    claim = Claim("tk1:{x}:bucket", "tk1:{x}:line", Ask(charge, charge.charge_us))
    shared = RedisStore(redis_url, timeout=5)
    for store in (MemoryStore(), shared):
        verdicts = [store.acquire(Request([claim], Caller.JOB)) for _ in range(7)]
        assert [v.reason.value for v in verdicts] == ["allowed"] * 5 + ["exhausted"] * 2
        waits_s = [(v.slot_us - v.now_us) / 1e6 for v in verdicts[5:]]
        assert waits_s == pytest.approx([60, 120], abs=2)
        assert all(
            tat_us is not None and 290 < (tat_us - v.now_us) / 1e6 <= 300 for v in verdicts[5:] for tat_us in v.tats_us
        )
    shared.close()

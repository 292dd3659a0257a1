"""How tenants divided a limit, on a real server: the same for every reader, known or not, and bounded."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from throttlekit import Job, Limiter, Share, TokenBucket
from throttlekit._core.storage_keys import limit_id
from throttlekit.fleet.history import RANGES, Moment, bars_of, report_history
from throttlekit.fleet.replies import time_of
from throttlekit.fleet.shares import SHARES, SharedStep, Taken, report_shares, shared_steps, shares_name
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore

BEGIN = 120_000 * 14_400
LONG = TokenBucket("long", "100/minute", burst=7, share=Share("{tenant}"))
ID = limit_id(LONG.name, LONG.fingerprint)


def _add(store: RedisStore, now: float, *, most: int = 50, **added: Taken) -> None:
    """Add to both histories at a virtual time of the store."""
    moments = {id: Moment(sum(each.units.values()) + each.others) for id, each in added.items()}
    for commands, args in ((report_history(moments), 3), (report_shares(added), 2)):
        for verb, script, *rest in commands:
            at_now = str(script).replace("redis.call('TIME')[1]", f"ARGV[{args}]")
            at_now = at_now.replace("MOST = 50\n", f"MOST = {most}\n")
            store.commands([(verb, at_now, *rest, round(now))])


def _steps(store: RedisStore, now: float, name: str = "15m", id: str = "a") -> list[SharedStep]:
    return shared_steps(store, id, bars_of(store, [id], now, RANGES[name])[id], RANGES[name])


def test_a_report_is_in_the_history(store: RedisStore) -> None:
    """The units of each tenant are in the last bar of every range, with the largest number first."""
    with contextlib.closing(Limiter(store)) as limiter:
        assert limiter.fleet is not None
        for number, tenant in enumerate(["bee", "acme", "a b", "acme", "bee", "acme", "", *["late"] * 5]):
            limiter.acquire(LONG, job=Job(id=f"job-{number}", kwargs={"tenant": tenant}))
        limiter.fleet.activity.report()
        for name in RANGES:
            known = [each for each in _steps(store, time_of(store), name, ID) if each.units]
            assert [(each.units, each.others) for each in known] == [({"acme": 3, "bee": 2, "a%20b": 1, "": 1}, 0)]


def test_a_limit_without_shares_stores_nothing(store: RedisStore, client: Any) -> None:
    """For a limit without shares, no command is sent, and no key is stored."""
    with contextlib.closing(Limiter(store)) as limiter:
        assert limiter.fleet is not None
        limiter.acquire(TokenBucket("plain", "100/minute"), job=Job(id="1"))
        limiter.fleet.activity.report()
    assert client.exists(SHARES) == 0
    assert [*client.scan_iter("tk1:{fleet}:shares*")] == []
    assert report_shares({}) == []


def test_a_step_names_the_eight_tenants_with_most_units(store: RedisStore) -> None:
    """
    A step names the eight tenants with most units and has the sum of the others, both while it runs and after it has
    ended.
    """
    for second in range(20):
        _add(store, BEGIN + second, a=Taken({f"t{n}": n for n in range(1, 21)}, others=3))
    names = {f"t{n}": 20 * n for n in range(20, 12, -1)}
    others = 20 * (3 + sum(range(1, 13)))
    assert _steps(store, BEGIN + 30)[-1] == SharedStep(BEGIN, names, others)
    _add(store, BEGIN + 61, a=Taken({"t1": 1}))
    assert _steps(store, BEGIN + 62)[-2:] == [SharedStep(BEGIN, names, others), SharedStep(BEGIN + 60, {"t1": 1})]
    assert list(_steps(store, BEGIN + 62)[-2].units or ()) == list(names)


def test_unknown_minutes_are_not_zero(store: RedisStore) -> None:
    """A minute in which a process reported and no tenant got a unit is empty. Any other minute is not known."""
    _add(store, BEGIN, b=Taken({"x": 1}))
    _add(store, BEGIN + 60, a=Taken({"x": 3}))
    _add(store, BEGIN + 120, b=Taken({"x": 1}))
    _add(store, BEGIN + 240, a=Taken({"y": 2}))
    steps = _steps(store, BEGIN + 240)
    assert [each.units for each in steps[-5:]] == [None, {"x": 3}, {}, None, {"y": 2}]
    assert [each.units for each in steps[:-5]] == [None] * 10
    assert [each.units for each in _steps(store, BEGIN + 240, id="none")] == [None] * 15


@pytest.mark.parametrize(("every", "for_s"), [(601, 86_400 + 7_000), (61, 15_000)])
def test_a_step_that_has_ended_never_changes(store: RedisStore, every: int, for_s: int) -> None:
    """
    During two rounds of the rings of a day, with more tenants than are named, each reading of an ended step is the
    same, and its sum is correct.
    """
    chance, ended, sums = random.Random(7), dict[tuple[str, int], SharedStep](), Counter[tuple[str, int]]()

    def read(now: int) -> None:
        for name in RANGES:
            for step in _steps(store, now, name)[:-1]:
                if step.units is not None:
                    assert ended.setdefault((name, step.at), step) == step

    for now in range(BEGIN, BEGIN + for_s, every):
        read(now)  # the last minute is not yet added to the longer steps
        taken = Taken({f"t{chance.randrange(60)}": chance.randrange(1, 9) for _ in range(20)}, now % 3)
        _add(store, now, a=taken)
        for name, of in RANGES.items():
            sums[name, now // of.bar_s * of.bar_s] += sum(taken.units.values()) + taken.others
        if now % 4 == 0:
            read(now)
    for key, step in ended.items():
        assert step.units is not None
        assert len(step.units) <= 8
        assert sum(step.units.values()) + step.others == sums[key]
    assert len(ended) > 150


def test_the_heaviest_of_many_tenants_are_named(store: RedisStore) -> None:
    """A tenant that begins late among hundreds is named, because it has more than 1/32 of all units of the step."""
    total = late = 0
    for second in range(0, 14_400, 120):
        light = {f"t{(second // 120 * 20 + n) % 300}": 6 for n in range(19)}
        heavy = {"heavy": 60} if second > 7_200 else {}
        _add(store, BEGIN + second, a=Taken({**light, **heavy}))
        total, late = total + sum(light.values()) + sum(heavy.values()), late + sum(heavy.values())
    (step,) = _steps(store, BEGIN + 14_399, "30d")[-1:]
    assert late > total / 32
    assert step.units is not None
    assert late - total / 32 <= step.units["heavy"] <= late
    assert next(iter(step.units)) == "heavy"
    assert sum(step.units.values()) + step.others == total


def test_the_history_is_bounded(store: RedisStore, client: Any) -> None:
    """A new limit replaces the one without reports for longest, if that is at least an hour."""
    for number in range(5):
        _add(store, BEGIN + number, most=4, **{f"limit-{number}": Taken({"x": 1})})
    kept = [f"limit-{number}" for number in range(4)]
    assert [id for id in [*kept, "limit-4"] if client.exists(shares_name(id))] == kept
    _add(store, BEGIN + 3_700, most=4, **{"limit-5": Taken({"x": 1})})
    kept = ["limit-1", "limit-2", "limit-3", "limit-5"]
    assert client.zrange(SHARES, 0, -1) == [shares_name(id).encode() for id in kept]
    assert all(2_591_000 < client.ttl(key) <= 2_592_000 for key in [SHARES, *map(shares_name, kept)])


@pytest.mark.parametrize(("longest", "most_bytes"), [(10, 90_000), (120, 520_000)])
def test_a_full_history_has_a_bounded_size(store: RedisStore, client: Any, longest: int, most_bytes: int) -> None:
    """A full history has 8 tenants in each of 387 records, with names of a usual length or of the maximum length."""
    names = [f"{n}".rjust(longest, "x") for n in range(8)]
    full = " ".join(f"{12_345 + n}:{name}" for n, name in enumerate(names))
    sizes = {60: 61, 600: 145, 14_400: 181}
    for seconds, size in sizes.items():
        for n in range(BEGIN // seconds - size, BEGIN // seconds):
            client.hset(shares_name("a"), f"{seconds}:{n % size}", f"{n} 1234567 {full}")
    _add(store, BEGIN, a=Taken(dict.fromkeys(names, 12_345)))
    assert client.hlen(shares_name("a")) == sum(sizes.values()) + 2
    used = client.memory_usage(shares_name("a"), samples=0)
    print(f"{used} bytes")
    assert used < most_bytes


def test_the_history_on_a_cluster(cluster_store: RedisClusterStore) -> None:
    """On a cluster, all keys of both histories are in one hash slot."""
    store, both = cluster_store, {"a": Taken({"x": 3}), "b": Taken({"y": 4}, 2)}
    store.commands([*report_history({"a": Moment(3), "b": Moment(6)}), *report_shares(both)])
    of = RANGES["1h"]
    bars = bars_of(store, [*both], time_of(store), of)
    assert [sum(bar.units or 0 for bar in bars[id]) for id in both] == [3, 6]
    found = [next(each for each in shared_steps(store, id, bars[id], of) if each.units) for id in both]
    assert [(each.units, each.others) for each in found] == [({"x": 3}, 0), ({"y": 4}, 2)]

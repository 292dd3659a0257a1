"""The history of each limit, on a real server: it is the same for every reader, is known or not, and is bounded."""

from __future__ import annotations

import contextlib
from typing import Any

from throttlekit import Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import limit_id
from throttlekit.fleet.history import (
    CHANGED,
    HISTORIES,
    RANGES,
    Bar,
    Moment,
    bars_of,
    history_name,
    report_history,
)
from throttlekit.fleet.replies import time_of
from throttlekit.stores.redis import RedisStore

BEGIN = 1_000_000 * 3_600
LONG = TokenBucket("long", "100/minute", burst=3)
ID = limit_id(LONG.name, LONG.fingerprint)


def _add(store: RedisStore, now: float, *, by_reader: bool = False, most: int = 200, **added: Moment) -> None:
    """Add to the history at a virtual time of the store."""
    ((verb, script, *rest),) = report_history(added, by_reader=by_reader)
    assert "BYTES, MOST = 1440, 720, 32, 200\n" in str(script)
    script = str(script).replace("redis.call('TIME')[1]", "ARGV[3]").replace("32, 200\n", f"32, {most}\n")
    store.commands([(verb, script, *rest, round(now))])


def _bars(store: RedisStore, now: float, name: str = "15m", id: str = "a") -> list[Bar]:
    return bars_of(store, [id], now, RANGES[name])[id]


def test_a_report_is_in_the_history(store: RedisStore) -> None:
    """The decisions of a process are in a bar of every range: units, grants, arrivals, denials, 429s and the rate."""
    with contextlib.closing(Limiter(store)) as limiter:
        assert limiter.fleet is not None
        for number in range(5):
            limiter.acquire(LONG, job=Job(id=f"job-{number}"))
        limiter.acquire(LONG, job=Job(id="job-4"))
        limiter.fleet.count_429(LONG)
        limiter.fleet.activity.report()
        for name in RANGES:
            bars = _bars(store, time_of(store), name, ID)
            known = [each for each in bars if each.units is not None]
            sums = [sum(getattr(each, field) for each in known) for field in ("units", "granted", "arrived", "denied")]
            assert sums == [3, 3, 5, 3]
            assert sum(each.partner_429s or 0 for each in known) == 1
            assert 100_000 in {each.rate for each in known}


def test_processes_add_up_in_the_step_of_the_store(store: RedisStore) -> None:
    """
    Counts of processes are added, and the maximum is kept of the waits and of the waiting jobs. Two different rates
    mean that the rate has changed.
    """
    _add(store, BEGIN, a=Moment(3, 2, 5, 4, 1, 1, 60_000, 7))
    _add(store, BEGIN + 59, a=Moment(4, 1, 0, 2, 0, 0, 60_000, 3))
    _add(store, BEGIN + 60, a=Moment(1, 1, 1, 0, 0, 0, 60_000, 0))
    _add(store, BEGIN + 61, a=Moment(1, 1, 1, 0, 0, 0, 90_000, 0))
    for jobs in (4, 9, 2):
        _add(store, BEGIN + 30, by_reader=True, a=Moment(waiting=jobs))
    first, second = _bars(store, BEGIN + 90)[-2:]
    assert first == Bar(BEGIN, 7, 3, 5, 6, 1, 1, 60_000, 0.7, 9)
    assert second == Bar(BEGIN + 60, 2, 2, 2, 0, 0, 0, None, 0.0, None)
    assert _bars(store, BEGIN + 90, "30d")[-1].units == 9


def test_unknown_minutes_are_not_zero(store: RedisStore) -> None:
    """A minute in which a process reported and the limit was not used is 0. Any other minute is not known."""
    _add(store, BEGIN, a=Moment(units=3))
    _add(store, BEGIN + 60)
    _add(store, BEGIN + 180, by_reader=True, a=Moment(waiting=6))
    _add(store, BEGIN + 240, other=Moment(units=1))
    _add(store, BEGIN + 240, by_reader=True, a=Moment(waiting=0))
    assert [each.units for each in _bars(store, BEGIN + 240, id="other")] == [None] * 14 + [1]
    assert [each.units for each in _bars(store, BEGIN + 240, id="none")] == [None] * 15
    bars = _bars(store, BEGIN + 240)
    assert [each.units for each in bars[-5:]] == [3, 0, None, None, 0]
    assert [each.units for each in bars[:-5]] == [None] * 10
    assert [each.waiting for each in bars[-5:]] == [None, None, None, 6, 0]


def test_a_step_that_has_ended_never_changes(store: RedisStore) -> None:
    """During two rounds of the ring, each minute is the same for 24 hours, and each hour for 30 days."""
    ended: dict[tuple[str, int], Bar] = {}
    for now in range(BEGIN, BEGIN + 2 * 86_400 + 7_000, 601):
        _add(store, now, a=Moment(units=now % 7 + 1))
        for name in RANGES:
            for bar in _bars(store, now, name)[:-1]:
                if bar.units is not None:
                    assert ended.setdefault((name, bar.at), bar) == bar
    for name in ("24h", "30d"):
        width = RANGES[name].bar_s
        for (of, at), bar in ended.items():
            if of == name:
                every = range(BEGIN, BEGIN + 2 * 86_400 + 7_000, 601)
                assert bar.units == sum(now % 7 + 1 for now in every if at <= now < at + width)


def test_large_numbers_do_not_overflow(store: RedisStore) -> None:
    """A field keeps its maximum if a sum is larger; a correction below zero leaves zero."""
    huge = Moment(2**50, 2**40, 2**40, 2**40, 2**40, 2**10, 2**50, 2**40, 2**40)
    _add(store, BEGIN, a=huge, b=Moment(units=-5), c=Moment(rate=CHANGED + 5))
    _add(store, BEGIN, a=huge)
    (bar,) = _bars(store, BEGIN)[-1:]
    most = (2**40 - 1, 2**28 - 1, 2**28 - 1, 2**28 - 1, 2**24 - 1, 2**8 - 1)
    assert (bar.units, bar.granted, bar.arrived, bar.denied, bar.paused, bar.partner_429s) == most
    assert (bar.rate, bar.longest_wait, bar.waiting) == (CHANGED - 1, (2**24 - 1) / 10, 2**24 - 2)
    assert _bars(store, BEGIN, id="b")[-1].units == 0


def test_the_history_is_bounded(store: RedisStore, client: Any) -> None:
    """A limit takes 69 124 bytes. A new limit replaces the one without reports for longest, if that is an hour."""
    for number in range(5):
        _add(store, BEGIN + number, most=4, **{f"limit-{number}": Moment(units=1)})
    kept = [f"limit-{number}" for number in range(4)]
    assert [id for id in [*kept, "limit-4"] if client.exists(history_name(id))] == kept
    _add(store, BEGIN + 3_700, most=4, **{"limit-5": Moment(units=1)})
    kept = ["limit-1", "limit-2", "limit-3", "limit-5"]
    assert client.zrange(HISTORIES[0], 0, -1) == [history_name(id).encode() for id in kept]
    keys = [*client.scan_iter("tk1:{fleet}:timeline:*")]
    assert {client.strlen(key) for key in keys} == {69_124}
    assert len(keys) == 4
    assert all(2_591_000 < client.ttl(key) <= 2_592_000 for key in [*keys, *HISTORIES])
    assert client.memory_usage(history_name("limit-5")) < 90_000


def test_a_history_of_another_format_is_no_error(store: RedisStore, client: Any) -> None:
    """A string that is too short is read as not known."""
    client.set(HISTORIES[1], b"\xff" * 40, ex=60)
    client.set(history_name("a"), b"\xff" * 40, ex=60)
    assert [each.units for each in _bars(store, BEGIN)] == [None] * 15

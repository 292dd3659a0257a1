"""
Two pages of one store, each a process of its own, read once a second for three minutes of a flood.

The test takes three minutes, mostly waits, and needs very little processor time. It is among the first files of a run,
so that other tests run in the meantime.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.servers.processes import patient
from support.waiting import wait_until
from support.web import served
from throttlekit import Concurrency, Job, Limiter, Share, TokenBucket
from throttlekit.fleet.replies import time_of
from throttlekit.stores.redis import RedisStore

pytest.importorskip("waitress")
pytestmark = pytest.mark.workers

FOR_S = 180
AT, UNITS, WAITING = 0, 1, 5
FULL = TokenBucket("full", "5/s", burst=5)
EVEN = TokenBucket("even", "1000/s", burst=1000)
SLOTS = Concurrency("slots", 3, lease=60)
SHARED = TokenBucket("shared", "1000/s", burst=1000, share=Share("{tenant}"))
EXPORT = TokenBucket("export", "1/hour", burst=1)
LIMITS = (FULL, EVEN, SLOTS, SHARED)


class _Page:
    """One page, with all bars that it has shown: the bars that have ended, and the growth of the current ones."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.ended: dict[tuple[str, int], list[Any]] = {}
        self.sums: dict[str, int] = {}

    def read(self) -> None:
        """Read all limits, as the list shows them, and each limit's own page, with its tenants."""
        rows = self.get("api/limits")["limits"]
        bars = {f"{row['limit']} in the list": row["bars"] for row in rows}
        for row in rows:
            shown = self.get(f"api/limit?id={row['id']}")["range"]
            bars[row["limit"]] = shown["bars"]
            if shown["shares"] is not None:
                bars[f"tenants of {row['limit']}"] = [
                    *map(_divided(shown["shares"]["tenants"]), shown["shares"]["bars"])
                ]
        for name, some in bars.items():
            units = sum(bar[UNITS] or 0 for bar in some)
            assert units >= self.sums.get(name, 0), f"{name} got fewer"
            self.sums[name] = units
            for bar in some[:-1]:
                assert self.ended.setdefault((name, bar[AT]), bar) == bar, f"a bar of {name} that had ended has changed"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._address + path, timeout=30) as answer:
            return json.load(answer)


def _divided(names: list[str]) -> Callable[[list[Any]], list[Any]]:
    """
    Return a bar as its begin, the sum of all units, and the units of each tenant, since the order of tenants can
    change.
    """

    def divided(bar: list[Any]) -> list[Any]:
        at, *units, others = bar
        if others is None:
            return [at, None]
        return [at, sum(units) + others, *sorted(each for each in zip(names, units, strict=True) if each[1])]

    return divided


@contextlib.contextmanager
def _flooded(store: str) -> Iterator[Counter[str]]:
    """
    Two processes of a fleet request units of all limits, and report each second. At the end, yield the units that they
    were granted.
    """
    stop, granted = threading.Event(), Counter[str]()

    def flood(number: int) -> Counter[str]:
        counts = Counter[str]()
        with contextlib.closing(Limiter(patient(store))) as limiter:
            while not stop.wait(0.1):
                job = Job(id=f"{number}-{counts['even']}", kwargs={"tenant": f"t{counts['even'] % 11 % 6}"})
                for limit in LIMITS:
                    decision = limiter.acquire(limit, job=None if limit is FULL else job)
                    counts[limit.name] += decision.allowed
                    if decision.allowed and limit is SLOTS:
                        limiter.release(decision)
                if counts["even"] < 10:
                    limiter.acquire(EXPORT, job=Job(id=f"export-{number}-{counts['even']}"))
        return counts

    with ThreadPoolExecutor(2) as pool:
        members = [pool.submit(flood, number) for number in range(2)]
        try:
            yield granted
        finally:
            stop.set()
    for each in members:
        granted.update(each.result())


def test_two_pages_agree_to_the_unit_for_three_minutes(redis_url: str) -> None:
    """
    In 180 readings of each page, a bar that has ended never changes, and a current one never gets lower. Both pages and
    one that starts at the end show the same: exactly the granted units.
    """
    with contextlib.ExitStack() as running:
        store = running.enter_context(contextlib.closing(RedisStore(patient(redis_url))))
        pages = [_Page(running.enter_context(served(redis_url))) for _ in range(2)]
        pool = running.enter_context(ThreadPoolExecutor(2))
        with _flooded(redis_url) as granted:
            wait_until(
                lambda: len(pages[0].get("api/limits")["limits"]) > len(LIMITS), description="every limit is reported"
            )
            begin = time_of(store)
            for second in range(FOR_S + 1):
                wait_until(
                    lambda due=begin + second: time_of(store) >= due,
                    description=f"it is second {second} by the store's clock",
                )
                deque(pool.map(_Page.read, pages))
            end = time_of(store)
        pages.append(_Page(running.enter_context(served(redis_url))))
        wait_until(lambda: time_of(store) >= end // 60 * 60 + 61, timeout=75, description="the last minute has ended")
        for page in pages:
            page.read()
    assert end - begin >= FOR_S
    first, second, third = (page.ended for page in pages)
    for one, other in ((first, second), (first, third)):
        both = one.keys() & other.keys()
        assert {bar: one[bar] for bar in both} == {bar: other[bar] for bar in both}
    for limit in LIMITS:
        for page in pages:
            assert page.sums[limit.name] == page.sums[f"{limit.name} in the list"] == granted[limit.name]
        minutes = [bar for (name, at), bar in third.items() if name == limit.name and begin <= at <= end - 60]
        assert len(minutes) >= 2
        assert all(bar[UNITS] > 0 for bar in minutes)
    assert pages[0].sums["tenants of shared"] == granted["shared"]
    assert max(bar[WAITING] or 0 for (name, _), bar in third.items() if name == "export") > 10

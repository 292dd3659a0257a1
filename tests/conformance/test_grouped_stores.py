"""One store for each group of limits, on two servers: each limit is counted in one, and each server can fail alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from support.servers.processes import RedisProcess, patient
from support.waiting import wait_until
from support.waitlists import ask
from throttlekit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Control,
    Decision,
    FixedWindow,
    Job,
    Limiter,
    TokenBucket,
)
from throttlekit._core.pattern import matches
from throttlekit._wiring import wiring_of
from throttlekit.adapter import Delivery, Waiting
from throttlekit.errors import StoreUnavailable
from throttlekit.fleet.snapshot import look
from throttlekit.stores import MemoryStore, Store
from throttlekit.stores.grouped import GroupedStore
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import StoreConformance

API = TokenBucket("api", "1000/hour", burst=5)
LLM = TokenBucket("llm-chat", "1000/hour", burst=5)
GPU = Concurrency("llm-gpu", 4, lease=600, cost=2)
DAY = FixedWindow("llm-day", "5/day", tz="Europe/Berlin")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    server = RedisProcess()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def other(server: RedisProcess) -> RedisProcess:
    """The second server, empty."""
    server.client.flushall()
    return server


@pytest.fixture
def limiter(redis_url: str, other: RedisProcess) -> Iterator[Limiter]:
    with contextlib.closing(Limiter(patient(redis_url), stores={"llm-*": patient(f"{other.url}/0")})) as limiter:
        yield limiter


class TestGroupedStore(StoreConformance):
    """All limits of the suite are in one group. (For claims in several groups: see test_several_limits.py.)"""

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str, other: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.urls = redis_url, f"{other.url}/0"
        monkeypatch.setattr("throttlekit.testing.store._HISTORIES", 3)  # its answers are those of RedisStore

    def make_store(self) -> Store:
        default, group = (RedisStore(url, timeout=5) for url in self.urls)
        return GroupedStore(default, [("none*", default), ("conf*nce", group)])


def counted_limits(client: Any) -> set[str]:
    """Return the names of the limits that the server counts."""
    keys = [key.decode() if isinstance(key, bytes) else key for key in client.scan_iter("tk1:*")]
    return {key.partition("{")[2].partition(":")[0] for key in keys if "{fleet}" not in key}


def test_each_limit_is_counted_in_the_store_of_its_group(limiter: Limiter, client: Any, other: RedisProcess) -> None:
    """Units, slots, waitlists and windows of a time zone are in the group's store, and no key of them in the other."""
    for limit in (API, LLM, DAY):
        assert limiter.acquire(limit, cost=5)
        assert not limiter.acquire(limit, job=Job(id="waits"))
    held = limiter.acquire(GPU)
    assert limiter.peek(GPU).remaining == 2
    limiter.release(held)
    assert limiter.peek(GPU).remaining == 4
    limiter.settle(limiter.acquire(LLM, cost=0), actual=-0, limit=LLM)
    assert (counted_limits(client), counted_limits(other.client)) == ({"api"}, {"llm-chat", "llm-day", "llm-gpu"})
    limiter.reset(LLM)
    assert limiter.acquire(LLM)


def test_the_first_matching_pattern_selects_the_store() -> None:
    """The first pattern that matches counts, a pattern without "*" is one name, and other limits use the default."""
    stores = {name: MemoryStore() for name in ("default", "exact", "group", "all")}
    limiter = Limiter(stores["default"], stores={"b-1": stores["exact"], "b*": stores["group"], "*z": stores["all"]})
    for name in ("a", "b-1", "b-2", "bz", "z", "ü z"):
        assert limiter.acquire(TokenBucket(name, "1/s"))
    assert [len(stores[name]) for name in stores] == [1, 1, 2, 2]
    assert Limiter("memory://", stores={}).in_memory


def test_a_store_failure_stops_only_the_limits_of_that_store(redis_url: str, other: RedisProcess) -> None:
    """
    While a group's store is unavailable, jobs of its limits wait uncharged, and jobs of the default store run. When it
    is available again, all run.
    """
    url = f"{other.url}/0?socket_timeout=0.2&socket_connect_timeout=0.2"
    with contextlib.closing(Limiter(patient(redis_url), stores={"llm-*": url})) as limiter:
        assert limiter.acquire(LLM)
        other.hang()
        try:
            for _ in range(3):
                denied = limiter.acquire(API, LLM, job=Job(id="1"))
                assert (denied.allowed, denied.reason) == (False, "store unavailable")
                assert limiter.acquire(API, cost=0)
            assert limiter.peek(API, cost=0).remaining == 5
        finally:
            other.go_on()
        wait_until(lambda: limiter.acquire(LLM, cost=0).allowed, description="the store replies again")
        assert limiter.acquire(API, LLM)


class _Unavailable(MemoryStore):
    """A store that can be unavailable: every call then raises, also those of the waker."""

    is_unavailable, decide_calls = False, 0

    def __getattribute__(self, name: str) -> Any:
        if name in {"decide", "return_units", "look", "forget", "where"}:
            if self.is_unavailable:
                raise StoreUnavailable("away", part="")
            self.decide_calls += name == "decide"
        return super().__getattribute__(name)


def test_a_job_whose_other_store_is_unavailable_blocks_no_job() -> None:
    """
    The job waits for the unavailable store, and is on no waitlist, so no job waits behind it for its other limit. Each
    time that it requests again, the unavailable store is called first, and the other store is not called.
    """
    near, far = _Unavailable(), _Unavailable()
    near_limit, far_limit = TokenBucket("near", "1/h", burst=1), TokenBucket("far", "1000/s", burst=1000)
    with contextlib.closing(Limiter(near, stores={"far": far})) as limiter:
        started: list[str] = []
        waker = limiter.make_waker(lambda: 9, lambda _, name: started.append(name))

        def decide(name: str, *limits: TokenBucket) -> Decision:
            return limiter.acquire(*limits, job=Job(id=name), delivery=Delivery(waits=Waiting(waker, name)))

        granted = limiter.acquire(near_limit)
        assert not decide("both", near_limit, far_limit)
        assert not decide("one", near_limit)
        far.is_unavailable = True
        limiter.settle(granted, 0)
        wait_until(lambda: started == ["both"], description="the first job is woken")
        assert decide("both", near_limit, far_limit).reason == "store unavailable"
        wait_until(lambda: "one" in started, description="the job behind it is woken")
        assert decide("one", near_limit)
        calls = near.decide_calls
        wait_until(lambda: started.count("both") == 2, description="the job requests again")
        assert decide("both", near_limit, far_limit).reason == "store unavailable"
        assert near.decide_calls == calls
        far.is_unavailable = False
        wait_until(lambda: started.count("both") == 3, description="the job requests once more")
        assert decide("both", near_limit, far_limit).limit.name == "near"
        waker.close()


def test_jobs_that_wait_for_an_unavailable_store_hold_up_no_job(redis_url: str, other: RedisProcess) -> None:
    """
    Jobs that wait for an unavailable store keep their positions for a limit of another store, and the jobs behind them
    are woken.
    """
    url, fast = f"{other.url}/0?socket_timeout=0.2&socket_connect_timeout=0.2", TokenBucket("fast", "50/s", burst=1)
    with contextlib.closing(Limiter(patient(redis_url), stores={"llm-*": url})) as limiter:
        woken, ran = SimpleQueue[str](), list[str]()
        waker = limiter.make_waker(lambda: 1, lambda id, _: woken.put(id))

        def decide(id: str) -> None:
            limits = (fast, LLM) if id.startswith("both") else (fast,)
            if ask(limiter, waker, *limits, job=Job(id=id)):
                ran.append(id)
                waker.done(id)

        def all_ran() -> bool:
            with contextlib.suppress(Empty):
                decide(woken.get(timeout=0.1))
            return ran == ["one0", "one1"]

        limiter.pause(fast, 600)
        for number in range(100):
            decide(f"both{number}")
        for number in range(2):
            decide(f"one{number}")
        other.hang()
        try:
            limiter.resume(fast)
            wait_until(all_ran, description="the jobs behind have run", timeout=30, every=0)
        finally:
            other.go_on()
        waker.close()


def test_live_control_reaches_all_groups(limiter: Limiter) -> None:
    """The default store keeps the rules, and a reset reaches the store of the limit's group."""
    assert all(limiter.acquire(limit, cost=5) for limit in (API, LLM))
    control = Control(limiter, by="ann@ops")
    control.pause("llm-chat")
    limiter.fleet.follower.follow()  # type: ignore[union-attr]
    assert limiter.acquire(LLM, job=Job(id="1")).reason == "paused"
    control.resume("llm-chat")
    control.reset("llm-chat")
    limiter.fleet.follower.follow()  # type: ignore[union-attr]
    assert limiter.peek(LLM, cost=0).remaining == 5
    assert limiter.peek(API, cost=0).remaining == 0
    assert limiter.acquire(LLM, cost=3)
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    used = {key.limit.name: key.used for key in look(wiring_of(limiter).stores.shared).keys}
    assert used == {"api": 5, "llm-chat": 3}


def test_tasks_of_an_event_loop_use_both_stores(redis_url: str, other: RedisProcess) -> None:
    """Concurrent requests are decided in each store."""

    async def all_at_once() -> list[str]:
        async with AsyncLimiter(patient(redis_url), stores={"llm-*": patient(f"{other.url}/0")}) as limiter:
            calls = [limiter.acquire(limit) for _ in range(7) for limit in (API, LLM)]
            calls += [limiter.acquire(API, LLM)]
            charged = [each.limit.name for decision in await asyncio.gather(*calls) for each in decision.charged]
            return sorted(charged)

    assert asyncio.run(all_at_once()) == ["api"] * 5 + ["llm-chat"] * 5


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        ("redis://x/0", "stores= takes a store for each name"),
        ([("a", "memory://")], "stores= takes a store for each name"),
        ({"": "memory://"}, "stores= takes a store for each name"),
        ({7: "memory://"}, "stores= takes a store for each name"),
        ({"a": "nope://x"}, "'a'.*no store is known for URLs that begin with 'nope'"),
        ({"a": 7}, "'a'.*int is not a store"),
        ({"a": MemoryStore}, "'a'.*the class MemoryStore is not a store"),
    ],
)
def test_wrong_stores_are_rejected(stores: Any, message: str) -> None:
    """A wrong value of stores= raises when the limiter is made, and the message has the pattern."""
    with pytest.raises(ConfigurationError, match=message):
        Limiter("memory://", stores=stores)


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("a*", "a", True),
        ("a*b*c", "a1b2c", True),
        ("a*b*c", "acb", False),
        ("aa*aa", "aaa", False),
        ("a*[b]", "a*[b]", True),
        ("a?", "ab", False),
    ],
)
def test_a_star_matches_any_text(pattern: str, name: str, is_match: bool) -> None:
    """A star matches any text, and every other character matches itself."""
    assert matches(pattern, name) == is_match

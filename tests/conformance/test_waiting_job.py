"""Why one job waits, from the waitlists of the store, also in a flood that the fleet's report has only in part."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from support.servers.processes import Cluster, patient
from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import bucket_name
from throttlekit._engine.waker import Waker
from throttlekit._wiring import wiring_of
from throttlekit.fleet.activity import KEYS
from throttlekit.fleet.waiting_job import Found, look_up
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore
from throttlekit_cli.state import job_state
from throttlekit_cli.top.explain import describe

KEYED = TokenBucket("keyed", "1/hour", burst=1, key="{account}")
FIRST, SECOND = TokenBucket("first", "1/hour", burst=1), TokenBucket("second", "1/hour", burst=1)


@pytest.fixture
def waker(limiter: Limiter) -> Iterator[Waker[str]]:
    with contextlib.closing(held(limiter)) as waker:
        yield waker


def _flood(limiter: Limiter, waker: Waker[str], accounts: int) -> None:
    """For each account, let one job be admitted and two wait."""
    for number in range(accounts):
        for each in range(3):
            ask(limiter, waker, KEYED, job=Job(id=f"{number}-{each}", kwargs={"account": f"a{number}"}))
    limiter.fleet.activity.report()  # type: ignore[union-attr]


class _Counted:
    """A store that counts its calls."""

    def __init__(self, store: RedisStore) -> None:
        self._store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self._store, name)

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        self.calls += 1
        return self._store.commands(commands)

    def scan(self, pattern: str, cursor: str = "") -> tuple[str, list[str]]:
        self.calls += 1
        return self._store.scan(pattern, cursor)


def test_a_flood_of_ten_thousand_jobs_is_explained_within_a_second(
    limiter: Limiter, waker: Waker[str], store: RedisStore
) -> None:
    """
    The position, the estimate and the binding limit of any job are found, from the first to the last, although a
    process reports only 100 jobs per second.
    """
    wide, narrow = TokenBucket("wide", "60000/minute", burst=20_000), TokenBucket("narrow", "1/minute", burst=1)
    limiter.acquire(narrow)
    for number in range(10_000):
        ask(limiter, waker, wide, narrow, job=Job(id=f"job-{number}"))
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    for number in (0, 99, 2_500, 5_000, 7_499, 9_999):
        took_s = math.inf
        for _ in range(3):
            begin = time.perf_counter()
            found = look_up(store, f"job-{number}")
            took_s = min(took_s, time.perf_counter() - begin)
        job = job_state(f"job-{number}", found, show_keys=False)
        assert (job.state, job.limit, job.waiting_jobs, job.jobs_before) == ("waiting", "narrow", 10_000, number)
        assert job.starts_at is not None
        assert number * 60 < job.starts_at - job.now <= (number + 1) * 60
        assert took_s < 1


def test_the_number_of_round_trips_does_not_grow_with_the_jobs(
    limiter: Limiter, waker: Waker[str], store: RedisStore
) -> None:
    """The last job takes as many round trips as the first; a job that is in no report takes some more."""
    _flood(limiter, waker, 150)
    for number in range(400):
        ask(limiter, waker, FIRST, job=Job(id=f"one-{number}"))
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    counted = _Counted(store)
    took: list[int] = []
    for job in ("one-1", "one-399", "149-2", "unknown"):
        counted.calls = 0
        look_up(counted, job)
        took.append(counted.calls)
    assert max(took[:2]) <= 12
    assert max(took) <= 20


def test_the_binding_limit_is_named(limiter: Limiter, waker: Waker[str], store: RedisStore) -> None:
    """A job waits for one of its limits at a time, and its waitlists name that limit although the report is older."""
    for limit in (FIRST, SECOND):
        limiter.acquire(limit)
    ask(limiter, waker, FIRST, SECOND, job=Job(id="both"))
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    before = look_up(store, "both").job
    assert before is not None
    binding, other = (FIRST, SECOND) if before.limit == "first" else (SECOND, FIRST)
    limiter.reset(binding)

    def is_named() -> bool:
        ask(limiter, waker, FIRST, SECOND, job=Job(id="both"))
        after = look_up(store, "both").job
        return after is not None and (after.limit, after.state, after.reason) == (other.name, "waiting", "exhausted")

    # The reset wakes the job. A look that its process began before the request puts it back on the first list.
    wait_until(is_named, description="the other limit is named")


def test_a_job_that_waits_again_is_reported_as_waiting(limiter: Limiter, waker: Waker[str], store: RedisStore) -> None:
    """A job was allowed, and its body failed. Its retry is reported as waiting, before any worker has reported it."""
    limiter.acquire(FIRST)
    ask(limiter, waker, FIRST, job=Job(id="again"))
    limiter.reset(FIRST)
    assert ask(limiter, waker, FIRST, job=Job(id="again")).allowed
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    found = look_up(store, "again")
    assert (found.job and found.job.state) == "allowed"
    ask(limiter, waker, FIRST, job=Job(id="again"))
    found = look_up(store, "again")
    assert (found.job and found.job.state) == "waiting"


def test_a_job_that_left_the_waitlist_is_not_reported_as_waiting(
    limiter: Limiter, waker: Waker[str], store: RedisStore
) -> None:
    """A job was denied, and then its waitlist was emptied: it is reported as left, because its state is not known."""
    limiter.acquire(FIRST)
    ask(limiter, waker, FIRST, job=Job(id="gone"))
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    limiter.clear_waitlist(FIRST)
    found = look_up(store, "gone")
    job = job_state("gone", found, show_keys=False)
    assert (job.state, job.limit, job.known, job.searched_all) == ("left", "first", True, True)
    summary, ((_, fact),) = describe(job)
    assert "was denied by limit 'first'" in summary
    assert "Now it is on no waitlist of this store" in summary
    assert "was allowed to run or was removed" in fact


def test_a_job_of_a_limit_without_a_definition_is_found(
    limiter: Limiter, waker: Waker[str], store: RedisStore, client: Any
) -> None:
    """Without a definition of the limit, the job is found, and only its position and its estimate are not known."""
    _flood(limiter, waker, 1)
    client.delete(*KEYS)
    found = look_up(store, "0-2")
    job = job_state("0-2", found, show_keys=False)
    assert (job.state, job.limit, job.jobs_before, job.starts_at) == ("waiting", "keyed", None, None)
    summary, facts = describe(job)
    assert "whose definition no worker has reported" in summary
    assert "not known without the definition" in dict(facts)["its turn"]


def test_an_incomplete_search_is_reported(limiter: Limiter, waker: Waker[str], store: RedisStore, client: Any) -> None:
    """If the store has more names than are searched, the result says so, because an unknown job may still wait."""
    _flood(limiter, waker, 1)
    client.delete(*KEYS)
    found = look_up(store, "0-2", max_names=0)
    assert found == Found(found.now, searched_all=False)
    summary, _ = describe(job_state("0-2", found, show_keys=False))
    assert "on no waitlist among the names of this store that were searched" in summary
    summary, facts = describe(job_state("x", look_up(store, "x"), show_keys=False))
    assert "on no waitlist of this store" in summary
    assert "in another store" in dict(facts)["or"]


def test_a_store_that_cannot_list_names_is_searched_as_far_as_it_can(store: RedisStore) -> None:
    """In a store of another package that has no `scan`, the job is unknown, and nothing fails."""

    class CannotScan:
        def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
            return store.commands(commands)

    cannot: Any = CannotScan()
    found = look_up(StoreAccess(cannot), "x")
    assert (found.job, found.searched_all) == (None, False)


def test_a_pause_of_another_key_is_not_named(limiter: Limiter, waker: Waker[str], store: RedisStore) -> None:
    """If an operator has paused one account, that pause is not reported for jobs of another account."""
    from throttlekit import Control

    _flood(limiter, waker, 2)
    with Control(limiter, by="ann") as control:
        control.pause(KEYED, key="a0")
    assert [rule.what for rule in look_up(store, "0-1").rules] == ["pause"]
    assert look_up(store, "1-1").rules == ()


def test_jobs_are_found_through_a_limiter_with_groups(redis_url: str, limiter: Limiter, waker: Waker[str]) -> None:
    """Jobs are found through a limiter's circuit breaker and groups, which the web page of an application uses."""
    _flood(limiter, waker, 1)
    with contextlib.closing(Limiter(patient(redis_url), stores={"other-*": patient(redis_url)})) as grouped:
        shared: Any = wiring_of(grouped).stores.shared
        shared.commands([("DEL", key) for key in KEYS])
        found = look_up(shared, "0-2")
        assert (found.job and found.job.limit) == "keyed"
        assert look_up(shared, "x").searched_all


def test_a_job_on_a_cluster_is_found(cluster: Cluster) -> None:
    """On a cluster, the names of each node are searched."""
    limiter = Limiter(RedisClusterStore(cluster.url, timeout=5))
    with contextlib.closing(limiter), contextlib.closing(held(limiter)) as waker:
        _flood(limiter, waker, 6)
        store: Any = wiring_of(limiter).stores.shared
        store.commands([("DEL", key) for key in KEYS])
        for number in range(6):
            found = look_up(store, f"{number}-2")
            assert found.job is not None
            assert found.job.bucket == bucket_name("keyed", f"a{number}", KEYED.fingerprint)
        assert look_up(store, "x").searched_all

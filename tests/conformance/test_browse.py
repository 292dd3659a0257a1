"""The data of the web page beyond the snapshot, on a real server: recent steps, pages of keys, holders."""

from __future__ import annotations

import json
from typing import Any

import pytest

import throttlekit_lua
from conformance.bench import EMPTY_REPORT
from support.servers.processes import Cluster
from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import bucket_name, limit_id
from throttlekit.fleet.activity import KEYS
from throttlekit.fleet.browse import browse_keys, find_key, holders_of
from throttlekit.fleet.definitions import definition_of
from throttlekit.fleet.last_minute import READ_STEPS, minutes_of
from throttlekit.fleet.replies import time_of
from throttlekit.fleet.snapshot import Key, Known, look
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore

TENANTS = TokenBucket("tenants", "2/minute", burst=2, key="{tenant}")
OTHER = TokenBucket("other", "100/minute", burst=100, key="{tenant}")


def _known(store: RedisStore | RedisClusterStore, limit: TokenBucket | Concurrency) -> Known:
    known = definition_of(store, limit_id(limit.name, limit.fingerprint))
    assert known is not None
    return known


def _keys(store: RedisStore | RedisClusterStore, limit: TokenBucket | Concurrency) -> tuple[Key, ...]:
    return look(store, most=10, id=limit_id(limit.name, limit.fingerprint)).keys


def test_the_last_minute_is_what_was_decided(limiter: Limiter, store: RedisStore) -> None:
    """The last minute has the granted units, and the denials by reason."""
    for number in range(5):
        limiter.acquire(TENANTS, job=Job(id=f"job-{number}", kwargs={"tenant": "a"}))
    limiter.pause(TENANTS, 60, key="b")
    limiter.acquire(TENANTS, key="b")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    known = _known(store, TENANTS)
    minutes = minutes_of(store, [known.id, "unknown:limit"], time_of(store))
    assert minutes[known.id].allowed == minutes[known.id].units == 2
    assert minutes[known.id].denied == {"exhausted": 3, "paused": 1}
    assert not minutes["unknown:limit"].allowed
    assert not minutes["unknown:limit"].denied
    assert minutes_of(store, [], time_of(store)) == {}


def test_a_step_is_read_only_while_its_counts_are_kept(limiter: Limiter, store: RedisStore, client: Any) -> None:
    """The counts of a step expire several seconds after its last reading, so no reading finds zeros instead."""
    limiter.acquire(TENANTS, key="a")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    (counts,) = [key for key in KEYS[8::3] if client.exists(key)]
    seconds, micros = client.time()
    expires = seconds + micros / 1e6 + client.pttl(counts) / 1e3
    assert expires > (int(client.hget(counts, "step")) + READ_STEPS) * 20 + 10


def test_a_step_without_a_report_is_not_known(limiter: Limiter, store: RedisStore, client: Any) -> None:
    """A minute in which a process reported is known, even for a limit without decisions. Another minute is not."""
    limiter.acquire(OTHER, key="a")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    now = time_of(store)
    assert minutes_of(store, ["unknown:limit"], now)["unknown:limit"].is_known
    assert not minutes_of(store, ["unknown:limit"], now + 100)["unknown:limit"].is_known
    client.flushdb()
    assert not minutes_of(store, ["unknown:limit"], now)["unknown:limit"].is_known


def test_a_minute_has_the_rates_that_were_in_force(limiter: Limiter, store: RedisStore) -> None:
    """A minute has the limit's rates in thousandths of a unit per minute, and -1 if the rate changed in a step."""
    wait_until(lambda: time_of(store) % 20 < 17, description="enough of the step is left for two reports")
    limiter.acquire(OTHER, key="a")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    id = limit_id(OTHER.name, OTHER.fingerprint)
    assert minutes_of(store, [id], time_of(store))[id].rates == {100_000}
    changed = {**EMPTY_REPORT, "rates": [[f"r {id}", 50_000]]}
    store.commands([("EVAL", throttlekit_lua.script("fleet_report"), len(KEYS), *KEYS, json.dumps(changed))])
    assert minutes_of(store, [id], time_of(store))[id].rates == {-1}


@pytest.mark.parametrize(("now", "units", "denied"), [(100.0, 80, 16), (110.0, 70, 14), (115.0, 65, 13)])
def test_the_last_minute_counts_a_part_of_its_first_step(
    store: RedisStore, client: Any, now: float, units: int, denied: int
) -> None:
    """The last minute counts only a part of the step in which it begins, and no older step."""
    for number in range(1, 6):
        counts = {"u id": 20, "e id": 4, "w id": (9 - number) * 1_000_000}
        client.hset(KEYS[8 + 3 * (number % 5)], mapping={"step": number, **counts})
    minute = minutes_of(store, ["id"], now)["id"]
    assert (minute.units, minute.denied, minute.longest_wait) == (units, {"exhausted": denied}, 7.0)
    client.flushdb()  # these keys do not expire


def test_a_key_is_found_behind_the_backlog_of_another_limit(limiter: Limiter, store: RedisStore) -> None:
    """Each ranking is read separately: 400 keys of one limit with waiting jobs hide no denied key of another."""
    other = TokenBucket("other", "1/h", burst=1, key="{tenant}")
    for number in range(400):
        for job in range(2):
            limiter.acquire(other, job=Job(id=f"{number}-{job}", kwargs={"tenant": str(number)}))
        if number % 50 == 49:
            limiter.fleet.activity.report()  # type: ignore[union-attr]
    for _ in range(4):
        limiter.acquire(TENANTS, key="denied")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    (key,) = _keys(store, TENANTS)
    assert (key.key, key.minute.units, key.minute.denials) == ("denied", 2, 2)


def test_denials_of_a_key_are_counted_without_their_reasons(limiter: Limiter, store: RedisStore, client: Any) -> None:
    """Reasons are kept for 100 000 counts; the denials of 10 000 keys are kept in addition."""
    for _ in range(5):
        limiter.acquire(TENANTS, key="a")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    client.delete(*KEYS[8::3])
    (key,) = _keys(store, TENANTS)
    assert (key.minute.units, key.minute.denied) == (2, {"any": 3})


def test_every_key_is_on_one_page(limiter: Limiter, store: RedisStore, client: Any) -> None:
    """Pages are small, and together they have each key of the limit, and no key of another limit."""
    limiter.acquire(TENANTS, key="0")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    now = 10**10
    for limit in (TENANTS, OTHER):
        names = {bucket_name(limit.name, str(each), limit.fingerprint): now for each in range(3_000)}
        client.zadd(KEYS[0], names)
    known, found, cursor, pages = _known(store, TENANTS), set[str](), "", 0
    while cursor or not pages:
        page = browse_keys(store, known, cursor)
        assert len(page.keys) <= 150
        assert page.looked <= 2_000
        assert page.of == 6_000
        found |= {each.key for each in page.keys}
        cursor, pages = page.cursor, pages + 1
    assert found == {str(each) for each in range(3_000)}
    assert pages >= 20


def test_a_search_looks_at_a_bounded_number_of_keys(limiter: Limiter, store: RedisStore, client: Any) -> None:
    """A search that finds little continues from page to page; an exact key is found at once."""
    limiter.acquire(TENANTS, key="needle")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    names = {bucket_name(TENANTS.name, str(each), TENANTS.fingerprint): 10**10 for each in range(5_000)}
    client.zadd(KEYS[0], names)
    known, found, cursor, pages = _known(store, TENANTS), list[str](), "", 0
    while cursor or not pages:
        page = browse_keys(store, known, cursor, lambda key, part: "needle" in key)
        found += [each.key for each in page.keys]
        cursor, pages = page.cursor, pages + 1
    assert (found, pages) == (["needle"], 3)
    needle = find_key(store, known, "needle")
    assert needle is not None
    assert (needle.key, needle.used) == ("needle", 1)
    assert find_key(store, known, "nothing like it") is None


def test_keys_and_holders_of_a_cluster_are_found(cluster: Cluster, cluster_store: RedisClusterStore) -> None:
    """Keys and slots on other nodes than those of the fleet's data are read from their nodes."""
    store, slots = cluster_store, Concurrency("slots", 3)
    limiter = Limiter(RedisClusterStore(cluster.url, timeout=5))
    for number in range(8):
        limiter.acquire(TENANTS, key=f"tenant-{number % 4}")
    limiter.acquire(slots, job=Job(id="held"))
    limiter.close()
    fleet = look(store)
    units = {each.limit.name: each.minute.units for each in fleet.limits}
    assert units == {"tenants": 8, "slots": 1}
    known = _known(store, TENANTS)
    assert {each.key for each in _keys(store, TENANTS)} == {f"tenant-{number}" for number in range(4)}
    assert {each.key for each in browse_keys(store, known, "").keys} == {f"tenant-{number}" for number in range(4)}
    (key,) = _keys(store, slots)
    assert [each.job_id for each in holders_of(store, key)] == ["held"]


def test_holders_are_jobs_and_workflows(limiter: Limiter, store: RedisStore) -> None:
    """A workflow is one holder, listed by its name, and the time since when it holds is not known."""
    slots = Concurrency("slots", 3, lease=30, held_by="{workflow}")
    for _ in range(2):
        limiter.acquire(slots, job=Job(id="1", kwargs={"workflow": "a b"}))
    limiter.acquire(Concurrency("slots", 3), job=Job(id="single"))
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    (key,) = _keys(store, slots)
    workflow, single = holders_of(store, key)
    assert (workflow.workflow, workflow.job_id, workflow.since, workflow.slots) == ("a%20b", "", None, 1)
    assert (single.workflow, single.job_id) == ("", "single")
    assert (key.used, key.oldest_hold is not None) == (2, True)


def test_holders_of_slots_are_listed(limiter: Limiter, store: RedisStore) -> None:
    """Holders are listed by their jobs, with the time since when and the number of slots; a rate has no holders."""
    slots = Concurrency("slots", 3, cost=lambda job: job.kwargs.get("slots", 1))
    limiter.acquire(slots, job=Job(id="a job#1.2"))
    limiter.acquire(slots, job=Job(id="second", kwargs={"slots": 2}))
    limiter.acquire(TENANTS, key="a")
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    keys = {each.limit.name: each for each in look(store).keys}
    holders = holders_of(store, keys["slots"])
    assert {(each.job_id, each.slots) for each in holders} == {("a job#1.2", 1), ("second", 2)}
    assert keys["slots"].used == 3
    assert all(each.since is not None for each in holders)
    assert holders_of(store, keys["tenants"]) == ()

"""
Texts that UTF-8 cannot encode, but JSON can: half of a surrogate pair in a key, a tenant, a job's id or a workflow.
Every store decides such a job like any other, and no other limit is affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.servers.processes import patient
from support.waiting import wait_until
from support.waitlists import ask
from throttlekit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Control,
    Decision,
    Job,
    Limiter,
    TokenBucket,
)
from throttlekit._core.answer import WITHOUT_JOB
from throttlekit.stores import MemoryStore, Request, StoreClaim
from throttlekit.stores.client import ClientStore
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore

HALF = json.loads('"\\ud800"')
"""Half of a surrogate pair."""
API = TokenBucket("api", "1/h", burst=3)
KEYED = TokenBucket("keyed", "1/h", burst=3, key="{k}")
SHARED = TokenBucket("shared", "1/h", burst=3, share="{k}")
SLOTS = Concurrency("slots", 3)
WORKFLOW = Concurrency("workflow", 3, held_by="{k}")
FAST = TokenBucket("fast", "5/s", burst=1)
UNRELATED = TokenBucket("innocent", "1000/s", burst=1000)
MAIL = TokenBucket("mail", "1/h", burst=1, on_store_failure="open")
STORES = ["memory", "redis", "client", "cluster", "grouped"]


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """An exit stack that closes what a test enters."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(params=STORES)
def limiter(request: pytest.FixtureRequest) -> Iterator[Limiter]:
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            created = Limiter(MemoryStore())
        elif request.param == "cluster":
            created = Limiter(request.getfixturevalue("cluster").url + "?socket_timeout=5")
        else:
            url = request.getfixturevalue("redis_url")
            if request.param == "redis":
                created = Limiter(patient(url))
            elif request.param == "grouped":
                own = stack.enter_context(contextlib.closing(RedisStore(url, timeout=5)))
                created = Limiter(patient(url), stores={"a*": MemoryStore(), "k*": own})
            else:
                created = Limiter(ClientStore(stack.enter_context(_client(url))))
        yield stack.enter_context(contextlib.closing(created))


def _client(url: str) -> Any:
    return contextlib.closing(redis.Redis.from_url(url, socket_timeout=5, retry=Retry(NoBackoff(), 0)))


def job(**fields: Any) -> Job:
    return Job(**{"id": "1", "name": "call", "kwargs": {"k": HALF}, **fields})


CALLS: dict[str, Callable[[Limiter], Any]] = {
    "key": lambda limiter: limiter.acquire(KEYED, job=job()),
    "key as an argument": lambda limiter: limiter.acquire(KEYED, key=HALF),
    "tenant": lambda limiter: limiter.acquire(SHARED, job=job()),
    "job id": lambda limiter: limiter.acquire(SLOTS, job=job(id=HALF)),
    "workflow": lambda limiter: limiter.acquire(WORKFLOW, job=job()),
    "several limits": lambda limiter: limiter.acquire(API, KEYED, SHARED, SLOTS, WORKFLOW, job=job(id=HALF)),
    "as many as are free": lambda limiter: limiter.acquire_many(KEYED, 2, key=HALF),
    "done": lambda limiter: limiter.done(WORKFLOW, HALF),
    "pause": lambda limiter: limiter.pause(KEYED, 1, key=HALF),
    "resume": lambda limiter: limiter.resume(KEYED, key=HALF),
    "reset": lambda limiter: limiter.reset(KEYED, key=HALF),
    "clear_waitlist": lambda limiter: limiter.clear_waitlist(KEYED, key=HALF),
    "headers": lambda limiter: limiter.apply_response({"Retry-After": HALF, "X-RateLimit-Remaining": HALF}, API),
}


@pytest.mark.parametrize("id", ["", HALF, "|", "a b\nc", "x" * 10_000], ids=["none", "half", "bar", "spaces", "long"])
def test_a_denied_job_with_any_id_is_woken(limiter: Limiter, id: str) -> None:
    """A job without an id is woken too; otherwise its message would stay unacknowledged without end."""
    woken: list[str] = []
    waker = limiter.make_waker(lambda: 1, lambda _, item: woken.append(item))
    for expected in (True, False):
        assert bool(ask(limiter, waker, FAST, job=Job(id=id, name="call"))) is expected
    wait_until(lambda: woken == [id], description="the job is woken")
    waker.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_text_that_cannot_be_encoded_is_decided_like_any_other(limiter: Limiter, name: str) -> None:
    """The job gets a decision, and the next call to the store gets one too."""
    answer = CALLS[name](limiter)
    if isinstance(answer, Decision):
        assert answer.reason == "allowed"
    assert limiter.acquire(UNRELATED).reason == "allowed"


def test_an_id_that_cannot_be_encoded_is_no_store_failure(limiter: Limiter) -> None:
    """A redelivered job with such an id does not make jobs of a limit with `on_store_failure="open"` run uncharged."""
    admitted = 0
    for _ in range(20):
        limiter.acquire(API, job=job(id=HALF))
        admitted += limiter.acquire(MAIL).allowed
    assert admitted == 1


def test_different_halves_are_different_keys(limiter: Limiter) -> None:
    """Each half of a surrogate pair is a separate key."""
    other = json.loads('"\\ud801"')
    assert [limiter.acquire(KEYED, key=HALF).allowed for _ in range(4)] == [True, True, True, False]
    assert limiter.acquire(KEYED, key=other)


@pytest.mark.parametrize("url", ["redis", "cluster", "client"])
def test_a_request_that_cannot_be_sent_fails_no_other_of_its_batch(
    request: pytest.FixtureRequest, stack: contextlib.ExitStack, url: str
) -> None:
    """For a request with an unquoted text, a store returns an error instead of the answer, and decides the others."""
    if url == "cluster":
        store: Any = RedisClusterStore(request.getfixturevalue("cluster").url, timeout=5)
    elif url == "redis":
        store = RedisStore(request.getfixturevalue("redis_url"), timeout=5)
    else:
        store = ClientStore(stack.enter_context(_client(request.getfixturevalue("redis_url"))))
    claims = [StoreClaim(f"tk1:{{{name}:}}:x", API.bind(1), 1) for name in ("a", f"b{HALF}", "c")]
    requests = [Request([claim], WITHOUT_JOB) for claim in claims]
    with contextlib.closing(store):
        first, second, third = store.decide_all(requests)
        with pytest.raises(ConfigurationError, match="UTF-8"):
            store.decide(requests[1].claims, WITHOUT_JOB)
    assert isinstance(second, ConfigurationError)
    assert (first.allowed, third.allowed) == (True, True)


def test_tasks_of_one_batch_are_decided_separately(limiter: Limiter) -> None:
    """A batch has an id and keys that cannot be encoded, and each task gets its own decision."""

    async def decide_all() -> list[Decision]:
        tasks = AsyncLimiter(limiter)
        jobs = [job(id="1"), job(id="2"), job(id="0 1"), job(id=HALF)]
        return await asyncio.gather(
            *(tasks.acquire(API, KEYED, job=replace(each, kwargs={"k": HALF})) for each in jobs)
        )

    assert sorted(each.reason for each in asyncio.run(decide_all())) == [*["allowed"] * 3, "exhausted"]


def test_an_operator_may_name_any_key_and_tenant(redis_url: str) -> None:
    """Live control stores such a text, and the processes that follow apply it."""
    limiter = Limiter(patient(redis_url))
    with contextlib.closing(limiter), Control(limiter, by=f"ann{HALF}") as control:
        control.pause("keyed", key=HALF)
        control.weight("shared", HALF, 3)
        assert [(rule.name, rule.part, rule.by) for rule in control.rules()] == [
            ("keyed", HALF, f"ann{HALF}"),
            ("shared", HALF, f"ann{HALF}"),
        ]
        assert limiter.fleet is not None
        limiter.fleet.follower.follow()
        assert limiter.acquire(KEYED, job=job()).reason == "paused"
        assert limiter.acquire(UNRELATED)

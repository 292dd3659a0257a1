"""The tests that every store must pass: its answers must equal those of `MemoryStore`, the specification."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from throttlekit._core.algorithms.concurrency import AdaptiveConcurrencyAlgorithm, Concurrency
from throttlekit._core.algorithms.fixed_window import FixedWindow
from throttlekit._core.algorithms.sliding_log import SlidingLog
from throttlekit._core.algorithms.sliding_window import SlidingWindow
from throttlekit._core.algorithms.token_bucket import LeakyBucket, TokenBucket
from throttlekit._core.answer import WITHOUT_JOB, Answer, Caller, Look, Requester
from throttlekit._core.claim import UNIT, StoreClaim
from throttlekit._core.latency import Drop
from throttlekit._core.limit.adapt import ByLatency
from throttlekit._core.limit.base import Limit
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.wait_control import Charge
from throttlekit.stores.base import Correction, Lease, Slowing, Store
from throttlekit.stores.memory import MemoryStore

__all__ = ["StoreConformance"]

_NOW_US, _SECOND_US = 1_800_000_000_000_000, 1_000_000
_NAME = "conformance"
"""The name of every limit, so that a store with several servers has the claims of one request on one server."""
_HISTORIES, _STEPS, _TRIES = 12, 60, 20
_OWNERS, _KEYS = ("owner-1", "owner-2"), ("", "k")
# The periods are minutes and hours, so that nothing expires during a test, which takes less than a second.
_BUCKETS: Sequence[Limit] = (TokenBucket(_NAME, "30/minute", burst=5), TokenBucket(_NAME, "6/minute", burst=1, queue=4))
_LEAKY: Sequence[Limit] = (LeakyBucket(_NAME, "20/minute"), LeakyBucket(_NAME, "2/minute", queue=3))
_FIXED: Sequence[Limit] = (FixedWindow(_NAME, "5/minute"), FixedWindow(_NAME, "9/day", tz="Europe/Berlin"))
_SLIDING: Sequence[Limit] = (SlidingWindow(_NAME, "5/minute"), SlidingWindow(_NAME, "40/hour"))
_LOGS: Sequence[Limit] = (SlidingLog(_NAME, "5/minute"), SlidingLog(_NAME, "300/hour"))
_SLOTS: Sequence[Limit] = (Concurrency(_NAME, 3, lease=3600), Concurrency(_NAME, 8, lease=3600, adapt=ByLatency(2)))


class StoreConformance:
    """
    The requirements for a store, as tests: subclass it in a test module, and define `make_store`.

    Each test sends the same requests, at the same times, to the store and to a `MemoryStore`, and compares the answers
    to the microsecond. The requests are random, but the same in each run. The tests need pytest, or any runner that
    finds methods by their name, and the time zone Europe/Berlin. They pass the time to the store, so nothing sleeps. A
    store that passes these tests works with `Limiter`.
    """

    def make_store(self) -> Store:
        """Return an empty store. Called once in each test; the store is closed at the end of the test."""
        raise NotImplementedError

    def test_token_buckets(self) -> None:
        """Token buckets: a rate with a burst."""
        self._compare(_BUCKETS)

    def test_leaky_buckets(self) -> None:
        """Leaky buckets: a rate without a burst, and full queues."""
        self._compare(_LEAKY)

    def test_fixed_windows(self) -> None:
        """Fixed windows, also in a time zone."""
        self._compare(_FIXED)

    def test_sliding_windows(self) -> None:
        """Sliding windows, which are estimated from two windows."""
        self._compare(_SLIDING)

    def test_sliding_logs(self) -> None:
        """Sliding logs, which are exact; short and long."""
        self._compare(_LOGS)

    def test_slots(self) -> None:
        """Slots are held, released, renewed and lost; also slots that adapt."""
        self._compare(_SLOTS)

    def test_several_limits(self) -> None:
        """One request with limits of all algorithms charges all of them, or none."""
        self._compare([*_BUCKETS, *_LEAKY, *_FIXED, *_SLIDING, *_LOGS, *_SLOTS], claims=5)

    def test_threads_share_a_limit(self) -> None:
        """Of 200 requests by eight threads at the same time, exactly as many are granted as the limit has units."""
        limit, passed = TokenBucket(_NAME, "60/minute", burst=60), list[bool]()
        with self._store() as store:

            def request() -> None:
                for _ in range(25):
                    passed.append(store.decide([_claim(limit, "")], WITHOUT_JOB, _NOW_US).allowed)

            threads = [threading.Thread(target=request) for _ in range(8)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        assert (len(passed), sum(passed)) == (200, 60)

    def test_wakes_are_heard(self) -> None:
        """An owner that listens receives a wake for its job when another job releases its slot."""
        with self._store() as store:
            _listen(store, "owner-1")()

    def test_store_owns_the_clock(self) -> None:
        """If no time is passed, an answer has the store's own time, which never decreases."""
        with self._store() as store:
            times = [store.decide([_claim(_BUCKETS[0], "")], WITHOUT_JOB).now_us for _ in range(3)]
        assert times[0] > 0
        assert times == sorted(times)

    def test_keys_may_hold_any_text(self) -> None:
        """Keys that look similar, or like a part of a stored name, are counted separately."""
        keys = ["", "a", "A", "a:", ":a", "a:b", "a}b", "{a}", "}{", "a\n", "a\0", "é", "e\u0301", "🙂", "%41", "~"]
        with self._store() as store:
            for allowed in (True, False):
                for key in (*keys, "x" * 10_000):
                    assert store.decide([_claim(_BUCKETS[1], key)], WITHOUT_JOB, _NOW_US).allowed is allowed, key[:20]

    def test_works_again_after_close(self) -> None:
        """After `close` the store works again. What it stores outside this process persists, and `reset` deletes it."""
        claim = _claim(_BUCKETS[1], "")
        with self._store() as store:
            assert store.decide([claim], WITHOUT_JOB, _NOW_US).allowed
            store.close()
            store.decide([claim], WITHOUT_JOB, _NOW_US)
            store.reset([claim.bucket])
            assert store.decide([claim], WITHOUT_JOB, _NOW_US).allowed

    @contextmanager
    def _store(self) -> Generator[Store, None, None]:
        store = self.make_store()
        try:
            yield store
        finally:
            store.close()

    def _compare(self, limits: Sequence[Limit], claims: int = 1) -> None:
        reference = MemoryStore()
        buckets = [_claim(each, key).bucket for each in limits for key in _KEYS]
        with self._store() as store:
            ends = [_listen(each, owner) for each in (store, reference) for owner in _OWNERS]
            for seed in range(_HISTORIES):
                for each in (store, reference):
                    each.reset(buckets)
                _History(random.Random(seed), store, reference, limits, claims).run()
            for end in ends:
                end()


@dataclass(eq=False)
class _Job:
    id: str
    owner: str
    claims: list[StoreClaim]
    granted_us: int = 0


@dataclass(eq=False)
class _History:
    """Random requests to two stores. The answers to some of them decide the next request."""

    rnd: random.Random
    store: Store
    reference: Store
    limits: Sequence[Limit]
    most_claims: int
    now_us: int = _NOW_US + 9 * 3600 * _SECOND_US
    jobs: list[_Job] = field(default_factory=list[_Job])
    running: list[_Job] = field(default_factory=list[_Job])
    history: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        for limit in self.limits:
            # One slot is held all the time, so that no limit expires.
            for key in _KEYS if isinstance(limit, Concurrency) else ():
                self._both("decide", [_claim(limit, key, holder="first#0", now_us=self.now_us)], WITHOUT_JOB)
        steps = {
            self._request_new: 8,
            self._request_again: 8,
            self._end: 4,
            self._look: 3,
            self._wake: 1,
            self._forget: 0.5,
            self._settle: 1,
            self._pause: 0.3,
            self._slow: 0.3,
            self._where: 1,
            self._list: 0.5,
        }
        for step in self.rnd.choices([*steps], [*steps.values()], k=_STEPS):
            self.now_us += self.rnd.choice([0, 1, 100_000, 2 * _SECOND_US, 7 * _SECOND_US, 30 * _SECOND_US])
            step()

    def _both(self, verb: str, *args: Any, **options: Any) -> Any:
        """Call both stores, compare their answers, and return them."""
        self.history.append(f"{verb}{args} at {self.now_us}")
        found, expected = (
            _comparable(getattr(each, verb)(*args, now_us=self.now_us, **options))
            for each in (self.store, self.reference)
        )
        questions = "\n".join(self.history[-5:])
        assert found == expected, f"the store answers\n{found}, and the specification\n{expected}, after\n{questions}"
        return found

    def _claims(self, number: int) -> list[StoreClaim]:
        limits = self.rnd.sample(self.limits, self.rnd.randint(1, min(self.most_claims, len(self.limits))))
        tenant = self.rnd.choice(["", "", "a", "b"])
        claims = [
            _claim(each, self.rnd.choice(_KEYS), self.rnd.choice([1, 1, 2]), f"job{number}#0", tenant, self.now_us)
            for each in limits
        ]
        return [*{each.bucket: each for each in claims}.values()]

    def _put(self, job: _Job, caller: Caller) -> None:
        requester = Requester(
            caller, job.id, job.owner, self.rnd.choice([0, 1, 8]), self.rnd.choice([None, 60 * _SECOND_US])
        )
        answer = self._both("decide", job.claims, requester)
        if answer.allowed and caller is not Caller.PEEK:
            if self.rnd.random() < 0.15:  # as if another store had denied the job
                instants = [use.full_us for use in answer.uses]
                charges = [Charge(each, self.now_us, at) for each, at in zip(job.claims, instants, strict=True)]
                self._both("return_units", charges, requester)
                return
            job.granted_us = self.now_us
            self.running.append(job)
            self.jobs = [each for each in self.jobs if each is not job]

    def _request_new(self) -> None:
        number = len(self.history)
        job = _Job(f"job-{number}", self.rnd.choice(_OWNERS), self._claims(number))
        caller = self.rnd.choice([Caller.JOB] * 6 + [Caller.WITHOUT_JOB, Caller.PEEK])
        if caller is Caller.JOB:
            self.jobs.append(job)
        self._put(job, caller)

    def _request_again(self) -> None:
        if self.jobs:
            self._put(self.rnd.choice(self.jobs[:4]), self.rnd.choice([Caller.JOB] * 6 + [Caller.AGAIN, Caller.PEEK]))

    def _end(self) -> None:
        if not self.running:
            return
        job = self.running.pop(self.rnd.randrange(len(self.running)))
        slots = [each for each in job.claims if each.algorithm.holder]
        leases = [Lease(each.bucket, each.algorithm, job.granted_us) for each in slots]
        if leases:
            self._both(self.rnd.choice(["release", "release", "renew"]), leases)

    def _unit(self) -> StoreClaim:
        return self._claims(len(self.history))[0]

    def _ids(self) -> list[str]:
        return [each.id for each in self.rnd.sample(self.jobs, min(len(self.jobs), 3))]

    def _look(self) -> None:
        self._both("look", self._unit(), self.rnd.choice(_OWNERS), self.rnd.choice([0, 1, 8]), self._ids())

    def _wake(self) -> None:
        self._both("forget", [self._unit()], ())

    def _forget(self) -> None:
        if self.jobs:
            job = self.jobs.pop()
            self._both("forget", job.claims, [job.id], keep=self.rnd.random() < 0.3)

    def _where(self) -> None:
        if self.jobs:
            job = self.rnd.choice(self.jobs)
            self._both("where", job.claims, job.id)

    def _list(self) -> None:
        found, expected = (each.list_waiting(self._last(), 5) for each in (self.store, self.reference))
        assert found == expected, f"the store lists\n{found}, and the specification\n{expected}"

    def _last(self) -> StoreClaim:
        return self.jobs[-1].claims[0] if self.jobs else _claim(self.limits[0], "")

    def _settle(self) -> None:
        claim = self._unit()
        if not claim.algorithm.holder:
            by = self.rnd.choice([-1, 1, 3]) * claim.algorithm.size
            self._both("settle", [Correction(claim.bucket, claim.algorithm, self.now_us - _SECOND_US, by)])

    def _pause(self) -> None:
        for_us = self.rnd.choice([None, 10 * _SECOND_US, 60 * _SECOND_US])
        self._both("pause", [self._unit()], for_us, emptied=self.rnd.random() < 0.5)

    def _slow(self) -> None:
        claim = self._unit()
        rates: list[Refusal | Remaining] = [Refusal(None, 60 * _SECOND_US, 50_000), Remaining(3, 20 * _SECOND_US)]
        if not claim.algorithm.holder:
            self._both("slow", [Slowing(claim, self.rnd.choice(rates))])
        elif isinstance(claim.algorithm, AdaptiveConcurrencyAlgorithm):
            self._both("slow", [Slowing(claim, Drop(None))])


def _claim(
    limit: Limit, key: str, cost: int = 1, holder: str = "", tenant: str = "", now_us: int = _NOW_US
) -> StoreClaim:
    slots = isinstance(limit, Concurrency)
    bucket = bucket_name(limit.name, key, limit.fingerprint)
    cost = min(cost, limit.capacity)
    algorithm = limit.bind(cost, now_us, holder if slots else "")
    return StoreClaim(bucket, algorithm, cost, limit.queue, tenant, cost * UNIT if tenant else 0)


def _listen(store: Store, owner: str) -> Callable[[], None]:
    """Listen for wakes of *owner*, and wait until one has arrived. Return the function that ends this."""
    woken, limit = threading.Event(), Concurrency(_NAME, 1, lease=60)
    end = store.listen(owner, lambda bucket, wakes: woken.set(), lambda: None)
    first, second = (_claim(limit, "listen", holder=f"{name}#0") for name in ("first", "second"))
    for _ in range(_TRIES):
        store.reset([first.bucket])
        assert store.decide([first], WITHOUT_JOB, _NOW_US).allowed
        assert not store.decide([second], Requester(Caller.JOB, "job", owner, 1), _NOW_US).allowed
        store.release([Lease(first.bucket, first.algorithm, _NOW_US)], _NOW_US)
        if woken.wait(1):
            store.reset([first.bucket])
            return end
    raise AssertionError(f"{owner} listens, but received no wake after the slot was released for which its job waits")


def _comparable(answer: Any) -> Any:
    """Return *answer* without details that may differ: the epochs of waitlists, and when an unused limit expires."""
    if isinstance(answer, Look):
        return answer._replace(epoch="")
    if not isinstance(answer, Answer):
        return answer
    uses = tuple(use and use._replace(full_us=max(use.full_us, answer.now_us)) for use in answer.uses)
    return answer._replace(uses=uses, kept=answer.kept and answer.kept._replace(epoch=""))

"""One request over several stores: all or nothing, and what was taken is given back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import FixedWindow, LeakyBucket, Limit, SlidingLog, SlidingWindow, StoreUnavailable, TokenBucket
from throttlekit._core.algorithm import Use
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.verdict import Caller, Reason, Verdict
from throttlekit.stores import Correction, MemoryStore, Request, StoreClaim
from throttlekit.stores.composite import Part, acquire_in_parts

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
LIMITS: list[Limit] = [
    TokenBucket("bucket", "1/s", burst=3),
    FixedWindow("fixed", "3/minute"),
    SlidingWindow("sliding", "3/minute"),
    SlidingLog("log", "3/minute"),
]


class Memory(MemoryStore):
    """A store in memory that keeps what it was asked and told, and can be mute."""

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        super().__init__(clock_us=lambda: NOW)
        self.name = name
        self.log = [] if log is None else log
        self.requests: list[Request] = []
        self.settled: list[Correction] = []
        self.mute: set[str] = set()

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        self.log.append(f"acquire {self.name}")
        self.requests.append(request)
        if "acquire" in self.mute:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError")
        return super().acquire(request, now_us)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self.log.append(f"settle {self.name}")
        self.settled += corrections
        if "settle" in self.mute:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError")
        super().settle(corrections, now_us)


def claim(limit: Limit, cost: int = 1) -> StoreClaim:
    bucket = bucket_name(limit.name, "", limit.fingerprint)
    return StoreClaim(bucket, limit.bind(cost, NOW), cost, limit.max_queue)


def use(store: MemoryStore, limit: Limit) -> Use:
    (found,) = store.acquire(Request([claim(limit)], Caller.PEEK), NOW).uses
    assert found is not None
    return found


@pytest.fixture
def parts() -> tuple[Memory, Memory, Memory]:
    log: list[str] = []
    return Memory("a", log), Memory("b", log), Memory("c", log)


def request(*limits: Limit, caller: Caller = Caller.JOB, **options: Any) -> Request:
    return Request([claim(limit) for limit in limits], caller, **options)


def drain(store: MemoryStore, limit: Limit) -> None:
    assert store.acquire(Request([claim(limit, 3)], Caller.GUEST), NOW).allowed


def test_grant_is_that_of_every_part(parts: tuple[Memory, Memory, Memory]) -> None:
    """When all parts grant, all are charged, each once and in turn, and every use stands where its claim does."""
    a, b, c = parts
    split = [Part(a, [2]), Part(b, [0, 3]), Part(c, [1])]
    verdict = acquire_in_parts(split, request(*LIMITS), NOW)
    whole = MemoryStore().acquire(request(*LIMITS), NOW)
    assert whole.asked_us == ()
    assert verdict == whole._replace(asked_us=(NOW,) * 4)
    assert a.log == ["acquire a", "acquire b", "acquire c"]
    assert [store.settled for store in parts] == [[], [], []]


@pytest.mark.parametrize("caller", [Caller.JOB, Caller.GUEST])
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_denial_gives_back_what_was_charged(parts: tuple[Memory, Memory, Memory], caller: Caller, limit: Limit) -> None:
    """When a part denies, those before it get their units back, of every algorithm; those behind are not asked."""
    a, b, c = parts
    others = [other for other in LIMITS if other is not limit]
    drain(b, limit)
    a.log.clear()
    split = [Part(a, [0, 2]), Part(b, [3]), Part(c, [1])]
    verdict = acquire_in_parts(split, request(*others, limit, caller=caller), NOW)
    assert (verdict.reason, verdict.claim) == (Reason.EXHAUSTED, 3)
    assert verdict.asked_us == (NOW, 0, NOW, NOW)
    assert a.log == ["acquire a", "acquire b", "settle a"]
    assert verdict.uses == (None, None, None, use(b, limit))
    for other in (others[0], others[2]):
        fresh = MemoryStore()
        for store in (a, fresh):
            drain(store, other)
        assert use(a, other) == use(fresh, other)


def test_denial_tells_the_part_that_denied(parts: tuple[Memory, Memory, Memory]) -> None:
    """The binding claim is numbered as in the request; slot and retry are those of the part that denied."""
    a, b, _ = parts
    drain(b, LIMITS[0])
    split = [Part(a, [1, 3]), Part(b, [2, 0])]
    verdict = acquire_in_parts(split, request(*LIMITS), NOW)
    assert (verdict.claim, verdict.due_us, verdict.retry_us) == (0, NOW + SECOND, NOW + SECOND)
    assert b.acquire(request(LIMITS[0]), NOW).due_us == NOW + 2 * SECOND


def test_claims_that_only_look_are_not_given_back(parts: tuple[Memory, Memory, Memory]) -> None:
    """What took nothing is not corrected: a part that only looked is not asked again."""
    a, b, c = parts
    drain(c, LIMITS[3])
    asked = Request([claim(LIMITS[0], 0), claim(LIMITS[1], 0), claim(LIMITS[2]), claim(LIMITS[3])], Caller.JOB)
    c.log.clear()
    acquire_in_parts([Part(a, [0]), Part(b, [1, 2]), Part(c, [3])], asked, NOW)
    assert c.log == ["acquire a", "acquire b", "acquire c", "settle b"]
    assert [each.bucket for each in b.settled] == [claim(LIMITS[2]).bucket]


def test_correction_tells_the_whole_charge_at_its_instant(parts: tuple[Memory, Memory, Memory]) -> None:
    """What is given back is exactly what was charged, at the instant at which that store granted it."""
    a, b, _ = parts
    drain(b, LIMITS[1])
    acquire_in_parts([Part(a, [0]), Part(b, [1])], request(LIMITS[0], LIMITS[1]), NOW)
    asked = claim(LIMITS[0])
    assert a.settled == [Correction(asked.bucket, asked.algorithm, NOW, -SECOND)]


def test_part_that_does_not_answer_is_told_and_what_was_charged_given_back(
    parts: tuple[Memory, Memory, Memory],
) -> None:
    """A store that is down raises, after the parts before it have got their units back."""
    a, b, c = parts
    b.mute = {"acquire"}
    with pytest.raises(StoreUnavailable):
        acquire_in_parts([Part(a, [0]), Part(b, [1]), Part(c, [2])], request(*LIMITS[:3]), NOW)
    assert a.log == ["acquire a", "acquire b", "settle a"]
    assert LIMITS[0].remaining(use(a, LIMITS[0]), NOW) == 3


def test_part_that_cannot_give_back_stays_charged(parts: tuple[Memory, Memory, Memory]) -> None:
    """A store that is down when it should give back stays charged: the denial stands, and the others give back."""
    a, b, c = parts
    drain(c, LIMITS[2])
    a.mute = {"settle"}
    verdict = acquire_in_parts([Part(a, [0]), Part(b, [1]), Part(c, [2])], request(*LIMITS[:3]), NOW)
    assert (verdict.reason, verdict.claim) == (Reason.EXHAUSTED, 2)
    assert LIMITS[0].remaining(use(a, LIMITS[0]), NOW) == 2
    assert LIMITS[1].remaining(use(b, LIMITS[1]), NOW) == 3


@pytest.mark.parametrize("full_first", [True, False])
def test_full_queue_of_any_part_is_told(full_first: bool) -> None:
    """A queue that is full in one part refuses the job, and gives back what another part took."""
    even, store, other = LeakyBucket("even", "1/s", queue=0), Memory(), Memory()
    store.acquire(request(even), NOW)
    split = [Part(store, [0]), Part(other, [1])]
    verdict = acquire_in_parts(split if full_first else split[::-1], request(even, LIMITS[0]), NOW)
    assert (verdict.reason, verdict.claim) == (Reason.FULL, 0)
    assert LIMITS[0].remaining(use(other, LIMITS[0]), NOW) == 3


def test_uses_of_the_part_that_denies_are_told(parts: tuple[Memory, Memory, Memory]) -> None:
    """Of all claims of the part that denied the use is told; of what was given back, or never asked, nothing is."""
    a, b, c = parts
    drain(b, LIMITS[2])
    split = [Part(a, [3]), Part(b, [0, 2]), Part(c, [1])]
    verdict = acquire_in_parts(split, request(*LIMITS), NOW)
    assert (verdict.reason, verdict.claim) == (Reason.EXHAUSTED, 2)
    assert verdict.uses == (Use(0, NOW), None, use(b, LIMITS[2]), None)


# Places


def test_place_counts_in_its_own_line_alone(parts: tuple[Memory, Memory, Memory]) -> None:
    """Each part gets the places of its own claims, and the answer has those of all."""
    a, b, _ = parts
    for store, limit in ((a, LIMITS[0]), (b, LIMITS[1])):
        drain(store, limit)
    split = [Part(b, [1]), Part(a, [0])]
    first = acquire_in_parts(split, request(*LIMITS[:2]), NOW)
    assert (first.claim, [place is not None for place in first.places]) == (1, [False, True])
    back = acquire_in_parts(split, request(*LIMITS[:2], places=first.places), first.due_us)
    assert back.allowed
    assert [len(each.requests[-1].places) for each in (a, b)] == [1, 1]
    assert [*b.requests[-1].places, *a.requests[-1].places] == [first.places[1], None]


def test_job_that_is_early_is_told_by_its_own_line(parts: tuple[Memory, Memory, Memory]) -> None:
    """Back before its slot, a job keeps it; what other parts took meanwhile is given back."""
    a, b, _ = parts
    drain(b, LIMITS[0])
    first, _ = (b.acquire(request(LIMITS[0]), NOW) for _ in range(2))
    asked = request(LIMITS[1], LIMITS[0], places=(None, *first.places))
    verdict = acquire_in_parts([Part(a, [0]), Part(b, [1])], asked, NOW)
    assert (verdict.reason, verdict.claim, verdict.due_us) == (Reason.EARLY, 1, first.due_us)
    assert verdict.places == (None, *first.places)
    assert LIMITS[1].remaining(use(a, LIMITS[1]), NOW) == 3


def test_patience_is_every_parts(parts: tuple[Memory, Memory, Memory]) -> None:
    """Whichever part denies books nothing that the job will not wait for."""
    a, b, _ = parts
    drain(b, LIMITS[0])
    asked = request(LIMITS[1], LIMITS[0], max_wait_us=SECOND - 1)
    for _ in range(2):
        assert acquire_in_parts([Part(a, [0]), Part(b, [1])], asked, NOW).due_us == NOW + SECOND


# Peeks


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_peek_asks_every_part_and_tells_what_opens_last(
    parts: tuple[Memory, Memory, Memory], order: tuple[int, int]
) -> None:
    """A peek changes nothing, so every part is asked; the answer is that of the part that opens last."""
    a, b, _ = parts
    drain(a, LIMITS[0])
    drain(b, LIMITS[1])
    split = [Part(a, [0]), Part(b, [1])]
    for _ in range(2):
        verdict = acquire_in_parts([split[i] for i in order], request(*LIMITS[:2], caller=Caller.PEEK), NOW)
        assert (verdict.claim, verdict.due_us) == (1, NOW + 60 * SECOND)
        assert None not in verdict.uses
    assert (a.settled, b.settled) == ([], [])


@pytest.mark.parametrize("caller", [Caller.PEEK, Caller.JOB])
def test_peek_stops_at_a_full_queue_as_a_job_does(parts: tuple[Memory, Memory, Memory], caller: Caller) -> None:
    """A queue that is full refuses the job, however much later another part opens: nobody else is asked."""
    a, b, c = parts
    even = LeakyBucket("even", "1/s", queue=0)
    b.acquire(request(even), NOW)
    drain(c, LIMITS[1])
    a.log.clear()
    split = [Part(a, [2]), Part(b, [0]), Part(c, [1])]
    verdict = acquire_in_parts(split, request(even, LIMITS[1], LIMITS[0], caller=caller), NOW)
    assert (verdict.reason, verdict.claim, verdict.due_us) == (Reason.FULL, 0, NOW + SECOND)
    assert a.log == ["acquire a", "acquire b"] + (["settle a"] if caller is Caller.JOB else [])
    assert verdict.uses == (Use(0, NOW + SECOND), None, Use(0, NOW) if caller is Caller.PEEK else None)


def test_peek_that_would_pass_names_the_first_claim(parts: tuple[Memory, Memory, Memory]) -> None:
    """A grant names the first claim, whichever part it is of."""
    a, b, _ = parts
    verdict = acquire_in_parts([Part(a, [1]), Part(b, [0])], request(*LIMITS[:2], caller=Caller.PEEK), NOW)
    assert (verdict.allowed, verdict.claim) == (True, 0)
    assert (len(a), len(b)) == (0, 0)


# All or nothing


@given(
    full=st.lists(st.booleans(), min_size=4, max_size=4),
    of=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    caller=st.sampled_from([Caller.JOB, Caller.GUEST]),
)
def test_parts_decide_as_one_store_would(full: list[bool], of: list[int], caller: Caller) -> None:
    """However the claims are spread, a request passes if and only if one store would let it, and charges the same."""
    stores, whole = [Memory() for _ in range(3)], MemoryStore()
    for limit, empty, own in zip(LIMITS, full, of, strict=True):
        if empty:
            drain(stores[own], limit)
            drain(whole, limit)
    split = [Part(stores[i], [n for n in range(4) if of[n] == i]) for i in range(3) if i in of]
    verdict = acquire_in_parts(split, request(*LIMITS, caller=caller), NOW)
    wanted = whole.acquire(request(*LIMITS, caller=caller), NOW)
    assert verdict.allowed == wanted.allowed == (not any(full))
    assert verdict.allowed or full[verdict.claim]
    for limit, own in zip(LIMITS, of, strict=True):
        assert limit.remaining(use(stores[own], limit), NOW) == limit.remaining(use(whole, limit), NOW)


def test_request_needs_a_part() -> None:
    """A store without claims to decide has a fault."""
    with pytest.raises(ValueError, match="at least one part"):
        acquire_in_parts([], Request([], Caller.JOB), NOW)


@pytest.mark.parametrize(("first", "second"), list(product([True, False], repeat=2)))
def test_each_store_tells_its_own_time(first: bool, second: bool) -> None:
    """Without a time given, each part goes by its store's clock, all told; the answer by that of the part it is of."""
    early, late = MemoryStore(clock_us=lambda: NOW), MemoryStore(clock_us=lambda: NOW + 7)
    for store, drained, at_us in ((early, first, NOW), (late, second, NOW + 7)):
        if drained:
            store.acquire(Request([claim(LIMITS[0], 3)], Caller.GUEST), at_us)
    other = TokenBucket("other", "1/s", burst=3)
    claims = [claim(LIMITS[0]), claim(LIMITS[0] if second else other)]
    verdict = acquire_in_parts([Part(early, [0]), Part(late, [1])], Request(claims, Caller.JOB))
    assert verdict.now_us == (NOW if first else NOW + 7)
    assert verdict.asked_us == (NOW, 0 if first else NOW + 7)
    assert verdict.due_us == verdict.now_us + (SECOND if first or second else 0)

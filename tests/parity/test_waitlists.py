"""The scripts of waitlists equal the reference: every answer, every wake message, and everything that is stored."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from parity.waits import LIMITS, BothStores, WaitHistory
from throttlekit import ByLatency, Concurrency, FixedWindow, TokenBucket
from throttlekit._core.algorithms.gcra import Measure
from throttlekit._core.answer import Caller, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit._core.storage_keys import holder_name, wait_names
from throttlekit._core.wait_control import Charge
from throttlekit._core.waitlist import PATIENCE_US, WOKEN_US, State, Wake
from throttlekit.stores.base import Correction, Lease, Slowing
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.wire import UnusableReply, answer_of, bell_of, look_of

LONG_RUN = int(os.environ.get("THROTTLEKIT_TEST_WAITS", "3000"))
HISTORY = 200
NOW_US, DAY_US = 1_800_000_000_000_000, 86_400_000_000

ALWAYS = [
    "waiting",
    "woken",
    "kept",
    "paused",
    "allowed",
    "exhausted",
    "in line",
    "bells",
    "own wakes",
    "slow",
    "return_units",
    "positions",
    "where",
    "waited",
    "waited, list unknown",
]
"""The events that each run of some thousand steps must contain."""


@pytest.mark.parametrize("algorithms", [*([name] for name in LIMITS), [*LIMITS]], ids=[*LIMITS, "mixtures"])
def test_random_histories(redis_url: str, client: Any, algorithms: Sequence[str]) -> None:
    """In some thousand random steps, the scripts return, publish and store exactly what the reference does."""
    steps, seen, least = 0, Counter[str](), dict.fromkeys(ALWAYS, LONG_RUN // 300)
    # The rarest cases must occur several times; if they do not, more histories run.
    while steps < LONG_RUN or (steps < 8 * LONG_RUN and any(seen[what] < few for what, few in least.items())):
        seed = random.getrandbits(64)
        client.flushdb()
        stores = BothStores(redis_url, client)
        for owner in ("p1", "p10"):
            stores.listen(owner)
        try:
            WaitHistory(random.Random(seed), algorithms, stores).run(HISTORY)
        except Exception as error:
            raise AssertionError(f"history {seed}, step {stores.steps}: {error}") from error
        finally:
            stores.close()
        steps, seen = steps + HISTORY, seen + stores.seen
    client.flushdb()
    assert not {what: seen[what] for what, few in least.items() if seen[what] < few}


def _let_many_wait(stores: BothStores, *, wait_us: int | None = None) -> StoreClaim:
    """Let 100 jobs of 40 owners wait until a pause ends."""
    claim = _claim(TokenBucket("a", "1000/s", burst=100))
    stores.pause(claim, NOW_US, 1_000_000, emptied=False)
    for n in range(100):
        stores.run("decide", [claim], NOW_US, Requester(Caller.JOB, f"id{n}", f"p{n % 40}", max_wait_us=wait_us))
    return claim


@pytest.mark.parametrize("listening", [0, 10, 40])
def test_a_script_wakes_some_of_many_jobs(both: BothStores, listening: int) -> None:
    """A script wakes the same jobs as the reference: it makes 16 tries, which include owners that do not listen."""
    for n in range(40 - listening, 40):
        both.listen(f"p{n}")
    claim = _let_many_wait(both)
    for n in range(6):
        both.run("forget", [claim], NOW_US + 1_000_000 + n, ())
        both.run("look", [claim], NOW_US + 1_000_000 + n, "p39", 99, [])


def test_an_owner_with_more_wakes_than_free_threads_is_skipped(both: BothStores) -> None:
    """As in the reference, all wakes of an owner count: here more than one script makes, and more than its threads."""
    claim = _claim(TokenBucket("a", "1000/s", burst=1))
    both.listen("p")
    for n in range(60):
        both.run("decide", [claim], NOW_US, Requester(Caller.JOB, f"id{n}", "p", 40))
    both.run("decide", [claim], NOW_US, Requester(Caller.JOB, "other", "q", 3))
    both.listen("q")
    assert len(both.run("look", [claim], NOW_US, "p", 40, []).wakes) > 20
    both.run("look", [claim], NOW_US + 5_000, "p", 20, [])
    assert [id for _, id in both.waitlist(claim).woken_of("q")] == ["other"]


def test_a_request_repeats_no_look_while_no_other_job_can_be_woken(both: BothStores) -> None:
    """As in the reference, one look is requested, for the time at which the units of the wake are no longer kept."""
    claim = _claim(TokenBucket("a", "100/s", burst=1))
    answers = [both.run("decide", [claim], NOW_US, Requester(Caller.JOB, f"id{n}", "p", 0)) for n in range(4)]
    assert [answer.looks for answer in answers] == [(), (), ((0, 10_000 + PATIENCE_US),), ()]


def test_a_grant_that_reduces_the_slots_wakes_for_the_slots_that_are_left(both: BothStores) -> None:
    """As in the reference, a grant that finds slots of dead processes reduces their number, and then wakes jobs."""
    second, bucket = 1_000_000, "tk1:{g:}:f"

    def claim(holder: str = "", least: int = 1) -> StoreClaim:
        return StoreClaim(bucket, Concurrency("g", 20, lease=30, adapt=ByLatency(least)).bind(1, 0, holder))

    def request(job: str, now_us: int, free: int = 0) -> Any:
        held = claim(holder_name(job, "0", 0))
        return both.run("decide", [held], now_us, Requester(Caller.JOB, job, "p", free))

    # A first measurement, with 20 slots: the number begins at the least one.
    first = claim("first", least=20)
    both.run("decide", [first], NOW_US - second, Requester(Caller.WITHOUT_JOB))
    both.run("release", [first], NOW_US, what=[Lease(bucket, first.algorithm, NOW_US - second)])
    for n in range(26):
        request(f"id{n}", NOW_US if n < 2 else NOW_US + 10 * second)
    later_us = NOW_US + 31 * second
    assert [wake.id for wake in both.run("look", [claim()], later_us, "p", 1, []).wakes] == ["id20"]
    granted = request("id20", later_us, free=3)
    assert (granted.reason, granted.wakes) == (Reason.ALLOWED, ())


def test_a_script_removes_some_of_many_expired_jobs(both: BothStores) -> None:
    """A script removes the same jobs as the reference: 16 whose `max_wait` is over."""
    claim = _let_many_wait(both, wait_us=1_000)
    for n in range(3):
        both.run("look", [claim], NOW_US + 2_000 + n, "p0", 99, [])


def test_a_late_correction_replaces_the_state_of_a_wrong_clock(both: BothStores) -> None:
    """As in the reference, a late correction returns no unit, and the state counts from now on."""
    claim = StoreClaim("tk1:{c:}:fixed-window", FixedWindow("c", "5/s").bind(1, 0, ""))
    both.run("decide", [claim], NOW_US + 600_000_000, Requester(Caller.WITHOUT_JOB))
    late = Correction(claim.bucket, claim.algorithm, NOW_US - 10_000_000, -1)
    both.run("settle", [claim], NOW_US, what=[late])


def test_returned_units_keep_the_entry_of_a_copy_that_waits(both: BothStores) -> None:
    """As in the reference, the entry of the job's other copy is not changed."""
    requester = Requester(Caller.JOB, "one", "p")
    claim = _claim(TokenBucket("a", "1/s", burst=1), "token-bucket")
    granted = both.run("decide", [claim], NOW_US, requester)
    both.run("decide", [claim], NOW_US, requester)
    charge = Charge(claim, granted.now_us, granted.uses[0].full_us)
    both.run("return_units", [claim], NOW_US, requester, what=[charge])
    assert both.waitlist(claim).entries["one"].state is State.WAITING


def test_returned_units_are_stored_at_the_rate_of_their_request(both: BothStores) -> None:
    """As in the reference: another request has stored the state at another rate in between."""
    limit = TokenBucket("a", "10/s", burst=5)
    claim, faster = _claim(limit), _claim(change_rate(limit, "20/s"))
    requester = Requester(Caller.JOB, "one", "p")
    granted = both.run("decide", [claim], NOW_US, requester)
    both.run("decide", [faster], NOW_US, requester)
    assert _measure(both, claim) is not None
    both.run("return_units", [claim], NOW_US, requester, what=[Charge(claim, NOW_US, granted.uses[0].full_us)])
    assert _measure(both, claim) is None


def _measure(both: BothStores, claim: StoreClaim) -> Measure | None:
    state: Any = both.read_state(claim.bucket)
    return state.measure  # type: ignore[no-any-return]


def test_keys_expire_if_the_last_entry_ends_when_a_job_is_added(both: BothStores) -> None:
    """
    The last entry, of a job that is redelivered after a delay, has ended. The next request removes it, and adds its job
    to an empty waitlist, whose keys expire.
    """
    claim = _claim(TokenBucket("a", "1/s", burst=1))
    both.run("decide", [claim], NOW_US, Requester(Caller.WITHOUT_JOB))
    both.run("decide", [claim], NOW_US, Requester(Caller.JOB, "one", "~50", max_wait_us=1_000_000))
    other = StoreClaim(claim.bucket.replace("{a:}", "{a:o}"), TokenBucket("a", "1/h", burst=1).bind(1, 0, ""))
    both.run("decide", [other], NOW_US, Requester(Caller.WITHOUT_JOB))
    both.run("decide", [claim, other], NOW_US + 1_050_000, Requester(Caller.JOB, "two", "p"))
    assert set(both.waitlist(claim).entries) == {"two"}


def test_a_wake_without_a_request_expires(both: BothStores) -> None:
    """As in the reference, an unused wake expires after an hour, and then the waitlist is empty."""
    claim = _claim(TokenBucket("a", "10/s", burst=10))
    both.listen("p")
    both.pause(claim, NOW_US, 1_000_000, emptied=False)
    both.run("decide", [claim], NOW_US, Requester(Caller.JOB, "one", "p"))
    both.run("look", [claim], NOW_US + 1_000_000, "p", 99, [])
    both.run("look", [claim], NOW_US + 1_000_000 + WOKEN_US - 1, "q", 99, [])
    assert both.waitlist(claim).woken_of("p") == [(NOW_US + 1_000_000, "one")]
    assert both.run("look", [claim], NOW_US + 1_000_000 + WOKEN_US, "q", 99, []).owners == 0
    assert both.waitlist(claim).epoch == ""


def test_a_wake_dated_by_a_clock_that_was_ahead_holds_up_no_job(both: BothStores) -> None:
    """As in the reference, a wake of an owner that hangs ends early, although it would be overdue only in an hour."""
    claim, early_us = _claim(TokenBucket("a", "1/s", burst=1)), NOW_US - 3_600_000_000
    for owner in ("hung", "p"):
        both.listen(owner)
    for job, owner in (("one", "p"), ("two", "hung"), ("three", "hung"), ("four", "p")):
        both.run("decide", [claim], NOW_US, Requester(Caller.JOB, job, owner, 3))
    for now_us in (NOW_US + 1_000_000, early_us, early_us + 1_000_000):
        found = both.run("look", [claim], now_us, "p", 3, [])
    assert [wake.id for wake in found.wakes] == ["four"]


@pytest.mark.parametrize("what", ["pause", "slow"])
def test_a_caller_without_a_job_does_not_pass_a_pause_after_a_denial(both: BothStores, what: str) -> None:
    """A denied caller without a job leaves a retry time. A later pause or slow-down still denies the next caller."""
    claim, caller = _claim(TokenBucket("a", "1/s", burst=1)), Requester(Caller.WITHOUT_JOB)
    assert both.run("decide", [claim], NOW_US, caller).reason is Reason.ALLOWED
    assert both.run("decide", [claim], NOW_US, caller).reason is Reason.EXHAUSTED
    if what == "pause":
        both.pause(claim, NOW_US + 100_000, 60_000_000, emptied=False)
    else:
        both.run("slow", [claim], NOW_US + 100_000, what=[Slowing(claim, Remaining(1, 60_000_000))])
    assert both.run("decide", [claim], NOW_US + 5_000_000, caller).reason is not Reason.ALLOWED


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[RedisStore]:
    store = RedisStore(redis_url, timeout=20)
    yield store
    store.close()


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Any:
    """Each kind of store that has waitlists."""
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("redis_store")


def _claim(limit: TokenBucket, name: str = "a") -> StoreClaim:
    return StoreClaim(f"tk1:{{{name}:}}:f", limit.bind(1, 0, ""))


@pytest.mark.parametrize("limit", [kinds[0] for kinds in LIMITS.values()], ids=LIMITS)
def test_the_position_of_a_job_whose_cost_is_now_zero(both: BothStores, limit: Limit) -> None:
    """As in the reference, nothing delays it any longer: neither the jobs ahead of it nor a debt of the limit."""

    def claim(cost: int, holder: str = "") -> StoreClaim:
        return StoreClaim("tk1:{z:}:f", limit.bind(cost, 0, holder_name(holder, "0", 0)), cost)

    for n in range(limit.capacity + 3):
        both.run("decide", [claim(1, f"id{n}")], NOW_US, Requester(Caller.JOB, f"id{n}", "p"))
    if not claim(1).algorithm.holder:
        both.run("settle", [claim(1)], NOW_US, what=[Correction("tk1:{z:}:f", claim(1).algorithm, NOW_US, 10**6)])
    last = f"id{limit.capacity + 2}"
    assert both.run("where", [claim(1, last)], NOW_US + 1, last).in_us > 0
    found = both.run("where", [claim(0, last)], NOW_US + 1, last)
    assert found.position >= 2
    assert found.in_us == 0


def test_a_refusal_of_a_job_from_before_a_slow_down_that_is_over_slows_again(both: BothStores) -> None:
    """As in the reference: here a report of remaining units has kept the record of the slow-down until then."""
    claim = _claim(TokenBucket("a", "10/s", burst=1))
    both.run("slow", [claim], NOW_US, what=[Slowing(claim, Refusal(None, 1_000_000, 50_000))])
    both.run("slow", [claim], NOW_US + 1, what=[Slowing(claim, Remaining(3, 60_000_000))])
    later_us = NOW_US + 30_000_000
    both.run("slow", [claim], later_us, what=[Slowing(claim, Refusal(NOW_US - 1, 1_000_000, 50_000))])
    slow = both.waitlist(claim).slow
    assert slow is not None
    assert slow.fell_us == later_us


def test_a_refusal_of_a_job_that_was_admitted_at_the_last_refusal_slows_again(both: BothStores) -> None:
    """As in the reference: only jobs that were admitted before do not count."""
    claim = _claim(TokenBucket("a", "10/s", burst=1))
    for now_us, granted_us in ((NOW_US, None), (NOW_US + 1, NOW_US), (NOW_US + 2, NOW_US)):
        both.run("slow", [claim], now_us, what=[Slowing(claim, Refusal(granted_us, 1_000_000, 50_000))])
    slow = both.waitlist(claim).slow
    assert slow is not None
    assert slow.fell_us == NOW_US + 1


def test_a_charge_of_a_slow_down_that_is_over_delays_no_job(both: BothStores) -> None:
    """As in the reference: a large cost is charged beyond the end of a slow-down, and a new one begins after it."""
    limit = TokenBucket("a", "10/s", burst=3)
    claim, large = _claim(limit), StoreClaim("tk1:{a:}:f", limit.bind(3, 0, ""), 3)
    both.run("slow", [claim], NOW_US, what=[Slowing(claim, Remaining(3, 5_000_000))])
    granted = both.run("decide", [large], NOW_US + 2_000_000, Requester(Caller.WITHOUT_JOB))
    assert granted.reason is Reason.ALLOWED
    both.run("slow", [claim], NOW_US + 5_000_001, what=[Slowing(claim, Refusal(None, 1_000_000, 50_000))])
    slow = both.waitlist(claim).slow
    assert slow is not None
    assert slow.tat_us < NOW_US + 5_500_000


SLOW = _claim(TokenBucket("a", "1/s", burst=1))


def test_a_lost_grant_is_repeated_for_the_same_attempt(store: Any) -> None:
    """If a job repeats the attempt that was granted, it gets the same answer, and is not charged again."""
    store.decide([SLOW], Requester(Caller.JOB, "first", "p"), NOW_US)
    store.decide([SLOW], Requester(Caller.JOB, "second", "p", 1), NOW_US)
    store.look(SLOW, "p", 1, (), NOW_US + 970_000)
    granted = store.decide([SLOW], Requester(Caller.JOB, "second", "p"), NOW_US + 1_000_000, attempt="1")
    again = store.decide([SLOW], Requester(Caller.JOB, "second", "p"), NOW_US + 1_100_000, attempt="1")
    other = store.decide([SLOW], Requester(Caller.JOB, "second", "p"), NOW_US + 1_200_000, attempt="2")
    assert granted.reason is again.reason is Reason.ALLOWED
    assert (again.now_us, again.uses) == (granted.now_us, granted.uses)
    assert again.waited == granted.waited == Waited(1_000_000, 1, 0)
    assert other.reason is Reason.EXHAUSTED


def test_a_repeated_grant_takes_no_unit(store: Any) -> None:
    """The grant is repeated without a charge, although no job waits any more and the limit has units left."""
    claim, requester = _claim(TokenBucket("a", "1/s", burst=5)), Requester(Caller.JOB, "one", "p")
    store.pause([claim], 1_000_000, NOW_US)
    assert store.decide([claim], requester, NOW_US).reason is Reason.PAUSED
    store.look(claim, "p", 1, (), NOW_US + 1_000_000)
    granted = store.decide([claim], requester, NOW_US + 1_000_000, attempt="1")
    again = store.decide([claim], requester, NOW_US + 1_100_000, attempt="1")
    assert granted.reason is again.reason is Reason.ALLOWED
    assert (again.now_us, again.uses) == (granted.now_us, granted.uses)


def test_a_retry_with_other_claims_is_another_request(store: Any) -> None:
    """A rule may add a limit in the meantime. Each answer has a use for each of its claims."""
    other, requester = _claim(TokenBucket("b", "1/s", burst=5)), Requester(Caller.JOB, "second", "p")
    store.decide([SLOW], Requester(Caller.JOB, "first", "p"), NOW_US)
    store.decide([SLOW], requester, NOW_US)
    store.look(SLOW, "p", 1, (), NOW_US + 970_000)
    granted = store.decide([SLOW], requester, NOW_US + 1_000_000, attempt="1")
    again = store.decide([SLOW, other], requester, NOW_US + 2_000_000, attempt="1")
    assert (granted.reason, len(granted.uses)) == (Reason.ALLOWED, 1)
    assert (again.reason, len(again.uses), again.now_us) == (Reason.ALLOWED, 2, NOW_US + 2_000_000)


def test_a_peek_is_not_repeated_as_a_grant(store: Any) -> None:
    """A peek for a job that would be admitted charges nothing; the next request with the same attempt does."""
    store.decide([SLOW], Requester(Caller.JOB, "first", "p"), NOW_US)
    store.decide([SLOW], Requester(Caller.JOB, "second", "p", 1), NOW_US)
    store.look(SLOW, "p", 1, (), NOW_US + 970_000)
    store.decide([SLOW], Requester(Caller.PEEK, "second", "p"), NOW_US + 1_000_000, attempt="1")
    store.decide([SLOW], Requester(Caller.JOB, "second", "p"), NOW_US + 1_000_000, attempt="1")
    assert store.decide([SLOW], Requester(Caller.JOB, "third", "p"), NOW_US + 1_000_000).reason is Reason.EXHAUSTED


@pytest.mark.parametrize("what", ["pause", "429", "slowdown"])
def test_pauses_and_slowdowns_outlive_the_waitlist(what: str, redis_store: RedisStore, client: Any) -> None:
    """
    A waitlist is kept for two days; a pause, a limit that a 429 emptied, and a slow-down are kept until they end, also
    when the waitlist is cleared.
    """
    record = wait_names(SLOW.bucket)[0]
    claim = StoreClaim(SLOW.bucket, TokenBucket("a", "1/d", burst=20).bind(1, 0, ""))
    if what == "slowdown":
        redis_store.slow([Slowing(claim, Remaining(0, 7 * DAY_US))])
    else:
        redis_store.pause([claim], 7 * DAY_US if what == "pause" else 1, emptied=what == "429")
    assert client.pttl(record) > 6 * DAY_US / 1000
    redis_store.decide([claim], Requester(Caller.JOB, "one", "p"))
    assert client.pttl(record) > 6 * DAY_US / 1000
    redis_store.forget([claim], ["one"])
    assert client.pttl(record) > 6 * DAY_US / 1000
    redis_store.decide([claim], Requester(Caller.JOB, "two", "p"))
    redis_store.clear_waitlists([claim.bucket])
    assert client.pttl(record) > 6 * DAY_US / 1000
    if what == "slowdown":
        assert client.hkeys(record) == [b"slow"]
        assert client.pttl(record) <= 8 * DAY_US / 1000


def test_a_cleared_waitlist_whose_pause_is_over_leaves_nothing(redis_store: RedisStore, client: Any) -> None:
    """After the clearing no key of the waitlist is left. A limit that is only paused has no waitlist to clear."""
    redis_store.pause([SLOW], 1_000_000, NOW_US)
    assert redis_store.clear_waitlists([SLOW.bucket]) == 0
    for id in ("one", "two"):
        redis_store.decide([SLOW], Requester(Caller.JOB, id, "p"), NOW_US)
    redis_store.look(SLOW, "p", 1, (), NOW_US + 1_000_000)
    assert redis_store.decide([SLOW], Requester(Caller.JOB, "one", "p"), NOW_US + 1_000_000).reason is Reason.ALLOWED
    assert redis_store.clear_waitlists([SLOW.bucket]) == 1
    assert client.keys() == [SLOW.bucket.encode()]


def test_many_ids_are_sent_in_parts(redis_store: RedisStore) -> None:
    """However many ids a caller names, all of them are removed."""
    ids = [f"id{n}" for n in range(120)]
    for id in ["first", *ids]:
        redis_store.decide([SLOW], Requester(Caller.JOB, id, "p"), NOW_US)
    redis_store.forget([SLOW], ids, "p", NOW_US)
    assert redis_store.look(SLOW, "p", 1, ids, NOW_US).epoch == ""


@pytest.mark.parametrize("id", ["x", "", "1:2,3 ,", "a|b c\n", "\0", "ü\ud800", "😀"])
def test_a_wake_message_has_any_id(id: str) -> None:
    """A wake message is decoded as `ring` in waitlist.lua encodes it, whatever bytes the ids have."""
    texts = [text.encode("utf-8", "surrogatepass") for text in ("tk1:{a:}:f", id, "0", "other", "123")]
    bell = b"".join(b"%d:%b," % (len(text), text) for text in texts)
    assert bell_of(bell) == ("tk1:{a:}:f", [Wake(id, 0), Wake("other", 123)])


_UNUSABLE: dict[Callable[[Any], object], list[Any]] = {
    bell_of: [b"", b"x", b"3:ab,", b"2:ab,1:x,", b"2:ab,1:x,1:y,", b"2:ab;", b":,", b"99999999999999:a,", b"2:ab"],
    answer_of: [
        None,
        7,
        [],
        b"",
        b"0 0 1",
        b"0 0 1 1;0 1;;;",
        b"9 0 1 1;0 1;;;;",
        b"0 0 1 1;0 1;;;;0 1",
        b"0 0 1 1;0 1;;;5 1;",
        b"0 0 1 1;0 1;;;5 1 x;",
        [b"0 0 1 1;0 1;;;;0 1", b"a", b"b"],
    ],
    look_of: [None, [], [b""], [b"1 - ab;5;0;0"], [b"1 x ab;;0;0"], [b"1 - ab;;1;0", b"a", b"b"], b"x"],
}


@pytest.mark.parametrize(("read", "reply"), [(read, reply) for read, replies in _UNUSABLE.items() for reply in replies])
def test_an_unusable_reply_is_rejected(read: Callable[[Any], object], reply: Any) -> None:
    """A reply or a wake message that no script can have sent raises UnusableReply: any client can publish messages."""
    with pytest.raises(UnusableReply):
        read(reply)

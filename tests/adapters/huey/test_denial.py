"""What a denial leaves as it was in huey's own data, and where a job is at each moment."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import pytest
from huey import MemoryHuey, PriorityRedisHuey, RedisHuey
from huey.api import group
from huey.exceptions import CancelExecution
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from support.huey.hand import RATE, Hand
from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, Limiter, RateLimited, StoreUnavailable, TokenBucket, current
from throttlekit.stores.memory import MemoryStore
from throttlekit_huey import install

KINDS = (RedisHuey, PriorityRedisHuey)
SLOW = TokenBucket("slow", "1/hour", burst=1)


def test_a_denied_job_waits_in_hueys_schedule(hand: Hand) -> None:
    """It is one of `huey.scheduled()`, with its id and arguments; no signal is emitted but that it was enqueued."""
    result = hand.task(retries=3)("x")
    hand.deny()
    assert hand.step()
    (waiting,) = hand.huey.scheduled()
    assert (waiting.id, waiting.args, waiting.retries, waiting.eta) == (result.id, ("x",), 3, None)
    assert (hand.huey.pending_count(), hand.in_hand) == (0, 0)
    assert hand.signals == [("enqueued", result.id)]
    assert result.get() is None


def test_jobs_come_back_in_order_and_once(hand: Hand) -> None:
    """Each denied job runs once, in the order of sending; no key of a waiting job is left."""
    task = hand.task()
    for n in range(5):
        task(n)
    assert hand.until(5) == [0, 1, 2, 3, 4]
    assert hand.huey.scheduled_count() == hand.redis.zcard(hand.key("due")) == hand.in_hand == 0


def test_a_due_job_goes_before_newer_ones(hand: Hand) -> None:
    """A job whose turn has come is taken before one that came after it."""
    task, free = hand.task(), hand.task(throttle=None)
    hand.deny(0.5)
    task("first")
    hand.step()
    wait_until(lambda: hand.limiter.peek(RATE).allowed, description="the pause is over")
    free("second")
    assert hand.until(2) == ["first", "second"]


def test_a_line_that_becomes_later_is_asked_for_once(hand: Hand) -> None:
    """The answer to the job that stands first makes those behind it due as much later: they do not ask themselves."""
    task = hand.task()
    hand.deny(0.5)
    for n in range(10):
        task(n)
        hand.step()
    hand.deny(1.5)
    taken = 0

    def done() -> bool:
        nonlocal taken
        taken += hand.step()
        return len(hand.ran) == 10

    wait_until(done, description="all have run")
    assert hand.ran == list(range(10))
    assert taken < 10 + 6


def test_a_higher_priority_goes_before_a_due_job(hand: Hand) -> None:
    """On a queue with priorities a due job is taken in its place among them."""
    if not hand.huey.storage.priority:
        pytest.skip("the queue has no priorities")
    task, free = hand.task(), hand.task(throttle=None)
    hand.deny(0.5)
    task("due", priority=5)
    hand.step()
    wait_until(lambda: hand.limiter.peek(RATE).allowed, description="the pause is over")
    free("high", priority=9)
    free("low", priority=1)
    assert hand.until(3) == ["high", "due", "low"]


def test_a_job_in_the_hands_of_a_dead_worker_is_anothers(hand: Hand) -> None:
    """A worker that was killed before it asked has lost nothing: after ten seconds another one takes the job."""
    hand.task()("x")
    assert hand.huey.dequeue() is not None  # and dies
    assert (hand.huey.pending_count(), hand.in_hand) == (0, 1)
    assert not hand.step()
    _age(hand)
    assert hand.until(1) == ["x"]
    assert hand.in_hand == 0


def test_a_task_object_that_is_enqueued_twice_runs_twice(hand: Hand) -> None:
    """Its two messages are the same byte for byte. Two workers have one each in hand, and both run."""
    task = hand.task().s("x")
    for _ in range(2):
        hand.huey.enqueue(task)
    first, second = hand.huey.dequeue(), hand.huey.dequeue()
    assert hand.in_hand == 2
    hand.huey.execute(first)
    hand.huey.execute(second)
    assert hand.until(2) == ["x", "x"]


class _Store(MemoryStore):
    """A store that can be away."""

    away = False

    def acquire(self, request: Any, now_us: int | None = None) -> Any:
        if self.away:
            raise StoreUnavailable("away")
        return super().acquire(request, now_us)


def test_a_task_object_that_is_enqueued_twice_waits_twice_for_a_store(redis_url: str) -> None:
    """Huey's schedule is a set of messages, and without a position from the store the two are equal."""
    huey: Any = RedisHuey("twice", url=redis_url, read_timeout=0.2)
    store = _Store()
    limiter = Limiter(store)
    install(huey, limiter)
    hand = Hand(huey, limiter)
    task = hand.task().s("x")
    for _ in range(2):
        huey.enqueue(task)
    store.away = True
    hand.work_until(lambda: not huey.pending_count(), "both have been denied")
    assert huey.scheduled_count() == 2
    store.away = False
    assert hand.until(2) == ["x", "x"]
    limiter.close()
    huey.storage.pool.disconnect()


def test_a_worker_that_stood_still_leaves_the_job_to_the_other(hand: Hand) -> None:
    """It neither runs it nor puts it back, and gives back what it was charged."""
    hand.task()("x")
    slow = hand.huey.dequeue()
    _age(hand)
    other = hand.huey.dequeue()
    assert other.id == slow.id
    hand.huey.execute(other)
    wait_until(lambda: hand.limiter.peek(RATE).allowed, description="there is room")
    hand.huey.execute(slow)
    assert hand.ran == ["x"]
    assert hand.limiter.peek(RATE).allowed
    hand.deny()
    hand.task()("y")
    slow = hand.huey.dequeue()
    hand.redis.delete(hand.key("in-hand"))
    hand.huey.execute(slow)
    assert hand.huey.scheduled_count() == 0


class _Breaking:
    """A connection to Redis that is lost once, after Redis has *done* what *command* says, or before."""

    def __init__(self, broken: Any, command: str, *, done: bool = True) -> None:
        self._broken, self._command, self._done, self.lost = broken, command, done, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broken, name) if name != self._command else self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.lost += 1
        ask = self._broken if self._command == "" else getattr(self._broken, self._command)
        answer = ask(*args, **kwargs) if self.lost != 1 or self._done else None
        if self.lost == 1:
            raise RedisConnectionError("lost")
        return answer


def test_a_lost_answer_loses_no_granted_job(hand: Hand) -> None:
    """The worker finds that the job is in no worker's hand, as it has let it go itself a moment ago: it runs it."""
    hand.task()("x")
    task = hand.huey.dequeue()
    hand.gate_schedule._conn = _Breaking(hand.redis, "zrem")
    hand.huey.execute(task)
    assert hand.ran == ["x"]
    assert (hand.gate_schedule._conn.lost, hand.in_hand) == (2, 0)


def test_a_lost_answer_loses_no_job_that_heard_a_429(hand: Hand) -> None:
    """It is in no list of Redis while its body runs: it is put back when the connection is there again."""

    @hand.huey.task(throttle=RATE, name="angry")  # type: ignore[misc]
    def angry() -> None:
        hand.ran.append("ran")
        if len(hand.ran) == 1:
            raise RateLimited(0.05)

    angry()
    task = hand.huey.dequeue()
    hand.gate_schedule._defer = _Breaking(hand.gate_schedule._defer, "")
    hand.huey.execute(task)
    assert hand.huey.scheduled_count() == 1
    assert hand.until(2) == ["ran", "ran"]


def test_a_lost_connection_loses_no_job_that_came_while_a_worker_listened(hand: Hand) -> None:
    """It is in no list of Redis as the worker asks to have it in hand: the worker keeps it, and asks again."""
    task, sender = hand.task(), threading.Timer(0.05, lambda: task("x"))
    hand.gate_schedule._take = take = _Breaking(hand.gate_schedule._take, "", done=False)
    take.lost = -1  # the first call finds nothing, and the worker listens
    sender.start()
    with pytest.raises(RedisConnectionError):
        hand.step()
    assert hand.until(1) == ["x"]
    sender.join()


def test_jobs_without_limits_are_hueys_own(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that names no limit is in no list of ours, and no command more is sent for it."""
    hand.task(throttle=None)("x")
    hand.task()  # there are others
    sent: list[tuple[int, str]] = []
    execute: Any = Redis.execute_command

    def noted(client: Any, *args: Any, **options: Any) -> Any:
        sent.append((threading.get_ident(), args[0]))
        return execute(client, *args, **options)

    monkeypatch.setattr(Redis, "execute_command", noted)
    task = hand.huey.dequeue()
    assert [command for thread, command in sent if thread == threading.get_ident()] == ["EVALSHA"]
    assert hand.in_hand == 0
    hand.huey.execute(task)
    assert hand.ran == ["x"]


@pytest.mark.parametrize("limited", [True, False])
def test_a_job_that_comes_to_an_idle_worker(hand: Hand, limited: bool) -> None:
    """A worker that listens takes it at once; one that may be limited is in its hand, and any other is not."""
    task = hand.task(throttle=RATE if limited else None)
    listening = threading.Event()
    listen = hand.gate_schedule._listen

    def listened(seconds: float) -> bytes:
        listening.set()
        return listen(seconds)

    hand.gate_schedule._listen = listened
    taken: list[Any] = []
    worker = threading.Thread(target=lambda: taken.append(hand.huey.dequeue()))
    worker.start()
    assert listening.wait(10)
    sent = task("x")
    worker.join()
    while taken[-1] is None:  # it came between two calls
        taken.append(hand.huey.dequeue())
    assert taken[-1].id == sent.id
    assert hand.in_hand == limited
    hand.huey.execute(taken[-1])
    assert (hand.ran, hand.in_hand) == (["x"], 0)


def test_one_idle_worker_keeps_the_time(hand: Hand) -> None:
    """Of idle workers one leads while a job is due soon; another one looks a little later, and the rest listen."""
    task = hand.task()
    hand.deny(0.5)
    for n in range(2):
        task(n)
        hand.step()

    def leads() -> bool:
        return bool(hand.take("first")[2])

    wait_until(leads, description="the first job is due soon", every=0.005)
    first, second, third = (hand.take(name) for name in ("first", "second", "third"))
    assert (first[0], first[2]) == (None, 1)
    assert (second[0], second[2]) == (None, 0)
    assert second[1] > first[1]
    assert third == [None, -1, 0]

    def taken() -> Any:
        return hand.take("first")[0]

    wait_until(taken, description="the first job is due")
    assert hand.redis.exists(hand.key("bell")) == 1
    wait_until(lambda: hand.take("second")[0] or hand.take("second")[2], description="the other one leads, or has it")


def test_compressed_messages_are_safe_as_well(redis_url: str) -> None:
    """Where no task's name can be seen in a message, each job is kept until it is known to have no limit."""
    huey: Any = RedisHuey("compressed", url=redis_url, compression=True, read_timeout=0.2)
    hand = Hand(huey, Limiter("memory://"))
    install(huey, hand.limiter)
    limited, free = hand.task(), hand.task(throttle=None, name="free")
    limited("a")
    task = huey.dequeue()
    assert hand.in_hand == 1
    huey.execute(task)
    free("b")
    task = huey.dequeue()
    assert hand.in_hand == 0
    huey.execute(task)
    assert hand.ran == ["a", "b"]
    huey.storage.pool.disconnect()


def test_hueys_scheduler_leaves_waiting_jobs(hand: Hand) -> None:
    """After an outage of all workers it takes only what the user scheduled, and the workers bring back what waits."""
    task = hand.task()
    hand.deny(0.5)
    task("waiting")
    hand.step()
    task.schedule(("scheduled",), delay=60)
    hand.step()
    later = hand.huey._get_timestamp() + datetime.timedelta(minutes=5)
    wait_until(lambda: hand.limiter.peek(RATE).allowed, description="it is due")
    assert [each.args for each in hand.huey.read_schedule(later)] == [("scheduled",)]
    assert hand.until(1) == ["waiting"]


def test_hueys_scheduler_leaves_hundreds_of_waiting_jobs(plain: Hand) -> None:
    """More than one call of the script looks at, between as many jobs that the user scheduled for earlier."""
    task = plain.task()
    plain.deny(600)
    for n in range(120):
        task.schedule((n,), delay=60)
        task("waiting")
    for _ in range(240):
        plain.step()
    assert plain.redis.zcard(plain.key("due")) == 120
    later = plain.huey._get_timestamp() + datetime.timedelta(hours=1)
    assert sorted(each.args[0] for each in plain.huey.read_schedule(later)) == list(range(120))
    assert plain.huey.scheduled_count() == 120


def test_without_workers_of_ours_huey_brings_a_job_back(plain: Hand) -> None:
    """A minute after its turn huey's own scheduler takes a waiting job, if this adapter was removed meanwhile."""
    task = plain.task()
    plain.deny(0.5)
    task("waiting")
    plain.step()
    stock: Any = RedisHuey(plain.huey.name, connection_pool=plain.huey.storage.pool)
    later = stock._get_timestamp() + datetime.timedelta(seconds=70)
    assert len(stock.storage.read_schedule(later)) == 1
    plain.work_until(lambda: plain.redis.zcard(plain.key("due")) == 0, "what has gone is forgotten")
    assert plain.ran == []


def test_revoke_restore_and_expiry(hand: Hand) -> None:
    """A waiting job that is revoked ends with huey's signal, and one that is restored runs; expiry does not move."""
    task = hand.task()
    hand.deny(1.0)
    revoked, restored, expired = task("a"), task("b"), task("c", expires=0.5)
    for _ in range(3):
        hand.step()
    revoked.revoke()
    restored.revoke()
    restored.restore()
    assert hand.until(1) == ["b"]
    wait_until(lambda: not hand.step(), description="all have ended")
    ended = {task_id: signal for signal, task_id in hand.signals}
    assert (ended[revoked.id], ended[expired.id]) == ("revoked", "expired")
    assert hand.ran == ["b"]


def test_retries_pipelines_chords_and_errors(hand: Hand) -> None:
    """A body that fails is retried as huey does; pipelines, chords and `error` tasks follow jobs that waited."""
    seen: list[Any] = []

    @hand.huey.task(throttle=RATE, retries=1, name="flaky")  # type: ignore[misc]
    def flaky(what: str) -> str:
        seen.append(what)
        if len(seen) == 1:
            raise ValueError("once")
        return what

    @hand.huey.task(throttle=RATE, name="join")  # type: ignore[misc]
    def join(what: Any) -> Any:
        seen.append(what)
        return what

    @hand.huey.task(throttle=RATE, name="bad")  # type: ignore[misc]
    def bad(what: str) -> None:
        raise ValueError(what)

    hand.huey.enqueue(flaky.s("p").then(join))
    hand.work_until(lambda: len(seen) == 3, "the pipeline has run")
    hand.huey.enqueue(group([flaky.s("x"), flaky.s("y")]).then(join))
    hand.work_until(lambda: len(seen) == 6, "the chord has run")
    hand.huey.enqueue(bad.s("e").error(join))
    hand.work_until(lambda: len(seen) == 7, "the error task has run")
    assert seen[:3] == ["p", "p", "p"]
    assert (sorted(seen[3:5]), seen[5]) == (["x", "y"], ["x", "y"])
    assert isinstance(seen[6], ValueError)


def test_locks_hooks_and_context(hand: Hand) -> None:
    """A task in a lock, with hooks and its own context: each run has its hooks, also one that a 429 ends."""
    hooks: list[str] = []
    hand.huey.pre_execute("before")(lambda task: hooks.append("pre"))
    hand.huey.post_execute("after")(lambda task, value, error: hooks.append(f"post {type(error).__name__}"))

    @hand.huey.task(throttle=RATE, context=True, name="locked")  # type: ignore[misc]
    @hand.huey.lock_task("one")
    def locked(task: Any = None) -> str:
        hand.ran.append(dict(task.kwargs))
        if len(hand.ran) == 1:
            raise RateLimited(0.05)
        return "done"

    result = locked()
    hand.until(2)
    assert hand.ran == [{}, {}]
    assert hooks == ["pre", "post RateLimited", "pre", "post NoneType"]
    assert not hand.huey.is_locked("one")
    assert result.get() == "done"
    assert [signal for signal, _ in hand.signals] == ["enqueued", "executing", "executing", "complete"]


def test_a_job_that_a_hook_cancels_keeps_nothing(hand: Hand) -> None:
    """Its body does not run: its slot is free at once, and no rate is charged."""
    slot = Concurrency("cancelled", 1, lease=60)

    @hand.huey.pre_execute("no")  # type: ignore[misc]
    def no(task: Any) -> None:
        if task.args == ("x",):
            raise CancelExecution

    task = hand.task(throttle=[slot, RATE])
    task("x")
    hand.step()
    assert hand.limiter.peek(slot).allowed
    assert hand.limiter.peek(RATE).allowed
    task("y")
    hand.step()
    assert hand.ran == ["y"]


def test_options_with_one_call(hand: Hand) -> None:
    """Limits that one call brings hold that call, by `task(…)`, `s(…)` and `schedule(…)`; the body never sees them."""
    own = TokenBucket("own", "1/hour", burst=1, key="{what}")
    task = hand.task(throttle=None)
    task("a", throttle=own)
    hand.huey.enqueue(task.s("a", throttle=[own], throttle_max_wait=0.01))
    task.schedule(("b",), delay=0.01, throttle=own)
    hand.work_until(lambda: len(hand.ran) == 2, "two have run")
    hand.work_until(lambda: any(signal == "error" for signal, _ in hand.signals), "the third has failed")
    assert sorted(hand.ran) == ["a", "b"]


def test_misspelt_option_is_refused(hand: Hand) -> None:
    """huey accepts any option of a task, and passes those of a call to the function: it is an error at once."""
    with pytest.raises(ConfigurationError, match="no option 'throtle': did you mean 'throttle'"):
        hand.huey.task(throtle=RATE)(_add)
    task = hand.huey.task()(_add)
    with pytest.raises(ConfigurationError, match="no option 'throtle': did you mean 'throttle'"):
        task(1, 2, throtle=RATE)
    with pytest.raises(ConfigurationError, match="no option 'throttle_maxwait': did you mean 'throttle_max_wait'"):
        task.schedule((1, 2), delay=1, throttle_maxwait=5)
    assert hand.huey.pending_count() == hand.huey.scheduled_count() == 0


def _add(one: int, other: int) -> int:
    return one + other


def test_a_slot_that_comes_free_is_taken_at_once(hand: Hand) -> None:
    """A job that waits for a slot of a concurrency limit runs when the one before it ends, whatever was estimated."""
    slot = Concurrency("slot", 1, lease=60)
    held = hand.limiter.acquire(slot)
    hand.huey.task(throttle=slot, name="slotted")(hand._body)("x")
    hand.step()
    hand.limiter.release(held)
    hand.huey.task(throttle=slot, name="slotted2")(hand._body)("y")
    assert hand.until(2)


def test_install_is_checked(redis_url: str) -> None:
    """A huey of another kind, a second call, another object, a task declared before with a mistake: each an error."""
    limiter = Limiter("memory://")
    with pytest.raises(ConfigurationError, match="needs a huey on Redis"):
        install(MemoryHuey(), limiter)
    with pytest.raises(ConfigurationError, match="takes a huey"):
        install("huey", limiter)
    with pytest.raises(ConfigurationError, match="takes a limiter"):
        install(RedisHuey("a", url=redis_url), "redis://")  # type: ignore[arg-type]
    huey: Any = RedisHuey("b", url=redis_url)
    install(huey, limiter)
    with pytest.raises(ConfigurationError, match="called before"):
        install(huey, limiter)
    early: Any = RedisHuey("c", url=redis_url)
    early.task(throttle=TokenBucket("k", "1/s", key="{account}"))(_nothing)
    with pytest.raises(ConfigurationError, match=r"task '_nothing'.*account"):
        install(early, limiter)


def test_immediate_mode_ignores_limits(redis_url: str) -> None:
    """With `immediate` a task runs where it is called, options of its own or not."""
    huey: Any = RedisHuey("now", url=redis_url, immediate=True)
    limiter = Limiter("memory://")
    install(huey, limiter)
    limiter.pause(RATE, 30)
    task = huey.task(throttle=RATE)(_nothing)
    assert task().get() == task(throttle=RATE).get() == "nothing"


def _nothing() -> str:
    return "nothing"


def _age(hand: Hand) -> None:
    """As if ten seconds had passed since each job in a worker's hand was taken."""
    for message, at in hand.redis.zrange(hand.key("in-hand"), 0, -1, withscores=True):
        hand.redis.zadd(hand.key("in-hand"), {message: at - 11_000_000})


def test_a_task_of_another_huey_becomes_a_task_of_this_one(redis_url: str) -> None:
    """Its function does, as with huey alone, whichever of the two has limits."""
    one, two = RedisHuey("one", url=redis_url), RedisHuey("two", url=redis_url)
    install(two, Limiter("memory://"))
    first = one.task()(_nothing)
    second = two.task(throttle=RATE)(first)
    third = one.task(name="third")(second)
    assert [each.func for each in (first, second, third)] == [_nothing] * 3
    assert second.call_local() == "nothing"


def test_immediate_mode_may_be_set_and_ended_after_install(hand: Hand) -> None:
    """While it is on, huey's memory is used and nothing of Redis; what waits there waits on."""
    task = hand.task()
    hand.deny(0.5)
    task("redis")
    hand.step()
    hand.huey.immediate = True
    task.schedule(("memory",), delay=60)
    assert hand.huey.read_schedule() == []
    assert hand.huey.dequeue() is None
    assert hand.huey.scheduled_count() == 1
    hand.huey.flush()
    assert hand.huey.scheduled_count() == 0
    hand.huey.immediate = False
    assert hand.huey.scheduled_count() == 1
    assert hand.until(1) == ["redis"]


def test_flush_leaves_no_job(hand: Hand) -> None:
    """Neither one that waits, nor one that a worker had taken and not begun: that worker does not run it."""
    task = hand.task()
    hand.deny(0.1)
    task("waits")
    hand.step()
    wait_until(lambda: hand.limiter.peek(RATE).allowed, description="the pause is over")
    task("in hand")
    taken = hand.huey.dequeue()
    hand.huey.flush()
    left = [key for key in hand.redis.keys(hand.key("*")) if not key.endswith((b":leader", b":bell", b"-priority"))]
    assert left == []
    hand.huey.execute(taken)
    assert not hand.step()
    assert (hand.ran, hand.huey.pending_count(), hand.huey.scheduled_count()) == ([], 0, 0)
    task("new")
    assert hand.until(1) == ["new"]


def test_a_look_steps_over_all_jobs_that_were_flushed(hand: Hand) -> None:
    """However many there are whose schedule was emptied by other means than `huey.flush()`."""
    task = hand.task()
    hand.deny()
    for n in range(300):
        task(n)
        hand.step()
    hand.huey.storage.flush_schedule()
    task("new")
    hand.step()
    (lane,) = hand.redis.zrange(hand.key("lanes"), 0, -1)
    assert hand.gate_schedule.wake(lane.decode())
    assert hand.redis.zcard(hand.key("due")) == hand.redis.hlen(hand.key("waiting")) == 1
    assert hand.redis.zrange(hand.key("due"), 0, -1, withscores=True)[0][1] == 0


def test_a_worker_goes_on_behind_hundreds_of_flushed_jobs_that_are_due(hand: Hand) -> None:
    """It drops some of them with each look, and takes the job behind them at once."""
    task = hand.task()
    hand.deny(600)
    for n in range(250):
        task(n)
        hand.step()
    hand.huey.storage.flush_schedule()
    hand.redis.zunionstore(hand.key("due"), {hand.key("due"): 0})  # all of them are due
    hand.task(throttle=None)("new")
    assert hand.until(1) == ["new"]
    wait_until(lambda: not hand.step() and hand.redis.zcard(hand.key("due")) == 0, description="all are dropped")


@pytest.mark.parametrize("once", [False, True], ids=["until", "once"])
def test_a_revocation_that_has_ended_is_deleted(hand: Hand, once: bool) -> None:
    """As huey does itself: nothing of it is left once it has had its effect."""
    task = hand.task()
    task.revoke(revoke_until=None if once else datetime.datetime.now(), revoke_once=once)
    task("x")
    task("y")
    assert hand.until(1 if once else 2) == (["y"] if once else ["x", "y"])
    assert not [key for key in hand.huey.all_results() if key.startswith("rt:")]


def test_the_next_job_asks_as_a_waiting_job_ends_unrun(hand: Hand) -> None:
    """Revoked jobs do not hold up those behind them until each is due: they end one after the other, long before."""
    task = hand.task()
    hand.deny(600)
    for n in range(30):
        task(n)
        hand.step()
    task.revoke()
    (lane,) = hand.redis.zrange(hand.key("lanes"), 0, -1)
    assert hand.gate_schedule.wake(lane.decode())
    hand.gate_schedule._look_at = time.monotonic() + 3_600  # no look at the lines
    hand.work_until(lambda: [name for name, _ in hand.signals].count("revoked") == 30, "all of them have ended")
    assert hand.huey.scheduled_count() == 0


def test_a_huey_may_get_priorities_while_jobs_wait(redis_url: str) -> None:
    """Of the list's huey the bell is left, which is a list: no job is lost, and the waiting ones run."""
    limiter = Limiter("memory://")
    before, after = (Hand(kind("grows", url=redis_url, read_timeout=0.2), limiter) for kind in KINDS)
    for each in (before, after):
        install(each.huey, limiter)
    first, second, free = before.task(name="job"), after.task(name="job"), after.task(name="free", throttle=None)
    assert first.task_class.__name__ == second.task_class.__name__
    before.deny(0.3)
    for n in range(3):
        first(n)
        before.step()
    (lane,) = before.redis.zrange(before.key("lanes"), 0, -1)
    assert before.gate_schedule.wake(lane.decode())
    assert before.redis.type(before.key("bell")) == b"list"
    for n in range(3, 6):
        free(n)
    assert sorted(after.until(6)) == list(range(6))
    for each in (before, after):
        each.huey.storage.pool.disconnect()


def test_a_bell_of_another_type_loses_no_job(hand: Hand) -> None:
    """What fails, fails before the job is removed from the queue."""
    task, free = hand.task(), hand.task(throttle=None)
    hand.deny()
    task("waits")
    hand.step()
    free("x")
    (waiting,) = hand.redis.zrange(hand.key("due"), 0, -1)
    hand.redis.set(hand.key("bell"), "x")
    hand.redis.zadd(hand.key("due"), {waiting: (time.time() + 0.12) * 1_000_000})  # so the bell is to ring
    with pytest.raises(ResponseError):
        hand.huey.dequeue()
    assert hand.huey.pending_count() == 1
    hand.redis.delete(hand.key("bell"))
    assert hand.until(1) == ["x"]


def _first_of_a_line_may_run(hand: Hand, task: Any, jobs: int) -> None:
    """Send jobs of `SLOW` that are denied, and give the unit back: the first one is woken, long before it was due."""
    held = hand.limiter.acquire(SLOW)
    for n in range(jobs):
        task(n)
        hand.step()
    hand.limiter.settle(held, actual=0)
    (lane,) = hand.redis.zrange(hand.key("lanes"), 0, -1)
    assert hand.gate_schedule.wake(lane.decode())
    hand.gate_schedule._look_at = time.monotonic() + 3_600  # no look at the lines


def test_a_lost_connection_at_a_wake_loses_no_granted_job(hand: Hand) -> None:
    """The job behind is woken while the granted job is in hand."""
    _first_of_a_line_may_run(hand, hand.task(throttle=SLOW), 2)
    granted = hand.huey.dequeue()
    hand.gate_schedule.wake = wake = _Breaking(hand.gate_schedule.wake, "", done=False)
    with pytest.raises(RedisConnectionError):
        hand.huey.execute(granted)
    assert (wake.lost, hand.ran, hand.in_hand) == (1, [], 1)
    _age(hand)
    assert hand.until(1) == [0]


def test_a_unit_that_a_body_gives_back_is_used_at_once(hand: Hand) -> None:
    """The next waiting job asks as the body ends, and not when it was due."""

    def give_back(what: int) -> None:
        hand.ran.append(what)
        hand.step()  # the job behind, which was woken at the grant, is denied
        current().settle(0)

    _first_of_a_line_may_run(hand, hand.huey.task(throttle=SLOW, name="gives back")(give_back), 3)
    assert hand.until(3) == [0, 1, 2]

"""What a denial does not change in huey's own data, and where a job is at each moment."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from huey import MemoryHuey, PriorityRedisHuey, RedisHuey
from huey.api import group
from huey.exceptions import CancelExecution
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from support.huey.hand import RATE, Hand
from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, Limiter, RateLimited, StoreUnavailable, TokenBucket, current
from throttlekit.stores import Request
from throttlekit.stores.memory import MemoryStore
from throttlekit_huey import install

SLOW = TokenBucket("slow", "1/hour", burst=1)
WIDE = TokenBucket("wide", "1000/s", burst=100)


def test_a_denied_job_waits_in_hueys_schedule(hand: Hand) -> None:
    """The job is one of `huey.scheduled()`, with its id and arguments. The only signal is that it was enqueued."""
    result = hand.task(retries=3)("x")
    hand.deny()
    assert hand.step()
    (waiting,) = hand.huey.scheduled()
    assert (waiting.id, waiting.args, waiting.retries, waiting.eta) == (result.id, ("x",), 3, None)
    assert (hand.huey.pending_count(), hand.in_hand) == (0, 0)
    assert hand.signals == [("enqueued", result.id)]
    assert result.get() is None


def test_denied_jobs_run_in_order_and_once(hand: Hand) -> None:
    """Each denied job runs once, in the order of sending. No key of a waiting job is left."""
    task = hand.task()
    for n in range(5):
        task(n)
    assert hand.until(5) == [0, 1, 2, 3, 4]
    assert hand.huey.scheduled_count() == hand.in_hand == 0
    assert hand.redis.keys(hand.key("*")) == []


def test_a_woken_job_runs_before_newer_ones(hand: Hand) -> None:
    """A job whose turn has come is taken before one that was sent after it."""
    task, free = hand.task(), hand.task(throttle=None)
    hand.deny(0.1)
    hand.send_denied(task, "first")
    wait_until(lambda: hand.in_hand, description="the job is woken")
    free("second")
    assert hand.until(2) == ["first", "second"]


def test_a_prolonged_pause_causes_few_requests(hand: Hand) -> None:
    """Waiting jobs are woken when the pause really ends, and not at its original end."""
    task = hand.task()
    hand.deny(0.5)
    hand.send_denied(task, *range(10))
    hand.deny(1.5)
    taken = 0

    def done() -> bool:
        nonlocal taken
        taken += hand.step()
        return len(hand.ran) == 10

    wait_until(done, description="all jobs have run")
    assert hand.ran == list(range(10))
    assert taken < 10 + 6


def test_a_woken_job_is_ordered_by_its_priority(hand: Hand) -> None:
    """
    A woken job runs after jobs with a higher priority, before others with its own, and in the order in which jobs were
    woken.
    """
    if not hand.huey.storage.priority:
        pytest.skip("the queue has no priorities")
    task, free = hand.task(throttle=WIDE), hand.task(throttle=None)
    hand.limiter.pause(WIDE, 0.1)
    for what in ("first", "second"):
        task(what, priority=5)
        hand.step()
    free("same", priority=5)
    free("low", priority=1)
    free("high", priority=9)
    hand.admission.waiting._free = lambda: 2
    wait_until(lambda: hand.in_hand == 2, description="both jobs are woken")
    assert hand.until(5) == ["high", "first", "second", "same", "low"]


def test_a_job_of_a_killed_worker_is_taken_by_another_worker(hand: Hand) -> None:
    """A worker that is killed before its request loses no job: after ten seconds another worker takes the job."""
    hand.task()("x")
    assert hand.huey.dequeue() is not None  # and the worker dies
    assert (hand.huey.pending_count(), hand.in_hand) == (0, 1)
    assert not hand.step()
    _age(hand)
    assert hand.until(1) == ["x"]
    assert hand.in_hand == 0


def test_a_task_object_that_is_enqueued_twice_runs_twice(hand: Hand) -> None:
    """A task object that is enqueued twice has two equal messages. Two workers take one each, and both run."""
    task = hand.task().s("x")
    for _ in range(2):
        hand.huey.enqueue(task)
    first, second = hand.huey.dequeue(), hand.huey.dequeue()
    assert hand.in_hand == 2
    hand.huey.execute(first)
    hand.huey.execute(second)
    assert hand.until(2) == ["x", "x"]


class _Store(MemoryStore):
    """A store that can be unavailable."""

    away = False

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
        request = Request(claims, requester, attempt)
        if self.away:
            raise StoreUnavailable("away")
        return super().decide(request.claims, request.requester, now_us, attempt=request.attempt)


def test_both_messages_of_a_task_object_wait_for_the_store(make_hand: Callable[..., Hand]) -> None:
    """Huey's schedule is a set of messages. Without a position from the store, the two messages are equal."""
    store = _Store()
    hand = make_hand(limiter=Limiter(store))
    huey, task = hand.huey, hand.task().s("x")
    for _ in range(2):
        huey.enqueue(task)
    store.away = True
    hand.work_until(lambda: not huey.pending_count(), "both messages have been denied")
    assert huey.scheduled_count() == 2
    store.away = False
    assert hand.until(1) == ["x"]
    huey.read_schedule(huey._get_timestamp() + datetime.timedelta(minutes=1))  # one of the two waits until it is due
    assert hand.until(2) == ["x", "x"]


def test_a_worker_that_was_suspended_leaves_its_job_to_another_worker(hand: Hand) -> None:
    """A worker that was suspended neither runs its job nor puts it back, and returns the units that it was charged."""
    hand.task()("x")
    slow = hand.huey.dequeue()
    _age(hand)
    other = hand.huey.dequeue()
    assert other.id == slow.id
    hand.huey.execute(other)
    wait_until(lambda: hand.limiter.peek(RATE).allowed, description="the limit has room")
    hand.huey.execute(slow)
    assert hand.ran == ["x"]
    assert hand.limiter.peek(RATE).allowed
    hand.deny()
    hand.task()("y")
    slow = hand.huey.dequeue()
    hand.redis.delete(hand.key("in-hand"))
    hand.huey.execute(slow)
    assert hand.huey.scheduled_count() == 0


_LOST = RedisConnectionError("lost")


class _Breaking:
    """A connection to Redis that fails once with *error*, after Redis has run *command* (if *done*) or before."""

    def __init__(self, broken: Any, command: str, *, done: bool = True, error: Exception = _LOST) -> None:
        self._broken, self._command, self._done, self._error, self.lost = broken, command, done, error, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broken, name) if name != self._command else self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.lost += 1
        call = self._broken if self._command == "" else getattr(self._broken, self._command)
        reply = call(*args, **kwargs) if self.lost != 1 or self._done else None
        if self.lost == 1:
            raise self._error
        return reply


def test_a_lost_reply_loses_no_granted_job(hand: Hand) -> None:
    """
    If the reply is lost as a worker releases its granted job, the worker finds that no worker has the job, and runs it.
    """
    hand.task()("x")
    task = hand.huey.dequeue()
    hand.admission.schedule._conn = _Breaking(hand.redis, "zrem")
    hand.huey.execute(task)
    assert hand.ran == ["x"]
    assert (hand.admission.schedule._conn.lost, hand.in_hand) == (2, 0)


@pytest.mark.parametrize("error", [_LOST, ReadOnlyError("You can't write against a read only replica.")], ids=repr)
def test_an_error_of_redis_loses_no_job_that_got_a_429(hand: Hand, error: Exception) -> None:
    """
    A job that got a 429 is in no list of Redis while its body runs. It is put back when Redis is available again, for
    example after a failover.
    """

    @hand.huey.task(throttle=RATE, name="angry")  # type: ignore[misc]
    def angry() -> None:
        hand.ran.append("ran")
        if len(hand.ran) == 1:
            raise RateLimited(1.0)  # so that it still waits when the test looks

    angry()
    task = hand.huey.dequeue()
    hand.admission.schedule._defer = _Breaking(hand.admission.schedule._defer, "", done=error is _LOST, error=error)
    hand.huey.execute(task)
    assert hand.huey.scheduled_count() == 1
    assert hand.until(2) == ["ran", "ran"]


@pytest.mark.parametrize("error", [_LOST, ReadOnlyError("You can't write against a read only replica.")], ids=repr)
def test_an_error_of_redis_does_not_stop_the_end_of_a_consumer(plain: Hand, error: Exception) -> None:
    """The consumer ends in an outage too. The jobs that it holds stay in huey's schedule."""
    task = plain.task()
    plain.deny(600)
    plain.send_denied(task, "x")
    plain.admission.schedule._wake = _Breaking(plain.admission.schedule._wake, "", done=False, error=error)
    plain.admission.waiting.close()
    assert (plain.in_hand, plain.huey.scheduled_count()) == (0, 1)


def test_a_stopped_consumer_waits_once_for_all_workers(plain: Hand) -> None:
    """A greenlet is waited for even if it is busy. The time for all of them together is bounded."""
    given: list[float] = []

    class Busy:
        def join(self, seconds: float) -> None:
            given.append(seconds)
            time.sleep(seconds)

    consumer = plain.huey.create_consumer(workers=1)
    consumer.worker_threads = [(None, Busy()) for _ in range(3)]
    consumer.stop()
    assert given == pytest.approx([0.4, 0.0, 0.0], abs=0.1)


def test_a_lost_connection_loses_no_job_that_arrived_while_a_worker_listened(hand: Hand) -> None:
    """
    A job that has just arrived is in no list of Redis until the worker registers it. The worker keeps it, and repeats
    the command.
    """
    task, sender = hand.task(), threading.Timer(0.05, lambda: task("x"))
    hand.admission.schedule._take = take = _Breaking(hand.admission.schedule._take, "", done=False)
    take.lost = -1  # the first call finds nothing, and the worker listens
    sender.start()
    with pytest.raises(RedisConnectionError):
        hand.step()
    assert hand.until(1) == ["x"]
    sender.join()


def test_jobs_without_limits_are_processed_by_huey_alone(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that names no limit is in no list of throttlekit, and costs no additional command."""
    assert not hand.step()  # the server knows the script
    hand.task(throttle=None)("x")
    hand.task()  # another task has limits
    sent: list[tuple[int, str]] = []
    execute: Any = Redis.execute_command

    def record_command(client: Any, *args: Any, **options: Any) -> Any:
        sent.append((threading.get_ident(), args[0]))
        return execute(client, *args, **options)

    monkeypatch.setattr(Redis, "execute_command", record_command)
    task = hand.huey.dequeue()
    assert [command for thread, command in sent if thread == threading.get_ident()] == ["EVALSHA"]
    assert hand.in_hand == 0
    hand.huey.execute(task)
    assert hand.ran == ["x"]


@pytest.mark.parametrize("limited", [True, False])
def test_an_idle_worker_takes_a_job_at_once(hand: Hand, limited: bool) -> None:
    """A worker that listens takes the job at once. The job is registered with the worker only if it can have limits."""
    task = hand.task(throttle=RATE if limited else None)
    listening = threading.Event()
    listen = hand.admission.schedule._listen

    def record_listening(seconds: float) -> bytes:
        listening.set()
        return listen(seconds)

    hand.admission.schedule._listen = record_listening
    taken: list[Any] = []
    worker = threading.Thread(target=lambda: taken.append(hand.huey.dequeue()))
    worker.start()
    assert listening.wait(10)
    sent = task("x")
    worker.join()
    while taken[-1] is None:  # the job was sent between two calls
        taken.append(hand.huey.dequeue())
    assert taken[-1].id == sent.id
    assert hand.in_hand == limited
    hand.huey.execute(taken[-1])
    assert (hand.ran, hand.in_hand) == (["x"], 0)


def test_compressed_messages_are_not_lost(make_hand: Callable[..., Hand]) -> None:
    """
    If the name of a task cannot be read from a message, the job stays registered until it is known to have no limit.
    """
    hand = make_hand(compression=True)
    huey = hand.huey
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


def test_a_job_of_a_killed_process_runs_again(hand: Hand) -> None:
    """
    The process of the job was killed. Ten seconds after the job's turn, the scheduler of any consumer passes it to a
    worker.
    """
    task = hand.task()
    hand.deny(0.5)
    hand.send_denied(task, "waiting")
    hand.admission.waiting.waker.close()  # as if the process was killed
    task.schedule(("scheduled",), delay=60)
    hand.step()
    now = hand.huey._get_timestamp()
    assert hand.huey.read_schedule(now + datetime.timedelta(seconds=9)) == []
    assert hand.in_hand == 0
    assert hand.huey.read_schedule(now + datetime.timedelta(seconds=11)) == []
    assert (hand.in_hand, hand.huey.scheduled_count()) == (1, 1)
    wait_until(lambda: hand.limiter.peek(RATE).reason != "paused", description="the pause is over")
    hand.admission.waiting.close()
    hand.admission.waiting.begin()  # another process
    assert hand.until(1) == ["waiting"]


def test_hundreds_of_jobs_of_a_killed_process_run_again(plain: Hand) -> None:
    """
    All jobs of a killed process run again, also if they are more than one call of the script moves, among as many jobs
    that the user scheduled.
    """
    task = plain.task()
    plain.deny(600)
    for n in range(120):
        task.schedule((n,), delay=60)
        task("waiting")
    for _ in range(240):
        plain.step()
    later = plain.huey._get_timestamp() + datetime.timedelta(hours=1)
    assert sorted(each.args[0] for each in plain.huey.read_schedule(later)) == list(range(120))
    assert (plain.in_hand, plain.huey.scheduled_count()) == (120, 0)


def test_hueys_own_scheduler_takes_a_waiting_job(plain: Hand) -> None:
    """If this adapter was removed, huey's own scheduler takes a waiting job ten seconds after its turn."""
    task = plain.task()
    plain.deny(0.5)
    plain.send_denied(task, "waiting")
    stock: Any = RedisHuey(plain.huey.name, connection_pool=plain.huey.storage.pool)
    later = stock._get_timestamp() + datetime.timedelta(seconds=11)
    assert len(stock.storage.read_schedule(later)) == 1
    wait_until(lambda: not len(plain.admission.waiting.waker), description="the job is woken, and found to be removed")
    assert plain.ran == []


def test_a_process_that_stops_passes_its_jobs_to_others(hand: Hand) -> None:
    """Workers take the jobs at once, in their order. This includes a job that is denied later."""
    task = hand.task()
    hand.deny(600)
    for n in range(250):
        task(n)
    for _ in range(249):
        hand.step()
    hand.admission.waiting.close()
    assert (hand.in_hand, hand.huey.scheduled_count()) == (249, 0)
    taken = [hand.huey.dequeue() for _ in range(249)]
    assert [each.args[0] for each in taken] == list(range(249))
    late = hand.huey.dequeue()
    hand.huey.execute(late)
    assert (hand.huey.dequeue().args, hand.huey.scheduled_count()) == ((249,), 0)


def test_revoke_restore_and_expiry_apply_to_waiting_jobs(hand: Hand) -> None:
    """
    A waiting job that is revoked ends with huey's signal, and one that is restored runs. The expiry of a job is not
    changed.
    """
    task = hand.task()
    hand.deny(1.0)
    revoked, restored, expired = task("a"), task("b"), task("c", expires=0.5)
    for _ in range(3):
        hand.step()
    revoked.revoke()
    restored.revoke()
    restored.restore()
    assert hand.until(1) == ["b"]
    wait_until(lambda: not hand.step(), description="all jobs have ended")
    ended = {task_id: signal for signal, task_id in hand.signals}
    assert (ended[revoked.id], ended[expired.id]) == ("revoked", "expired")
    assert hand.ran == ["b"]


def test_retries_pipelines_chords_and_error_tasks_follow_waiting_jobs(hand: Hand) -> None:
    """A body that fails is retried by huey. Pipelines, chords and `error` tasks run after jobs that waited."""
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


def test_locks_hooks_and_context_work_as_usual(hand: Hand) -> None:
    """For a task with a lock, hooks and its own context, the hooks run with each run, including one that a 429 ends."""
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


def test_a_job_that_a_hook_cancels_returns_its_slot_and_units(hand: Hand) -> None:
    """If a hook cancels a job, its body does not run, its slot is free at once, and no rate is charged."""
    slot = Concurrency("cancelled", 1, lease=60)

    @hand.huey.pre_execute("no")  # type: ignore[misc]
    def cancel_x(task: Any) -> None:
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


def test_limits_of_one_call_apply_to_that_call(hand: Hand) -> None:
    """Limits can be passed to `task(…)`, `s(…)` and `schedule(…)`. The body never gets them."""
    own = TokenBucket("own", "1/hour", burst=1, key="{what}")
    task = hand.task(throttle=None)
    task("a", throttle=own)
    hand.huey.enqueue(task.s("a", throttle=[own], throttle_max_wait=0.01))
    task.schedule(("b",), delay=0.01, throttle=own)
    hand.work_until(lambda: len(hand.ran) == 2, "two jobs have run")
    hand.work_until(lambda: any(signal == "error" for signal, _ in hand.signals), "the third job has failed")
    assert sorted(hand.ran) == ["a", "b"]


def test_a_misspelt_option_is_refused(hand: Hand) -> None:
    """
    huey accepts any option of a task, and passes those of a call to the function. A misspelt one is an error at once.
    """
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


def test_a_free_slot_is_taken_at_once(hand: Hand) -> None:
    """A job that waits for a slot runs when the previous job ends, whatever was estimated."""
    slot = Concurrency("slot", 1, lease=60)
    held = hand.limiter.acquire(slot)
    hand.huey.task(throttle=slot, name="slotted")(hand._body)("x")
    hand.step()
    hand.limiter.release(held)
    hand.huey.task(throttle=slot, name="slotted2")(hand._body)("y")
    assert hand.until(2)


def test_install_refuses_wrong_arguments_and_declarations(redis_url: str) -> None:
    """A huey of another kind, a second call, another object, and a task that was declared with a mistake are errors."""
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
    """With `immediate` a task runs where it is called, with or without its own options."""
    huey: Any = RedisHuey("now", url=redis_url, immediate=True)
    limiter = Limiter("memory://")
    install(huey, limiter)
    limiter.pause(RATE, 30)
    task = huey.task(throttle=RATE)(_nothing)
    assert task().get() == task(throttle=RATE).get() == "nothing"


def _nothing() -> str:
    return "nothing"


def _age(hand: Hand) -> None:
    """Change the data as if ten seconds had passed since each job was taken by a worker."""
    for message, at in hand.redis.zrange(hand.key("in-hand"), 0, -1, withscores=True):
        hand.redis.zadd(hand.key("in-hand"), {message: at - 11_000_000})


def test_a_task_of_another_huey_becomes_a_task_of_this_one(redis_url: str) -> None:
    """As with huey alone, the new task has the function of the other one, whichever huey has limits."""
    one, two = RedisHuey("one", url=redis_url), RedisHuey("two", url=redis_url)
    install(two, Limiter("memory://"))
    first = one.task()(_nothing)
    second = two.task(throttle=RATE)(first)
    third = one.task(name="third")(second)
    assert [each.func for each in (first, second, third)] == [_nothing] * 3
    assert second.call_local() == "nothing"


def test_immediate_mode_can_be_set_and_ended_after_install(hand: Hand) -> None:
    """In immediate mode, huey's memory is used and not Redis. Jobs that wait in Redis keep waiting."""
    task = hand.task()
    hand.deny(0.5)
    hand.send_denied(task, "redis")
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


def test_flush_removes_every_job(hand: Hand) -> None:
    """A flush removes waiting jobs, and a job that a worker has taken and not begun: that worker does not run it."""
    task = hand.task()
    hand.deny(0.1)
    hand.send_denied(task, "waits")
    wait_until(lambda: hand.limiter.peek(RATE).reason != "paused", description="the pause is over")
    task("in hand")
    taken = hand.huey.dequeue()
    hand.huey.flush()
    assert hand.redis.keys(hand.key("*")) == []
    hand.huey.execute(taken)
    assert not hand.step()
    assert (hand.ran, hand.huey.pending_count(), hand.huey.scheduled_count()) == ([], 0, 0)
    task("new")
    assert hand.until(1) == ["new"]


def test_flushed_jobs_delay_no_other_job(hand: Hand) -> None:
    """Any number of jobs whose schedule was emptied by other means than `huey.flush()` delay no other job."""
    task, held = hand.task(throttle=SLOW), hand.limiter.acquire(SLOW)
    hand.send_denied(task, *range(300))
    hand.huey.storage.flush_schedule()
    hand.send_denied(task, "new")
    hand.limiter.settle(held, actual=0)
    assert hand.until(1) == ["new"]


def test_a_worker_skips_hundreds_of_woken_jobs_that_were_flushed(hand: Hand) -> None:
    """A worker removes the flushed jobs, and takes the job behind them."""
    task = hand.task()
    hand.deny(600)
    hand.send_denied(task, *range(250))
    hand.huey.read_schedule(hand.huey._get_timestamp() + datetime.timedelta(hours=1))
    assert hand.in_hand == 250
    hand.redis.delete(hand.key("in-hand"))
    hand.task(throttle=None)("new")
    assert hand.until(1) == ["new"]


@pytest.mark.parametrize("once", [False, True], ids=["until", "once"])
def test_a_revocation_that_has_ended_is_deleted(hand: Hand, once: bool) -> None:
    """As in huey itself, a revocation is deleted after it has taken effect."""
    task = hand.task()
    task.revoke(revoke_until=None if once else datetime.datetime.now(), revoke_once=once)
    task("x")
    task("y")
    assert hand.until(1 if once else 2) == (["y"] if once else ["x", "y"])
    assert not [key for key in hand.huey.all_results() if key.startswith("rt:")]


def test_revoked_jobs_delay_no_other_job(hand: Hand) -> None:
    """Revoked jobs are woken one after the other, and none of them uses a unit."""
    task = hand.task(throttle=SLOW)
    held = hand.limiter.acquire(SLOW)
    hand.send_denied(task, *range(30))
    other = hand.task(throttle=SLOW)
    hand.send_denied(other, "other")
    task.revoke()
    hand.limiter.settle(held, actual=0)
    assert hand.until(1) == ["other"]
    assert [name for name, _ in hand.signals].count("revoked") == 30


def test_a_huey_can_get_priorities_while_jobs_wait(make_hand: Callable[..., Hand]) -> None:
    """A huey can get priorities while jobs that the huey without them has woken are in a list. No job is lost."""
    limiter = Limiter("memory://")
    before, after = (make_hand(kind, name="grows", limiter=limiter) for kind in (RedisHuey, PriorityRedisHuey))
    first, second, free = before.task(name="job"), after.task(name="job"), after.task(name="free", throttle=None)
    assert first.task_class.__name__ == second.task_class.__name__
    before.deny(0.1)
    before.send_denied(first, *range(3))
    wait_until(lambda: before.in_hand, description="one job is woken")
    assert before.redis.type(before.key("woken")) == b"list"
    before.admission.waiting.close()
    for n in range(3, 6):
        free(n)
    after.until(3)
    _age(after)
    assert sorted(after.until(6)) == list(range(6))


def test_a_key_of_another_type_loses_no_job(hand: Hand) -> None:
    """If a key has another type, the command fails before it removes the job."""
    task, free = hand.task(), hand.task(throttle=None)
    hand.deny(0.2)
    hand.send_denied(task, "waits")
    free("x")
    hand.redis.set(hand.key("woken"), "x")
    wait_until(lambda: hand.in_hand, description="the other job is woken")
    with pytest.raises(ResponseError):
        hand.huey.dequeue()
    assert hand.huey.pending_count() == 1
    hand.redis.delete(hand.key("woken"))
    _age(hand)
    assert sorted(hand.until(2)) == ["waits", "x"]


def test_a_unit_that_a_body_returns_is_used_at_once(hand: Hand) -> None:
    """The next waiting job requests when the body ends, and not at its estimated time."""

    def return_unit(what: int) -> None:
        hand.ran.append(what)
        current().settle(0)

    held, task = hand.limiter.acquire(SLOW), hand.huey.task(throttle=SLOW, name="returns unit")(return_unit)
    hand.send_denied(task, *range(3))
    hand.limiter.settle(held, actual=0)
    assert hand.until(3) == [0, 1, 2]


def test_a_lost_reply_to_a_wake_loses_no_position(hand: Hand) -> None:
    """A job that was woken despite a lost reply is woken again, and found with its worker. It requests in its turn."""
    held, task = hand.limiter.acquire(SLOW), hand.task(throttle=SLOW)
    hand.send_denied(task, *range(2))
    hand.admission.schedule._wake = wake = _Breaking(hand.admission.schedule._wake, "")
    hand.limiter.settle(held, actual=0)
    wait_until(lambda: wake.lost == 2, description="the job was woken twice")
    assert hand.in_hand == 1
    assert hand.until(1) == [0]


def test_jobs_that_end_in_another_process_leave_the_waitlist(make_hand: Callable[..., Hand], redis_url: str) -> None:
    """The jobs waited in one process, and another one finds that they were revoked. The next job is woken at once."""
    limiter = Limiter(redis_url)
    one, two = (make_hand(name="shared", limiter=limiter) for _ in range(2))
    task, other = (one.task(name=name, throttle=SLOW) for name in ("job", "other"))
    for name in ("job", "other"):
        two.task(name=name, throttle=SLOW)
    held = limiter.acquire(SLOW)
    one.send_denied(task, *range(5))
    one.send_denied(other, "other")
    task.revoke()
    limiter.settle(held, actual=0)
    assert two.until(1) == ["other"]
    assert [name for name, _ in two.signals].count("revoked") == 5
    assert not [key for key in one.redis.keys("tk1:{slow:}*") if b"entries" in key]

"""taskiq's receiver works as without throttlekit: concurrency, prefetch, schedules, and brokers in memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pika
import pytest
from aio_pika import ExchangeType
from redis import Redis
from redis.asyncio import Connection
from redis.asyncio import Redis as AsyncRedis
from taskiq import AsyncBroker, InMemoryBroker, TaskiqScheduler
from taskiq.brokers.shared_broker import AsyncSharedBroker
from taskiq.receiver import Receiver
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_aio_pika import AioPikaBroker, Exchange
from taskiq_redis import PubSubBroker

from support.faults.processes import Command
from support.servers.flood import Servers
from support.servers.processes import RedisProcess
from support.servers.proxy import Proxy
from support.taskiq.brokers import KINDS, Kind, make_broker
from support.taskiq.jobs import limits_of
from support.taskiq.site import Loop, taskiq_worker, worker_command
from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, Limiter, RateLimited, TokenBucket, current
from throttlekit_taskiq import Throttle

_SLOW = TokenBucket("slow", "1/hour", burst=1)


class _Fleet:
    def __init__(
        self, kind: Kind, servers: Servers, queue: str, *options: str, workers_url: str = "", **broker: Any
    ) -> None:
        settings: dict[str, Any] = {
            "kind": kind,
            "broker": workers_url or servers.broker_url,
            "store": servers.store_url,
            "queue": queue,
            "results": f"{servers.redis_base}/3",
            "options": broker,
        }
        self._loop = Loop()
        self.broker = make_broker(kind, servers.broker_url, settings["results"], queue, **broker)
        self.tasks = {name: self.broker.task(name)(_declared_task(name)) for name in ("denied", "slotted", "free")}
        self.limiter = Limiter(servers.store_url)
        self.slow, self.slot = limits_of(queue)
        self._loop.run(self.broker.startup())
        self.worker: Command = taskiq_worker(
            "support.taskiq.jobs:broker", *options, environment={"TK_TASKIQ": json.dumps(settings)}
        )

    def send(self, name: str, *args: Any, task_id: str = "", **labels: Any) -> Any:
        kicker = self.tasks[name].kicker().with_labels(**labels)
        return self._loop.run((kicker.with_task_id(task_id) if task_id else kicker).kiq(*args))

    def result(self, sent: Any, within: float = 30.0) -> Any:
        return self._loop.run(sent.wait_result(timeout=within, check_interval=0.02))

    def has_result(self, sent: Any) -> bool:
        return bool(self._loop.run(sent.is_ready()))

    def close(self) -> None:
        self.worker.close()
        self.limiter.close()
        self._loop.run(self.broker.shutdown())
        self._loop.close()


def _declared_task(name: str) -> Any:
    async def task(*args: Any) -> Any: ...

    task.__name__ = name
    return task


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[_Fleet] = []

    def make(kind: Kind, *options: str, **broker_options: Any) -> _Fleet:
        servers = request.getfixturevalue("on_rabbitmq" if kind == "rabbitmq" else "on_redis")
        made.append(_Fleet(kind, servers, f"receiver-{kind}-{time.time_ns()}", *options, **broker_options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.workers
@pytest.mark.parametrize("kind", KINDS)
def test_waiting_tasks_use_no_slot_of_the_worker(kind: Kind, fleet: Any) -> None:
    """
    50 tasks wait in a worker that runs one task at a time, on RabbitMQ with a window of 2 messages. Tasks without
    limits run in the meantime.
    """
    broker = {"qos": 2} if kind == "rabbitmq" else {}
    site = fleet(kind, "--max-async-tasks", "1", **broker)
    for _ in range(50):
        site.send("denied")
    for number in range(5):
        assert site.result(site.send("free", number)).return_value == number


@pytest.mark.workers
def test_a_worker_that_lost_its_connection_puts_no_task_back_twice(fleet: Any, on_rabbitmq: Servers) -> None:
    """
    The tasks that a worker held when its connection broke are delivered to it again. It puts only those deliveries
    back.
    """
    url = on_rabbitmq.broker_url
    port = re.findall(r":(\d+)", url)[-1]
    with Proxy(int(port)) as proxy:
        site = fleet("rabbitmq", workers_url=url.replace(port, str(proxy.port)))
        queue, connections = site.broker._task_queues[0].name, proxy.connections

        def ready() -> int:
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                return int(connection.channel().queue_declare(queue, passive=True).method.message_count)

        site.result(site.send("denied"))  # the task that is admitted
        for _ in range(20):
            site.send("denied")
        wait_until(lambda: ready() == 0, description="all tasks are held")
        proxy.cut()
        wait_until(lambda: ready() == 20, description="RabbitMQ has the messages again")
        wait_until(lambda: proxy.connections == connections, description="the worker is connected again")
        wait_until(lambda: ready() == 0, description="all tasks are held again")
        assert site.result(site.send("free", 1)).return_value == 1
        os.kill(site.worker.pid, signal.SIGTERM)
        assert site.worker.ends_within(30)
        wait_until(lambda: ready() >= 20, description="the worker has put the tasks back")
        assert ready() == 20


@pytest.mark.workers
def test_an_outage_of_a_list_loses_no_waiting_task(on_redis: Servers) -> None:
    """The worker process ends when its connection is lost, as in taskiq, after it has put the waiting tasks back."""
    with closing(RedisProcess()) as broker:
        broker.start()
        with closing(_Fleet("list", replace(on_redis, broker_url=broker.url), f"away-{time.time_ns()}")) as site:
            queue = site.broker.queue_name  # type: ignore[attr-defined]
            site.result(site.send("denied"))  # the task that is admitted
            for _ in range(20):
                site.send("denied")
            wait_until(lambda: broker.client.llen(queue) == 0, description="all tasks are held")
            assert site.result(site.send("free", 1)).return_value == 1
            broker.kill()
            wait_until(
                lambda: "The broker is unavailable" in site.worker.log(),
                description="the worker has logged the lost connection",
            )
            broker.start()
            wait_until(
                lambda: site.worker.log().count("Listening started.") == 2, description="the worker has started again"
            )
            wait_until(lambda: broker.client.llen(queue) == 0, description="all tasks are held again")
            os.kill(site.worker.pid, signal.SIGTERM)
            assert site.worker.ends_within(30)
            assert broker.client.llen(queue) == 20


@pytest.mark.workers
@pytest.mark.parametrize("kind", ["list", "stream"])
def test_two_tasks_with_one_id_both_wait(kind: Kind, fleet: Any, on_redis: Servers) -> None:
    """
    A sender can choose an id, and send it twice. Neither task makes the worker send the other one through the broker
    repeatedly.
    """
    site = fleet(kind)
    site.result(site.send("denied"))  # the task that is admitted
    for _ in range(2):
        site.send("denied", task_id="same")
    urls = on_redis.broker_url, on_redis.store_url
    with closing(Redis.from_url(urls[0])) as broker, closing(Redis.from_url(urls[1])) as store:

        def sent() -> int:
            stats = broker.info("commandstats")
            return sum(stats.get(f"cmdstat_{each}", {"calls": 0})["calls"] for each in ("xadd", "lpush"))

        def waiting() -> int:
            return sum(store.hlen(name) for name in store.keys(f"*{site.slow.name}*:entries1"))

        wait_until(lambda: waiting() == 2, description="both tasks wait")
        before = sent()
        for number in range(5):
            assert site.result(site.send("free", number)).return_value == number
        assert sent() - before == 5


@pytest.mark.workers
@pytest.mark.parametrize("kind", ["stream", "rabbitmq"])
@pytest.mark.parametrize("fails", ["middleware", "ack"])
def test_a_grant_without_a_body_is_returned(kind: Kind, fails: str, fleet: Any) -> None:
    """An error between the grant and the body leaves no slot taken, whose lease is ten minutes, and no unit charged."""
    site = fleet(kind)
    site.send("slotted", 1, fails=fails, ack_type="when_received")
    words = "a middleware behind Throttle fails" if fails == "middleware" else "an acknowledgement fails"
    assert site.result(site.send("free", 1)).return_value == 1
    wait_until(lambda: site.limiter.peek(site.slot).allowed, description="the slot is free")
    for number in range(2):  # the rate admits two tasks in an hour
        assert site.result(site.send("slotted", number)).return_value == number
    os.kill(site.worker.pid, signal.SIGTERM)
    assert site.worker.ends_within(30)
    assert words in site.worker.log()  # asyncio logs it as the worker ends, or before


@pytest.mark.workers
def test_a_message_that_another_worker_has_claimed_is_left_to_it(fleet: Any, on_redis: Servers) -> None:
    """Another worker has claimed a message that waits here. It is neither run here nor claimed again."""
    site = fleet("stream", idle_timeout=4_000, xread_block=200)
    queue, group = site.broker.queue_name, site.broker.consumer_group_name
    site.result(site.send("denied"))  # the task that is admitted
    waits = site.send("denied")
    with closing(Redis.from_url(on_redis.broker_url, decode_responses=True)) as broker:

        def pending() -> Any:
            return broker.xpending_range(queue, group, "-", "+", 10)

        wait_until(lambda: [each["times_delivered"] for each in pending()] == [1], description="the task waits")
        (held,) = pending()
        broker.xclaim(queue, group, "another", 0, [held["message_id"]])
        # The worker checks every 0.5 s, and renews its claim on its messages every 200 ms.
        wait_until(
            lambda: pending()[0]["time_since_delivered"] > 3_000, description="the worker has checked the message"
        )
        assert [each["consumer"] for each in pending()] == ["another"]
        site.limiter.reset(site.slow)
        assert site.result(site.send("denied")).is_err is False  # the one unit was free for this task
        assert not site.has_result(waits)
        assert [each["consumer"] for each in pending()] == ["another"]


def test_a_stream_shows_the_owner_of_a_message(redis_url: str, limiter: Limiter) -> None:
    """
    A message that its worker renews stays that worker's, also after it was deleted from the stream, as by `maxlen=`,
    because no other worker can read it. One that was claimed by another or acknowledged elsewhere does not.
    """
    asyncio.run(_check_owner(redis_url, limiter))


async def _check_owner(redis_url: str, limiter: Limiter) -> None:
    broker: Any = make_broker("stream", redis_url, None, "whose", idle_timeout=60_000)
    broker.add_middlewares(throttle := Throttle(limiter))
    await broker.startup()
    task = broker.task("any")(_declared_task("any"))
    await task.kiq()
    stream = broker.listen()
    message = (await anext(stream)).data
    async with AsyncRedis.from_url(redis_url) as client:

        async def is_ours() -> bool:
            message.since -= 30.0  # as if the message had waited for that long
            return bool(await throttle._holding.is_ours(message))

        async def claimed_by(name: str) -> None:
            (held,) = await client.xpending_range("whose", "taskiq", "-", "+", 1)
            await client.xclaim("whose", "taskiq", name, 0, [held["message_id"]])

        assert await is_ours()
        await claimed_by("another")
        assert not await is_ours()
        (held,) = await client.xpending_range("whose", "taskiq", "-", "+", 1)
        assert held["consumer"] == b"another"
        await claimed_by(broker.consumer_name)
        assert await is_ours()
        await message.confirm()
        assert not await is_ours()
        await task.kiq()
        message = (await anext(stream)).data
        assert await is_ours()
        await client.xtrim("whose", maxlen=0, approximate=False)
        for _ in range(2):
            assert await is_ours()
        await task.kiq()
        message = (await anext(stream)).data
        await client.xtrim("whose", maxlen=0, approximate=False)
        await client.xautoclaim("whose", "taskiq", "another", 60_000)  # removes it from the pending list
        message.renewed_at -= 60.0
        assert not await is_ours(), "another worker may have claimed and acknowledged it"
        message.renewed_at += 60.0
        assert await is_ours()
    await stream.aclose()
    await broker.shutdown()


def test_a_slow_worker_claims_all_messages_of_a_dead_one(redis_url: str, limiter: Limiter) -> None:
    """Claiming can take longer than the idle time: each message belongs to the worker only after it was passed on."""
    asyncio.run(_claim_slowly(redis_url, limiter))


async def _claim_slowly(redis_url: str, limiter: Limiter) -> None:
    broker: Any = make_broker("stream", redis_url, None, "slow", idle_timeout=200)
    broker.add_middlewares(throttle := Throttle(limiter))
    await broker.startup()
    task = broker.task("any")(_declared_task("any"))
    sent = {(await task.kiq()).task_id for _ in range(4)}
    loop = asyncio.get_running_loop()
    async with AsyncRedis.from_url(redis_url) as client:
        await client.xreadgroup("taskiq", "dead", {"slow": ">"}, count=4)
        stream, ran = throttle._holding._read_abandoned(0.2), set[str]()
        while len(ran) < 4:
            message = await asyncio.wait_for(anext(stream), 30.0)
            ran.add(broker.formatter.loads(message.data).task_id)
            # Only messages that it has passed on are its own.
            assert len(await client.xpending_range("slow", "taskiq", "-", "+", 4, broker.consumer_name)) == 1
            handed_on_at = loop.time()
            while loop.time() < handed_on_at + 0.12:  # more than half of the time after which a message counts as idle
                await asyncio.sleep(0.01)
            await message.ack()
        await stream.aclose()
    assert ran == sent
    await broker.shutdown()


@pytest.mark.workers
@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_process_pool_is_refused_as_a_worker_starts(kind: Kind, on_redis: Servers) -> None:
    """A limit could not hold in other processes. The worker refuses before it takes a task, even one without limits."""
    with closing(Redis.from_url(on_redis.broker_url)) as client:
        queue = f"pool-{time.time_ns()}"
        settings = {"kind": kind, "broker": on_redis.broker_url, "store": on_redis.store_url, "queue": queue}
        loop, broker = Loop(), make_broker(kind, on_redis.broker_url, None, queue)
        loop.run(broker.startup())
        loop.run(broker.task("free")(_declared_task("free")).kiq(1))
        environment = {"TK_TASKIQ": json.dumps({**settings, "results": None, "options": {}})}
        command = worker_command("support.taskiq.jobs:broker", "--use-process-pool")
        with closing(Command(command, environment)) as worker:
            wait_until(
                lambda: "does not work with a pool of processes" in worker.log(),
                description="the worker has refused the pool",
            )
        left = client.llen(queue) if kind == "list" else client.xinfo_groups(queue)[0]["lag"]
        assert left == 1
        loop.run(broker.shutdown())
        loop.close()


class _FailsAtEnd(InMemoryBroker):
    """Its pending read fails as the worker stops."""

    reading: asyncio.Event

    async def listen(self) -> Any:
        self.reading.set()
        try:
            await asyncio.Event().wait()
            yield b""
        except asyncio.CancelledError:
            raise RuntimeError("the pending read failed") from None


def test_an_error_at_shutdown_reaches_the_receiver(limiter: Limiter) -> None:
    """An error that a broker's read raises as the worker stops ends the receiver, as without throttlekit."""

    async def main() -> None:
        broker = _FailsAtEnd()
        broker.add_middlewares(Throttle(limiter))
        finish, broker.reading = asyncio.Event(), asyncio.Event()
        receiving = asyncio.ensure_future(Receiver(broker, max_async_tasks=1, run_startup=False).listen(finish))
        await broker.reading.wait()
        finish.set()
        with pytest.raises(RuntimeError, match="the pending read failed"):
            await receiving

    asyncio.run(main())


def test_a_message_that_arrives_as_its_worker_closes_the_read_is_not_lost(
    redis_url: str, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis would give the message to the read, which still exists in the server, and the message would be lost."""
    broker: Any = make_broker("list", redis_url, None, "closing")
    broker.add_middlewares(Throttle(limiter))
    disconnect, sent = Connection.disconnect, list[str]()

    with closing(Redis.from_url(redis_url, decode_responses=True)) as client:
        database = str(client.connection_pool.connection_kwargs["db"])

        def is_reading() -> bool:
            return any((each["db"], each["cmd"]) == (database, "brpop") for each in client.client_list())

        async def send_and_disconnect(connection: Any, *args: Any, **options: Any) -> None:
            sent.append(f"late {len(sent)}")
            client.lpush("closing", sent[-1])
            await disconnect(connection, *args, **options)

        async def main() -> None:
            finish = asyncio.Event()
            receiving = asyncio.ensure_future(Receiver(broker, max_async_tasks=1).listen(finish))
            while not is_reading():
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Connection, "disconnect", send_and_disconnect)
            finish.set()
            await receiving
            await broker.shutdown()

        asyncio.run(main())
        monkeypatch.undo()
        left = client.lrange("closing", 0, -1)
    assert sent
    assert sorted(left) == sent


class _SlowToTake(InMemoryBroker):
    """A queue that needs a while to store a message, and has no acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[bytes] = []

    async def kick(self, message: Any) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        self.queue.append(message.message)

    async def listen(self) -> Any:
        while self.queue:
            yield self.queue.pop(0)
        await asyncio.Event().wait()


def test_a_task_that_is_denied_after_the_stream_was_closed_is_put_back(limiter: Limiter) -> None:
    """taskiq waits only for the callbacks that it has begun. A callback ends after its task is put back."""
    broker = _SlowToTake()
    broker.add_middlewares(Throttle(limiter))
    broker.is_worker_process = True

    @broker.task(throttle=[_SLOW])
    async def job() -> None: ...

    async def main() -> None:
        await broker.startup()
        receiver = Receiver(broker, max_async_tasks=10, run_startup=False)
        for _ in range(2):
            await job.kiq()
        _, second = broker.queue
        listening = broker.listen()
        messages = [await anext(listening) for _ in range(2)]
        await listening.aclose()
        callbacks = [asyncio.ensure_future(receiver.callback(message)) for message in messages]
        await asyncio.wait(callbacks)
        assert [json.loads(each)["task_id"] for each in broker.queue] == [json.loads(second)["task_id"]]

    asyncio.run(main())


class NatsBroker(InMemoryBroker):
    """Like that of taskiq-nats, which gives each message to all workers unless it has a queue."""

    queue: str | None = None


@pytest.mark.parametrize(
    "broker",
    [
        lambda: PubSubBroker("redis://127.0.0.1:1"),
        lambda: AioPikaBroker("amqp://127.0.0.1:1", exchange=Exchange(type=ExchangeType.FANOUT)),
        NatsBroker,
    ],
    ids=["pub/sub", "fanout", "NATS without a queue"],
)
def test_a_broker_that_gives_a_message_to_many_is_refused(broker: Any, limiter: Limiter) -> None:
    """A task that one worker puts back as it stops would run in all. Adding the middleware raises."""
    with pytest.raises(ConfigurationError, match="delivers each message to several workers"):
        broker().add_middlewares(Throttle(limiter))


def test_a_denied_task_of_a_broker_in_memory_waits_in_its_sender(broker: InMemoryBroker) -> None:
    """`InMemoryBroker`, for tests, has no stream of messages. A denied task waits where it was sent."""
    ran: list[float] = []

    @broker.task(throttle=[TokenBucket("five", "20/s", burst=1)])
    async def job() -> int:
        assert current().decision is not None
        ran.append(time.monotonic())
        return 1

    async def main() -> None:
        await broker.startup()
        for _ in range(3):
            sent = await job.kiq()
            assert (await sent.get_result()).return_value == 1

    begun = time.monotonic()
    asyncio.run(main())
    assert ran[2] - begun >= 0.09


def test_a_task_with_a_429_runs_again_in_memory(broker: InMemoryBroker, run_task: Any) -> None:
    """A body that gets a 429 runs once more after the pause, and no retry is counted."""
    ran: list[Any] = []

    @broker.task(throttle=[TokenBucket("angry", "100/s")], retry_on_error=True, max_retries=1)
    async def job() -> int:
        ran.append(current().decision)
        if len(ran) == 1:
            raise RateLimited(0.1)
        return 2

    assert run_task(job).return_value == 2
    assert len(ran) == 2


def test_a_direct_call_of_a_task_makes_no_request(broker: InMemoryBroker, run_task: Any, limiter: Limiter) -> None:
    """A task that is called directly, or in the body of another task, is a plain function."""

    @broker.task(throttle=[_SLOW])
    def once() -> str:
        return "ran"

    @broker.task(throttle=[_SLOW])
    def twice() -> list[str]:
        return [once(), once()]

    assert once() == "ran"
    assert run_task(twice).return_value == ["ran", "ran"]
    assert limiter.peek(_SLOW, cost=0).remaining == 0


def test_limits_are_not_sent_in_labels(broker: InMemoryBroker) -> None:
    """The limits of a task are not in its labels, which taskiq sends as text, or in schedules with these labels."""

    @broker.task(throttle=[_SLOW], throttle_max_wait=5, schedule=[{"cron": "* * * * *"}], color="red")
    async def job() -> None: ...

    async def main() -> Any:
        scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])
        await scheduler.sources[0].startup()
        return await scheduler.sources[0].get_schedules()

    assert {name for name in job.labels if name.startswith("throttle")} == set()
    assert job.labels["color"] == "red"
    (schedule,) = asyncio.run(main())
    assert schedule.task_name == job.task_name


def test_a_throttle_belongs_to_one_broker(limiter: Limiter) -> None:
    """Waiting tasks belong to one broker. Adding a `Throttle` to a second one is an error."""
    throttle = Throttle(limiter)
    InMemoryBroker().add_middlewares(throttle)
    with pytest.raises(ConfigurationError, match="make one for each broker"):
        InMemoryBroker().add_middlewares(throttle)


def test_a_task_that_brokers_share_has_its_limits_on_each(limiter: Limiter, make_memory_broker: Any) -> None:
    """Each broker's own limiter decides, and holds the slot while the body runs."""
    shared, slot, rate = AsyncSharedBroker(), Concurrency("shared", 1), TokenBucket("rate", "1/hour", burst=1)
    limiters = [limiter, Limiter("memory://")]
    free: list[list[bool]] = []

    @shared.task("shared", throttle=[slot, rate])
    async def job() -> None:
        free.append([each.peek(slot).allowed for each in limiters])

    async def main() -> None:
        for each in limiters:
            broker = make_memory_broker(each)
            await broker.startup()
            await job.kicker().with_broker(broker).kiq()
            assert each.peek(slot).allowed
            assert not each.peek(rate).allowed

    try:
        asyncio.run(main())
    finally:
        AsyncBroker.global_task_registry.pop("shared")
        limiters[1].close()
    assert free == [[False, True], [True, False]]


def test_limits_that_were_converted_to_text_are_refused(broker: InMemoryBroker) -> None:
    """If a task was declared elsewhere and taskiq has converted its limits to text, its message is not sent."""

    @broker.task("known")
    async def known() -> None: ...

    async def main() -> None:
        from taskiq.kicker import AsyncKicker

        kicker: AsyncKicker[Any, Any] = AsyncKicker("known", broker, {"throttle": [_SLOW]})
        with pytest.raises(ConfigurationError, match="was written into the message as text"):
            await kicker.kiq()

    asyncio.run(main())


@pytest.mark.parametrize("most", [0, 1.5, "many"])
def test_max_held_is_a_whole_number(most: Any) -> None:
    """A value of `max_held` that can never work is an error that names it."""
    with pytest.raises(ConfigurationError, match=f"max_held .* not {most!r}"):
        Throttle(Limiter("memory://"), max_held=most)

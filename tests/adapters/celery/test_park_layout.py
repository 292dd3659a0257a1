"""Where kombu keeps the messages of a Redis, on which parking leans; run with each version of kombu."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.transport import redis as kombu_redis

from support.servers.processes import RedisProcess
from throttlekit import ConfigurationError, Job, Limiter, TokenBucket
from throttlekit.adapter import WaitRules
from throttlekit_celery import install
from throttlekit_celery._admission import Gate
from throttlekit_celery._host import keeps_redis_layout, name_deliveries
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._parking import Parking
from throttlekit_celery._requeue import queue_of
from throttlekit_celery._waiting import HeldTask, State
from throttlekit_celery._worker import Settings

PARTNER = TokenBucket("partner", "1/h", burst=1)
HERE = TokenBucket("here", "1/h", burst=1, scope="process")
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix": {"global_keyprefix": "shop:"},
    "names": {"unacked_key": "mine", "unacked_index_key": "mine_index"},
    "priorities": {"priority_steps": list(range(10)), "sep": ":"},
}


def _nothing(*_: Any) -> None: ...


class Request(SimpleNamespace):
    """Celery's lists hold theirs weakly."""

    __hash__ = object.__hash__


class Promoted:
    """In place of the promoter: the test itself wakes what is parked."""

    def __init__(self, throttling: Any, parks: Any, decode: Any, tell: Any, log: logging.Logger) -> None:
        self.parks, self.decode = parks, decode

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Side:
    """One connection of a worker without its loop: a queue, a gate, and the broker as it is."""

    def __init__(self, server: RedisProcess, url: str, options: dict[str, Any]) -> None:
        self.app: Any = Celery("park", broker=url, set_as_current=False)
        self.app.conf.broker_transport_options = options
        self.app.conf.task_default_queue = "jobs"
        for name in ("parks", "here"):
            self.app.task(_nothing, name=name, shared=False)
        self.app.finalize()
        self.limiter = Limiter(f"{server.url}/1")
        limits = TaskLimits(self.limiter, {"parks": PARTNER, "here": HERE})
        self.gate: Any = Gate(self.app, self.limiter, limits, Settings(rules=WaitRules(), max_hold=None, max_held=100))
        self.connection = Connection(url, transport_options=options)
        self.channel: Any = self.connection.channel()
        self.queue = Queue("jobs", routing_key="jobs")
        tasks = Consumer(self.channel, [self.queue], accept=["json"], auto_declare=False)
        held: list[float] = []
        self.held = held
        self.consumer: Any = SimpleNamespace(
            app=self.app, task_consumer=tasks, connection=self.connection, hub=None, connection_errors=(),
            timer=SimpleNamespace(call_after=lambda delay, *_, **__: held.append(delay)),
            qos=SimpleNamespace(value=0), controller=SimpleNamespace(),
        )  # fmt: skip
        self.broker: Any = redis.Redis.from_url(f"{server.url}/0")
        self.prefix = options.get("global_keyprefix", "")
        self.parking: Any = self.gate._parking
        self.parks = self.parking.start(self.consumer)

    def fetched(self, task: str = "parks", **options: Any) -> HeldTask:
        """A task that was sent, and received by this worker, and denied."""
        self.app.send_task(task, (1, 2), queue="jobs", **options)
        message = self.queue.bind(self.channel).get()
        assert message is not None
        message.accept = {"application/json"}
        id = message.headers["id"]
        ticket = self.denied(id)
        request: Any = Request(
            message=message, id=id, task=self.app.tasks[task], args=(1, 2), kwargs={}, expires=None, acknowledged=False,
            name=task, revoked=lambda: False, send_event=lambda *_, **__: None,
        )  # fmt: skip
        return HeldTask(self.consumer, request, None, time.monotonic(), None, ticket, "jobs")

    def denied(self, id: str) -> dict[str, Any]:
        for job in ("first", id):
            decision = self.limiter.acquire(PARTNER, job=Job(id=job, name="parks"))
        assert decision.ticket is not None
        return dict(decision.ticket)

    def put(self, held: HeldTask) -> bool:
        return bool(self.parking.put(held, 3600.0, self.gate._host.delivery_of(held)))

    @property
    def parked(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.broker.hgetall(f"{self.prefix}throttlekit:jobs:messages")
        return found

    def unacked(self) -> tuple[int, int]:
        """What kombu takes to be unacknowledged, by both of its records."""
        keys = f"{self.prefix}{self.channel.unacked_key}", f"{self.prefix}{self.channel.unacked_index_key}"
        return self.broker.hlen(keys[0]), self.broker.zcard(keys[1])

    def close(self) -> None:
        self.parking.stop()
        self.connection.close()
        self.app.close()
        self.broker.close()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisProcess]:
    with closing(RedisProcess("--unixsocket", "redis.sock")) as server:
        server.start()
        yield server


@pytest.fixture
def side(server: RedisProcess, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a worker's side, with transport options."""
    monkeypatch.setattr("throttlekit_celery._parking.Promoter", Promoted)
    server.client.flushall()

    def make(url: str = f"{server.url}/0", **options: Any) -> Side:
        return stack.enter_context(closing(Side(server, url, options)))

    return make


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("priority", [0, 7])
def test_a_parked_message_is_what_kombu_would_have_put(side: Any, layout: str, priority: int) -> None:
    """It leaves both records of kombu, and comes to the front of its list, the same but for its ticket and its tag."""
    worker: Side = side(**LAYOUTS[layout])
    worker.fetched("here")  # another that is fetched stays as it is
    held = worker.fetched(priority=priority, headers={"mine": 1}, compression="gzip")
    raw = json.loads(json.dumps(held.request.message._raw))
    before = worker.unacked()
    assert before == (2, 2)
    assert worker.parking.takes(held, 3600.0)
    worker.put(held)
    assert worker.unacked() == (1, 1)
    assert held.request.message.acknowledged
    assert held.request.acknowledged
    assert len(worker.channel.qos._delivered) - len(worker.channel.qos._dirty) == 1
    (park,) = worker.parking._promoter.parks()
    ((id, stored),) = worker.parked.items()
    assert id.decode() == raw["properties"]["delivery_tag"]
    read = worker.parking._promoter.decode(stored[1:])
    assert (read.request.id, read.request.args, read.queue) == (held.request.id, [1, 2], "jobs")
    assert read.carried == held.ticket

    lane = held.ticket["line"]
    worker.app.send_task("parks", (9,), queue="jobs", priority=priority)  # one that stands in the queue already
    assert park.release(lane, 1) == 1
    assert worker.parked == {}
    message: Any = worker.queue.bind(worker.channel).get()
    came = json.loads(json.dumps(message._raw))
    assert came["headers"].pop("throttlekit") == held.ticket
    assert came["properties"].pop("delivery_tag") != raw["properties"].pop("delivery_tag")
    assert list(came) == list(raw)
    assert came == raw
    message.accept = {"application/json"}
    assert message.payload[0] == [1, 2]
    message.ack()
    worker.channel.qos.restore_unacked_once()
    lists = {worker.channel._q_for_pri("jobs", each) for each in (0, priority)}
    assert sum(worker.broker.llen(f"{worker.prefix}{key}") for key in lists) == 2, "one stood there, one was given back"


def test_a_unix_socket_will_do(side: Any, server: RedisProcess) -> None:
    """The park has a client of its own with what kombu connects with."""
    worker: Side = side(f"redis+socket://{server._folder}/redis.sock")
    worker.put(worker.fetched())
    assert len(worker.parked) == 1


def test_what_the_visibility_timeout_has_restored_is_not_parked(side: Any) -> None:
    """Another worker has it, or will: it leaves this one, and nothing is written."""
    worker: Side = side(visibility_timeout=5)
    held = worker.fetched()
    held.received_at -= 5
    worker.broker.delete("unacked")
    assert worker.put(held)
    assert worker.parked == {}
    assert held.request.acknowledged


def test_what_no_other_worker_can_have_stays(side: Any) -> None:
    """Kombu's record of a message is gone, and its visibility time-out is not over: this worker has the only copy."""
    worker: Side = side(visibility_timeout=5)
    held = worker.fetched()
    worker.broker.delete("unacked")
    worker.gate._wait(held, 20.0)
    assert held.state is State.HELD
    assert not held.request.acknowledged
    assert worker.parked == {}


class Copies:
    """A worker's connection that has received both copies of a message that was routed to two queues."""

    def __init__(self, stack: ExitStack, server: RedisProcess) -> None:
        connection = stack.enter_context(Connection(f"{server.url}/0"))
        self.channel: Any = connection.default_channel
        exchange = Exchange("events", type="topic")
        queues = [Queue("all", exchange, routing_key="sale.#"), Queue("billing", exchange, routing_key="sale.done")]
        self.received: dict[str, Any] = {}
        tasks = Consumer(self.channel, queues, callbacks=[self.receive], accept=["json"])
        self.consumer = SimpleNamespace(task_consumer=tasks)
        name_deliveries(self.consumer)
        tasks.consume()
        self.connection: Any = connection
        Producer(self.channel, exchange).publish({}, routing_key="sale.done")
        self.drain(2)
        self.records: dict[bytes, bytes] = self.channel.client.hgetall("unacked")

    def drain(self, count: int) -> None:
        while len(self.received) < count:
            self.connection.drain_events(timeout=10)

    def receive(self, _: Any, message: Any) -> None:
        queue = queue_of(self.consumer, SimpleNamespace(message=message))
        assert queue is not None
        self.received[queue] = message


def test_each_copy_of_a_message_has_a_record_of_its_own(stack: ExitStack, server: RedisProcess) -> None:
    """Kombu gives both copies one tag. The worker knows which queue each came from, and acknowledges one alone."""
    server.client.flushall()
    copies = Copies(stack, server)
    assert set(copies.received) == {"all", "billing"}
    assert set(copies.records) == {message.delivery_tag.encode() for message in copies.received.values()}
    assert {message.delivery_info["exchange"] for message in copies.received.values()} == {"events"}
    copies.received["all"].ack()
    left = copies.channel.client.hkeys("unacked")
    assert left == [copies.received["billing"].delivery_tag.encode()]


def test_a_copy_is_restored_to_the_queue_that_it_came_from(stack: ExitStack, server: RedisProcess) -> None:
    """And to no other queue of its exchange: a task of those would run once more."""
    server.client.flushall()
    copies = Copies(stack, server)
    copies.channel.qos.restore_by_tag(copies.received["billing"].delivery_tag)
    assert [copies.channel.client.llen(queue) for queue in ("all", "billing")] == [0, 1]
    copies.received["all"].ack()


def test_a_copy_that_is_delivered_again_has_the_same_record(stack: ExitStack, server: RedisProcess) -> None:
    """The worker that had it first acknowledges both: otherwise it would be restored again and again."""
    server.client.flushall()
    copies = Copies(stack, server)
    first = copies.received.pop("billing")
    copies.channel.qos.restore_by_tag(first.delivery_tag)
    copies.drain(2)
    assert copies.received["billing"].delivery_tag == first.delivery_tag
    for copy in copies.received.values():
        copy.ack()
    assert copies.channel.client.hlen("unacked") == 0


def test_what_is_parked_and_what_is_not(side: Any) -> None:
    """Not what is due soon, was acknowledged, is in no queue of Redis's, or has a limit that each process counts."""
    worker: Side = side()
    held = worker.fetched()
    assert worker.parks
    assert worker.parking.takes(held, 4.0)
    assert not worker.parking.takes(held, 3.0)
    assert not worker.parking.takes(worker.fetched("here"), 60.0)
    held.queue = None
    assert not worker.parking.takes(held, 60.0)
    held.queue, held.ticket = "jobs", None
    assert not worker.parking.takes(held, 60.0)
    first = worker.fetched()
    first.request.acknowledged = True
    assert not worker.parking.takes(first, 60.0)
    unasked = worker.fetched()
    unasked.request.message.channel.qos._delivered.clear()
    assert not worker.parking.takes(unasked, 60.0), "the queue has no acknowledgements"
    last = worker.fetched()
    worker.parking.disconnected()
    assert not worker.parking.takes(last, 60.0)


def test_an_answer_that_is_lost_doubles_nothing(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task may be parked: it waits in its worker, and does not run there, until the broker has answered."""
    worker: Side = side()
    held = worker.fetched()
    park = worker.parking._broker.park("jobs")
    put = park.put

    def unheard(*args: Any, **options: Any) -> bool:
        put(*args, **options)
        raise redis.TimeoutError

    monkeypatch.setattr(park, "put", unheard)
    worker.gate._wait(held, 3600.0)
    assert (held.state, held.unsure, worker.held[0]) == (State.HELD, True, 1.0)
    assert not worker.parking.takes(worker.fetched(), 60.0), "a broker that did not answer is left alone for a moment"
    worker.parking._quiet_until = 0.0
    held.becomes(State.RESERVED)
    monkeypatch.setattr(park, "put", put)
    worker.gate._enter(held, None)
    assert held.state is State.GONE
    assert len(worker.parked) == 1


def test_a_broker_that_refuses_leaves_tasks_with_their_worker(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own error is an answer: the task is held as without parking."""
    worker: Side = side()
    held = worker.fetched()

    def refused(*args: Any, **options: Any) -> bool:
        raise redis.ResponseError("NOPERM")

    monkeypatch.setattr(worker.parking._broker.park("jobs"), "put", refused)
    worker.gate._wait(held, 20.0)
    assert (held.state, held.unsure, worker.held[0]) == (State.HELD, False, pytest.approx(20.0, abs=1.0))


def test_a_message_that_cannot_be_parked_keeps_no_other_from_the_park(side: Any) -> None:
    """Its tag is a text that UTF-8 cannot encode: it is held, and the broker is called for the others."""
    worker: Side = side()
    held = worker.fetched()
    held.request.message._raw["properties"]["delivery_tag"] = "\ud800"
    held.request.message.delivery_tag = "\ud800"
    held.request.message.channel.qos._delivered["\ud800"] = held.request.message
    worker.gate._wait(held, 20.0)
    assert (held.state, held.unsure) == (State.HELD, False)
    del held.request.message.channel.qos._delivered["\ud800"]  # kombu would give it back as the test ends
    other = worker.fetched()
    assert worker.parking.takes(other, 60.0)
    worker.put(other)
    assert len(worker.parked) == 1


def test_a_transport_that_is_not_known_holds_tasks_and_says_so(
    side: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kombu's own channel for Redis is known, and nothing made of it; without its records there is no parking."""
    worker: Side = side()
    assert keeps_redis_layout(worker.channel)
    monkeypatch.setattr(worker.channel, "priority_steps", list(range(11)))
    assert not keeps_redis_layout(worker.channel)
    with caplog.at_level(logging.WARNING, "throttlekit.celery"):
        assert not worker.parking.start(worker.consumer)
    assert ["held, not parked" in record.message for record in caplog.records] == [True]
    monkeypatch.undo()
    monkeypatch.setattr(worker.channel, "ack_emulation", False)
    assert not keeps_redis_layout(worker.channel)
    monkeypatch.undo()
    worker.channel.__class__ = type("Sentinels", (kombu_redis.Channel,), {})
    assert not keeps_redis_layout(worker.channel)


def test_limits_in_memory_park_nothing(side: Any) -> None:
    """The promoter may be another process, which knows nothing of them."""
    worker: Side = side()
    throttling: Any = SimpleNamespace(limiter=SimpleNamespace(in_memory=True))
    parking: Any = Parking(throttling, TaskLimits(worker.limiter, None), True)
    assert not parking.start(worker.consumer)


def test_parking_is_true_or_false() -> None:
    """Anything else is an error where the app is made."""
    wrong: Any = 10
    with pytest.raises(ConfigurationError, match="parking"):
        install(Celery("wrong", set_as_current=False), Limiter(), parking=wrong)

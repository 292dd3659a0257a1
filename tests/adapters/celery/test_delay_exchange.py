"""Native delayed delivery: a denied task waits in RabbitMQ only if its queue is certain to get it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from support.celery.site import CelerySite, celery_site
from support.servers.processes import RabbitMQ
from support.waiting import wait_until
from throttlekit import Control
from throttlekit_celery._delay_exchange import DelayExchange
from throttlekit_celery._requeue import Copies

native = pytest.importorskip(
    "kombu.transport.native_delayed_delivery", reason="Celery 5.4 has no native delayed delivery"
)
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"),
]

WITHIN = 120.0
DELIVERY = "celery_delayed_delivery"


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A RabbitMQ with a second user, who may not read from the exchange at the end of the delays."""
    with contextlib.closing(RabbitMQ()) as server:
        server.start()
        server.control("add_user", "poor", "poor")
        server.control("set_permissions", "poor", ".*", ".*", f"^(?!{DELIVERY}).*$")
        yield server


class Worker:
    """What a worker's consumer shows of itself; its timer fires by `turn`."""

    def __init__(self, broker: str, *queues: str) -> None:
        self.app = Celery("delays", broker=broker, set_as_current=False)
        self.app.conf.task_queues = [
            Queue(name, Exchange(name, type="topic"), routing_key=name, queue_arguments={"x-queue-type": "quorum"})
            for name in queues
        ]
        self.app.conf.broker_transport_options = {"confirm_publish": True}  # what is published is in its queue
        self.connection: Any = self.app.connection_for_read()
        self.task_consumer = SimpleNamespace(queues=self.app.conf.task_queues)
        self.timer = SimpleNamespace(call_after=self._after)
        self._call: Callable[[], object] = lambda: None

    def _after(self, _: float, call: Any, arguments: Any) -> None:
        self._call = lambda: call(*arguments)

    def turn(self) -> None:
        self._call()

    def started(self) -> DelayExchange:
        copies = Copies(self.app)
        copies.start(self)
        exchange = DelayExchange(copies)
        exchange.start(self)
        return exchange

    def declares(self, *names: str) -> None:
        for queue in self.task_consumer.queues:
            if queue.name in names:
                queue(self.connection.default_channel).declare()

    def leads_to(self, name: str) -> bool:
        """Whether a message whose delay ends reaches the queue."""
        channel = self.connection.default_channel
        producer = self.app.amqp.Producer(channel, auto_declare=False)
        producer.publish("", exchange=DELIVERY, routing_key=f"0.1.{name}")
        return bool(channel.queue_purge(name))


@pytest.fixture
def worker(rabbitmq: RabbitMQ) -> Iterator[Callable[..., Worker]]:
    """Make a worker whose broker has Celery's delay exchange."""
    with ExitStack() as stack:

        def make(*queues: str, user: str = "guest") -> Worker:
            made = Worker(rabbitmq.url.replace("guest:guest", f"{user}:{user}"), *queues)
            stack.callback(made.app.close)
            stack.enter_context(made.connection)
            return made

        with make().connection as connection:
            native.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        yield make


def test_a_queue_is_bound_by_the_worker_itself(worker: Callable[..., Worker]) -> None:
    """It does not depend on what Celery's own step has bound before."""
    consumer = worker("bound")
    consumer.declares("bound")
    exchange = consumer.started()
    assert exchange.delays(consumer, "bound")
    assert consumer.leads_to("bound")


def test_a_queue_that_is_refused_does_not_stop_another(
    worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks of the one are held, and a warning names it, once."""
    consumer = worker("absent", "present")
    consumer.declares("present")
    exchange = consumer.started()
    consumer.turn()
    assert [exchange.delays(consumer, name) for name in ("absent", "present")] == [False, True]
    (message,) = caplog.messages
    assert "'absent' are held" in message
    assert "NotFound" in message


def test_a_binding_that_is_gone_is_made_again(worker: Callable[..., Worker]) -> None:
    """An operator may have removed it: no queue would get the tasks that RabbitMQ delays."""
    consumer = worker("gone")
    consumer.declares("gone")
    exchange = consumer.started()
    consumer.connection.default_channel.exchange_unbind("gone", DELIVERY, "#.gone")
    assert not consumer.leads_to("gone")
    consumer.turn()
    assert consumer.leads_to("gone")
    assert exchange.delays(consumer, "gone")


def test_a_worker_that_may_bind_no_longer_holds_tasks(worker: Callable[..., Worker]) -> None:
    """The exchange of a queue was deleted: no queue would get the tasks that RabbitMQ delays."""
    consumer = worker("deleted")
    consumer.declares("deleted")
    exchange = consumer.started()
    assert exchange.delays(consumer, "deleted")
    consumer.connection.default_channel.exchange_delete("deleted")
    consumer.turn()
    assert not exchange.delays(consumer, "deleted")


def test_a_broker_that_is_away_is_tried_again(rabbitmq: RabbitMQ, worker: Callable[..., Worker]) -> None:
    """Meanwhile tasks are held."""
    consumer = worker("away")
    consumer.declares("away")
    away = Worker("amqp://127.0.0.1:1//", "away")
    exchange = away.started()
    assert not exchange.delays(away, "away")
    away.connection.switch(rabbitmq.url)
    away.turn()
    assert exchange.delays(away, "away")
    away.app.close()


@pytest.mark.workers
def test_tasks_run_where_rabbitmq_refuses_the_binding(
    stack: ExitStack, rabbitmq: RabbitMQ, worker: Callable[..., Worker], redis_base: str
) -> None:
    """Celery logs that native delayed delivery is not available, and goes on. Its denied tasks are held, not lost."""
    consumer = worker("poors", user="poor")
    site: CelerySite = stack.enter_context(
        celery_site("rabbitmq", consumer.app.conf.broker_url, redis_base, quorum=True, denials=1, delay=2.0)
    )
    session = site.start()
    results = [site.send("echo", n) for n in range(20)]
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(20))
    assert "Native delayed delivery will not be available" in session.log()
    assert f"queue '{site.queue}' are held" in session.log()
    assert "AccessRefused" in session.log()


@pytest.mark.workers
@pytest.mark.xfail(
    strict=True, reason="RabbitMQ gives a delayed task back when its delay ends; nothing can wake it before"
)
def test_a_raised_rate_reaches_a_task_that_rabbitmq_delays(
    stack: ExitStack, rabbitmq_url: str, redis_base: str, redis_url: str
) -> None:
    """Well before the end of the delay that its denial gave it."""
    site: CelerySite = stack.enter_context(
        celery_site("rabbitmq", rabbitmq_url, redis_base, quorum=True, store=redis_url, rate="1/minute")
    )
    site.start()
    assert site.send("echo", 0).get(timeout=WITHIN) == 0
    result = site.send("echo", 1)
    with site.app.connection_for_read() as connection:
        delayed = connection.default_channel
        wait_until(
            lambda: delayed.queue_declare("celery_delayed_5", passive=True).message_count,
            description="RabbitMQ delays it for more than 32 s",
        )
    with Control(redis_url, by="test") as control:
        control.set("one", "100/s")
    wait_until(result.ready, description="it has run", timeout=15)

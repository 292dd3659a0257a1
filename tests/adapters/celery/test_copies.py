"""The connection over which a worker puts tasks back has its own options, not those of the user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from support.celery.site import WITHIN, CelerySite
from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._requeue import Copies


def app_of(broker: str, **options: Any) -> Any:
    app = Celery("copies", broker=broker, set_as_current=False)
    app.conf.broker_transport_options = options
    return app


def copies_of(app: Any, broker: str = "") -> Copies:
    """Return the copies of a worker of *app*. If *broker* is not empty, the worker consumes from it."""
    timer = SimpleNamespace(call_after=lambda *_: None)
    copies = Copies(SimpleNamespace(app=app, timer=timer, connection=Connection(broker) if broker else None))
    copies.start()
    return copies


def held_task(queue: str) -> HeldTask:
    """Return a task that was received from *queue*."""
    message = SimpleNamespace(
        body="[]", content_type="application/json", content_encoding="utf-8", headers={}, properties={}, channel=None
    )
    return HeldTask(SimpleNamespace(message=message, expires=None), None, 0.0, queue=queue)


@pytest.mark.parametrize("confirms", [True, False])
def test_a_copy_is_confirmed_with_and_without_confirm_publish(rabbitmq_url: str, confirms: bool) -> None:
    """
    With `confirm_publish`, kombu itself waits for each confirmation and consumes it. The copy would count as lost.
    """
    app = app_of(rabbitmq_url, confirm_publish=confirms)
    queue = f"copies-{confirms}"
    copies = copies_of(app)
    stored: list[bool] = []
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare(queue, durable=True, auto_delete=False)
        try:
            for _ in range(3):
                copies.put_back(held_task(queue), stored.append)
            copies.wait_for_confirmations(WITHIN)
            assert stored == [True, True, True]
            assert connection.default_channel.queue_declare(queue, passive=True).message_count == 3
        finally:
            copies.close()
            connection.default_channel.queue_delete(queue)
    app.close()


@pytest.mark.workers
@pytest.mark.rabbitmq
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning")
def test_with_publisher_confirms_each_task_runs_once(make_site: Any) -> None:
    """With publisher confirms, tasks that are put back leave no second message."""
    conf = {"broker_transport_options": {"confirm_publish": True}}
    site: CelerySite = make_site("rabbitmq", form="put back", delay=0.5, conf=conf)
    site.start()
    results = [site.send("echo", n) for n in range(20)]
    site.assert_each_runs_once(results)


def test_the_connection_ignores_options_that_change_its_behaviour() -> None:
    """
    Callbacks, heartbeats and time-outs belong to the user's connections. Options for the address and the credentials
    are kept.
    """
    options = {
        "confirm_publish": True,
        "heartbeat": 10,
        "on_blocked": print,
        "on_unblocked": print,
        "read_timeout": 60,
        "write_timeout": 60,
        "max_retries": 100,
        "interval_start": 5,
        "errback": print,
        "callback": print,
        "connect_retries_timeout": 300,
        "client_properties": {"product": "shop"},
        "login_method": "AMQPLAIN",
    }
    app = app_of("amqps://user:secret@localhost/shop", **options)
    app.conf.broker_use_ssl = {"ca_certs": "ca.pem"}
    own: Any = copies_of(app)._make_connection()
    assert (own.userid, own.password, own.virtual_host, own.ssl) == ("user", "secret", "shop", {"ca_certs": "ca.pem"})
    kept = {"client_properties": {"product": "shop"}, "login_method": "AMQPLAIN", "interval_start": 5}
    assert own.transport_options == {
        **kept,
        "confirm_publish": False,
        "heartbeat": 0,
        "on_blocked": None,
        "on_unblocked": None,
        "read_timeout": 1.0,
        "write_timeout": 1.0,
        "max_retries": 0,
        "connect_retries_timeout": 1.0,
        "errback": None,
        "callback": None,
    }
    assert (own.connect_timeout, own.heartbeat) == (1.0, 0)


def test_a_command_to_redis_is_not_repeated() -> None:
    """`retry_on_timeout` would put a second copy into the queue if the reply to the first one was late."""
    app = app_of("redis://localhost:1/3", retry_on_timeout=True, socket_timeout=60, visibility_timeout=600)
    own: Any = copies_of(app)._make_connection()
    options = own.transport_options
    assert (options["retry_on_timeout"], options["socket_timeout"], options["visibility_timeout"]) == (False, 1.0, 600)
    assert own.virtual_host == "3"


def test_copies_are_sent_to_the_server_that_the_worker_consumes_from() -> None:
    """
    Copies are sent to the server from which the worker consumes, also after a failover: on another server they would be
    lost.
    """
    app = app_of("amqp://one//;amqp://two//")
    copies: Any = copies_of(app, "amqp://one//;amqp://two//")
    copies._consumer.connection.switch("amqp://two//")
    own: Any = copies._make_connection()
    assert (own.hostname, own.transport_options["max_retries"]) == ("two", 0)


def test_copies_are_sent_to_the_broker_for_writing_if_there_is_one() -> None:
    """Each server of a broker_write_url is tried once, without a pause in between."""
    app = app_of("amqp://reads//")
    app.conf.broker_write_url = "amqp://one//;amqp://two//"
    copies = copies_of(app, "amqp://reads//")
    own: Any = copies._make_connection()
    assert (own.hostname, own.transport_options["max_retries"]) == ("one", 1)

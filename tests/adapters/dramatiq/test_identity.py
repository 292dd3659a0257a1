"""The message that finally runs is the message that was sent."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import CurrentMessage, Middleware

from support.dramatiq.helpers import DenyBefore, Site, dead_letters
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")
BROKERS_OWN = {"redis_message_id", "eta"}


@pytest.fixture
def store() -> DenyBefore:
    return DenyBefore(2)


@pytest.fixture
def throttled(site: Site, store: DenyBefore) -> Site:
    site.broker.add_middleware(CurrentMessage())
    site.broker.add_middleware(Throttle(Limiter(store)))
    return site


def send_and_run(site: Site, **send: Any) -> tuple[dramatiq.Message[Any], dramatiq.Message[Any]]:
    """Send a message, and return it as sent and as it was when its body ran."""

    @site.actor(throttle=EACH, priority=7, max_retries=0)
    def job(n: int, *, word: str = "", nested: Any = None) -> None:
        message: Any = CurrentMessage.get_current_message()
        site.ran.append(message._message.copy())

    sent = job.send_with_options(**send)
    with site.working():
        site.until_ran(1)
    return sent, site.ran[0]


def test_id_time_and_arguments_are_kept(throttled: Site, store: DenyBefore) -> None:
    """message_id, message_timestamp, args, kwargs, queue and actor are unchanged."""
    sent, ran = send_and_run(throttled, args=(1,), kwargs={"word": "ä", "nested": {"a": [1, None]}})
    assert store.denials == 2
    for field in ("message_id", "message_timestamp", "args", "kwargs", "queue_name", "actor_name"):
        assert getattr(ran, field) == getattr(sent, field), field


def test_a_waiting_message_has_no_option_of_throttlekit(throttled: Site, store: DenyBefore) -> None:
    """A message has no option of throttlekit when its body runs after denials, and when Retries enqueues it again."""
    site = throttled
    enqueued: list[Any] = []

    class Watch(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
            enqueued.append(message.options.keys() - BROKERS_OWN)

    site.broker.add_middleware(Watch())

    @site.actor(throttle=EACH, max_retries=1, min_backoff=1)
    def flaky(n: int) -> None:
        message: Any = CurrentMessage.get_current_message()
        site.ran.append(message.options.keys() - BROKERS_OWN)
        if len(site.ran) == 1:
            raise RuntimeError("once")

    flaky.send_with_options(args=(1,), custom=5)
    with site.working():
        site.until_ran(2)
    of_retry = {"custom", "retries", "traceback", "requeue_timestamp"}
    assert store.denials == 4
    assert site.ran[0] == enqueued[0] == {"custom"}
    assert all(options <= of_retry for options in [*enqueued, *site.ran])


def test_the_actor_priority_applies_to_messages_that_are_put_back(stub: Site) -> None:
    """A denied message is put back with its own actor, and therefore with that actor's priority."""
    stub.broker.add_middleware(CurrentMessage())
    stub.broker.add_middleware(Throttle(Limiter(DenyBefore(1))))
    _, ran = send_and_run(stub, args=(1,))
    assert stub.broker.get_actor(ran.actor_name).priority == 7


def test_current_message_is_cleared_after_a_denial(throttled: Site, store: DenyBefore) -> None:
    """A worker thread that has denied a message has no current message afterwards."""
    site = throttled
    leaks: list[Any] = []

    class Observer(Middleware):
        def after_skip_message(self, broker: Any, message: Any) -> None:
            leaks.append(CurrentMessage.get_current_message())

    site.broker.add_middleware(Observer())
    send_and_run(site, args=(1,))
    assert leaks == [None, None]


def test_a_body_that_fails_is_dead_lettered_as_by_dramatiq(throttled: Site, store: DenyBefore) -> None:
    """After denials, the last failure puts the message with its own id on the dead letter queue, once."""
    site = throttled

    @site.actor(throttle=EACH, max_retries=0)
    def broken(n: int) -> None:
        site.ran.append(n)
        raise RuntimeError("no")

    sent = broken.send(1)
    with site.working():
        site.until_ran(1)
    assert [code.message_id for code in dead_letters(site.broker, site.queue)] == [sent.message_id]
    assert store.denials == 2

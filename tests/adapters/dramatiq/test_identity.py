"""The message that runs in the end is the message that was sent."""

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
    site.broker.add_middleware(Throttle(Limiter(store), max_inline_wait=0))
    return site


def run_and_look(site: Site, **send: Any) -> tuple[dramatiq.Message[Any], dramatiq.Message[Any]]:
    """Send a message; return it as sent, and as it was when its body ran."""

    @site.actor(throttle=EACH, priority=7, max_retries=0)
    def job(n: int, *, word: str = "", nested: Any = None) -> None:
        message: Any = CurrentMessage.get_current_message()
        site.ran.append(message._message.copy())

    sent = job.send_with_options(**send)
    with site.working():
        site.until_ran(1)
    return sent, site.ran[0]


def test_id_time_and_arguments_are_kept(throttled: Site, store: DenyBefore) -> None:
    """message_id, message_timestamp, args, kwargs, queue and actor are those that were sent."""
    sent, ran = run_and_look(throttled, args=(1,), kwargs={"word": "ä", "nested": {"a": [1, None]}})
    assert store.denials == 2
    for field in ("message_id", "message_timestamp", "args", "kwargs", "queue_name", "actor_name"):
        assert getattr(ran, field) == getattr(sent, field), field


def test_the_waiting_message_carries_our_option_only(throttled: Site) -> None:
    """What goes to the delay queue is the message as it was, plus `throttlekit`, plus what the broker adds itself."""
    site = throttled
    delayed: list[Any] = []

    class Watch(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
            if delay is not None:
                delayed.append(message)

    site.broker.add_middleware(Watch())
    sent, _ = run_and_look(site, args=(1,), custom=5)
    assert len(delayed) == (2 if site.kind == "stub" else 1)  # the second time it goes on waiting in the worker
    for message in delayed:
        assert message.options.keys() - BROKERS_OWN == {"custom", "throttlekit"}
        assert message.message_id == sent.message_id
        assert message.queue_name == f"{site.queue}.DQ"


def test_a_retry_after_a_wait_starts_without_our_option(throttled: Site) -> None:
    """The message that Retries puts back carries nothing of the wait before: it is decided as a new one."""
    site = throttled
    retried: list[Any] = []

    class Watch(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
            if "retries" in message.options and delay is not None:
                retried.append(dict(message.options))

    site.broker.add_middleware(Watch())

    @site.actor(throttle=EACH, max_retries=1, min_backoff=1)
    def flaky(n: int) -> None:
        site.ran.append(n)
        if len(site.ran) == 1:
            raise RuntimeError("once")

    flaky.send(1)
    with site.working():
        site.until_ran(2)
    assert "throttlekit" not in retried[0]
    assert all("throttlekit" in options for options in retried[1:])


def test_the_actor_priority_still_orders_what_comes_back(stub: Site) -> None:
    """A message that was denied goes back to its own actor, and so to that actor's priority."""
    stub.broker.add_middleware(CurrentMessage())
    stub.broker.add_middleware(Throttle(Limiter(DenyBefore(1)), max_inline_wait=0))
    _, ran = run_and_look(stub, args=(1,))
    assert stub.broker.get_actor(ran.actor_name).priority == 7


def test_current_message_is_not_left_set_after_a_denial(throttled: Site, store: DenyBefore) -> None:
    """A worker thread that has denied a message shows no current message to what it runs next."""
    site = throttled
    leaks: list[Any] = []

    class Look(Middleware):
        def after_skip_message(self, broker: Any, message: Any) -> None:
            leaks.append(CurrentMessage.get_current_message())

    site.broker.add_middleware(Look())
    run_and_look(site, args=(1,))
    assert leaks == [None, None]


def test_a_body_that_fails_for_good_is_dead_lettered_as_by_dramatiq(throttled: Site, store: DenyBefore) -> None:
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

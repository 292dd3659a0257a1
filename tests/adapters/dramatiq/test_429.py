"""
A body that raises RateLimited: its key pauses, its message waits until the end of the pause, and nothing else is
notified.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import AsyncIO, CurrentMessage, GroupCallbacks, Middleware, TimeLimit
from dramatiq.rate_limits.backends import StubBackend as StubRates
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from support.dramatiq.helpers import Site, dead_letters, working
from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, Limiter, RateLimited, TokenBucket, hookimpl
from throttlekit_dramatiq import Throttle

PARTNER = TokenBucket("partner", "1000/s", burst=1000, key="{n}")
OTHER = TokenBucket("other", "1000/s", burst=1000)
SLOTS = Concurrency("slots", 8)


class Angry:
    """Raises `RateLimited` for the first few calls of each key."""

    def __init__(self, times: int = 1, seconds: float = 0.1) -> None:
        self._left: Counter[int] = Counter()
        self._times, self._seconds = times, seconds
        self.raised = 0
        self.raised_at = 0.0

    def call(self, n: int) -> None:
        self._left[n] += 1
        if self._left[n] <= self._times:
            self.raised += 1
            self.raised_at = time.monotonic()
            raise RateLimited(self._seconds)


class Ends(Middleware):
    """Records the exceptions that other middleware receives, and the options of enqueued messages."""

    def __init__(self) -> None:
        self.exceptions: list[str] = []
        self.options: list[dict[str, Any]] = []

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is not None:
            self.exceptions.append(type(exception).__name__)

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.options.append(dict(message.options))


def throttled(site: Site, **options: Any) -> tuple[Throttle, Ends]:
    site.broker.add_middleware(Results(backend=StubBackend()))
    site.broker.add_middleware(GroupCallbacks(StubRates()))
    throttle, ends = Throttle(Limiter(), **options), Ends()
    site.broker.add_middleware(throttle)
    site.broker.add_middleware(ends)
    return throttle, ends


def test_a_429_is_not_reported_as_a_failure(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """
    Each member of a group gets one 429. No retry is used, no failure callback is called, and nothing above INFO is
    logged. Readers of results get the values, and the group completes once, after all members.
    """
    caplog.set_level(logging.DEBUG)
    _, ends = throttled(site)
    angry = Angry()

    @site.actor
    def failure(message: dict[str, Any], error: dict[str, str]) -> None:
        site.ran.append("failure")

    @site.actor
    def success(message: dict[str, Any], result: Any) -> None:
        site.ran.append("success")

    @site.actor
    def completed() -> None:
        site.ran.append("completed")

    @site.actor(throttle=PARTNER, store_results=True, max_retries=0, on_failure="failure", on_success="success")
    def member(n: int) -> int:
        angry.call(n)
        site.ran.append(n)
        return n

    group = dramatiq.group([member.message(n) for n in range(3)], broker=site.broker)
    group.add_completion_callback(completed.message())
    with site.working():
        group.run()
        assert sorted(group.get_results(block=True)) == [0, 1, 2]
        site.until_ran(7)
    assert Counter(site.ran) == Counter([0, 1, 2, "success", "success", "success", "completed"])
    assert site.ran.index("completed") > max(site.ran.index(n) for n in range(3))
    assert angry.raised == 3
    assert ends.exceptions == []
    assert not any({"retries", "traceback", "throttle_on_429"} & options.keys() for options in ends.options)
    ours = [record for record in caplog.records if not record.name.startswith("pika")]
    loud = [record.getMessage() for record in ours if record.levelno > logging.INFO]
    assert all("downstream said 429" in message or "kept in memory" in message for message in loud), loud
    assert dead_letters(site.broker, site.queue) == []


@pytest.mark.parametrize("shape", ["async", "class"])
def test_async_and_class_based_actors_can_raise_rate_limited(stub: Site, shape: str) -> None:
    """An async body and a GenericActor's `perform` are deferred like a plain function."""
    stub.broker.add_middleware(AsyncIO())
    _, ends = throttled(stub)
    angry = Angry()
    actor: Any
    if shape == "async":

        @stub.actor(throttle=PARTNER, max_retries=0)
        async def actor(n: int) -> None:
            angry.call(n)
            stub.ran.append(n)

    else:

        class Call(dramatiq.GenericActor):
            class Meta:
                broker = stub.broker
                queue_name = stub.queue
                throttle = PARTNER
                max_retries = 0

            def perform(self, n: int) -> None:
                angry.call(n)
                stub.ran.append(n)

        actor = Call

    actor.send(5)
    with stub.working():
        stub.until_ran(1)
    assert (stub.ran, angry.raised, ends.exceptions) == ([5], 1, [])


def test_a_direct_call_raises_rate_limited(stub: Site) -> None:
    """Tests and other functions that call an actor get the error. The actor's name and signature are unchanged."""
    throttled(stub)

    @stub.actor(throttle=PARTNER)
    def job(n: int) -> None:
        """What it says."""
        raise RateLimited(7)

    for call in (job, job.fn):
        with pytest.raises(RateLimited) as raised_error:
            call(1)
        assert raised_error.value.retry_after == 7
    assert (job.fn.__name__, job.fn.__doc__) == ("job", "What it says.")


def test_an_actor_called_by_another_body_raises_in_that_body(stub: Site) -> None:
    """A body that calls another actor directly can catch its 429: no limit is paused, and no message is deferred."""
    throttle, _ = throttled(stub)

    @stub.actor(throttle=PARTNER)
    def inner(n: int) -> None:
        raise RateLimited(60)

    @stub.actor(throttle=PARTNER)
    def outer(n: int) -> None:
        try:
            inner(n)
        except RateLimited:
            stub.ran.append(n)

    outer.send(1)
    with stub.working():
        stub.until_ran(1)
    assert throttle.limiter.peek(PARTNER, key="1").allowed


def test_a_message_that_waits_again_is_neither_interrupted_nor_current(stub: Site) -> None:
    """The timer of the time limit is stopped, and CurrentMessage is empty, before the message is held."""
    seen: list[Any] = []

    class Observer:
        @hookimpl
        def throttlekit_rate_limited(self, event: Any) -> None:
            here = limits.manager.deadlines.get(threading.get_ident())
            seen.append((here, CurrentMessage.get_current_message()))

    stub.broker.add_middleware(CurrentMessage())
    stub.broker.add_middleware(Throttle(Limiter(plugins=[Observer()])))
    limits: Any = next(each for each in stub.broker.middleware if isinstance(each, TimeLimit))
    angry = Angry()

    @stub.actor(throttle=PARTNER, time_limit=60_000)
    def job(n: int) -> None:
        angry.call(n)
        stub.ran.append(n)

    job.send(1)
    with stub.working():
        stub.until_ran(1)
    assert seen == [(None, None)]


@pytest.mark.parametrize(
    ("on_429", "raised", "paused"),
    [
        (None, None, {"partner", "other"}),
        ("other", None, {"other"}),
        (OTHER, None, {"other"}),
        ("other", "partner", {"partner"}),
    ],
)
def test_the_paused_limit_is_that_of_the_error_or_of_on_429(
    stub: Site, on_429: Any, raised: str | None, paused: set[str]
) -> None:
    """The limit that the error names is paused, otherwise the job's on_429, otherwise all of its rates."""
    throttle, _ = throttled(stub)
    options = {} if on_429 is None else {"throttle_on_429": on_429}
    job = stub.recorder(first_error=RateLimited(600, limit=raised), throttle=[PARTNER, OTHER, SLOTS], **options)
    job.send(1)
    limiter = throttle.limiter
    with working(stub.broker):
        stub.until_ran(1)
        wait_until(
            lambda: (
                {
                    limit.name
                    for limit in (PARTNER, OTHER, SLOTS)
                    if limiter.peek(limit, key="1" if limit.key else None).reason == "paused"
                }
                == paused
            ),
            description="the limits are paused",
        )


def test_a_message_can_have_its_own_on_429(redis_site: Site) -> None:
    """The on_429 of a message applies to limits of the message or of its actor, and is sent as a name."""
    throttle, ends = throttled(redis_site)
    job = redis_site.recorder(first_error=RateLimited(600), throttle=[PARTNER, OTHER])
    job.send_with_options(args=(1,), throttle_on_429=OTHER)
    limiter = throttle.limiter
    with working(redis_site.broker):
        wait_until(lambda: limiter.peek(OTHER).reason == "paused", description="the limit is paused")
        assert limiter.peek(PARTNER, key="1").allowed
    assert {options["throttle_on_429"] for options in ends.options} == {"other"}


def test_a_wrong_on_429_is_an_error_at_its_declaration(stub: Site) -> None:
    """
    The middleware, an actor or a message with a wrong on_429 raises. The error names it, and the limits that exist.
    """
    with pytest.raises(
        ConfigurationError, match="on a 429 is 'x', which is not a limit of the job: name one of 'other'"
    ):
        Throttle(Limiter(), throttle=OTHER, on_429="x")
    throttled(stub)
    with pytest.raises(ConfigurationError, match="actor 'wrong': the limit to pause on a 429 is 'x'"):
        stub.actor(lambda: None, actor_name="wrong", throttle=OTHER, throttle_on_429="x")
    job = stub.actor(lambda: None, actor_name="job", throttle=OTHER)
    with pytest.raises(ConfigurationError, match="message for 'job': the limit to pause on a 429 is 'x'"):
        job.send_with_options(throttle_on_429="x")
    job.send_with_options(throttle=[SLOTS], throttle_on_429="slots")
    with pytest.raises(ConfigurationError, match="message for 'job': the limit to pause on a 429 is 'other'"):
        job.send_with_options(throttle=[SLOTS], throttle_on_429="other")


def test_an_on_429_that_no_longer_exists_does_not_stop_a_sent_message(site: Site) -> None:
    """A deployment replaces the limit while messages wait. The messages run, and all rates are paused."""
    site.broker.declare_queue(site.queue)
    site.broker.enqueue(  # without a Throttle, which would refuse the option now
        dramatiq.Message(site.queue, "job", (1,), {}, {"throttle_on_429": "a limit of yesterday"}), delay=50
    )
    throttled(site)
    angry = Angry()

    @site.actor(throttle=PARTNER)
    def job(n: int) -> None:
        angry.call(n)
        site.ran.append(n)

    with site.working():
        site.until_ran(1)
    assert (site.ran, angry.raised) == ([1], 1)


def test_the_on_429_of_the_middleware_applies_to_actors_without_limits(stub: Site) -> None:
    """The middleware's on_429 is not applied to an actor that has its own limits."""
    throttle, _ = throttled(stub, throttle=[OTHER, PARTNER], on_429=OTHER)
    stub.actor(lambda: None, actor_name="own", throttle=SLOTS)
    job = stub.recorder(first_error=RateLimited(600))
    job.send(1)
    with working(stub.broker):
        wait_until(lambda: throttle.limiter.peek(OTHER).reason == "paused", description="the limit is paused")
        assert throttle.limiter.peek(PARTNER, key="1").allowed

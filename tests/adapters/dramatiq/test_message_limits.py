"""
Limits of a single message: they are sent by value, and a value that is not a limit never runs the message unthrottled.
"""

from __future__ import annotations

import json
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dramatiq.helpers import DenyBefore, Recording, Site, dead_letters
from support.waiting import wait_until
from throttlekit import ConfigurationError, Job, Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

PARTNER = TokenBucket("partner", "10/s", burst=3)
TENANT = TokenBucket("tenant", "100/minute", burst=7, key="{tenant}", cost=lambda job: job.kwargs["units"])


def body(site: Site, **options: Any) -> Any:
    @site.actor(max_retries=0, **options)
    def job(*args: Any, **kwargs: Any) -> None:
        site.ran.append((args, kwargs))

    return job


def test_limits_are_sent_by_value_as_json(site: Site) -> None:
    """send_with_options(throttle=[…]) puts plain data into the message: rate, burst, and the job's own key and cost."""
    site.throttle(Recording())

    @site.actor
    def job(tenant: str, *, units: int) -> None:
        site.ran.append(tenant)

    sent = job.send_with_options(args=("a",), kwargs={"units": 2}, throttle=[PARTNER, TENANT])
    assert json.loads(sent.encode())["options"]["throttle"] == [
        {"algorithm": "token-bucket", "name": "partner", "rate": [10, 1_000_000], "burst": 3, "key": "", "cost": 1},
        {"algorithm": "token-bucket", "name": "tenant", "rate": [100, 60_000_000], "burst": 7, "key": "a", "cost": 2},
    ]
    with site.working():
        site.until_ran(1)


@pytest.mark.parametrize("off", [[], None, ()], ids=repr)
def test_an_empty_throttle_frees_one_message(site: Site, off: Any) -> None:
    """throttle=[] or None in a message overrides the actor's limits, and the store gets no request."""
    store = site.throttle(Recording(), throttle=TokenBucket("default", "1/hour"))
    job = body(site, throttle=PARTNER)
    job.send_with_options(throttle=off)
    with site.working():
        site.until_ran(1)
    assert store.asked == []


def test_limits_of_a_message_override_those_of_its_actor_and_the_default(stub: Site) -> None:
    """A message's limits override its actor's, and an actor's override Throttle's own. None is a choice too."""
    store = stub.throttle(Recording(), throttle=TokenBucket("default", "10/s"))
    plain, named, freed = (
        body(stub, actor_name="plain"),
        body(stub, actor_name="named", throttle=TokenBucket("actors", "10/s")),
        body(stub, actor_name="freed", throttle=None),
    )
    for actor in (plain, named, freed):
        actor.send(actor.actor_name)
    named.send_with_options(args=("by message",), throttle=TokenBucket("messages", "10/s"))
    with stub.working():
        stub.until_ran(4)
    assert {name.split(":")[1].strip("{") for name in store.names()} == {"default", "actors", "messages"}
    assert len(store.asked) == 3


@pytest.mark.parametrize("wrong", ["10/s", [PARTNER, PARTNER], {"name": "partner"}], ids=repr)
def test_an_invalid_value_is_refused_by_the_send(stub: Site, wrong: Any) -> None:
    """A value that is not a limit raises in the send, and nothing is enqueued."""
    stub.throttle(Recording())
    job = body(stub)
    with pytest.raises(ConfigurationError, match="message for 'job'"):
        job.send_with_options(throttle=wrong)
    assert stub.broker.queues[stub.queue].unfinished_tasks == 0


_REFUSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"throttle_max_wait": "soon"}),
    ({"own_limits": False}, {"throttle_max_wait": 5}),
]


@pytest.mark.parametrize(("settings", "options"), _REFUSED, ids=["bad value", "own_limits=False"])
def test_a_delayed_message_with_a_refused_option_stops_no_other(
    site: Site, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    """
    A program without throttlekit has sent it. The consumer of the delay queue continues, and the message is
    dead-lettered when its delay has passed.
    """
    job = body(site)
    job.send_with_options(args=("refused",), delay=10, **options)  # the broker has no Throttle yet
    site.throttle(Recording(), **settings)
    job.send_with_options(args=("fine",), delay=20)
    with site.working():
        site.until_ran(1)
        wait_until(lambda: dead_letters(site.broker, site.queue), description="the message is dead-lettered")
    assert site.ran == [(("fine",), {})]


def test_a_stage_of_a_pipeline_with_a_refused_option_is_dead_lettered(stub: Site) -> None:
    """The worker enqueues the stage, where nobody would get the error of a send."""
    stub.throttle(Recording(), own_limits=False)
    job = body(stub)
    stage = job.message_with_options(args=("refused",), throttle_max_wait=5)
    with stub.working():
        dramatiq.pipeline([job.message("fine"), stage], broker=stub.broker).run()
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the stage is dead-lettered")
    assert stub.ran == [(("fine",), {})]


def test_a_body_that_sends_a_refused_option_gets_the_error(stub: Site) -> None:
    """A send in a body raises as elsewhere, also after an inner body has ended."""
    stub.throttle(Recording())
    job = body(stub)

    @stub.actor(max_retries=0)
    def sender() -> None:
        job("inner")
        with pytest.raises(ConfigurationError, match="throttle_max_wait"):
            job.send_with_options(throttle_max_wait="soon")
        stub.ran.append("refused")

    sender.send()
    with stub.working():
        stub.until_ran(2)
    assert stub.ran[1] == "refused"


def test_a_misspelt_option_is_a_warning(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The warning is logged once for each actor, and the message is sent."""
    stub.throttle(Recording())
    job = body(stub)
    for _ in range(2):
        job.send_with_options(throtle="partner")
    (warning,) = [each for each in caplog.messages if "did you mean" in each]
    assert "the option 'throtle', which nothing reads: did you mean 'throttle'?" in warning
    assert stub.broker.queues[stub.queue].qsize() == 2


def test_a_key_without_its_argument_is_refused_by_the_send(stub: Site) -> None:
    """Keys and costs are computed by the sender, so the sender gets the error."""
    stub.throttle(Recording())
    job = body(stub)
    with pytest.raises(ConfigurationError, match="tenant"):
        job.send_with_options(kwargs={"account": 1}, throttle=TENANT)


def test_a_limit_that_differs_from_the_declared_one_runs(site: Site) -> None:
    """The sender can run another release: its definition applies to its message, with a separate budget."""
    store = site.throttle(Recording())
    job = body(site, throttle=PARTNER)
    job.send_with_options(throttle=TokenBucket("partner", "77/minute", burst=5))
    job.send()
    with site.working():
        site.until_ran(2)
    assert len(store.names()) == 2
    assert store.grants == 2
    assert dead_letters(site.broker, site.queue) == []


@pytest.mark.parametrize("delay", [None, 1])
def test_a_delayed_send_has_the_same_key_as_a_direct_one(site: Site, delay: int | None) -> None:
    """A key by queue is the name of the queue, and not that of its delay queue."""
    site.throttle(Recording())
    job = body(site)
    limit = TokenBucket("by-queue", "10/s", key=lambda job: job.queue)
    sent = job.send_with_options(throttle=limit, delay=delay)
    assert sent.options["throttle"][0]["key"] == site.queue
    with site.working():
        site.until_ran(1)


def test_the_key_of_a_job_is_the_same_before_and_after_a_denial(site: Site) -> None:
    """A callable key gets the same job for each decision."""
    store = site.throttle(DenyBefore(0))
    keyed_jobs: list[Job] = []

    def key(job: Job) -> str:
        keyed_jobs.append(job)
        return "one"

    site.broker.middleware[-1]._throttling.limiter = Limiter(DenyBefore(2))
    job = body(site, throttle=TokenBucket("keyed", "10/s", key=key))
    job.send(1, word="x")
    with site.working():
        site.until_ran(1)
    assert store.asked == []
    assert len(keyed_jobs) == 3
    assert len({(j.id, j.name, j.queue, tuple(j.args), tuple(j.kwargs.items())) for j in keyed_jobs}) == 1


@pytest.mark.parametrize(
    "garbage", [False, [{"name": "p", "rate": [1, 1000], "burst": 1, "key": "", "cost": 5}]], ids=["none", "cost"]
)
def test_a_forged_option_fails_its_message(stub: Site, garbage: Any) -> None:
    """
    An option that throttlekit did not write puts the message on the dead letter queue at once. It neither runs
    unthrottled nor is decided repeatedly.
    """
    store = stub.throttle(Recording())
    job = body(stub, throttle=PARTNER)
    message = job.message()._replace(options={"throttle": garbage})  # put there without any hook, as by another program
    stub.broker.queues[stub.queue].put(message.encode())
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
    assert stub.ran == []
    assert store.asked == []
    assert isinstance(dead_letters(stub.broker, stub.queue)[0]._exception, ConfigurationError)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_almost = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.just("p") | _json,
            "rate": st.lists(st.integers(), min_size=2, max_size=2) | _json,
            "burst": st.integers() | _json,
            "key": st.text(max_size=3) | _json,
            "cost": st.integers() | _json,
        }
    ),
    min_size=1,
    max_size=2,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(garbage=_json | _almost)
def test_no_json_value_causes_an_unexpected_error(garbage: Any) -> None:
    """
    Any JSON in the option is limits, no limits, or an error of throttlekit. An unexpected error would be decided again.
    """
    throttle = Throttle(Limiter())
    message = dramatiq.Message("q", "job", (), {}, {"throttle": garbage})
    try:
        limits = throttle._options.options(message).limits
        if limits:
            throttle.limiter.acquire(*limits, job=Job(id="1"))
        else:
            assert garbage in (None, [])
    except ConfigurationError:
        pass


@pytest.mark.parametrize(
    "options", [{"throttle": []}, {"throttle_max_wait": 0}, {"throttle_on_429": "partner"}], ids=repr
)
def test_own_limits_can_be_forbidden(stub: Site, options: dict[str, Any]) -> None:
    """
    With Throttle(own_limits=False), such a message of another program is dead-lettered, and the program's own sends
    raise at once.
    """
    store = stub.throttle(Recording(), own_limits=False)
    job = body(stub, throttle=PARTNER)
    with pytest.raises(ConfigurationError, match="own_limits=False"):
        job.send_with_options(**options)
    stub.broker.queues[stub.queue].put(job.message()._replace(options=options).encode())
    job.send()
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
        stub.until_ran(1)
    assert (len(stub.ran), len(store.asked)) == (1, 1)


def test_a_body_can_send_to_another_broker_with_the_same_middleware(site: Site) -> None:
    """Keys of later messages are still computed with the actors of the worker's own broker."""
    store = Recording()
    throttle = Throttle(Limiter(store))
    elsewhere = StubBroker(middleware=[])
    for broker in (site.broker, elsewhere):
        broker.add_middleware(throttle)
    other = dramatiq.actor(lambda: None, actor_name="other", broker=elsewhere)

    @site.actor(max_retries=0, throttle=TokenBucket("accounts", "1000/s", burst=100, key="{account}"))
    def job(account: int) -> None:
        site.ran.append(account)
        other.send()

    for account in range(3):
        job.send(account)
    with site.working():
        site.until_ran(3)
    assert dead_letters(site.broker, site.queue) == []

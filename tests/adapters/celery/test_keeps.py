"""A denial changes nothing about a task. Each task is denied twice before it runs, on real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TimeLimitExceeded

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, CelerySite, celery_site
from support.waiting import wait_until

pytestmark = [pytest.mark.workers, *QUIET]

FORMS = {"hold": ("prefork", "hold"), "put back": ("prefork", "put back"), "threads": ("threads", "hold")}


@pytest.fixture(scope="module", params=[f"{kind}, {form}" for kind in ("redis", "rabbitmq") for form in FORMS])
def shared(request: pytest.FixtureRequest, redis_base: str) -> Iterator[CelerySite]:
    """One worker for all tests, with each broker and each way in which a denied task can wait."""
    kind, form = request.param.split(", ")
    pool, how = FORMS[form]
    broker = redis_base if kind == "redis" else request.getfixturevalue("rabbitmq_url")
    with celery_site(kind, broker, redis_base, form=how, pool=pool) as site:
        site.start("-E")
        yield site
        # A copy that RabbitMQ was slow to confirm can still wait, for the time of two denials.
        wait_until(lambda: site.held() == [], description="no held task of an earlier test is left")


@pytest.fixture
def site(shared: CelerySite) -> Iterator[CelerySite]:
    """The worker, with an empty record. After the test, it must hold no task."""
    for key in shared.record.scan_iter(f"{shared.queue}:*"):
        shared.record.delete(key)
    yield shared
    wait_until(lambda: shared.left() == 0, description="no message is left")


def test_a_reader_sees_nothing_of_a_denial(site: CelerySite) -> None:
    """While the task waits, its state is PENDING, as if it were in the queue."""
    result = site.send("echo", 1)
    states = []

    def done() -> bool:
        states.append(result.state)
        return bool(states[-1] == "SUCCESS")

    wait_until(done, description="the task has run", every=0.005)
    assert set(states) <= {"PENDING", "SUCCESS"}


def test_the_body_sees_the_same_request(site: CelerySite) -> None:
    """
    Retries, priority, expiry, limits, headers and stamps are the same in the body's request as when they were sent.
    """
    options: dict[str, Any] = {
        "time_limit": 50,
        "soft_time_limit": 40,
        "shadow": "other",
        "argsrepr": "(…)",
        "headers": {"tenant": "t1", "nested": {"a": 1}},
        "correlation_id": "corr",
        "reply_to": "nobody",
        "priority": 3,
        "root_id": "root",
        "parent_id": "parent",
    }
    options["expires"] = datetime.now(timezone.utc) + timedelta(seconds=60)
    throttled = site.send("context", **options).get(timeout=WITHIN)
    free = site.send("free_context", **options).get(timeout=WITHIN)
    assert throttled.pop("task") == "context"
    assert free.pop("task") == "free_context"
    assert throttled == free
    assert throttled["retries"] == 0


def test_compression_and_pickle_are_kept(site: CelerySite) -> None:
    """A message with gzip or pickle keeps them when it is put back."""
    assert site.send("echo", "x" * 500, compression="gzip").get(timeout=WITHIN) == "x" * 500
    assert site.send("echo", {1, 2}, serializer="pickle", ignore_result=True)
    wait_until(lambda: "{1, 2}" in site.ran("echo"), description="the pickled task has run")


def test_a_message_of_protocol_1_is_throttled_and_kept(site: CelerySite) -> None:
    """A message of a very old producer is denied, waits and runs like any other."""
    site.app.conf.task_protocol = 1
    try:
        site.app.amqp.__dict__.pop("create_task_message", None)
        result = site.send("echo", "old")
    finally:
        site.app.conf.task_protocol = 2
        site.app.amqp.__dict__.pop("create_task_message", None)
    assert result.get(timeout=WITHIN) == "old"
    assert site.asked("denied") == 2


def test_each_link_of_a_chain_of_five_runs_once(site: CelerySite) -> None:
    """The links run in order, each with the result of the previous one."""
    links = [site.signature("add", 1), *(site.signature("add", number) for number in (2, 3, 4, 5))]
    assert chain(*links, app=site.app).apply_async().get(timeout=WITHIN) == 15
    assert len(site.ran("add")) == 5
    assert site.asked("granted") == 5


def test_the_body_of_a_chord_runs_once(site: CelerySite) -> None:
    """A chord's body runs once, after all of its header."""
    header = group([site.signature("add", number) for number in range(8)], app=site.app)
    assert header.apply_async().get(timeout=WITHIN) == list(range(8))
    assert chord(header)(site.signature("add")).get(timeout=WITHIN) == 28
    assert len(site.ran("add")) == 17


def test_a_chord_whose_header_fails_calls_its_error_callback_once(site: CelerySite) -> None:
    """One failed header fails the chord, and its error callback is called once."""
    body = site.signature("add").on_error(site.signature("told_error"))
    result = chord([site.signature("add", 1), site.signature("fail")], app=site.app)(body)
    with pytest.raises((ChordError, LookupError)):
        result.get(timeout=WITHIN)
    wait_until(lambda: site.ran("told_error"), description="the error callback is called")
    assert len(site.ran("told_error")) == 1
    assert len(site.ran("fail")) == 1


def test_callbacks_are_called_once(site: CelerySite) -> None:
    """link is called once, for the result, and link_error once, for the failure."""
    site.signature("add", 1, 2).apply_async(link=site.signature("echo")).get(timeout=WITHIN)
    with pytest.raises(LookupError):
        site.signature("fail").apply_async(link_error=site.signature("told_error")).get(timeout=WITHIN)
    wait_until(lambda: site.ran("echo") and site.ran("told_error"), description="both callbacks are called")
    assert site.ran("echo") == ["3"]
    assert len(site.ran("told_error")) == 1


def test_denials_use_no_retry_and_retries_are_charged(site: CelerySite) -> None:
    """
    With max_retries=3, two failures and two denials before each run, the task succeeds, and is charged three times.
    """
    assert site.send("stubborn", 2).get(timeout=WITHIN) == 2
    assert site.ran("stubborn") == ["0", "1", "2"]
    assert (site.asked("granted"), site.asked("denied")) == (3, 6)


def test_denials_use_none_of_the_retries_of_autoretry(site: CelerySite) -> None:
    """With autoretry_for and max_retries=2, two failures and a success are possible. A third failure ends the task."""
    assert site.send("auto", 2).get(timeout=WITHIN) == 2
    with pytest.raises(LookupError):
        site.send("auto", 9).get(timeout=WITHIN)
    assert site.ran("auto") == ["0", "1", "2", "0", "1", "2"]


def test_the_result_of_a_replacement_has_the_id_of_the_task(site: CelerySite) -> None:
    """A reader of the id gets the result of the replacement."""
    assert site.send("replaced", 40).get(timeout=WITHIN) == 42


def test_hooks_of_a_task_class_are_called_once(site: CelerySite) -> None:
    """before_start is called for the run only, and ignore_result stores nothing."""
    result = site.send("custom", "a", ignore_result=True)  # in Celery 5.6.3 the sender's option takes precedence
    wait_until(lambda: site.ran("custom"), description="the task has run")
    assert site.ran("before_start") == [result.id]
    assert result.state == "PENDING"


def test_a_late_acknowledged_task_runs_once(site: CelerySite) -> None:
    """With acks_late, the task runs once, and its message is then removed."""
    assert site.send("late", "a").get(timeout=WITHIN) == "a"
    assert site.ran("late") == ["a"]


def test_each_deferral_sends_an_event(site: CelerySite) -> None:
    """The event of each deferral has the task, the limit, and the time until which it waits."""
    events: list[dict[str, Any]] = []
    with site.listening("throttlekit-deferred", events):
        sent = time.time()
        result = site.send("echo", "value")
        wait_until(
            lambda: [event["uuid"] for event in events].count(result.id) >= 2,
            description="both deferrals have sent an event",
        )
    assert result.get(timeout=WITHIN) == "value"
    assert {event["uuid"] for event in events} == {result.id}
    assert {(event["name"], event["limit"]) for event in events} == {("echo", "each")}
    assert all(sent < event["until"] < sent + WITHIN for event in events)


def test_time_limits_are_honoured(site: CelerySite) -> None:
    """A body that exceeds its hard time limit fails, once."""
    if site.settings["pool"] == "threads":
        pytest.skip("threads have no time limits")
    with pytest.raises(TimeLimitExceeded):
        site.send("sleep", 30, time_limit=1).get(timeout=WITHIN)
    assert len(site.ran("sleep")) == 1

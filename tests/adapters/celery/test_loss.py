"""
No task is lost or runs without a grant, whatever happens to workers, brokers and the store. Tasks that end without a
run.
"""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery.exceptions import TaskRevokedError

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, CelerySite, celery_site
from support.flood.checks import assert_calm
from support.servers.processes import patient, rabbitmq_server
from support.waiting import wait_until
from throttlekit import ConfigurationError, Control, Job, Limiter, TokenBucket
from throttlekit.adapter import Failed
from throttlekit_celery._outcomes import end_without_body

pytestmark = [pytest.mark.workers, *QUIET]

NEVER = 10**6


@pytest.fixture
def on_rabbitmq(make_site: Any) -> Any:
    """Return a function that makes a site on RabbitMQ."""
    return partial(make_site, "rabbitmq")


def wait_for_failure(result: Any) -> Any:
    wait_until(result.ready, description="the task has ended")
    return result.get(propagate=False)


def test_a_task_that_has_waited_too_long_fails_without_a_run(make_site: Any) -> None:
    """
    With on_waited_too_long="fail", its state is FAILURE with WaitedTooLong, and on_failure and errbacks are called.
    There is no run, no retry and no charge. The same applies to a task whose key cannot be computed.
    """
    site: CelerySite = make_site(denials=NEVER, install={"max_deferrals": 2})
    site.start()
    result = site.signature("echo", 1).apply_async(link_error=site.signature("told_error"))
    assert type(wait_for_failure(result)).__name__ == "WaitedTooLong"
    assert "'each'" in str(result.result)
    wait_until(lambda: site.ran("told_error"), description="the errback is called")
    site.send("custom", "a")
    wait_until(lambda: site.ran("on_failure"), description="on_failure is called")
    assert site.asked("denied") == 6
    bad = site.send("bad_key", "secret")
    assert type(wait_for_failure(bad)).__name__ == "ConfigurationError"
    assert "ZeroDivisionError" in str(bad.result)
    assert "secret" not in str(bad.result)
    assert site.ran("on_failure") == ["WaitedTooLong", "ConfigurationError"]
    assert (site.ran("echo"), site.ran("custom"), site.ran("bad_key")) == ([], [], [])
    assert site.asked("granted") == 0
    site.wait_until_empty()


def test_a_task_that_fails_without_a_run_is_one_line_in_the_log() -> None:
    """No body has run, so the traceback only has frames of a user's callable that failed."""
    failing = TokenBucket("p", "10/s", cost=lambda job: 1 // 0)
    for limit, begin, within in (
        (TokenBucket("p", "10/s", burst=5, cost=lambda job: 6), "throttlekit.errors.CostExceedsLimit: ", ""),
        (failing, "Traceback", "1 // 0"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            Limiter("memory://").acquire(limit, job=Job())
        failures: list[Any] = []
        request = SimpleNamespace(
            task=SimpleNamespace(on_failure=lambda *_: None),
            id="1",
            args=(),
            kwargs={},
            acknowledged=True,
            on_failure=lambda info, return_ok, failures=failures: failures.append(info),
        )
        end_without_body(request, Failed(raised.value))
        (info,) = failures
        assert info.exc_info == (type(raised.value), raised.value, None)
        assert raised.value.__traceback__ is None
        assert info.traceback.startswith(begin)
        assert within in info.traceback
        assert len(info.traceback.splitlines()) == 1 or within
        assert "admission.py" not in info.traceback


def test_a_waiting_task_is_listed_and_can_be_revoked(make_site: Any) -> None:
    """`inspect scheduled` lists waiting tasks with their times. A revoked task ends at its time, without a charge."""
    site: CelerySite = make_site(denials=NEVER, delay=6.0)
    site.start()
    result = site.send("echo", 1)
    wait_until(lambda: site.asked("denied") == 1, description="the task was denied")
    (held,) = site.held()
    assert held["request"]["id"] == result.id
    assert held["eta"] is not None
    inspect = site.inspect(f"w@{site.queue}")
    assert [list(reply.values()) for reply in (inspect.reserved(), inspect.active())] == [[[]], [[]]]
    site.app.control.revoke(result.id)
    assert isinstance(wait_for_failure(result), TaskRevokedError)
    assert (site.ran("echo"), site.asked("denied")) == ([], 1)
    site.wait_until_empty()


def test_a_task_of_a_lost_pool_process_is_charged_again(make_site: Any) -> None:
    """With reject_on_worker_lost the task is redelivered, and its second run is charged too."""
    site: CelerySite = make_site()
    site.start()
    assert site.send("lost", "a").get(timeout=WITHIN) == "a"
    assert site.ran("lost") == ["a", "a"]
    assert site.asked("granted") == 2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_worker_that_stops_puts_held_tasks_back(make_site: Any, kind: str, how: signal.Signals) -> None:
    """After a warm or cold shutdown, every held task is in its queue again, once."""
    site: CelerySite = make_site(kind, denials=NEVER, delay=28.0)
    first = site.start()
    for n in range(20):
        site.send("echo", n)
    wait_until(lambda: site.asked("denied") == 20, description="all tasks were denied")
    first.signal(how)
    first.wait(WITHIN)
    assert site.left() == 20
    assert_calm(first.log())


def test_a_visibility_timeout_runs_no_task_twice(make_site: Any, redis_base: str) -> None:
    """
    Redis delivers a message that is unacknowledged for more than 6 s to another worker. Tasks that wait for up to 11 s
    are put back before that, so none runs twice.
    """
    site: CelerySite = make_site(
        store=patient(f"{redis_base}/13"), rate="1/s", conf={"broker_transport_options": {"visibility_timeout": 6}}
    )
    site.start(name="one")
    results = [site.send("echo", n) for n in range(12)]
    wait_until(lambda: len(site.ran("echo")) >= 8, description="seven seconds have passed")
    site.start(name="two")  # a worker that starts restores messages that were left unacknowledged
    site.assert_each_runs_once(results)


@pytest.mark.rabbitmq
def test_a_consumer_timeout_closes_no_channel(stack: ExitStack, redis_base: str) -> None:
    """
    RabbitMQ closes the channel of a consumer that holds a message for longer than its consumer_timeout, here 6 s. With
    a third of it as max_hold, tasks that wait for 12 s are put back before that, and no channel is closed.
    """
    url = stack.enter_context(rabbitmq_server(consumer_timeout=6000, channel_tick_interval=1000))
    site = stack.enter_context(
        celery_site("rabbitmq", url, redis_base, store=patient(f"{redis_base}/12"), rate="1/s", install={"max_hold": 2})
    )
    session = site.start()
    results = [site.send("echo", n) for n in range(12)]
    site.assert_each_runs_once(results)
    assert "Connection to broker lost" not in session.log()
    assert "PRECONDITION_FAILED" not in session.log()


def test_a_store_that_hangs_delays_only_throttled_tasks(make_site: Any) -> None:
    """
    If the store accepts connections but never answers, throttled tasks wait. Other tasks run, control commands are
    answered, and the worker stops on request.
    """
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        site: CelerySite = make_site(store=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        session = site.start()
        for n in range(50):
            site.send("echo", n)
        assert site.send("free", "a").get(timeout=WITHIN) == "a"
        wait_until(lambda: len(site.held()) >= 49, description="all throttled tasks wait")
        assert site.app.control.ping(destination=[f"w@{site.queue}"], timeout=WITHIN, limit=1)
        assert site.ran("echo") == []
        session.signal(signal.SIGTERM)
        session.wait(WITHIN)
    assert site.left() == 50


def test_tasks_of_quorum_queues_are_held(on_rabbitmq: Any) -> None:
    """
    RabbitMQ does not raise the prefetch count of a consumer of a quorum queue. The worker fetches other tasks beyond
    many denied ones anyway, holds all of the denied ones, and can wake them at any time.
    """
    if celery.__version__ < "5.5":
        pytest.skip("Celery 5.4 does not detect quorum queues")
    site: CelerySite = on_rabbitmq(quorum=True, denials=1, delay=12.0)
    site.start()
    results = [site.send("echo", n) for n in range(60)]
    wait_until(lambda: site.asked("denied") == 60, description="all tasks were denied")
    assert site.send("free", "a").get(timeout=WITHIN) == "a"
    assert len(site.held()) == 60
    site.assert_each_runs_once(results)


def test_a_raised_rate_wakes_tasks_of_quorum_queues(on_rabbitmq: Any, redis_url: str) -> None:
    """
    When a rate is raised, held tasks of quorum queues run at once, although the estimate at their denial was an hour.
    """
    if celery.__version__ < "5.5":
        pytest.skip("Celery 5.4 does not detect quorum queues")
    site: CelerySite = on_rabbitmq(quorum=True, store=redis_url, rate="6/h")
    site.start()
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: len(site.held()) == 19, description="all tasks but one wait")
    with Control(redis_url, by="test") as control:
        control.set("one", "100/s")
        assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(20))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"conf": {"worker_prefetch_multiplier": 1}}, ["--autoscale", "3,1"]),
        ({"pool": "solo", "conf": {"worker_disable_rate_limits": True, "worker_prefetch_multiplier": 0}}, []),
    ],
    ids=["autoscale", "solo, no rate limits of Celery, no prefetch limit"],
)
def test_a_task_with_a_rate_limit_of_celery_is_throttled(
    make_site: Any, config: dict[str, Any], options: list[str]
) -> None:
    """
    A task with Celery's rate limit is throttled, in a worker with autoscale and in a solo worker that disables Celery's
    limit.
    """
    site: CelerySite = make_site(**config)
    site.start(*options)
    results = [site.send("limited", n) for n in range(10)]
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(10))
    assert (site.asked("granted"), site.asked("denied")) == (10, 20)


def test_held_tasks_run_after_autoscale_has_ended_all_processes(make_site: Any, redis_url: str) -> None:
    """Held tasks need no process, so Celery ends the processes. It starts them again for the woken tasks."""
    conf = {"worker_autoscaler": "support.celery.tasks:QuickAutoscaler", "worker_prefetch_multiplier": 1}
    site: CelerySite = make_site(conf=conf, store=redis_url, rate="6/h")
    worker = site.start("--autoscale", "2,0")
    results = [site.send("echo", n) for n in range(4)]
    wait_until(lambda: len(site.held()) == 3, description="all tasks but one wait")
    wait_until(lambda: "Scaling down" in worker.log(), description="the idle processes have ended")
    with Control(redis_url, by="test") as control:
        control.set("one", "100/s")
        assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(4))


@pytest.mark.skipif(celery.__version__ < "5.6", reason="Celery before 5.6 has no worker_eta_task_limit")
def test_worker_eta_task_limit_is_respected(make_site: Any) -> None:
    """
    With a limit on held tasks, a worker fetches no more than that, runs all tasks, and continues to fetch afterwards.
    """
    site: CelerySite = make_site(
        denials=1, delay=1.5, conf={"worker_eta_task_limit": 12, "worker_prefetch_multiplier": 4}
    )
    site.start()
    results = [site.send("echo", n) for n in range(30)]
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, len(site.held()))
        return all(result.ready() for result in results)

    wait_until(done, description="all tasks have run")
    assert 0 < most <= 12
    assert len(site.ran("echo")) == 30


def test_tasks_wait_for_a_free_thread_before_their_request(make_site: Any) -> None:
    """While every thread is busy, no task is granted. No granted task waits in the pool while the limit refills."""
    site: CelerySite = make_site(pool="threads", denials=0)
    site.start()
    busy = [site.send("free_wait") for _ in range(2)]
    wait_until(lambda: len(site.ran("free_wait")) == 2, description="both threads are busy")
    waiting = [site.send("echo", n) for n in range(5)]
    inspect = site.inspect(f"w@{site.queue}")
    wait_until(lambda: len(next(iter(inspect.reserved().values()))) == 5, description="all tasks are in the worker")
    assert not any(result.ready() for result in busy)
    assert site.asked("granted") == 0
    site.go()
    assert [result.get(timeout=WITHIN) for result in waiting] == list(range(5))


def test_a_task_is_put_back_into_its_queue(make_site: Any) -> None:
    """A held task is put back into its queue, even if the worker was told to stop consuming from it."""
    site: CelerySite = make_site(denials=NEVER, delay=60.0, install={"max_hold": 2})
    other = f"{site.queue}other"
    site.start("--queues", f"{site.queue},{other}")
    site.app.send_task("echo", ("a",), queue=other)
    wait_until(lambda: site.held(), description="the task is held")
    site.app.control.cancel_consumer(other, destination=[f"w@{site.queue}"], reply=True)
    with site.app.connection_for_read() as connection:
        client = connection.default_channel.client
        wait_until(lambda: client.llen(other) == 1, description="the task is in its queue again")
        client.delete(other)
    site.wait_until_empty()


def test_a_task_whose_queue_was_deleted_is_not_lost(on_rabbitmq: Any) -> None:
    """
    RabbitMQ also confirms a copy that it could route to no queue. Such a copy does not count, and the task runs in its
    worker.
    """
    site: CelerySite = on_rabbitmq(denials=1, delay=7.0, install={"max_hold": 5})
    other = f"{site.queue}other"
    site.start("--queues", f"{site.queue},{other}")
    result = site.app.send_task("echo", ("a",), queue=other)
    wait_until(lambda: site.held(), description="the task is held")
    site.app.control.cancel_consumer(other, destination=[f"w@{site.queue}"], reply=True)
    with site.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(other)
    assert result.get(timeout=WITHIN) == "a"
    assert site.ran("echo") == ["a"]
    site.wait_until_empty()

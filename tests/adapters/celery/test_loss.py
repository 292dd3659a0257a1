"""Nothing is lost, nothing runs ungranted, whatever befalls workers, brokers and the store; and how tasks end unrun."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery.exceptions import TaskRevokedError

from support.celery.site import CelerySite, celery_site
from support.flood.checks import assert_calm
from support.servers.processes import free_port, patient, rabbitmq_server, redis_server
from support.waiting import wait_until
from throttlekit import ConfigurationError, Control, Job, Limiter, TokenBucket
from throttlekit.adapter import Failed
from throttlekit_celery._outcomes import end_without_body

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

NEVER = 10**6
WITHIN = 120.0


@pytest.fixture
def on_redis(stack: ExitStack, redis_base: str) -> Any:
    """Make a site on Redis."""
    return lambda **told: stack.enter_context(celery_site("redis", redis_base, redis_base, **told))


@pytest.fixture
def on_rabbitmq(stack: ExitStack, redis_base: str, request: pytest.FixtureRequest) -> Any:
    """Make a site on RabbitMQ."""
    url = request.getfixturevalue("rabbitmq_url")
    return lambda **told: stack.enter_context(celery_site("rabbitmq", url, redis_base, **told))


def ended_badly(result: Any) -> Any:
    wait_until(result.ready, description="it has ended", timeout=WITHIN)
    return result.get(propagate=False)


def nothing_left(site: CelerySite) -> None:
    wait_until(lambda: site.left() == 0 and site.held() == [], description="nothing is left", timeout=WITHIN)


def test_how_a_task_ends_that_has_waited_too_long(on_redis: Any) -> None:
    """
    on_waited_too_long="fail": FAILURE with WaitedTooLong, on_failure and errbacks called, no run, no retry, no
    charge.
    The same for a task whose key cannot be worked out, and for one with a throttle_max_wait of its own.
    """
    site: CelerySite = on_redis(denials=NEVER, install={"max_deferrals": 2})
    site.start()
    result = site.signature("echo", 1).apply_async(link_error=site.signature("told_error"))
    assert type(ended_badly(result)).__name__ == "WaitedTooLong"
    assert "'each'" in str(result.result)
    wait_until(lambda: site.ran("told_error"), description="the errback is called", timeout=WITHIN)
    site.send("custom", "a")
    wait_until(lambda: site.ran("on_failure"), description="on_failure is called", timeout=WITHIN)
    assert site.asked("denied") == 6
    bad = site.send("bad_key", "secret")
    assert type(ended_badly(bad)).__name__ == "ConfigurationError"
    assert "ZeroDivisionError" in str(bad.result)
    assert "secret" not in str(bad.result)
    assert site.ran("on_failure") == ["WaitedTooLong", "ConfigurationError"]
    assert (site.ran("echo"), site.ran("custom"), site.ran("bad_key")) == ([], [], [])
    assert site.asked("granted") == 0
    nothing_left(site)
    hasty = site.send("hasty")
    assert type(ended_badly(hasty)).__name__ == "WaitedTooLong"


def test_a_task_that_fails_unrun_is_one_line_in_the_log() -> None:
    """No body has run, so there are no frames but those of a callable of the user's that failed."""
    failing = TokenBucket("p", "10/s", cost=lambda job: 1 // 0)
    for limit, begin, within in (
        (TokenBucket("p", "10/s", burst=5, cost=lambda job: 6), "throttlekit.errors.CostExceedsLimit: ", ""),
        (failing, "Traceback", "1 // 0"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            Limiter("memory://").acquire(limit, job=Job())
        told: list[Any] = []
        request = SimpleNamespace(
            task=SimpleNamespace(on_failure=lambda *told: None), id="1", args=(), kwargs={}, acknowledged=True,
            on_failure=lambda info, return_ok, told=told: told.append(info),
        )  # fmt: skip
        end_without_body(request, Failed(raised.value))
        (info,) = told
        assert info.exc_info == (type(raised.value), raised.value, None)
        assert raised.value.__traceback__ is None
        assert info.traceback.startswith(begin)
        assert within in info.traceback
        assert len(info.traceback.splitlines()) == 1 or within
        assert "admission.py" not in info.traceback


def test_what_waits_is_seen_and_can_be_revoked(on_redis: Any) -> None:
    """`inspect scheduled` lists what waits, with its time; a revoked one ends when its time comes, never charged."""
    site: CelerySite = on_redis(denials=NEVER, delay=6.0)
    site.start()
    result = site.send("echo", 1)
    wait_until(lambda: site.asked("denied") == 1, description="it was denied", timeout=WITHIN)
    (held,) = site.held()
    assert held["request"]["id"] == result.id
    assert held["eta"] is not None
    inspect = site.inspect(f"w@{site.queue}")
    assert [list(told.values()) for told in (inspect.reserved(), inspect.active())] == [[[]], [[]]]
    site.app.control.revoke(result.id)
    assert isinstance(ended_badly(result), TaskRevokedError)
    assert (site.ran("echo"), site.asked("denied")) == ([], 1)
    nothing_left(site)


def test_a_pool_process_that_is_lost_is_asked_for_again(on_redis: Any) -> None:
    """reject_on_worker_lost: the task comes back, and its second run is charged as well."""
    site: CelerySite = on_redis()
    site.start()
    assert site.send("lost", "a").get(timeout=WITHIN) == "a"
    assert site.ran("lost") == ["a", "a"]
    assert site.asked("granted") == 2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_worker_that_stops_gives_back_what_it_holds(
    request: pytest.FixtureRequest, kind: str, how: signal.Signals
) -> None:
    """After a warm or cold shutdown every held task is in its queue again, once."""
    site: CelerySite = request.getfixturevalue(f"on_{kind}")(denials=NEVER, delay=28.0)
    first = site.start()
    for n in range(20):
        site.send("echo", n)
    wait_until(lambda: site.asked("denied") == 20, description="all were denied", timeout=WITHIN)
    first.signal(how)
    first.wait(WITHIN)
    assert site.left() == 20
    assert_calm(first.log())


def test_a_visibility_timeout_does_not_double_a_task(on_redis: Any, redis_base: str) -> None:
    """
    Redis gives a message that is unacknowledged for longer than 6 s to another worker. Tasks that wait for up to
    11 s go back before that: none runs twice.
    """
    site: CelerySite = on_redis(
        store=patient(f"{redis_base}/13"), rate="1/s", conf={"broker_transport_options": {"visibility_timeout": 6}}
    )
    site.start(name="one")
    results = [site.send("echo", n) for n in range(12)]
    wait_until(lambda: len(site.ran("echo")) >= 8, description="seven seconds have passed", timeout=WITHIN)
    site.start(name="two")  # a worker that starts looks for what has been left behind
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(12))
    nothing_left(site)
    assert sorted(map(int, site.ran("echo"))) == list(range(12))


@pytest.mark.rabbitmq
def test_a_consumer_timeout_closes_no_channel(stack: ExitStack, redis_base: str) -> None:
    """
    RabbitMQ closes the channel of a consumer that holds a message for longer than its consumer_timeout, 6 s here.
    With a third of it as max_hold, tasks that wait for 12 s go back before that: no channel is closed.
    """
    url = stack.enter_context(rabbitmq_server(consumer_timeout=6000, channel_tick_interval=1000))
    site = stack.enter_context(
        celery_site("rabbitmq", url, redis_base, store=patient(f"{redis_base}/12"), rate="1/s", install={"max_hold": 2})
    )
    session = site.start()
    results = [site.send("echo", n) for n in range(12)]
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(12))
    nothing_left(site)
    assert sorted(map(int, site.ran("echo"))) == list(range(12))
    assert "Connection to broker lost" not in session.log()
    assert "PRECONDITION_FAILED" not in session.log()


def test_a_store_that_hangs_stops_nobody_else(on_redis: Any) -> None:
    """
    A store that takes connections and never answers: throttled tasks wait, unrun; other tasks run, control
    commands are answered, and the worker stops when it is told to.
    """
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        site: CelerySite = on_redis(store=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        session = site.start()
        for n in range(50):
            site.send("echo", n)
        assert site.send("free", "a").get(timeout=WITHIN) == "a"
        wait_until(lambda: len(site.held()) >= 49, description="all wait", timeout=WITHIN)
        assert site.app.control.ping(destination=[f"w@{site.queue}"], timeout=WITHIN, limit=1)
        assert site.ran("echo") == []
        session.signal(signal.SIGTERM)
        session.wait(WITHIN)
    assert site.left() == 50


def test_a_store_that_is_away_costs_a_delay(on_redis: Any) -> None:
    """Tasks wait while the store is down, and run when it is there; none fails, none runs before."""
    port = free_port()
    site: CelerySite = on_redis(store=f"redis://127.0.0.1:{port}/0", rate="50/s")
    site.start()
    results = [site.send("echo", n) for n in range(5)]
    wait_until(lambda: len(site.held()) == 5, description="all wait", timeout=WITHIN)
    assert site.ran("echo") == []
    with redis_server(port=port):
        assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(5))


def test_tasks_of_quorum_queues_are_held(on_rabbitmq: Any) -> None:
    """
    RabbitMQ does not raise the prefetch count of a consumer of a quorum queue. Others are fetched past many denied
    tasks all the same, all of which are held, and can be woken at any time.
    """
    if celery.__version__ < "5.5":
        pytest.skip("Celery 5.4 does not detect quorum queues")
    site: CelerySite = on_rabbitmq(quorum=True, denials=1, delay=12.0)
    site.start()
    results = [site.send("echo", n) for n in range(60)]
    wait_until(lambda: site.asked("denied") == 60, description="all were denied", timeout=WITHIN)
    assert site.send("free", "a").get(timeout=WITHIN) == "a"
    assert len(site.held()) == 60
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(60))
    assert len(site.ran("echo")) == 60
    nothing_left(site)


def test_a_raised_rate_reaches_tasks_of_quorum_queues(on_rabbitmq: Any, redis_url: str) -> None:
    """They run at once, although they were denied for an hour."""
    if celery.__version__ < "5.5":
        pytest.skip("Celery 5.4 does not detect quorum queues")
    site: CelerySite = on_rabbitmq(quorum=True, store=redis_url, rate="6/h")
    site.start()
    results = [site.send("echo", n) for n in range(20)]
    wait_until(lambda: len(site.held()) == 19, description="all but one wait", timeout=WITHIN)
    with Control(redis_url, by="test") as control:
        control.set("one", "100/s")
        assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(20))


def test_celerys_own_rate_limit_beside_ours(on_redis: Any) -> None:
    """A task with both is held back by both, in a worker with autoscale; and in one that disables Celery's."""
    site: CelerySite = on_redis(conf={"worker_prefetch_multiplier": 1})
    site.start("--autoscale", "3,1")
    results = [site.send("limited", n) for n in range(10)]
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(10))
    assert (site.asked("granted"), site.asked("denied")) == (10, 20)


def test_a_solo_worker_that_has_no_rate_limits(on_redis: Any) -> None:
    """The solo pool, with worker_disable_rate_limits and an unlimited prefetch count."""
    site: CelerySite = on_redis(pool="solo", conf={"worker_disable_rate_limits": True, "worker_prefetch_multiplier": 0})
    site.start()
    results = [site.send("limited", n) for n in range(10)]
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(10))
    assert (site.asked("granted"), site.asked("denied")) == (10, 20)


@pytest.mark.skipif(celery.__version__ < "5.6", reason="Celery before 5.6 has no worker_eta_task_limit")
def test_worker_eta_task_limit_is_kept(on_redis: Any) -> None:
    """With a limit on what is held, a worker fetches no more than that, gets through all, and fetches on afterwards."""
    site: CelerySite = on_redis(
        denials=1, delay=1.5, conf={"worker_eta_task_limit": 12, "worker_prefetch_multiplier": 4}
    )
    site.start()
    results = [site.send("echo", n) for n in range(30)]
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, len(site.held()))
        return all(result.ready() for result in results)

    wait_until(done, description="all have run", timeout=WITHIN)
    assert 0 < most <= 12
    assert len(site.ran("echo")) == 30


def test_threads_take_a_slot_before_they_ask(on_redis: Any) -> None:
    """With every thread busy no task is granted: none lies granted in the pool while the limit fills up again."""
    site: CelerySite = on_redis(pool="threads", denials=0)
    site.start()
    busy = [site.send("free_wait") for _ in range(2)]
    wait_until(lambda: len(site.ran("free_wait")) == 2, description="both threads are busy", timeout=WITHIN)
    waiting = [site.send("echo", n) for n in range(5)]
    inspect = site.inspect(f"w@{site.queue}")
    wait_until(
        lambda: len(next(iter(inspect.reserved().values()))) == 5, description="all are in the worker", timeout=WITHIN
    )
    assert not any(result.ready() for result in busy)
    assert site.asked("granted") == 0
    site.go()
    assert [result.get(timeout=WITHIN) for result in waiting] == list(range(5))


def test_a_task_goes_back_to_the_queue_it_came_from(on_redis: Any) -> None:
    """Also when the worker has been told meanwhile to consume it no longer."""
    site: CelerySite = on_redis(denials=NEVER, delay=60.0, install={"max_hold": 2})
    other = f"{site.queue}other"
    site.start("--queues", f"{site.queue},{other}")
    site.app.send_task("echo", ("a",), queue=other)
    wait_until(lambda: site.held(), description="it is held", timeout=WITHIN)
    site.app.control.cancel_consumer(other, destination=[f"w@{site.queue}"], reply=True)
    with site.app.connection_for_read() as connection:
        client = connection.default_channel.client
        wait_until(lambda: client.llen(other) == 1, description="it is back in its queue", timeout=WITHIN)
        client.delete(other)
    nothing_left(site)


def test_a_task_whose_queue_is_gone_is_not_lost(on_rabbitmq: Any) -> None:
    """RabbitMQ confirms a copy too that it could put nowhere; that one is no copy, and the task runs where it is."""
    site: CelerySite = on_rabbitmq(denials=1, delay=7.0, install={"max_hold": 5})
    other = f"{site.queue}other"
    site.start("--queues", f"{site.queue},{other}")
    result = site.app.send_task("echo", ("a",), queue=other)
    wait_until(lambda: site.held(), description="it is held", timeout=WITHIN)
    site.app.control.cancel_consumer(other, destination=[f"w@{site.queue}"], reply=True)
    with site.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(other)
    assert result.get(timeout=WITHIN) == "a"
    assert site.ran("echo") == ["a"]
    nothing_left(site)

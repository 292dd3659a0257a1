"""Limits of an enqueue call: every call accepts them, they are sent by value, and no job runs without them."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from rq import Queue
from rq.decorators import job as rq_job
from rq.job import Dependency, JobStatus
from rq.serializers import JSONSerializer

from support.rq import jobs
from support.rq.helpers import IN_PROCESS, QUIET, Site
from throttlekit import ConfigurationError, Job, TokenBucket
from throttlekit_rq import ThrottledQueue, ThrottledSimpleWorker, configure

pytestmark = QUIET

HELD = [jobs.HOURLY]
TENANT = TokenBucket("tenant", "100/minute", burst=7, key="{tenant}", cost=lambda job: job.kwargs["units"])


def tenant(tenant: str, *, units: int = 1) -> str:
    return jobs.plain(tenant)


def throttled_sum(*, throttled: int) -> int:
    return throttled + 2


CALLS: dict[str, Callable[[ThrottledQueue], Any]] = {
    "enqueue": lambda queue: queue.enqueue(jobs.plain, "x", throttle=HELD),
    "enqueue by name": lambda queue: queue.enqueue("support.rq.jobs.plain", "x", throttle=jobs.HOURLY),
    "enqueue with args=": lambda queue: queue.enqueue(jobs.plain, args=("x",), throttle=HELD),
    "enqueue_call": lambda queue: queue.enqueue_call(jobs.plain, ("x",), throttle=HELD),
    "enqueue_at": lambda queue: queue.enqueue_at(datetime.now(timezone.utc), jobs.plain, "x", throttle=HELD),
    "enqueue_in": lambda queue: queue.enqueue_in(timedelta(0), jobs.plain, "x", throttle=HELD),
    "enqueue_many": lambda queue: queue.enqueue_many([queue.prepare_data(jobs.plain, ("x",), throttle=HELD)])[0],
    "enqueue in a pipeline": lambda queue: _enqueue_in_pipeline(queue),
    "enqueue_job": lambda queue: queue.enqueue_job(queue.create_job(jobs.plain, ("x",), throttle=HELD)),
}


def _enqueue_in_pipeline(queue: ThrottledQueue) -> Any:
    with queue.connection.pipeline() as pipeline:
        job = queue.enqueue(jobs.plain, "x", throttle=HELD, pipeline=pipeline)
        pipeline.execute()
    return job


class _Mixed(Queue):
    """A queue class with its own option, such as that of django-rq."""

    def __init__(self, *args: Any, commit_mode: str | None = None, **options: Any) -> None:
        self.commit_mode = commit_mode
        super().__init__(*args, **options)


class _ThrottledMixed(_Mixed, ThrottledQueue): ...


@pytest.mark.parametrize("made", [ThrottledQueue, _ThrottledMixed])
@pytest.mark.parametrize(
    ("option", "meant"),
    [("throtle", "throttle"), ("throttle_on_429", "on_429"), ("is_asynch", "is_async"), ("color", "")],
)
def test_an_unknown_option_of_a_queue_is_refused(made: Any, option: str, meant: str, stock_site: Site) -> None:
    """A ThrottledQueue refuses an unknown option; RQ's own class ignores it."""
    hint = f": did you mean '{meant}'" if meant else "$"
    with pytest.raises(ConfigurationError, match=f"no option '{option}'{hint}"):
        made("work", connection=stock_site.connection, **{option: []})


@pytest.mark.parametrize("option", ["autocommit", "commit_mode"])
def test_an_option_of_another_queue_class_is_refused(option: str, stock_site: Site) -> None:
    """
    django-rq gives every queue its commit mode, which a ThrottledQueue does not have. The error names the class to
    define.
    """
    with pytest.raises(ConfigurationError, match=rf"'{option}'.*\(DjangoRQ, ThrottledQueue\)"):
        ThrottledQueue("work", connection=stock_site.connection, **{option: None})


def test_a_class_of_two_queues_accepts_the_options_of_both(simple_site: Site) -> None:
    """Each base class gets its own options, and jobs of the queue have its limits."""
    queue = _ThrottledMixed("work", connection=simple_site.connection, commit_mode="auto", throttle=HELD, is_async=True)
    assert queue.commit_mode == "auto"
    simple_site.shut(jobs.HOURLY)
    job = queue.enqueue(jobs.plain, "x")
    simple_site.work()
    assert (simple_site.noted, simple_site.fetch(job).get_status()) == ([], JobStatus.SCHEDULED)


def _any(**keywords: Any) -> None: ...


@pytest.mark.parametrize("function", [_any, "support.rq.jobs.plain"])
def test_a_limit_with_a_misspelt_name_is_refused_for_every_function(function: Any, stock_site: Site) -> None:
    """
    Functions with `**kwargs`, and those that are only named, may accept any argument, but a limit must be an option.
    """
    with pytest.raises(ConfigurationError, match="no option 'throtle': did you mean 'throttle'"):
        stock_site.queue.enqueue(function, throtle=HELD)
    stock_site.queue.enqueue(function, throtle=5)


def test_an_argument_with_the_name_of_an_option_is_passed_to_the_function(stock_site: Site) -> None:
    """A function can have an argument with such a name."""
    job = stock_site.queue.enqueue(throttled_sum, throttled=2)
    stock_site.work()
    assert stock_site.fetch(job).return_value() == 4


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_enqueue_call_accepts_limits(simple_site: Site, call: Callable[[ThrottledQueue], Any]) -> None:
    """The job keeps its name and description, is denied by the limit, and runs when the limit has room."""
    simple_site.shut(jobs.HOURLY)
    job = call(simple_site.queue)
    fetched = simple_site.fetch(job)
    assert (fetched.func_name, fetched.description) == ("support.rq.jobs.plain", "support.rq.jobs.plain('x')")
    simple_site.make_due()
    simple_site.work()
    assert (simple_site.noted, simple_site.fetch(job).get_status()) == ([], JobStatus.SCHEDULED)
    simple_site.open_and_work(jobs.HOURLY)
    assert simple_site.noted == ["x"]


def test_limits_are_sent_as_plain_values(stock_site: Site) -> None:
    """Rate, burst, and the job's own key and cost are sent as JSON, without code, addresses or passwords."""
    secret = type(stock_site.limiter)("redis://:geheim@127.0.0.1:1/5")
    queue = ThrottledQueue("work", connection=stock_site.connection, limiter=secret)
    job = queue.enqueue(tenant, "a", units=2, throttle=[jobs.HOURLY, TENANT], throttle_max_wait=timedelta(minutes=1))
    carried = stock_site.fetch(job).instance
    _, (text, instance) = carried.__reduce__()
    assert instance is None
    assert json.loads(text) == {
        "v": 1,
        "limits": [
            {
                "algorithm": "token-bucket",
                "name": "hourly",
                "rate": [1, 3_600_000_000],
                "burst": 1,
                "key": "",
                "cost": 1,
            },
            {
                "algorithm": "token-bucket",
                "name": "tenant",
                "rate": [100, 60_000_000],
                "burst": 7,
                "key": "a",
                "cost": 2,
            },
        ],
        "queue": [],
        "max_wait": 60.0,
    }
    assert all(b"geheim" not in value for value in stock_site.raw(job).values())
    assert b"lambda" not in pickle.dumps(carried)


def test_methods_can_be_jobs(rq_site: Site) -> None:
    """A bound method is stored with its object and its limits. A decorated method is decided where it runs."""
    account = jobs.Account("ann")
    carrying = rq_site.queue.enqueue(account.pay, 5, throttle=[jobs.LIVELY])
    assert rq_site.fetch(carrying).func_name == "pay"
    rq_site.shut(jobs.HOURLY)
    decorated = rq_site.queue.enqueue(account.owe, 7)
    rq_site.work()
    assert rq_site.noted == ["ann pays 5"]
    assert rq_site.fetch(decorated).get_status() == JobStatus.SCHEDULED
    rq_site.open_and_work(jobs.HOURLY)
    assert rq_site.noted == ["ann pays 5", "ann owes 7"]


@pytest.mark.parametrize("kind", ["simple", "throttled-simple"])
def test_a_json_serializer_refers_to_the_function_by_name(redis_url: str, kind: str) -> None:
    """With JSON the job cannot contain an object: it names throttlekit's function, and describes itself as before."""
    site = Site(redis_url, kind)
    try:
        site.queue = ThrottledQueue("work", connection=site.connection, serializer=JSONSerializer)
        site.shut(jobs.HOURLY)
        job = site.queue.enqueue(jobs.plain, "x", throttle=HELD)
        fetched = site.fetch(job)
        assert (fetched.func_name, fetched.description) == ("throttlekit_rq.run", "support.rq.jobs.plain('x')")

        def work() -> None:
            site.work(worker=IN_PROCESS[kind](["work"], connection=site.connection, serializer=JSONSerializer))

        work()
        assert site.fetch(job).get_status() == JobStatus.SCHEDULED
        site.open(jobs.HOURLY)
        work()
        assert site.noted == ["x"]
    finally:
        site.close()


@pytest.mark.parametrize("own", [[], None, (), [jobs.LIVELY]], ids=["list", "None", "tuple", "limits"])
def test_limits_of_a_job_replace_those_of_its_function(simple_site: Site, own: Any) -> None:
    """throttle=[…] overrides the decorator. With [] or None, the job runs uncharged."""
    simple_site.shut(jobs.HOURLY)
    simple_site.queue.enqueue(jobs.hourly, "free", throttle=own)
    simple_site.work()
    assert simple_site.noted == ["free"]


def test_limits_of_a_queue_apply_in_addition(simple_site: Site) -> None:
    """ThrottledQueue(throttle=…) adds its limits to those of a job or its function, or to none."""
    site = simple_site
    queue = ThrottledQueue("work", connection=site.connection, throttle=[jobs.HOURLY], limiter=site.limiter)
    site.shut(jobs.HOURLY)
    held = [
        queue.enqueue(jobs.plain),
        queue.enqueue(jobs.plain, throttle=[]),
        queue.enqueue(jobs.plain, throttle=[jobs.LIVELY]),
        queue.enqueue(jobs.lively),
    ]
    site.work()
    assert {job.get_status() for job in held} == {JobStatus.SCHEDULED}
    assert site.limiter.peek(jobs.LIVELY).remaining == jobs.LIVELY.burst


def test_a_limit_named_twice_is_charged_once(simple_site: Site) -> None:
    """A limit that both the queue and the job name counts as one limit."""
    queue = ThrottledQueue("work", connection=simple_site.connection, throttle=[jobs.LIVELY])
    job = queue.enqueue(jobs.lively, throttle=[jobs.LIVELY])
    simple_site.work()
    assert job.get_status() == JobStatus.FINISHED


def test_each_account_is_counted_separately(simple_site: Site) -> None:
    """A key is computed from the job's arguments, positional or named, where it is enqueued or where it runs."""
    simple_site.shut(jobs.KEYED, key="a")
    by_tenant = TokenBucket("keyed", "1/hour", burst=1, key="{tenant}")
    held = [simple_site.queue.enqueue(jobs.keyed, "a"), simple_site.queue.enqueue(tenant, "a", throttle=by_tenant)]
    simple_site.queue.enqueue(jobs.keyed, account="b", what="b ran")
    simple_site.work()
    assert simple_site.noted == ["b ran"]
    assert {job.get_status() for job in held} == {JobStatus.SCHEDULED}


def test_a_callable_key_gets_the_job(stock_site: Site) -> None:
    """The key gets the job's own id, name, queue and arguments."""
    keyed_jobs: list[Job] = []
    limit = TokenBucket("keyed", "10/s", key=lambda job: keyed_jobs.append(job) or "k")
    stock_site.queue.enqueue(tenant, "a", units=3, job_id="j1", throttle=limit)
    (job,) = keyed_jobs
    assert (job.id, job.queue, job.arguments) == ("j1", "work", {"tenant": "a", "units": 3})
    assert job.name.endswith(".tenant")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("10/s", "takes a limit"),
        ([jobs.LIVELY, 5], "takes a limit"),
        ([jobs.LIVELY, jobs.LIVELY], "named twice"),
        (jobs.KEYED, "account"),
        (TokenBucket("greedy", "10/s", burst=2, cost=lambda job: 3), "can never admit"),
    ],
    ids=["text", "mixed", "twice", "key", "cost"],
)
def test_an_invalid_value_is_refused_by_the_enqueue_call(stock_site: Site, wrong: Any, message: str) -> None:
    """The error names the job's function, and nothing is enqueued."""
    with pytest.raises(ConfigurationError, match=f"job for 'support.rq.jobs.plain'.*{message}"):
        stock_site.queue.enqueue(jobs.plain, throttle=wrong)
    assert stock_site.queue.count == 0


@pytest.mark.parametrize("wrong", [-1, "soon", float("nan"), True])
def test_an_invalid_max_wait_is_refused_by_the_enqueue_call(stock_site: Site, wrong: Any) -> None:
    """A `throttle_max_wait` that is not a valid duration raises in the enqueue call."""
    with pytest.raises(ConfigurationError, match="throttle_max_wait"):
        stock_site.queue.enqueue(jobs.plain, throttle=HELD, throttle_max_wait=wrong)


def test_a_name_with_two_definitions_is_refused_by_the_enqueue_call(stock_site: Site) -> None:
    """A queue with a limiter knows all limits that it was given."""
    queue = ThrottledQueue("work", connection=stock_site.connection, limiter=stock_site.limiter)
    queue.enqueue(jobs.plain, throttle=jobs.HOURLY)
    with pytest.raises(ConfigurationError, match="two limits"):
        queue.enqueue(jobs.plain, throttle=TokenBucket("hourly", "2/hour"))


def test_a_queue_without_workers_runs_its_jobs_at_once(stock_site: Site) -> None:
    """With is_async=False no worker could put a job back, so it runs, as in RQ. This is for tests."""
    stock_site.shut(jobs.HOURLY)
    queue = ThrottledQueue("work", connection=stock_site.connection, is_async=False)
    for job in (queue.enqueue(jobs.plain, "a", throttle=HELD), queue.enqueue(jobs.hourly, "b")):
        assert job.get_status() == JobStatus.FINISHED
    assert stock_site.noted == ["a", "b"]


def test_the_job_decorator_enqueues_throttled_functions(rq_site: Site) -> None:
    """RQ's @job works above and below @throttled, and so does its delay(), on queues of throttlekit and of RQ."""
    rq_site.shut(jobs.HOURLY)
    sent = [
        rq_job(Queue("work", connection=rq_site.connection), connection=rq_site.connection)(jobs.hourly).delay("a"),
        rq_job(rq_site.queue, connection=rq_site.connection)(jobs.hourly_async).delay("b"),
    ]
    rq_site.work()
    assert {job.get_status() for job in sent} == {JobStatus.SCHEDULED}


def test_dependents_in_enqueue_many_have_their_limits(simple_site: Site) -> None:
    """With enqueue_many and dependencies, a job that waits for another one is denied when its dependency is done."""
    simple_site.shut(jobs.HOURLY)
    first = simple_site.queue.enqueue(jobs.plain, "first")
    data = simple_site.queue.prepare_data(jobs.plain, ("second",), throttle=HELD, depends_on=Dependency(jobs=[first]))
    (second,) = simple_site.queue.enqueue_many([data])
    simple_site.work()
    assert simple_site.noted == ["first"]
    assert simple_site.fetch(second).get_status() == JobStatus.SCHEDULED


def test_a_worker_accepts_throttlekits_queue_class(simple_site: Site) -> None:
    """With --queue-class throttlekit_rq.ThrottledQueue, a worker can use it as its own class."""
    site = simple_site
    site.queue.enqueue(jobs.plain, throttle=[jobs.LIVELY])
    site.work(worker=ThrottledSimpleWorker(["work"], connection=site.connection, queue_class=ThrottledQueue))
    assert site.noted == ["ran"]


@pytest.mark.parametrize("wrong", [{"limiter": "redis://"}, {"throttle": "10/s"}])
def test_a_queue_refuses_limits_that_can_never_work(stock_site: Site, wrong: Any) -> None:
    """An invalid limiter or limit raises when the queue is created."""
    with pytest.raises(ConfigurationError):
        ThrottledQueue("work", connection=stock_site.connection, **wrong)


@pytest.mark.parametrize("options", [{"throttle": [jobs.LIVELY]}, {"throttle": []}, {"throttle_max_wait": 5}], ids=repr)
def test_limits_give_a_job_no_id(stock_site: Site, options: Any) -> None:
    """create_job leaves the id to RQ, which creates one when it is first read. unique=True without an id is refused."""
    queue = stock_site.queue
    job = queue.create_job(jobs.plain, ("x",), **options)
    assert job._id is None
    if "unique" in inspect.signature(Queue.enqueue_job).parameters:
        with pytest.raises(ValueError, match="explicit job_id"):
            queue.enqueue_job(job, unique=True)
        assert queue.get_job_ids() == []
    assert queue.enqueue_job(job).id


def test_a_key_can_be_the_id_of_the_job(stock_site: Site) -> None:
    """A callable that reads job.id gets the id with which the job is enqueued."""
    by_id = TokenBucket("by-id", "10/s", key=lambda job: job.id)
    job = stock_site.queue.create_job(jobs.plain, ("x",), throttle=by_id)
    text, _ = job._instance._throttlekit
    assert json.loads(text)["limits"][0]["key"] == job.id


@pytest.mark.parametrize(
    "make_options",
    [
        lambda site: site.queue.enqueue(jobs.hourly, throttle=[]),
        lambda site: site.queue.enqueue(jobs.hourly, throttle=[jobs.LIVELY]),
        lambda site: site.queue.enqueue(jobs.hourly, throttle_max_wait=1),
        lambda site: site.queue.enqueue(jobs.hourly, throttle_on_429="hourly"),
        lambda site: ThrottledQueue("work", connection=site.connection, throttle=jobs.LIVELY).enqueue(jobs.hourly),
    ],
    ids=["no limits", "limits", "max_wait", "on_429", "queue"],
)
def test_own_limits_can_be_forbidden(rq_site: Site, make_options: Callable[[Site], Any]) -> None:
    """
    With configure(own_limits=False), a job with its own limits fails in any worker. Others are limited as declared.
    """
    configure(rq_site.limiter, own_limits=False)
    rq_site.shut(jobs.HOURLY)
    job, plain = make_options(rq_site), rq_site.queue.enqueue(jobs.hourly)
    rq_site.work()
    assert rq_site.noted == []
    assert rq_site.fetch(job).get_status() == JobStatus.FAILED
    assert "own_limits=False" in rq_site.fetch(job).latest_result().exc_string
    assert rq_site.fetch(plain).get_status() == JobStatus.SCHEDULED


@pytest.mark.parametrize("spawn_site", ["throttled-spawn"], indirect=True)
def test_own_limits_are_forbidden_in_a_spawned_process_too(spawn_site: Site) -> None:
    """A worker of throttlekit refuses the job before the process is spawned, which has no `configure`."""
    configure(spawn_site.limiter, own_limits=False)
    job = spawn_site.queue.enqueue(jobs.hourly, throttle=[])
    spawn_site.work()
    assert spawn_site.noted == []
    assert spawn_site.fetch(job).get_status() == JobStatus.FAILED


def test_a_limit_of_a_job_does_not_replace_one_of_its_queue(throttled_site: Site) -> None:
    """
    If a job's limit has the name of a limit of configure(queues=…), with another rate or another key, the queue's limit
    applies.
    """
    site = throttled_site
    configure(site.limiter, queues={"work": jobs.HOURLY})
    site.shut(jobs.HOURLY)
    held = [
        site.queue.enqueue(jobs.plain, throttle=[TokenBucket("hourly", "1000/s")]),
        site.queue.enqueue(jobs.plain, throttle=[TokenBucket("hourly", "1/hour", burst=1, key=lambda job: "mine")]),
        site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY]),
    ]
    site.work()
    assert site.noted == []
    assert {site.fetch(job).get_status() for job in held} == {JobStatus.SCHEDULED}

"""`throttlekit parked` and `release`: what a broker's Redis has parked, and what becomes of jobs that are released."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import dq_name

from support.dramatiq.helpers import Site
from support.parks import celery_message, plant
from support.servers.processes import Cluster
from throttlekit import TokenBucket
from throttlekit_cli._commands import cli

Run = Callable[..., Result]
SLOW = TokenBucket("slow", "1/minute", burst=1)


@pytest.fixture
def run(redis_url: str) -> Run:
    """Run `throttlekit …`; the broker is a store of the test's own."""
    return lambda *words: CliRunner().invoke(cli, words, env={"THROTTLEKIT_BROKER": redis_url, "THROTTLEKIT_URL": None})


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    made: list[Any] = []

    def make() -> Any:
        made.append(RedisBroker(url=redis_url))
        return made[-1]

    yield Site("redis", "mail", make)
    for broker in made:
        broker.flush("mail")
        broker.close()


def shown(run: Run, *options: str) -> Any:
    return json.loads(run("parked", "--json", *options).stdout)


def jobs_of(run: Run, name: str) -> int:
    return sum(each["jobs"] for each in shown(run, name))


def queued(site: Site) -> list[str]:
    """The ids of the messages in the broker's delay queue, in its order."""
    broker: Any = site.broker
    whole = f"{broker.namespace}:{dq_name(site.queue)}"
    ids = broker.client.lrange(whole, 0, -1)
    return [json.loads(each)["message_id"] for each in broker.client.hmget(f"{whole}.msgs", ids)] if ids else []


def test_jobs_of_every_line_and_queue_are_released_in_batches_in_their_order(run: Run, redis_url: str) -> None:
    """1 200 in one line, some in another, and in another queue; a message of another encoder shows the park's id."""
    ids = [f"id-{n}" for n in range(1200)]
    plant(redis_url, [celery_message(id) for id in ids])
    plant(redis_url, [b"\x80\x04pickled", b"[]"], line="b")
    plant(redis_url, [celery_message("other")], limit="other", line="c")
    plant(redis_url, [celery_message("elsewhere")], queue="late")
    assert run("parked", "api", "--show-jobs", "1").stdout.splitlines() == [
        "api: 1202 parked in 2 lines, celery queue celery; no worker runs that wakes them",
        "  id-0  app.send",
        "api: 1 parked, celery queue late; no worker runs that wakes them",
        "  elsewhere  app.send",
    ]
    every = [job["id"] for job in shown(run, "api", "--show-jobs", "2000")[0]["first"]]
    assert every[-2:] == ["b0", "b1"]
    assert run("release", "api", "--job", "b1").exit_code == 0
    assert run("release", "api", "--job", "elsewhere").exit_code == 0
    assert run("release", "api", "--all").stdout == "api: 1201 released\n"
    with redis.Redis.from_url(redis_url) as client:
        messages = client.lrange("celery", 0, -1)[::-1]  # kombu takes them from the right
        assert [json.loads(each)["headers"]["id"] for each in messages if b"headers" in each] == ids
        assert client.llen("late") == 1
        assert client.hlen("throttlekit:celery:messages") == 1
    assert [each["limit"] for each in shown(run)] == ["other"]


def test_what_is_not_parked(run: Run, redis_url: str) -> None:
    """Exit code 1, and where was looked; with the limits that have parked jobs, or that the broker may be elsewhere."""
    nothing = run("parked")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr.startswith("No job is parked in 127.0.0.1:")
    store = CliRunner().invoke(cli, ["parked"], env={"THROTTLEKIT_URL": redis_url, "THROTTLEKIT_BROKER": None})
    assert "That is the limiter's store. If the broker is another Redis, add --broker URL." in store.stderr
    plant(redis_url, [celery_message("one")])
    outcome = run("release", "apu", "--all")
    assert outcome.exit_code == 1
    assert "No job is parked for 'apu'" in outcome.stderr
    assert "Jobs are parked there for api." in outcome.stderr
    outcome = run("release", "api", "--job", "two")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "No job with this id is parked for this limit." in outcome.stderr
    with redis.Redis.from_url(redis_url) as client:
        client.delete("throttlekit:celery:messages")  # as a purge does
    assert shown(run, "--show-jobs", "5")[0]["first"] == [{"id": "a0", "function": None}]
    assert (run("release", "api", "--all").exit_code, shown(run)) == (1, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["release", "api"], "--job ID, --most N or --all"),
        (["release", "api", "--all", "--most", "3"], "--job ID, --most N or --all"),
        (["parked", "--broker", "amqp://u:hunter2@localhost//"], "only where the broker is a Redis"),
        (["parked", "--broker", "hunter2"], "only where the broker is a Redis"),
        (["parked", "--broker", "redis+cluster://:hunter2@localhost"], "and not a cluster"),
        (["parked", "--broker", "redis://:hunter2@localhost/zero"], "the broker's URL cannot be read"),
        (["parked", "--broker", "redis://:hunter2@127.0.0.1:1/0"], "the broker gave no usable answer: ConnectionError"),
        (["release", "api", "--all", "--broker", "redis://127.0.0.1:1/0"], "(server 127.0.0.1:1/0)"),
    ],
)
def test_a_command_that_cannot_be_run(run: Run, words: list[str], message: str) -> None:
    """Exit code 2 and the reason, without a password."""
    outcome = run(*words)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert message in outcome.stderr
    assert "hunter2" not in outcome.output


def test_a_node_of_a_cluster_is_refused(run: Run, cluster: Cluster) -> None:
    """No framework's broker is one: each of the nodes but one says so by itself."""
    outcomes = [run("parked", "--broker", url) for url in cluster.node_urls]
    assert sorted(outcome.exit_code for outcome in outcomes) == [1, 2, 2]
    assert sum("and not a cluster" in outcome.stderr for outcome in outcomes) == 2


def test_without_a_url_the_message_says_what_is_needed() -> None:
    """The option, or the environment variable."""
    outcome = CliRunner().invoke(cli, ["parked"], env={"THROTTLEKIT_BROKER": None, "THROTTLEKIT_URL": None})
    assert outcome.exit_code == 2
    assert "--broker URL, or THROTTLEKIT_BROKER" in outcome.stderr


def test_name_that_is_not_text_is_an_error_of_its_own(run: Run, redis_url: str) -> None:
    """Another program wrote it: the error says so, and not that the broker does not answer."""
    plant(redis_url, [celery_message("one")])
    with redis.Redis.from_url(redis_url) as client:
        client.hset("throttlekit:celery:limits", b"\xff", b"1 slow")
    result = run("parked")
    assert result.exit_code == 2
    assert "is not text in UTF-8" in result.output

"""`throttlekit doctor`: its findings about real servers and real configurations, and its exit codes."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import asdict
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import redis

from support.acl import acl_rights
from support.doctor import run_doctor
from support.servers.certificates import self_signed, tls_options
from support.servers.processes import Cluster, free_port, redis_server
from support.servers.sentinel import watched
from throttlekit import Adapt, Control, Limiter, TokenBucket
from throttlekit_cli.doctor.store import _role, _servers, examine_store

SOUND_DRAMATIQ = """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle
broker = RedisBroker(url="redis://localhost:1/0")
broker.add_middleware(Throttle(Limiter("redis://localhost:1/1")))
dramatiq.set_broker(broker)
@dramatiq.actor(throttle=TokenBucket("partner", "10/s"))
def call(): ...
"""
SOUND_CELERY = """
from celery import Celery
from throttlekit import Limiter, TokenBucket
from throttlekit_celery import install
app = Celery("tasks", broker="redis://localhost:1/0")
app.conf.broker_transport_options = {"visibility_timeout": 600}
install(app, Limiter("redis://localhost:1/1"))
@app.task(throttle=TokenBucket("partner", "10/s"))
def call(): ...
"""

SOUND_HUEY = """
from huey import RedisHuey
from throttlekit import Limiter, TokenBucket
from throttlekit_huey import install
queue = RedisHuey("shop", url="URL/0")
install(queue, Limiter("URL/1"))
@queue.task(throttle=TokenBucket("partner", "10/s"))
def call(): ...
"""


def doctor(*options: str, folder: Path | None = None) -> tuple[int, list[dict[str, str]], str]:
    """Run the doctor, and return its exit code, its findings and its error output."""
    done = run_doctor("--json", *options, folder=folder)
    return done.exit_code, json.loads(done.stdout) if done.stdout else [], done.stderr


def with_grade(findings: list[dict[str, str]], grade: str) -> str:
    return " | ".join(finding["what"] + " → " + finding["remedy"] for finding in findings if finding["grade"] == grade)


def findings_about(url: str) -> list[dict[str, str]]:
    """Return the findings about a store, produced in this process."""
    return [asdict(finding) for finding in examine_store(url)]


def test_a_correct_store_passes_and_is_not_changed(redis_base: str, redis_url: str) -> None:
    """For a correct store the exit code is 0, there is no fault, and no key is added."""
    code, found, _ = doctor("--url", redis_url)
    assert (code, with_grade(found, "fault")) == (0, "")
    assert "round trip" in with_grade(found, "ok")
    assert redis.Redis.from_url(redis_url).dbsize() == 0


def test_rules_and_slow_downs_are_noted(redis_url: str) -> None:
    """Rules in force and slowed limits are not faults, but are likely reasons for waiting jobs."""
    partner = TokenBucket("slowed", "60/hour", burst=10, adapt=Adapt(floor="6/hour"))
    with Limiter(redis_url) as limiter:
        limiter.acquire(partner)
        limiter.report_overload(partner)
    with Control(redis_url, by="ann") as control:
        control.pause("slowed")
    code, found, _ = doctor("--url", redis_url, "--strict")
    assert code == 0
    assert "Operators' changes are in force (1), for slowed." in with_grade(found, "note")
    assert re.search(r"'slowed' is slowed down to 46/hour by its adapt=, for ", with_grade(found, "note"))


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        (["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], "evicts keys (allkeys-lru)", "noeviction"),
        (["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"], "evicts keys (volatile-ttl)", "noeviction"),
        (["--maxmemory", "1"], "memory is full", "raise its maxmemory"),
        (["--replicaof", "127.0.0.1 1"], "is a replica", "name the master"),
    ],
)
def test_a_store_that_breaks_promises_is_a_fault(options: list[str], what: str, remedy: str) -> None:
    """For a store that breaks promises the exit code is 1, and the fault names the problem and what to change."""
    with redis_server(*options) as base:
        code, found, _ = doctor("--url", f"{base}/0")
    assert code == 1
    assert what in with_grade(found, "fault")
    assert remedy in with_grade(found, "fault")


def test_a_wrong_password_is_a_fault_and_is_not_printed() -> None:
    """A wrong or missing password is a fault, and is not in the output."""
    with redis_server() as base:
        client: Any = redis.Redis.from_url(base)
        client.config_set("requirepass", "right")
        code, found, errors = doctor("--url", base.replace("://", "://:s3cret@") + "/0")
        client.close()
    assert (code, "user or password is missing or wrong" in with_grade(found, "fault")) == (1, True)
    assert "s3cret" not in errors + str(found)


def test_a_user_without_rights_is_a_fault_that_names_them() -> None:
    """If an ACL user may not run scripts, the fault lists the commands and the keys that limits need."""
    with redis_server() as base:
        client: Any = redis.Redis.from_url(base)
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "+ping", "+info")
        code, found, _ = doctor("--url", base.replace("://", "://poor:pw@") + "/0")
        assert code == 1
        assert "tk1:*" in with_grade(found, "fault")
        client.execute_command("ACL", "SETUSER", "fair", "on", ">pw", *acl_rights())
        client.close()
        assert doctor("--url", base.replace("://", "://fair:pw@") + "/1")[0] == 0


def test_a_node_of_a_cluster_needs_another_url(cluster: Cluster) -> None:
    """The URL of one node cannot check a cluster, as it cannot serve a limiter; the cluster's URL can."""
    codes = [doctor("--url", url) for url in cluster.node_urls]
    assert {code for code, _, _ in codes} <= {1, 2}
    assert all("redis+cluster://" in with_grade(found, "fault") + errors for _, found, errors in codes)
    assert doctor("--url", cluster.url)[0] == 0


def test_a_url_can_name_a_replica_of_a_cluster() -> None:
    """A cluster's URL can name any node. The server of a plugin's store is not checked."""
    info = {"role": "slave", "cluster_enabled": 1}
    assert not list(_role(info, cluster=True))
    assert [finding.grade for finding in _role({"role": "slave"}, cluster=False)] == ["fault"]
    assert [finding.grade for finding in _servers("mine://:s3cret@host")] == ["note"]


def test_each_master_of_a_cluster_is_checked(cluster: Cluster) -> None:
    """A finding about one of the masters names it."""
    with contextlib.closing(redis.Redis.from_url(cluster.node_urls[1])) as node:
        node.config_set("maxmemory", "1gb")
        node.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = findings_about(cluster.url)
        finally:
            node.config_set("maxmemory-policy", "noeviction")
            node.config_set("maxmemory", "0")
    assert re.search(r"Master \d of 3: .* evicts keys \(allkeys-lru\)", with_grade(found, "fault"))
    assert "appendonly" in with_grade(found, "note")


def test_behind_sentinels_the_master_is_checked() -> None:
    """
    Behind Sentinels, the settings and the role of the master are checked. A service that the Sentinels do not know is a
    fault.
    """
    with watched() as pair:
        pair.master.client.config_set("maxmemory", "1gb")
        pair.master.client.config_set("maxmemory-policy", "volatile-lru")
        found = findings_about(f"{pair.url}?socket_timeout=2")
        assert "evicts keys (volatile-lru)" in with_grade(found, "fault")
        assert "Replication is asynchronous" in with_grade(found, "note")
        found = findings_about(pair.url.replace("/limits/", "/unheard/") + "?socket_timeout=2")
        assert "do not know the service" in with_grade(found, "fault")


def test_a_missing_database_is_a_fault(redis_base: str) -> None:
    """A database number that the server does not have is a fault: a server has 16 by default."""
    found = findings_about(f"{redis_base}/99999?socket_timeout=2")
    assert "no database with the number" in with_grade(found, "fault")


def test_tls_that_is_not_trusted_is_a_fault(tmp_path: Path) -> None:
    """The fault about a self-signed certificate names the option to use."""
    certificate, key = self_signed(tmp_path)
    port = free_port()
    with redis_server("--tls-port", str(port), *tls_options(certificate, key)):
        found = findings_about(f"rediss://:s3cret@127.0.0.1:{port}/0?socket_timeout=5")
        assert "ssl_ca_certs" in with_grade(found, "fault")
        sound = f"rediss://127.0.0.1:{port}/0?socket_timeout=5&ssl_ca_certs={certificate}"
        assert with_grade(findings_about(sound), "fault") == ""


def test_a_dead_server_cannot_be_checked_and_memory_is_a_fault() -> None:
    """Without a server the exit code is 2, with one line of explanation. memory:// is a fault for a fleet."""
    code, found, errors = doctor("--url", f"redis://:s3cret@127.0.0.1:{free_port()}/0")
    assert (code, found, errors.count("\n")) == (2, [], 1)
    assert "no usable answer" in errors
    assert "s3cret" not in errors
    code, found, _ = doctor("--url", "memory://")
    assert (code, "each process separately" in with_grade(found, "fault")) == (1, True)


def test_nothing_to_check_is_a_usage_error() -> None:
    """If there is no option, an invalid URL or a missing module, the exit code is 2, with one line of explanation."""
    for options, message in (
        ([], "name what to check"),
        (["--url", "http://:s3cret@localhost"], "no store is known"),
        (["--dramatiq", "nowhere_at_all"], "cannot be imported"),
        (["--celery", "nowhere_at_all"], "cannot be imported"),
        (["--rq", f"redis://localhost:{free_port()}"], "does not answer"),
    ):
        code, _, errors = doctor(*options)
        assert code == 2
        assert message in errors.splitlines()[-1]
        assert "s3cret" not in errors


def _module(folder: Path, text: str, *changes: tuple[str, str]) -> Path:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "shop.py").write_text(text)
    return folder


_RABBITMQ = """
from dramatiq.brokers.rabbitmq import RabbitmqBroker
broker = RabbitmqBroker(url="amqp://localhost:1")
"""
SOUND_TASKIQ = """
from taskiq_redis import ListQueueBroker, RedisStreamBroker
from throttlekit import Limiter, TokenBucket
from throttlekit_taskiq import Throttle

broker = RedisStreamBroker("redis://localhost:1/0")
broker.add_middlewares(Throttle(Limiter("redis://localhost:1/1")))

@broker.task(throttle=[TokenBucket("partner", "10/s")])
async def call_partner(): ...

@broker.task
async def free(): ...
"""
_IN_MEMORY = ('Limiter("redis://localhost:1/1")', "Limiter()")
_AMQP = ("redis://localhost:1/0", "amqp://localhost:1")
APPS: dict[str, tuple[str, str]] = {
    "--dramatiq": ("shop:broker", SOUND_DRAMATIQ),
    "--taskiq": ("shop:broker", SOUND_TASKIQ),
    "--celery": ("shop:app", SOUND_CELERY),
    "--huey": ("shop.queue", SOUND_HUEY),
}
"""For each option, the name of the application, and a module in which it keeps its promises."""


@pytest.mark.parametrize(
    ("option", "changes", "grade", "what"),
    [
        ("--dramatiq", [], "ok", "1 of 1 actors"),
        (
            "--dramatiq",
            [("broker.add_middleware(Throttle", "str(Throttle"), ("(throttle=T", "(priority=len or T")],
            "fault",
            "0 Throttle",
        ),
        ("--dramatiq", [_IN_MEMORY], "fault", "in memory"),
        (
            "--dramatiq",
            [('broker = RedisBroker(url="redis://localhost:1/0")', _RABBITMQ)],
            "fault",
            "does not confirm",
        ),
        ("--taskiq", [], "ok", "1 of 2 tasks"),
        ("--taskiq", [("broker.add_middlewares(", "str("), ("(throttle=[T", "(x=[T")], "fault", "0 Throttle"),
        ("--taskiq", [_IN_MEMORY], "fault", "in memory"),
        (
            "--taskiq",
            [('broker = RedisStreamBroker("', 'broker = ListQueueBroker("')],
            "warning",
            "no acknowledgements",
        ),
        ("--taskiq", [("localhost:1/1", "localhost:1/0")], "warning", "broker's database"),
        ("--celery", [], "ok", "1 tasks name limits"),
        ("--celery", [('install(app, Limiter("redis://localhost:1/1"))', "")], "fault", "not installed"),
        ("--celery", [_IN_MEMORY], "fault", "in memory"),
        ("--celery", [("600}", "30}")], "warning", "visibility_timeout is 30 s"),
        ("--celery", [("@app.task", "app.conf.task_always_eager = True\n@app.task")], "warning", "eager"),
        (
            "--celery",
            [('app.conf.broker_transport_options = {"visibility_timeout": 600}', "")],
            "note",
            "an hour",
        ),
        ("--celery", [_AMQP], "note", "consumer_timeout"),
        ("--celery", [_AMQP], "note", "set broker_transport_options confirm_publish to True"),
        (
            "--celery",
            [_AMQP, ('visibility_timeout": 600', 'confirm_publish": True')],
            "ok",
            "confirms the tasks",
        ),
        ("--celery", [("redis://localhost:1/0", "sentinel://localhost:1/0")], "ok", "visibility_timeout is 600 s"),
        ("--huey", [], "ok", "1 tasks name limits"),
        ("--huey", [('install(queue, Limiter("URL/1"))', "")], "fault", "not installed"),
        ("--huey", [('Limiter("URL/1")', "Limiter()")], "fault", "in memory"),
        ("--huey", [('Limiter("URL/1")', 'Limiter("URL/0")')], "warning", "broker's database"),
        ("--huey", [('"URL/0"', '"URL/0", immediate=True')], "warning", "immediate mode"),
        ("--huey", [('"URL/0"', '"URL/0", blocking=False')], "warning", "blocking=False"),
        ("--huey", [('"URL/0"', '"URL/0", compression=True')], "note", "compressed"),
    ],
)
def test_a_finding_about_an_application_has_its_grade(
    tmp_path: Path, redis_base: str, option: str, changes: list[tuple[str, str]], grade: str, what: str
) -> None:
    """With --strict, the exit code is 1 for faults and warnings, and 0 for notes and for a correct application."""
    name, sound = APPS[option]
    if option == "--huey":
        changes = [*changes, ("URL", redis_base)]
    elif option == "--dramatiq" and not changes:
        name = "shop"  # its global broker
    code, found, errors = doctor(option, name, "--strict", folder=_module(tmp_path, sound, *changes))
    assert what in with_grade(found, grade), errors
    assert code == (0 if grade in ("note", "ok") else 1)


def test_workers_that_end_with_kombu_5_7_are_noted(tmp_path: Path) -> None:
    """There is a note about workers of Celery that hold tasks, if kombu is 5.7 or later."""
    _, found, _ = doctor("--celery", "shop", folder=_module(tmp_path, SOUND_CELERY))
    since_5_7 = metadata.version("kombu") >= "5.7"
    assert ("a worker that holds tasks (also ETA tasks) ends" in with_grade(found, "note")) == since_5_7


def test_huey_jobs_that_no_worker_enqueues_again_are_a_warning(tmp_path: Path, redis_base: str) -> None:
    """
    The warning is about jobs that are overdue, or were woken long ago. An object that is no huey, and a Redis that does
    not answer, are reported too.
    """
    folder = _module(tmp_path, SOUND_HUEY, ("URL", redis_base))
    client: Any = redis.Redis.from_url(f"{redis_base}/0")
    for key, at in (
        ("huey.schedule.shop", time.time() - 60),
        ("throttlekit:huey:shop:in-hand", (time.time() - 60) * 1e6),
    ):
        client.zadd(key, {"0 job": at})
        code, found, _ = doctor("--huey", "shop:queue", folder=folder)
        assert (code, "overdue by" in with_grade(found, "warning")) == (0, True)
        client.delete(key)
    client.close()
    assert "is not a huey" in doctor("--huey", "shop.call", folder=folder)[2]
    away = _module(tmp_path, SOUND_HUEY, ("URL", "redis://localhost:1"))
    code, _, errors = doctor("--huey", "shop.queue", folder=away)
    assert (code, "does not answer" in errors) == (2, True)


def test_rq_queues_without_a_promoter_are_a_fault(redis_url: str) -> None:
    """
    A queue whose delayed jobs no process enqueues is a fault. If no worker listens, or if jobs are overdue, there is a
    warning.
    """
    from rq import Queue

    from throttlekit_rq._wire import promoter_key

    connection: Any = redis.Redis.from_url(redis_url)
    queue = Queue("reports", connection=connection)
    assert doctor("--rq", redis_url)[0] == 0  # no queue yet
    job = queue.enqueue_in(timedelta(days=1), "support.rq.jobs.plain", "x")
    code, found, _ = doctor("--rq", redis_url)
    assert (code, "No process moves delayed jobs" in with_grade(found, "fault")) == (1, True)
    connection.set(promoter_key("reports"), 1)
    code, found, _ = doctor("--rq", redis_url)
    assert code == 0
    assert "No worker listens" in with_grade(found, "warning")
    connection.zadd("rq:scheduled:reports", {job.id: time.time() - 60})
    assert "overdue by" in with_grade(doctor("--rq", redis_url)[1], "warning")
    connection.close()

"""
The wire format: every name that is stored in users' Redis, or sent in their messages, is a literal in these tests.

A failure here means that this release cannot read waiting jobs, or the data of processes of another release: keep the
name, or give the changed format a new version and read the old one as well.
"""

from __future__ import annotations

import ast
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.tree import MODULES, parsed
from throttlekit import (
    Concurrency,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.limit.rate import MONTH_US
from throttlekit._core.serialize import dump
from throttlekit._core.storage_keys import bucket_name, fleet_name, wait_names
from throttlekit.adapter import MAX_WAIT, ON_429, THROTTLE, Deferred, Waited, receipt
from throttlekit_rq import _body, _waiting, _wire, run
from throttlekit_rq._waker import Announcement

JOB = Job(id="j", name="f")


def constant(package: str, name: str) -> str:
    """
    Return the literal that is assigned to *name* at the top of a module of *package*: the constant may move between its
    modules.
    """
    found = {
        node.value.value
        for module in MODULES
        if module.partition(".")[0] == package
        for node in parsed(module).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == name
    }
    (value,) = found
    assert isinstance(value, str)
    return value


# The store


def test_keys_in_the_store() -> None:
    """The keys of a store's state are those of version 1."""
    bucket = bucket_name("partner", "42", "abcdef")
    assert bucket == "tk1:{partner:42}:abcdef"
    assert bucket_name("partner", "42", "abcdef", "host") == "tk1:{partner:42:host}:abcdef"
    assert wait_names(bucket) == tuple(f"{bucket}:{each}" for each in ("wait1", "order1", "entries1", "tags1"))
    assert fleet_name("overrides") == "tk1:{fleet}:overrides"


# Messages of every framework


def test_names_of_the_options_of_a_job() -> None:
    """The names of a job's options are fixed, in users' calls and in Dramatiq's messages."""
    assert (THROTTLE, ON_429, MAX_WAIT) == ("throttle", "throttle_on_429", "throttle_max_wait")


RATE = [10, 1_000_000]
PLAIN: dict[str, Any] = {"name": "a", "rate": RATE, "key": "", "cost": 1}
LIMITS: list[tuple[Limit, dict[str, Any]]] = [
    (TokenBucket("a", "10/s", burst=3), {**PLAIN, "algorithm": "token-bucket", "burst": 3}),
    (LeakyBucket("a", "10/s", queue=4), {**PLAIN, "algorithm": "leaky-bucket", "queue": 4}),
    (FixedWindow("a", "10/s", tz="UTC"), {**PLAIN, "algorithm": "fixed-window", "tz": "UTC"}),
    (
        FixedWindow("a", "10/month", starts=15),
        {**PLAIN, "rate": [10, MONTH_US], "algorithm": "fixed-window", "tz": None, "starts": 15},
    ),
    (SlidingWindow("a", "10/s"), {**PLAIN, "algorithm": "sliding-window"}),
    (SlidingLog("a", "10/s"), {**PLAIN, "algorithm": "sliding-log"}),
    (Concurrency("a", 2, lease=30), {**PLAIN, "algorithm": "concurrency", "rate": [2, 0], "lease": 30.0}),
]


@pytest.mark.parametrize(("limit", "written"), LIMITS, ids=lambda value: getattr(value, "algorithm", ""))
def test_limits_by_value(limit: Limit, written: dict[str, Any]) -> None:
    """The format of a limit in a message is fixed."""
    assert dump(limit, JOB) == written


def test_optional_fields_of_limits_by_value() -> None:
    """The format is fixed for keys and costs that a job determines, scopes, outages, tiers, and prefetched units."""
    own = dump(TokenBucket("a", "10/s", key=lambda job: "k", cost=lambda job: 2, scope="process"), JOB)
    assert (own["key"], own["cost"], own["scope"]) == ("k", 2, "process")
    local = dump(TokenBucket("a", "10/s", on_store_failure="local", processes=3), JOB)
    assert (local["on_store_failure"], local["processes"]) == ("local", 3)
    tiered = TokenBucket("a", {"free": "1/s", "pro": "10/s"}, tier=lambda job: "pro")
    assert dump(tiered, JOB)["tier"] == "pro"
    ahead = dump(TokenBucket("a", "10/s", prefetch=5, prefetch_for=2), JOB)
    assert (ahead["prefetch"], ahead["prefetch_for"]) == (5, 2.0)


def test_fields_of_a_receipt() -> None:
    """A receipt has the fields of a decision that another process needs."""
    limiter = Limiter()
    (rate,) = receipt(limiter.acquire(TokenBucket("a", "10/s"), job=JOB))["charged"]
    assert set(rate) == {"limit", "bucket", "cost", "at", "measured"}
    (slot,) = receipt(limiter.acquire(Concurrency("b", 1), job=JOB))["charged"]
    assert set(slot) == {"limit", "bucket", "cost", "at", "measured", "holder"}


# Celery and huey


@pytest.mark.parametrize(
    ("package", "name", "text"),
    [
        ("throttlekit_celery", "ASKS_AT", "throttlekit_asks_at"),  # the header of a copy after a 429
        ("throttlekit_celery", "RECEIPT", "throttlekit_receipt"),  # a header within a worker
        ("throttlekit_huey", "FIELD", "throttlekit.huey"),  # the keyword argument
        ("throttlekit_huey", "COPY", "copy"),  # a field of the keyword argument
        ("throttlekit_huey", "PREFIX", "throttlekit:huey:"),  # of the keys in huey's Redis
    ],
)
def test_names_in_the_messages_of_celery_and_huey(package: str, name: str, text: str) -> None:
    """The names of headers and fields, and the prefix of keys, are fixed."""
    assert constant(package, name) == text


# RQ


def test_pickled_class_of_rqs_jobs() -> None:
    """
    The module and name of the class that is pickled into users' Redis are fixed, and so is its reconstruction from
    them.
    """
    pickled = pickle.dumps(_wire.Carried("text", None), protocol=0)
    assert b"cthrottlekit_rq._wire\nCarried\n" in pickled
    carried: Any = pickle.loads(b"cthrottlekit_rq._wire\nCarried\n(Vtext\nNtR.")
    assert carried.__reduce__() == (_wire.Carried, ("text", None))


def test_function_name_of_rqs_jobs() -> None:
    """The function that a job names where it cannot contain an object has a fixed name."""
    assert _wire.RUN == "throttlekit_rq.run"
    assert f"{run.__module__.partition('.')[0]}.{run.__name__}" == _wire.RUN


def test_format_of_the_options_in_rqs_jobs() -> None:
    """A job of RQ contains its limits, queue limits, longest wait and policy for a 429, by value."""
    given = _wire.Given([{"name": "a"}], [{"name": "q"}], 60.0, "a").write()
    assert json.loads(given) == {
        "v": 1,
        "limits": [{"name": "a"}],
        "queue": [{"name": "q"}],
        "max_wait": 60.0,
        "on_429": "a",
    }
    assert json.loads(_wire.Given(None, []).write()) == {"v": 1, "limits": None, "queue": [], "max_wait": None}


def test_fields_of_a_denied_rq_job() -> None:
    """The fields of a denied job in the job's hash, and in its meta, have fixed names."""
    assert (_wire.FIELD, _wire.EXPIRES) == ("throttlekit", "throttlekit_expires")
    record = _wire.Record(True, 5)
    assert json.loads(record.write("2026")) == {"v": 1, "of": "2026", "front": True}
    assert _wire.Record.read(record.write("2026").encode(), b"5", "2026") == record
    decision = replace(Limiter().acquire(TokenBucket("partner", "1/s")), waited=3.0, deferrals=2)
    shown = _waiting.shown_of(Deferred(2.0, decision))
    assert shown is not None
    assert (set(shown), shown["limit"], shown["deferrals"]) == ({"limit", "since", "slot", "deferrals"}, "partner", 2)
    assert shown["slot"] - shown["since"] == pytest.approx(5.0)


def test_names_in_rqs_redis() -> None:
    """The keys that the adapter writes in RQ's Redis have fixed names."""
    assert _wire.promoter_key("high") == "throttlekit:rq:promoter:high"
    assert _wire.idle_key("high") == "throttlekit:rq:idle:high"
    assert _wire.logged_key("what") == "throttlekit:rq:state:what"
    assert _wire.waker_key("high") == "throttlekit:rq:waker:high"
    assert _wire.notes_key("a1") == "throttlekit:rq:notes:a1"


def test_format_of_the_announcement_of_rqs_waker() -> None:
    """The format is fixed, because processes of stock workers that read the announcement may be of another release."""
    announced = Announcement("a1", "localhost:6379/1")
    assert json.loads(announced.write()) == {"v": 1, "owner": "a1", "store": "localhost:6379/1"}
    assert Announcement.read(announced.write().encode()) == announced


def test_format_of_the_admission_for_a_spawned_process() -> None:
    """The environment variable of the admission and its JSON are fixed."""
    assert _wire.ADMITTED == "THROTTLEKIT_ADMITTED"
    job = SimpleNamespace(id="j", **{_body.GRANT: None})
    assert json.loads(_body.write_admission(job)) == {"job": "j", "limits": False}
    limiter = Limiter()
    decision = limiter.acquire(TokenBucket("a", "10/s"), job=JOB)
    run_of = SimpleNamespace(decision=decision, job=JOB)
    throttling = SimpleNamespace(waited_of=lambda id: Waited(5, 1, 0))
    check = SimpleNamespace(throttling=throttling, record=_wire.Record(None))
    grant = SimpleNamespace(run=run_of, check=check, received=SimpleNamespace(into=5))
    setattr(job, _body.GRANT, grant)
    admission = json.loads(_body.write_admission(job))
    assert set(admission) == {"job", "limits", "charged", "waited", "expires", "received"}
    assert admission["waited"] == [5, 1, 0]

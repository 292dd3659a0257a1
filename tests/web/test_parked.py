"""What the broker has parked, on the page: how much is read, a broker that is away, and the release of jobs."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.parks import celery_message, plant, plant_lines
from support.servers.processes import Cluster
from support.waiting import wait_until
from support.web import Answer, call_asgi, call_wsgi
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_web import Site, asgi_app, wsgi_app

TOKEN = "a-token-of-the-tests"
OWN = {"authorization": f"Bearer {TOKEN}", "origin": "http://localhost", "content_type": "application/json"}
AWAY = "redis://:hunter2@127.0.0.1:1/0"
PARK = {"verb": "release", "by": "ann", "limit": "api", "park": "throttlekit:celery"}

_Page = Callable[..., Answer]


@pytest.fixture
def broker_url(valkey_url: str) -> str:
    """A broker that is another server than the store."""
    return valkey_url


@pytest.fixture
def control(make_site: Callable[..., _Page], broker_url: str) -> _Page:
    """A page that may release jobs."""
    return make_site(token=TOKEN, allow_control=True, broker=broker_url)


def _send(page: _Page, form: Any, **headers: str) -> Answer:
    given = {name: value for name, value in {**OWN, **headers}.items() if value}
    return page("/api/control", method="POST", body=json.dumps(form).encode(), **given)


def _release(page: _Page, **form: Any) -> str:
    """Confirm the release, and return what was done."""
    form = {**PARK, **form}
    effect = _send(page, form).data["confirm"]
    return str(_send(page, {**form, "confirm": effect}).data["done"])


def _queued(url: str, queue: str = "celery") -> list[Any]:
    with redis.Redis.from_url(url) as client:
        return [json.loads(each)["headers"]["id"] for each in client.lrange(queue, 0, -1)[::-1]]


def test_what_is_parked_is_shown_for_each_limit_and_queue(
    make_site: Callable[..., _Page], broker_url: str, redis_url: str
) -> None:
    """How many, and whether a worker wakes them; of one limit the first ones too, and no argument of a job."""
    secret = {"body": "secret", "headers": {"id": "id-0", "task": "app.send", "argsrepr": "secret"}, "properties": {}}
    plant(broker_url, [json.dumps(secret).encode(), *(celery_message(f"id-{n}") for n in range(1, 12))])
    plant(broker_url, [celery_message("b")], line="b")
    plant(broker_url, [celery_message("late")], queue="late")
    plant(broker_url, [celery_message("other")], limit="other", line="c")
    with redis.Redis.from_url(broker_url) as client:
        client.set("throttlekit:late:promoter", "a worker")
    page = make_site(broker=broker_url)
    every = page("/api/parked").data
    shown = [[row[name] for name in ("limit", "queue", "jobs", "lines", "woken", "first")] for row in every["rows"]]
    assert shown == [
        ["api", "celery", 13, 2, False, []],
        ["api", "late", 1, 1, True, []],
        ["other", "celery", 1, 1, False, []],
    ]
    assert (every["of"], every["jobs"], every["not_counted"], every["error"]) == (3, 15, 0, None)
    one = page("/api/parked?limit=api")
    first, late = (row["first"] for row in one.data["rows"])
    assert [job["id"] for job in first] == [f"id-{n}" for n in range(10)]
    assert late == [{"id": "late", "function": "app.send"}]
    assert b"secret" not in one.body
    assert make_site()("/api/parked").data["rows"] == [], "the store is another Redis"


@pytest.mark.parametrize("mounted", [wsgi_app, asgi_app])
def test_by_default_the_store_is_the_broker(redis_url: str, broker_url: str, mounted: Callable[..., Any]) -> None:
    """And each app takes another one."""
    plant(redis_url, [celery_message("own")])
    plant(broker_url, [celery_message("other")])
    call = call_wsgi if mounted is wsgi_app else call_asgi
    for options, id in (({}, "own"), ({"broker": broker_url}, "other")):
        (row,) = call(mounted(redis_url, token=None, **options), "/api/parked?limit=api").data["rows"]
        assert row["first"][0]["id"] == id


def test_by_default_nothing_is_said_of_a_store_that_has_no_parks(redis_url: str, cluster: Cluster) -> None:
    """A cluster; a store whose user may read its limits alone; a store that is away, which other addresses report."""
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "limits", "reset", "on", ">secret", "~tk1:*", "+@all")
        try:
            for store in (cluster.url, redis_url.replace("://", "://limits:secret@"), AWAY):
                app = wsgi_app(store, token=None)
                data = call_wsgi(app, "/api/parked").data
                assert (data["rows"], data["error"]) == ([], None)
        finally:
            client.execute_command("ACL", "DELUSER", "limits")


@pytest.mark.parametrize("broker", ["amqp://u:hunter2@localhost//", "memory://", "redis+cluster://localhost", ""])
def test_a_broker_that_cannot_have_parks_is_refused_at_once(redis_url: str, broker: str) -> None:
    """When the page is made, and without its password."""
    with pytest.raises(ConfigurationError, match="only where the broker is a Redis, and not a cluster") as raised:
        Site(redis_url, token=None, broker=broker)
    assert "hunter2" not in str(raised.value)


def test_a_broker_that_is_away_takes_nothing_else_with_it(
    make_site: Callable[..., _Page], limiter: Limiter, report: Callable[[], None]
) -> None:
    """The limits go on; what is parked says that the broker does not answer, and nothing can be released."""
    limiter.acquire(TokenBucket("api", "1/s"))
    report()
    page = make_site(token=TOKEN, allow_control=True, broker=AWAY)
    own = {"authorization": OWN["authorization"]}
    assert [row["name"] for row in page("/api/limits", **own).data["limits"]] == ["api"]
    answer = page("/api/parked?limit=api", **own)
    assert (answer.status, answer.data["rows"]) == (200, [])
    assert answer.data["error"].startswith("the broker does not answer: the broker gave no usable answer")
    refused = _send(page, {**PARK, "most": 1})
    assert (refused.status, "the broker does not answer" in refused.data["error"]) == (503, True)
    assert b"hunter2" not in answer.body + refused.body


@pytest.fixture
def hanging() -> Iterator[tuple[str, threading.Event]]:
    """The URL of a server that takes connections and never answers, until the test ends; set once it was called."""
    called, calls = threading.Event(), list[socket.socket]()

    def listen() -> None:
        while True:
            try:
                calls.append(server.accept()[0])
            except OSError:
                return
            called.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=listen, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0?socket_timeout=30", called
        server.shutdown(socket.SHUT_RDWR)
        for call in calls:
            call.close()


def test_no_request_waits_for_a_broker_that_hangs(
    make_site: Callable[..., _Page], hanging: tuple[str, threading.Event]
) -> None:
    """But the one that reads it."""
    url, called = hanging
    page, answers = make_site(broker=url), list[Answer]()
    reading = threading.Thread(target=lambda: answers.append(page("/api/parked")), daemon=True)
    reading.start()
    wait_until(called.is_set, description="the broker is asked")
    assert page("/api/limits").status == 200
    for path in ("/api/parked", "/api/parked?limit=api"):
        assert page(path).data["error"] == "the broker has not answered yet"
    assert answers == []


def test_what_is_read_is_bounded_and_shared(make_site: Callable[..., _Page], broker_url: str) -> None:
    """1 000 lines at most, of which each queue gets its part; and once in 5 s, however many browsers look."""
    plant_lines(broker_url, 1200, jobs=2)
    plant_lines(broker_url, 3, jobs=1, queue="late")
    page = make_site(broker=broker_url)
    with redis.Redis.from_url(broker_url) as client:
        client.config_resetstat()
        for _ in range(20):
            data = page("/api/parked").data
        stats: Any = client.info("commandstats")
        assert [(row["queue"], row["jobs"]) for row in data["rows"]] == [("celery", 1994), ("late", 3)]
        assert data["not_counted"] == 203
        assert stats["cmdstat_zcard"]["calls"] == 1000
        assert stats["cmdstat_hscan"]["calls"] <= 5
        client.config_resetstat()
        for _ in range(20):
            assert len(page("/api/parked?limit=api").data["rows"][0]["first"]) == 10
        stats = client.info("commandstats")
        assert "cmdstat_zcard" not in stats
        assert stats["cmdstat_hmget"]["calls"] <= 10 + 3


def test_the_page_releases_one_job_or_some(control: _Page, broker_url: str, caplog: Any) -> None:
    """Once the effect is confirmed; in their order; and the log names who did it."""
    plant(broker_url, [celery_message(f"id-{n}") for n in range(12)])
    plant(broker_url, [celery_message("late")], queue="late")
    form = {**PARK, "job": "id-3"}
    effect = _send(control, form).data["confirm"]
    assert effect.startswith("Release job 'id-3' of limit 'api', parked in celery queue 'celery': it goes to the front")
    assert _queued(broker_url) == []
    other = _send(control, {**form, "job": "id-4", "confirm": effect})
    assert (other.status, _queued(broker_url)) == (409, [])
    with caplog.at_level("INFO"):
        assert _send(control, {**form, "confirm": effect}).data["done"] == ["api: 1 released"]
    assert "ann: Release job 'id-3'" in caplog.text
    assert _queued(broker_url) == ["id-3"]
    shown = control("/api/parked?limit=api", authorization=OWN["authorization"]).data["rows"]
    assert [job["id"] for job in shown[0]["first"]][:4] == ["id-0", "id-1", "id-2", "id-4"]
    assert _send(control, form).status == 404
    assert _release(control, most=3) == "['api: 3 released']"
    assert _queued(broker_url) == ["id-0", "id-1", "id-2", "id-3"]
    assert _release(control, most=1000) == "['api: 8 released']"
    assert _queued(broker_url, "late") == []
    assert _release(control, most=1, park="throttlekit:late") == "['api: 1 released']"
    assert _send(control, {**PARK, "most": 1}).status == 404


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"most": 0}, 400), ({"most": 1001}, 400), ({"most": True}, 400), ({"most": None}, 400), ({"most": "all"}, 400),
        ({}, 400), ({"job": 5}, 400), ({"job": "i" * 301}, 400), ({"most": 1, "by": " "}, 400),
        ({"most": 1, "limit": None}, 400), ({"most": 1, "park": ["throttlekit:celery"]}, 400),
        ({"job": "id-1"}, 404), ({"most": 1, "limit": "apu"}, 404), ({"most": 1, "park": "throttlekit:late"}, 404),
    ],
)  # fmt: skip
def test_what_is_not_parked_is_never_confirmed(control: _Page, broker_url: str, form: Any, status: int) -> None:
    """A field that is missing or wrong, and a job, limit or park that is not there."""
    plant(broker_url, [celery_message("id-0")])
    assert _send(control, {**PARK, **form}).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": ""}, 401), ({"origin": "http://evil.example"}, 403), ({"content_type": "text/plain"}, 415)],
)
def test_only_the_page_itself_with_the_token_releases(
    control: _Page, broker_url: str, headers: dict[str, str], status: int
) -> None:
    """As with every change."""
    plant(broker_url, [celery_message("id-0")])
    assert _send(control, {**PARK, "most": 1}, **headers).status == status


@pytest.mark.parametrize("options", [{}, {"token": TOKEN}])
def test_without_control_nothing_is_released(make_site: Callable[..., _Page], broker_url: str, options: Any) -> None:
    """Also for one who has the token."""
    plant(broker_url, [celery_message("id-0")])
    assert _send(make_site(broker=broker_url, **options), {**PARK, "most": 1, "confirm": "x"}).status == 403
    assert _queued(broker_url) == []


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """Other tests of this process may have raised it, and json's C code recurses as far as it goes."""
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(depth)


@pytest.mark.usefixtures("usual_depth")
def test_hostile_jobs_are_data_and_can_be_released(control: _Page, broker_url: str) -> None:
    """Markup, half a character, an id that is no id, another encoder, JSON that is too deep."""
    evil = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "\u2028\x00\x1b]0;x\x07",
        "\ud800",
        "i" * 301,
    ]
    headers = [{"headers": {"id": id, "task": f"{id}{'f' * 400}"}} for id in [*evil, 5]]
    plant(broker_url, [*(json.dumps(each).encode() for each in headers), b"\x80\x04pickled", b"[" * 100_000])
    answer = control("/api/parked?limit=api", authorization=OWN["authorization"])
    assert answer.headers["content-type"] == "application/json"
    (row,) = answer.data["rows"]
    assert [job["id"] for job in row["first"]] == [*evil[:4], "a4", "a5", "a6", "a7"]
    assert [len(job["function"] or "") for job in row["first"]] == [300] * 4 + [0] * 4
    for job in row["first"]:
        assert _release(control, job=job["id"]) == "['api: 1 released']"
    assert control("/api/parked?limit=api", authorization=OWN["authorization"]).data["rows"] == []

"""Access to the page: tokens, origins, host names, and text of the store that contains code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.servers.processes import patient
from support.web import Answer
from throttlekit import Concurrency, Control, FixedWindow, Limit, Limiter, SlidingLog, TokenBucket

API = TokenBucket("partner-api", "2/minute", burst=2)
TOKEN = "a-token-of-the-tests"
OWN = {"authorization": f"Bearer {TOKEN}", "origin": "http://localhost", "content_type": "application/json"}

_Page = Callable[..., Answer]


@pytest.fixture
def control(make_site: Callable[..., _Page]) -> _Page:
    """A page that can change limits."""
    return make_site(token=TOKEN, allow_control=True)


@pytest.fixture
def limit_id(limiter: Limiter, report: Callable[[], None], page: _Page) -> str:
    """The id of a limit that a worker has used."""
    limiter.acquire(API)
    report()
    (row,) = page("/api/limits").data["limits"]
    return str(row["id"])


def _send(page: _Page, form: Any, **headers: str) -> Answer:
    body = form if isinstance(form, bytes) else json.dumps(form).encode()
    given = {name: value for name, value in {**OWN, **headers}.items() if value}
    return page("/api/control", method="POST", body=body, **given)


def _history(redis_url: str) -> list[tuple[str, str]]:
    with Control(patient(redis_url)) as control:
        return [(change.verb, change.by) for change in control.history()]


def test_a_change_is_made_after_its_effect_is_confirmed(redis_url: str, control: _Page, limit_id: str) -> None:
    """The first response describes the effect and changes nothing. A second request with that text makes the change."""
    form = {"verb": "pause", "limit": limit_id, "for": 600, "by": "ann"}
    effect = _send(control, form).data["confirm"]
    assert effect.endswith(f" Store: {redis_url.partition('://')[2].partition('?')[0]}.")
    assert effect.startswith("Pause limit 'partner-api' in the whole fleet, for 10 m 00 s. None of its jobs starts")
    assert _history(redis_url) == []
    other = _send(control, {**form, "for": 6000, "confirm": effect})
    assert (other.status, _history(redis_url)) == (409, [])
    assert "paused" in _send(control, {**form, "confirm": effect}).data["done"][0]
    assert _history(redis_url) == [("pause", "ann (web)")]


@pytest.mark.parametrize(
    ("form", "effect", "verb"),
    [
        ({"verb": "pause"}, "Pause limit 'partner-api' in the whole fleet, until it is ended", "pause"),
        ({"verb": "set", "rate": "50/s", "burst": 5}, "from token-bucket 2/minute burst 2 to token-bucket 50/s", "set"),
        ({"verb": "set", "rate": "50/s"}, "Units that were used still count, and waiting jobs keep their order", "set"),
        (
            {"verb": "scale", "factor": 0.5},
            "from token-bucket 2/minute burst 2 to token-bucket 1/minute burst 2",
            "scale",
        ),
        ({"verb": "scale", "factor": 0.5}, "Scale limit 'partner-api' to 0.5 of its rate in the whole fleet", "scale"),
        ({"verb": "shadow", "for": 60}, "It denies no job, so every waiting job", "shadow"),
        ({"verb": "reset"}, "Delete the counts", "reset"),
    ],
)
def test_each_change_describes_its_effect(
    redis_url: str, control: _Page, limit_id: str, form: dict[str, Any], effect: str, verb: str
) -> None:
    """The effect is described in words, for the whole fleet. The change is in the history."""
    form = {**form, "limit": limit_id, "by": "ann"}
    effect_shown = _send(control, form).data["confirm"]
    assert effect in effect_shown
    assert _send(control, {**form, "confirm": effect_shown}).status == 200
    assert _history(redis_url) == [(verb, "ann (web)")]


@pytest.mark.parametrize(
    ("limit", "rate", "effect"),
    [
        (SlidingLog("window", "10/minute"), "20/minute", "It has a new count: a full burst can start at once"),
        (FixedWindow("window", "10/minute"), "20/minute", "Units that were used still count"),
        (FixedWindow("window", "10/minute"), "20/hour", "It has a new count"),
        (Concurrency("window", 5), "6", "Jobs that hold slots continue."),
    ],
)
def test_a_changed_rate_states_whether_used_units_count(
    limiter: Limiter, report: Callable[[], None], control: _Page, limit: Limit, rate: str, effect: str
) -> None:
    """A window's new rate counts the used units, unless the period changes. A log never counts them."""
    limiter.acquire(limit)
    report()
    headers = {"authorization": OWN["authorization"]}
    (row,) = [each for each in control("/api/limits", **headers).data["limits"] if each["limit"] == "window"]
    effect_shown = _send(control, {"verb": "set", "limit": row["id"], "rate": rate, "by": "ann"}).data["confirm"]
    assert effect in effect_shown


def test_a_limit_whose_name_reads_as_a_group_is_not_scaled(
    limiter: Limiter, report: Callable[[], None], control: _Page
) -> None:
    """The confirmation would name one limit, but the whole group would be slower."""
    limiter.acquire(TokenBucket("a*", "10/s"))
    report()
    (row,) = control("/api/limits", authorization=OWN["authorization"]).data["limits"]
    answer = _send(control, {"verb": "scale", "limit": row["id"], "factor": 0.5, "by": "ann"})
    assert (answer.status, "a pattern for several limits" in answer.data["error"]) == (400, True)


def test_a_rule_can_be_ended(redis_url: str, control: _Page, limit_id: str) -> None:
    """Each rule in force can be ended by its id. The response for a rule that has ended is 404."""
    with Control(patient(redis_url), by="bob") as other:
        other.pause("tenants", key="secret key")
        other.set(API, "5/s")
        other.shadow(API)
        other.scale(API, 0.5)
        other.scale("partner-*", 0.5)
    headers = {"authorization": OWN["authorization"]}
    for rule in control("/api/changes", **headers).data["rules"]:
        form = {"verb": "end", "rule": rule["id"], "by": "ann"}
        effect_shown = _send(control, form).data["confirm"]
        assert "bob" in effect_shown
        assert "secret" not in effect_shown
        assert _send(control, {**form, "confirm": effect_shown}).status == 200
        assert _send(control, form).status == 404
    with Control(patient(redis_url)) as other:
        assert other.rules() == ()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"verb": "set", "rate": "50"}, "rate"),
        ({"verb": "set", "rate": "5/s", "burst": 0}, "burst must be"),
        ({"verb": "set"}, "rate must be"),
        ({"verb": "scale"}, "0.001"),
        ({"verb": "scale", "factor": 2}, "0.001"),
        ({"verb": "scale", "factor": "0.5"}, "0.001"),
        ({"verb": "scale", "factor": 0.5, "key": "a"}, "leave the key out"),
        ({"verb": "pause", "for": -1}, "for must be"),
        ({"verb": "pause", "for": True}, "for must be"),
        ({"verb": "pause", "key": 5}, "key must be"),
        ({"verb": "pause", "key": "42"}, "has no key"),
        ({"verb": "shadow", "key": "a"}, "leave the key out"),
        ({"verb": "flush"}, "verb must be"),
        ({"verb": "pause", "by": " "}, "your name"),
        ({"verb": "pause", "limit": "unheard-of"}, "no worker has used"),
        ({"verb": "pause", "limit": "\ud800"}, "UTF-8"),
    ],
)
def test_an_impossible_change_is_never_confirmed(
    redis_url: str, control: _Page, limit_id: str, form: dict[str, Any], message: str
) -> None:
    """A wrong field is refused before anything is confirmed."""
    answer = _send(control, {"limit": limit_id, "by": "ann", **form})
    assert answer.status in (400, 404)
    assert message in answer.data["error"]
    assert _history(redis_url) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer another-token-of-tests"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": "Bearer ä"}, 401),
        ({"origin": ""}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:81"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": ""}, 415),
        ({"sec_fetch_site": "same-origin", "origin": "https://proxied.example"}, 200),
    ],
)
def test_only_the_page_itself_with_the_token_changes_limits(
    control: _Page, limit_id: str, headers: dict[str, str], status: int
) -> None:
    """
    A request without the token, with a wrong one, from another origin or with a form of another page is refused. A
    proxy may rewrite the host name.
    """
    assert _send(control, {"verb": "pause", "limit": limit_id, "by": "ann"}, **headers).status == status


@pytest.mark.parametrize("options", [{}, {"token": TOKEN}])
def test_control_is_off_by_default(
    redis_url: str, make_site: Callable[..., _Page], limit_id: str, options: Any
) -> None:
    """Without `allow_control`, a caller with the token cannot change a limit either."""
    answer = _send(make_site(**options), {"verb": "pause", "limit": limit_id, "by": "ann", "confirm": "x"})
    assert (answer.status, _history(redis_url)) == (403, [])


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"verb": ' + b"[" * 5_000])
def test_a_body_that_is_not_a_form_is_refused(control: _Page, body: bytes) -> None:
    """A body that is incomplete, of another type or too deep gets 400."""
    assert _send(control, body).status == 400


@pytest.mark.parametrize(
    "path",
    ["/api/limits", "/api/limit?id=a", "/api/keys?id=a", "/api/job?id=a", "/api/changes"],
)
def test_all_data_needs_the_token(make_site: Callable[..., _Page], path: str) -> None:
    """All data needs the token; the page itself, which has no data, does not."""
    page = make_site(token=TOKEN)
    assert page(path).status == 401
    assert page(path, authorization=f"Bearer {TOKEN}").status in (200, 404)
    assert page("/").status == page("/api/about").status == 200
    assert "store" not in page("/api/about").data
    assert page("/api/about", authorization=f"Bearer {TOKEN}").data["store"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8321", 200),
        ("127.0.0.1:8321", 200),
        ("[::1]:8321", 200),
        ("10.0.0.7", 200),
        ("OPS.example", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("[::1", 421),
        ("a b", 421),
    ],
)
def test_a_foreign_name_does_not_reach_the_page(make_site: Callable[..., _Page], host: str, status: int) -> None:
    """A website whose name resolves to this server cannot read the page. An IP address cannot be such a name."""
    page = make_site(hosts=["ops.example"])
    for path in ("/", "/api/limits"):
        assert page(path, host=host).status == status


def test_every_answer_forbids_foreign_code(page: _Page) -> None:
    """
    Only the page's own scripts and styles are allowed, no frames and no type sniffing. Error responses forbid them too.
    """
    for path in ("/", "/api/limits", "/nothing"):
        headers = page(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_hostile_names_are_data(limiter: Limiter, report: Callable[[], None], make_site: Callable[..., _Page]) -> None:
    """
    A name or key can contain markup, quotes, control characters or half a character. It is sent completely, as JSON.
    """
    page = make_site(show_keys=True)
    for evil in ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u2028\x00\x1b]0;x\x07", "\ud800"):
        limiter.acquire(TokenBucket("hostile", "1/minute", key="{x}"), key=evil)
        limiter.acquire(Concurrency(f"slots {evil.replace(chr(0xD800), '')}", 1))
    report()
    answer = page("/api/limits")
    assert answer.headers["content-type"] == "application/json"
    assert {"slots <script>alert(1)</script>", 'slots "><img src=x onerror=alert(1)>'} <= {
        row["limit"] for row in answer.data["limits"]
    }
    (id,) = [row["id"] for row in answer.data["limits"] if row["limit"] == "hostile"]
    keys = [key["key"] for key in page(f"/api/keys?id={id}").data["keys"]]
    assert '"><img src=x onerror=alert(1)>' in keys
    assert len(keys) == 4


def test_an_operators_name_is_text(redis_url: str, control: _Page, limit_id: str, caplog: Any) -> None:
    """The name is unchanged in the history, and has no control characters in the log."""
    evil = "<b>ann\n</b>"
    form = {"verb": "pause", "limit": limit_id, "by": evil}
    with caplog.at_level("INFO"):
        _send(control, {**form, "confirm": _send(control, form).data["confirm"]})
    assert _history(redis_url) == [("pause", f"{evil} (web)")]
    assert "<b>ann?</b>" in caplog.text

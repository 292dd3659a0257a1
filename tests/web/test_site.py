"""What each address of the page returns, for a live store."""

from __future__ import annotations

import colorsys
import contextlib
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from support.servers.processes import patient
from support.waiting import wait_until
from support.waitlists import ask, held
from support.web import Answer, call_wsgi
from throttlekit import Concurrency, ConfigurationError, Control, Job, Limiter, Share, TokenBucket
from throttlekit._core.storage_keys import digest_of
from throttlekit_web import Request, Site, wsgi_app
from throttlekit_web._wsgi import serve_wsgi

API = TokenBucket("partner-api", "2/minute", burst=2)
TENANTS = TokenBucket("tenants", "2/minute", burst=2, key="{tenant}")
SLOTS = Concurrency("reports-db", 2)

_Page = Callable[..., Answer]


def _limit(page: _Page, name: str) -> Any:
    (row,) = [row for row in page("/api/limits").data["limits"] if row["limit"] == name]
    return row


def _flood(limiter: Limiter, jobs: int = 5) -> None:
    for number in range(jobs):
        limiter.acquire(API, job=Job(id=f"job-{number}"))


def test_limits_are_shown_from_the_store_alone(limiter: Limiter, page: _Page) -> None:
    """
    Use, grants, waiting jobs with their waiting times, and denials are shown for another process's decisions, without
    its code.
    """
    _flood(limiter)
    row = wait_until(
        lambda: [row for row in page("/api/limits").data["limits"] if row["last_minute"]["denials"] == 3],
        description="the process has reported",
    )[0]
    assert (row["definition"], row["used"], row["capacity"]) == ("token-bucket 2/minute burst 2", 2, 2)
    minute = row["last_minute"]
    assert (row["waiting_jobs"], minute["units"], minute["rate_used_ratio"]) == (3, 2, 1.0)
    assert minute["denied"] == {"exhausted": 3}
    assert row["last_starts_in_seconds"] > 60
    assert [sum(bar[at] or 0 for bar in row["bars"]) for at in (1, 2, 7, 8)] == [2, 3, 5, 2]
    assert page("/api/limits").data["denials"] == 3


def test_limits_can_be_sorted_and_filtered(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """
    The order is by name or by waiting jobs. A filter keeps only names with its text. A limit without decisions is last.
    """
    _flood(limiter)
    limiter.acquire(TENANTS, key="a")
    report()

    def names(query: str) -> list[str]:
        return [row["limit"] for row in page(f"/api/limits?{query}").data["limits"]]

    assert names("order=wait") == ["partner-api", "tenants"]
    assert names("filter=TENA") == ["tenants"]
    assert names("filter=nothing") == []
    assert page("/api/limits?order=nonsense").status == 400


def test_settled_units_are_shown(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """For a job that used less than it was charged, the numbers and the charts show what it used."""
    tokens = TokenBucket("tokens", "600/minute", burst=600, cost=lambda job: 100)
    limiter.settle(limiter.acquire(tokens, job=Job(id="a")), actual=40)
    report()
    row = _limit(page, "tokens")
    assert (row["last_minute"]["units"], sum(bar[1] or 0 for bar in row["bars"])) == (40, 40)


def test_429s_from_the_partner_are_shown(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """The 429s of the last 15 minutes are shown for all limits together, for one limit, and for each time step."""
    limiter.acquire(API)
    for _ in range(3):
        limiter.fleet.count_429(API)  # type: ignore[union-attr]
    report()
    row = _limit(page, API.name)
    assert page("/api/limits").data["downstream_429"] == row["downstream_429"] == 3
    data = page(f"/api/limit?id={row['id']}").data
    assert (data["downstream_429"], sum(bar[9] or 0 for bar in data["range"]["bars"])) == (3, 3)


def test_a_slowed_limit_shows_its_reduced_rate(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """
    The reason, the reduced rate and the remaining time are shown in the list, for the limit and its keys, and for a
    waiting job.
    """
    limiter.acquire(API, job=Job(id="first"))
    limiter.apply_response(SimpleNamespace(headers={"RateLimit": '"day";r=3;t=3600'}), API)
    limiter.acquire(API, job=Job(id="second"))
    report()
    row = _limit(page, API.name)
    assert page("/api/limits").data["slowed_limits"] == 1
    shown = [row, page(f"/api/limit?id={row['id']}").data["keys"][0], page("/api/job?id=second").data]
    assert [each["slowed"]["by"] for each in shown] == ["headers"] * 3
    assert row["slowed"]["text"].startswith("to 3/hour by the partner's response headers, for another ")
    assert 3500 < row["slowed"]["ends_in_seconds"] <= 3600
    assert row["waiting_jobs"] == 1


def test_one_limit_has_its_keys_and_charts(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """
    One limit has its most pressing keys as digests, the sum of the last minute, and the last minutes by time step.
    """
    for tenant in ("calm", *["busy"] * 6):
        limiter.acquire(TENANTS, key=tenant)
    report()
    data = page(f"/api/limit?id={_limit(page, 'tenants')['id']}").data
    minutes = [key["last_minute"] for key in data["keys"]]
    assert [key["used"] for key in data["keys"]] == [2, 1]
    assert [(minute["units"], minute["denials"]) for minute in minutes] == [(2, 4), (1, 0)]
    assert all(key["key"].startswith("#") for key in data["keys"])
    assert (data["last_minute"]["units"], data["last_minute"]["denials"], data["used"]) == (3, 4, 2)
    assert sum(bar[1] or 0 for bar in data["range"]["bars"]) == 3
    assert page("/api/limit?id=unheard-of").status == 404


@pytest.mark.parametrize("name", ["15m", "1h", "24h", "30d"])
def test_a_chart_shows_how_tenants_divide_a_limit(
    limiter: Limiter, report: Callable[[], None], make_site: Callable[..., _Page], name: str
) -> None:
    """
    The chart has the units of the six heaviest tenants and of all others, as digests unless keys are shown. Null means
    unknown.
    """
    shared = TokenBucket("shared", "100/minute", burst=100, share=Share("{tenant}"))
    for number in range(1, 9):
        for each in range(number):
            limiter.acquire(shared, job=Job(id=f"{number}-{each}", kwargs={"tenant": f"t{number}"}))
    limiter.acquire(API)
    report()
    clear, plain = make_site(show_keys=True), make_site()
    path = f"/api/limit?id={_limit(plain, 'shared')['id']}&range={name}"
    shares = clear(path).data["range"]["shares"]
    assert [*map(len, shares["bars"])] == [8] * len(clear(path).data["range"]["bars"])
    known = [bar for bar in shares["bars"] if bar[1] is not None]
    assert shares["bars"][0][1:] == [None] * 7
    assert [sum(units) for units in zip(*known, strict=True)][1:] == [8, 7, 6, 5, 4, 3, 2 + 1]
    assert shares["tenants"] == [f"t{n}" for n in (8, 7, 6, 5, 4, 3)]
    assert plain(path).data["range"]["shares"]["tenants"] == [digest_of(each) for each in shares["tenants"]]
    path = f"/api/limit?id={_limit(plain, API.name)['id']}&range={name}"
    assert plain(path).data["range"]["shares"] is None


def test_holders_of_a_concurrency_limit_are_shown(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """The jobs that hold its slots are shown, and for how long they have held them."""
    for name in ("first", "second", "third"):
        limiter.acquire(SLOTS, job=Job(id=name))
    report()
    data = page(f"/api/limit?id={_limit(page, 'reports-db')['id']}").data
    assert {holder["job"] for holder in data["holders"][0]["holders"]} == {"first", "second"}
    assert (data["used"], data["capacity"], data["is_concurrency"]) == (2, 2, True)


def test_the_first_waiting_jobs_are_shown(
    limiter: Limiter, report: Callable[[], None], page: _Page, make_site: Callable[..., _Page]
) -> None:
    """
    The jobs are in their order, with their ids, for each key for which jobs wait. A key is a digest unless it is shown.
    """
    _flood(limiter)
    with contextlib.closing(held(limiter)) as waker:
        for number in range(30):
            ask(limiter, waker, TENANTS, job=Job(id=f"a/{number}", kwargs={"tenant": "ann"}), waited_s=10)
        limiter.acquire(TENANTS, key="bob")
        report()
        path = f"/api/limit?id={_limit(page, 'tenants')['id']}"
        (shown,) = page(path).data["waiting"]
        assert shown["key"] == digest_of("ann")
        assert [job["job"] for job in shown["jobs"]] == [f"a/{number}" for number in range(2, 22)]
        assert {job["deferrals"] for job in shown["jobs"]} == {2}
        assert all(10 <= job["waits_for_seconds"] < 40 for job in shown["jobs"])
        assert make_site(show_keys=True)(path).data["waiting"][0]["key"] == "ann"
    (shown,) = page(f"/api/limit?id={_limit(page, API.name)['id']}").data["waiting"]
    assert [job["job"] for job in shown["jobs"]] == ["job-2", "job-3", "job-4"]


def test_no_waiting_jobs_are_shown_if_none_wait(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """A limit that has only granted shows no waiting job."""
    limiter.acquire(API)
    report()
    assert page(f"/api/limit?id={_limit(page, API.name)['id']}").data["waiting"] == []


def test_workflows_that_hold_slots_are_shown(
    limiter: Limiter, report: Callable[[], None], make_site: Callable[..., _Page]
) -> None:
    """Each workflow is shown once, as a digest unless keys are shown: its name is an argument of its jobs."""
    slots = Concurrency("gpu", 2, held_by="{workflow}")
    for _ in range(2):
        limiter.acquire(slots, job=Job(id="1", kwargs={"workflow": "a b"}))
    report()
    clear, plain = make_site(show_keys=True), make_site()
    path = f"/api/limit?id={_limit(plain, 'gpu')['id']}"
    (shown,) = clear(path).data["holders"][0]["holders"]
    assert shown == {"job": "workflow a b", "held_for_seconds": None, "slots": 1}
    assert plain(path).data["holders"][0]["holders"][0]["job"] == f"workflow {digest_of('a%20b')}"


def test_keys_are_found_by_their_digest_or_name(
    limiter: Limiter, report: Callable[[], None], make_site: Callable[..., _Page]
) -> None:
    """
    If digests are shown, the search matches a digest or the whole key. If keys are shown, it matches any part of a key.
    """
    for tenant in ("ann smith", "ann jones", "bob"):
        limiter.acquire(TENANTS, key=tenant)
    report()
    hidden, clear = make_site(), make_site(show_keys=True)
    id = _limit(hidden, "tenants")["id"]

    def keys(page: _Page, search: str = "") -> list[str]:
        data = page(f"/api/keys?id={id}&search={search}").data
        assert (data["cursor"], data["of"]) == ("", 3)
        return sorted(key["key"] for key in data["keys"])

    digests = keys(hidden)
    assert len(digests) == 3
    assert all(digest.startswith("#") for digest in digests)
    assert keys(hidden, digests[0][1:5]) == [digests[0]]
    assert keys(hidden, "ann") == []
    assert len(keys(hidden, "ann%20smith")) == 1
    assert keys(clear, "ANN") == ["ann jones", "ann smith"]
    assert hidden(f"/api/keys?id={id}&cursor=x").status == 400


def test_rules_and_their_history_are_shown(
    redis_url: str, limiter: Limiter, report: Callable[[], None], page: _Page
) -> None:
    """
    The page shows the rules in force with their authors and ends, and the changes with theirs. A paused key is a
    digest.
    """
    limiter.acquire(TENANTS, key="ann smith")
    report()
    with Control(patient(redis_url), by="ann") as control:
        control.pause(TENANTS, key="ann smith", duration=600)
        control.set("partner-api", "5/s")
    data = page("/api/changes").data
    rate, pause = sorted(data["rules"], key=lambda rule: rule["limit"])
    assert (rate["what"], rate["rate"], rate["by"], rate["until"]) == ("set", "5/s", "ann", None)
    assert (pause["what"], pause["part"][0], pause["until"] > data["now"]) == ("pause", "#", True)
    assert [(change["verb"], change["by"]) for change in data["changes"]] == [("set", "ann"), ("pause", "ann")]
    assert _limit(page, "tenants")["rules"][0]["part"] == pause["part"]
    assert "smith" not in page("/api/changes").body.decode()


def test_the_load_on_the_store_does_not_depend_on_the_number_of_browsers(redis_url: str, page: _Page) -> None:
    """In each second the store is read once, however many requests arrive."""
    page("/api/limits")  # the server has loaded its scripts
    with redis.Redis.from_url(redis_url) as client:
        client.config_resetstat()
        for _ in range(20):
            page("/api/limits")
        stats: Any = client.info("commandstats")
    assert stats.get("cmdstat_eval", {"calls": 0})["calls"] <= 10


@pytest.mark.parametrize(
    ("name", "bars", "bar_s"), [("15m", 15, 60), ("1h", 60, 60), ("24h", 144, 600), ("30d", 180, 14_400)]
)
def test_a_chart_has_a_range(
    limiter: Limiter, report: Callable[[], None], page: _Page, name: str, bars: int, bar_s: int
) -> None:
    """
    The range is from 15 minutes to 30 days. Null means unknown, and the changes of operators in this time are marked.
    """
    _flood(limiter)
    report()
    id = _limit(page, "partner-api")["id"]
    with Control(limiter) as control:
        control.set("partner-api", "4/minute")
    data = page(f"/api/limit?id={id}&range={name}").data
    found = data["range"]
    assert (found["name"], found["bar_seconds"], len(found["bars"])) == (name, bar_s, bars)
    assert {begin % bar_s for begin, *_ in found["bars"]} == {0}
    assert sum(bar[1] or 0 for bar in found["bars"]) == 2
    assert found["bars"][0][1] is None
    assert found["bars"][-1][6] in (2 * bar_s / 60, None)  # unknown in the first seconds of a step
    assert [(each["verb"], each["after"]["rate"]) for each in data["changes"]] == [("set", "4/minute")]
    assert page(f"/api/limit?id={id}&range=1y").status == 400


def test_two_pages_show_the_same_history(
    limiter: Limiter, report: Callable[[], None], make_site: Callable[..., _Page]
) -> None:
    """A page that starts later shows the earlier history, including the waiting jobs that the other page saw."""
    _flood(limiter)
    report()
    first = make_site()
    before = _limit(first, "partner-api")
    later = _limit(make_site(), "partner-api")
    assert before["bars"][:-1] == later["bars"][:-1]
    assert {bar[5] for bar in later["bars"]} == {None, 3}


def test_a_user_with_read_access_sees_the_page(redis_url: str, limiter: Limiter, report: Callable[[], None]) -> None:
    """Only the number of waiting jobs in the charts is missing, since the page cannot write it."""
    _flood(limiter)
    report()
    rights = ("~tk1:*", "+@read", "+@connection", "-@dangerous", "+select", "+eval", "+evalsha", "+time", "+info")
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "looks", "on", ">word", *rights)
        site = Site(patient(redis_url.replace("redis://", "redis://looks:word@")), token=None)
        try:
            page = partial(call_wsgi, serve_wsgi(site))
            for _ in range(2):
                row = _limit(page, "partner-api")
                assert (row["waiting_jobs"], row["bars"][-1][5]) == (3, None)
        finally:
            site.close()
            client.execute_command("ACL", "DELUSER", "looks")


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")]
)
def test_the_page_consists_of_three_own_files(page: _Page, path: str, kind: str) -> None:
    """Nothing is loaded from elsewhere, and a header forbids it to the browser."""
    answer = page(path)
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
    assert "http://" not in answer.body.decode().replace("http://www.w3.org/", "")
    assert "https://" not in answer.body.decode()


def test_an_unavailable_store_is_one_line() -> None:
    """The page is served, but its data is not: 503, with the reason and without a password."""
    app = wsgi_app("redis://:hunter2@127.0.0.1:1/0", token=None)
    assert call_wsgi(app, "/").status == 200
    for path in ("/api/limits", "/api/limit?id=a", "/api/keys?id=a", "/api/job?id=a", "/api/changes"):
        answer = call_wsgi(app, path)
        assert answer.status == 503
        assert "does not answer" in answer.data["error"]
        assert b"hunter2" not in answer.body


def test_unknown_addresses_and_methods_are_refused(page: _Page) -> None:
    """Unknown addresses get 404, unknown methods 405, and a request for a job without its id 400, as JSON."""
    assert page("/nothing").status == 404
    assert page("/../app.js").status == 404
    assert page("/api/limits", method="POST").status == 405
    assert page("/api/control").status == 405
    assert page("/api/job").status == 400
    assert page("/api/about", method="HEAD") == (200, page("/api/about").headers, b"")


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        ("memory://", {"token": None}, "not shared"),
        (Limiter(), {"token": None}, "not shared"),
        ("redis://localhost", {"token": "short"}, "16 characters"),
        ("redis://localhost", {"token": "not ascii: ä, but long"}, "ASCII"),
        ("redis://localhost", {"token": None, "allow_control": True}, "needs a token"),
    ],
)
def test_a_wrong_configuration_is_refused_at_once(store: Any, options: Any, message: str) -> None:
    """A store in memory, a token that can be guessed, and control without a token are refused."""
    with pytest.raises(ConfigurationError, match=message):
        Site(store, **options)


def test_a_limit_can_show_its_keys(limiter: Limiter, report: Callable[[], None], page: _Page) -> None:
    """With show_key=True, its keys and tenants have names. Those of other limits are digests, and the page says so."""
    named = TokenBucket("named", "2/minute", burst=2, key="{tenant}", share=Share("{tenant}"), show_key=True)
    for limit in (named, TENANTS):
        for number in range(3):
            limiter.acquire(limit, job=Job(id=f"{limit.name}-{number}", kwargs={"tenant": "acme"}))
    report()
    shown = page(f"/api/limit?id={_limit(page, 'named')['id']}").data
    assert [each["key"] for each in shown["keys"]] == ["acme"]
    assert [each["tenant"] for each in shown["tenants"]] == ["acme"]
    assert shown["has_digests"] is False
    assert [each["key"] for each in page(f"/api/keys?id={shown['id']}&search=cm").data["keys"]] == ["acme"]
    assert page("/api/job?id=named-2").data["key"] == "acme"
    hidden = page(f"/api/limit?id={_limit(page, 'tenants')['id']}").data
    assert [each["key"] for each in hidden["keys"]] == [digest_of("acme")]
    assert hidden["has_digests"] is True


def test_a_limiter_can_be_passed_as_the_store(limiter: Limiter) -> None:
    """An app that has a limiter passes it. The connections stay the limiter's."""
    site = Site(limiter, token=None)
    assert site.handle(Request(path="/api/limits")).status == 200
    site.close()
    assert limiter.acquire(API).allowed


def _themes(style: str) -> list[dict[str, str]]:
    """Return the colours of each theme of a style sheet, by their names."""
    blocks = re.findall(r"\{([^{}]*--back:[^{}]*)\}", style)
    assert len(blocks) == 3
    return [dict(re.findall(r"--(\w+): #(\w+)", block)) for block in blocks]


def _luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(each * 2 for each in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_text_has_enough_contrast(page: _Page) -> None:
    """In each theme, the colours of text have a contrast of 4.5 with every background: WCAG, level AA."""
    style = page("/style.css").body.decode()
    for theme in _themes(style):
        for text in ("text", "quiet", "accent", "short", "paused", "bad"):
            for ground in ("back", "card", "fill"):
                dark, light = sorted((_luminance(theme[text]), _luminance(theme[ground])))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground, theme[text], theme[ground])


def test_use_is_blue_and_warnings_are_orange(page: _Page) -> None:
    """In each theme, a bar of a limit is blue, however full it is. Tags and marks of a growing backlog are orange."""
    style = page("/style.css").body.decode()

    def hue(colour: str) -> float:
        return 360 * colorsys.rgb_to_hsv(*(int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)))[0]

    for theme in _themes(style):
        assert all(200 <= hue(theme[name]) <= 250 for name in ("bar", "calm", "accent"))
        assert all(20 <= hue(theme[name]) <= 45 for name in ("short", "warm"))
    rules = dict(re.findall(r"\.([\w-]+) \{ (?:color|fill): var\(--(\w+)\); \}", style))
    found = {name: rules[name] for name in ("f-bar", "f-calm", "short", "f-short")}
    assert found == {"f-bar": "bar", "f-calm": "calm", "short": "short", "f-short": "warm"}

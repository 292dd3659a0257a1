"""
The page in a real browser, with a live flood on real workers of two frameworks.

THROTTLEKIT_SCREENSHOTS=docs/images writes the screenshots of the documentation.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.browser import PICTURES, chromium, picture, size
from support.servers.processes import patient, redis_server
from support.waiting import wait_until
from support.web import served
from throttlekit import Concurrency, Control, Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import limit_id
from throttlekit.fleet.definitions import per_minute
from throttlekit.fleet.history import Moment, report_history
from throttlekit.fleet.replies import time_of
from throttlekit.stores.redis import RedisStore

pytest.importorskip("waitress")
webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: it is in the group test")

pytestmark = pytest.mark.workers

HOSTILE = TokenBucket("<img src=x onerror=document.title='evil'>", "60/minute", burst=5, key="{key}")
EXPORT = TokenBucket("nightly-export", "1/hour", burst=2)
QUOTA = TokenBucket("daily-quota", "100/minute", burst=50)
PARTNER = TokenBucket("partner-api", "20/s", burst=20)
ACCOUNT = TokenBucket("partner-api:account", "4/s", burst=4, key="{account}")
TRANSLATE = TokenBucket("translate", "200/minute", burst=200, share="{tenant}")
RENDER = Concurrency("render-farm", 2, lease=3600)


@dataclass(frozen=True, slots=True)
class _Flood:
    url: str
    """The store."""
    address: str
    """The page, with its token."""

    @property
    def store(self) -> str:
        """The name of the store on the page."""
        return f"production ({self.url.partition('://')[2]})"


@pytest.fixture(scope="module")
def flood(redis_base: str) -> Iterator[_Flood]:
    """Workers of Dramatiq and RQ that share limits, with more jobs than those admit, and the page of their store."""
    assert redis_base, "without a Redis the fixture skips, or fails in CI"
    from support.dramatiq.workers import workers
    from support.rq.workers import Fleet, rq_worker

    with contextlib.ExitStack() as running:
        base = running.enter_context(redis_server())
        store, broker, queues = f"{base}/0", f"{base}/1", f"{base}/2"
        environment = {"TK_TOP_STORE": patient(store), "TK_TOP_BROKER": broker}
        send = [sys.executable, "-c", f"import top_capture; top_capture._JOBS = 3000; top_capture.flood({queues!r})"]
        _write_history(store)
        tests = Path(__file__).parents[1]
        path = os.pathsep.join(filter(None, (str(tests / "benchmarks"), os.environ.get("PYTHONPATH", ""))))
        subprocess.run(send, env={**os.environ, **environment, "PYTHONPATH": path}, check=True)
        kind = "throttlekit_rq.ThrottledWorker"
        command = rq_worker(queues, "work", kind=kind, options=("-c", "support.jobs.top"))
        running.enter_context(workers("support.jobs.top", environment, processes=1, threads=4))
        running.enter_context(Fleet([command], environment))
        with Limiter(patient(store)) as limiter:  # jobs that wait and jobs that hold slots, however slow the tests are
            for number in range(5):
                limiter.acquire(EXPORT, job=Job(id=f"export-{number}"))
            limiter.acquire(RENDER, job=Job(id="render-1"))
            assert limiter.fleet is not None
            limiter.fleet.activity.report()
        address = running.enter_context(served(store, "--allow-control", "--show-keys", "--title", "production"))
        assert "#token=" in address
        yield _Flood(store, address)


def _write_history(url: str) -> None:
    """Write an invented day, in which one hour is unknown, by the script with virtual times."""
    limits = {limit_id(each.name, each.fingerprint): per_minute(each) for each in (PARTNER, ACCOUNT)}
    with contextlib.closing(RedisStore(url, timeout=30)) as store:
        now = int(time_of(store)) // 60
        commands: list[tuple[str | int, ...]] = []
        for minute in range(now - 1_400, now - 1):
            if now - 500 < minute < now - 440 or now - 9 < minute < now - 6:
                continue
            day = max(0.0, math.sin((now - minute) / 1_440 * 2 * math.pi)) ** 2
            for id, rate in limits.items():
                granted = round(rate * min(1.0, 0.15 + 1.1 * day) * (1 - minute % 5 / 50))
                late = max(0, round(900 * (day - 0.75)))
                moment = Moment(
                    granted,
                    granted,
                    granted + (minute % 7 - 3) * 5,
                    late // 3,
                    0,
                    int(minute % 97 == 0),
                    round(rate * 1000),
                    late * 2,
                    late,
                )
                ((verb, script, *rest),) = report_history({id: moment})
                script = str(script).replace("redis.call('TIME')[1]", "ARGV[3]")
                commands.append((verb, script, *rest, minute * 60 + 5))
        for first in range(0, len(commands), 500):
            store.commands(commands[first : first + 500])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Any, flood: _Flood) -> Iterator[Any]:
    """The page with the limits of the flood. At the end, the browser's log must have no error."""
    size(browser, 1200, 620)
    browser.get("about:blank")
    browser.get(flood.address)
    wait_until(
        lambda: {"partner-api", "partner-api:account", "reports-db"} <= {*_texts(browser, "tbody .name")},
        description="the page shows the limits of the flood",
    )
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert browser.title == f"{flood.store} · throttlekit"


def _texts(browser: Any, selector: str) -> list[str]:
    """Return the text of each element, read at one moment, since the page replaces its rows."""
    script = "return [...document.querySelectorAll(arguments[0])].map((element) => element.textContent)"
    return list(browser.execute_script(script, selector))


def _wait_for_text(browser: Any, selector: str, text: str = "") -> str:
    """Wait until an element contains *text*."""
    return wait_until(
        lambda: next((each for each in _texts(browser, selector) if text in each), ""),
        description=f"{selector} shows {text!r}",
    )


def _click(browser: Any, selector: str) -> None:
    """Click on an element that may be replaced at any moment."""
    script = "const found = document.querySelector(arguments[0]); found?.click(); return Boolean(found)"
    wait_until(lambda: browser.execute_script(script, selector), description=f"there is {selector}")


def _press(browser: Any, *keys: str) -> None:
    """Press keys, one by one, on the element that has the focus."""
    for key in keys:
        webdriver.ActionChains(browser).send_keys(key).perform()


def _open(browser: Any, limit: str) -> None:
    script = (
        "const found = [...document.querySelectorAll('tbody a')].find((link) => link.textContent === arguments[0]);"
        "found?.click(); return Boolean(found)"
    )
    wait_until(lambda: browser.execute_script(script, limit), description=f"{limit} is a link")
    _wait_for_text(browser, "h2", limit)


def test_the_page_shows_a_flood_on_two_frameworks(page: Any) -> None:
    """
    The page shows the workers, the waiting jobs with their waiting times, and the last minutes as charts, and updates
    itself.
    """
    assert re.search(r"1 dramatiq, 1 rq", _wait_for_text(page, "#head", "rq"))
    assert "about 3" in _texts(page, "td[data-label=Waiting]")
    before = _texts(page, "#head")
    wait_until(lambda: _texts(page, "#head") != before, description="the page is updated")
    bars = (
        "return [...document.querySelectorAll('svg.spark path')].some("
        f"(path) => (path.getAttribute('d').match(/M/g) ?? []).length >= {3 if PICTURES else 1})"
    )
    wait_until(lambda: page.execute_script(bars), description="the charts have bars")
    picture(page, "web")


def test_the_page_shows_the_name_of_its_store(page: Any, flood: _Flood) -> None:
    """
    The head, the tab's title and each dialog have the name, before and after the change. The dialog begins with the
    present number of slots.
    """
    assert _texts(page, "#store") == [flood.store]
    _open(page, RENDER.name)
    _click(page, "[data-verb=set]")
    assert _wait_for_text(page, "dialog p", "Store: ") == f"Store: {flood.store}"
    assert _texts(page, "#present") == ["Now: concurrency 2 lease 3600"]
    assert page.execute_script("return document.querySelector('dialog input').value") == "2"
    fill = "[...document.querySelectorAll('dialog input')].forEach((input, at) => { input.value = ['3', 'ann'][at] })"
    page.execute_script(fill)
    _click(page, "dialog [type=submit]")
    assert _wait_for_text(page, ".effect", "Change limit").endswith(f"Store: {flood.store}.")
    _click(page, "dialog [type=submit]")
    _wait_for_text(page, "dialog p", "Done.")
    assert f"Store: {flood.store}" in _texts(page, "dialog p")
    with Control(patient(flood.url)) as control:
        control.unset(RENDER)


def test_digests_are_explained(page: Any, flood: _Flood) -> None:
    """If keys are shown as digests, the page explains how to show their names."""
    _open(page, "partner-api:account")
    _wait_for_text(page, "table .name", "account-0")
    assert _texts(page, "#digests") == []
    with served(flood.url) as address:
        page.get(address)
        _open(page, "partner-api:account")
        assert "--show-keys" in _wait_for_text(page, "#digests", "show_key=True")
        _wait_for_text(page, "table .name", "#")
        page.get("about:blank")
        page.get(flood.address)
        _wait_for_text(page, "#store", flood.store)


def test_one_limit_has_charts_keys_and_a_search(page: Any) -> None:
    """A limit with a key for each account has its charts, the most pressing keys, and a search in all keys."""
    _open(page, "partner-api:account")
    wait_until(lambda: len(_texts(page, "svg.chart")) == 5, description="there are five charts")
    wait_until(lambda: _texts(page, "svg.chart .unknown"), description="the minutes before the flood are hatched")
    assert "not known" in _texts(page, ".key")
    _wait_for_text(page, "table .name", "account-0")
    page.execute_script("document.querySelector('#search').focus()")
    _press(page, "a", "c", "c", "o", "u", "n", "t", "-", "1", "\ue007")
    found = "main > section:last-of-type tbody .name"
    wait_until(
        lambda: {*_texts(page, found)} and all("account-1" in name for name in _texts(page, found)),
        description="only keys with the text are found",
    )


def test_the_charts_have_axes_a_legend_tooltips_and_a_range(page: Any, flood: _Flood) -> None:
    """
    The range is from 15 minutes to 30 days, and is kept. A change of an operator is a mark, and a bar has a tooltip.
    """
    with Control(patient(flood.url), by="ann") as control:
        control.set("partner-api", "30/s")
        control.unset("partner-api")
    _open(page, "partner-api")
    for name, bars, tick in (("1h", 60, ":"), ("30d", 180, " "), ("24h", 144, ":00")):
        _click(page, f"[data-range='{name}']")
        wait_until(
            lambda bars=bars: len(_texts(page, "figure:first-child .hit")) == bars, description=f"{name} is shown"
        )
        assert any(tick in text for text in _texts(page, "figure:first-child .tick:not(.end)"))
        assert len(_texts(page, "figure:first-child .tick.end")) >= 2
    legend = {"admitted", "rate", "not known", "changed by an operator", "429 from the partner"}
    assert legend <= {*_texts(page, ".key")}
    assert len(_texts(page, "figure:first-child .partner-429")) >= 5
    assert len(_texts(page, "figure:first-child .unknown")) >= 4
    assert len(_texts(page, "figure:first-child svg.chart .mark")) >= 2
    assert "ann: 30/s" in "".join(_texts(page, ".marks li"))
    size(page, 1200, 860)
    box = page.execute_script(
        "const box = document.querySelectorAll('figure:first-child .hit')[100].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + 20]"
    )
    page.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": box[0], "y": box[1]})
    assert re.search(r"UTC.*admitted: [\d,]+.*rate: ", _wait_for_text(page, "#tip:not([hidden])", "admitted"))
    picture(page, "web-limit")
    page.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})
    wait_until(lambda: _texts(page, "#tip[hidden]"), description="the tooltip is gone")
    page.refresh()
    wait_until(lambda: len(_texts(page, "figure:first-child .hit")) == 144, description="the range is kept")
    _click(page, "[data-range='15m']")


def test_a_chart_shows_how_tenants_divide_a_limit(page: Any, flood: _Flood) -> None:
    """A limit with shares has one more chart, with six tenants by name and all others. A bar shows the part of each."""
    with contextlib.closing(Limiter(patient(flood.url))) as limiter:
        for number in range(1, 9):
            for each in range(number):
                limiter.acquire(TRANSLATE, job=Job(id=f"{number}-{each}", kwargs={"tenant": f"tenant-{number}"}))
    _open(page, TRANSLATE.name)
    chart = "figure:nth-child(2)"
    _wait_for_text(page, f"{chart} .key", "tenant-8")
    assert _texts(page, f"{chart} .key") == [*(f"tenant-{n}" for n in (8, 7, 6, 5, 4, 3)), "all others", "not known"]
    size(page, 1200, 1100)
    last = (
        "const box = [...document.querySelectorAll('figure:nth-child(2) .hit')].at(-1).getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + 40]"
    )
    x, y = page.execute_script(last)
    page.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    assert re.search(r"tenant-8: \d+ \(\d+ %\).*all others: ", _wait_for_text(page, "#tip:not([hidden])", "all others"))
    inside = "return innerWidth - document.getElementById('tip').getBoundingClientRect().right"
    assert page.execute_script(inside) >= 0
    page.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})


def test_the_page_shows_whether_a_flood_clears(page: Any) -> None:
    """
    The page shows, from the arrivals and grants of the last minute, when no job will wait, or that the backlog grows.
    """
    _open(page, "partner-api")
    outlook = re.compile(r"empty at \d\d:\d\d UTC at this rate|not at this rate|if no other job arrives")
    wait_until(
        lambda: outlook.search(_wait_for_text(page, "dl.tiles div", "Clears in")),
        description="the page says whether the waiting jobs clear",
    )


def test_holders_of_slots_are_shown(page: Any) -> None:
    """Each holder is shown by its job, with the time since it holds the slot."""
    _open(page, RENDER.name)
    _wait_for_text(page, "h3", "Holders")
    _wait_for_text(page, "td", "render-1")


def test_the_first_waiting_jobs_lead_to_their_explanation(page: Any) -> None:
    """The jobs are in their order, each with a link to the page of the job."""
    _open(page, EXPORT.name)
    _wait_for_text(page, "a.waits", "export-4")
    assert _texts(page, "a.waits") == ["export-2", "export-3", "export-4"]
    _click(page, "a.waits")
    _wait_for_text(page, "main b", "export-2")
    _wait_for_text(page, "main", "waits for")


def test_a_slowed_limit_is_marked(page: Any, flood: _Flood) -> None:
    """The list and the limit's own page show the reduced rate, the reason, and the remaining time."""
    with contextlib.closing(Limiter(patient(flood.url))) as limiter:
        limiter.acquire(QUOTA)
        limiter.apply_response(SimpleNamespace(headers={"RateLimit": '"day";r=3;t=3600'}), QUOTA)
        limiter.acquire(QUOTA, job=Job(id="waits"))
    _wait_for_text(page, "tbody .tag", "slow")
    _wait_for_text(page, "tbody .quiet", "slowed down to 3/hour")
    assert "1 slowed down" in _wait_for_text(page, "dl.tiles dd", "slowed down")
    _open(page, QUOTA.name)
    _wait_for_text(page, "main p", "It is slowed down to 3/hour by the partner's response headers, for another ")
    page.execute_script("location.hash = '#/job/waits'")
    _wait_for_text(page, "dd", "to 3/hour by the partner's response headers")


def test_the_page_works_with_the_keyboard_alone(page: Any) -> None:
    """A user can filter, select a limit, open it, return and change the view."""
    _press(page, "/", *"reports")
    wait_until(lambda: _texts(page, "tbody .name") == ["reports-db"], description="the filter is applied")
    _press(page, "\ue00c")
    _press(page, "j", "\ue007")
    _wait_for_text(page, "h2", "reports-db")
    page.execute_script("document.querySelector('#view').focus()")
    _press(page, "\ue00c")
    _wait_for_text(page, "th", "Oldest wait")
    _press(page, "2")
    _wait_for_text(page, "h2", "Why does this job wait?")


def test_a_change_names_its_effect_before_it_is_made(page: Any, flood: _Flood) -> None:
    """The dialog describes the effect on the fleet. Only the confirmation makes the change. The rule can be ended."""
    _open(page, "reports-db")
    _click(page, "[data-verb=pause]")
    page.execute_script("document.querySelector('dialog input').value = 'ann'")
    _click(page, "dialog [type=submit]")
    _wait_for_text(page, ".effect", "Pause limit 'reports-db' in the whole fleet, for 10 m 00 s.")
    with Control(patient(flood.url)) as control:
        assert [rule for rule in control.rules() if rule.name == "reports-db"] == []
        _click(page, "dialog [type=submit]")
        _wait_for_text(page, "dialog p", "Done.")
        (rule,) = [rule for rule in control.rules() if rule.name == "reports-db"]
        assert (rule.what, rule.by) == ("pause", "ann (web)")
        _click(page, "#close")
        _wait_for_text(page, "table td", "paused by ann (web)")
        _click(page, "[data-verb^=end]")
        _click(page, "dialog [type=submit]")
        _wait_for_text(page, ".effect", "End every pause of limit 'reports-db'")
        _click(page, "dialog [type=submit]")
        _wait_for_text(page, "dialog p", "Done.")
        assert [rule for rule in control.rules() if rule.name == "reports-db"] == []


def test_a_limit_can_be_scaled(page: Any) -> None:
    """The dialog shows the rates before and after, and that no burst follows."""
    _open(page, "partner-api")
    _click(page, "[data-verb=scale]")
    fill = "[...document.querySelectorAll('dialog input')].forEach((input, at) => { input.value = ['0.5', 'ann'][at] })"
    page.execute_script(fill)
    _click(page, "dialog [type=submit]")
    assert "from token-bucket 20/s burst 20 to token-bucket 10/s burst" in _wait_for_text(
        page, ".effect", "0.5 of its rate"
    )


@pytest.mark.parametrize("look", ["phone", "dark"])
def test_the_page_supports_phones_and_dark_mode(page: Any, look: str) -> None:
    """Nothing is wider than the screen, and the colours follow the system."""
    if look == "phone":
        size(page, 390, 780, phone=True)
    else:
        size(page, 1200, 620, dark=True)
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 3 * 64) == (look == "dark")
    for hash, heading in (("#/", "Limits"), ("#/changes", "Rules in force"), ("#/job/", "Why does this job wait?")):
        page.execute_script(f"location.hash = '{hash}'")
        _wait_for_text(page, "h2", heading)
        wide = "return document.documentElement.scrollWidth - innerWidth"
        assert page.execute_script(wide) <= 0
        if hash == "#/":
            _wait_for_text(page, "tbody .name", "partner-api")
            row = "return document.querySelector('tbody tr svg.spark').getBoundingClientRect().bottom - innerHeight"
            assert page.execute_script(row) < 0  # the first limit is visible without scrolling
            picture(page, f"web-{look}")


def test_without_the_token_no_data_is_shown(browser: Any, flood: _Flood) -> None:
    """The page prompts for the token, and shows the limits after it was entered."""
    browser.switch_to.new_window("tab")
    address, _, token = flood.address.partition("#token=")
    browser.get(address)
    _wait_for_text(browser, "dialog h3", "needs its token")
    assert _texts(browser, "tbody .name") == []
    browser.execute_script("document.querySelector('#token').focus()")
    _press(browser, token, "\ue007")
    _wait_for_text(browser, "tbody .name", "partner-api")
    browser.close()
    browser.switch_to.window(browser.window_handles[0])
    browser.get_log("browser")  # the browser logs a 401 as an error


def test_text_of_the_store_is_never_code(page: Any, flood: _Flood) -> None:
    """A limit, a key and a job whose names are markup are shown as plain text, on every view."""
    with contextlib.closing(Limiter(patient(flood.url))) as limiter:
        for number in range(12):
            limiter.acquire(HOSTILE, job=Job(id=f"job <b>{number}</b>", kwargs={"key": "<script>evil()</script>"}))
    _open(page, HOSTILE.name)
    _wait_for_text(page, "table .name", "<script>evil()</script>")
    with Control(patient(flood.url), by="<svg onload=evil()>") as control:
        control.shadow(HOSTILE)
    page.execute_script("location.hash = '#/changes'")
    _wait_for_text(page, "td", "<svg onload=evil()>")
    page.execute_script("location.hash = '#/job/' + encodeURIComponent('job <b>11</b>')")
    _wait_for_text(page, "main b", "job <b>11</b>")
    _wait_for_text(page, "main", "waits for")
    made = "return document.querySelectorAll('main script, main img, main b b, main svg[onload]').length"
    assert page.execute_script(made) == 0

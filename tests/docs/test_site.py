"""
The built site, as a reader sees it. `make docs` installs what this needs.

THROTTLEKIT_SCREENSHOTS=docs/images writes the screenshot of its first page.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from support.browser import chromium, picture, size
from support.markdown import ROOT
from support.waiting import wait_until

pytest.importorskip("mkdocs", reason="mkdocs is not installed: it is in the group docs")
pytest.importorskip("selenium", reason="selenium is not installed: it is in the group test")

_LOOKS = {"desktop": (1280, 900), "dark": (1280, 900), "phone": (390, 780)}
"""The size of the screen in each look."""
_LOADED = "return document.readyState === 'complete' && [...document.images].every((image) => image.complete)"
_MISSING = "return [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built as `make docs` does. A warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with contextlib.ExitStack() as stopping:
            stopping.callback(thread.join)
            stopping.callback(server.shutdown)
            yield f"http://127.0.0.1:{server.server_port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize("page", ["", "tutorial/", "choosing/", "api-limiter/"])
def test_a_page_fits_the_screen(site: str, browser: Any, page: str) -> None:
    """
    On a desktop, in dark mode and on a phone, nothing is wider than the screen, no image is missing, no error is
    logged, and no other host is requested.
    """
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    size(browser, *_LOOKS["desktop"])
    browser.get(site + page)
    for look, screen in _LOOKS.items():
        size(browser, *screen, phone=look == "phone", dark=look == "dark")
        wait_until(lambda: browser.execute_script(_LOADED), description="the page is loaded")
        assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0, look
        assert browser.execute_script(_MISSING) == [], look
        if page == "" and look == "desktop":
            picture(browser, "docs")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = {each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"}
    assert {urlsplit(url).hostname for url in requested} <= {"127.0.0.1", None}


def test_a_chosen_framework_is_selected_on_every_page(site: str, browser: Any) -> None:
    """A reader selects Celery once, and the next page shows it first."""
    size(browser, *_LOOKS["desktop"])
    browser.get(site)
    click = "[...document.querySelectorAll('.tabbed-labels > label')].find((each) => each.innerText === 'Celery')"
    wait_until(lambda: browser.execute_script(f"return Boolean({click})"), description="there are tabs")
    browser.execute_script(f"{click}.click()")
    browser.get(site + "limit-429/")
    chosen = (
        "const set = document.querySelector('.tabbed-set'); if (!set) return ''; "
        "const at = [...set.querySelectorAll(':scope > input')].findIndex((each) => each.checked); "
        "return set.querySelectorAll(':scope > .tabbed-labels > label')[at].innerText"
    )
    wait_until(lambda: browser.execute_script(chosen) == "Celery", description="Celery is selected there too")


def test_each_page_is_available_as_markdown(site: str) -> None:
    """Every path of llms.txt is on the site, and contains the source of its page."""
    names = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "llms.txt").read_text("utf-8"))
    assert len(set(names)) > 40
    for name in names:
        with urlopen(site + name) as answer:
            assert answer.read() == (ROOT / "docs" / name).read_bytes()

"""The Django app in a real project: settings, system checks, the page in the admin, and `manage.py throttlekit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django")

_TOKEN = "a token of the page"
_Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> _Run:
    """Run a script or `manage.py` of the project, with the setting THROTTLEKIT."""

    def run(setting: object, *arguments: str, script: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "THROTTLEKIT_URL"},
            "DJANGO_SETTINGS_MODULE": "support.django_project.settings",
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "TK_DATABASE": str(tmp_path / "project.sqlite3"),
            "TK_DJANGO": json.dumps(setting),
            **variables,
        }
        command = ["-c", f"import django; django.setup()\n{script}"] if script else ["-m", "django", *arguments]
        return subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    return run


def _done(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def _checked(run: _Run, setting: object) -> str:
    return run(setting, "check", "--fail-level", "WARNING", TK_URLS="support.django_project.no_urls").stderr


def test_valid_settings_pass_the_system_checks(run: _Run) -> None:
    """The checks open no connection, so no server is needed. No migration is missing."""
    setting = {"url": "redis://localhost:1/0", "title": "production"}
    assert "no issues" in _done(run(setting, "check", "--fail-level", "WARNING"))
    assert "No changes" in _done(run(setting, "makemigrations", "--check", "--dry-run"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"ulr": "redis://localhost/0"}, ["throttlekit.E001", "option 'ulr'", "did you mean 'url'?"]),
        ({"URL": "redis://localhost/0"}, ["throttlekit.E001", "did you mean 'url'?"]),
        ({"qqq": 1}, ["throttlekit.E001", "the options are url, client, plugins, stores"]),
        ("redis://localhost/0", ["throttlekit.E001", "must be a dict", "not str"]),
        ({"url": "amqp://u:hunter2@localhost"}, ["throttlekit.E002"]),
        ({"url": "redis://localhost/0", "plugins": ["no.such"]}, ["throttlekit.E002", "'no.such', which cannot"]),
        ({"url": "redis://localhost/0", "allow_control": True}, ["throttlekit.E003", "token"]),
        ({}, ["throttlekit.W001", "in each process alone"]),
    ],
)
def test_a_mistake_in_the_settings_is_found_by_a_system_check(run: _Run, setting: object, words: list[str]) -> None:
    """The check names an unknown option together with a similar known one, and each value that can never work."""
    shown = _checked(run, setting)
    for each in words:
        assert each in shown
    assert "hunter2" not in shown


def test_a_mistake_that_the_code_raises_before_the_checks_has_the_same_text(run: _Run) -> None:
    """The URLs import a view whose limiter cannot be created. The program ends there, and so does a worker."""
    outcome = run({"ulr": "redis://localhost/0"}, "check")
    assert outcome.returncode == 1
    assert "unknown option 'ulr': did you mean 'url'?" in outcome.stderr.splitlines()[-1]


def test_limits_in_memory_are_accepted_in_development(run: _Run) -> None:
    """With DEBUG, no store has to be named."""
    assert "no issues" in _done(run({}, "check", "--fail-level", "WARNING", TK_DEBUG="1"))


_LIMITER = """
from django.conf import settings
from django.test import override_settings
from support.django_project.plugin import CountDecisions
from support.django_project.urls import SEARCH
from throttlekit_django import get_limiter

first = get_limiter()
assert get_limiter() is first
assert first.store_address.endswith(settings.THROTTLEKIT["url"].partition("://")[2].partition("?")[0].partition("/")[2])
assert first.acquire(SEARCH).allowed
assert CountDecisions.decided == 1
with override_settings(THROTTLEKIT={"url": "memory://"}):
    assert get_limiter() is not first
    assert get_limiter().in_memory
assert not get_limiter().in_memory
print("one limiter")
"""


def test_one_limiter_is_created_from_the_settings(run: _Run, redis_url: str) -> None:
    """The limiter has the URL and the plugins of the settings. If a test overrides them, a new limiter is created."""
    setting = {"url": redis_url, "plugins": ["support.django_project.plugin.CountDecisions"]}
    assert "one limiter" in _done(run(setting, script=_LIMITER))


_PAGE = """
import asyncio, json, sys
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import AsyncClient, Client
call_command("migrate", verbosity=0)
permission = Permission.objects.get(codename="view_limits")
for name, staff, may in (("visitor", False, True), ("clerk", True, False), ("operator", True, True)):
    user = User.objects.create_user(name, is_staff=staff)
    if may:
        user.user_permissions.add(permission)

PAGE = "/admin/throttlekit_django/limits/"

def client_of(name, **options):
    client = Client(**options)
    client.force_login(User.objects.get(username=name))
    return client

operator = client_of("operator", enforce_csrf_checks=True)
"""

_MAY = """
for client in (Client(), client_of("visitor")):
    for path in ("", "api/limits", "app.js"):
        answer = client.get(PAGE + path)
        assert (answer.status_code, "/admin/login/" in answer.headers["Location"]) == (302, True), path
clerk = client_of("clerk")
assert [clerk.get(PAGE + path).status_code for path in ("", "api/limits", "app.js")] == [403] * 3
assert PAGE not in clerk.get("/admin/").content.decode()
assert PAGE in operator.get("/admin/").content.decode()
assert operator.get(PAGE + "add/").status_code == 404
User.objects.create_superuser(username="root")
index = client_of("root").get("/admin/").content.decode()
assert (PAGE in index, PAGE + "add/" in index) == (True, False)
print("refused")
"""

_READ = """
assert Client().get("/search").status_code == 200
assert Client().get("/search").status_code == 429
from throttlekit_django import get_limiter
get_limiter().fleet.activity.report()
answer = operator.get(PAGE)
assert b"<title>throttlekit</title>" in answer.content
assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
(row,) = operator.get(PAGE + "api/limits", {"order": "name"}).json()["limits"]
assert (row["limit"], row["last_minute"]["allowed"], row["last_minute"]["denials"]) == ("search", 1, 1)
assert "production" in operator.get(PAGE + "api/about").json()["store"]
assert operator.get(PAGE + "nothing").status_code == 404
assert operator.get(PAGE[:-1]).status_code == 301

async def through_asgi():
    client = AsyncClient()
    client.cookies = operator.cookies
    return await client.get(PAGE + "api/limits")

assert asyncio.run(through_asgi()).json()["limits"]
form = json.dumps({"verb": "pause", "limit": row["id"], "by": "ann"})
assert operator.post(PAGE + "api/control", form, content_type="application/json").status_code == 403
print("read")
"""

_CHANGE = """
from throttlekit_django import get_limiter
get_limiter().acquire(__import__("support.django_project.urls", fromlist=["x"]).SEARCH)
get_limiter().fleet.activity.report()
token = {"Authorization": "Bearer a token of the page"}
own = {**token, "Origin": "http://testserver", "Host": "testserver"}
assert operator.get(PAGE + "api/limits").status_code == 401
(row,) = operator.get(PAGE + "api/limits", headers=token).json()["limits"]

def change(headers, **more):
    form = {"verb": "pause", "limit": row["id"], "by": "ann", **more}
    return operator.post(PAGE + "api/control", json.dumps(form), content_type="application/json", headers=headers)

assert change({**own, "Origin": "http://evil.example"}).status_code == 403
assert change({"Origin": "http://testserver", "Host": "testserver"}).status_code == 401
effect = change(own).json()["confirm"]
assert change(own, confirm="something else").status_code == 409
assert change(own, confirm=" " * 10_000).status_code == 413
assert change(own, confirm=effect).status_code == 200
from throttlekit import Control
assert [(rule.what, rule.by) for rule in Control(get_limiter()).rules()] == [("pause", "ann (web)")]
print("changed")
"""


def test_only_staff_with_the_permission_sees_the_page(run: _Run, redis_url: str) -> None:
    """
    Other users are redirected to the login, or refused. The admin's index links to the page for those who may open it.
    """
    assert "refused" in _done(run({"url": redis_url}, script=_PAGE + _MAY))


def test_the_page_shows_the_limits_of_the_project(run: _Run, redis_url: str) -> None:
    """In WSGI and ASGI, the page shows the limits of the project's views. Without a token it changes nothing."""
    assert "read" in _done(run({"url": redis_url, "title": "production"}, script=_PAGE + _READ))


def test_the_page_checks_its_own_token_and_not_djangos(run: _Run, redis_url: str) -> None:
    """A change needs the page's token, the page's origin and a confirmed text. Django's CSRF token is not needed."""
    setting = {"url": redis_url, "token": _TOKEN, "allow_control": True}
    assert "changed" in _done(run(setting, script=_PAGE + _CHANGE))


def test_the_page_reports_mistakes_in_the_settings(run: _Run) -> None:
    """Limits in memory belong to one process, so there is no fleet to show."""
    script = _PAGE + 'a = operator.get(PAGE); print(a.status_code, a.content.decode(), "mem" in PAGE)'
    assert _done(run({"url": "memory://"}, script=script)).startswith("503 this store is not shared by a fleet")


def test_the_command_line_uses_the_store_of_the_project(run: _Run, redis_url: str) -> None:
    """`manage.py throttlekit …` uses the URL of the settings, and exits with the code of the command."""
    setting = {"url": redis_url}
    assert "Nothing was decided" in _done(run(setting, "throttlekit", "top", "--once"))
    unknown = run(setting, "throttlekit", "explain", "no-such-job", "--json")
    found: Any = json.loads(unknown.stdout)
    assert (unknown.returncode, found["known"]) == (1, False)
    assert "Usage: manage.py throttlekit explain" in _done(run(setting, "throttlekit", "explain", "--help"))
    wrong = run({"ulr": redis_url}, "throttlekit", "top", "--once")
    assert (wrong.returncode, "did you mean 'url'?" in wrong.stderr) == (1, True)


def test_nothing_else_imports_django() -> None:
    """The package is for projects that have Django installed. All others run without it."""
    script = "import sys, throttlekit, throttlekit.control, throttlekit_cli._commands, throttlekit_web; "
    command = [sys.executable, "-c", script + "print('django' in sys.modules)"]
    path = os.pathsep.join(each for each in sys.path if each)
    outcome = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert outcome.stdout.strip() == "False"

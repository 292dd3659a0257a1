"""`throttlekit doctor` before a deployment: the limits of the code and those that workers use."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.servers.processes import patient
from throttlekit import Concurrency, Control, FixedWindow, Job, Limit, Limiter, TokenBucket
from throttlekit_cli.doctor.definitions import compare_definitions, declared_limits
from throttlekit_cli.store import open_store

PLAN, JOB = Job(kwargs={"plan": "free"}), Job(name="call")


def use(url: str, *limits: Limit, job: Job = PLAN) -> None:
    """Let a process use *limits*, and report that."""
    with contextlib.closing(Limiter(patient(url))) as limiter:
        for limit in limits:
            limiter.acquire(limit, job=job)


def compared(url: str, *declared: Limit) -> list[tuple[str, str]]:
    """The findings: grade and text."""
    with contextlib.closing(open_store(url)) as store:
        own = [tier for each in declared for tier in (each.tiers or {"": each}).values()]
        return [(each.grade, each.what) for each in compare_definitions(store, own)]


SAME = [("ok", "1 limits of the code equal those that workers use.")]


@pytest.mark.parametrize(
    ("used", "declared", "words"),
    [
        (TokenBucket("a", "20/s"), TokenBucket("a", "7/s"), ("token-bucket 7/s burst 7", "token-bucket 20/s burst 20")),
        (TokenBucket("a", "5/s"), TokenBucket("a", "5/s", burst=1), ("5/s burst 1,", "5/s burst 5.")),
        (TokenBucket("a", "5/s"), FixedWindow("a", "5/s"), ("fixed-window 5/s", "token-bucket 5/s burst 5")),
        (TokenBucket("a", "5/s"), Concurrency("a", 5), ("concurrency 5 lease 30", "token-bucket 5/s burst 5")),
        (Concurrency("a", 8), Concurrency("a", 5), ("concurrency 5 lease 30", "concurrency 8 lease 30")),
        (TokenBucket("a", "5/s"), TokenBucket("a", "5/s", scope="job"), ("burst 5 scope job,", "burst 5.")),
        (TokenBucket("a", "5/s", scope="job"), TokenBucket("a", "5/s"), ("burst 5,", "burst 5 scope job.")),
        (
            TokenBucket("a", {"free": "1/s"}, tier="{plan}"),
            TokenBucket("a", {"free": "2/s"}, tier="{plan}"),
            ("2/s burst 2 tier free", "1/s burst 1 tier free"),
        ),
        (
            TokenBucket("a", {"free": "1/s"}, tier="{plan}"),
            TokenBucket("a", "1/s"),
            ("burst 1,", "burst 1 tier free."),
        ),
        (
            TokenBucket("a", "1/s"),
            TokenBucket("a", lambda job: "1/s"),
            ("token-bucket with a rate from a callable", "token-bucket 1/s burst 1"),
        ),
    ],
)
def test_a_definition_that_differs_is_named_with_both(
    redis_url: str, used: Limit, declared: Limit, words: tuple[str, str]
) -> None:
    """Another rate, burst, amount, algorithm, scope or tier."""
    use(redis_url, used, job=Job(name="call", kwargs={"plan": "free"}))
    ((grade, what),) = compared(redis_url, declared)
    assert grade == "warning"
    assert what.startswith("Limit 'a': the code declares ")
    assert what.index(words[0]) < what.index("and workers use") < what.index(words[1])


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket("a", "20/s"),
        TokenBucket("a", "20/s", scope="job", key="{plan}"),
        TokenBucket("a", {"free": "1/s"}, tier="{plan}"),
        TokenBucket("a", lambda job: "3/s"),
        Concurrency("a", 5),
    ],
)
def test_a_definition_that_is_the_same_is_fine(redis_url: str, limit: Limit) -> None:
    """Also one whose rate a callable gives. A limit that workers have not used is not spoken of."""
    use(redis_url, limit, job=Job(name="call", kwargs={"plan": "free"}))
    assert compared(redis_url, limit, TokenBucket("new", "1/s")) == SAME


@pytest.mark.parametrize("limit", [TokenBucket("a", "20/s"), Concurrency("a", 20)])
def test_what_an_operator_has_set_is_no_difference(redis_url: str, limit: Limit) -> None:
    """A rule of live control is not in the code, and ends one day."""
    use(redis_url, limit)
    with Control(patient(redis_url)) as control:
        control.set("a", "5/s" if limit.period_us else 5)
    use(redis_url, limit)
    assert compared(redis_url, limit) == SAME


def test_while_workers_use_two_definitions_one_of_them_is_fine(redis_url: str) -> None:
    """A deployment is on its way; that there are two is a finding of its own."""
    old, new = TokenBucket("a", "5/s"), TokenBucket("a", "7/s")
    use(redis_url, old)
    use(redis_url, new)
    assert compared(redis_url, old) == compared(redis_url, new) == SAME


def test_the_limits_of_imported_code_are_found() -> None:
    """
    Wherever they are held; a limit for each tier, and none that throttlekit has made itself. Proxies of frameworks,
    which may fail outside a request, are not resolved.
    """

    class Proxy:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("outside a request")

        @__class__.setter
        def __class__(self, kind: Any) -> None: ...

    proxy = Proxy()
    kept = [
        TokenBucket("shown-a", "5/s"),
        TokenBucket("shown-b", {"free": "1/s", "pro": "2/s"}, tier="{plan}"),
        TokenBucket("shown-c", "5/s", scope="process"),
        TokenBucket("throttlekit-doctor", "5/s"),
    ]
    gc.collect()
    found = [each for each in declared_limits() if each.name.startswith(("shown-", "throttlekit-"))]
    assert [(each.name, each.of_tier) for each in found] == [("shown-a", None), ("shown-b", "free"), ("shown-b", "pro")]
    assert (len(kept), type(proxy)) == (4, Proxy)


def doctor(folder: Path, *options: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("THROTTLEKIT_URL", None)
    command = [sys.executable, "-m", "throttlekit_cli", "doctor", "--json", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.stdout else []
    return done.returncode, " | ".join(each["what"] for each in found if each["about"] == "limits"), done.stderr


def test_ci_is_told_by_the_exit_code(redis_url: str, tmp_path: Path) -> None:
    """With --strict a difference ends with 1. --app needs the store, and a module that can be imported."""
    use(redis_url, TokenBucket("live", "20/s"))
    (tmp_path / "shop.py").write_text("from throttlekit import TokenBucket\nLIVE = TokenBucket('live', '7/s')\n")
    code, limits, errors = doctor(tmp_path, "--url", redis_url, "--app", "shop", "--strict")
    assert (code, errors) == (1, "")
    assert limits == (
        "Limit 'live': the code declares token-bucket 7/s burst 7, and workers use token-bucket 20/s burst 20."
    )
    assert doctor(tmp_path, "--url", redis_url, "--app", "shop")[0] == 0
    (tmp_path / "shop.py").write_text("from throttlekit import TokenBucket\nLIVE = TokenBucket('live', '20/s')\n")
    assert doctor(tmp_path, "--url", redis_url, "--app", "shop", "--strict")[0] == 0
    code, _, errors = doctor(tmp_path, "--url", redis_url, "--app", "nowhere_at_all")
    assert (code, "cannot be imported" in errors) == (2, True)
    code, _, errors = doctor(tmp_path, "--app", "shop")
    assert (code, "add --url" in errors) == (2, True)

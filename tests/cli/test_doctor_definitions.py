"""`throttlekit doctor` before a deployment compares the limits of the code with those that workers use."""

from __future__ import annotations

import contextlib
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from support.doctor import run_doctor
from support.servers.processes import patient
from throttlekit import Concurrency, Control, FixedWindow, Job, Limit, Limiter, TokenBucket
from throttlekit_cli.doctor.definitions import compare_definitions, declared_limits
from throttlekit_cli.store import open_store

PLAN, JOB = Job(kwargs={"plan": "free"}), Job(name="call")


def use_and_report(url: str, *limits: Limit, job: Job = PLAN) -> None:
    """Let a process use *limits*, and report that."""
    with contextlib.closing(Limiter(patient(url))) as limiter:
        for limit in limits:
            limiter.acquire(limit, job=job)


def findings_about(url: str, *declared: Limit) -> list[tuple[str, str]]:
    """Return the findings as pairs of grade and text."""
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
    """
    The finding about a definition that differs has both values of the rate, burst, amount, algorithm, scope or tier.
    """
    use_and_report(redis_url, used, job=Job(name="call", kwargs={"plan": "free"}))
    ((grade, what),) = findings_about(redis_url, declared)
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
    """
    An equal definition, or a rate from a callable, is no finding. A limit that workers have not used is not mentioned.
    """
    use_and_report(redis_url, limit, job=Job(name="call", kwargs={"plan": "free"}))
    assert findings_about(redis_url, limit, TokenBucket("new", "1/s")) == SAME


@pytest.mark.parametrize("limit", [TokenBucket("a", "20/s"), Concurrency("a", 20)])
def test_a_rule_of_an_operator_is_no_difference(redis_url: str, limit: Limit) -> None:
    """A rule of live control is no difference, because it is temporary and not in the code."""
    use_and_report(redis_url, limit)
    with Control(patient(redis_url)) as control:
        control.set("a", "5/s" if limit.period_us else 5)
    use_and_report(redis_url, limit)
    assert findings_about(redis_url, limit) == SAME


def test_while_workers_use_two_definitions_one_of_them_is_fine(redis_url: str) -> None:
    """
    While a deployment replaces a definition, the code may have either. A separate finding reports that there are two.
    """
    old, new = TokenBucket("a", "5/s"), TokenBucket("a", "7/s")
    use_and_report(redis_url, old)
    use_and_report(redis_url, new)
    assert findings_about(redis_url, old) == findings_about(redis_url, new) == SAME


def test_the_limits_of_imported_code_are_found() -> None:
    """
    Limits are found wherever the code has them, also those of each tier, but none that throttlekit created itself.
    Proxies of frameworks, which can fail outside a request, are not resolved.
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
    done = run_doctor("--json", *options, folder=folder)
    found = json.loads(done.stdout) if done.stdout else []
    return done.exit_code, " | ".join(each["what"] for each in found if each["about"] == "limits"), done.stderr


def test_the_exit_code_reports_differences_to_ci(redis_url: str, tmp_path: Path) -> None:
    """With --strict, a difference ends with 1. --app needs the store, and a module that can be imported."""
    use_and_report(redis_url, TokenBucket("live", "20/s"))
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

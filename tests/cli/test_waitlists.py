"""`throttlekit top` and `explain` for jobs on waitlists that a worker holds, or that a framework redelivers."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import bucket_name
from throttlekit._engine.call import Call
from throttlekit._engine.waker import Waker
from throttlekit._wiring import wiring_of
from throttlekit.fleet.last_minute import pressing_names
from throttlekit.fleet.replies import time_of
from throttlekit_cli._commands import cli

API = TokenBucket("partner-api", "2/minute", burst=2)
TOKENS = TokenBucket("tokens", "600/minute", burst=100, cost=50)
SLOW = TokenBucket("slow", "1/hour", burst=1)


@pytest.fixture
def waker(limiter: Limiter) -> Iterator[Waker[str]]:
    waker = held(limiter)
    yield waker
    waker.close()


def _run(*arguments: str) -> str:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "170"}).stdout


def _top(url: str, name: str) -> Any:
    rows = json.loads(_run("top", "--url", url, "--once", "--json"))["limits"]
    return next(row for row in rows if row["limit"] == name)


def _explain(url: str, job: str) -> Any:
    return json.loads(_run("explain", job, "--url", url, "--json"))


def _report(limiter: Limiter) -> None:
    limiter.fleet.activity.report()  # type: ignore[union-attr]


def test_held_jobs_and_redelivered_jobs_are_counted_together(
    redis_url: str, limiter: Limiter, waker: Waker[str]
) -> None:
    """
    Some adapters hold jobs, and others let the framework redeliver them. `top` counts all, and shows when the last one
    starts.
    """
    for number in range(5):
        limiter.acquire(API, job=Job(id=f"old-{number}"))
    for number in range(6):
        ask(limiter, waker, API, job=Job(id=f"job-{number}"))
    _report(limiter)
    row = _top(redis_url, "partner-api")
    assert (row["waiting_jobs"], row["waiting_units"], row["owners"]) == (3 + 6, 3 + 6, 2)
    assert 240 < row["last_starts_in_seconds"] <= 270, "the ninth unit from now on"
    assert row["last_minute"]["denied"] == {"exhausted": 9}
    assert "~9" in _run("top", "--url", redis_url, "--once")


def test_units_of_jobs_on_a_waitlist_are_counted(redis_url: str, limiter: Limiter, waker: Waker[str]) -> None:
    """Ten jobs of 50 units each wait, at 600 units a minute: 500 units, and the last job starts in 50 s."""
    for number in range(12):
        ask(limiter, waker, TOKENS, job=Job(id=f"job-{number}"))
    _report(limiter)
    row = _top(redis_url, "tokens")
    assert (row["waiting_jobs"], row["waiting_units"]) == (10, 500)
    assert 40 < row["last_starts_in_seconds"] <= 50
    last = _explain(redis_url, "job-11")
    assert last["jobs_before"] == 9
    assert 40 < last["starts_at"] - last["now"] <= 50


def test_the_wait_of_the_first_job_is_shown_without_new_requests(
    redis_url: str, limiter: Limiter, waker: Waker[str]
) -> None:
    """A job on a waitlist requests once, and can then wait for an hour. `oldest` shows how long it has waited."""
    for number in range(3):
        ask(limiter, waker, SLOW, job=Job(id=f"job-{number}"))
    _report(limiter)
    first = wait_until(
        lambda: [row for row in [_top(redis_url, "slow")] if row["oldest_wait_seconds"] > 1],
        description="a second has passed",
    )[0]
    assert first["last_minute"]["longest_wait_seconds"] == 0
    now = time_of(wiring_of(limiter).stores.shared)
    assert _explain(redis_url, "job-1")["since"] == pytest.approx(now - first["oldest_wait_seconds"], abs=5)


def test_a_waitlist_is_shown_after_its_estimated_end(limiter: Limiter, waker: Waker[str]) -> None:
    """If the estimate was wrong and no job requests in the meantime, the key is shown as long as jobs wait."""
    for number in range(3):
        ask(limiter, waker, API, job=Job(id=f"job-{number}"))
    limiter.acquire(SLOW)
    limiter.acquire(SLOW, job=Job(id="old"))
    _report(limiter)
    store = wiring_of(limiter).stores.shared
    later = time_of(store) + 600
    name = bucket_name("partner-api", "", API.fingerprint)
    assert pressing_names(store, "l", 10, later) == [bucket_name("slow", "", SLOW.fingerprint), name]
    waker.leave("job-2", [each.claim for each in limiter.claims(Call([API], Job(id="any")))])
    assert pressing_names(store, "l", 10, later) == [bucket_name("slow", "", SLOW.fingerprint)]


def test_explain_names_the_position_of_a_job(redis_url: str, limiter: Limiter, waker: Waker[str]) -> None:
    """`explain` shows the number of jobs before it, its denials, and its estimated start."""
    for number in range(6):
        ask(limiter, waker, API, job=Job(id=f"job-{number}"))
    _report(limiter)
    shown = _run("explain", "job-4", "--url", redis_url)
    for words in (
        "limit 'partner-api'",
        "deferred       once, the last time ",
        ": exhausted",
        "its turn       in about 1 m ",
        "before it      2 of the 4 that wait",
        "2 of 2 used",
    ):
        assert words in shown
    ask(limiter, waker, API, job=Job(id="job-4"))
    _report(limiter)
    assert "deferred       twice" in _run("explain", "job-4", "--url", redis_url)


def test_explain_finds_a_job_whose_denial_was_not_reported(redis_url: str, limiter: Limiter, waker: Waker[str]) -> None:
    """
    A process reports at most 100 jobs a second, and a job on a waitlist may not request again. The waitlist has it
    anyway.
    """
    for number in range(250):
        ask(limiter, waker, SLOW, job=Job(id=f"job-{number}"))
    keyed = TokenBucket("keyed", "1/hour", burst=1, key="{account}")
    for number in range(2):
        ask(limiter, waker, keyed, job=Job(id=f"keyed-{number}", kwargs={"account": "ann"}))
    _report(limiter)
    # On a busy machine the requests take more than a second, so the last jobs may be in a second report.
    number, shown = next(
        (number, found)
        for number in range(249, 100, -1)
        if (found := _explain(redis_url, f"job-{number}"))["decided_at"] is None
    )
    assert (shown["limit"], shown["jobs_before"], shown["deferrals"]) == ("slow", number - 1, 1)
    assert "deferred       once: exhausted" in _run("explain", f"job-{number}", "--url", redis_url)
    assert _explain(redis_url, "keyed-1")["jobs_before"] == 0


def test_explain_says_that_a_job_was_woken(redis_url: str, limiter: Limiter) -> None:
    """
    `explain` shows that a job was woken, its units are reserved, and it has not requested again: its worker has no free
    thread, or it is on its way.
    """
    woken = TokenBucket("woken", "20/s", burst=1)
    waker: Waker[str] = limiter.make_waker(lambda: 1, lambda id, item: None)
    with contextlib.closing(waker):
        for number in range(2):
            ask(limiter, waker, woken, job=Job(id=f"job-{number}"))
        _report(limiter)
        shown = wait_until(
            lambda: [text for text in [_run("explain", "job-1", "--url", redis_url)] if "being sent" in text],
            description="the job is woken",
        )[0]
    assert re.search("its turn       now: it is being sent to a worker, or waits for a free one", shown)
    assert _top(redis_url, "woken")["waiting_jobs"] == 1


def test_explain_says_that_the_worker_of_a_job_is_gone(redis_url: str, limiter: Limiter) -> None:
    """A killed worker does not respond any more, so jobs of other workers start before its own."""
    slots = Concurrency("slots", 1)
    dead, alive = held(limiter), held(limiter)
    holding = limiter.acquire(slots)
    ask(limiter, dead, slots, job=Job(id="job-0"))
    ask(limiter, alive, slots, job=Job(id="job-1"))
    _report(limiter)
    assert _explain(redis_url, "job-0")["owner_answers"] is True
    dead.close()
    limiter.release(holding)
    shown = wait_until(
        lambda: [each for each in [_explain(redis_url, "job-0")] if not each["owner_answers"]],
        description="the store has found that the worker does not listen",
    )[0]
    assert shown["owner"] == dead.owner
    assert "its worker     does not respond" in _run("explain", "job-0", "--url", redis_url)
    alive.close()


def test_a_pause_and_a_slowdown_of_a_waitlist_are_shown(redis_url: str, limiter: Limiter, waker: Waker[str]) -> None:
    """The remaining time of a pause by `limiter.pause` is shown. `explain` gives it as the reason."""
    for number in range(2):
        ask(limiter, waker, SLOW, job=Job(id=f"job-{number}"))
    limiter.pause(SLOW, 7200)
    ask(limiter, waker, SLOW, job=Job(id="job-2"))
    _report(limiter)
    row = _top(redis_url, "slow")
    assert 7100 < row["paused_for_seconds"] <= 7200
    assert row["last_starts_in_seconds"] > 7100
    shown = _explain(redis_url, "job-2")
    assert (shown["reason"], shown["jobs_before"]) == ("paused", 1)


def test_a_job_that_ran_is_not_shown_as_waiting(redis_url: str, limiter: Limiter, waker: Waker[str]) -> None:
    """After its grant, `explain` shows how long it had waited, and how often it was deferred."""
    fast = TokenBucket("fast", "20/s", burst=1)
    for number in range(2):
        ask(limiter, waker, fast, job=Job(id=f"job-{number}"))
    wait_until(lambda: ask(limiter, waker, fast, job=Job(id="job-1")).allowed, description="its unit is available")
    _report(limiter)
    assert "no longer waits" in _run("explain", "job-1", "--url", redis_url)
    assert _top(redis_url, "fast")["waiting_jobs"] == 0

"""`@throttled`: whose jobs it holds, what it leaves alone, and what it refuses at once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest
from rq.job import JobStatus

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_rq import throttled

pytestmark = QUIET

CAREFUL = TokenBucket("careful", "1/hour", burst=1)


def loudly(function: Any) -> Any:
    """A decorator of the user's own."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f"LOUD {function(*args, **kwargs)}"

    return wrapper


@loudly
@throttled(CAREFUL)
def under_another(what: str = "ran") -> str:
    return jobs.plain(what)


@throttled(CAREFUL)
@loudly
def over_another(what: str = "ran") -> str:
    return jobs.plain(what)


def test_a_direct_call_just_runs() -> None:
    """Outside of a job no store is asked: no limiter is needed."""
    ran: list[int] = []

    @throttled(TokenBucket("unused", "1/hour"))
    def function(n: int, *, twice: bool = False) -> int:
        """What it does."""
        ran.append(n)
        return 2 * n if twice else n

    assert [function(1), function(2, twice=True)] == [1, 4]
    assert ran == [1, 2]
    assert (function.__name__, function.__doc__) == ("function", "What it does.")
    assert list(inspect.signature(function).parameters) == ["n", "twice"]


@pytest.mark.parametrize("name", ["start", "function", "args", "kwargs"])
def test_an_argument_may_have_any_name(name: str) -> None:
    """The wrapper has no argument that could be meant in place of the function's."""
    spelled: dict[str, Any] = {}
    exec(f"def function({name}): return {name}", spelled)
    assert throttled(TokenBucket("unused", "1/hour"))(spelled["function"])(**{name: 3}) == 3


def test_an_async_function_stays_one() -> None:
    @throttled(TokenBucket("unused", "1/hour"))
    async def function() -> str:
        return "awaited"

    assert inspect.iscoroutinefunction(function)
    assert asyncio.run(function()) == "awaited"


def test_a_throttled_function_in_the_body_of_another_job_just_runs(rq_site: Site) -> None:
    """A limit holds jobs of the function, not calls of it."""
    site = rq_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.calls_hourly, "inner")
    site.work()
    assert site.noted == ["inner"]
    assert site.fetch(job).return_value() == "result of inner"


def test_a_decorator_above_it_is_refused_before_it_loses_a_job(simple_site: Site) -> None:
    """It would return the denial as a result: a stock worker fails the job with advice; ours asks before the call."""
    site = simple_site
    job = site.queue.enqueue(under_another)
    site.work()
    if site.ours:
        assert site.fetch(job).return_value() == "LOUD result of ran"
    else:
        result = site.fetch(job).latest_result()
        assert site.fetch(job).get_status() == JobStatus.FAILED
        assert "write @throttled above it" in str(result and result.exc_string)


def test_a_decorator_below_it_is_part_of_the_function(simple_site: Site) -> None:
    site = simple_site
    site.shut(CAREFUL)
    job = site.queue.enqueue(over_another)
    site.work()
    assert site.fetch(job).get_status() == JobStatus.SCHEDULED
    site.open(CAREFUL)
    site.work()
    assert site.fetch(job).return_value() == "LOUD result of ran"


def test_its_limiter_goes_before_all_others(stock_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limiter of the decorator decides, whatever the worker was configured with."""
    own = Limiter()

    @throttled(CAREFUL, limiter=own)
    def function() -> str:
        return jobs.plain("own")

    function.__qualname__ = "own_limiter"
    monkeypatch.setattr(jobs, "own_limiter", function, raising=False)
    function.__module__ = "support.rq.jobs"
    stock_site.shut(CAREFUL)
    stock_site.queue.enqueue("support.rq.jobs.own_limiter")
    stock_site.work()
    assert stock_site.noted == ["own"]
    assert not own.peek(CAREFUL).allowed


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: throttled(), "@throttled\\(partner\\)"),
        (lambda: throttled(jobs.plain), "@throttled\\(partner\\)"),
        (lambda: throttled("10/s"), "takes a limit"),
        (lambda: throttled(CAREFUL, CAREFUL), "named twice"),
        (lambda: throttled(CAREFUL, limiter="redis://geheim"), "limiter"),
        (lambda: throttled(jobs.KEYED)(jobs.fails), "account"),
    ],
    ids=["none", "bare", "text", "twice", "limiter", "key"],
)
def test_what_can_never_work_is_refused_where_it_is_written(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_a_name_with_two_definitions_shows_where_it_is_written() -> None:
    limiter = Limiter()
    throttled(CAREFUL, limiter=limiter)
    with pytest.raises(ConfigurationError, match="two limits"):
        throttled(TokenBucket("careful", "2/hour"), limiter=limiter)

"""`@throttled`: which jobs it limits, what it does not change, and what it refuses at once."""

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


def user_decorator(function: Any) -> Any:
    """A decorator of a user."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f"LOUD {function(*args, **kwargs)}"

    return wrapper


@user_decorator
@throttled(CAREFUL)
def under_another(what: str = "ran") -> str:
    return jobs.plain(what)


@throttled(CAREFUL)
@user_decorator
def over_another(what: str = "ran") -> str:
    return jobs.plain(what)


def test_a_direct_call_makes_no_request() -> None:
    """Outside a job no decision is made, so no limiter is needed."""
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
def test_an_argument_can_have_any_name(name: str) -> None:
    """No argument of the wrapper can be confused with one of the function."""
    spelled: dict[str, Any] = {}
    exec(f"def function({name}): return {name}", spelled)
    assert throttled(TokenBucket("unused", "1/hour"))(spelled["function"])(**{name: 3}) == 3


def test_an_async_function_stays_async() -> None:
    """An async function with the decorator is still a coroutine function, and returns its value."""

    @throttled(TokenBucket("unused", "1/hour"))
    async def function() -> str:
        return "awaited"

    assert inspect.iscoroutinefunction(function)
    assert asyncio.run(function()) == "awaited"


def test_a_throttled_function_called_in_another_job_makes_no_request(rq_site: Site) -> None:
    """A limit applies to jobs of the function, not to calls of it."""
    rq_site.shut(jobs.HOURLY)
    job = rq_site.queue.enqueue(jobs.calls_hourly, "inner")
    rq_site.work()
    assert rq_site.noted == ["inner"]
    assert rq_site.fetch(job).return_value() == "result of inner"


def test_a_decorator_above_throttled_is_refused(simple_site: Site) -> None:
    """
    A decorator above @throttled would return the denial as a result. A stock worker fails the job and names the remedy.
    Throttlekit's worker decides before the call.
    """
    job = simple_site.queue.enqueue(under_another)
    simple_site.work()
    if simple_site.ours:
        assert simple_site.fetch(job).return_value() == "LOUD result of ran"
    else:
        result = simple_site.fetch(job).latest_result()
        assert simple_site.fetch(job).get_status() == JobStatus.FAILED
        assert "write @throttled above it" in str(result and result.exc_string)


def test_a_decorator_below_throttled_is_part_of_the_function(simple_site: Site) -> None:
    """
    A decorator below @throttled applies to the body only: a denied job waits, and its run returns the decorated result.
    """
    simple_site.shut(CAREFUL)
    job = simple_site.queue.enqueue(over_another)
    simple_site.work()
    assert simple_site.fetch(job).get_status() == JobStatus.SCHEDULED
    simple_site.open_and_work(CAREFUL)
    assert simple_site.fetch(job).return_value() == "LOUD result of ran"


def test_the_limiter_of_the_decorator_overrides_all_others(stock_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("make", "message"),
    [
        (lambda: throttled(), "@throttled\\(partner\\)"),
        (lambda: throttled(jobs.plain), "@throttled\\(partner\\)"),
        (lambda: throttled(CAREFUL, limiter="redis://geheim"), "limiter"),
        (lambda: throttled(jobs.KEYED)(jobs.fails), "account"),
    ],
    ids=["none", "bare", "limiter", "key"],
)
def test_an_argument_that_can_never_work_is_refused_at_the_declaration(make: Any, message: str) -> None:
    """An invalid argument of the decorator, or a key that the function cannot fill, raises where it is written."""
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_name_with_two_definitions_is_refused_at_the_declaration() -> None:
    """With one limiter, a second definition of a name raises at the decorator."""
    limiter = Limiter()
    throttled(CAREFUL, limiter=limiter)
    with pytest.raises(ConfigurationError, match="two limits"):
        throttled(TokenBucket("careful", "2/hour"), limiter=limiter)

"""The jobs of RQ's tests, which record what happened in a list of their queue's Redis."""

from __future__ import annotations

from typing import Any

from rq import Retry, get_current_job
from rq.job import JobStatus

from support.waiting import wait_until
from throttlekit import Concurrency, RateLimited, TokenBucket, current
from throttlekit_rq import ThrottledQueue, throttled

HOURLY = TokenBucket("hourly", "1/hour", burst=1)
KEYED = TokenBucket("keyed", "1/hour", burst=1, key="{account}")
TOKENS = TokenBucket("tokens", "100/hour", burst=100, cost=lambda job: job.kwargs["most"])
LIVELY = TokenBucket("lively", "20/s", burst=5)
DAILY = TokenBucket("daily", "1000/day", burst=1000)
SLOT = Concurrency("slot", 1, lease=60)


def note(what: Any) -> None:
    """Record *what*."""
    job: Any = get_current_job()
    job.connection.rpush("noted", str(what))


def plain(what: Any = "ran", **more: Any) -> str:
    note(what)
    return f"result of {what}"


async def plain_async(what: Any = "ran") -> str:
    note(what)
    return f"result of {what}"


@throttled(HOURLY)
def hourly(what: Any = "ran") -> str:
    return plain(what)


@throttled(HOURLY)
async def hourly_async(what: Any = "ran") -> str:
    return await plain_async(what)


@throttled(KEYED)
def keyed(account: str, what: Any = "ran") -> str:
    return plain(what)


@throttled(LIVELY)
def lively(what: Any = "ran") -> str:
    return plain(what)


def notes_slots() -> None:
    """Record of which limits the job holds a slot."""
    decision = current().decision
    note([each.limit.name for each in decision.leases] if decision is not None else None)


def ran_for(*, account: str, number: int) -> None:
    note(f"{account} {number}")


def refused_for(*, account: str, number: int) -> None:
    """Raise a 429 of an hour for the key."""
    raise RateLimited(3600, limit="keyed")


def settles(*, most: int, actual: int) -> None:
    current().settle(actual)


def until_released() -> None:
    """Run until the test sets the key "told"."""
    note("begun")
    job: Any = get_current_job()
    wait_until(lambda: job.connection.exists("told"), description="the test has set the key")


def settles_before_another(*, most: int, actual: int) -> None:
    """Settle after another job of the limit was denied in another worker."""
    job: Any = get_current_job()
    queue = ThrottledQueue("work", connection=job.connection)
    another = queue.enqueue(settles, kwargs={"most": most, "actual": actual}, throttle=[TOKENS], job_id="another")
    wait_until(lambda: another.get_status() == JobStatus.SCHEDULED, description="the other job is denied")
    current().settle(actual)


@throttled(TOKENS)
async def settles_async(*, most: int, actual: int) -> None:
    current().settle(actual)


def calls_hourly(what: Any) -> str:
    """A job without limits whose body calls a function with a limit."""
    return hourly(what)


def fails(what: Any = "failed") -> None:
    note(what)
    raise RuntimeError("raised by the test")


def receives_429(what: Any = "called", times: int = 1) -> str:
    """Call a partner that answers the first *times* calls with a 429 of ten minutes."""
    note(what)
    job: Any = get_current_job()
    if job.connection.incr(f"heard:{job.id}") <= times:
        raise RateLimited(600)
    return f"result of {what}"


async def receives_429_async(what: Any = "called") -> str:
    return receives_429(what)


@throttled(DAILY, SLOT, on_429=SLOT)
def receives_429_of_slot(what: Any = "called") -> str:
    return receives_429(what)


def comes_again(what: Any, most: int) -> Any:
    """Return `Retry` to run again, until the job has run again *most* times."""
    job: Any = get_current_job()
    note(what)
    return "done" if (job.number_of_retries or 0) >= most else Retry(max=most)


def succeeded(job: Any, connection: Any, result: Any) -> None:
    connection.rpush("noted", f"success of {job.id}: {result}")


def failed(job: Any, connection: Any, kind: type, error: BaseException, trace: Any) -> None:
    connection.rpush("noted", f"failure of {job.id}: {kind.__name__}")


class Account:
    """A class whose methods are jobs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pay(self, amount: int) -> str:
        return plain(f"{self.name} pays {amount}")

    @throttled(HOURLY)
    def owe(self, amount: int) -> str:
        return plain(f"{self.name} owes {amount}")

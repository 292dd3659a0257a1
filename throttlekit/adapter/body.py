"""Begin and end the body of a job: set the value of `throttlekit.current()`, and hold the job's leases."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from throttlekit._core.decision import Charged, Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._core.serialize import load_in_force, plain
from throttlekit._core.storage_keys import is_bucket_of
from throttlekit._engine.running import NOTHING, RUNNING, Running, current
from throttlekit.errors import ConfigurationError
from throttlekit.limiter import Limiter

__all__ = [
    "begin",
    "begin_from_receipt",
    "decision_from_receipt",
    "end",
    "end_async",
    "receipt",
    "resume",
    "running",
]

_MOST_REMEMBERED = 256
_texts: dict[int, tuple[Limit, str]] = {}  # by id; each entry keeps its limit alive, so its id is not reused


def begin(limiter: Limiter, decision: Decision, job: Job | None = None) -> None:
    """Begin, in this thread, the body that *decision* admitted. Its leases are renewed from now on."""
    _begin(Running(limiter, decision, job=job), starts=True)


def begin_from_receipt(
    limiter: Limiter, receipt: Mapping[str, Any], job: Job | None = None, *, starts: bool = True
) -> None:
    """
    Like `begin`, for a decision of another process, which wrote the *receipt*.

    Args:
        starts: Whether the body starts now. Otherwise the adapter calls `current().start()` when the body starts.

    Raises:
        ConfigurationError: *receipt* has slots and is not valid. A receipt without slots is read only when it is used.
    """
    if any(each.get("holder") for each in receipt["charged"]):
        running = Running(limiter, decision_from_receipt(receipt), job=job)
    else:
        running = Running(limiter, job=job, read=partial(decision_from_receipt, receipt))
    _begin(running, starts=starts)


def _begin(running: Running, *, starts: bool) -> None:
    outer = RUNNING.get()
    RUNNING.set(running)
    try:
        running.begin(starts=starts)
    except BaseException:
        RUNNING.set(outer)
        raise


def end(error: BaseException | None = None) -> None:
    """
    End the body, which raised *error* if that is not None, and release its leases.

    Does nothing if no body runs, so several hooks of a framework may call it.
    """
    try:
        current().end(error)  # first, so that an interrupt after it does not leave a lease that is renewed forever
    finally:
        RUNNING.set(NOTHING)


async def end_async(limiter: Limiter, error: BaseException | None = None) -> None:
    """Like `end`, in an event loop, which the store never blocks. It completes even if the caller is cancelled."""
    running = current()
    RUNNING.set(NOTHING)
    if running.decision is not None and running.decision.leases:
        await limiter.threads.run_to_end(partial(running.end, error))
    else:
        running.end(error)


def resume(running: Running) -> None:
    """Make *running* the current body again, after a job that ran inside it, in its thread, has ended."""
    RUNNING.set(running)


@contextmanager
def running(limiter: Limiter, decision: Decision, job: Job | None = None) -> Generator[Running, None, None]:
    """
    Call `begin` and `end` around a body, for adapters that call the body themselves. Yield the `Running` of the job.

    If the body runs inside the body of another job, that job stays the current one.
    """
    inner, error = Running(limiter, decision, job=job), None
    token = RUNNING.set(inner) if current().decision is None else None
    try:
        inner.begin()
        yield inner
    except BaseException as raised:
        error = raised
        raise
    finally:
        if token is not None:
            RUNNING.set(NOTHING)
        inner.end(error)


def receipt(decision: Decision) -> dict[str, Any]:
    """Return the parts of *decision* that the body needs, as JSON data, for a body that runs in another process."""
    charged = [
        {
            "limit": _text_of(each.limit),
            "bucket": each.bucket,
            "cost": each.cost,
            "at": each.at_us,
            "measured": each.measured,
            **({"holder": each.holder} if each.holder else {}),
        }
        for each in decision.charged
    ]
    if not decision.deferrals:
        return {"charged": charged}
    return {"charged": charged, "waited": [decision.waited, decision.deferrals, decision.waited_for]}


def _text_of(limit: Limit) -> str:
    """Return *limit* as JSON. Cached: most jobs share a few limits, and one text is cheap to send to a pool."""
    found = _texts.get(id(limit))
    if found is None:
        if len(_texts) >= _MOST_REMEMBERED:
            _texts.clear()
        found = _texts[id(limit)] = limit, json.dumps(plain(limit, "", 0))
    return found[1]


def decision_from_receipt(receipt: Mapping[str, Any]) -> Decision:
    """
    Return the decision of *receipt*, with the parts that `settle` and `release` need.

    Raises:
        ConfigurationError: *receipt* was not written by the function `receipt`.
    """
    try:
        charged = tuple(_read_charge(each) for each in receipt["charged"])
        waited, deferrals, waited_for = receipt.get("waited", (0.0, 0, ""))
        if not (type(waited) is float and 0 <= waited < math.inf and type(deferrals) is int and deferrals >= 0):
            raise TypeError("waited")
        first = charged[0]
        return Decision(
            allowed=True,
            limit=first.limit,
            key="",
            cost=first.cost,
            reason="allowed",
            charged=charged,
            waited=waited,
            deferrals=deferrals,
            waited_for=str(waited_for),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigurationError(f"a job's receipt is not one that throttlekit wrote: {safe_repr(error)}") from None


def _read_charge(data: Mapping[str, Any]) -> Charged:
    try:
        written = json.loads(data["limit"])
    except (ValueError, RecursionError):
        raise TypeError("limit") from None
    limit, bucket, cost, at_us = load_in_force(written), data["bucket"], data["cost"], data["at"]
    if not isinstance(bucket, str) or (bucket and not is_bucket_of(bucket, limit.fingerprint)):
        raise TypeError("bucket")
    if type(cost) is not int or type(at_us) is not int or min(cost, at_us) < 0:
        raise TypeError("cost, at")
    holder = data.get("holder", "")
    if not isinstance(holder, str):
        raise TypeError("holder")
    return Charged(limit, bucket, cost, at_us, bool(data["measured"]), holder)

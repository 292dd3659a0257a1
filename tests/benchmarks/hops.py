"""
The way of one denied job through the code: calls, files, and steps from one file to another.

    python tests/benchmarks/hops.py

Traces one denial by a token bucket in memory: `Limiter.acquire` alone, and a Dramatiq message from
`before_process_message` to `before_ack`. A step is a call from a function in one file to a function in another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import SkipMessage

from throttlekit import Job, Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

LIMIT = TokenBucket("partner", "1/hour", burst=1)


def way_of(act: Callable[[], object]) -> str:
    """What *act* calls in throttlekit, as a row of text."""
    calls, files, hops = 0, set[str](), 0

    def of_ours(frame: FrameType | None) -> str:
        name = "" if frame is None else frame.f_code.co_filename
        return name if "/throttlekit" in name else ""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls, hops
        file = of_ours(frame)
        if event != "call" or not file:
            return
        calls += 1
        files.add(file)
        caller = of_ours(frame.f_back)
        hops += bool(caller) and caller != file

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return f"{calls} calls, {len(files)} files, {hops} steps from file to file"


def limiter_alone() -> str:
    limiter = Limiter()
    jobs = [Job(id=str(number), name="call", args=(number,)) for number in range(4)]
    decisions = [limiter.acquire(LIMIT, job=job) for job in jobs[:3]]  # the last ones find all that is remembered
    assert [decision.allowed for decision in decisions] == [True, False, False]
    return way_of(lambda: limiter.acquire(LIMIT, job=jobs[3]))


def dramatiq_message() -> str:
    broker: Any = StubBroker(middleware=[])
    throttle = Throttle(Limiter())
    broker.add_middleware(throttle)
    actor: Any = dramatiq.actor(lambda number: None, actor_name="call", broker=broker, throttle=[LIMIT])
    throttle.before_worker_boot(broker, dramatiq.Worker(broker))

    def deny() -> None:
        message = dramatiq.broker.MessageProxy(actor.message(1))
        with suppress(SkipMessage):
            throttle.before_process_message(broker, message)
            raise AssertionError("it was not denied")
        throttle.after_skip_message(broker, message)
        throttle.before_ack(broker, message)

    throttle.limiter.acquire(LIMIT)
    deny()
    return way_of(deny)


if __name__ == "__main__":
    print(f"Limiter.acquire, denied, in memory:  {limiter_alone()}")
    print(f"A Dramatiq message, denied:          {dramatiq_message()}")

"""
What one decision costs its caller: by way, as a ratio to redis-py's own `incr`; with tasks that ask at once; and what a
job pays in each framework's worker that names no limit. Prints three tables.

    python tests/benchmarks/client_path.py [--rounds 41] [--calls 200] [--redis redis://host:port]

The ways are shuffled within each round, and a ratio is the median of the rounds' own, so a machine that is busy makes
the spread wider and not the ratios wrong. Time is told twice: by the clock, and as this process's CPU alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import dramatiq
import redis
from dramatiq import MessageProxy
from dramatiq.brokers.stub import StubBroker

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.reports.command import parser_of
from support.servers.processes import redis_server
from throttlekit import AsyncLimiter, Job, Limiter, TokenBucket
from throttlekit.adapter.options import WaitRules
from throttlekit_celery._admission import Admission
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._worker import Settings
from throttlekit_dramatiq import Throttle
from throttlekit_rq._options import options_of

Took = dict[str, list[tuple[float, float]]]

FAST = {"rate": "900000/s", "burst": 900_000}
ONE, TWO, THREE = (TokenBucket(f"partner-{number}", **FAST) for number in (1, 2, 3))
KEYED = TokenBucket("account", **FAST, key="{account_id}")
EMPTY = TokenBucket("empty", "1/d", burst=1)
JOB = Job(id="0a1b2c3d-1", name="call_partner", queue="default", kwargs={"account_id": 42})


def ways(client: Any, limiter: Limiter) -> dict[str, Callable[[], object]]:
    """What is measured, by name; the first is what the others are told in."""
    return {
        "redis-py: client.incr": lambda: client.incr("counter"),
        "acquire, allowed": lambda: limiter.acquire(ONE),
        "acquire, denied": lambda: limiter.acquire(EMPTY),
        "acquire, for a job": lambda: limiter.acquire(ONE, job=JOB),
        "acquire, for a job, key from its arguments": lambda: limiter.acquire(KEYED, job=JOB),
        "acquire, key given": lambda: limiter.acquire(KEYED, key="42"),
        "acquire, two limits": lambda: limiter.acquire(ONE, TWO),
        "acquire, three limits": lambda: limiter.acquire(ONE, TWO, THREE),
    }


def measure(each: dict[str, Callable[[], object]], rounds: int, calls: int) -> Took:
    """Seconds of a call by the clock and of CPU, by way and round."""
    took: Took = {name: [] for name in each}
    for _ in range(rounds + 1):
        for name in random.sample(list(each), len(each)):
            way, began, cpu = each[name], time.perf_counter(), time.process_time()
            for _ in range(calls):
                way()
            took[name].append(((time.perf_counter() - began) / calls, (time.process_time() - cpu) / calls))
    return {name: seconds[1:] for name, seconds in took.items()}  # the first round is for warming up


def table(took: Took, told_in: str = "") -> list[str]:
    """Each way in terms of *told_in*, or of the first."""
    plain = took[told_in or next(iter(took))]
    lines = [
        "| one call | × clock | quarter to quarter | × CPU | quarter to quarter | CPU µs |",
        "|---|---|---|---|---|---|",
    ]
    for name, seconds in took.items():
        told = [name]
        for kind in (0, 1):
            ratios = [mine[kind] / its[kind] for mine, its in zip(seconds, plain, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            told += [f"{middle:.2f}", f"{low:.2f}-{high:.2f}"]
        lines.append(f"| {' | '.join(told)} | {statistics.median(cpu for _, cpu in seconds) * 1e6:.1f} |")
    return lines


ASKERS = 64


def at_once(limiter: Limiter, together: AsyncLimiter) -> dict[str, Callable[[asyncio.AbstractEventLoop], object]]:
    """Tasks that ask: each on its own in a thread, or through one `AsyncLimiter`; `ASKERS` decisions a call."""

    async def in_threads() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[loop.run_in_executor(None, limiter.acquire, ONE) for _ in range(ASKERS)])

    async def one_by_one() -> None:
        for _ in range(ASKERS):
            await together.acquire(ONE)

    async def all_together() -> None:
        await asyncio.gather(*[together.acquire(ONE) for _ in range(ASKERS)])

    return {
        f"one task, {ASKERS} after the other": lambda loop: loop.run_until_complete(one_by_one()),
        f"{ASKERS} tasks, each in a thread": lambda loop: loop.run_until_complete(in_threads()),
        f"{ASKERS} tasks, AsyncLimiter": lambda loop: loop.run_until_complete(all_together()),
    }


def without_limits(limiter: Limiter) -> dict[str, Callable[[], object]]:
    """What each adapter does in the worker with a job that names no limit."""
    broker = StubBroker(middleware=[])
    middleware = Throttle(limiter)
    broker.add_middleware(middleware)
    actor = dramatiq.actor(_body, broker=broker)
    middleware.before_worker_boot(broker, dramatiq.Worker(broker))
    message = MessageProxy(actor.message())

    def of_dramatiq() -> None:
        middleware.before_process_message(broker, message)
        middleware.after_process_message(broker, message)
        middleware.before_ack(broker, message)

    app = celery.Celery("bench", broker="memory://")
    app.conf.task_always_eager = False
    task = app.task(_body, name="bench.body")
    admission = Admission(
        app, limiter, TaskLimits(limiter, None), Settings(rules=WaitRules(), max_hold=None, max_held=1)
    )
    sender, request = _Thing(app=app), _Thing(request_dict={}, task=task)
    job: Any = SimpleNamespace(func=_body, func_name="body", instance=None)
    return {
        "a call of an empty function": _body,
        "Dramatiq: three hooks of a message": of_dramatiq,
        "Celery: one signal of a task": lambda: admission.receive(sender, request),
        "RQ: one look at a job": lambda: options_of(job),
    }


def _body() -> None: ...


class _Thing(SimpleNamespace):
    """In place of an object of Celery's, to which weak references are made."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def main() -> None:
    options = parser_of(__doc__)
    options.add_argument("--rounds", type=int, default=41)
    options.add_argument("--calls", type=int, default=200)
    options.add_argument("--redis", help="URL of a server to ask, in place of one of its own")
    told = options.parse_args()
    with contextlib.ExitStack() as stack:
        url = told.redis or stack.enter_context(redis_server())
        client: Any = stack.enter_context(contextlib.closing(redis.Redis.from_url(url)))
        limiter = stack.enter_context(contextlib.closing(Limiter(url)))
        limiter.acquire(EMPTY)
        print("\n".join(table(measure(ways(client, limiter), told.rounds, told.calls))))
        loop = stack.enter_context(contextlib.closing(asyncio.new_event_loop()))
        together = AsyncLimiter(url)
        tasks = {name: partial(way, loop) for name, way in at_once(limiter, together).items()}
        print(f"\n{ASKERS} decisions a call:\n")
        print("\n".join(table(measure(tasks, told.rounds, 5))))
        loop.run_until_complete(together.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        print("\nA job that names no limit:\n")
        print("\n".join(table(measure(without_limits(limiter), told.rounds, 2000))))


if __name__ == "__main__":
    main()

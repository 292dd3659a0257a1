"""
What a shorter poll costs an idle Dramatiq worker, and how punctual it makes delayed messages.

    python tests/benchmarks/dramatiq_polling.py [--broker redis|rabbitmq|both] [--quick]

The adapter's poll interval was chosen by this table.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dramatiq
import redis
from rich.console import Console
from rich.table import Table

from support.dramatiq.workers import make_broker, workers
from support.reports.command import parser_of
from support.servers.processes import rabbitmq_server, redis_server
from support.waiting import wait_until

POLLS_MS = (1000, 200, 100, 50, 20, 10)


def idle_cost(broker_url: str | None, seconds: float) -> dict[int, float]:
    """CPU seconds a minute of one idle worker process, by poll; a Redis each, or all at *broker_url*."""
    with contextlib.ExitStack() as stack:
        running = {}
        for poll in POLLS_MS:
            record = stack.enter_context(redis_server())
            environment = _environment(broker_url or record, record, poll)
            running[poll] = stack.enter_context(workers("support.jobs.polling", environment, processes=1))
        wait_until(
            lambda: all("ready for action" in one.log() for one in running.values()),
            description="the workers are ready",
        )
        time.sleep(3)
        before = {poll: one.cpu_seconds() for poll, one in running.items()}
        began = time.monotonic()
        time.sleep(seconds)
        per_minute = 60 / (time.monotonic() - began)
        return {poll: (one.cpu_seconds() - before[poll]) * per_minute for poll, one in running.items()}


def lateness(broker_url: str | None, poll: int, jobs: int, seconds: float) -> tuple[list[float], list[float]]:
    """How late *jobs* delayed messages, due at random over *seconds*, are released and started, in ms, sorted."""
    with redis_server() as record:
        environment = _environment(broker_url or record, record, poll)
        client = redis.Redis.from_url(f"{record}/1")
        with workers("support.jobs.polling", environment, processes=1) as running:
            wait_until(lambda: "ready for action" in running.log(), description="the worker is ready")
            sender = make_broker(environment["TK_BROKER_URL"], middleware=[])
            queue = environment["TK_QUEUE"]
            sender.declare_queue(queue)
            for _ in range(jobs):
                message: dramatiq.Message[None] = dramatiq.Message(queue, "nothing", (), {}, {})
                sender.enqueue(message, delay=round(1000 * random.uniform(2, 2 + seconds)))
            wait_until(lambda: client.llen("late") >= jobs, description="all have run", timeout=seconds + 30, every=0.2)
        times = [json.loads(one) for one in client.lrange("late", 0, -1)]
        client.close()
    return sorted(1000 * t[0] for t in times), sorted(1000 * t[1] for t in times)


def _environment(broker_url: str, record: str, poll: int) -> dict[str, str]:
    return {
        "TK_BROKER_URL": broker_url,
        "TK_RECORD_URL": f"{record}/1",
        "TK_POLL_MS": str(poll),
        "TK_QUEUE": f"polled{poll}x{random.randrange(10**6)}",
    }


def _spread(times: Sequence[float]) -> str:
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return f"{sum(times) / len(times):.0f} / {p50:.0f} / {p99:.0f} / {times[-1]:.0f}"


def main() -> None:
    parser = parser_of(__doc__, broker=True, quick="shorter, less exact")
    options = parser.parse_args()
    idle, jobs, spread = (15, 100, 8) if options.quick else (45, 300, 20)

    table = Table("broker", "poll ms", "idle CPU s/min", "release late ms", "start late ms", title="mean/p50/p99/max")
    for kind in ("redis", "rabbitmq") if options.broker == "both" else (options.broker,):
        with rabbitmq_server() if kind == "rabbitmq" else contextlib.nullcontext(None) as url:
            cost = idle_cost(url, idle)
            print(kind, "idle CPU s/min:", {poll: round(c, 2) for poll, c in cost.items()}, file=sys.stderr, flush=True)
            for poll in POLLS_MS:
                released, started = lateness(url, poll, jobs, spread)
                table.add_row(kind, str(poll), f"{cost[poll]:.2f}", _spread(released), _spread(started))
                print(kind, poll, _spread(released), "|", _spread(started), file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()

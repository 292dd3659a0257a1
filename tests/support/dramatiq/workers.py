"""Real `dramatiq` worker processes, started by the command line, observed through /proc, and always stopped."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dramatiq import Middleware

from support.faults.processes import Command

__all__ = ["Counts", "dramatiq_command", "make_broker", "workers"]


def dramatiq_command(module: str, *, processes: int, threads: int) -> list[str]:
    return [sys.executable, "-m", "dramatiq", module, "-p", str(processes), "-t", str(threads)]


def workers(
    module: str, environment: Mapping[str, str], *, processes: int = 2, threads: int = 4
) -> contextlib.closing[Command]:
    """Run the actors of *module* in a command. When its block ends, every process has ended."""
    return contextlib.closing(Command(dramatiq_command(module, processes=processes, threads=threads), environment))


class Counts(Middleware):
    """
    Counts the messages between worker and broker, for any limiter. The counts are recorded when the worker stops
    cleanly.
    """

    def __init__(self, record: Callable[[str, float], object]) -> None:
        self._record, self._lock = record, threading.Lock()
        self._counts: Counter[str] = Counter()
        self._boot_cpu = 0.0

    def add(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def before_process_message(self, broker: Any, message: Any) -> None:
        self.add("deliveries")  # to a worker's thread

    def after_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.add("operations")

    def after_ack(self, broker: Any, message: Any) -> None:
        self.add("operations")

    def after_nack(self, broker: Any, message: Any) -> None:
        self.add("operations")

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        self._boot_cpu = time.process_time()

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        for name, count in self._counts.items():
            self._record(name, count)
        self._record("cpu", time.process_time() - self._boot_cpu)


def make_broker(url: str, **options: Any) -> Any:
    """The RedisBroker or RabbitmqBroker for *url*. Their constructors are untyped, so this is too."""
    factory: Any
    if url.startswith("redis"):
        from dramatiq.brokers.redis import RedisBroker

        factory = RedisBroker
    else:
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        factory, options = RabbitmqBroker, {"confirm_delivery": True, **options}
    return factory(url=url, **options)

"""Real `dramatiq` worker processes: started by the command line, watched through /proc, stopped for certain."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from support.faults.processes import Command

__all__ = ["Workers", "make_broker", "workers"]


class Workers(Command):
    """One `dramatiq` command with its worker processes."""

    def __init__(self, module: str, environment: Mapping[str, str], *, processes: int, threads: int) -> None:
        super().__init__(self.command(module, processes=processes, threads=threads), environment)

    @staticmethod
    def command(module: str, *, processes: int, threads: int) -> list[str]:
        return [sys.executable, "-m", "dramatiq", module, "-p", str(processes), "-t", str(threads)]


@contextlib.contextmanager
def workers(module: str, environment: Mapping[str, str], *, processes: int = 2, threads: int = 4) -> Iterator[Workers]:
    """Run the actors of *module*; when the block ends every process is gone."""
    running = Workers(module, environment, processes=processes, threads=threads)
    try:
        yield running
    finally:
        running.close()


def make_broker(url: str, **options: Any) -> Any:
    """The RedisBroker or RabbitmqBroker for *url*. Their constructors are untyped, so this is too."""
    factory: Any
    if url.startswith("redis"):
        from dramatiq.brokers.redis import RedisBroker

        factory = RedisBroker
    else:
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        factory = RabbitmqBroker
    return factory(url=url, **options)

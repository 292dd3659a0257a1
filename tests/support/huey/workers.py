"""Real `huey_consumer` processes, each started by the command line."""

from __future__ import annotations

import sys

__all__ = ["WORKER_TYPES", "huey_consumer"]

WORKER_TYPES = ("thread", "process", "greenlet")

_GREEN = (
    "from gevent import monkey; monkey.patch_all(); from huey.bin.huey_consumer import consumer_main as main; main()"
)


def huey_consumer(path: str, *, kind: str = "thread", workers: int = 1) -> list[str]:
    """Return the command for a consumer of the huey at the dotted name *path*, with *workers* workers of *kind*."""
    start = ["-c", _GREEN] if kind == "greenlet" else ["-m", "huey.bin.huey_consumer"]
    return [sys.executable, *start, path, "--worker-type", kind, "--workers", str(workers)]

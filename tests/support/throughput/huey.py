"""What the consumers of `support.throughput.run` run."""

from __future__ import annotations

from typing import Any

from huey import RedisHuey

from support.throughput.run import LIMIT, WITHOUT_THROTTLEKIT, mark, settings
from throttlekit import Limiter
from throttlekit_huey import install

_told = settings()
queue: Any = RedisHuey(_told["queue"], url=_told["broker"])
if _told["variant"] not in WITHOUT_THROTTLEKIT:
    install(queue, Limiter(_told["store"]))
_options: Any = {"throttle": [LIMIT]} if _told["variant"] == "limit" else {}


@queue.task(**_options)
def job(index: int) -> None:
    """Nothing."""
    mark(index)

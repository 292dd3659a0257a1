"""What the `dramatiq` workers of `support.throughput.run` run."""

from __future__ import annotations

import dramatiq

from support.dramatiq.workers import make_broker
from support.throughput.run import LIMIT, WITHOUT_THROTTLEKIT, mark, settings
from throttlekit import Limiter
from throttlekit_dramatiq import Throttle

_told = settings()
broker = make_broker(_told["broker"])
dramatiq.set_broker(broker)
if _told["variant"] not in WITHOUT_THROTTLEKIT:
    broker.add_middleware(Throttle(Limiter(_told["store"])))
_options = {"throttle": [LIMIT]} if _told["variant"] == "limit" else {}


@dramatiq.actor(actor_name="job", queue_name=_told["queue"], **_options)
def job(index: int) -> None:
    """Nothing."""
    mark(index)

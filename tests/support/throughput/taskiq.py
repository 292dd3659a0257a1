"""What the `taskiq worker` of `support.throughput.run` runs."""

from __future__ import annotations

from support.taskiq.brokers import make_broker
from support.throughput.run import LIMIT, WITHOUT_THROTTLEKIT, mark, settings
from throttlekit import Limiter
from throttlekit_taskiq import Throttle

_told = settings()
broker = make_broker(
    "rabbitmq" if _told["broker"].startswith("amqp") else "stream", _told["broker"], None, _told["queue"]
)
if _told["variant"] not in WITHOUT_THROTTLEKIT:
    broker.add_middlewares(Throttle(Limiter(_told["store"])))
_options = {"throttle": [LIMIT]} if _told["variant"] == "limit" else {}


@broker.task("job", **_options)
async def job(index: int) -> None:
    """Nothing."""
    mark(index)

"""The jobs of `support.others.jobs` as tasks of huey."""

from __future__ import annotations

from huey import RedisHuey

from support.others.jobs import Fleet, body_of
from throttlekit_huey import install

__all__ = ["queue"]

_fleet = Fleet.read()
queue = RedisHuey(_fleet.queue, url=_fleet.broker_url, results=False)
install(queue, _fleet.limiter())
for _name, _limits in _fleet.jobs():
    queue.task(name=_name, throttle=_limits)(body_of(_fleet, _name))

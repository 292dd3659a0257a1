"""The jobs of `support.others.jobs` as actors."""

from __future__ import annotations

import dramatiq

from support.dramatiq.workers import make_broker
from support.others.jobs import Fleet, body_of
from throttlekit_dramatiq import Throttle

_fleet = Fleet.read()
broker = make_broker(_fleet.broker_url, **({} if _fleet.broker_url.startswith("redis") else {"confirm_delivery": True}))
broker.add_middleware(Throttle(_fleet.limiter()))
dramatiq.set_broker(broker)
for _name, _limits in _fleet.jobs():
    dramatiq.actor(body_of(_fleet, _name), actor_name=_name, queue_name=_fleet.queue, throttle=_limits)

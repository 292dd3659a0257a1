"""The jobs of `support.others.jobs` as tasks of taskiq. `form` is the kind of broker."""

from __future__ import annotations

from support.others.jobs import Fleet, body_of
from support.taskiq.brokers import make_broker
from throttlekit_taskiq import Throttle

__all__ = ["broker"]

_fleet = Fleet.read()
broker = make_broker(_fleet.form, _fleet.broker_url, None, _fleet.queue)  # type: ignore[arg-type]
broker.add_middlewares(Throttle(_fleet.limiter()))
for _name, _limits in _fleet.jobs():
    broker.task(_name, throttle=_limits)(body_of(_fleet, _name))

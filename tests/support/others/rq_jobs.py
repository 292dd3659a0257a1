"""The jobs of `support.others.jobs` as functions for RQ, and the settings of its workers."""

from __future__ import annotations

from support.others.jobs import Fleet, body_of
from throttlekit_rq import configure

_fleet = Fleet.read()
configure(_fleet.limiter())
globals().update({name: body_of(_fleet, name) for name, _ in _fleet.jobs()})

"""The jobs of `support.others.jobs` as tasks of Celery. `form` is "" or "quorum"."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals

from support.celery.site import conf_of
from support.others.jobs import Fleet, body_of
from throttlekit_celery import install

_fleet = Fleet.read()
app = Celery("others", broker=_fleet.broker_url)
_conf = {"accept_content": ["json"]}  # with pickle, Celery refuses to run as root
app.conf.update(conf_of({"queue": _fleet.queue, "quorum": _fleet.form == "quorum", "conf": _conf}))
install(app, _fleet.limiter())
for _name, _limits in _fleet.jobs():
    app.task(body_of(_fleet, _name), name=_name, throttle=_limits)


@signals.worker_ready.connect(weak=False)
def _ready(**_: Any) -> None:
    print("ready for action", flush=True)

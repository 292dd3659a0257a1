"""
A settings module whose processes die at chosen instants, once; $TK_DEADLY says at which.

"asking": a process that has asked, and was denied, dies before it can put the job back. "denied": it
dies when the job has been put back, before it has said that it is done. "popped": the worker dies when it
has taken a job, before it asks.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import redis

import throttlekit_rq._worker
from throttlekit import Decision, Limiter
from throttlekit_rq import configure

_WHEN, _STORE = os.environ["TK_DEADLY"], os.environ["TK_STORE"]


def _die() -> None:
    with redis.Redis.from_url(_STORE) as client:
        first = client.set("died", 1, nx=True)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


class _Deadly(Limiter):
    def acquire(self, *limits: Any, **options: Any) -> Decision:
        decision = super().acquire(*limits, **options)
        if not decision.allowed and _WHEN == "asking":
            _die()
        return decision


def _exit(code: int) -> None:
    """How a work-horse ends, whatever it did."""
    _die()
    _exit_as_it_is(code)


def _options_of(*args: Any) -> Any:
    _die()
    return _options_as_they_are(*args)


_options_as_they_are = throttlekit_rq._worker.options_of
if _WHEN == "popped":
    throttlekit_rq._worker.options_of = _options_of
_exit_as_it_is = os._exit
if _WHEN == "denied":
    os._exit = _exit  # type: ignore[assignment]
configure(_Deadly(_STORE))

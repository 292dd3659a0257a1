"""
The hooks of throttlekit: what a plugin may observe and configure. None can overturn a denial.

A plugin is any object with methods of these names, marked with `throttlekit.hookimpl`. Give it to
`Limiter(plugins=[…])`, or let an installed package name it under the entry point group "throttlekit".
"""

from __future__ import annotations

from dataclasses import dataclass

import pluggy

from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit.stores._base import Store

__all__ = ["PROJECT", "Deferred", "hookimpl", "hookspec", "throttlekit_deferred", "throttlekit_make_store"]

PROJECT = "throttlekit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class Deferred:
    """
    A job was denied and goes back to its framework.

    Attributes:
        deferrals: How often this job has been denied by now, this time included. To come back before
            its slot, and to be sent away for the rest, is not counted again.
        waited: Seconds since its first denial, by the store's clock.
    """

    job: Job
    decision: Decision
    deferrals: int
    waited: float


@hookspec(firstresult=True)
def throttlekit_make_store(url: str) -> Store | None:
    """
    Called once when a limiter is made from a URL, before anything else.

    Return a store for the URLs whose scheme is yours, None for all others. The first store wins;
    later plugins are asked first. What is not a store is a `ConfigurationError`.
    """


@hookspec
def throttlekit_deferred(event: Deferred) -> None:
    """
    Called after each denial of a job, before the job is handed back to its framework.

    In the worker's own thread: be quick. An exception is swallowed, and logged every 30 seconds at
    most; the other plugins are called all the same. It cannot be a wrapper.
    """

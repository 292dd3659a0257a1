"""
What the broker has parked. It is read by itself, by one thread at a time, and no other request waits for it: a broker
that does not answer delays nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from throttlekit import ConfigurationError, Control, StoreUnavailable
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit_cli.parks import ParkedJobs, asking, can_park, find_parked, open_broker
from throttlekit_web._changes import Plan, text_in
from throttlekit_web._http import Refused

__all__ = ["Parks"]

_FRESH_S = 5.0
_MAX_READINGS = 32
_MAX_LINES = 1_000
_MAX_ROWS = 200
_MAX_QUEUES = 10
_MAX_JOBS = 10
_MAX_SOUGHT = 100
_MAX_RELEASED = 1_000
_WITHIN = "No job passes its limit earlier by that: a worker that takes it holds it until it is due, or parks it again."
_NOTHING: Mapping[str, Any] = {"rows": [], "of": 0, "jobs": 0, "not_counted": 0, "error": None}


class Parks:
    """
    Args:
        store: The limits' store, as `throttlekit_cli.store.open_store` opens it.
        broker: The URL of the broker's Redis. None: the limits' store. Then nothing is shown where that has no parks,
            or may not be asked for them.

    Raises:
        ConfigurationError: *broker* is not a Redis that can have parked jobs.
    """

    def __init__(self, store: Any, broker: str | None) -> None:
        self._named = broker is not None
        self._broker = open_broker(broker) if broker is not None else store if can_park(store) else None
        self._found: Sequence[tuple[ParkedJobs, bool]] = ()
        self._not_counted, self._found_until = 0, 0.0
        self._readings: OrderedDict[str | None, tuple[float, Mapping[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")

    def answer(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        """
        What is parked, of all limits; or of the one that the query names, with its first jobs. Read every 5 s at most;
        while another thread reads, what was read before.
        """
        if self._broker is None:
            return _NOTHING
        limit = query.get("limit")
        if self._lock.acquire(blocking=False):
            try:
                self._renew(limit)
            finally:
                self._lock.release()
        known = self._readings.get(limit)
        return self._failed("the broker has not answered yet") if known is None else known[1]

    def plan(self, form: Mapping[str, Any]) -> Plan:
        """
        Check that the jobs that *form* names are parked: one of the first, or so many.

        Raises:
            Refused: They are not, a field is missing or wrong, or the broker does not answer.
        """
        by, name = text_in(form, "by", "your name, for the log"), text_in(form, "limit", "the name of a limit")
        prefix, most = text_in(form, "park", "the prefix of a park"), form.get("most", 0)
        id = None if "most" in form else text_in(form, "job", "the id of a job")
        if id is None and (type(most) is not int or not 1 <= most <= _MAX_RELEASED):
            raise Refused(400, f"most must be a whole number from 1 to {_MAX_RELEASED}")
        with self._asked() as client:
            every, _ = find_parked(client, _MAX_LINES)
            found = next((each for each in every if (each.limit, each.park.prefix) == (name, prefix)), None)
            if found is None or (id is not None and id not in [job.id for job in found.first(_MAX_SOUGHT)]):
                raise Refused(404, "this is not among the first jobs parked: `throttlekit release` finds any other")
        whose = f"limit {name!r}, parked in {found.park.framework} queue {found.park.queue!r}"
        what = f"job {id!r} of {whose}: it goes" if id is not None else f"the first {most} jobs of {whose}: they go"

        def run(_: Control) -> list[str]:
            with self._asked():
                count = found.release(most) if id is None else int(found.release_job(id, _MAX_SOUGHT))
            return [f"{name}: {count} released"] if count else []

        return Plan(f"Release {what} to the front of that queue. {_WITHIN}", by, run)

    def forget(self) -> None:
        """Read the broker anew at the next request: something was released."""
        with self._lock:
            self._readings.clear()
            self._found_until = 0.0

    def close(self) -> None:
        """Close the connections to a broker that was given as a URL."""
        if self._named and self._broker is not None:
            self._broker.close()

    @contextmanager
    def _asked(self) -> Generator[Any, None, None]:
        if self._broker is None:
            raise Refused(404, "this page knows no broker: start it with --broker, or broker=")
        try:
            with asking(self._broker) as client:
                yield client
        except (ConfigurationError, StoreUnavailable) as error:
            raise Refused(503, f"the broker does not answer: {error}") from None

    def _renew(self, limit: str | None) -> None:
        if time.monotonic() < self._readings.get(limit, (0.0, _NOTHING))[0]:
            return
        try:
            with self._asked() as client:
                if time.monotonic() >= self._found_until:
                    found, self._not_counted = find_parked(client, _MAX_LINES)
                    woken = {park: park.has_promoter() for park in {each.park for each in found}}
                    self._found = [(each, woken[each.park]) for each in found]
                    self._found_until = time.monotonic() + _FRESH_S
                data = self._read(limit)
        except Refused as error:
            data = self._failed(str(error))
        self._readings[limit] = (time.monotonic() + _FRESH_S, data)
        self._readings.move_to_end(limit)
        while len(self._readings) > _MAX_READINGS:
            self._readings.popitem(last=False)

    def _failed(self, text: str) -> Mapping[str, Any]:
        """An error of the limits' store is no news here: its other readings show it."""
        return {**_NOTHING, "error": text} if self._named else _NOTHING

    def _read(self, limit: str | None) -> Mapping[str, Any]:
        chosen = [each for each in self._found if limit in (None, each[0].limit)]
        rows = [
            {
                "limit": each.limit, "framework": each.park.framework, "queue": each.park.queue,
                "park": each.park.prefix, "jobs": each.jobs, "lines": len(each.lines), "woken": woken,
                "first": [] if limit is None else [
                    {"id": job.id, "function": job.function} for job in each.first(_MAX_JOBS)
                ],
            } for each, woken in chosen[: _MAX_ROWS if limit is None else _MAX_QUEUES]
        ]  # fmt: skip
        jobs = sum(each.jobs for each, _ in chosen)
        return {"rows": rows, "of": len(chosen), "jobs": jobs, "not_counted": self._not_counted, "error": None}

"""The last minutes of each limit, step by step: the store keeps less than two, so that this process adds them up."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.fleet.last_minute import Step

__all__ = ["MAX_STEPS", "History"]

MAX_STEPS = 45
"""Steps of 20 s that are kept: 15 minutes."""
_MAX_LIMITS = 1_000

_Row = list[float]


class History:
    """
    Steps by their number, each replaced by its later reading: a step that has ended is exact, whatever the number of
    readings. A step that was never read is missing. Of at most 1 000 limits, those that were read last.
    """

    def __init__(self) -> None:
        self._limits: OrderedDict[str, dict[int, _Row]] = OrderedDict()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")

    def add(self, steps: Mapping[str, Sequence[Step]], waiting: Mapping[str, int]) -> None:
        """
        Args:
            waiting: About how many jobs wait now: it is kept with the last step, where the highest counts.
        """
        with self._lock:
            for id, some in steps.items():
                kept = self._limits.setdefault(id, {})
                self._limits.move_to_end(id)
                for step in some:
                    paused = step.denied.get("paused", 0)
                    jobs = kept[step.number][-1] if step.number in kept else -1
                    if step is some[-1]:
                        jobs = max(jobs, waiting.get(id, -1))
                    denied = sum(step.denied.values()) - paused
                    used, wait = max(0, step.units + step.settled), round(step.longest_wait, 3)
                    kept[step.number] = [step.number, used, denied, paused, wait, jobs]
                for number in sorted(kept)[:-MAX_STEPS]:
                    del kept[number]
            while len(self._limits) > _MAX_LIMITS:
                self._limits.popitem(last=False)

    def since(self, id: str, first: int) -> list[_Row]:
        """The steps from *first* on: number, units, denied, paused, longest wait, waiting jobs (-1: not read)."""
        with self._lock:
            kept = self._limits.get(id, {})
            return [kept[number] for number in sorted(kept) if number >= first]

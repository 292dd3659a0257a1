"""
Real `rq worker` processes whose jobs hold slots of a concurrency limit, or call an angry partner.

    with redis_server() as base, RqSlotting(Slots(kinds=(OURS_SIMPLE,) * 16), base) as slotting:
        for n in range(200):
            slotting.work(n, 0.1)
        slotting.start()
        slotting.until_ended(200)
        held = slotting.stop()
"""

from __future__ import annotations

from typing import Any

import redis
from rq.registry import FailedJobRegistry

from support.flood.slot_record import Slots, Slotting
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import patient
from throttlekit_rq import ThrottledQueue

__all__ = ["RqSlotting", "Slots"]

_JOBS = "support.rq.slot_jobs"


class RqSlotting(Slotting):
    """
    Workers and their records, for tests that control them step by step. *base* is a separate Redis, and *store* another
    one for the limits.
    """

    ready = "*** Listening on"

    def __init__(self, slots: Slots, base: str, store: str | None = None) -> None:
        self._url, store_url = f"{base}/0", f"{store}/1" if store else patient(f"{base}/1")
        super().__init__(slots, base, store_url, self._url)
        self._redis: Any = redis.Redis.from_url(self._url)
        self.store: Any = redis.Redis.from_url(store_url)
        self.queue = ThrottledQueue(self.queue_name, connection=self._redis)

    def close(self) -> None:
        super().close()
        self._redis.close()
        self.store.close()

    def work(self, job: int | str, seconds: float, *, function: str = "work", **options: Any) -> Any:
        kwargs = {"index": str(job), "seconds": seconds}
        return self.queue.enqueue(f"{_JOBS}.{function}", throttle=[self.slots.slots], kwargs=kwargs, **options)

    def call(self, job: int | str, key: str = "one") -> Any:
        kwargs = {"index": str(job), "key": key}
        return self.queue.enqueue(f"{_JOBS}.call", throttle=[self.slots.partner], kwargs=kwargs)

    def start(self, *kinds: str) -> Fleet:
        """Start workers of *kinds*, by default the configured ones, and return them when they are ready."""
        kinds = kinds or tuple(self.slots.kinds)
        commands = [rq_worker(self._url, self.queue_name, kind=kind, options=["-c", _JOBS]) for kind in kinds]
        fleet = Fleet(commands, self._environment)
        self.wait_until_ready(fleet, len(kinds))
        return fleet

    def failed(self) -> int:
        return int(FailedJobRegistry(queue=self.queue).count)

    def left(self) -> int:
        left = self.queue.count + self.queue.scheduled_job_registry.count + self.failed()
        return int(left + len(self.queue.intermediate_queue.get_job_ids()) + self.queue.started_job_registry.count)

"""
Real `dramatiq` worker processes whose jobs hold slots of a concurrency limit, or call an angry partner.

    with servers("redis") as where, DramatiqSlotting(Slots(amount=10), where) as slotting:
        for n in range(200):
            slotting.work(n, 0.1)
        slotting.start()
        slotting.until_ended(200)
        held = slotting.stop()
"""

from __future__ import annotations

from support.dramatiq.workers import dramatiq_command
from support.faults.processes import Fleet
from support.flood.slot_record import Slots, Slotting
from support.servers.flood import Sender, Servers
from support.servers.processes import patient

__all__ = ["DramatiqSlotting", "Slots"]


class DramatiqSlotting(Slotting):
    """Workers and their records, for tests that control them step by step."""

    ready = "ready for action"

    def __init__(self, slots: Slots, where: Servers) -> None:
        store_url = slots.store_url or patient(f"{where.redis_base}/1")
        super().__init__(slots, where.redis_base, store_url, where.broker_url)
        self._sender = Sender(where, self.queue_name)
        self.heartbeats, self.expire, self.left = self._sender.heartbeats, self._sender.expire, self._sender.left

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._sender.close()

    def work(self, job: int | str, seconds: float | str) -> None:
        """Send a job that holds its slots for *seconds*. "600 2" means 600 s in the first run, and 2 s afterwards."""
        self._sender.send("work", str(job), str(seconds))

    def call(self, job: int | str, key: str = "one") -> None:
        self._sender.send("call", str(job), key)

    def start(self, *, processes: int | None = None, threads: int | None = None) -> Fleet:
        """Start another `dramatiq` command, and return it when it is ready."""
        count, threads = processes or self.slots.processes, threads or self.slots.threads
        command = dramatiq_command("support.dramatiq.slot_jobs", processes=count, threads=threads)
        return self.wait_until_ready(Fleet([command], self._environment), count)

"""Stores: where limits keep their state."""

from throttlekit._core.claim import StoreClaim
from throttlekit.stores.base import Correction, Lease, Request, Slowing, Store, Wait
from throttlekit.stores.memory_waitlists import WaitlistMemoryStore as MemoryStore

__all__ = ["Correction", "Lease", "MemoryStore", "Request", "Slowing", "Store", "StoreClaim", "Wait"]

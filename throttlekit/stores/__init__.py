"""Stores, which keep the state of limits."""

from throttlekit._core.claim import StoreClaim
from throttlekit.stores.base import Correction, Lease, Request, Slowing, Store
from throttlekit.stores.memory import MemoryStore as MemoryStore

__all__ = ["Correction", "Lease", "MemoryStore", "Request", "Slowing", "Store", "StoreClaim"]

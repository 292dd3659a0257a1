"""Stores: where limits keep their state."""

from throttlekit.stores.base import Correction, Lease, Request, Store, StoreClaim
from throttlekit.stores.memory import MemoryStore

__all__ = ["Correction", "Lease", "MemoryStore", "Request", "Store", "StoreClaim"]

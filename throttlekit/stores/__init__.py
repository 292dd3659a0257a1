"""Where limits keep their state."""

from throttlekit.stores._base import Claim, Correction, Lease, Request, Store
from throttlekit.stores.memory import MemoryStore

__all__ = ["Claim", "Correction", "Lease", "MemoryStore", "Request", "Store"]

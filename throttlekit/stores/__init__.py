"""Where limits keep their state."""

from throttlekit.stores._base import Claim, Request, Store
from throttlekit.stores.memory import MemoryStore

__all__ = ["Claim", "MemoryStore", "Request", "Store"]

"""Replace locks after a fork, because a lock that another thread held at the fork would stay locked in the child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

__all__ = ["renew_lock_after_fork"]

_owners: weakref.WeakKeyDictionary[object, tuple[str, Callable[[], object]]] = weakref.WeakKeyDictionary()


def renew_lock_after_fork(owner: object, attribute: str, make: Callable[[], object] = threading.Lock) -> None:
    """Set *attribute* of *owner* to `make()` in every forked child of this process. An owner has one such attribute."""
    _owners[owner] = (attribute, make)


def _renew() -> None:
    for owner, (attribute, make) in list(_owners.items()):
        setattr(owner, attribute, make())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

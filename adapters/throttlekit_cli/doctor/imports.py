"""What "module:name" names, imported as the frameworks' own commands do."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__all__ = ["CannotLook", "imported"]


class CannotLook(Exception):
    """What was to be looked at is not there. The message says why."""


def imported(where: str) -> tuple[str, Any]:
    """
    The module that *where* names, and what it names in there; None if it names only the module.

    Raises:
        CannotLook: It cannot be imported, or there is no such name.
    """
    name, _, attribute = where.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except Exception as error:
        raise CannotLook(f"{where!r} cannot be imported: {type(error).__name__}: {error}") from error
    return name, found if attribute else None

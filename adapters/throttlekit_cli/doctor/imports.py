"""Import "module:name" in the same way as the frameworks' own commands."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__all__ = ["ExaminationError", "import_target"]


class ExaminationError(Exception):
    """A broker, app, module or server that the operator named cannot be examined. The message says why."""


def import_target(where: str) -> tuple[str, Any]:
    """
    Import *where*, "module:name". Return the module's name and the object, which is None if only a module is named.

    Raises:
        ExaminationError: The module cannot be imported, or has no such name.
    """
    name, _, attribute = where.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except Exception as error:
        raise ExaminationError(f"{where!r} cannot be imported: {type(error).__name__}: {error}") from error
    return name, found if attribute else None

"""Which packages of an extra are missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

__all__ = ["missing"]

_INSTALL = "pip install 'throttlekit-jobs[demo]'"


def missing(packages: Sequence[str]) -> str | None:
    """One line that names which of *packages* are not installed and how to get them; None if all are."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"this needs {', '.join(absent)}: {_INSTALL}" if absent else None

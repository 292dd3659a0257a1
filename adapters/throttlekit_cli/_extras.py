"""Find the packages of an extra that are missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

__all__ = ["describe_missing"]


def describe_missing(packages: Sequence[str], extra: str = "cli") -> str | None:
    """Return one line with the missing *packages* and the *extra* that installs them, or None if none is missing."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"this needs {', '.join(absent)}: pip install 'throttlekit-jobs[{extra}]'" if absent else None

"""Ids for the parameters of tests."""

from __future__ import annotations

import re

__all__ = ["stable_repr"]


def stable_repr(value: object) -> str:
    """Return the value's repr without addresses, which is the same in every process that collects the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

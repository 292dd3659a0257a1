"""Names for the parameters of tests."""

from __future__ import annotations

import re

__all__ = ["told"]


def told(value: object) -> str:
    """The value's repr without addresses: the same in every process that collects the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

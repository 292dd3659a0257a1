"""The rights of an ACL user, read from the documentation."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["DOCS", "acl_rights"]

DOCS = Path(__file__).resolve().parents[2] / "docs"


def acl_rights() -> tuple[str, ...]:
    """Return the rights that docs/operations.md names, in the form of `ACL SETUSER`."""
    found = re.search(r"an ACL user with `([^`]+)`", (DOCS / "operations.md").read_text(encoding="utf-8"))
    assert found is not None
    return tuple(found[1].split())

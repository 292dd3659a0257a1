"""
The names under which a store keeps what it knows. The authority for their version.

Two different (name, key) pairs never share a stored name, and neither do two definitions of one
limit: each name ends in the definition's fingerprint, so that no state is read by rules that did not
write it. Everything of one pair carries one hash tag, so that a cluster keeps it together. The
leading `tk1` is the version of the stored state: a release that reads the state differently writes
`tk2` and leaves the old names to expire.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

__all__ = ["bucket_name", "line_name"]

_LONGEST = 120
_PLAIN = re.compile(r"[A-Za-z0-9_.@/+=-]*", re.ASCII)


def bucket_name(name: str, key: str, fingerprint: str) -> str:
    """Where the bucket of *key* under the limit called *name* is stored."""
    return f"tk1:{{{_quoted(name)}:{_quoted(key)}}}:{fingerprint}"


def line_name(name: str, key: str, fingerprint: str) -> str:
    """Where its waiting line is stored."""
    return f"{bucket_name(name, key, fingerprint)}:line"


def _quoted(text: str) -> str:
    if len(text) <= _LONGEST and _PLAIN.fullmatch(text):
        return text
    raw = text.encode("utf-8", "surrogatepass")
    quoted = quote(raw, safe="@/+=").replace("~", "%7E")
    if len(quoted) <= _LONGEST:
        return quoted
    return "~" + hashlib.blake2b(raw, digest_size=20).hexdigest()

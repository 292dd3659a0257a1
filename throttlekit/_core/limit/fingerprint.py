"""A short text for a limit's definition, used in the names of its keys."""

from __future__ import annotations

import hashlib

__all__ = ["fingerprint_of", "fingerprint_of_tier"]


def fingerprint_of(definition: str) -> str:
    return hashlib.blake2b(definition.encode(), digest_size=5).hexdigest()


def fingerprint_of_tier(fingerprint: str, tier: str) -> str:
    """Tiers are counted apart even if they have the same rate."""
    return fingerprint_of(f"{fingerprint} tier {tier!r}")

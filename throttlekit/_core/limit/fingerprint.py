"""A short text that stands for a limit's definition in the names of its keys."""

from __future__ import annotations

import hashlib

__all__ = ["fingerprint_of", "fingerprint_of_tier"]


def fingerprint_of(definition: str) -> str:
    return hashlib.blake2b(definition.encode(), digest_size=5).hexdigest()


def fingerprint_of_tier(fingerprint: str, tier: str) -> str:
    """Tiers of one rate are counted apart all the same."""
    return fingerprint_of(f"{fingerprint} tier {tier!r}")

"""Which known name a misspelt one probably means."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["similar_names", "spelling_hint"]


def similar_names(name: str, known: Iterable[str], *, most: int = 1, unknown: bool = True) -> list[str]:
    """
    At most *most* of the *known* names that are similar to *name*, the most similar first.

    Args:
        unknown: Whether *name* is certainly wrong. If not, only names with about one different letter are returned.
    """
    from difflib import get_close_matches  # costly to import, and only errors need it

    return get_close_matches(name, known, n=most, cutoff=0.6 if unknown else 0.85)


def spelling_hint(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown *name*: ": did you mean 'burst'?", or "" if no name is similar."""
    return "".join(f": did you mean {each!r}?" for each in similar_names(name, known))

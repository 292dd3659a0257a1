"""The Lua scripts of throttlekit: one verb a file, and before it one file for each algorithm that it needs."""

from functools import cache
from importlib.resources import files

__all__ = ["ALGORITHMS", "read"]

ALGORITHMS = {"t": "token_bucket", "f": "fixed_window", "s": "sliding_window", "l": "sliding_log", "c": "concurrency"}
"""The file of each algorithm, by its letter."""

# Read here and not when first needed: a child that was forked meanwhile would wait for the import system for ever.
_PARTS = {
    part: (files(__name__) / f"{part}.lua").read_text("utf-8")
    for part in ("common", *ALGORITHMS.values(), "acquire", "settle", "pause", "lease")
}


@cache
def read(verb: str, letters: frozenset[str] = frozenset(ALGORITHMS)) -> str:
    """The text of the script for *verb* on claims of the algorithms *letters*: less to run than one for all."""
    algorithms = [name for letter, name in ALGORITHMS.items() if letter in letters]
    return "\n".join(_PARTS[part] for part in ("common", *algorithms, verb))

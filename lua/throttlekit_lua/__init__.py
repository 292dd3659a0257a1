"""
Every Lua script of throttlekit.

`read` builds a script of a store from the common part, one file for each algorithm that the script needs, and one file
for the verb. The script of the verb `decide` also contains two fast paths, `one_record` and `at_once`: they handle most
grants. A script of an adapter is one file, and one of the fleet is two (`script`).
"""

from functools import cache
from importlib.resources import files

__all__ = ["ALGORITHMS", "read", "script"]

ALGORITHMS = {
    "t": "token_bucket",
    "f": "fixed_window",
    "s": "sliding_window",
    "l": "sliding_log",
    "c": "concurrency",
    "a": "latency",
}
"""The file of each algorithm, by its code. The file of `a` uses the functions of `c`, so it runs after it."""

_ONE_RECORD = frozenset("tfsl")
"""The algorithms whose state one_record.lua reads and writes."""

_WAITING = ("decide", "wait_look", "wait_forget", "wait_pause", "wait_slow", "wait_settle", "wait_return", "wait_where")
"""The verbs of waitlists that read claims."""

_ALONE = ("wait_clear", "wait_list")
"""Verbs of waitlists that read no claim."""

# Files are read at import: if a process forks during a later read, its child may wait for the import lock without end.
_PARTS = {
    path.name.removesuffix(".lua"): path.read_text("utf-8")
    for path in files(__name__).iterdir()
    if path.name.endswith(".lua")
}


def script(name: str) -> str:
    """Return the text of the script *name* of the fleet or of an adapter."""
    names = ("fleet_common", name) if name.startswith("fleet_") else (name,)
    return "\n".join(_PARTS[part] for part in names)


@cache
def read(verb: str, codes: frozenset[str] = frozenset(ALGORITHMS)) -> str:
    """Return the script of *verb* with only the algorithms *codes*: it runs faster than a script with all of them."""
    codes = codes | {"c"} if "a" in codes else codes
    algorithms = [name for code, name in ALGORITHMS.items() if code in codes]
    texts = [_PARTS[name] for name in algorithms]
    if verb in _WAITING:
        return _read_waiting(verb, texts, codes)
    if verb in _ALONE:
        return "\n".join(_PARTS[part] for part in ("clock", "common", "claims", verb))
    return "\n".join((*_head(codes), _PARTS["common"], *texts, _PARTS[verb]))


def _head(codes: frozenset[str]) -> list[str]:
    return [_PARTS[part] for part in ("clock", *(("ring",) if "l" in codes else ()))]


def _read_waiting(verb: str, algorithms: list[str], codes: frozenset[str]) -> str:
    """
    Wrap the parts in functions. Lua allows 200 local variables in each, creates nested functions faster, and calls a
    function with few variables faster. So everything after `one_record` is a function that only runs if needed.
    """
    first = [_PARTS[part] for part in ("claims", *(("at_once",) if verb == "decide" else ()))]
    names = ("slowdown", "waitlist", verb)
    rest = ("local function decide()", *(_PARTS[part] for part in names), "end", "return decide()")
    whole = (_PARTS["common"], "do", *algorithms, "end", *first, *rest)
    if verb == "decide" and codes <= _ONE_RECORD:
        whole = (_PARTS["one_record"], "local function in_full()", *whole, "end", "return in_full()")
    return "\n".join((*_head(codes), *whole))

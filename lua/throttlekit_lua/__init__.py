"""
Every Lua script of throttlekit.

A store's script is composed (`read`) of the common part, one file for each algorithm that it needs, and one file for
the verb. For `ask`, the fast paths of most grants are added, `one_record` and `at_once`. Each script of the fleet and
of adapters is one file (`script`).
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
"""The file of each algorithm, by its code. That of `a` builds on that of `c`, and comes after it."""

_ONE_RECORD = frozenset("tfsl")
"""The algorithms whose state one_record.lua reads and writes."""

_WAITING = {
    "decide": (),
    "wait_look": (),
    "wait_forget": (),
    "wait_pause": (),
    "wait_slow": ("slow_events",),
    "wait_settle": (),
    "wait_return": (),
    "wait_where": (),
}
"""The verbs of waitlists, and the parts that each of them needs besides waitlist.lua."""

_ALONE = ("wait_clear", "wait_list")
"""Verbs of waitlists that read no claim."""

# Read here and not when first needed: a child that was forked meanwhile would wait for the import system without end.
_PARTS = {
    part: (files(__name__) / f"{part}.lua").read_text("utf-8")
    for part in (
        "clock",
        "common",
        "ring",
        *ALGORITHMS.values(),
        "slowdown",
        "slow_events",
        "one_record",
        "at_once",
        "claims",
        "waitlist",
        *_WAITING,
        *_ALONE,
        "renew",
    )
}


def script(name: str) -> str:
    """Return the text of the script *name*, which is one file. Call it at import, as above."""
    return (files(__name__) / f"{name}.lua").read_text("utf-8")


@cache
def read(verb: str, codes: frozenset[str] = frozenset(ALGORITHMS)) -> str:
    """The text of the script for *verb* on claims of the algorithms *codes*: less to run than one for all."""
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
    Lua allows 200 local variables in a function, and a function that is made in another one is made sooner. A function
    of few variables is also called sooner: what comes after `one_record` is a function of its own.
    """
    first = [_PARTS[part] for part in ("claims", *(("at_once",) if verb == "decide" else ()))]
    names = ("slowdown", "waitlist", *_WAITING[verb], verb)
    rest = ("local function decide()", *(_PARTS[part] for part in names), "end", "return decide()")
    whole = (_PARTS["common"], "do", *algorithms, "end", *first, *rest)
    if verb == "decide" and codes <= _ONE_RECORD:
        whole = (_PARTS["one_record"], "local function in_full()", *whole, "end", "return in_full()")
    return "\n".join((*_head(codes), *whole))

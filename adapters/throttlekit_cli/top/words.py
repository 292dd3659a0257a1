"""How things are said: durations, definitions, and keys without what is in them."""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

from throttlekit import Limit
from throttlekit._core.storage_keys import bucket_name, parts_of
from throttlekit.fleet.rules import Rule

__all__ = ["definition", "key_shown", "lasting", "plainly", "rule_shown"]

_PERIODS = {1_000_000: "s", 60_000_000: "minute", 3_600_000_000: "hour", 86_400_000_000: "day"}


def plainly(text: str) -> str:
    """*text* without what a terminal would obey: names and keys are whatever somebody has put into them."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def lasting(seconds: float | None) -> str:
    """Seconds as a person reads them: 0.4 s, 42 s, 3 m 12 s, 2 h 05 m, 3 d 4 h. "" for None."""
    if seconds is None:
        return ""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def definition(limit: Limit) -> str:
    """What *limit* is: token-bucket 100/minute burst 20."""
    if limit.period_us:
        period = _PERIODS.get(limit.period_us) or f"{limit.period_us / 1_000_000:g} s"
        rate = f"{limit.amount}/{period}"
    else:
        rate = str(limit.amount)
    options = [f"{name} {getattr(limit, name):g}" if isinstance(getattr(limit, name), float)
               else f"{name} {getattr(limit, name)}"
               for name in limit.options if getattr(limit, name) is not None]  # fmt: skip
    tier = [] if limit.of_tier is None else [f"tier {limit.of_tier}"]
    return " ".join([limit.algorithm, rate, *options, *tier])


def key_shown(key: str, part: str | None, *, clear: bool) -> str:
    """
    A key on the screen: by its digest, or, where that is wanted, in *clear*.

    Args:
        part: What the limit's scope adds. It names a queue or a job's function, and is always shown.
    """
    told = "" if not key else unquote(key) if clear else "#" + hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
    return told if part is None else f"{unquote(part)} {told}".rstrip()


def rule_shown(rule: Rule, now: float, *, clear: bool) -> str:
    """What an operator has told the fleet."""
    part = ""
    if rule.part is not None:
        part = f" of tier {rule.part}" if rule.what == "set" else f" of key {_paused(rule.part, clear=clear)}"
    rate = f" to {rule.rate}" if rule.rate is not None else ""
    burst = f" burst {rule.burst}" if rule.burst is not None else ""
    left = f", for {lasting(rule.until_us / 1e6 - now)} yet" if rule.until_us else ""
    word = {"set": "set", "pause": "paused", "shadow": "shadow mode"}[rule.what]
    return f"{word}{part}{rate}{burst} by {rule.by}{left}"


def _paused(key: str, *, clear: bool) -> str:
    """As the key's own line shows it."""
    stored = parts_of(bucket_name("", key, "0"))
    return key if clear or stored is None else key_shown(stored[1], None, clear=False)

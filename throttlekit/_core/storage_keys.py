"""
The names of keys in a store. This file alone defines their version.

Two different (name, key) pairs never share a stored name, and neither do two definitions of one limit: each name ends
in the definition's fingerprint, so only the rules that wrote a state read it. (If live control sets a rate, the limit
uses the fingerprint of the declared one, if its algorithm can read the state of both: see `AlgorithmBase.adopt_rate`.)
All names of one pair have the same hash tag, so that a cluster stores them on one node. The prefix `tk1` is the version
of the stored state: a release that changes the format writes `tk2`, and the old keys expire.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

__all__ = [
    "bucket_name", "bucket_of", "digest_of", "digest_of_key", "fleet_name", "granted_name", "held_since",
    "holder_name", "is_bucket_of", "is_encodable", "is_waitlist", "is_workflow", "limit_id", "parts_of", "patterns_of",
    "quote", "slots_of_holder", "wait_names", "with_slots", "workflow_name",
]  # fmt: skip

_LONGEST_PART = 120  # characters of a quoted name or key; a longer one becomes a digest
_BUCKET = re.compile(r"tk1:\{([^:{}]*):([^:{}]*)(?::([^:{}]*))?\}:(\w+)", re.ASCII)
_SUFFIX = re.compile(r":(wait1|order1|entries1|tags1)$", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ASKED = re.compile(r"#([0-9a-f]{1,12})\.[0-9a-f]+(?:\*\d+)?$", re.ASCII)
_SLOTS = re.compile(r"\*(\d{1,15})$", re.ASCII)
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@/+=-"
_ESCAPES = {code: chr(code) if chr(code) in _PLAIN else f"%{code:02X}" for code in range(256)}  # all: a miss is slow


def bucket_name(name: str, key: str, fingerprint: str, part: str | None = None) -> str:
    """
    The stored name of the state of the limit called *name* for *key*.

    Args:
        part: The part that the limit's scope adds to the key. Definitions with different scopes have different
            fingerprints.
    """
    scoped = "" if part is None else f":{quote(part)}"
    return f"tk1:{{{_quote_name(name)}:{quote(key)}{scoped}}}:{fingerprint}"


def fleet_name(what: str) -> str:
    """The stored name of *what*, data of the fleet for all limits. Its hash tag has no colon, unlike that of limits."""
    return f"tk1:{{fleet}}:{what}"


def patterns_of(name: str, key: str | None = None) -> tuple[str, ...]:
    """Patterns for SCAN that match every stored name of the limit called *name*, for *key*; None: for all keys."""
    if key is None:
        return (f"tk1:{{{quote(name)}:*",)
    begin = f"tk1:{{{quote(name)}:{quote(key)}"
    return f"{begin}}}:*", f"{begin}:*"


def is_bucket_of(bucket: str, fingerprint: str) -> bool:
    """Whether *bucket* may be a name of a limit with this definition. Callers must not touch other names."""
    return bucket.startswith("tk1:{") and bucket.endswith(f"}}:{fingerprint}")


def limit_id(name: str, fingerprint: str) -> str:
    """The id of a definition of the limit called *name*, in all data of the fleet."""
    return f"{quote(name)}:{fingerprint}"


def parts_of(bucket: str) -> tuple[str, str, str | None] | None:
    """The `limit_id`, the key and the scope's part in *bucket*, quoted; None: *bucket* is another name."""
    match = _BUCKET.fullmatch(bucket)
    return None if match is None else (f"{match[1]}:{match[4]}", match[2], match[3])


def digest_of(stored: str) -> str:
    """Return the name of a *stored* key for people, without arguments of jobs, which a key may contain."""
    return f"#{hashlib.blake2b(stored.encode(), digest_size=4).hexdigest()}" if stored else ""


def digest_of_key(key: str) -> str:
    """Like `digest_of`, for a key as the limit's template or callable returns it."""
    return digest_of(quote(key))


def wait_names(bucket: str) -> tuple[str, str, str, str]:
    """The stored names of the waitlist of *bucket*: its record, the order, the entries, and the tags of tenants."""
    return f"{bucket}:wait1", f"{bucket}:order1", f"{bucket}:entries1", f"{bucket}:tags1"


def bucket_of(name: str) -> str:
    """The bucket that *name* belongs to: one of `wait_names`, or the bucket itself."""
    return _SUFFIX.sub("", name)


def is_waitlist(name: str) -> bool:
    """Whether *name* is the first of `wait_names`."""
    return name.endswith(":wait1")


def granted_name(bucket: str, job: str) -> str:
    """The stored name of a grant, which is kept for a while in case its reply is lost; on the node of *bucket*."""
    return f"{bucket}:granted1:{quote(job)}"


def holder_name(job_id: str, token: str, asked_us: int) -> str:
    """The holder of a slot: the job, a token of its delivery, and the time of its request, by its process's clock."""
    return f"{quote(job_id)}#{asked_us // 1_000_000:x}.{token}"


def workflow_name(value: str) -> str:
    """The holder of the slot that all jobs with this *value* of `held_by` share."""
    return f"{quote(value)}#"


def is_workflow(holder: str) -> bool:
    """Whether `workflow_name` made the name *holder*."""
    return holder.endswith("#")


def with_slots(holder: str, slots: int) -> str:
    """The name of *holder* with its number of *slots*. For one slot, the name does not change."""
    return holder if slots <= 1 or slots_of_holder(holder) == slots else f"{holder}*{slots}"


def slots_of_holder(holder: str) -> int:
    """How many slots the holder called *holder* has; no quoted text has a "*"."""
    match = _SLOTS.search(holder)
    return 1 if match is None else int(match[1])


def held_since(holder: str) -> int | None:
    """When the holder called *holder* made its request, in seconds since the epoch; None: the name has no time."""
    match = _ASKED.search(holder)
    return None if match is None else int(match[1], 16)


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode *text*. It cannot if the text has half of a surrogate pair, which JSON allows."""
    return text.isascii() or not _SURROGATE.search(text)


def quote(text: str) -> str:
    """*text* of users as a part of a stored name: special characters are escaped, and a long text becomes a digest."""
    signs = text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")  # one for each byte
    escaped = signs.translate(_ESCAPES)
    if len(escaped) <= _LONGEST_PART:
        return escaped
    return "~" + hashlib.blake2b(signs.encode("latin-1"), digest_size=20).hexdigest()


_quote_name = lru_cache(quote)
"""Only names of limits are cached: there are few of them, and many keys."""

"""
The names of keys in a store. This file alone defines their version.

Two different (name, key) pairs never share a stored name. Two definitions of one limit do not share a stored name
either: each name ends in the definition's fingerprint, so a state is read only by the definition that wrote it. (After
live control has set a rate, the limit uses the fingerprint of the declared limit, if its algorithm can convert the
state: see `Algorithm.adopt_rate`.) All names of one pair have the same hash tag, so that a cluster stores them on
one node. The prefix `tk1` is the version of the stored state: a release that changes the format writes `tk2`, and the
old keys expire.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

__all__ = [
    "bucket_name",
    "bucket_of",
    "digest_of",
    "digest_of_key",
    "fleet_name",
    "granted_name",
    "held_since",
    "holder_name",
    "is_bucket_of",
    "is_encodable",
    "is_waitlist",
    "is_workflow",
    "limit_id",
    "parts_of",
    "patterns_of",
    "quote",
    "slots_of_holder",
    "wait_names",
    "with_slots",
    "workflow_name",
]

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
    Return the stored name of the state of the limit called *name* for *key*.

    Args:
        part: The part that the limit's scope adds to the key. Definitions with different scopes have different
            fingerprints.
    """
    scoped = "" if part is None else f":{quote(part)}"
    return f"tk1:{{{_quote_name(name)}:{quote(key)}{scoped}}}:{fingerprint}"


def fleet_name(what: str) -> str:
    """Return the stored name of *what*, data of the fleet for all limits. Its hash tag has no colon; a limit's has."""
    return f"tk1:{{fleet}}:{what}"


def patterns_of(name: str, key: str | None = None) -> tuple[str, ...]:
    """Return patterns for SCAN that match every stored name of the limit called *name*, for *key* or for all keys."""
    if key is None:
        return (f"tk1:{{{quote(name)}:*",)
    begin = f"tk1:{{{quote(name)}:{quote(key)}"
    return f"{begin}}}:*", f"{begin}:*"


def is_bucket_of(bucket: str, fingerprint: str) -> bool:
    """Whether *bucket* may be a name of a limit with this definition. Callers must not touch other names."""
    return bucket.startswith("tk1:{") and bucket.endswith(f"}}:{fingerprint}")


def limit_id(name: str, fingerprint: str) -> str:
    """Return the id of a definition of the limit called *name*, for all data of the fleet."""
    return f"{quote(name)}:{fingerprint}"


def parts_of(bucket: str) -> tuple[str, str, str | None] | None:
    """Return the `limit_id`, the key and the scope's part in *bucket*, quoted, or None if *bucket* is another name."""
    match = _BUCKET.fullmatch(bucket)
    return None if match is None else (f"{match[1]}:{match[4]}", match[2], match[3])


def digest_of(stored: str) -> str:
    """Return a name of a *stored* key that can be shown: the key may contain arguments of jobs, the name does not."""
    return f"#{hashlib.blake2b(stored.encode(), digest_size=4).hexdigest()}" if stored else ""


def digest_of_key(key: str) -> str:
    """Return `digest_of` for a key as the limit's template or callable returns it."""
    return digest_of(quote(key))


def wait_names(bucket: str) -> tuple[str, str, str, str]:
    """Return the stored names of the waitlist of *bucket*: the record, order, entries, and tags of tenants."""
    return f"{bucket}:wait1", f"{bucket}:order1", f"{bucket}:entries1", f"{bucket}:tags1"


def bucket_of(name: str) -> str:
    """Return the bucket to which *name* belongs. *name* is one of `wait_names`, or the bucket itself."""
    return _SUFFIX.sub("", name)


def is_waitlist(name: str) -> bool:
    """Whether *name* is the first of `wait_names`."""
    return name.endswith(":wait1")


def granted_name(bucket: str, job: str) -> str:
    """Return the stored name, on the node of *bucket*, of a grant that is kept in case its reply is lost."""
    return f"{bucket}:granted1:{quote(job)}"


def holder_name(job_id: str, token: str, asked_us: int) -> str:
    """Return the name of a holder: the job, a token of its delivery, and the time of its request by the local clock."""
    return f"{quote(job_id)}#{asked_us // 1_000_000:x}.{token}"


def workflow_name(value: str) -> str:
    """Return the name of the holder for all jobs with this *value* of `held_by`, which share one slot."""
    return f"{quote(value)}#"


def is_workflow(holder: str) -> bool:
    """Whether `workflow_name` made the name *holder*."""
    return holder.endswith("#")


def with_slots(holder: str, slots: int) -> str:
    """Return the name *holder* with the number of its *slots*. For one slot, the name does not change."""
    return holder if slots <= 1 or slots_of_holder(holder) == slots else f"{holder}*{slots}"


def slots_of_holder(holder: str) -> int:
    """Return how many slots the holder called *holder* has. Quoted text contains no "*"."""
    match = _SLOTS.search(holder)
    return 1 if match is None else int(match[1])


def held_since(holder: str) -> int | None:
    """Return the time of the request in the name *holder*, in seconds since the epoch, or None if it has no time."""
    match = _ASKED.search(holder)
    return None if match is None else int(match[1], 16)


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode *text*. It cannot encode half of a surrogate pair, which JSON allows."""
    return text.isascii() or not _SURROGATE.search(text)


def quote(text: str) -> str:
    """Return *text* as a part of a stored name. Special characters are escaped, and a long text becomes a digest."""
    signs = text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")  # one for each byte
    escaped = signs.translate(_ESCAPES)
    if len(escaped) <= _LONGEST_PART:
        return escaped
    return "~" + hashlib.blake2b(signs.encode("latin-1"), digest_size=20).hexdigest()


_quote_name = lru_cache(quote)
"""Only names of limits are cached: there are few of them, and many keys."""

"""Encode a request for the server, and parse its reply. The parts that do not change between calls are cached."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import throttlekit_lua
from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.claim import StoreClaim
from throttlekit._core.latency import Drop
from throttlekit._core.line import Place
from throttlekit._core.slowdown import Fall
from throttlekit._core.storage_keys import jobs_name, line_name
from throttlekit._core.verdict import Caller, Reason, Verdict
from throttlekit.stores.base import Request, Slowing

__all__ = [
    "CACHED_CLAIMS", "REASONS", "Script", "UnusableReply", "arguments_of", "claims_arguments", "command", "encode",
    "encode_terms", "frame_of", "place_text", "rest_of", "script_for", "script_of", "slowing_row", "terms_of",
    "uses_of", "verdict_of",
]  # fmt: skip

REASONS = (Reason.ALLOWED, Reason.EXHAUSTED, Reason.IN_LINE, Reason.EARLY, Reason.FULL, Reason.PAUSED)
"""By the numbers that the scripts of decisions answer."""
CACHED_CLAIMS = 1024  # each takes about a kilobyte
_SECRET = os.urandom(8).hex()
_MINUS = ord("-")
_LINE, _JOBS = line_name("").encode(), jobs_name("").encode()


class UnusableReply(ValueError):
    """The script cannot have sent this reply."""


class Script(NamedTuple):
    """A script and its SHA-1, by which the server finds it."""

    text: str
    sha: str


@lru_cache
def script_for(verb: str, codes: frozenset[str], *, cluster: bool = False) -> Script:
    """The script for *verb* on claims of the algorithms with these *codes*, for a server or a node of a cluster."""
    text = throttlekit_lua.read(verb, codes, cluster=cluster)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_of(request: Request) -> Script:
    """The script that decides *request*."""
    return script_for("acquire", frozenset([claim.algorithm.code for claim in request.claims]))


def arguments_of(request: Request, now_us: int | None) -> list[Any]:
    """The arguments of that script: the number of its keys, the keys, the rest."""
    arguments: list[Any] = [3 * len(request.claims)]
    for claim in request.claims:
        arguments += claim.names
    arguments += _caller_arguments(request, now_us)
    for claim in request.claims:
        arguments += _claim_arguments(*terms_of(claim))
    return arguments


def frame_of(request: Request, now_us: int | None) -> bytes:
    """The whole command, encoded: EVALSHA, the script's SHA-1, and `arguments_of`."""
    if request.places or request.max_wait_us is not None or now_us is not None:
        caller = encode(_caller_arguments(request, now_us))
    else:
        caller = _encode_plain(request.caller, request.grace_us)
    keys, arguments = _encode_claims(*request.claims)
    return b"".join((keys, caller, arguments))


def claims_arguments(claims: Sequence[StoreClaim]) -> list[int | str]:
    """The arguments of a script that say what the claims are."""
    return [each for claim in claims for each in _claim_arguments(*terms_of(claim))]


def command(*arguments: str | bytes | int) -> bytes:
    """Encode any command."""
    return b"*%d\r\n" % len(arguments) + encode(arguments)


def verdict_of(reply: Any) -> Verdict:
    """
    Parse the reply of the script.

    Raises:
        UnusableReply: The script cannot have sent this.
    """
    try:
        if reply[0] != _MINUS:
            now_us, *used = map(int, reply.split())
            return Verdict(Reason.ALLOWED, 0, now_us, now_us, now_us, uses_of(used))
        numbers, _, given = reply.partition(b"|")
        reason, binding, now_us, retry_us, due_us, *used = map(int, numbers.split())
        places = tuple([_place(text) for text in given.decode("ascii").split(";")]) if given else ()
        return Verdict(REASONS[-reason], binding - 1, now_us, retry_us, due_us, uses_of(used), places)
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise UnusableReply(f"not a reply of the script: {reply!r}") from error


def uses_of(used: list[int]) -> tuple[Use, ...]:
    if len(used) == 2:
        return (Use(used[0], used[1]),)
    return tuple([Use(units, full) for units, full in zip(used[::2], used[1::2], strict=True)])


def rest_of(claim: StoreClaim) -> str:
    """What only a job that waits, or may have to, needs of its claim: see line.lua."""
    return _rest(*terms_of(claim))


def _rest(algorithm: Algorithm, cost: int, max_queue: int | None, tenant: str, step: int, lead: int) -> str:
    return f"{algorithm.mark} {cost} {step} {lead} {'' if max_queue is None else max_queue} {tenant}"


def slowing_row(slowing: Slowing) -> tuple[Any, ...]:
    """The arguments of one limit: see slow.lua."""
    algorithm, why = slowing.claim.algorithm, slowing.why
    if isinstance(why, Fall):
        event: tuple[Any, ...] = "fall", "" if why.granted_us is None else why.granted_us, why.span_us, why.floor
    elif isinstance(why, Drop):
        event = "drop", "" if why.granted_us is None else why.granted_us, "", ""
    else:
        event = "heard", why.remaining, why.reset_us, ""
    return algorithm.code, *algorithm.params, algorithm.mark, *event


def place_text(place: Place | None) -> str:
    """*place* as the scripts read it."""
    return "-" if place is None else f"{place.epoch} {place.start} {place.number} {place.due_us} {place.seal}"


def _place(text: str) -> Place | None:
    if text == "-":
        return None
    epoch, start, number, due_us, seal = text.split()
    return Place(int(epoch), int(start), int(number), int(due_us), seal)


def _caller_arguments(request: Request, now_us: int | None) -> tuple[Any, ...]:
    now, max_wait_us = "" if now_us is None else now_us, request.max_wait_us
    places = ";".join(map(place_text, request.places))
    wait = "" if max_wait_us is None else max_wait_us
    return now, request.caller.value, f"{request.grace_us} {_SECRET} {wait} {places}"


def terms_of(claim: StoreClaim) -> tuple[Any, ...]:
    """All of *claim* but the name under which it is counted."""
    return claim.algorithm, claim.cost, claim.max_queue, claim.tenant, claim.step, claim.lead


def _claim_arguments(algorithm: Algorithm, *terms: Any) -> tuple[int | str, ...]:
    a, b, c = algorithm.params
    return algorithm.size, a, f"{algorithm.code} {b};{c};{_rest(algorithm, *terms)}"


def encode(arguments: Iterable[str | bytes | int]) -> bytes:
    """Encode some words of a command."""
    frames = b""
    for each in arguments:
        text = each if isinstance(each, bytes) else str(each).encode()
        frames += b"$%d\r\n%b\r\n" % (len(text), text)
    return frames


@lru_cache(CACHED_CLAIMS)
def _encode_claims(*claims: StoreClaim) -> tuple[bytes, bytes]:
    """What stands before the caller's arguments, and what follows them."""
    if len(claims) == 1:
        claim = claims[0]
        return _head(claim.algorithm.code) + _encode_names(claim.bucket.encode()), encode_terms(*terms_of(claim))
    head = _head("".join([claim.algorithm.code for claim in claims]))
    names = [_encode_names(claim.bucket.encode()) for claim in claims]
    return b"".join((head, *names)), b"".join([encode_terms(*terms_of(claim)) for claim in claims])


def _encode_names(bucket: bytes) -> bytes:
    """`StoreClaim.names`."""
    size = len(bucket)
    line, jobs = size + len(_LINE), size + len(_JOBS)
    return b"$%d\r\n%b\r\n$%d\r\n%b%b\r\n$%d\r\n%b%b\r\n" % (size, bucket, line, bucket, _LINE, jobs, bucket, _JOBS)


@lru_cache(CACHED_CLAIMS)
def encode_terms(*terms: Any) -> bytes:
    """The arguments of a claim, which are the same for every key."""
    return encode(_claim_arguments(*terms))


@lru_cache
def _encode_plain(caller: Caller, grace_us: int) -> bytes:
    """The arguments of a caller that brings no place, and waits as long as it takes."""
    return encode(("", caller.value, f"{grace_us} {_SECRET}  "))


@lru_cache
def _head(codes: str) -> bytes:
    script, claims = script_for("acquire", frozenset(codes)), len(codes)
    return b"*%d\r\n" % (6 + 6 * claims) + encode(("EVALSHA", script.sha, 3 * claims))

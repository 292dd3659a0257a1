"""Encode a request for the server, and parse its reply. The parts that do not change between calls are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import throttlekit_lua
from throttlekit._core.acquire import ELSEWHERE, Caller, Reason, Verdict
from throttlekit._core.algorithm import Use
from throttlekit._core.claim import StoreClaim
from throttlekit.stores.base import Request

__all__ = ["Script", "arguments_of", "command", "frame_of", "script_for", "script_of", "verdict_of"]

_REASONS = (Reason.ALLOWED, Reason.EXHAUSTED, Reason.IN_LINE, Reason.EARLY, Reason.FULL, Reason.PAUSED)
_CACHED_CLAIMS = 1024  # each takes about a kilobyte
_GUEST, _JOB = Caller.GUEST, Caller.JOB


class Script(NamedTuple):
    """A script and its SHA-1, by which the server finds it."""

    text: str
    sha: str


@lru_cache
def script_for(verb: str, codes: frozenset[str]) -> Script:
    """The script for *verb* on claims of the algorithms with these *codes*."""
    text = throttlekit_lua.read(verb, codes)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_of(request: Request) -> Script:
    """The script that decides *request*."""
    return script_for("acquire", frozenset([claim.algorithm.code for claim in request.claims]))


def arguments_of(request: Request, now_us: int | None) -> list[Any]:
    """The arguments of that script: the number of its keys, the keys, the rest."""
    arguments: list[Any] = [2 * len(request.claims)]
    for claim in request.claims:
        arguments += _keys(claim)
    arguments += _caller_arguments(request, now_us)
    for claim in request.claims:
        arguments += _claim_arguments(claim)
    return arguments


def frame_of(request: Request, now_us: int | None) -> bytes:
    """The whole command, encoded: EVALSHA, the script's SHA-1, and `arguments_of`."""
    if request.place is None and request.max_wait_us is None and now_us is None and request.caller is not Caller.PEEK:
        caller = _PLAIN_JOB if request.caller is _JOB else _PLAIN_GUEST
    else:
        caller = _encode(_caller_arguments(request, now_us))
    claims = request.claims
    if len(claims) == 1:
        code, keys, arguments = _encode_claim(claims[0])
        return b"".join((_head(code, 1), keys, caller, arguments))
    encoded = [_encode_claim(claim) for claim in claims]
    head = _head("".join(sorted({code for code, _, _ in encoded})), len(claims))
    return b"".join((head, *[keys for _, keys, _ in encoded], caller, *[arguments for _, _, arguments in encoded]))


def command(*arguments: str | int) -> bytes:
    """Encode any command."""
    return b"*%d\r\n" % len(arguments) + _encode(arguments)


def verdict_of(reply: Any) -> Verdict:
    """
    Parse the reply of the script.

    Raises:
        ValueError: The script cannot have sent this.
    """
    try:
        reason, binding, now_us, retry_us, due_us, *used = map(int, reply.split())
        if len(used) == 2:
            uses: tuple[Use, ...] = (Use(*used),)
        else:
            uses = tuple(Use(units, full) for units, full in zip(used[::2], used[1::2], strict=True))
        return Verdict(_REASONS[reason], binding - 1, now_us, retry_us, due_us, uses)
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"not a reply of the script: {reply!r}") from error


def _keys(claim: StoreClaim) -> tuple[str, str]:
    return claim.bucket, claim.line


def _caller_arguments(request: Request, now_us: int | None) -> tuple[Any, ...]:
    place, max_wait_us = request.place, request.max_wait_us
    if place is None:
        number, due_us = 0, 0
    else:
        number, due_us = -1 if place.claim == ELSEWHERE else place.claim + 1, place.due_us
    now = "" if now_us is None else now_us
    return now, request.caller.value, number, due_us, "" if max_wait_us is None else max_wait_us


def _claim_arguments(claim: StoreClaim) -> tuple[Any, ...]:
    algorithm, queue_us = claim.algorithm, claim.max_queue_us
    return algorithm.code, algorithm.size, *algorithm.params, claim.spacing_us, "" if queue_us is None else queue_us


def _encode(arguments: Iterable[str | int]) -> bytes:
    texts = [str(each).encode() for each in arguments]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


@lru_cache(_CACHED_CLAIMS)
def _encode_claim(claim: StoreClaim) -> tuple[str, bytes, bytes]:
    return claim.algorithm.code, _encode(_keys(claim)), _encode(_claim_arguments(claim))


@lru_cache
def _head(codes: str, claims: int) -> bytes:
    script = script_for("acquire", frozenset(codes))
    count = 3 + 2 * claims + len(_PLAIN) + 7 * claims
    return b"*%d\r\n" % count + _encode(("EVALSHA", script.sha, 2 * claims))


_PLAIN: Sequence[str | int] = ("", _GUEST.value, 0, 0, "")
_PLAIN_GUEST = _encode(_PLAIN)
_PLAIN_JOB = _encode(("", _JOB.value, 0, 0, ""))

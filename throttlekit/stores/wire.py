"""A request as the server reads it, and its answer. What stays the same from call to call is written out once."""

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
_REMEMBERED = 1024  # claims; each takes about a kilobyte
_GUEST, _JOB = Caller.GUEST, Caller.JOB


class Script(NamedTuple):
    """A script, and the name that the server knows it by."""

    text: str
    sha: str


@lru_cache
def script_for(verb: str, letters: frozenset[str]) -> Script:
    """The script for *verb* on claims of the algorithms *letters*."""
    text = throttlekit_lua.read(verb, letters)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_of(request: Request) -> Script:
    """The script that decides *request*."""
    return script_for("acquire", frozenset([claim.algorithm.code for claim in request.claims]))


def arguments_of(request: Request, now_us: int | None) -> list[Any]:
    """What that script is run with, the number of its keys first."""
    arguments: list[Any] = [2 * len(request.claims)]
    for claim in request.claims:
        arguments += _names(claim)
    arguments += _asker(request, now_us)
    for claim in request.claims:
        arguments += _numbers(claim)
    return arguments


def frame_of(request: Request, now_us: int | None) -> bytes:
    """The same as one command: EVALSHA, the script's name, and `arguments_of`."""
    if request.place is None and request.max_wait_us is None and now_us is None and request.caller is not Caller.PEEK:
        asker = _PLAIN_JOB if request.caller is _JOB else _PLAIN_GUEST
    else:
        asker = _packed(_asker(request, now_us))
    claims = request.claims
    if len(claims) == 1:
        code, names, numbers = _packed_claim(claims[0])
        return b"".join((_head(code, 1), names, asker, numbers))
    packed = [_packed_claim(claim) for claim in claims]
    head = _head("".join(sorted({code for code, _, _ in packed})), len(claims))
    return b"".join((head, *[names for _, names, _ in packed], asker, *[numbers for _, _, numbers in packed]))


def command(*arguments: str | int) -> bytes:
    """Any command, as the server reads it."""
    return b"*%d\r\n" % len(arguments) + _packed(arguments)


def verdict_of(reply: Any) -> Verdict:
    """
    Read what the script answered.

    Raises:
        ValueError: It is not one of ours.
    """
    try:
        reason, binding, now, retry, slot, *used = map(int, reply.split())
        if len(used) == 2:
            uses: tuple[Use, ...] = (Use(*used),)
        else:
            uses = tuple(Use(units, full) for units, full in zip(used[::2], used[1::2], strict=True))
        return Verdict(_REASONS[reason], binding - 1, now, retry, slot, uses)
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"the script's reply is not one of ours: {reply!r}") from error


def _names(claim: StoreClaim) -> tuple[str, str]:
    return claim.bucket, claim.line


def _asker(request: Request, now_us: int | None) -> tuple[Any, ...]:
    place, patience = request.place, request.max_wait_us
    if place is None:
        number, due_us = 0, 0
    else:
        number, due_us = -1 if place.claim == ELSEWHERE else place.claim + 1, place.due_us
    now = "" if now_us is None else now_us
    return now, request.caller.value, number, due_us, "" if patience is None else patience


def _numbers(claim: StoreClaim) -> tuple[Any, ...]:
    algorithm, room = claim.algorithm, claim.max_queue_us
    return algorithm.code, algorithm.size, *algorithm.params, claim.spacing_us, "" if room is None else room


def _packed(arguments: Iterable[str | int]) -> bytes:
    texts = [str(each).encode() for each in arguments]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


@lru_cache(_REMEMBERED)
def _packed_claim(claim: StoreClaim) -> tuple[str, bytes, bytes]:
    return claim.algorithm.code, _packed(_names(claim)), _packed(_numbers(claim))


@lru_cache
def _head(letters: str, claims: int) -> bytes:
    script = script_for("acquire", frozenset(letters))
    count = 3 + 2 * claims + len(_PLAIN) + 7 * claims
    return b"*%d\r\n" % count + _packed(("EVALSHA", script.sha, 2 * claims))


_PLAIN: Sequence[str | int] = ("", _GUEST.value, 0, 0, "")
_PLAIN_GUEST = _packed(_PLAIN)
_PLAIN_JOB = _packed(("", _JOB.value, 0, 0, ""))

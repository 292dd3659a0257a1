"""Encode requests for the server, and parse the replies. The parts that do not change between calls are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import throttlekit_lua
from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.answer import WITHOUT_JOB, Answer, Kept, Look, Position, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import early_us_of
from throttlekit._core.latency import Drop
from throttlekit._core.slowdown import Refusal
from throttlekit._core.storage_keys import granted_name, wait_names
from throttlekit._core.wait_control import Charge, Waiting, Where
from throttlekit._core.waitlist import Place, State, Wake
from throttlekit.stores.base import Slowing

__all__ = [
    "PLACE",
    "STATES",
    "Script",
    "UnusableReply",
    "answer_of",
    "bell_of",
    "charge_arguments",
    "claims_arguments",
    "command",
    "decide_frame",
    "encode",
    "encode_text",
    "look_of",
    "requester_arguments",
    "script_for",
    "slowing_arguments",
    "wait_keys",
    "waiting_of",
    "where_of",
]

_CACHED_CLAIMS = 1024  # each takes about a kilobyte
_REASONS = (Reason.ALLOWED, Reason.EXHAUSTED, Reason.IN_LINE, Reason.FULL, Reason.PAUSED)
"""Reasons by the numbers that decide.lua returns."""
PLACE = 30
"""The length of a place in the texts of the scripts."""
_ENDS = [name.encode() for name in wait_names("")]
STATES = {b"o": State.WAITING, b"w": State.WOKEN, b"p": State.WOKEN, b"k": State.KEPT}


class UnusableReply(ValueError):
    """A reply that the script cannot have sent."""


class Script(NamedTuple):
    """A script and its SHA-1, by which the server finds it."""

    text: str
    sha: str


@lru_cache
def script_for(verb: str, codes: frozenset[str]) -> Script:
    """Return the script for *verb* on claims of the algorithms with these *codes*."""
    text = throttlekit_lua.read(verb, codes)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def claims_arguments(claims: Sequence[StoreClaim]) -> list[int | str]:
    """Return the arguments of a script for its claims."""
    return [each for claim in claims for each in _claim_arguments(*_terms_of(claim))]


def command(*arguments: str | bytes | int) -> bytes:
    """Encode any command."""
    return b"*%d\r\n" % len(arguments) + encode(arguments)


def encode(arguments: Iterable[str | bytes | int], errors: str = "strict") -> bytes:
    """Encode some words of a command."""
    frames = b""
    for each in arguments:
        text = each if isinstance(each, bytes) else str(each).encode("utf-8", errors)
        frames += b"$%d\r\n%b\r\n" % (len(text), text)
    return frames


def slowing_arguments(slowing: Slowing) -> tuple[Any, ...]:
    """Return the arguments of wait_slow.lua for one limit."""
    why = slowing.why
    if isinstance(why, Refusal):
        return "fall", "" if why.granted_us is None else why.granted_us, why.span_us, why.floor
    if isinstance(why, Drop):
        return "drop", "" if why.granted_us is None else why.granted_us, "", ""
    return "remaining", why.remaining, why.reset_us, ""


def wait_keys(claims: Sequence[StoreClaim]) -> list[str]:
    """Return the keys of a script on the waitlists of *claims*: for each, the bucket and its `wait_names`."""
    return [name for claim in claims for name in (claim.bucket, *wait_names(claim.bucket))]


def requester_arguments(
    claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, epoch: str, attempt: str
) -> list[str]:
    """Return the arguments of decide.lua that describe the caller. If *now_us* is None, the server's time is used."""
    now = [] if now_us is None else [str(now_us)]
    if requester is WITHOUT_JOB and not attempt:
        return now
    wait = "" if requester.max_wait_us is None else requester.max_wait_us
    who = f"{requester.waited.denials} {requester.caller.value} {requester.owner} {requester.free} {wait} {epoch}"
    return [*now, f"{who} {requester.waited.for_us} {early_us_of(claims, requester)} {attempt}", requester.job]


def encode_text(text: str) -> bytes:
    """Encode an id, or the name of an owner, for the scripts. JSON allows half of a surrogate pair in an id."""
    return text.encode("utf-8", "surrogatepass")


def decide_frame(
    claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, epoch: str, attempt: str
) -> bytes:
    """Return the whole command of a request, encoded: EVALSHA, the script's SHA-1, the keys and the arguments."""
    keys, terms = _encode_claims(*claims)
    codes = claims[0].algorithm.code if len(claims) == 1 else "".join([claim.algorithm.code for claim in claims])
    who = requester_arguments(claims, requester, now_us, epoch, attempt)
    head = _head(codes, bool(attempt), len(who))
    if attempt:
        who = [granted_name(claims[0].bucket, requester.job), *who]  # a key, and then the arguments
    return b"".join((head, keys, encode(who, "surrogatepass"), terms))


@lru_cache(_CACHED_CLAIMS)
def _encode_claims(*claims: StoreClaim) -> tuple[bytes, bytes]:
    """Encode the keys and the arguments of *claims*."""
    if len(claims) == 1:
        return _encode_names(claims[0].bucket.encode()), _encode_terms(*_terms_of(claims[0]))
    names = [_encode_names(claim.bucket.encode()) for claim in claims]
    return b"".join(names), b"".join([_encode_terms(*_terms_of(claim)) for claim in claims])


def _encode_names(bucket: bytes) -> bytes:
    """Encode the bucket and its `wait_names`."""
    size = len(bucket)
    frames = [b"$%d\r\n%b\r\n" % (size, bucket)]
    frames += [b"$%d\r\n%b%b\r\n" % (size + len(end), bucket, end) for end in _ENDS]
    return b"".join(frames)


@lru_cache
def _head(codes: str, has_attempt: bool, requester: int) -> bytes:
    script, keys = script_for("decide", frozenset(codes)), 5 * len(codes) + has_attempt
    return b"*%d\r\n" % (3 + keys + requester + 3 * len(codes)) + encode(("EVALSHA", script.sha, keys))


def answer_of(reply: Any) -> Answer:
    """
    Parse the reply of decide.lua.

    Raises:
        UnusableReply: The script cannot have sent this.
    """
    try:
        if type(reply) is bytes and reply.startswith(b"0 0 ") and reply.endswith(b";;;;"):  # most replies: a fast path
            instants, units = reply[4:-4].split(b";")
            now_us, retry_us = map(int, instants.split())
            return Answer(Reason.ALLOWED, 0, now_us, retry_us, _uses_of([*map(int, units.split())]))
        texts = cast("list[bytes]", reply if isinstance(reply, list) else [reply])
        head, ids = texts[0], texts[1:]
        words, used, kept, looks, waited, delays = [part.split() for part in head.split(b";")]
        reason, claim, now_us, retry_us = map(int, words)
        own = [Wake(_decode_text(id), int(delay)) for id, delay in zip(ids, delays[1::2], strict=True)]
        wakes = tuple(zip(map(int, delays[::2]), own, strict=True))
        asked = tuple(zip(map(int, looks[::2]), map(int, looks[1::2]), strict=True))
        granted = _REASONS[reason] is Reason.ALLOWED
        return Answer(
            _REASONS[reason],
            claim,
            now_us,
            retry_us,
            _uses_of([*map(int, used)]),
            None if granted else _kept(kept),
            wakes,
            asked,
            tuple(map(_position, kept)) if granted else (),
            waited=_parse_waited(waited),
        )
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise UnusableReply(f"not a reply of the script: {reply!r}") from error


def look_of(reply: Any) -> Look:
    """
    Parse the reply of wait_look.lua.

    Raises:
        UnusableReply: The script cannot have sent this.
    """
    try:
        first, *rest = reply
        head, delays, count = first.split(b";")
        owners, in_us, epoch = head.split(b" ")
        ids, delays = [_decode_text(id) for id in rest], [int(delay) for delay in delays.split()]
        woken = len(delays)
        if len(ids) != woken + int(count):
            raise ValueError("another number of ids")
        wakes = tuple(map(Wake, ids[:woken], delays))
        look_in_us = None if in_us == b"-" else int(in_us)
        return Look(epoch.decode("ascii"), wakes, tuple(ids[woken:]), int(owners), look_in_us)
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise UnusableReply(f"not a reply of the script: {reply!r}") from error


def charge_arguments(charge: Charge) -> tuple[Any, ...]:
    """Return the arguments of wait_return.lua for one claim."""
    place = "-" if charge.place is None else _place_text(charge.place)
    granted, turn = ("-" if each is None else each for each in (charge.granted_us, charge.turn_us))
    return granted, charge.full_us, place, turn


def where_of(reply: Any) -> list[Where]:
    """
    Parse the reply of wait_where.lua.

    Raises:
        UnusableReply: The script cannot have sent this.
    """
    try:
        rows = [row.split(b" ") for row in reply]
        return [Where(int(claim), STATES[state], *map(int, numbers)) for claim, state, *numbers in rows]
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UnusableReply(f"not a reply of the script: {reply!r}") from error


def waiting_of(reply: Any) -> Waiting:
    """
    Parse the reply of wait_list.lua.

    Raises:
        UnusableReply: The script cannot have sent this.
    """
    try:
        jobs, woken, owners, *texts = reply
        names = [_decode_text(text) for text in texts]
        first = tuple(zip(names[::2], names[1::2], strict=True))
        return Waiting(int(jobs), int(woken), int(owners), first)
    except (AttributeError, TypeError, ValueError) as error:
        raise UnusableReply(f"not a reply of the script: {reply!r}") from error


def bell_of(message: bytes) -> tuple[str, list[Wake]]:
    """
    Parse a wake message, which a script publishes to an owner: the bucket, and the owner's wakes.

    `rings` in waitlist.lua writes each text as "length:text,": the bucket, then the id and the delay of each wake.

    Raises:
        UnusableReply: The scripts cannot have sent this.
    """
    try:
        texts, at = list[str](), 0
        while at < len(message):
            first = message.index(b":", at, at + 12) + 1
            at = first + int(message[at : first - 1])
            if message[at : at + 1] != b",":
                raise ValueError("no end")
            texts.append(_decode_text(message[first:at]))
            at += 1
        bucket, *rest = texts
        return bucket, [Wake(id, int(delay)) for id, delay in zip(rest[::2], rest[1::2], strict=True)]
    except (AttributeError, TypeError, ValueError) as error:
        raise UnusableReply(f"not a bell of the scripts: {message!r}") from error


def _kept(words: list[bytes]) -> Kept | None:
    if not words:
        return None
    claim, epoch, position = words
    return Kept(int(claim), epoch.decode("ascii"), int(position))


def _parse_waited(words: list[bytes]) -> Waited | None:
    if not words:
        return None
    for_us, denials, claim = words
    return Waited(int(for_us), int(denials), None if claim == b"-" else int(claim))


def _position(word: bytes) -> Position | None:
    return None if word == b"-" else Position(_place(word[:-1].decode("ascii")), word[-1:] == b"+")


def _place(text: str) -> Place:
    if len(text) != PLACE:
        raise ValueError("not a place")
    return Place(int(text[:2]), int(text[2:18]), int(text[18:]))


def _place_text(place: Place) -> str:
    return f"{place.rank:02}{place.tag:016}{place.number:012}"


def _decode_text(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _uses_of(used: list[int]) -> tuple[Use, ...]:
    if len(used) == 2:
        return (Use(used[0], used[1]),)
    return tuple([Use(units, full) for units, full in zip(used[::2], used[1::2], strict=True)])


def _terms_of(claim: StoreClaim) -> tuple[Any, ...]:
    """Return the arguments of *claim*, without the name of its bucket."""
    return claim.algorithm, claim.cost, claim.max_queue, claim.tenant, claim.step, claim.lead


@lru_cache(_CACHED_CLAIMS)
def _encode_terms(*terms: Any) -> bytes:
    """Encode the arguments of a claim, which are the same for every key."""
    return encode(_claim_arguments(*terms))


def _claim_arguments(
    algorithm: Algorithm, cost: int, max_queue: int | None, tenant: str, step: int, lead: int
) -> tuple[int | str, ...]:
    a, b, c = algorithm.params
    rest = f"{algorithm.mark} {cost} {step} {lead} {'' if max_queue is None else max_queue} {tenant}"
    mark = "~" if " " in str(c) or max_queue == 0 else " "  # see claims.lua
    return f"{algorithm.code}{mark}{b};{c};{rest}", algorithm.size, a

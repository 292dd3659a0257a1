"""The command that a decision sends, and how its answer is read."""

from __future__ import annotations

import pytest
from redis.connection import Connection

from throttlekit import Concurrency, FixedWindow, TokenBucket
from throttlekit._core.answer import WITHOUT_JOB, Caller, Kept, Reason, Requester, Waited
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import granted_name
from throttlekit._core.waitlist import Wake
from throttlekit.stores import StoreClaim
from throttlekit.stores.wire import (
    answer_of,
    claims_arguments,
    command,
    decide_frame,
    encode_text,
    requester_arguments,
    script_for,
    wait_keys,
)

BUCKET, WINDOW, SLOTS = TokenBucket("a", "10/s"), FixedWindow("ü", "10/d", tz="Europe/Berlin"), Concurrency("c", 2)


def _claim(limit: Limit) -> StoreClaim:
    charge = limit.bind(1, 1_800_000_000_000_000, "job#1")
    return StoreClaim(f"tk1:{{{limit.name}:}}", charge, 1, 7, "tenant ü", 1_000_000, 5)


@pytest.mark.parametrize("limits", [[BUCKET], [WINDOW], [SLOTS], [BUCKET, SLOTS], [SLOTS, WINDOW, BUCKET, BUCKET]])
@pytest.mark.parametrize(
    ("requester", "now_us", "attempt"),
    [
        (WITHOUT_JOB, None, ""),
        (Requester(Caller.PEEK), 1_800_000_000_000_000, ""),
        (Requester(Caller.JOB, "id ü", "host:1.2", 3, 9, Waited(5, 1)), None, "17"),
        (Requester(Caller.AGAIN, "\ud800", "~50"), 7, ""),
    ],
)
def test_frame_is_what_redis_py_would_send(
    limits: list[Limit], requester: Requester, now_us: int | None, attempt: str
) -> None:
    """The frame that is assembled from cached parts has exactly the bytes of the command, argument by argument."""
    claims = [_claim(limit) for limit in limits]
    keys = wait_keys(claims) + ([granted_name(claims[0].bucket, requester.job)] if attempt else [])
    script = script_for("decide", frozenset(claim.algorithm.code for claim in claims))
    epoch = "ab12" if requester.job else "0"
    head = map(encode_text, requester_arguments(claims, requester, now_us, epoch, attempt))
    whole = ("EVALSHA", script.sha, len(keys), *keys, *head, *claims_arguments(claims))
    for _ in range(2):  # once computed, once from the cache
        frame = decide_frame(claims, requester, now_us, epoch, attempt)
        assert frame == b"".join(Connection().pack_command(*whole))


def test_any_command_is_what_redis_py_would_send() -> None:
    """A command with any text and numbers has exactly the bytes that redis-py would send."""
    assert command("DEL", "tk1:{ü}", 12) == b"".join(Connection().pack_command("DEL", "tk1:{ü}", 12))


def test_a_grant_at_once() -> None:
    """The reply to a grant has the use of each claim; it is read faster than other replies."""
    answer = answer_of(b"0 0 10 10;3 4 5 6;;;;")
    assert (answer.allowed, answer.claim, answer.now_us, answer.retry_us) == (True, 0, 10, 10)
    assert [tuple(use or ()) for use in answer.uses] == [(3, 4), (5, 6)]
    assert (answer.kept, answer.wakes, answer.waited) == (None, (), None)


def test_a_denial_of_a_job() -> None:
    """The reply to a denial has the binding claim, the job's list and wait, its owner's wakes, and the next polls."""
    answer = answer_of([b"2 1 10 30;3 4 5 6;1 ab 12;0 250000;7 2 1;0 5", "id ü".encode()])
    assert (answer.reason, answer.claim, answer.now_us, answer.retry_us) == (Reason.IN_LINE, 1, 10, 30)
    assert answer.kept == Kept(1, "ab", 12)
    assert (answer.wakes, answer.looks) == (((0, Wake("id ü", 5)),), ((0, 250000),))
    assert answer.waited == Waited(7, 2, 1)


@pytest.mark.parametrize(
    "reply",
    [None, 5, b"", b"1 2", b"9 0 10 11;3 4;;;;", b"0 0 10;3 4;;;;", b"0 0 10 10;x;;;;", [b"1 0 1 2;3 4;;;;0 5"]],
)
def test_invalid_reply_is_an_error(reply: object) -> None:
    """The error for an invalid reply names the reply."""
    with pytest.raises(ValueError, match="not a reply of the script"):
        answer_of(reply)

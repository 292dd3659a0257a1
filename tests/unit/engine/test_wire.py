"""What a decision sends, and how its answer is read."""

from __future__ import annotations

import pytest
from redis.connection import Connection

from throttlekit import Concurrency, FixedWindow, TokenBucket
from throttlekit._core.acquire import ELSEWHERE, Caller, Place
from throttlekit._core.limit.base import Limit
from throttlekit.stores import Request, StoreClaim
from throttlekit.stores.wire import arguments_of, command, frame_of, script_of, verdict_of

BUCKET, WINDOW, SLOTS = TokenBucket("a", "10/s"), FixedWindow("ü", "10/d", tz="Europe/Berlin"), Concurrency("c", 2)


def _claim(limit: Limit) -> StoreClaim:
    charge = limit.bind(1, 1_800_000_000_000_000, "job#1")
    return StoreClaim(f"tk1:{{{limit.name}:}}", f"tk1:{{{limit.name}:}}:line", charge, 7, None)


@pytest.mark.parametrize("limits", [[BUCKET], [WINDOW], [SLOTS], [BUCKET, SLOTS], [SLOTS, WINDOW, BUCKET, BUCKET]])
@pytest.mark.parametrize("caller", Caller)
@pytest.mark.parametrize(
    ("place", "max_wait_us", "now_us"),
    [(None, None, None), (Place(0, 5), None, None), (Place(ELSEWHERE, 5), 0, None), (None, 9, 1_800_000_000_000_000)],
)
def test_frame_is_what_redis_py_would_send(
    limits: list[Limit], caller: Caller, place: Place | None, max_wait_us: int | None, now_us: int | None
) -> None:
    """What is written out once and put together is the very bytes of the command, argument by argument."""
    request = Request([_claim(limit) for limit in limits], caller, place, max_wait_us)
    whole = ("EVALSHA", script_of(request).sha, *arguments_of(request, now_us))
    for _ in range(2):  # as it is worked out, and as it is remembered
        assert frame_of(request, now_us) == b"".join(Connection().pack_command(*whole))


def test_any_command_is_what_redis_py_would_send() -> None:
    """Text of any script, and numbers."""
    assert command("DEL", "tk1:{ü}", 12) == b"".join(Connection().pack_command("DEL", "tk1:{ü}", 12))


def test_answer_tells_each_claim_by_itself() -> None:
    """A reason, a claim from 1, three instants, and two numbers for each claim."""
    one, two = verdict_of(b"0 1 10 11 12 3 4"), verdict_of(b"1 2 10 11 12 3 4 5 6")
    assert (one.allowed, one.claim, one.now_us, one.retry_us, one.due_us) == (True, 0, 10, 11, 12)
    assert [tuple(use or ()) for use in one.uses] == [(3, 4)]
    assert (two.allowed, two.claim) == (False, 1)
    assert [tuple(use or ()) for use in two.uses] == [(3, 4), (5, 6)]

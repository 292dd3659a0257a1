"""What a decision sends, and how its answer is read."""

from __future__ import annotations

import pytest
from redis.connection import Connection
from throttlekit._core.line import Place

from throttlekit import Concurrency, FixedWindow, TokenBucket
from throttlekit._core.answer import Caller
from throttlekit._core.limit.base import Limit
from throttlekit.stores import Request, StoreClaim
from throttlekit.stores.wire import arguments_of, command, frame_of, place_text, script_of, verdict_of

BUCKET, WINDOW, SLOTS = TokenBucket("a", "10/s"), FixedWindow("ü", "10/d", tz="Europe/Berlin"), Concurrency("c", 2)
PLACE = Place(1_800_000_000_000_000, 5, 6, 1_800_000_000_000_001, "0a1b")


def _claim(limit: Limit) -> StoreClaim:
    charge = limit.bind(1, 1_800_000_000_000_000, "job#1")
    return StoreClaim(f"tk1:{{{limit.name}:}}", charge, 1, 7, "tenant ü", 1_000_000, 5)


@pytest.mark.parametrize("limits", [[BUCKET], [WINDOW], [SLOTS], [BUCKET, SLOTS], [SLOTS, WINDOW, BUCKET, BUCKET]])
@pytest.mark.parametrize("caller", Caller)
@pytest.mark.parametrize(
    ("places", "max_wait_us", "now_us", "grace_us"),
    [
        ((), None, None, 60_000),
        ((), None, None, 1_200_000),
        ((PLACE,), None, None, 60_000),
        ((None, PLACE), 0, None, 60_000),
        ((), 9, 1_800_000_000_000_000, 60_000),
    ],
)
def test_frame_is_what_redis_py_would_send(
    limits: list[Limit], caller: Caller, places: tuple[Place | None, ...], max_wait_us: int | None,
    now_us: int | None, grace_us: int,
) -> None:  # fmt: skip
    """What is written out once and put together is the very bytes of the command, argument by argument."""
    request = Request([_claim(limit) for limit in limits], caller, places, max_wait_us, grace_us)
    whole = ("EVALSHA", script_of(request).sha, *arguments_of(request, now_us))
    for _ in range(2):  # as it is worked out, and as it is remembered
        assert frame_of(request, now_us) == b"".join(Connection().pack_command(*whole))


def test_any_command_is_what_redis_py_would_send() -> None:
    """Text of any script, and numbers."""
    assert command("DEL", "tk1:{ü}", 12) == b"".join(Connection().pack_command("DEL", "tk1:{ü}", 12))


def test_answer_tells_each_claim_by_itself() -> None:
    """An instant, or a reason, a claim from 1 and three instants; and two numbers for each claim."""
    one, two = verdict_of(b"10 3 4"), verdict_of(b"-1 2 10 11 12 3 4 5 6")
    assert (one.allowed, one.claim, one.now_us, one.retry_us, one.due_us) == (True, 0, 10, 10, 10)
    assert [tuple(use or ()) for use in one.uses] == [(3, 4)]
    assert (two.allowed, two.claim, two.now_us, two.retry_us, two.due_us) == (False, 1, 10, 11, 12)
    assert [tuple(use or ()) for use in two.uses] == [(3, 4), (5, 6)]


def test_answer_gives_places() -> None:
    """After a bar, a place in the line of each claim, or a dash: as the next request brings them."""
    verdict = verdict_of(f"-1 2 10 11 12 3 4 5 6|-;{place_text(PLACE)}".encode())
    assert verdict.places == (None, PLACE)
    assert verdict_of(b"-1 1 10 11 12 3 4|").places == ()


@pytest.mark.parametrize(
    "reply", [None, 5, b"", b"1 2", b"-9 1 10 11 12 3 4", b"-1 1 10 11 12 3 4|1 2 3", b"-1 1 10 11 12 3"]
)
def test_what_the_script_cannot_have_sent(reply: object) -> None:
    """An error names it."""
    with pytest.raises(ValueError, match="not a reply of the script"):
        verdict_of(reply)

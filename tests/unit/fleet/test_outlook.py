"""When all jobs that wait for a limit will have been granted, or why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from throttlekit import Concurrency, Limit, TokenBucket
from throttlekit.fleet.last_minute import Minute
from throttlekit.fleet.list_now import SlowNow
from throttlekit.fleet.outlook import outlook_of
from throttlekit.fleet.snapshot import Key, Known

API = TokenBucket("api", "300/minute", burst=5)
SLOTS = Concurrency("slots", 4)
BUSY = Minute(allowed=300, units=300, arrived=100)


def _known(minute: Minute = BUSY, limit: Limit = API, *, keyed: bool = False) -> Known:
    return Known("api:1", limit, keyed, minute)


def _key(waiting: int = 600, used: int = 5, limit: Limit = API, oldest: float = 90.0) -> Key:
    return Key("b", "api:1", limit, "", None, Minute(), used, limit.capacity, waiting, waiting, oldest_wait=oldest)


@pytest.mark.parametrize(
    ("arrived", "granted", "trend", "clears_in"),
    [
        (100, 300, "clears", 180),
        (0, 300, "clears", 120),
        (300, 300, "steady", None),
        (290, 300, "steady", None),
        (400, 300, "grows", None),
        (0, 0, "steady", None),
        (1, 0, "grows", None),
    ],
)
def test_the_last_minute_gives_the_time_until_no_job_waits(
    arrived: int, granted: int, trend: str, clears_in: float | None
) -> None:
    """The estimate is by grants minus arrivals; there is none if as many jobs arrive as are granted, or more."""
    found = outlook_of(_known(Minute(allowed=granted, units=granted, arrived=arrived)), [_key()])
    assert found is not None
    assert (found.arrived_jobs, found.granted_jobs, found.trend, found.clears_in_seconds) == (
        arrived,
        granted,
        trend,
        clears_in,
    )


def test_no_outlook_without_data() -> None:
    """There is no outlook if no job waits, or if no process reported in the last minute."""
    assert outlook_of(_known(), [_key(waiting=0)]) is None
    assert outlook_of(_known(), []) is None
    assert outlook_of(_known(Minute(is_known=False)), [_key()]) is None


def test_a_limit_with_room_is_not_the_bottleneck() -> None:
    """A limit has room if jobs have waited for a minute, units are free, and fewer are granted than the rate allows."""
    idle = Minute(allowed=60, units=60, arrived=60)

    def has_room(key: Key, minute: Minute = idle, limit: Limit = API, *, keyed: bool = False) -> bool:
        found = outlook_of(_known(minute, limit, keyed=keyed), [key])
        assert found is not None
        return found.limit_has_room

    slots = _key(used=0, limit=SLOTS)
    assert has_room(_key(used=0))
    assert has_room(slots, limit=SLOTS)
    assert not has_room(_key(used=5))
    assert not has_room(_key(used=0), BUSY)
    assert not has_room(_key(used=0, oldest=20))
    assert not has_room(_key(used=0), keyed=True)
    assert not has_room(replace(slots, used=3), limit=SLOTS)
    assert not has_room(replace(_key(used=0), paused=4.0))
    assert not has_room(replace(_key(used=0), slowed=SlowNow(0.5, "headers", 60.0)))


def test_the_text_is_only_about_problems() -> None:
    """The text says that the limit has room, or that more jobs arrive than are granted; nothing else."""
    texts = list[str]()
    for arrived, used in ((10, 5), (100, 5), (10, 0)):
        found = outlook_of(_known(Minute(allowed=60, units=60, arrived=arrived)), [_key(used=used)])
        assert found is not None
        texts.append(found.text)
    assert texts[0] == ""
    assert texts[1] == "grows: 100 arrived in the last minute, 60 were granted"
    assert texts[2].startswith("the limit has room: ")

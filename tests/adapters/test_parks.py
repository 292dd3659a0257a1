"""The promoter of parked jobs, with a broker's Redis and no worker: no job and no line keeps it from the others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.parks import celery_message, plant
from throttlekit import Job, Limiter, TokenBucket
from throttlekit.adapter import Delivery, JobOptions, Park, Promoter, Throttling, WaitRules

API = TokenBucket("api", "1000/s", burst=1000)
LISTS = ("celery", "celery:9")


class Host:
    """Reads planted messages. Their limit is free: they are due."""

    def options(self, message: dict[str, Any]) -> JobOptions:
        return JobOptions.read(API)

    def job(self, message: dict[str, Any]) -> Job:
        return Job(id=message["headers"]["id"])

    def delivery(self, message: dict[str, Any], max_wait: float | None) -> Delivery:
        return Delivery()


@pytest.fixture
def broker(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def promoter(redis_base: str) -> Iterator[Promoter[Any]]:
    """One that finds no park by itself: the test has it look. It cannot tell when "bad" is due."""

    def tell(message: bytes, seconds: float) -> None:
        if b"bad" in message:
            raise KeyError(message)

    with Limiter() as limiter:
        log = logging.getLogger("throttlekit.tests")
        throttling = Throttling(limiter, Host(), rules=WaitRules(), log=log)
        yield Promoter(throttling, list, json.loads, tell, log)


def park_of(client: Any, lists: tuple[str, ...] = LISTS) -> Park:
    prefix = "throttlekit:celery"
    return Park(client, "celery", "celery", prefix, messages=f"{prefix}:messages", lists=lists, moves=True)


def woken(broker: Any, key: str = "celery") -> list[str]:
    return [json.loads(message)["headers"]["id"] for message in reversed(broker.lrange(key, 0, -1))]


def test_a_message_that_cannot_be_told_when_it_is_due_is_woken_as_it_is(
    broker: Any, redis_url: str, promoter: Promoter[Any]
) -> None:
    """It stands in the middle of its line: the first one and those behind it do not wait for it."""
    plant(redis_url, [celery_message(id) for id in ("a", "bad", "c")])
    promoter.turn(park_of(broker), 0.0)
    assert sorted(woken(broker)) == ["a", "bad", "c"]


def test_a_line_that_cannot_be_read_keeps_the_promoter_from_no_other(
    broker: Any, redis_url: str, promoter: Promoter[Any]
) -> None:
    for line in ("a", "b", "c"):
        plant(redis_url, [celery_message(line)], line=line)
    broker.set("throttlekit:celery:lane:b", "torn")
    for turn in range(3):
        try:
            promoter.turn(park_of(broker), float(turn))
        except redis.ResponseError:
            continue
    assert sorted(woken(broker)) == ["a", "c"]


def test_a_message_of_a_priority_that_is_gone_goes_to_the_last_list(
    broker: Any, redis_url: str, promoter: Promoter[Any]
) -> None:
    """A deploy has fewer `priority_steps` than the worker that parked it."""
    plant(redis_url, [celery_message("a"), celery_message("b")])
    for id, message in broker.hgetall("throttlekit:celery:messages").items():
        broker.hset("throttlekit:celery:messages", id, b"7" + message[1:])
    promoter.turn(park_of(broker), 0.0)
    assert woken(broker, "celery:9") == ["a", "b"]
    assert broker.hlen("throttlekit:celery:messages") == 0


def test_a_park_is_announced_anew_once_its_redis_has_lost_everything(broker: Any, promoter: Promoter[Any]) -> None:
    park = park_of(broker)
    promoter.turn(park, 0.0)
    broker.flushdb()
    promoter.turn(park, 0.5)
    assert [found.queue for found in Park.all_of(broker)] == ["celery"]


def test_those_that_lost_their_place_stand_before_those_of_the_line_that_began_anew(
    broker: Any, redis_url: str, promoter: Promoter[Any]
) -> None:
    """The limits' store was emptied: newcomers get lower starts than those who wait since before, and are behind."""
    plant(redis_url, [celery_message("a"), celery_message("b")])
    plant(redis_url, [celery_message("c")], epoch=2)
    park = park_of(broker)
    assert [park.message("a", at) for at in (0, 1)] == [(celery_message(id), True) for id in "ab"]
    assert park.message("a", 2) == (celery_message("c"), False)
    assert [line.limit for line in park.lines()] == ["api"]
    promoter.turn(park, 0.0)
    assert sorted(woken(broker)) == ["a", "b", "c"]

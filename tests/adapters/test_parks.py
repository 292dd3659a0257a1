"""The promoter of parked jobs, with a broker's Redis and no worker: no job and no line keeps it from the others."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.parks import celery_message, parked_in, plant
from support.servers.processes import free_port, patient
from throttlekit import Control, Job, Limiter, StoreUnavailable, TokenBucket
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
    assert parked_in(park, "a") == [(celery_message(id), id != "c") for id in "abc"]
    assert [line.limit for line in park.lines()] == ["api"]
    promoter.turn(park, 0.0)
    assert sorted(woken(broker)) == ["a", "b", "c"]


SHARED = TokenBucket("shared", "1000/s", burst=1000)
ACCOUNT = TokenBucket("account", "1000/s", burst=1000, key="{account}")
DISTANT = TokenBucket("x-distant", "1000/s", burst=1000)


class Line:
    """
    A promoter, and jobs that are parked in the line of one limit, each with limits of its own: {id: limits}. The part
    of an id before "-" is its account.
    """

    def __init__(
        self, broker: Any, limiter: Limiter, limits: dict[str, tuple[TokenBucket, ...]], shared: TokenBucket = SHARED
    ) -> None:
        self.park, self._broker, self._limiter, self._limits = park_of(broker), broker, limiter, limits
        log = logging.getLogger("throttlekit.tests")
        throttling: Throttling[Any] = Throttling(limiter, self, rules=WaitRules(), log=log)
        self.promoter = Promoter(throttling, list, json.loads, lambda message, seconds: None, log)
        limiter.pause(shared, 60)
        self.tickets = {id: limiter.acquire(shared, job=Job(id=id)).ticket for id in limits}
        for id, ticket in self.tickets.items():
            broker.hset("unacked", id, "as it was")
            self.park.put(id, b"0" + celery_message(id), ticket, unacked="unacked", beside="unacked_index", delay=0)
        limiter.resume(shared)

    def options(self, message: dict[str, Any]) -> JobOptions:
        return JobOptions(limits=self._limits[message["headers"]["id"]])

    def job(self, message: dict[str, Any]) -> Job:
        id = message["headers"]["id"]
        return Job(id=id, kwargs={"account": id.partition("-")[0]}, ticket=self.tickets[id])

    def delivery(self, message: dict[str, Any], max_wait: float | None) -> Delivery:
        return Delivery()

    def woken(self) -> set[str]:
        """Look until no look wakes another job, and return all that were woken."""
        before: set[str] = set()
        for turn in range(20):
            with contextlib.suppress(StoreUnavailable):
                self.promoter.turn(self.park, time.monotonic())
            after = set(woken(self._broker))
            if turn and after == before:
                break
            before = after
        return before


def of_two_accounts(many: int = 300) -> dict[str, tuple[TokenBucket, ...]]:
    """Many jobs of account a in front of a few of account b, all of which share a limit."""
    ids = [f"a-{n}" for n in range(many)] + [f"b-{n}" for n in range(5)]
    return dict.fromkeys(ids, (SHARED, ACCOUNT))


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    with Limiter(patient(redis_url)) as limiter:
        yield limiter


def test_messages_that_cannot_be_read_are_woken_and_keep_none_behind_them_back(
    broker: Any, redis_url: str, promoter: Promoter[Any]
) -> None:
    """Their task was renamed, say: all of them go to the framework at once, and the others in their turn."""
    plant(redis_url, [b"not JSON"] * 200 + [celery_message(id) for id in ("a", "b")])
    promoter.turn(park_of(broker), 0.0)
    messages = broker.lrange("celery", 0, -1)
    assert messages.count(b"not JSON") == 200
    assert {json.loads(each)["headers"]["id"] for each in messages if each != b"not JSON"} == {"a", "b"}


def test_a_worker_without_a_connection_wakes_nothing(broker: Any, redis_url: str, limiter: Limiter) -> None:
    """That it cannot read a message then says nothing about the message."""

    def decode(message: bytes) -> Any:
        raise ConnectionError

    line = Line(broker, limiter, of_two_accounts(2))
    line.promoter._decode = decode
    with pytest.raises(ConnectionError):
        line.promoter.turn(line.park, 0.0)
    assert woken(broker) == []


@pytest.mark.parametrize("way", ["pause of an operator", "pause without an end", "pause of a limiter"])
def test_jobs_of_a_paused_key_wait_apart_and_keep_none_behind_them_back(
    broker: Any, limiter: Limiter, way: str
) -> None:
    """They stay parked, and those of other keys go on. When the pause has ended they are woken."""
    with Control(limiter) as control:
        line = Line(broker, limiter, of_two_accounts())
        match way:
            case "pause of an operator":
                control.pause(ACCOUNT, key="a", for_=3600)
            case "pause without an end":
                control.pause(ACCOUNT, key="a")
            case _:
                limiter.pause(ACCOUNT, 3600, key="a")
        if limiter.fleet is not None:
            limiter.fleet.follow()
        assert line.woken() == {f"b-{n}" for n in range(5)}
        assert [(parked.limit, parked.jobs) for parked in line.park.lines()] == [("account", 300)]
        control.resume(ACCOUNT, key="a")
        limiter.resume(ACCOUNT, key="a")
        if limiter.fleet is not None:
            limiter.fleet.follow()
        broker.zadd("throttlekit:celery:lanes", dict.fromkeys(broker.zrange("throttlekit:celery:lanes", 0, -1), 0))
        assert len(line.woken()) == 305
        assert line.park.lines() == []


def test_jobs_that_another_limit_denies_for_long_ask_at_once(broker: Any, limiter: Limiter) -> None:
    """An operator sets one limit to a low rate: its jobs get their places there now, and not each in its turn."""
    slow, shared = TokenBucket("slow", "1/h", burst=1), TokenBucket("shared", "4/s", burst=1)
    assert limiter.acquire(slow).allowed
    line = Line(broker, limiter, {f"a-{n}": (shared, slow) for n in range(8)}, shared)
    told: list[float] = []
    line.promoter._tell = lambda message, seconds: told.append(seconds)
    line.promoter.turn(line.park, 0.0)
    assert len(woken(broker)) == 8
    assert told == [0.0] * 8


def test_a_store_of_a_group_that_is_away_keeps_back_its_own_jobs_alone(broker: Any, redis_url: str) -> None:
    """Jobs that need it wait apart; those behind them, which do not, go on."""
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with Limiter(patient(redis_url), stores={"x-*": nobody}) as limiter:
        ids = {f"a-{n}": (SHARED, DISTANT) for n in range(50)} | {f"b-{n}": (SHARED,) for n in range(5)}
        line = Line(broker, limiter, ids)
        assert line.woken() == {f"b-{n}" for n in range(5)}
        assert [(parked.limit, parked.jobs) for parked in line.park.lines()] == [("x-distant", 50)]


def test_a_store_that_is_away_keeps_no_job_back_that_runs_without_it(broker: Any, redis_url: str) -> None:
    """Its limits have `on_store_failure="open"`, so that a request is admitted."""
    free = TokenBucket("x-free", "1/s", on_store_failure="open")
    shared = TokenBucket("shared", "1000/s", burst=1000, on_store_failure="open")
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with Limiter(patient(redis_url), stores={"x-*": nobody}) as limiter:
        line = Line(broker, limiter, {"a-1": (shared, free)})
        assert line.woken() == {"a-1"}


def test_all_that_have_expired_are_woken_in_one_turn(broker: Any, redis_url: str, promoter: Promoter[Any]) -> None:
    """However many they are: 2 000 here, of two lines."""
    many = 1000
    for line in ("a", "b"):
        plant(redis_url, [celery_message(f"{line}{n}") for n in range(many)], line=line)
        jobs = broker.zrange(f"throttlekit:celery:lane:{line}", 0, -1)
        broker.zadd("throttlekit:celery:ends", {line.encode() + b" " + job: 1 for job in jobs})
    broker.delete("throttlekit:celery:lanes")  # none is due
    promoter.turn(park_of(broker), 0.0)
    assert len(woken(broker)) == 2 * many


def test_a_look_at_many_lines_takes_as_many_round_trips_as_at_one(
    broker: Any, redis_url: str, promoter: Promoter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines share their round trips: about ten to the broker and to the limits' store."""
    trips: list[int] = []

    def counts(holder: Any, name: str) -> None:
        original = getattr(holder, name)

        def counted(*args: Any) -> Any:
            trips[-1] += bool(args[-1])
            return original(*args)

        monkeypatch.setattr(holder, name, counted)

    counts(Park, "_run_together")
    counts(promoter._throttling.limiter, "peek_all")
    for lines in (1, 20):
        trips.append(1)  # the look itself
        for line in range(lines):
            plant(redis_url, [celery_message(f"{lines}-{line}-{n}") for n in range(3)], line=f"{lines} {line}")
        broker.zadd("throttlekit:celery:lanes", dict.fromkeys(broker.zrange("throttlekit:celery:lanes", 0, -1), 0))
        promoter.turn(park_of(broker), float(lines))
    assert len(woken(broker)) == 3 * 21
    assert trips[1] == trips[0] <= 15

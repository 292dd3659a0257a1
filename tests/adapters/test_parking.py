"""The park of a queue and its promoter, on a real Redis: what is woken, when, by whom, and with what instant."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from support.parks import parked_in
from support.waiting import wait_until
from throttlekit import Job, Limiter, StoreUnavailable, TokenBucket
from throttlekit._core.line import Place
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.ticket import Ticket
from throttlekit.adapter import JobOptions, Park, Promoter, WaitRules, is_far
from throttlekit.adapter.admission import AT_ONCE, Throttling, WhenDue
from throttlekit.fleet.control import Control
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("parked", "10/s", burst=1)


class Host:
    """Messages are JSON objects with the number of their job."""

    def options(self, message: Any) -> JobOptions:
        return JobOptions(limits=(LIMIT,))

    def job(self, message: Any) -> Job:
        return Job(id=str(message["n"]))

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        return Delivery()


class Told(Throttling[Any]):
    """Says of each job when it is due, as the test has it."""

    def __init__(self, due: Callable[[int], WhenDue]) -> None:
        super().__init__(Limiter(), Host(), rules=WaitRules.read(None, None, "fail"), log=logging.getLogger("test"))
        self.due_of, self.asked = due, list[int]()

    def due_all(self, messages: Sequence[Any]) -> list[WhenDue | Exception]:
        self.asked += [message["n"] for message in messages]
        dues: list[WhenDue | Exception] = []
        for message in messages:
            try:
                dues.append(self.due_of(message["n"]))
            except StoreUnavailable as error:
                dues.append(error)
        return dues


class Broker:
    """A queue as Celery has it: messages that are not acknowledged in a hash, and lists by priority."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.client.flushdb()
        self.lists = ["q", "q:3"]
        self.park = Park(self.client, "celery", "q", "park:q", messages="park:q:messages", lists=self.lists, moves=True)

    def puts(self, n: int, *, lane: str = "a", list_: int = 0, delay: float = 60.0, **options: Any) -> bool:
        self.client.hset("unacked", str(n), "as it was")
        self.client.zadd("unacked_index", {str(n): 1})
        place = Place(1, n + 1, n, 0, "seal")
        ticket = Ticket(1_000_000 + n, "f:parked", 1, 1_000_000, lane, False, {"f:parked": place}).write()
        return self.park.put(
            str(n), f"{list_}{json.dumps({'n': n})}", ticket, unacked="unacked", beside="unacked_index", delay=delay,
            **options,
        )  # fmt: skip

    def woken(self) -> list[int]:
        """In the order in which a worker takes them."""
        return [json.loads(each)["n"] for name in self.lists for each in reversed(self.client.lrange(name, 0, -1))]

    def promoter(self, due: Callable[[int], WhenDue], tell: Any = lambda message, seconds: None) -> tuple[Any, Told]:
        told = Told(due)
        return Promoter(told, lambda: [self.park], json.loads, tell, logging.getLogger("test")), told


@pytest.fixture
def broker(redis_url: str) -> Broker:
    return Broker(redis_url)


def test_a_job_is_parked_in_one_step_and_only_while_its_worker_holds_it(broker: Broker) -> None:
    """It leaves what is unacknowledged, and stands in its line. A worker that has lost it changes nothing."""
    assert broker.puts(1)
    assert not broker.client.exists("unacked", "unacked_index")
    assert [(line.limit, line.jobs) for line in broker.park.lines()] == [("parked", 1)]
    broker.client.hdel("unacked", "1")
    ticket = Ticket(1, "f:parked", line="a", places={"f:parked": Place(1, 1, 1, 0, "seal")}).write()
    assert not broker.park.put("1", b"0{}", ticket, unacked="unacked", beside="unacked_index", delay=60)
    assert parked_in(broker.park, "a") == [(b'{"n": 1}', False)]


def test_the_first_of_a_line_are_woken_in_its_order_and_by_priority(broker: Broker) -> None:
    """Those that are due soon, whatever the order of parking; each goes to the list that its message names."""
    for n in (5, 3, 1, 2, 4, 60):
        broker.puts(n, list_=int(n == 3))
    promoter, _ = broker.promoter(lambda n: WhenDue(n / 10, most=100))
    promoter.turn(broker.park, 0.0)
    promoter.turn(broker.park, 0.5)
    assert broker.woken() == [1, 2, 4, 5, 3]
    assert parked_in(broker.park, "a") == [(b'{"n": 60}', False)]


def test_a_look_asks_for_two_jobs_and_wakes_as_many_as_become_due_however_many_are_parked(broker: Broker) -> None:
    """Of 2 000 parked at 10/s some 20 are woken at once, then 5 a turn; a look costs two questions."""
    for n in range(2000):
        broker.puts(n)
    now = 0.0
    promoter, told = broker.promoter(lambda n: WhenDue(n / 10 - now, most=40))
    for turn in range(20):
        now = turn / 2
        promoter.turn(broker.park, now)
    assert len(broker.woken()) == pytest.approx(10 * now + 20, abs=6)
    assert len(told.asked) <= 2 * 20 + 8


def test_the_messages_say_when_their_jobs_are_due_now(broker: Broker) -> None:
    """Between the two jobs that were looked at, along a line."""
    for n in range(40):
        broker.puts(n)
    told: dict[int, float] = {}

    def tell(message: bytes, seconds: float) -> bytes:
        told[json.loads(message)["n"]] = seconds
        return json.dumps({"n": json.loads(message)["n"], "in": round(seconds, 3)}).encode()

    promoter, _ = broker.promoter(lambda n: WhenDue(0.5 + n / 10, most=100), tell)
    promoter.turn(broker.park, 0.0)
    assert told == {n: pytest.approx(0.5 + n / 10) for n in range(16)}
    assert json.loads(broker.client.rpop("q"))["in"] == 0.5


def test_a_guess_is_told_to_no_job_and_lets_a_few_look_for_themselves(broker: Broker) -> None:
    """A job in front is late for a moment. The jobs behind it are told when they are due by their places."""
    for n in range(400):
        broker.puts(n)
    told: list[float] = []

    def tell(message: bytes, seconds: float) -> None:
        told.append(seconds)

    def due(n: int) -> WhenDue:
        at = begins + n / 100
        return WhenDue(0.06, most=400, sooner=at - 0.06) if n in guessed else WhenDue(at, most=400)

    guessed, begins = set(range(1, 400)), 1.5
    promoter, _ = broker.promoter(due, tell)
    promoter.turn(broker.park, 0.0)
    assert told == [pytest.approx(1.5 + n / 100) for n in range(51)]
    guessed, told, begins = set(range(400)), [], 5.0 - 51 / 100
    promoter.turn(broker.park, 0.5)
    assert told == [pytest.approx(5.0 + n / 100) for n in range(16)]


def test_more_become_due_at_once_than_at_the_last_look(broker: Broker) -> None:
    """A rate was raised a hundredfold: this look finds how many are due now, and the next does not begin anew."""
    for n in range(2000):
        broker.puts(n)
    rate = 10
    promoter, told = broker.promoter(lambda n: WhenDue((n + 1 - len(broker.woken())) / rate, most=3 * rate))
    promoter.turn(broker.park, 0.0)
    assert len(broker.woken()) == 20
    rate = 1000
    promoter.turn(broker.park, 0.5)
    assert len(broker.woken()) == 2000
    assert len(told.asked) <= 10


def test_a_job_that_is_purged_or_unlimited_by_now_says_nothing_of_those_before_it(broker: Broker) -> None:
    """Jobs of 10/s of which each second one is gone: those that are due soon are woken, and few others."""
    for n in range(2000):
        broker.puts(n)
    gone = {*range(0, 10), *range(11, 2000, 2)}
    broker.client.hdel("park:q:messages", *gone)
    promoter, _ = broker.promoter(lambda n: AT_ONCE if n == 10 else WhenDue(n / 10, most=2000))
    for turn in range(4):
        promoter.turn(broker.park, turn / 2)
        assert set(broker.woken()) <= set(range(10, 60))
    assert 10 in broker.woken()


@pytest.mark.parametrize("every", [2, 20])
def test_jobs_that_have_no_limit_by_now_slow_down_none_of_those_between_them(broker: Broker, every: int) -> None:
    """Of a line of 10/s a deploy has left the limit on one job of *every*: each of those is woken before it is due."""
    jobs, now = 1024, 0.0
    for n in range(jobs):
        broker.puts(n)
    promoter, told = broker.promoter(
        lambda n: AT_ONCE if n % every else WhenDue(max(0.0, n / every / 10 - now), most=100)
    )
    turns = 8
    for turn in range(turns):
        now = turn / 2
        promoter.turn(broker.park, now)
        assert [n for n in broker.woken() if not n % every][int(10 * now) :], f"late at {now}"
    assert len([n for n in broker.woken() if not n % every]) <= 10 * now + 30
    assert len(told.asked) < turns * (16 + 2 * every)


def test_thousands_of_purged_jobs_in_front_hold_a_line_up_for_no_longer_than_a_look(broker: Broker) -> None:
    """They are cleared at once, and few of those behind them are woken with them."""
    for n in range(4000):
        broker.puts(n)
    broker.client.hdel("park:q:messages", *range(3000))
    promoter, told = broker.promoter(lambda n: WhenDue((n - 3000) / 10, most=100))
    promoter.turn(broker.park, 0.0)
    assert broker.woken()[0] == 3000
    assert len(broker.woken()) <= 50
    assert sum(line.jobs for line in broker.park.lines()) < 1000
    assert len(told.asked) < 10


def test_a_purged_message_is_not_woken_and_leaves_no_line(broker: Broker) -> None:
    """The promoter clears its place, and the line's name with the last."""
    broker.puts(1)
    broker.client.delete("park:q:messages")
    promoter, told = broker.promoter(lambda n: WhenDue(60.0))
    promoter.turn(broker.park, 0.0)
    assert (broker.woken(), told.asked, broker.park.lines()) == ([], [], [])


def test_a_job_that_ends_while_it_is_parked_is_woken_then(broker: Broker) -> None:
    """At the end of its time, though its line says that it is not due for long."""
    broker.puts(1, delay=0.01, delivery=Delivery(expires_in=0.2))
    broker.puts(2, delay=0.01, delivery=Delivery(max_wait=3600))
    promoter, _ = broker.promoter(lambda n: WhenDue(600.0))

    def ended() -> list[int]:
        promoter.turn(broker.park, 0.0)
        return broker.woken()

    assert wait_until(ended, description="the first has come to its end") == [1]


def test_one_that_is_overdue_asks_now_and_then_so_that_its_line_is_not_forgotten(broker: Broker) -> None:
    """The first of a line that has become later: one in two seconds, not one at each look."""
    for n in range(5):
        broker.puts(n, delay=0.0)
    promoter, _ = broker.promoter(lambda n: WhenDue(30.0, overdue=True))
    for turn in range(8):
        promoter.turn(broker.park, turn / 2)
    assert broker.woken() == [1, 0]  # each to the front


def test_a_promoter_forgets_lines_that_have_ended(broker: Broker) -> None:
    """However many keys a limit has had: it remembers those at which it looked last."""
    promoter, _ = broker.promoter(lambda n: WhenDue(0.0, most=10))
    for n in range(30):
        broker.puts(n, lane=f"of key {n}", delay=0.0)
        promoter.turn(broker.park, n / 2)
    assert len(broker.woken()) == 30
    assert len(promoter._turns["park:q"].woken) <= 1


def test_one_promoter_at_a_time_and_another_when_it_has_stopped(broker: Broker) -> None:
    """The second wakes nothing while the first has the lease; once that is gone, all."""
    first, _ = broker.promoter(lambda n: WhenDue(0.0, most=10))
    second, told = broker.promoter(lambda n: WhenDue(0.0, most=10))
    first.turn(broker.park, 0.0)
    broker.puts(1)
    second.turn(broker.park, 0.0)
    assert (broker.woken(), told.asked) == ([], [])
    assert broker.park.has_promoter()
    first.stop()
    broker.park.resign(first._owner)
    second.turn(broker.park, 0.0)
    assert broker.woken() == [1]
    assert [park.queue for park in Park.all_of(broker.client)] == ["q"]


def test_a_promoter_that_is_gone_holds_its_lease_for_two_seconds_at_most(broker: Broker) -> None:
    """So long nothing is woken, and jobs were woken two seconds ahead."""
    gone, _ = broker.promoter(lambda n: WhenDue(0.0))
    gone.turn(broker.park, 0.0)
    assert 0 < broker.client.pttl("park:q:promoter") <= 2000


def test_a_store_that_is_away_ends_the_turn_and_wakes_nothing(broker: Broker) -> None:
    """What waits for it stays; what waits for another store is woken, and the next turn looks again."""
    broker.puts(1)
    broker.puts(2, lane="of another store")

    def away(n: int) -> WhenDue:
        if n == 1:
            raise StoreUnavailable("away")
        return WhenDue(0.0, most=10)

    promoter, _ = broker.promoter(away)
    with pytest.raises(StoreUnavailable):
        promoter.turn(broker.park, 0.0)
    assert broker.woken() == [2]
    assert parked_in(broker.park, "a") == [(b'{"n": 1}', False)]


def test_a_message_that_cannot_be_read_is_woken_alone_and_holds_no_other_line_up(broker: Broker) -> None:
    """Its worker says what is wrong with it; the line behind it goes on."""
    broker.puts(1, lane="a")
    broker.client.hset("park:q:messages", "1", "0not JSON")
    broker.puts(2, lane="b")
    promoter, _ = broker.promoter(lambda n: WhenDue(0.0, most=10))
    promoter.turn(broker.park, 0.0)
    assert sorted(broker.client.lrange("q", 0, -1)) == [b"not JSON", b'{"n": 2}']


def test_a_freed_slot_wakes_the_first_at_once_where_this_process_parked_any(broker: Broker) -> None:
    """One job for each slot; a line of which nothing was parked here costs no command."""
    for n in range(3):
        broker.puts(n)
        broker.park._known_for_slots.add("a")
    broker.park.freed(["a", "unknown"])
    broker.park.freed(["a"])
    assert broker.woken() == [1, 0]  # each goes to the front
    broker.park.freed(["a"])
    broker.park.freed(["a"])
    assert broker.park._known_for_slots == set()


@pytest.mark.parametrize(
    ("slots", "delay", "far"), [(False, 2.9, False), (False, 3.1, True), (True, 29.0, False), (True, 31.0, True)]
)
def test_what_is_due_soon_stays_near(slots: bool, delay: float, far: bool) -> None:
    """3 s, and 30 s for slots; a job without a place is not parked."""
    place = {"f:parked": Place(1, 1, 1, 0, "seal")}
    assert is_far(Ticket(1, "f:parked", line="a", slots=slots, places=place).write(), delay) is far
    assert not is_far(Ticket(1, "f:parked", line="a", slots=slots).write(), delay)


def test_when_a_waiting_job_is_due_is_looked_at_without_a_change() -> None:
    """In its order, by its place; nothing is charged. A job that no limit holds is due at once."""
    limiter = Limiter()
    throttling = Throttling(limiter, Host(), rules=WaitRules.read(None, None, "fail"), log=logging.getLogger("test"))
    assert limiter.acquire(LIMIT, job=Job(id="0")).allowed
    tickets = [limiter.acquire(LIMIT, job=Job(id=str(n)), delivery=Delivery()).ticket for n in (1, 2)]
    host = SimpleNamespace(
        options=Host().options, delivery=Host().delivery,
        job=lambda message: Job(id=str(message["n"]), ticket=tickets[message["n"] - 1]),
    )  # fmt: skip
    throttling._host = host  # type: ignore[assignment]
    for _ in range(3):
        first, second = (throttling.due({"n": n}) for n in (1, 2))
        assert 0 <= first.seconds <= 0.11
        assert second.seconds - first.seconds == pytest.approx(0.1, abs=0.05)
        assert second.most >= 31


def test_the_promoter_follows_live_control_by_itself(broker: Broker, redis_url: str) -> None:
    """A process that has decided nothing yet knows a raised rate at its promoter's next look."""
    with Limiter(redis_url) as limiter, Control(redis_url) as control:
        throttling = Throttling(
            limiter, Host(), rules=WaitRules.read(None, None, "fail"), log=logging.getLogger("test")
        )
        promoter = Promoter(throttling, lambda: [broker.park], json.loads, lambda m, s: None, logging.getLogger("test"))
        promoter.start()
        control.set("parked", "100/s")
        fleet = limiter.fleet
        assert fleet is not None
        assert not fleet.begun
        wait_until(lambda: "parked" in fleet.overrides.rules, description="the promoter knows the rule")
        promoter.stop()


def test_rules_that_cannot_be_read_stop_no_promoter(
    broker: Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error is: what is due is woken."""
    with Limiter(redis_url) as limiter:
        fleet = limiter.fleet
        assert fleet is not None

        def refused() -> None:
            raise PermissionError("NOPERM")

        monkeypatch.setattr(fleet, "follow", refused)
        told = Told(lambda n: WhenDue(0.0, most=10))
        told.limiter = limiter
        broker.puts(1)
        promoter = Promoter(told, lambda: [broker.park], json.loads, lambda m, s: None, logging.getLogger("test"))
        promoter.start()
        wait_until(lambda: broker.woken() == [1], description="the job is woken")
        promoter.stop()


def test_how_much_later_a_job_is_due_if_those_before_it_come_after_all() -> None:
    """A line whose first jobs are late answers that all others may ask now: a guess, and no pace."""

    class Tickets(Host):
        def job(self, message: Any) -> Job:
            return Job(id=str(message["n"]), ticket=tickets[message["n"]])

    clock, limit = FakeClock(), LIMIT
    limiter = Limiter(MemoryStore(clock_us=clock))
    limiter.acquire(limit)
    tickets = [limiter.acquire(limit, job=Job(id=str(n))).ticket for n in range(60)]
    rules = WaitRules.read(None, None, "fail")
    throttling = Throttling(limiter, Tickets(), rules=rules, log=logging.getLogger("test"))
    assert throttling.due({"n": 50}) == WhenDue(pytest.approx(5.3), most=1 + 30)
    clock.advance(1.0)
    assert throttling.due({"n": 50}) == WhenDue(pytest.approx(0.06), most=1 + 30, sooner=pytest.approx(5.14))


def test_a_job_is_due_by_the_limit_in_whose_line_it_is_parked() -> None:
    """
    Its other limits do not change how fast this line moves. It is woken at once if one of them denies it for longer
    than 3 s, and not at all while one of them is paused.
    """
    clock, account, campaign = FakeClock(), TokenBucket("account", "200/s"), TokenBucket("campaign", "8/s", burst=2)
    limiter = Limiter(MemoryStore(clock_us=clock))
    assert limiter.acquire(account, cost=account.capacity).allowed
    limits: tuple[TokenBucket, ...] = (campaign, account)

    class Both(Host):
        def options(self, message: Any) -> JobOptions:
            return JobOptions(limits=limits)

        def job(self, message: Any) -> Job:
            return Job(id="0", ticket=ticket)

    ticket = limiter.acquire(campaign, account, job=Job(id="0")).ticket
    throttling = Throttling(limiter, Both(), rules=WaitRules.read(None, None, "fail"), log=logging.getLogger("test"))
    due = WhenDue(pytest.approx(0.005), most=account.capacity + 3 * 200)
    assert throttling.due({}) == due
    for n in range(30):
        limiter.acquire(campaign, job=Job(id=f"another {n}"))
    assert throttling.due({}) == due
    ticket = limiter.acquire(account, job=Job(id="0")).ticket
    assert throttling.due({}).wakes
    limiter.pause(campaign, 60.0)
    due = due._replace(seconds=pytest.approx(0.01, abs=0.01))
    paused = throttling.due({})
    blocked_for = pytest.approx(63.5, abs=0.2)
    assert paused == due._replace(blocked_by=paused.blocked_by, blocked_for=blocked_for, blocker="campaign")
    assert paused.blocked_by
    limiter.resume(campaign)
    clock.advance(60.0)
    assert throttling.due({}) == due._replace(seconds=0.0)
    limits = (campaign,)
    for n in range(20):
        limiter.acquire(campaign, job=Job(id=f"more {n}"))
    assert throttling.due({}).wakes

"""Jobs of RQ that stand in a line: which is asked for first, and what an answer says of those that stand behind."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from support.waiting import wait_until
from throttlekit import Decision, TokenBucket
from throttlekit._core.line import Place
from throttlekit._engine.ticket import Ticket
from throttlekit.adapter import Deferred, JobOptions, lane_in
from throttlekit_rq import _worker, configure
from throttlekit_rq._admission import slack_of
from throttlekit_rq._options import Declared
from throttlekit_rq._waiting import deny, look, promote, read_record, wake, wake_lanes
from throttlekit_rq._wire import EARLY, LINE, Record, lane_key, lanes_key, late_key

pytestmark = QUIET

LANE = "lane"
EIGHT = TokenBucket("eight", "8/hour", burst=8)
_DENIED = Decision(
    allowed=False, limit=EIGHT, key="", cost=1, remaining=0, retry_after=1.0, delay=1.0, reset_after=0.0,
    reason="in line",
)  # fmt: skip


class Line:
    """A line in which jobs of a queue stand, as their denials leave it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.connection: Any = site.connection
        self.queue = site.queue
        self.scheduled = site.queue.scheduled_job_registry.key

    def joins(
        self, start: int, delay: float, slack: float = 600.0, lane: str = LANE, number: int | None = None
    ) -> Any:  # fmt: skip
        """A job that is denied for the first time, as a worker has taken it."""
        job = self.queue.enqueue(jobs.plain, str(number or start))
        self.denied(job, start, delay, slack, lane, number)
        return job

    def denied(
        self, job: Any, start: int, delay: float, slack: float = 600.0, lane: str = LANE, number: int | None = None
    ) -> None:  # fmt: skip
        """A worker has taken *job*, and puts it back."""
        self.connection.lrem(self.queue.key, 1, job.id)
        place = Place(1, start, number or start, 5, "s")
        ticket = Ticket(5, "x:x", 1, 5, lane, places={"x:x": place}).write()
        taken = self._site.fetch(job)
        deny(taken, read_record(taken), Deferred(delay, ticket, _DENIED), by_ticks=False, at_end=False, slack=slack)

    def promoted(self, **options: Any) -> list[str]:
        """What is promoted by one call, of all that is due."""
        due = look(self.connection, [self.queue.name])[0].due
        promote(self.connection, self.queue.name, due, **options)
        return self.taken()

    def woken(self, **options: Any) -> list[str]:
        wake(self.connection, self.queue.name, LANE, **options)
        return self.taken()

    def taken(self) -> list[str]:
        """The jobs in the queue, by their places. It is empty then."""
        found = [self._site.fetch(job).args[0] for job in self.queue.jobs]
        self.connection.delete(self.queue.key)
        return found

    def due(self, job: Any) -> float:
        """In how many seconds *job* comes back."""
        return float(self.connection.zscore(self.scheduled, job.id)) - time.time()


@pytest.fixture
def line(throttled_site: Site) -> Line:
    return Line(throttled_site)


def test_all_behind_the_first_become_due_as_much_later(line: Line) -> None:
    """Jobs of other tenants came in front of the first: those behind it are not asked for, and wait as much longer."""
    first, second, third = line.joins(1, -2), line.joins(2, -1), line.joins(3, 100)
    assert line.promoted() == ["1"]
    line.denied(first, 1, 48)
    assert line.promoted() == []
    assert line.due(second) == pytest.approx(49, abs=30), "50 s later, as the first"
    assert line.due(third) == pytest.approx(100, abs=30), "once it would be due"
    later = line.joins(4, -1)
    assert line.promoted() == ["4"], "what joins now was told the instants of now"
    line.denied(later, 4, 500)
    assert line.due(second) == pytest.approx(49, abs=30)
    assert line.promoted() == [], "only the first speaks for others"
    assert float(line.connection.hget(late_key("work"), LANE)) == pytest.approx(50, abs=30)


def test_what_joins_a_late_line_makes_it_later_still(line: Line) -> None:
    """It was told the instants of a late line: if that becomes later, so do they."""
    first = line.joins(1, -1)
    line.promoted()
    line.denied(first, 1, 49)
    line.connection.zrem(lane_key("work", LANE), first.id)
    second = line.joins(2, -1)
    assert line.promoted() == ["2"]
    line.denied(second, 2, 49)
    assert float(line.connection.hget(late_key("work"), LANE)) == pytest.approx(100, abs=30)


def test_a_line_is_later_by_a_small_step_at_most_than_its_first_has_become(line: Line) -> None:
    """Of many tenants each job is late by another amount: what the first says in all must not put off all others."""
    line.connection.hset(late_key("work"), LANE, 0)
    first = line.joins(1, -1)
    line.connection.hset(late_key("work"), LANE, -200)
    line.promoted()
    line.denied(first, 1, 9)
    assert float(line.connection.hget(late_key("work"), LANE)) == pytest.approx(-200 + 10 + 0.04, abs=5)


def test_a_job_comes_no_earlier_than_it_was_told(line: Line) -> None:
    """The line of a job is not as late any more as it was: the job keeps its own instant."""
    first, second = line.joins(1, -100), line.joins(2, 200)
    line.promoted()
    line.denied(first, 1, 100)
    line.woken()
    line.denied(first, 1, -50)
    assert line.promoted() == ["1"]
    assert line.due(second) == pytest.approx(200, abs=30)


def test_a_job_comes_before_its_wait_or_its_life_is_over(line: Line) -> None:
    """However late its line becomes."""
    first, second = line.joins(1, -100), line.joins(2, -1, slack=21)
    line.joins(3, -1, slack=0)
    line.promoted()
    line.denied(first, 1, 400)
    assert line.promoted() == ["3"]
    assert line.due(second) == pytest.approx(20, abs=19)


@pytest.mark.parametrize(
    ("options", "wait", "expires_in", "slack"),
    [
        ({}, None, math.inf, 600.0),
        ({"max_wait": 50}, None, math.inf, 30.0),
        ({"max_wait": 50}, 30.0, math.inf, 10.0),
        ({}, None, 25.0, 4.9),
        ({}, None, 5.0, 0.0),
    ],
)
def test_how_much_later_a_job_may_become(
    throttled_site: Site, options: dict[str, Any], wait: float | None, expires_in: float, slack: float
) -> None:
    """Of a job that waits for 20 s in all: no longer than it may, than it lives, and than ten minutes."""
    configure(throttled_site.limiter, **options)
    job = throttled_site.queue.enqueue(jobs.plain)
    outcome = Deferred(20.0, Ticket(due_us=25_000_000, since_us=5_000_000).write(), None)
    assert slack_of(job, Declared(JobOptions(max_wait=wait)), outcome, expires_in) == pytest.approx(slack)


def test_an_instant_that_was_given_otherwise_counts(line: Line) -> None:
    """Someone makes a scheduled job due by hand, though its line is late."""
    first, second = line.joins(1, -100), line.joins(2, 10)
    line.promoted()
    line.denied(first, 1, 100)
    line.connection.zadd(line.scheduled, {second.id: time.time() - 1})
    assert line.promoted() == ["2"]


def test_of_those_that_are_due_the_first_in_line_goes_first(line: Line) -> None:
    """One at a time; and a job that the user scheduled goes in its own turn."""
    for start, delay in ((2, -30), (1, -20)):
        line.joins(start, delay)
    line.queue.enqueue_at(datetime.now(timezone.utc) - timedelta(seconds=40), jobs.plain, "before")
    line.queue.enqueue_at(datetime.now(timezone.utc) - timedelta(seconds=25), jobs.plain, "between")
    line.joins(3, 100)
    assert line.promoted() == ["1", "before"], "it goes to the front"
    assert line.promoted() == ["2"]
    assert line.promoted() == ["between"]
    assert line.promoted() == []


def test_jobs_that_start_alike_go_by_their_numbers(line: Line) -> None:
    """As in each line without shares: the first of many is woken, and of those that are due the first is promoted."""
    for number in range(20, 0, -1):
        line.joins(7, 100, number=number)
    assert line.woken() == ["1"]
    assert line.woken() == ["2"]
    for number in (33, 32, 31):
        line.joins(7, -1, number=number)
    assert line.promoted() == ["31"]


def test_each_line_is_promoted_by_itself(line: Line) -> None:
    """The places of two lines say nothing of one another."""
    line.joins(2, -10)
    line.joins(1, -5, lane="other")
    assert line.promoted() == ["2"]
    assert line.promoted() == ["1"]


def test_a_job_that_changed_its_place_says_nothing_of_the_line(line: Line) -> None:
    """It left the line, and came in again behind others."""
    first = line.joins(1, -1)
    assert line.promoted() == ["1"]
    line.denied(first, 7, 100)
    assert not line.connection.hexists(late_key("work"), LANE)


def test_a_job_without_a_place_stands_in_no_line(line: Line) -> None:
    """Its turn comes after its end: it comes back for that, and not for the others."""
    line.joins(1, 100)
    line.joins(0, 50)
    assert line.connection.zcard(lane_key("work", LANE)) == 1


def test_a_job_that_is_woken_knows_by_how_much(line: Line) -> None:
    """One that is on time says nothing of the line; one that comes sooner than told does, also when it has to wait."""
    first = line.joins(1, 100)
    line.joins(2, 200)
    assert line.woken(least=500) == []
    assert line.woken(least=50) == ["1"]
    assert float(line.connection.hget(first.key, EARLY)) == pytest.approx(100, abs=30)
    line.denied(first, 1, 40)
    assert float(line.connection.hget(first.key, EARLY)) == pytest.approx(60, abs=30)
    assert line.woken() == ["1"]
    assert float(line.connection.hget(first.key, EARLY)) == pytest.approx(40, abs=30)
    line.denied(first, 1, 70)
    assert not line.connection.hexists(first.key, EARLY), "it is not sooner any more"
    line.denied(first, 1, -1)
    assert line.woken() == ["1"]
    assert not line.connection.hexists(first.key, EARLY), "it was due"


def test_a_job_that_its_line_holds_back_is_woken(line: Line) -> None:
    """It was to come by now, but its line is late: if it is not any more, this is how it shows."""
    first = line.joins(1, -1)
    second = line.joins(2, -1)
    line.promoted()
    line.denied(first, 1, 100)
    line.connection.zrem(line.scheduled, first.id)
    assert line.woken(least=50) == ["2"]
    assert float(line.connection.hget(second.key, EARLY)) == pytest.approx(100, abs=30)


def test_jobs_that_are_gone_hold_no_other_up(line: Line) -> None:
    """Thousands were deleted while they waited: the next that lives is woken at once, and the line forgets them."""
    key = lane_key("work", LANE)
    line.joins(5000, 100)
    line.connection.zadd(key, {f"gone {n}": n for n in range(1500)})
    assert line.woken() == [], "a thousand at once"
    assert line.woken() == ["5000"]
    assert line.connection.zcard(key) == 1


def test_what_is_cancelled_or_gone_does_not_come(line: Line) -> None:
    """Though its id is left among the scheduled jobs; and it is not left there."""
    cancelled, deleted = line.joins(1, -1), line.joins(2, -1)
    line.connection.hset(cancelled.key, "status", "canceled")
    line.connection.delete(deleted.key)
    assert line.promoted() == line.promoted() == []
    assert line.connection.zcard(line.scheduled) == 0


def test_a_line_that_is_empty_is_forgotten(line: Line) -> None:
    first = line.joins(1, -100)
    line.promoted()
    line.denied(first, 1, 100)
    for key in (late_key("work"), lanes_key("work"), lane_key("work", LANE)):
        assert line.connection.ttl(key) == pytest.approx(100 + 600 + 60, abs=30), "as long as it may wait, and a minute"
    line.connection.delete(lane_key("work", LANE))
    line.connection.zadd(lanes_key("work"), {LANE: 0})
    assert wake_lanes(line.connection, "work", 0.5) == 0
    assert not line.connection.exists(late_key("work"))
    assert not line.connection.exists(lanes_key("work"))


def test_a_line_whose_first_is_due_soon_is_not_asked(line: Line) -> None:
    """It asks by itself: a process with jobs asks often enough."""
    line.joins(1, 100)
    for every, count in ((500.0, 0), (50.0, 1)):
        line.connection.zadd(lanes_key("work"), {LANE: 0})
        assert wake_lanes(line.connection, "work", every) == count


def test_an_id_that_is_used_again_begins_anew(line: Line) -> None:
    """Fields of a job's hash outlive it: what its predecessor noted does not count."""
    line.joins(9, 100)
    job = line.joins(1, -500)
    assert line.promoted() == ["1"]
    line.connection.hset(job.key, "throttlekit", Record({"v": 1}, True).write("another"))
    line.denied(job, 1, 100)
    assert float(line.connection.hget(late_key("work"), LANE) or 0) == 0
    assert line.connection.hget(job.key, LINE)


def test_a_grant_leaves_nothing_of_the_line(throttled_site: Site) -> None:
    """What denials noted is gone once the job runs."""
    site = throttled_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, throttle=[jobs.HOURLY])
    site.work()
    assert site.connection.hexists(job.key, LINE)
    assert lane_in(read_record(site.fetch(job)).ticket).name
    site.open(jobs.HOURLY)
    site.work()
    assert not site.connection.hexists(job.key, LINE)


def test_a_job_that_was_denied_again_brings_up_the_next(
    throttled_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """
    Three are told that they are due in minutes, and then the pause ends. The second asks too early, twice, and comes at
    the instant that it is told then: that is no less early for the third, which asks as the second runs.
    """
    site, limit = throttled_site, TokenBucket("faster", "1/s", burst=1)
    monkeypatch.setattr(_worker, "LANES_EVERY_S", 600.0)
    site.limiter.pause(limit, 120.0)
    first, second, third = (site.queue.enqueue(jobs.plain, n, throttle=[limit]) for n in range(3))
    site.work()
    site.limiter.resume(limit)
    lane = lane_in(read_record(site.fetch(first)).ticket).name
    for _ in range(2):
        assert wake(site.connection, site.queue.name, lane)
        site.work()
    assert site.noted == ["0"]
    assert float(site.connection.hget(second.key, EARLY) or 0) < 0.5
    site.connection.hdel(second.key, EARLY)  # what is left, if the question itself took more than `SOON`
    wait_until(lambda: look(site.connection, [site.queue.name])[0].due, description="the second is due")
    site.work()
    assert site.noted == ["0", "1"]
    assert Line(site).due(third) < 2


def test_jobs_that_come_are_looked_at_while_others_are_due(site_of_many: Site) -> None:
    """Where jobs are due all the time, because the workers are the bottleneck, every other turn is the queue's."""
    site = site_of_many
    for n in range(4):
        site.queue.enqueue(jobs.plain, f"new {n}")
    site.work()
    assert site.noted == ["0", "new 0", "1", "new 1", "2", "new 2", "3", "new 3"]


def test_due_jobs_go_first_as_a_rule(site_of_many: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worker, "_NEW_EVERY", 600.0)
    site_of_many.queue.enqueue(jobs.plain, "new")
    site_of_many.work()
    assert site_of_many.noted == ["0", "1", "2", "3", "new"]


@pytest.fixture
def site_of_many(throttled_site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Four jobs that were denied are due."""
    site = throttled_site
    site.shut(EIGHT)
    for n in range(4):
        site.queue.enqueue(jobs.plain, n, throttle=[EIGHT])
    site.work()
    site.open(EIGHT)
    assert site.limiter.acquire(EIGHT, cost=4)  # a grant that leaves most would bring the next job
    monkeypatch.setattr(_worker, "_NEW_EVERY", 0.0)
    return site

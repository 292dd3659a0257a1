"""A queue that one of RQ's schedulers has, with stock workers: which job is next, and what waits where."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rq import SimpleWorker
from rq.job import JobStatus

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from support.rq.workers import Fleet, rq_worker
from support.waiting import wait_until
from throttlekit import Concurrency, Decision, FixedWindow, Limit, TokenBucket
from throttlekit._core.line import Place
from throttlekit._engine.ticket import Ticket, limit_ref
from throttlekit.adapter import Deferred, Lane
from throttlekit_rq import ThrottledSimpleWorker, configure
from throttlekit_rq._ticks import TickPatience, bring_next
from throttlekit_rq._waiting import deny, line_up, read_record
from throttlekit_rq._wire import Record, lane_key

pytestmark = QUIET

LANE, START = "lane", 1_700_000_000_000_000
TENTHS = TokenBucket("tenths", "10/s", burst=10)
EIGHT = TokenBucket("eight", "8/hour", burst=8)
ALLOWED = Decision(
    allowed=True, limit=TENTHS, key="", cost=1, remaining=9, retry_after=0.0, delay=0.0, reset_after=0.0,
    reason="allowed",
)  # fmt: skip


def ticket_of(place: int, lane: str = LANE, *, due_in: float = 0.0, limit: Limit = TENTHS) -> Any:
    """What a job carries that stands at *place* in the line *lane* of *limit*."""
    due_us, ref = round((time.time() + due_in) * 1e6), limit_ref(limit)
    return Ticket(due_us, ref, 1, 5, lane, places={ref: Place(1, START, place, due_us, "s")}).write()


class Ticks:
    """A queue of stock workers, which RQ's scheduler has."""

    def __init__(self, site: Site) -> None:
        self.site, self.queue = site, site.queue
        self.connection: Any = site.connection
        self.scheduled = site.queue.scheduled_job_registry.key
        site.tick()

    def denied(self, place: int, lane: str = LANE, *, delay: float = 50.0, due_in: float = 0.0, **options: Any) -> Any:
        """A job that was denied, and waits among the scheduled ones for *delay* seconds."""
        job = self.queue.enqueue(jobs.plain, str(place))
        self.puts_back(job, ticket_of(place, lane, due_in=due_in), delay, **options)
        return job

    def puts_back(self, job: Any, ticket: Any, delay: float = 0.5, in_queue: int | None = None) -> Any:
        """A worker has taken *job*, and puts it back in the transaction that ends it; the worker's own object of it."""
        self.connection.lrem(self.queue.key, 1, job.id)
        taken, outcome = self.site.fetch(job), Deferred(delay, ticket, None)
        with self.connection.pipeline() as pipeline:
            deny(
                taken, read_record(taken), outcome, by_ticks=True, at_end=False, in_queue=in_queue, pipeline=pipeline
            )  # fmt: skip
            pipeline.execute()
        return taken

    def stand(self, *waiting: Any) -> None:
        """Exactly these stand in the queue, in this order, however they came there."""
        self.connection.delete(self.queue.key)
        for job in waiting:
            self.connection.zrem(self.scheduled, job.id)
            self.connection.hset(job.key, "status", "queued")
            self.connection.rpush(self.queue.key, job.id)

    def new(self, *names: str) -> list[Any]:
        return [self.queue.enqueue(jobs.plain, name) for name in names]

    def lined_up(self, place: int = 100, every: float = 0.0, **options: Any) -> int:
        job: Any = SimpleNamespace(origin=self.queue.name, connection=self.connection)
        return line_up(job, Lane(LANE, START, place), every, **options)

    @property
    def order(self) -> list[str]:
        """The jobs in the queue, by their names."""
        return [self.site.fetch(job).args[0] for job in self.queue.jobs]

    @property
    def lane(self) -> list[str]:
        return [job_id.decode() for job_id in self.connection.zrange(lane_key("work", LANE), 0, -1)]

    def comes_in(self, job: Any) -> float:
        """In how many seconds *job* is due, whichever instant of that second notes it."""
        return float(math.floor(self.connection.zscore(self.scheduled, job.id)) - time.time())


@pytest.fixture
def ticks(stock_site: Site) -> Ticks:
    return Ticks(stock_site)


# The order of the queue


def test_jobs_of_a_line_stand_in_their_order(ticks: Ticks) -> None:
    """RQ's scheduler puts each batch before what is left of the one before: a job that has to wait mends that."""
    ticks.stand(*(ticks.denied(place) for place in (3, 4, 1, 2)))
    assert ticks.lined_up(3) == 2, "so many go before the third"
    assert ticks.order == ["1", "2", "3", "4"]
    assert ticks.lined_up(0) == 0


def test_new_jobs_go_before_those_that_wait(ticks: Ticks) -> None:
    """As many as are asked for, in their own order; the others stay behind."""
    waiting = [ticks.denied(1), ticks.denied(2)]
    ticks.stand(*waiting, *ticks.new("a", "b", "c", "d"))
    ticks.lined_up(new=3)
    assert ticks.order == ["a", "b", "c", "1", "2", "d"]
    ticks.lined_up(new=3)
    assert ticks.order == ["a", "b", "c", "1", "2", "d"], "those in front count"
    ticks.lined_up(new=4)
    assert ticks.order == ["a", "b", "c", "d", "1", "2"]


def test_other_jobs_keep_their_places(ticks: Ticks) -> None:
    """Those of another line, those without a place, and new ones that nothing lets go first."""
    second, other, first = ticks.denied(2), ticks.denied(9, "other"), ticks.denied(1)
    placeless = ticks.denied(8)
    ticks.connection.zrem(lane_key("work", LANE), placeless.id)
    (new,) = ticks.new("new")
    ticks.stand(second, other, new, placeless, first)
    ticks.lined_up()
    assert ticks.order == ["1", "9", "new", "8", "2"]


def test_new_jobs_pass_no_other_line_that_is_long_overdue(ticks: Ticks) -> None:
    """Where workers are behind and new jobs come all the time, it would never be the turn of what stands there."""
    overdue, late = ticks.denied(1, "other", due_in=-60), ticks.denied(2, "other", due_in=-3)
    ticks.stand(late, *ticks.new("a"), overdue, *ticks.new("b"))
    ticks.lined_up(new=16)
    assert ticks.order == ["a", "2", "1", "b"]


def test_only_the_front_of_a_long_queue_is_looked_at(ticks: Ticks) -> None:
    """256 jobs: what stands behind them waits, however long the queue is."""
    second, first, at_end = ticks.denied(2), ticks.denied(1), ticks.denied(0)
    between = ticks.new(*(f"n{n}" for n in range(254)))
    ticks.stand(second, *between, first, at_end)
    ticks.lined_up()
    assert (ticks.order[0], ticks.order[255:]) == ("1", ["2", "0"])


def test_without_a_scheduler_nothing_changes(ticks: Ticks) -> None:
    """Then workers of ours have the queue, or workers wait in place."""
    ticks.stand(ticks.denied(2), ticks.denied(1), *ticks.new("new"))
    soon = ticks.denied(3, delay=-5)
    before = ticks.connection.zscore(ticks.scheduled, soon.id)
    ticks.connection.delete("rq:scheduler-lock:work")
    assert ticks.lined_up(every=9.0, new=16) == 0
    assert ticks.order == ["2", "1", "new"]
    assert ticks.connection.zscore(ticks.scheduled, soon.id) == before


# The instants of scheduled jobs


def test_jobs_that_would_come_too_early_come_later(ticks: Ticks) -> None:
    """Of those that come by the next look, each when those before it have passed, and in five seconds at the latest."""
    soon = [ticks.denied(place, delay=-2) for place in range(1, 12)]
    other = ticks.denied(1, "other", delay=-2)
    far = ticks.denied(12, delay=50)
    assert ticks.lined_up(0, every=0.8) == 0
    assert ticks.comes_in(soon[0]) < 0, "the first comes"
    assert ticks.comes_in(soon[4]) == pytest.approx(4 * 0.8, abs=1.01)
    assert ticks.comes_in(soon[10]) == pytest.approx(5, abs=1.01)
    assert ticks.comes_in(other) < 0, "their places say nothing of another line"
    assert ticks.comes_in(far) > 40


def test_a_grant_that_leaves_units_brings_the_next_ones(ticks: Ticks) -> None:
    """As many as units at the scheduler's next look, and those that pass within a second after them; in their order."""
    waiting = [ticks.denied(place) for place in range(1, 7)]
    ticks.lined_up(0, every=0.5, units=3)
    ticks.site.tick()
    assert ticks.order == ["1", "2", "3"]
    assert [ticks.comes_in(job) > 40 for job in waiting[3:]] == [False, False, True]


def test_jobs_that_have_ended_leave_the_line(ticks: Ticks) -> None:
    """However many: deleted, expired, cancelled, finished. Those that stand in the queue or run stay."""
    running, queued, cancelled, gone, waits = (ticks.denied(place) for place in (3, 1, 2, 4, 900))
    ticks.stand(queued)
    for job, status in ((running, "started"), (cancelled, "canceled")):
        ticks.connection.zrem(ticks.scheduled, job.id)
        ticks.connection.hset(job.key, "status", status)
    ticks.site.fetch(gone).delete()
    ticks.connection.zadd(lane_key("work", LANE), {f"gone {n}": START + 5 + n for n in range(500)})
    ticks.lined_up(every=0.1)
    assert ticks.lane == [queued.id, running.id, waits.id]


# How a job goes back


def test_a_job_that_waits_in_the_queue_is_a_queued_job(ticks: Ticks) -> None:
    """Every list shows it there, once; it keeps its place, and what it carries; the line expires."""
    first = ticks.denied(1)
    ticks.stand(first, *ticks.new("a", "b"))
    job = ticks.queue.enqueue(jobs.plain, "2", ttl=100)
    taken = ticks.puts_back(job, ticket_of(2), in_queue=1)
    assert taken.get_status(refresh=False) == ticks.site.fetch(job).get_status() == JobStatus.QUEUED
    assert ticks.order == ["a", "1", "2", "b"]
    assert ticks.queue.scheduled_job_registry.get_job_ids() == []
    assert ticks.lane == [first.id, job.id]
    assert read_record(ticks.site.fetch(job)).ticket is not None
    assert 0 < ticks.connection.ttl(lane_key("work", LANE)) <= 50 + 60 + 1
    assert 0 < ticks.connection.ttl(job.key) <= 100


def test_a_job_that_another_limit_denies_leaves_its_line(ticks: Ticks) -> None:
    """There it would be timed, and let pass, as one that it is not any more."""
    job = ticks.denied(1)
    assert ticks.lane == [job.id]
    ticks.puts_back(job, ticket_of(1, "other"))
    assert ticks.lane == []
    assert ticks.connection.zcard(lane_key("work", "other")) == 1


def test_workers_of_ours_leave_such_a_line_alone(throttled_site: Site) -> None:
    """A grant that leaves most would wake the next: that stands in the queue already, in its place."""
    site = throttled_site
    site.tick()
    site.shut(EIGHT)
    for n in range(2):
        site.queue.enqueue(jobs.plain, n, throttle=[EIGHT])
    site.work()
    (lane,) = site.connection.scan_iter("throttlekit:rq:lane:*")
    site.open(EIGHT)
    site.tick()
    worker = ThrottledSimpleWorker([site.queue.name], connection=site.connection)
    site.run(worker, burst=True, max_jobs=1)
    assert len(site.noted) == 1
    assert [site.connection.zscore(lane, job_id) is not None for job_id in site.queue.get_job_ids()] == [True]


# What a work-horse waits for


def patience_of(
    ticks: Ticks, place: int, *, due_in: float = 0.0, limit: Limit = TENTHS, longest: float = 1.25
) -> TickPatience:  # fmt: skip
    """That of a job at *place*, which has come back; 0: of a new one."""
    job = ticks.site.fetch(ticks.queue.enqueue(jobs.plain, "asks"))
    ticks.connection.lrem(ticks.queue.key, 1, job.id)
    patience = TickPatience(job, Record(ticket_of(place, due_in=due_in, limit=limit) if place else None, None))
    patience.longest = longest
    return patience


def denial(delay: float, limit: Limit = TENTHS, cost: int = 1) -> Decision:
    return replace(ALLOWED, allowed=False, limit=limit, cost=cost, delay=delay, reason="exhausted")


def test_a_job_waits_in_place_if_it_is_the_next(ticks: Ticks) -> None:
    """Behind it stand others of its line; new jobs, which another worker may ask for meanwhile, pass both."""
    ticks.stand(ticks.denied(7), *ticks.new("new"))
    patience = patience_of(ticks, 5)
    began = time.monotonic()
    assert patience.wait_out(denial(0.1))
    assert time.monotonic() - began >= 0.1
    assert ticks.order == ["new", "7"]


def test_a_job_lets_those_before_it_pass_and_stays_in_the_queue(ticks: Ticks) -> None:
    """It does not wait in place: the worker takes the one that stands first."""
    ticks.stand(ticks.denied(7), ticks.denied(3))
    patience = patience_of(ticks, 5)
    assert not patience.wait_out(denial(0.5))
    assert ticks.order == ["3", "7"]
    assert patience.stays_behind(Deferred(0.5, ticket_of(5), denial(0.5))) == 0
    assert patience.stays_behind(Deferred(1.5, ticket_of(5), denial(1.5))) is None, "the scheduler looks before"


def test_the_pace_of_another_limit_times_no_job(ticks: Ticks) -> None:
    """A job of a shared line that its account's own limit holds back must not hold back the shared line."""
    soon = [ticks.denied(place, delay=-2) for place in range(6, 12)]
    assert patience_of(ticks, 5).wait_out(denial(0.02, TokenBucket("own", "1/minute")))
    assert max(map(ticks.comes_in, soon)) < 0
    assert patience_of(ticks, 5).wait_out(denial(0.02, TENTHS, cost=10))
    assert max(map(ticks.comes_in, soon)) > 2


@pytest.mark.parametrize(
    ("place", "outcome", "stays"),
    [
        (0, Deferred(0.5, ticket_of(1), denial(0.5)), True),
        (0, Deferred(1.5, ticket_of(1), denial(1.5)), False),
        (0, Deferred(0.5, ticket_of(1), denial(0.5, cost=5)), False),
        (0, Deferred(0.5, ticket_of(1), denial(0.5, FixedWindow("window", "100/s"))), False),
        (0, Deferred(0.5, ticket_of(1), denial(0.5, Concurrency("slots", 9, lease=60))), False),
        (0, Deferred(0.5, None, denial(0.5)), False),
        (0, Deferred(0.5, ticket_of(1), None), False),
        (5, Deferred(0.5, ticket_of(1), denial(0.5)), False),
    ],
    ids=["often", "later", "seldom", "not steady", "slots", "no place", "undecided", "came back"],
)
def test_which_new_job_waits_in_the_queue(ticks: Ticks, place: int, outcome: Deferred, stays: bool) -> None:
    """One that is due before the scheduler looks again, under a limit that lets a job pass every now and then."""
    assert (patience_of(ticks, place).stays_behind(outcome) is not None) is stays


def test_with_no_wait_in_place_no_job_waits_in_the_queue(ticks: Ticks) -> None:
    """There it would be asked for at once, again."""
    configure(ticks.site.limiter, max_inline_wait=0)
    assert patience_of(ticks, 0).stays_behind(Deferred(0.5, ticket_of(1), denial(0.5))) is None


def test_a_job_that_comes_early_waits_for_its_instant(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question less. Unless others of its line stand before it."""
    now, waits = time.time(), list[float]()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "sleep", waits.append)
    patience_of(ticks, 5, due_in=0.14, longest=0.05).wait_until_due()
    assert waits == [pytest.approx(0.14, abs=0.001)]
    ticks.stand(ticks.denied(3))
    patience_of(ticks, 5, due_in=0.14).wait_until_due()
    assert len(waits) == 1


def test_fewer_new_jobs_pass_where_a_worker_is_slow_to_ask(ticks: Ticks) -> None:
    """A fork may take longer than the job has to wait: those that pass would make it late."""
    ticks.stand(ticks.denied(7), *ticks.new("a", "b", "c", "d"))
    job = ticks.site.fetch(ticks.queue.enqueue(jobs.plain, "asks"))
    ticks.connection.lrem(ticks.queue.key, 1, job.id)
    job.prepare_for_execution("worker", ticks.connection.pipeline())
    job.started_at = job.started_at.replace(year=job.started_at.year - 1)
    patience = TickPatience(job, Record(ticket_of(5), None))
    patience.longest = 1.25
    assert patience.wait_out(denial(0.05))
    assert ticks.order == ["a", "7", "b", "c", "d"]


@pytest.mark.parametrize(
    ("limit", "cost", "brings"),
    [(TENTHS, 1, True), (TENTHS, 0, False), (TokenBucket("own", "100/s"), 1, False)],
    ids=["of its line", "no cost", "another limit"],
)
def test_a_grant_brings_jobs_of_its_own_line(ticks: Ticks, limit: Limit, cost: int, brings: bool) -> None:
    """Of several limits the one that has the least left is what a grant tells: it may not be that of the line."""
    behind = ticks.denied(6)
    job: Any = SimpleNamespace(origin="work", connection=ticks.connection)
    run: Any = SimpleNamespace(decision=replace(ALLOWED, limit=limit, cost=cost))
    bring_next(job, Record(ticket_of(5), None), run)
    assert (ticks.comes_in(behind) < 2) is brings


# Real workers


def test_a_new_job_stays_in_the_queue_until_it_runs(ticks: Ticks) -> None:
    """Three jobs at 10/s, and no scheduler that looks meanwhile: a stock worker runs them in order."""
    site, limit = ticks.site, TokenBucket("tenth", "10/s", burst=1)
    for name in ("a", "b", "c"):
        site.queue.enqueue(jobs.plain, name, throttle=[limit])
    site.run(SimpleWorker(["work"], connection=site.connection))
    assert site.noted == ["a", "b", "c"]
    assert site.deferrals_left() == []
    assert list(site.connection.scan_iter("throttlekit:rq:lane:*")) == []


@pytest.mark.workers
def test_light_tenants_run_while_a_backlog_stands(stock_site: Site) -> None:
    """
    Two stock workers, one of them with RQ's scheduler. 300 jobs of one tenant wait, and the jobs of ten others that
    come, half of what passes, have their shares: each runs at once, by and large, and the backlog in its order.
    """
    site, limit = stock_site, TokenBucket("shared", "10/s", burst=10, share="{tenant}")
    for n in range(300):
        site.queue.enqueue(jobs.plain, n, tenant="heavy", throttle=[limit])
    kinds = ("rq.SimpleWorker+scheduler", "rq.SimpleWorker")
    came: dict[str, int] = {}
    with Fleet([rq_worker(site.url, "work", kind=kind) for kind in kinds], {"THROTTLEKIT_URL": site.url}) as fleet:
        waiting = site.queue.scheduled_job_registry
        # All but some have been asked. How many of them wait depends on the machine.
        wait_until(lambda: waiting.count + len(site.noted) > 275, description="most of the backlog waits")
        assert waiting.count > 75, "else no backlog stands behind fifty others"
        for n in range(50):
            came[f"light {n}"] = passed = len(site.noted)
            site.queue.enqueue(jobs.plain, f"light {n}", tenant=n % 10, throttle=[limit])
            wait_until(lambda: len(site.noted) >= passed + 2, description="two more have run")  # noqa: B023
        wait_until(lambda: len(site.noted) == 350, description="all have run")
        assert fleet.running
    ran = {name: place for place, name in enumerate(site.noted)}
    assert len(ran) == 350, "each once"
    assert max(ran[name] - before for name, before in came.items()) < 50, "within five seconds, by the limit's pace"
    heavy = [int(name) for name in site.noted if name not in came]
    assert max(abs(place - n) for place, n in enumerate(heavy)) < 60, "in their order, by and large"
    assert site.deferrals_left() == []
    assert list(site.connection.scan_iter("throttlekit:rq:lane:*")) == []

"""The judgements of the benchmarks: they report exactly the promises that a record breaks."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from typing import Any

import pytest
import redis

from benchmarks import backlog, page, peers, throughput, waiting_jobs
from support.flood.backlogs import Cost
from support.flood.campaigns import Plan, Record, judge
from support.flood.waiting_jobs import Found, Work
from support.reports.tables import Promise, promises, ratios, spread, table
from support.throughput.contenders import CONTENDERS, sent_by
from support.throughput.run import VARIANTS, Timing

_PLAN = Plan(campaigns=2, calls=100, account=1.0)  # 16 and 17 in two seconds, and 33


def _smooth(plan: Plan) -> Record:
    """Return a record in which each campaign is granted a call at each of its intervals, all charged to the account."""
    grants: dict[str, list[int]] = {"account": []}
    for name, amount in plan.amounts.items():
        if name != "account":
            grants[name] = [number * 2_000_000 // amount + 1 for number in range(plan.calls)]
            grants["account"] += grants[name]
    starts = {name: list(range(plan.calls)) for name in grants if name != "account"}
    return Record(grants=grants, starts=starts, done=plan.campaigns * plan.calls)


def test_record_that_keeps_all_promises_has_no_faults() -> None:
    """No limit is broken, no call is lost, begun twice or out of order, and the limits are used."""
    found = judge(_PLAN, _smooth(_PLAN))
    assert found.broken == {}
    assert (found.lost, found.twice, found.displaced, found.inverted) == (0, 0, 0, 0)
    assert found.use == pytest.approx(1, abs=0.02)
    assert found.account_use == pytest.approx(1, abs=0.02)
    assert found.campaign_use == {}  # no campaign's own limit was binding
    ample = replace(_PLAN, account=2.0)
    found = judge(ample, _smooth(ample))
    assert found.account_use is None
    assert list(found.campaign_use.values()) == pytest.approx([1, 1], abs=0.02)


def test_limit_that_was_broken_once_is_named() -> None:
    """Additional grants of one campaign at one instant, as many as its burst, break its bound; so for the account."""
    record = _smooth(_PLAN)
    record.grants["campaign-01"].extend([5_000_000] * 5)
    assert set(judge(_PLAN, record).broken) == {"campaign-01"}
    record.grants["account"].extend([5_000_000] * 10)
    assert set(judge(_PLAN, record).broken) == {"account", "campaign-01"}


def test_missing_grants_reduce_the_use() -> None:
    """Without every tenth grant, the use is nine tenths."""
    record = _smooth(_PLAN)
    thinned = {name: [at for n, at in enumerate(sorted(times)) if n % 10] for name, times in record.grants.items()}
    found = judge(_PLAN, replace(record, grants=thinned))
    assert found.use == pytest.approx(0.9, abs=0.03)


def test_lost_duplicate_and_misordered_calls_are_counted() -> None:
    """The counts are of the bodies that began and of those that ended."""
    record = _smooth(_PLAN)
    order = [*range(1, _PLAN.calls), 0, 5]
    found = judge(_PLAN, replace(record, starts={**record.starts, "campaign-00": order}, done=_PLAN.calls))
    assert (found.lost, found.twice, found.displaced) == (_PLAN.calls, 1, _PLAN.calls - 1)
    assert found.inverted == pytest.approx(2 / _PLAN.calls)


_COST = Cost(
    burst=5,
    done=10,
    lost=0,
    asks=2.0,
    denials=1.0,
    deliveries=2.0,
    use=1.0,
    beyond_us=-1.0,
    store_us=1.0,
    broker_us=1.0,
    inverted=0.0,
)


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        ({}, [True, True, True]),
        ({"beyond_us": 1.0}, [False, True, True]),
        ({"use": 0.9}, [True, False, True]),
        ({"denials": 1.15}, [True, True, False]),
        ({"lost": 1}, [False, True, True]),
    ],
)
def test_backlog_is_judged_by_bound_use_and_cost(last: dict[str, float], kept: list[bool]) -> None:
    """The cost of the longest backlog is compared with the cost of the shorter ones."""
    found = {100: _COST, 1000: _COST, 10_000: replace(_COST, **last)}
    assert [each.kept for each in backlog.judged("dramatiq", found)] == kept


_FOUND = Found(
    sent=10,
    taken=10,
    taken_s=1.0,
    first_s=1.0,
    ready_s=1.0,
    worker_mb=[50.0],
    peak_mb=50.0,
    sent_b=1.0,
    broker_b=1.0,
    store_b=1.0,
    line=Work(1, 1, 1, 1),
    drain=Work(1, 1, 1, 1),
    use=1.0,
    load=1.0,
    overtaken=0.0,
    places=0,
    beyond_us=-1.0,
    extra_1_s=None,
    extra_100_s=1.0,
    restart=dict.fromkeys(("stopped", "ready", "first", "full"), None),
    kill={"full": None, "use": 1.0},
    twice_before=0,
    twice=1,
    lost=0,
    doubled=0,
    again=0,
    dead=0,
    stranded=0,
    done=6,
    waiting=4,
    deliveries=12.0,
)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, [True, True, True, None]),
        ({"beyond_us": 1.0}, [False, True, True, None]),
        ({"lost": 1}, [True, False, True, None]),
        ({"stranded": 1}, [True, False, True, None]),
        ({"twice_before": 1}, [True, True, False, None]),
    ],
)
def test_waiting_jobs_are_judged_by_bound_and_count(change: dict[str, Any], kept: list[bool]) -> None:
    """Bodies that run twice after a SIGKILL are printed but not judged; a time that was not reached is a dash."""
    found = replace(_FOUND, **change)
    assert [each.kept for each in waiting_jobs.judged("Dramatiq, Redis, 10", found)] == kept
    assert "-, 1.00" in waiting_jobs.row("Dramatiq, Redis, 10", asdict(found))


@pytest.mark.parametrize(
    ("name", "with_limit", "kept"),
    [
        ("RQ, stock worker", 21_000.0, True),
        ("RQ, stock worker", 21_100.0, False),
        ("Dramatiq, Redis", 20_100.0, True),
        ("Dramatiq, Redis", 20_101.0, False),
        ("Dramatiq, RabbitMQ", 24_000.0, True),
        ("RQ, ThrottledSimpleWorker", 24_001.0, False),
    ],
)
def test_framework_is_judged_by_its_own_budget(name: str, with_limit: float, kept: bool) -> None:
    """Polling frameworks are judged by the share, some by the cost of an INCR, the others by the time of a job."""
    took = {variant: [Timing(with_limit if variant == "limit" else 20_000.0)] * 3 for variant in VARIANTS}
    assert [each.kept for each in throughput.judged(name, throughput.SETUPS[name], took)] == [kept]


@pytest.mark.parametrize(
    ("seconds", "trips", "kept"), [(1.0, 1.0, [True, True]), (1.1, 1.0, [False, True]), (0.9, 2.0, [True, False])]
)
def test_decision_is_judged_by_latency_and_round_trips(seconds: float, trips: float, kept: list[bool]) -> None:
    """The latency is compared with the INCR of the same round."""
    base, ours = (next(each for each in CONTENDERS if each.name == name) for name in (peers.BASE, peers.OURS))
    figures: dict[Any, peers.Figures] = {base: peers.Figures(trips=[1.0]), ours: peers.Figures(trips=[trips])}
    figures[base].seconds["allowed"], figures[ours].seconds["allowed"] = [1.0, 2.0], [seconds, 2 * seconds]
    assert [each.kept for each in peers.judged(figures, figures[base])] == kept


def test_round_trips_are_those_of_the_calling_thread(redis_url: str) -> None:
    """The reports of a limiter, which another thread sends, are no round trips of a decision."""
    client: Any = redis.Redis.from_url(redis_url)
    client.ping()  # what connecting sends is no part of a decision

    def decide() -> None:
        client.get("mine")
        other = threading.Thread(target=client.get, args=("report",))
        other.start()
        other.join()

    assert [b"mine" in trip for trip in sent_by(decide)] == [True]
    assert len(sent_by(lambda: client.pipeline().get("one").get("two").execute())) == 1
    assert len(sent_by(lambda: (client.get("one"), client.get("two")))) == 2


def test_page_collects_the_promises_of_its_commands() -> None:
    """The promises, including their empty cells, are removed from the output of the command."""
    shown = [Promise("what", "1", "<= 2", True), Promise("the other", "3", "", None)]
    other = table(["a", "b"], [["1", "2"]])
    text, rows = page.collected(f"Text.\n\n{other}\n\n{promises('peers', shown)}\n\nMore.")
    assert text == f"Text.\n\n{other}\n\n\nMore."
    assert rows == [["peers", "what", "1", "<= 2", "yes"], ["peers", "the other", "3", "", "-"]]
    assert page.formatted(text) == text
    assert page.formatted("plain") == "```text\nplain\n```"


def test_spread_is_the_middle_half_of_the_rounds() -> None:
    """Each round is compared with the base of the same round."""
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert spread([1.0, 2.0, 3.0, 4.0, 100.0]) == "3.00 [2.00 … 4.00]"
    assert spread([1.0]) == "1.00"

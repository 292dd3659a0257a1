"""
Campaigns that call one partner at once: each has a rate, and all of them share the rate of the account.

    plan = Plan(campaigns=20, calls=500, account=1.25)
    found = judge(plan, happen(plan))

`happen` runs them on real `dramatiq` workers. `judge` is pure, and shares no code with the limits.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from support.faults.histories import Broken, bucket, check
from support.flood.backlogs import Meter, backlog_servers
from support.flood.figures import inversions
from support.flood.run import Flood, Flooding, FloodLimit, FloodRecord
from support.waiting import wait_until

__all__ = ["Found", "Plan", "Record", "happen", "judge"]

_PERIOD_US = 2_000_000
_WINDOW_US = 1_000_000
_FEWEST_WINDOWS = 5
_SETTLED_US = 2_000_000
"""The time from the first grant until the bursts are used up."""
_ACCOUNT = "account"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    Attributes:
        calls: How many calls each campaign has. All are sent before the workers start, alternating between campaigns.
        account: The rate of the account, as a share of the sum of the campaigns' rates.
    """

    campaigns: int = 20
    calls: int = 500
    account: float = 1.25
    processes: int = 4
    threads: int = 4

    @property
    def amounts(self) -> dict[str, int]:
        """
        The calls in two seconds of each limit, by name. The first campaign has 8/s, and each next one has 0.5/s more.
        """
        each = {f"campaign-{number:02}": 16 + number for number in range(self.campaigns)}
        return {**each, _ACCOUNT: max(2, round(sum(each.values()) * self.account))}

    @property
    def bursts(self) -> dict[str, int]:
        """The burst of each limit: the calls of half a second."""
        return {name: max(1, amount // 4) for name, amount in self.amounts.items()}

    def limit(self, name: str) -> FloodLimit:
        return FloodLimit(name, f"{self.amounts[name]}/{_PERIOD_US // 1_000_000}s", self.bursts[name])


@dataclass(frozen=True, kw_only=True)
class Record:
    """
    The record of a run, in µs.

    Attributes:
        grants: The times at which the limits' Redis charged a limit, by the limit's name.
        starts: The numbers of the calls in the order in which their bodies began, by campaign.
        done: How many different calls have ended.
        store_cpu, broker_cpu: The share of a core that each Redis used, from the first grant to the last one.
        asks: Requests to the limits' store per call.
    """

    grants: Mapping[str, list[int]]
    starts: Mapping[str, list[int]]
    done: int
    store_cpu: float = 0.0
    broker_cpu: float = 0.0
    asks: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """
    The result of a record.

    Attributes:
        broken: The violation of each limit whose bound was exceeded.
        lost, twice: Calls that are not done; bodies that began, minus one for each call.
        seconds: The time from the first grant to the last one.
        use: The granted share of the calls that all limits allowed while any campaign had calls left.
        account_use: The same for the account, while it was the scarce limit. None: it never was.
        campaign_use: The same for each campaign.
        inverted, displaced: The share of pairs of one campaign's calls that began in the wrong order, and by how many
            positions a call was displaced at most; both of the worst campaign.
    """

    broken: Mapping[str, Broken]
    lost: int
    twice: int
    seconds: float
    use: float | None
    account_use: float | None
    inverted: float
    displaced: int
    campaign_use: Mapping[str, float] = field(default_factory=dict[str, float])


def judge(plan: Plan, record: Record) -> Found:
    rules = {name: bucket(amount, _PERIOD_US, plan.bursts[name]) for name, amount in plan.amounts.items()}
    broken = {
        name: found for name, rule in rules.items() if (found := check(rule, [(at, 1) for at in record.grants[name]]))
    }
    account = sorted(record.grants[_ACCOUNT])
    shares = _shares(plan, {name: sorted(times) for name, times in record.grants.items()})
    begun = [first_of(order) for order in record.starts.values()]
    return Found(
        broken=broken,
        lost=plan.campaigns * plan.calls - record.done,
        twice=sum(len(order) for order in record.starts.values()) - sum(map(len, begun)),
        seconds=(account[-1] - account[0]) / 1e6 if account else 0.0,
        use=shares.pop("all", None),
        account_use=shares.pop(_ACCOUNT, None),
        campaign_use=shares,
        inverted=max(map(inversions, begun), default=0.0),
        displaced=max((abs(number - place) for order in begun for place, number in enumerate(order)), default=0),
    )


def _shares(plan: Plan, grants: Mapping[str, list[int]]) -> dict[str, float]:
    """
    Return the granted share of the possible calls, for each limit and "all", over the seconds in which it was scarce.

    A campaign counts while it has calls left, and in the second in which it ends with its grants. The account is scarce
    if the campaigns together could use more than its rate; otherwise each campaign is scarce. A limit that was scarce
    for only a few seconds is omitted, because one call would be a large share.
    """
    amounts = plan.amounts
    last = {name: times[-1] for name, times in grants.items() if times}
    if _ACCOUNT not in last:
        return {}
    start = grants[_ACCOUNT][0] + _SETTLED_US
    counts = {name: _per_window(times, start) for name, times in grants.items()}
    granted: defaultdict[str, float] = defaultdict(float)
    possible: defaultdict[str, float] = defaultdict(float)
    windows: Counter[str] = Counter()
    for window in range(max(0, (last[_ACCOUNT] - start) // _WINDOW_US)):
        end = start + (window + 1) * _WINDOW_US
        waiting = [name for name in amounts if name != _ACCOUNT and last.get(name, 0) >= end]
        ending = sum(counts[name].get(window, 0) for name in last if name not in (*waiting, _ACCOUNT))
        could = {name: amounts[name] * _WINDOW_US / _PERIOD_US for name in (*waiting, _ACCOUNT)}
        together = sum(could[name] for name in waiting)
        if not waiting:
            continue
        scarce = [_ACCOUNT] if together >= could[_ACCOUNT] else waiting
        windows.update(["all", *scarce])
        for name in scarce:
            granted[name] += counts[name].get(window, 0)
            possible[name] += could[name]
        granted["all"] += counts[_ACCOUNT].get(window, 0)
        possible["all"] += min(together + ending, could[_ACCOUNT])
    return {name: granted[name] / most for name, most in possible.items() if windows[name] >= _FEWEST_WINDOWS}


def _per_window(times: list[int], start: int) -> dict[int, int]:
    counts: defaultdict[int, int] = defaultdict(int)
    for at_us in times:
        counts[(at_us - start) // _WINDOW_US] += 1
    return counts


def first_of(order: list[int]) -> list[int]:
    """Return *order* without repetitions."""
    return list(dict.fromkeys(order))


def happen(plan: Plan) -> Record:
    """Send all calls, let the workers run them, and return the record. Nothing is left afterwards."""
    campaigns = [name for name in plan.amounts if name != _ACCOUNT]
    account, total = plan.limit(_ACCOUNT), plan.campaigns * plan.calls
    flood = Flood(
        limits=(account,),
        jobs=total,
        processes=plan.processes,
        threads=plan.threads,
        others={name: (plan.limit(name), account) for name in campaigns},
    )
    needed = max(plan.calls / plan.amounts[campaigns[0]], total / plan.amounts[_ACCOUNT]) * _PERIOD_US / 1e6
    with backlog_servers() as where, contextlib.closing(Meter(where)) as meter, Flooding(flood, where) as flooding:
        flooding.send_many((name, f"{name}:{number}") for number in range(plan.calls) for name in campaigns)
        before = meter.read()
        flooding.start()

        def all_are_done() -> bool:
            if not flooding.running:
                raise AssertionError("the workers have ended")
            return bool(flooding.record.scard("ended") == total)

        with contextlib.suppress(AssertionError):  # then some calls are lost, and `judge` reports it
            wait_until(all_are_done, description="all calls are done", timeout=60 + 2 * needed, every=0.25)
        asks, store, broker = (b - a for a, b in zip(before, meter.read(), strict=True))
        result = flooding.stop()
        return _recorded(result, asks / max(1, len(result.ends)), store, broker)


def _recorded(result: FloodRecord, asks: float, store: float, broker: float) -> Record:
    grants: defaultdict[str, list[int]] = defaultdict(list)
    for grant in result.grants:
        for name, _, _ in grant.buckets:
            grants[name.removeprefix("tk1:{").partition(":")[0]].append(grant.at_us)
    starts: defaultdict[str, list[int]] = defaultdict(list)
    for start in sorted(result.starts, key=lambda one: one.at_us):
        name, _, number = start.job.partition(":")
        starts[name].append(int(number))
    span = (result.grants[-1].at_us - result.grants[0].at_us) / 1e6 if len(result.grants) > 1 else 1.0
    return Record(
        grants=grants,
        starts=starts,
        done=len(set(result.ends)),
        store_cpu=store / span,
        broker_cpu=broker / span,
        asks=asks,
    )

"""
The campaign test: 20 campaigns call one partner at once, each under its own limit, and all under the account's limit.

    python tests/benchmarks/campaign.py [--quick] [--calls 500] [--campaigns 20] [--account 1.25 0.8 0.4]

Real `dramatiq` workers on Redis, --processes (4) of 4 threads; all calls are sent before they start, in turn. The
campaigns have 8/s, 8.5/s, … 17.5/s; the account has --account times their sum: with 1.25 each campaign's own limit
binds, with 0.4 the account's, with 0.8 the account's until some campaigns are complete. --calls 100000 takes 3.5 hours
for each --account; the default takes about 5 minutes. Exits with 1 if a limit is broken once, a call is lost, calls are
out of order, or a limit is used less than promised while it binds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.campaigns import Found, Plan, Record, happen, judge
from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, table

FULL_CALLS = 100_000
LEAST_USE, MOST_INVERTED = 0.98, 0.01
_TITLES = [
    "account, × all campaigns'",
    "limits",
    "took s",
    "use of what was allowed",
    "account's, while short",
    "least campaign's, while short",
    "bounds",
    "out of order",
    "places off",
    "lost, twice",
    "asks a call",
    "limits' Redis",
    "broker's Redis",
]
_NOTES = """\
* Bounds: every grant, at the instant at which the limits' Redis charged it, in each window: `burst + window × rate`.
* Use: in each second from the third on, what was granted of what could have been: the account's rate, or, if it is
  less, that of the campaigns that have calls left. The account is short where these together could take more than it
  has, else each of them is.
* Out of order: of the worst campaign, the share of pairs of calls whose bodies began in the wrong order; 50 % is
  chance. Places off: by how many a call was early or late within its campaign, at most.
* Redis: the share of a core that each server used, from the first grant to the last."""


def row(plan: Plan, record: Record, found: Found) -> list[str]:
    return [
        f"{plan.account:g}",
        f"{plan.campaigns} × {plan.amounts['campaign-00'] / 2:g}/s … {max(list(plan.amounts.values())[:-1]) / 2:g}/s, "
        f"{plan.amounts['account'] / 2:g}/s",
        f"{found.seconds:.1f}",
        _share(found.use),
        _share(found.account_use),
        _share(min(found.campaign_use.values(), default=None)),
        "hold" if not found.broken else f"BROKEN: {', '.join(found.broken)}",
        f"{100 * found.inverted:.2f} %",
        str(found.displaced),
        f"{found.lost}, {found.twice}",
        f"{record.asks:.2f}",
        f"{100 * record.store_cpu:.1f} %",
        f"{100 * record.broker_cpu:.1f} %",
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def judged(plan: Plan, record: Record, found: Found, *, times: bool = True) -> Iterator[Promise]:
    """Yield the promises. If *times* is false, use and order are reported but not checked."""
    name = f"account at {plan.account:g}"
    measured = "; ".join(f"{limit} by {by.by:.3g} at {by.at_us}" for limit, by in found.broken.items()) or "hold"
    calls = sum(map(len, record.grants.values()))
    yield Promise(f"{name}: {plan.campaigns + 1} limits, {calls} charges", measured, "hold", not found.broken)
    kept = found.lost == found.twice == 0
    yield Promise(f"{name}: calls lost, bodies begun twice", f"{found.lost}, {found.twice}", "0, 0", kept)
    measured = f"{100 * found.inverted:.2f} % of pairs, {found.displaced} places"
    required = f"<= {100 * MOST_INVERTED:g} % of pairs"
    yield Promise(f"{name}: out of order", measured, required, found.inverted <= MOST_INVERTED if times else None)
    worst = min(found.campaign_use, key=found.campaign_use.__getitem__, default=None)
    uses = {"the account's": found.account_use, f"{worst}'s": found.campaign_use[worst] if worst else None}
    for what, use in uses.items():
        if use is not None:
            kept = use >= LEAST_USE if times else None
            yield Promise(f"{name}: use of {what}, while short", f"{use:.3f}", f">= {LEAST_USE}", kept)
    measured = f"{100 * record.store_cpu:.1f} % limits, {100 * record.broker_cpu:.1f} % broker"
    yield Promise(f"{name}: Redis, share of a core", measured, "", None)


def main() -> int:
    parser = parser_of(__doc__, quick="few campaigns of few calls: is it all there?")
    parser.add_argument("--calls", type=int, default=500, help="of each campaign (%(default)s)")
    parser.add_argument("--campaigns", type=int, default=20)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--account", type=float, nargs="+", default=[1.25, 0.8, 0.4], help="times all campaigns' rates")
    options = parser.parse_args()
    if options.quick:
        options.calls, options.campaigns, options.account, options.processes = 20, 4, [1.25], 2
    rows: list[list[str]] = []
    shown: list[Promise] = []
    for account in options.account:
        plan = Plan(campaigns=options.campaigns, calls=options.calls, account=account, processes=options.processes)
        record = happen(plan)
        found = judge(plan, record)
        rows.append(row(plan, record, found))
        shown += judged(plan, record, found, times=not options.quick)
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = f"{options.calls} calls each: scale {options.calls / FULL_CALLS:g} of {FULL_CALLS}."
    return print_results("campaign", f"{about('dramatiq', 'redis')}\n{head}", [table(_TITLES, rows), _NOTES], shown)


if __name__ == "__main__":
    sys.exit(main())

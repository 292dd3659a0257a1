"""The table at the end of a run: each number beside its promise."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from throttlekit_cli.demo.account import MIN_USE, Account
from throttlekit_cli.demo.plan import Plan
from throttlekit_cli.demo.screen import Screen, clock

__all__ = ["broken_promises", "print_report"]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the table; *kept* is None where there is no promise."""

    name: str
    measured: str
    promise: str = ""
    kept: bool | None = None


def broken_promises(plan: Plan, account: Account) -> list[str]:
    """The names of the promises that were not kept. Without throttlekit there are none to keep."""
    return [row.name for row in _rows(plan, account) if row.kept is False]


def print_report(plan: Plan, account: Account, screen: Screen) -> None:
    """Print the table, and one sentence that sums it up."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("with throttlekit" if plan.throttled else "without throttlekit", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    table.add_column("promised" if plan.throttled else "")
    for row in _rows(plan, account):
        table.add_row(row.name, row.measured, _promise(row))
    screen.say("")
    screen.put(table)
    screen.say("")
    screen.say(_verdict(plan, account))


def _rows(plan: Plan, account: Account) -> list[_Row]:
    rows = _kept(plan, account) if plan.throttled else _contrast(plan, account)
    wait = _Row("longest wait", f"{account.longest_wait:.1f} s", f"the limit alone makes it {plan.ideal:.1f} s")
    return [*rows, wait]


def _kept(plan: Plan, account: Account) -> list[_Row]:
    return [
        _Row("jobs run", f"{account.done} of {account.jobs}", "all of them", account.lost == 0),
        _Row("429s", f"{account.refused} of {account.calls} calls", "none", account.refused == 0),
        _Row(
            "burst that the calls came to", f"{account.burst_needed:.1f}",
            f"at most {plan.partner_burst}, in any window", account.burst_needed <= plan.partner_burst + 1e-6,
        ),
        _Row(
            "share of the limit used", f"{account.use:.1%}",
            account.use_unjudged or f"at least {MIN_USE:.0%}",
            None if account.use_unjudged else account.use >= MIN_USE,
        ),
        _Row("duplicates", str(account.duplicates), "none", account.duplicates == 0),
        _Row("failed runs", str(account.failed), "none", account.failed == 0),
        _Row("deferrals per job", _deferrals(account)),
        _Row("first call to last", f"{account.seconds:.1f} s", f"the limit alone makes it {plan.ideal:.1f} s"),
    ]  # fmt: skip


def _contrast(plan: Plan, account: Account) -> list[_Row]:
    cut = f"cut off after {clock(plan.cut_off)}" if account.lost else ""
    return [
        _Row("jobs run", f"{account.done} of {account.jobs}", cut),
        _Row("429s", f"{account.refused} of {account.calls} calls"),
        _Row("share of the limit used", f"{account.use:.1%}"),
        _Row("duplicates", str(account.duplicates)),
        _Row("failed runs", str(account.refused + account.failed)),
        _Row("retries per job", _deferrals(account)),
        _Row("first call to last", f"{account.seconds:.1f} s", f"the limit alone would make it {plan.ideal:.1f} s"),
    ]


def _deferrals(account: Account) -> str:
    return f"{account.mean_deferrals:.2f}, at most {max(account.deferrals, default=0)}"


def _promise(row: _Row) -> Text:
    if row.kept is None:
        return Text(row.promise, style="dim")
    mark, style = ("kept", "green") if row.kept else ("BROKEN", "bold red")
    return Text(f"{row.promise}: ").append(mark, style=style)


def _verdict(plan: Plan, account: Account) -> Text:
    if broken := broken_promises(plan, account):
        return Text(f"Broken: {', '.join(broken)}.", style="bold red")
    if plan.throttled:
        again = "throttlekit demo --without, or make demo DEMO=--without"
        if plan.framework != "dramatiq":
            again = f"throttlekit demo --framework {plan.framework} --without"
        return Text(f"Every promise was kept. Now run the same flood without throttlekit: {again}", style="green")
    again = "throttlekit demo" + ("" if plan.framework == "dramatiq" else f" --framework {plan.framework}")
    return Text(f"Without throttlekit nothing was promised. Now run the same flood with it: {again}")

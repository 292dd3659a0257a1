"""Data of the page in addition to `throttlekit_cli.state`, such as bars of charts. Durations are in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from throttlekit.fleet.browse import Holder
from throttlekit.fleet.history import Bar, Range
from throttlekit.fleet.list_now import Entry
from throttlekit.fleet.shares import SharedStep, largest, sum_of
from throttlekit.fleet.snapshot import Known
from throttlekit_cli.formatting import format_key
from throttlekit_cli.state import FleetState, LimitState, TenantState
from throttlekit_web._http import Refused

__all__ = [
    "bars_data",
    "fleet_data",
    "heaviest",
    "holder_data",
    "limit_row",
    "require_known",
    "shares_data",
    "waiting_data",
]

_MAX_TENANTS = 30
_MAX_CHARTED = 6
"""The number of tenants that a reader can distinguish by their colours."""


def fleet_data(fleet: FleetState) -> dict[str, Any]:
    """Return *fleet* without its limits, and without the names of its processes."""
    return {name: value for name, value in asdict(fleet).items() if name not in ("limits", "processes")}


def limit_row(limit: LimitState) -> dict[str, Any]:
    """Return *limit* without its keys and tenants, which only its own view shows."""
    return {name: value for name, value in asdict(limit).items() if name not in ("keys", "tenants")}


def bars_data(bars: Sequence[Bar], of: Range, *, comparable: bool) -> list[list[float | None]]:
    """
    Return the bars of a chart, each as a row: start time, units, denied, paused, longest wait, waiting jobs, the units
    that the rate allowed, arrivals, grants, and 429s. A value is None if it is not known. The units that the rate
    allowed are also None if the rate changed within the bar.

    Args:
        comparable: Whether the units of a minute can be compared with the rate.
    """
    return [
        [
            bar.at,
            bar.units,
            bar.denied,
            bar.paused,
            bar.longest_wait,
            bar.waiting,
            bar.rate / 1000 * of.bar_s / 60 if comparable and bar.rate else None,
            bar.arrived,
            bar.granted,
            bar.partner_429s,
        ]
        for bar in bars
    ]


def shares_data(steps: Sequence[SharedStep], *, show_keys: bool) -> dict[str, Any]:
    """
    Return how tenants shared a limit's units: the tenants with the most units in the whole chart, and a row for each
    bar. A row has the bar's start time, the units of each of these tenants in this order, and the units of all other
    tenants. Units are None if they are not known.
    """
    names, _ = largest(sum_of(steps), others=0, most=_MAX_CHARTED)

    def row(step: SharedStep) -> list[int | None]:
        if step.units is None:
            return [step.at, *[None] * (len(names) + 1)]
        units = [step.units.get(name, 0) for name in names]
        return [step.at, *units, step.others + sum(step.units.values()) - sum(units)]

    return {
        "tenants": [format_key(name, None, clear=show_keys) for name in names],
        "bars": [row(step) for step in steps],
    }


def holder_data(holder: Holder, now: float, *, show_keys: bool) -> dict[str, Any]:
    held = None if holder.since is None else max(0.0, now - holder.since)
    workflow = f"workflow {format_key(holder.workflow, None, clear=show_keys)}" if holder.workflow else ""
    return {"job": workflow or holder.job_id, "slots": holder.slots, "held_for_seconds": held}


def waiting_data(job_id: str, entry: Entry, now: float) -> dict[str, Any]:
    waits = max(0.0, now - entry.since) if entry.since else None
    return {"job": job_id, "waits_for_seconds": waits, "deferrals": entry.denials}


def heaviest(tenants: Sequence[TenantState]) -> tuple[TenantState, ...]:
    """Return the heaviest of *tenants*, and the tenant that waited longest."""
    longest = sorted(tenants, key=lambda each: -each.longest_wait_seconds)[:1]
    return (*tenants[:_MAX_TENANTS], *(each for each in longest if each not in tenants[:_MAX_TENANTS]))


def require_known(known: Known | None) -> Known:
    """
    Return *known*.

    Raises:
        Refused: *known* is None.
    """
    if known is None:
        raise Refused(404, "no worker has used this limit in the last hour")
    return known

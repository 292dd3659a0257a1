"""
Count the units of each tenant of a shared limit. Each process counts, and the store adds up the counts for the last
minute and for the history of `throttlekit.fleet.shares`.

Memory is bounded, in the process and in the store: a process reports the tenants with the most units and those with the
longest waits, and the store keeps 2 000 tenants of all limits for each 20 seconds. So the numbers are right for the
tenants with the most units and the longest waits, and other tenants may be missing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import throttlekit_lua
from throttlekit._core.claim import UNIT
from throttlekit._core.storage_keys import fleet_name, limit_id
from throttlekit._engine.claims import Claim
from throttlekit.fleet.rules import as_text
from throttlekit.fleet.shares import Taken, largest

__all__ = ["TENANTS", "TenantCounts", "report_tenants"]

TENANTS = tuple(fleet_name(f"tenants:{step}") for step in range(5))
"""The keys of the report, in the order of fleet_tenants.lua."""

_REPORT = throttlekit_lua.script("fleet_tenants")
_MOST_KEPT = 10_000
_MOST_REPORTED = 20
_MOST_LIMITS = 25


@dataclass(slots=True, eq=False)
class _Seen:
    units: int = 0
    wait_us: int = 0
    weight: int = 1000


class TenantCounts:
    """The units and waits of tenants of shared limits since the last report. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str], _Seen] = {}
        self._others: dict[str, int] = {}
        """The units of tenants beyond the 10 000th, by limit."""

    def record_decision(self, claim: Claim, *, allowed: bool, waited_us: int) -> None:
        """Count one decision on *claim*, whose limit tenants share."""
        store_claim, known = claim.claim, (claim.limit.name, claim.limit.fingerprint, claim.claim.tenant)
        with self._lock:
            seen = self._seen.get(known)
            if seen is None:
                if len(self._seen) >= _MOST_KEPT:
                    if allowed:
                        id = limit_id(claim.limit.name, claim.limit.fingerprint)
                        self._others[id] = self._others.get(id, 0) + store_claim.cost
                    return
                seen = self._seen[known] = _Seen()
            if allowed:
                seen.units += store_claim.cost
            if store_claim.cost and not (claim.limit.share and claim.limit.share.strict):
                seen.weight = max(1, round(1000 * store_claim.cost * UNIT / store_claim.step))
            seen.wait_us = max(seen.wait_us, waited_us)

    def take(self) -> tuple[list[list[Any]], dict[str, Taken]]:
        """
        Return the counts of at most 25 limits, and reset them. The first value is in the form that fleet_tenants.lua
        reads; the second has, by the limit's id, the additions to its history.
        """
        with self._lock:
            (seen, self._seen), (others, self._others) = (self._seen, {}), (self._others, {})
        limits: dict[str, list[tuple[str, _Seen]]] = {}
        for (name, fingerprint, tenant), each in seen.items():
            limits.setdefault(limit_id(name, fingerprint), []).append((tenant, each))
        limits = dict(list(limits.items())[:_MOST_LIMITS])
        taken = {id: _named_units(tenants, others.get(id, 0)) for id, tenants in limits.items()}
        return [row for id, tenants in limits.items() for row in _rows(id, tenants)], taken


def _rows(name: str, tenants: list[tuple[str, _Seen]]) -> Iterable[list[Any]]:
    chosen = tenants
    if len(tenants) > 2 * _MOST_REPORTED:
        by_units = sorted(tenants, key=lambda each: -each[1].units)[:_MOST_REPORTED]
        by_wait = sorted(tenants, key=lambda each: -each[1].wait_us)[:_MOST_REPORTED]
        chosen = list({tenant: (tenant, each) for tenant, each in (*by_units, *by_wait)}.values())
    return [[f"{name} {tenant}", each.units, each.wait_us, each.weight] for tenant, each in chosen]


def _named_units(tenants: list[tuple[str, _Seen]], others: int) -> Taken:
    units = {tenant: each.units for tenant, each in tenants if each.units}
    return Taken(*largest(units, others=others, most=_MOST_REPORTED))


def report_tenants(rows: Sequence[Sequence[Any]]) -> tuple[str | int, ...]:
    """Return the command that reports *rows*, which `TenantCounts.take` returned."""
    return ("EVAL", _REPORT, len(TENANTS), *TENANTS, as_text(rows))

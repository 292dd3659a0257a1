"""Compare the limits that the imported code declares with those that workers report: a check before a deployment."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence

from throttlekit import Limit
from throttlekit.fleet.definitions import without_replaced
from throttlekit.fleet.rules import Rule
from throttlekit.fleet.snapshot import FleetStore, Known, look
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.formatting import format_limit, printable

__all__ = ["compare_definitions", "declared_limits"]

_OWN = "throttlekit-"
"""The prefix of the names of the doctor's own limits."""
_ok, _, _warning, _ = findings_about("limits")


def declared_limits() -> list[Limit]:
    """
    Return the limits of all modules that are imported so far, sorted by name, with one limit for each tier.

    Each framework keeps its limits in a different place, so this function searches all objects of the process.
    """
    # `isinstance` reads `__class__`, which would resolve the proxy objects of frameworks.
    made: list[Limit] = [each for each in gc.get_objects() if issubclass(type(each), Limit)]
    found: dict[object, Limit] = {}
    for limit in made:
        if not limit.is_derived and limit.scope != "process" and not limit.name.startswith(_OWN):
            for each in [limit] if limit.tiers is None else limit.tiers.values():
                found[each.name, each.of_tier, _definition(each)] = each
    return sorted(found.values(), key=lambda limit: (limit.name, limit.of_tier or ""))


def compare_definitions(store: FleetStore, declared: Sequence[Limit]) -> Iterator[Finding]:
    """
    Compare *declared* with the definitions that workers report to *store*.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    fleet = look(store, most=0)
    in_use, same = without_replaced(fleet.limits), 0
    for limit in declared:
        theirs = [each for each in in_use if each.limit.name == limit.name]
        if not theirs:
            continue  # the limit is new, or was not used in the last hour
        of_tier = [each for each in theirs if each.limit.of_tier == limit.of_tier]
        if limit.of_tier is not None and not of_tier and all(each.limit.of_tier for each in theirs):
            continue  # the tier is new, or was not used
        if any(_is_same(limit, each, fleet.rules) for each in of_tier):
            same += 1
            continue
        shown = ", ".join(dict.fromkeys(_shown(each.limit.declared or each.limit) for each in of_tier or theirs))
        is_one_count = any(each.limit.fingerprint == limit.fingerprint for each in of_tier)
        meanwhile = (
            "the larger number of slots applies" if is_one_count else "each has a separate count, and the rates add up"
        )
        yield _warning(
            f"Limit {printable(limit.name)!r}: the code declares {_shown(limit)}, and workers use {shown}.",
            f"if this is not intended, correct the code; while both are deployed, {meanwhile}",
        )
    if same:
        yield _ok(f"{same} limits of the code equal those that workers use.")


def _is_same(limit: Limit, known: Known, rules: Iterable[Rule]) -> bool:
    theirs = known.limit.declared or known.limit
    if limit.varies:
        return (limit.algorithm, limit.scope) == (theirs.algorithm, theirs.scope) and theirs.varying_us is not None
    # An operator's rule changes the slots of a concurrency limit, and its declared number is not reported.
    ruled = any(rule.what in ("set", "scale") and rule.is_for(limit.name) for rule in rules)
    if ruled and not limit.period_us and theirs is known.limit:
        return limit.fingerprint == theirs.fingerprint
    return _definition(limit) == _definition(theirs)


def _definition(limit: Limit) -> object:
    """Return the values that define *limit*. The fingerprint alone leaves out the amount of a concurrency limit."""
    return (limit.fingerprint,) if limit.varies else (limit.fingerprint, limit.amount, limit.period_us)


def _shown(limit: Limit) -> str:
    definition = f"{limit.algorithm} with a rate from a callable" if limit.varies else format_limit(limit)
    return printable(definition if limit.scope == "global" else f"{definition} scope {limit.scope}")

"""Check that the application, its workers and this command use the same store, separate from the broker's database."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from throttlekit import Limiter, StoreUnavailable, TokenBucket
from throttlekit._core.storage_keys import fleet_name
from throttlekit.fleet.definitions import definitions_of, without_replaced
from throttlekit.fleet.snapshot import Known, look
from throttlekit.stores.base import is_same_address
from throttlekit_cli.doctor.findings import Finding
from throttlekit_cli.formatting import format_duration, format_limit, format_slowed, printable
from throttlekit_cli.store import address_of_url

__all__ = ["compare_stores", "examine_counts_of_rq", "examine_reports"]

_MOST_NAMED = 5


def compare_stores(limiter: Limiter, url: str | None, about: str, broker: str) -> Iterator[Finding]:
    """
    Compare the store of the application's *limiter* with the store at *url*, and with the *broker*.

    Args:
        url: The store that the operator named, or None without --url.
        broker: The broker's host:port/database, or "" if the broker is not on Redis.
    """
    own = limiter.store_address
    if limiter.in_memory:
        yield Finding(
            "fault",
            about,
            "Its limiter keeps limits in memory: each worker process admits the whole limit.",
            'give the limiter the URL of a server: Limiter("redis://…"), or set THROTTLEKIT_URL',
        )
        return
    if url is not None and not _is_same(limiter, url):
        yield Finding(
            "fault",
            about,
            f"The application's limiter counts in another store{_at(own)} than --url{_at(address_of_url(url))}: --url"
            " does not show its workers, and a change there has no effect on them.",
            "name the store of the application: the URL in its Limiter(…)",
        )
    if limiter.counts_at(broker):
        yield Finding(
            "warning",
            about,
            f"The limiter counts in the broker's database ({own}): a flush deletes all counts.",
            "give the limiter a separate database, such as /1 at the end of its URL",
        )


def examine_reports(store: Any) -> Iterator[Finding]:
    """Check the reports of workers in *store*, operators' changes, slow-downs, and limits with several definitions."""
    fleet = look(store)
    if fleet.processes:
        yield Finding("ok", "store", f"{len(fleet.processes)} processes have reported in the last 15 seconds.")
    elif not fleet.limits:
        yield Finding(
            "note",
            "store",
            "No process has used a limit with this store in the last hour.",
            "if workers run throttled jobs, they use another store: compare this URL with theirs",
        )
    else:
        ago = fleet.now - max(each.reported for each in fleet.limits)
        yield Finding("note", "store", f"No process reports now; limits were used {format_duration(ago)} ago.")
    if fleet.rules:
        names = ", ".join(sorted({printable(rule.name) for rule in fleet.rules})[:_MOST_NAMED])
        yield Finding(
            "note",
            "store",
            f"Operators' changes are in force ({len(fleet.rules)}), for {names}.",
            "see `throttlekit rules`, and end those that are no longer needed",
        )
    slowed = {key.limit.name: key.slowed for key in fleet.keys if key.slowed is not None}
    for name, slow in sorted(slowed.items()):
        yield Finding("note", "store", f"Limit {printable(name)!r} is slowed down {format_slowed(slow)}.")
    changed = {rule.name for rule in fleet.rules if rule.what == "set"}
    for name, found in _twins(definitions_of(store)).items():
        if name not in changed:
            yield Finding(
                "warning",
                "store",
                f"Limit {printable(name)!r} is in use with several definitions: "
                f"{', '.join(format_limit(each.limit) for each in found)}. Each has a separate count.",
                "deploy one definition to all workers; during a deployment, this ends after some minutes",
            )


def examine_counts_of_rq(connection: Any, url: str | None, rq_url: str) -> Iterator[Finding]:
    """Check whether workers count in RQ's database, as they do if no store is configured for them."""
    if not connection.exists(fleet_name("limits")):
        return
    own = address_of_url(rq_url)
    if url is not None and not is_same_address(address_of_url(url), own):
        yield Finding(
            "fault",
            "rq",
            f"Workers have counted in RQ's database{_at(own)} in the last hour, and not in --url"
            f"{_at(address_of_url(url))}: no store is configured for them.",
            "call configure(limiter) in the module of `rq worker -c`, or set THROTTLEKIT_URL for the workers",
        )
    else:
        yield Finding(
            "warning",
            "rq",
            f"Workers count in RQ's database{_at(own)}: a flush of it deletes all counts.",
            "give the limiter a separate database, with configure(limiter) or THROTTLEKIT_URL",
        )


def _is_same(limiter: Limiter, url: str) -> bool:
    """Pause a limit in one store, and return whether the other shows the pause: host names of one store may differ."""
    test_limit = TokenBucket(f"throttlekit-doctor-{secrets.token_hex(4)}", "1000/s", burst=1000)
    other = Limiter(url)
    try:
        other.pause(test_limit, 60)
        return not limiter.peek(test_limit).allowed
    except StoreUnavailable:
        # The application's server may not be reachable from here: only the addresses can be compared.
        return not limiter.store_address or limiter.counts_at(address_of_url(url))
    finally:
        with contextlib.suppress(StoreUnavailable):
            other.reset(test_limit)
        other.close()
        limiter.close()


def _twins(definitions: list[Known]) -> dict[str, list[Known]]:
    """Return the limits with more than one definition in use, by name."""
    found: dict[tuple[str, str | None], list[Known]] = {}
    for each in without_replaced(definitions):
        found.setdefault((each.limit.name, each.limit.of_tier), []).append(each)
    return {name: each for (name, _), each in found.items() if len(each) > 1}


def _at(address: str) -> str:
    return f" ({address})" if address else ""

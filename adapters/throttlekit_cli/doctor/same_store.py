"""Check that the application, its workers and this command use the same store, separate from the broker's database."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from throttlekit import Limiter, StoreUnavailable, TokenBucket
from throttlekit.fleet.definitions import by_name, without_replaced
from throttlekit.fleet.snapshot import look
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.formatting import format_duration, format_limit, format_slowed, printable

__all__ = ["at_address", "compare_stores", "examine_reports"]

_MOST_NAMED = 5
_ok, _note, _warning, _ = findings_about("store")


def compare_stores(limiter: Limiter, url: str | None, about: str, broker: str) -> Iterator[Finding]:
    """
    Compare the store of the application's *limiter* with the store at *url*, and with the *broker*.

    Args:
        url: The store that the operator named, or None without --url.
        broker: The broker's host:port/database, or "" if the broker is not on Redis.
    """
    own = limiter.store_address
    _, _, warning, fault = findings_about(about)
    if limiter.in_memory:
        yield fault(
            "Its limiter keeps limits in memory: each worker process admits the whole limit.",
            'give the limiter the URL of a server: Limiter("redis://…"), or set THROTTLEKIT_URL',
        )
        return
    if url is not None and not _is_same(limiter, url):
        yield fault(
            f"The application's limiter counts in another store{at_address(own)} than "
            f"--url{at_address(Limiter(url).store_address)}: --url does not show its workers, and a change there has "
            "no effect on them.",
            "name the store of the application: the URL in its Limiter(…)",
        )
    if limiter.counts_at(broker):
        yield warning(
            f"The limiter counts in the broker's database ({own}): a flush deletes all counts.",
            "give the limiter a separate database, such as /1 at the end of its URL",
        )


def examine_reports(store: Any) -> Iterator[Finding]:
    """Check the reports of workers in *store*, operators' changes, slow-downs, and limits with several definitions."""
    fleet = look(store)
    if fleet.processes:
        yield _ok(f"{len(fleet.processes)} processes have reported in the last 15 seconds.")
    elif not fleet.limits:
        yield _note(
            "No process has used a limit with this store in the last hour.",
            "if workers run throttled jobs, they use another store: compare this URL with theirs",
        )
    else:
        ago = fleet.now - max(each.reported for each in fleet.limits)
        yield _note(f"No process reports now; limits were used {format_duration(ago)} ago.")
    if fleet.rules:
        names = ", ".join(sorted({printable(rule.name) for rule in fleet.rules})[:_MOST_NAMED])
        yield _note(
            f"Operators' changes are in force ({len(fleet.rules)}), for {names}.",
            "see `throttlekit rules`, and end those that are no longer needed",
        )
    slowed = {key.limit.name: key.slowed for key in fleet.keys if key.slowed is not None}
    for name, slow in sorted(slowed.items()):
        yield _note(f"Limit {printable(name)!r} is slowed down {format_slowed(slow)}.")
    changed = {rule.name for rule in fleet.rules if rule.what == "set"}
    for (name, _), found in by_name(without_replaced(fleet.limits)).items():
        if len(found) > 1 and name not in changed:
            yield _warning(
                f"Limit {printable(name)!r} is in use with several definitions: "
                f"{', '.join(format_limit(each.limit) for each in found)}. Each has a separate count.",
                "deploy one definition to all workers; during a deployment, this ends after some minutes",
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
        return not limiter.store_address or limiter.counts_at(other.store_address)
    finally:
        with contextlib.suppress(StoreUnavailable):
            other.reset(test_limit)
        other.close()
        limiter.close()


def at_address(address: str) -> str:
    """Return *address* in parentheses, or "" if it is not known."""
    return f" ({address})" if address else ""

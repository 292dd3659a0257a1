"""`throttlekit explain`: which limit a job waits for, and until when."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from throttlekit.fleet.snapshot import Key
from throttlekit.fleet.waiting_job import MAX_NAMES, Found, Waiting, look_up
from throttlekit_cli.formatting import (
    format_active_rule,
    format_duration,
    format_key,
    format_limit,
    format_slowed,
    format_time,
    printable,
)
from throttlekit_cli.store import open_store
from throttlekit_cli.top.rows import slowed_data

__all__ = ["describe", "job_data", "print_explanation"]


def print_explanation(url: str, job_id: str, *, as_json: bool, show_keys: bool) -> bool:
    """
    Print why the job waits. Return whether the job is known.

    Raises:
        ConfigurationError: The URL is not valid.
        StoreUnavailable: The store did not answer.
    """
    with contextlib.closing(open_store(url)) as store:
        found = look_up(store, job_id)
    if as_json:
        print(json.dumps(job_data(job_id, found, show_keys=show_keys)))
    else:
        print("\n".join(map(printable, describe(job_id, found, show_keys=show_keys))))
    return found.job is not None


def describe(job_id: str, found: Found, *, show_keys: bool) -> list[str]:
    """The explanation, line by line."""
    now, job, key = found.now, found.job, found.key
    if job is None:
        return [f"Job {job_id} is not known: {_where_it_is_not(found)}, and no worker has reported it.", *_POSSIBLE]
    times = {1: "once", 2: "twice"}.get(job.deferrals, f"{job.deferrals} times")
    if job.state == "allowed":
        waited = format_duration(max(0.0, job.decided - job.since))
        return [
            f"Job {job_id} no longer waits: it was allowed to run {format_duration(now - job.decided)} ago.",
            f"  it had waited  {waited}, and was deferred {times}",
        ]
    if job.state == "left":
        ago = format_duration(now - job.decided)
        return [
            f"Job {job_id} was denied by limit {job.limit!r} {ago} ago: {job.reason}. Now {_where_it_is_not(found)}.",
            "  It has been allowed to run or was removed since then, or its worker will request it again.",
        ]
    if key is None:
        return [
            f"Job {job_id} waits for limit {job.limit!r}, whose definition no worker has reported in the last hour.",
            *_history(job, now, times),
            "  its turn       not known without the definition; it keeps its position",
        ]
    shown = format_key(key.key, key.part, clear=show_keys or key.limit.show_key)
    name = f"{key.limit.name!r}{f', key {shown}' if shown else ''}"
    return [
        f"Job {job_id} waits for limit {name}: {format_limit(key.limit)}.",
        *_history(job, now, times),
        *_turn(job, key, found),
        *([] if job.place is None or job.place.answers
          else ["  its worker     does not respond: jobs of other workers start before it"]),
        f"  the limit now  {key.used} of {key.capacity} used{_last_in_line(key)}",
        *([] if key.paused is None else [f"  paused         for another {format_duration(key.paused)}"]),
        *([] if key.slowed is None else [f"  slowed down    {format_slowed(key.slowed)}"]),
        *(f"  an operator    {format_active_rule(rule, now, clear=show_keys or key.limit.show_key)}"
          for rule in found.rules),
    ]  # fmt: skip


def job_data(job_id: str, found: Found, *, show_keys: bool) -> dict[str, Any]:
    """
    The explanation for programs. Fields that are also in `throttlekit top --json` have the same names.

    Durations are in seconds. Times are in seconds since 1970, by the store's clock. None: not known.
    """
    job, key = found.job, found.key
    data: dict[str, Any] = {"job": job_id, "known": job is not None, "now": found.now}
    if job is None:
        return {**data, "state": "unknown", "searched_all": found.searched_all}
    data |= {
        "state": job.state, "limit": job.limit or None, "reason": job.reason, "since": job.since or None,
        "deferrals": job.deferrals, "decided_at": job.decided or None,
    }  # fmt: skip
    if job.state == "left":
        data["searched_all"] = found.searched_all
    if job.place is not None:
        data |= {"starts_at": job.due or None, "before": job.place.before, "owner": job.place.owner,
                 "owner_answers": job.place.answers}  # fmt: skip
    if key is not None:
        clear = show_keys or key.limit.show_key
        data |= {
            "key": format_key(key.key, key.part, clear=clear), "definition": format_limit(key.limit),
            "rules": [format_active_rule(rule, found.now, clear=clear) for rule in found.rules],
            "used": key.used, "capacity": key.capacity, "waiting": key.waiting, "waiting_units": key.waiting_units,
            "owners": key.owners, "last_starts_in": key.last_starts, "paused_for": key.paused,
            **slowed_data(key.slowed),
        }  # fmt: skip
    return data


_POSSIBLE = [
    "  Either it does not wait for a limit: it runs, has ended, or no worker has taken it yet.",
    "  Or its limits are in another store, or it has another id.",
]


def _where_it_is_not(found: Found) -> str:
    if found.searched_all:
        return "it is on no waitlist of this store"
    return f"it is on no waitlist among the first {MAX_NAMES:,} names of this store"


def _history(job: Waiting, now: float, times: str) -> list[str]:
    last = f", the last time {format_duration(now - job.decided)} ago" if job.decided else ""
    since = f"{format_time(job.since)}, {format_duration(now - job.since)} ago" if job.since else "not known"
    return [f"  since          {since}", f"  deferred       {times}{last}{f': {job.reason}' if job.reason else ''}"]


def _turn(job: Waiting, key: Key, found: Found) -> list[str]:
    place, ahead = job.place, job.due - found.now
    if place is None:
        return []
    if place.state == "woken":
        return ["  its turn       now: it is being sent to a worker, or waits for a free one"]
    if job.reason == "paused" and any(rule.what == "pause" for rule in found.rules):
        when = f"in about {format_duration(ahead)}" if ahead > 0 else "now" if job.due else "when the pause ends"
        return [f"  tries again    {when}; it keeps its position"]
    if place.state == "kept":
        return ["  its turn       not known: another of its limits denies it; it keeps its position"]
    before = f"  before it      {place.before} of the {key.waiting} that wait"
    if ahead <= 0:
        return ["  its turn       now: it is next, and is woken as soon as its worker has a free thread", before]
    return [f"  its turn       in about {format_duration(ahead)}, at {format_time(job.due)}", before]


def _last_in_line(key: Key) -> str:
    return f"; the last job starts in {format_duration(key.last_starts)}" if key.last_starts is not None else ""

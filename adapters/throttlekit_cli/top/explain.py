"""`throttlekit explain`: which limit one job waits for, and until when."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

from throttlekit.fleet.replies import time_of
from throttlekit.fleet.rules import Rule
from throttlekit.fleet.snapshot import Key, Waiting, look_up, rules_of
from throttlekit_cli.formatting import (
    format_active_rule,
    format_duration,
    format_key,
    format_limit,
    format_slowed,
    printable,
)
from throttlekit_cli.store import open_store
from throttlekit_cli.top.rows import slowed_data

__all__ = ["describe", "print_explanation"]


def print_explanation(url: str, job_id: str, *, as_json: bool, show_keys: bool) -> bool:
    """
    Print why the job waits. Returns whether the job is known.

    Raises:
        ConfigurationError: The URL is not valid.
        StoreUnavailable: The store did not answer.
    """
    with contextlib.closing(open_store(url)) as store:
        job, key = look_up(store, job_id)
        now, rules = (time_of(store), ()) if key is None else rules_of(store, key.limit)
    if as_json:
        print(json.dumps(None if job is None else _data(job, key, now, show_keys=show_keys)))
    elif job is None:
        print(f"Job {printable(job_id)} is not known: it was not denied in the last hour, or too many other jobs were.")
    else:
        print("\n".join(map(printable, describe(job_id, job, key, rules, now, show_keys=show_keys))))
    return job is not None


def describe(
    job_id: str, job: Waiting, key: Key | None, rules: Sequence[Rule], now: float, *, show_keys: bool
) -> list[str]:
    """The explanation, line by line."""
    times = {1: "once", 2: "twice"}.get(job.deferrals, f"{job.deferrals} times")
    if job.reason == "allowed":
        waited = format_duration(max(0.0, job.decided - job.since))
        return [
            f"Job {job_id} does not wait any more: it was allowed to run {format_duration(now - job.decided)} ago.",
            f"  it had waited  {waited}, and was deferred {times}",
        ]
    if key is None:
        ago = format_duration(now - job.decided)
        return [f"Job {job_id} was denied {ago} ago, by a limit that no worker uses any more."]
    shown = format_key(key.key, key.part, clear=show_keys)
    name = f"{key.limit.name!r}{f', key {shown}' if shown else ''}"
    last = f", the last time {format_duration(now - job.decided)} ago" if job.decided else ""
    lines = [
        f"Job {job_id} waits for limit {name}: {format_limit(key.limit)}.",
        f"  since          {_format_time(job.since)}, {format_duration(now - job.since)} ago",
        f"  deferred       {times}{last}: {job.reason}",
    ]
    ahead = job.due - now
    if job.place is not None and job.place.state == "woken":
        lines.append("  its turn       now: it is on its way to a worker, or waits for a free one")
    elif job.reason == "paused" and any(rule.what == "pause" for rule in rules):
        lines.append(
            f"  tries again    {f'in about {format_duration(ahead)}' if ahead > 0 else 'now'}; it keeps its position"
        )
    elif job.place is not None and job.place.state == "kept":
        lines.append("  its turn       not known: another of its limits holds it back; it keeps its position")
    elif ahead > 0:
        lines.append(f"  its turn       in about {format_duration(ahead)}, at {_format_time(job.due)}")
        lines.append(f"  before it      {_jobs_before(job, key, ahead)}")
    else:
        lines.append(
            f"  its turn       was {format_duration(-ahead)} ago: it is on its way to a worker, or waits for a free one"
        )
    if job.place is not None and not job.place.is_heard:
        lines.append("  its worker     does not answer: jobs of other workers pass before it")
    lines.append(f"  the limit now  {key.used} of {key.capacity} used{_last_in_line(key)}")
    if key.paused is not None:
        lines.append(f"  paused         for {format_duration(key.paused)} yet")
    if key.slowed is not None:
        lines.append(f"  slowed down    {format_slowed(key.slowed)}")
    lines.extend(f"  an operator    {format_active_rule(rule, now, clear=show_keys)}" for rule in rules)
    return lines


def _jobs_before(job: Waiting, key: Key, ahead: float) -> str:
    if job.place is not None:
        return f"{job.place.before} of the {key.waiting} that wait"
    if not key.waiting or not key.last_starts:
        return "not known"
    before = max(0, round(key.waiting * ahead / max(ahead, key.last_starts)) - 1)
    return f"about {before} of the {key.waiting} that wait"


def _last_in_line(key: Key) -> str:
    return f"; the last job starts in {format_duration(key.last_starts)}" if key.last_starts is not None else ""


def _format_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def _data(job: Waiting, key: Key | None, now: float, *, show_keys: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "now": now, "reason": job.reason, "since": job.since, "deferrals": job.deferrals, "slot": job.due or None,
        "told": job.decided or None,
    }  # fmt: skip
    if job.place is not None:
        data |= {"state": job.place.state, "before": job.place.before, "owner": job.place.owner,
                 "owner_answers": job.place.is_heard}  # fmt: skip
    if key is not None:
        data |= {
            "limit": key.limit.name, "key": format_key(key.key, key.part, clear=show_keys), "used": key.used,
            "definition": format_limit(key.limit), "capacity": key.capacity, "waiting": key.waiting,
            "last_starts_in": key.last_starts, "paused_for": key.paused, **slowed_data(key.slowed),
        }  # fmt: skip
    return data

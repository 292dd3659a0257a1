"""`throttlekit explain`: one job, and what it waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from throttlekit.fleet.rules import Rule
from throttlekit.fleet.snapshot import Key, Waiting, look_up, time_of, told_of
from throttlekit_cli.top.watch import opened
from throttlekit_cli.top.words import definition, key_shown, lasting, plainly, rule_shown

__all__ = ["explained", "told"]


def explained(url: str, job_id: str, *, as_json: bool, show_keys: bool) -> bool:
    """
    Print what is known of the job. Returns whether anything is.

    Raises:
        ConfigurationError: The URL cannot be read.
        StoreUnavailable: The store did not answer.
    """
    with opened(url) as store:
        job, key = look_up(store, job_id)
        now, rules = (time_of(store), ()) if key is None else told_of(store, key.limit)
    if as_json:
        print(json.dumps(None if job is None else _data(job, key, now, show_keys=show_keys)))
    elif job is None:
        print(
            f"Nothing is known of job {plainly(job_id)}: it was not denied in the last hour, or too many others were."
        )
    else:
        print("\n".join(map(plainly, told(job_id, job, key, rules, now, show_keys=show_keys))))
    return job is not None


def told(
    job_id: str, job: Waiting, key: Key | None, rules: Sequence[Rule], now: float, *, show_keys: bool
) -> list[str]:
    """What is known of a job, line by line."""
    times = {1: "once", 2: "twice"}.get(job.deferrals, f"{job.deferrals} times")
    if job.reason == "allowed":
        waited = lasting(max(0.0, job.told - job.since))
        return [
            f"Job {job_id} waits for no limit any more: it was allowed to run {lasting(now - job.told)} ago.",
            f"  it had waited  {waited}, and was deferred {times}",
        ]
    if key is None:
        return [f"Job {job_id} was denied {lasting(now - job.told)} ago, by a limit that is not known any more."]
    shown = key_shown(key.key, key.part, clear=show_keys)
    lines = [
        f"Job {job_id} waits for limit {key.limit.name!r}{f', key {shown}' if shown else ''}: {definition(key.limit)}.",
        f"  since          {_at(job.since)}, {lasting(now - job.since)} ago",
        f"  deferred       {times}, the last time {lasting(now - job.told)} ago: {job.reason}",
    ]
    ahead = job.slot - now
    if job.reason == "paused" and any(rule.what == "pause" for rule in rules):
        lines.append(f"  asks again     {f'in about {lasting(ahead)}' if ahead > 0 else 'now'}; it keeps its place")
    elif ahead > 0:
        lines.append(f"  its slot       starts in about {lasting(ahead)}, at {_at(job.slot)}")
        lines.append(f"  before it      {_before(key, ahead)}")
    else:
        lines.append(
            f"  its slot       came {lasting(-ahead)} ago: it is under way to a worker, or waits for a free one"
        )
    lines.append(f"  the limit now  {key.used} of {key.capacity} used{_line(key)}")
    if key.paused is not None:
        lines.append(f"  paused         for {lasting(key.paused)} yet")
    lines.extend(f"  an operator    {rule_shown(rule, now, clear=show_keys)}" for rule in rules)
    return lines


def _before(key: Key, ahead: float) -> str:
    if not key.waiting or not key.last_starts:
        return "not known"
    before = max(0, round(key.waiting * ahead / max(ahead, key.last_starts)) - 1)
    return f"about {before} of the {key.waiting} in line"


def _line(key: Key) -> str:
    return f"; the last in line starts in {lasting(key.last_starts)}" if key.last_starts is not None else ""


def _at(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def _data(job: Waiting, key: Key | None, now: float, *, show_keys: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "now": now, "reason": job.reason, "since": job.since, "deferrals": job.deferrals, "slot": job.slot or None,
        "told": job.told,
    }  # fmt: skip
    if key is not None:
        data |= {
            "limit": key.limit.name, "key": key_shown(key.key, key.part, clear=show_keys), "used": key.used,
            "definition": definition(key.limit), "capacity": key.capacity, "waiting": key.waiting,
            "last_starts_in": key.last_starts, "paused_for": key.paused,
        }  # fmt: skip
    return data

"""The command `throttlekit explain`, which shows the limit for which a job waits, and the end of the wait."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

from throttlekit.fleet.waiting_job import look_up
from throttlekit_cli.formatting import format_duration, format_time, printable
from throttlekit_cli.state import JobState, job_state
from throttlekit_cli.store import open_store

__all__ = ["describe", "print_explanation"]


def print_explanation(url: str, job_id: str, *, as_json: bool, show_keys: bool) -> bool:
    """
    Print why the job waits. Return whether the job is known.

    Raises:
        ConfigurationError: The URL is not valid.
        StoreUnavailable: The store did not answer.
    """
    with contextlib.closing(open_store(url)) as store:
        job = job_state(job_id, look_up(store, job_id), show_keys=show_keys)
    if as_json:
        print(json.dumps(asdict(job)))
    else:
        summary, facts = describe(job)
        lines = [f"Job {job.job} {summary}", *(f"  {name:<15}{text}" for name, text in facts)]
        print("\n".join(map(printable, lines)))
    return job.known


def describe(job: JobState) -> tuple[str, list[tuple[str, str]]]:
    """Return the explanation for people: the text that follows "Job X", and facts, each with its name."""
    now = job.now
    searched = "of this store" if job.searched_all else "among the names of this store that were searched"
    where = f"it is on no waitlist {searched}"
    if job.state == "unknown":
        return f"is not known: {where}, and no worker has reported it.", _POSSIBLE
    times = {1: "once", 2: "twice"}.get(job.deferrals or 0, f"{job.deferrals} times")
    ago = "" if job.decided_at is None else f"{format_duration(now - job.decided_at)} ago"
    if job.state == "allowed":
        waited = format_duration(max(0.0, (job.decided_at or now) - (job.since or now)))
        return f"no longer waits: it was allowed to run {ago}.", [
            ("it had waited", f"{waited}, and was deferred {times}")
        ]
    if job.state == "left":
        since = "it was allowed to run or was removed, or its worker will request it again"
        return f"was denied by limit {job.limit!r} {ago}: {job.reason}. Now {where}.", [("since then", since)]
    since = "not known" if job.since is None else f"{format_time(job.since)}, {format_duration(now - job.since)} ago"
    deferred = f"{times}{ago and f', the last time {ago}'}{job.reason and f': {job.reason}'}"
    history = [("since", since), ("deferred", deferred)]
    if job.definition is None:
        turn = "not known without the definition; it keeps its position"
        unknown = f"waits for limit {job.limit!r}, whose definition no worker has reported in the last hour."
        return unknown, [*history, ("its turn", turn)]
    last = job.last_starts_in_seconds
    facts = {
        "its worker": "" if job.owner_answers else "does not respond: jobs of other workers start before it",
        "the limit now": f"{job.used} of {job.capacity} used"
        + ("" if last is None else f"; the last job starts in {format_duration(last)}"),
        "paused": job.paused_for_seconds and f"for another {format_duration(job.paused_for_seconds)}",
        "slowed down": job.slowed and job.slowed.text,
    }
    known = [(name, text) for name, text in facts.items() if text]
    rules = [("an operator", rule.text) for rule in job.rules]
    name = f"{job.limit!r}{f', key {job.key}' if job.key else ''}"
    return f"waits for limit {name}: {job.definition}.", [*history, *_turn(job), *known, *rules]


_POSSIBLE = [
    ("either", "it does not wait for a limit: it runs, has ended, or no worker has taken it yet"),
    ("or", "its limits are in another store, or it has another id"),
]


def _turn(job: JobState) -> list[tuple[str, str]]:
    ahead = (job.starts_at or job.now) - job.now
    soon = f"in about {format_duration(ahead)}" if ahead > 0 else ""
    if job.state == "woken":
        return [("its turn", "now: it is being sent to a worker, or waits for a free one")]
    if job.reason == "paused" and any(rule.what == "pause" for rule in job.rules):
        when = soon or ("now" if job.starts_at else "when the pause ends")
        return [("tries again", f"{when}; it keeps its position")]
    if job.state == "kept":
        return [("its turn", "not known: another of its limits denies it; it keeps its position")]
    before = ("before it", f"{job.jobs_before} of the {job.waiting_jobs} that wait")
    if not soon:
        return [("its turn", "now: it is next, and is woken as soon as its worker has a free thread"), before]
    return [("its turn", f"{soon}, at {format_time(job.starts_at or 0)}"), before]

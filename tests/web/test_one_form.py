"""`top --json`, `explain --json` and the page use the same name and the same value for the same thing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.servers.processes import patient
from support.web import Answer
from throttlekit import Concurrency, Control, Job, Limit, Limiter, Share, TokenBucket
from throttlekit.fleet.outlook import Outlook
from throttlekit.fleet.snapshot import Process
from throttlekit_cli import state
from throttlekit_cli._commands import cli

PLAIN = TokenBucket("partner-api", "2/hour", burst=2)
KEYED = TokenBucket("tenants", "2/hour", burst=2, key="{tenant}", share=Share("{tenant}", weight={"acme": 2}))
SLOTS = Concurrency("reports-db", 2)

_CHANGES_WITH_TIME = {
    "now",
    "oldest_wait_seconds",
    "last_starts_in_seconds",
    "oldest_hold_seconds",
    "last_slot_ago_seconds",
    "starts_at",
}
_DOCS = Path(__file__).parents[2] / "docs" / "top.md"


def _run(url: str, *arguments: str) -> Any:
    return json.loads(CliRunner().invoke(cli, [*arguments, "--json", "--url", url]).stdout)


def _assert_equal(first: Mapping[str, Any], second: Mapping[str, Any], names: set[str]) -> None:
    """Assert that the values of *names* are equal, or about equal if they change between two reads."""
    for name in sorted(names):
        about = pytest.approx(first[name], abs=10) if name in _CHANGES_WITH_TIME else first[name]
        assert second[name] == about, name


@pytest.fixture
def waiting(limiter: Limiter, report: Callable[[], None]) -> None:
    """For each limit, two jobs hold or have used it, and three wait. Workers do not apply the rule for the slots."""
    with Control(limiter, by="ann") as control:
        control.set(SLOTS.name, "5/s")
    for limit in (PLAIN, KEYED, SLOTS):
        for number in range(5):
            limiter.acquire(limit, job=Job(id=f"{limit.name}-{number}", kwargs={"tenant": "acme"}))
    with Control(limiter, by="ann") as control:
        control.scale("partner-*", 0.5)
        control.pause(KEYED, key="another")
    report()


@pytest.mark.parametrize("limit", [PLAIN, KEYED, SLOTS], ids=lambda limit: limit.name)
@pytest.mark.usefixtures("waiting")
def test_three_outputs_share_names_and_values(redis_url: str, make_site: Callable[..., Any], limit: Limit) -> None:
    """
    For a limit with waiting jobs, the outputs agree on the limit, its key, its rules, and the key that a job waits for.
    """
    page = make_site()
    fleet, listed = _run(patient(redis_url), "top", "--once"), page("/api/limits").data
    (shown,) = [row for row in fleet["limits"] if row["limit"] == limit.name]
    (row,) = [row for row in listed["limits"] if row["limit"] == limit.name]
    alone = page(f"/api/limit?id={row['id']}").data
    why = _run(patient(redis_url), "explain", f"{limit.name}-4")
    assert (shown["waiting_jobs"], len(shown["warnings"]), len(shown["tenants"])) == (3, limit is SLOTS, limit is KEYED)
    _assert_equal(shown, row, {*shown} - {"keys", "tenants"})
    _assert_equal(shown, alone, {*shown} - {"keys"})
    assert {*row} - {*shown} == {"bars"}
    (key,), (of_page,) = shown["keys"], alone["keys"]
    _assert_equal(key, of_page, {*key})
    _assert_equal(key, why, {*key})
    _assert_equal(shown, why, {"limit", "id", "definition"})
    assert [rule for rule in shown["rules"] if rule["part"] is None] == why["rules"]
    _assert_equal(why, page(f"/api/job?id={limit.name}-4").data, {*why})
    _assert_equal(fleet, listed, {*fleet} & {*listed} - {"limits"})


@pytest.mark.usefixtures("waiting")
def test_rules_and_changes_share_names_and_values(redis_url: str, make_site: Callable[..., Any]) -> None:
    """The commands `rules` and `history` agree too, but show keys by name."""
    page = make_site(show_keys=True)
    answer: Answer = page("/api/changes")
    assert _run(patient(redis_url), "rules") == answer.data["rules"]
    assert _run(patient(redis_url), "history") == answer.data["changes"]


_CLASSES: tuple[Any, ...] = (
    state.FleetState,
    state.LimitState,
    state.KeyState,
    state.JobState,
    state.RuleState,
    state.ChangeState,
    state.TenantState,
    state.LastMinute,
    state.Slowed,
    Outlook,
    Process,
)


def test_every_name_is_documented() -> None:
    """docs/top.md lists each of the names, and no other."""
    section = _DOCS.read_text().partition("## Names in JSON\n")[2].partition("\n## ")[0]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("| `"))
    values = {"adapt", "headers", "set", "pause", "shadow", "scale"}
    listed = {*re.findall(r"`([a-z_0-9]+)`", rows)} - values
    assert listed == {field.name for each in _CLASSES for field in fields(each)} | {"store"}

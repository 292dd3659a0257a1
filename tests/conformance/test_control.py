"""Live control on a server: every process applies a rule within 2 seconds, and every change is recorded."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from support.servers.processes import Cluster, patient
from support.waiting import wait_until
from throttlekit import Concurrency, ConfigurationError, Control, FixedWindow, Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import fleet_name
from throttlekit.fleet.definitions import definitions_of
from throttlekit.fleet.rules import HISTORY, RULES, Rule, as_text, field_of, plain
from throttlekit.fleet.snapshot import look

LIMIT = TokenBucket("api", "1000/s", burst=100)
KEYED = TokenBucket("api:account", "1000/s", burst=100, key="{account}")
SLOTS = Concurrency("db", 3)


def reason(limiter: Limiter, limit: Any = LIMIT, **arguments: Any) -> str:
    return limiter.acquire(limit, job=Job(id="1", kwargs=arguments)).reason


def test_the_first_decision_of_a_process_follows_the_rules(control: Control, limiter: Limiter) -> None:
    """A process that starts while a limit is paused admits no job."""
    control.pause("api")
    assert reason(limiter) == "paused"


def test_running_processes_apply_new_rules(redis_url: str, control: Control, limiter: Limiter) -> None:
    """Each limiter applies a new rule within two runs of the reporter, and also its end."""
    with contextlib.closing(Limiter(patient(redis_url))) as other:
        for each in (limiter, other):
            assert reason(each) == "allowed"
        control.pause(LIMIT)
        wait_until(lambda: [reason(each) for each in (limiter, other)] == ["paused"] * 2, description="both are paused")
        control.resume(LIMIT)
        wait_until(
            lambda: [reason(each) for each in (limiter, other)] == ["allowed"] * 2, description="both admit jobs again"
        )


def test_a_rate_that_is_set_keeps_waitlist_and_pause(redis_url: str, control: Control, limiter: Limiter) -> None:
    """
    While one process knows the rule and another does not yet, both count in one bucket, with one waitlist, and a pause
    after a 429 applies in both. The fleet has one limit, with the rate that is in force.
    """
    limit = TokenBucket("api", "1/d", burst=20)
    with contextlib.closing(Limiter(patient(redis_url))) as outdated:
        outdated.fleet.follower.follow()
        outdated.fleet.overrides._follower.follow = lambda: None  # type: ignore[method-assign]
        taken = outdated.acquire(limit, cost=20)
        outdated.acquire(limit, job=Job(id="first"))
        control.set("api", "2/d", burst=40)
        wait_until(lambda: limiter.in_force([limit], None)[0].amount == 2, description="the rule is in force")
        assert [each.acquire(limit).reason for each in (limiter, outdated) * 3] == ["exhausted"] * 6
        outdated.settle(taken, actual=19)
        assert limiter.acquire(limit, job=Job(id="new")).reason == "in line"
        assert limiter.acquire(limit, job=Job(id="first"))
        outdated.pause(limit, 60)
        assert limiter.acquire(limit, job=Job(id="second")).reason == "paused"
    limiter.flush()
    wait_until(
        lambda: [each.limit.amount for each in definitions_of(control._store) if each.limit.name == "api"] == [2],
        description="the fleet has reported the rate",
    )
    (known,) = (each for each in definitions_of(control._store) if each.limit.name == "api")
    (key,) = look(control._store, id=known.id).keys
    assert (key.capacity, key.waiting, key.paused is not None) == (40, 2, True)
    assert control.clear_waitlist("api")
    assert control.reset("api")


def test_a_limit_that_no_worker_reports_any_longer_is_found_by_its_id(control: Control, limiter: Limiter) -> None:
    """A limit is listed for an hour after its last report. Its own page, with its history, stays."""
    limiter.acquire(LIMIT)
    limiter.flush()
    wait_until(lambda: definitions_of(control._store), description="the limit is reported")
    (known,) = definitions_of(control._store)
    (text,) = control._store.commands([("HGET", fleet_name("limits"), known.id)])
    reported_in_1970 = b"1 " + text.partition(b" ")[2]
    control._store.commands([("HSET", fleet_name("limits"), known.id, reported_in_1970)])
    assert [each.id for each in look(control._store, id=known.id).limits] == [known.id]
    assert look(control._store).limits == ()


def test_a_group_is_scaled_and_restored(redis_url: str, control: Control, limiter: Limiter) -> None:
    """
    All limits that the pattern matches are scaled, in each process, and keep their counts, waitlists and pauses. A rule
    for one name has priority. `unset` of the pattern ends only the pattern's rule.
    """
    limits = [TokenBucket("llm-a", "2/d", burst=20), TokenBucket("llm-b", "4/d", burst=20)]
    with contextlib.closing(Limiter(patient(redis_url))) as other:
        other.acquire(limits[0], job=Job(id="first"), cost=20)
        other.acquire(limits[0], job=Job(id="first"))
        (change,) = control.scale("llm-*", 0.5, duration=600)
        assert (change.verb, change.after and change.after.factor, change.before) == ("scale", 0.5, None)
        control.scale(limits[1], 0.2519)
        for each in (limiter, other):
            wait_until(
                lambda each=each: (
                    [(limit.amount, limit.period_us // 86_400_000_000) for limit in each.in_force(limits, None)]
                    == [(1, 1), (251, 250)]
                ),
                description="the rules are in force",
            )
            assert each.acquire(limits[0]).reason in ("exhausted", "in line")
        other.pause(limits[1], 60)
        assert limiter.acquire(limits[1]).reason == "paused"
        assert [(rule.name, rule.factor) for rule in control.rules()] == [("llm-*", 0.5), ("llm-b", 0.251)]
        assert control.scale("llm-a", None) == ()
        (ended,) = control.scale("llm-*", None)
        assert (ended.before, ended.after) == (change.after, None)
        wait_until(
            lambda: limiter.in_force(limits, None)[0] == limits[0], description="the rate is the declared one again"
        )
        assert limiter.in_force(limits, None)[1].amount == 251
        assert not limiter.acquire(limits[0], job=Job(id="first"))
    assert [each.verb for each in control.history()] == ["scale"] * 3


def test_a_clock_that_steps_back_extends_no_rule(client: Any, control: Control, limiter: Limiter) -> None:
    """If the store's clock was an hour ahead when a pause of 30 s was made, the 30 s begin now, and this is stored."""
    ahead_us = (int(client.time()[0]) + 3600) * 1_000_000
    rule = Rule(what="pause", name="api", since_us=ahead_us, until_us=ahead_us + 30_000_000, by="ann")
    client.hset(RULES, field_of("pause", "api", None), as_text(plain(rule)))
    client.expire(RULES, 600)
    (rule,) = control.rules()
    assert rule.until_us - rule.since_us == 30_000_000
    assert 0 < limiter.acquire(LIMIT, job=Job(id="1")).retry_after <= 30
    ((_, value),) = client.hgetall(RULES).items()
    kept = json.loads(value)
    assert kept["until"] - kept["since"] == 30_000_000
    assert kept["since"] <= int(client.time()[0] + 1) * 1_000_000
    assert kept["by"] == "ann"
    limiter.fleet.follower.follow()
    assert client.hget(RULES, field_of("pause", "api", None)) == value, (
        "the rule is corrected once, and not with each run"
    )


def test_a_pause_is_for_every_key_or_for_one(control: Control, limiter: Limiter) -> None:
    """Without a key, all keys are paused, also keys that were never used; with a key, only that one."""
    control.pause(KEYED, key=7)
    assert reason(limiter, KEYED, account=7) == "paused"
    assert reason(limiter, KEYED, account=8) == "allowed"
    control.pause(KEYED)
    limiter.fleet.follower.follow()
    assert reason(limiter, KEYED, account=8) == "paused"
    (one, other) = control.resume(KEYED)
    assert {one.part, other.part} == {None, "7"}
    limiter.fleet.follower.follow()
    assert reason(limiter, KEYED, account=7) == "allowed"


def test_every_change_is_recorded(control: Control, client: Any) -> None:
    """
    The history has the operator, the time, and the rule before and after. It has the newest first, at most a
    thousand, and expires.
    """
    control.set("api", "50/s", burst=5)
    control.set("api", "60/s")
    control.unset("api")
    control.pause("other", key="k")
    paused, unset, again, first = control.history()
    assert [each.verb for each in (paused, unset, again, first)] == ["pause", "unset", "set", "set"]
    assert {each.by for each in control.history()} == {"ann@ops"}
    assert first.before is None
    assert again.before == first.after
    assert first.after is not None
    assert (first.after.rate, first.after.burst, first.after.by) == ("50/s", 5, "ann@ops")
    assert (unset.before, unset.after) == (again.after, None)
    assert control.history("other") == (paused,)
    assert control.rules() == (paused.after,)
    assert client.ttl(RULES) > 300 * 86_400
    assert client.ttl(HISTORY) > 300 * 86_400
    client.rpush(HISTORY, *["{}"] * 2000, "torn")
    control.pause("other")
    assert client.llen(HISTORY) == 1000
    assert len(control.history()) == 5


def test_the_history_skips_entries_of_another_release(control: Control, client: Any) -> None:
    """An entry that is torn, foreign or has an impossible time is skipped; the others are returned."""
    control.pause(LIMIT)
    (kept,) = client.lrange(HISTORY, 0, -1)
    entry = json.loads(kept)
    for more in ({"v": 2}, {"at": 10**400}, {"at": 1.5e300}, {"part": {}}, {"after": [1]}):
        client.lpush(HISTORY, json.dumps({**entry, **more}))
    client.lpush(HISTORY, b"\xff")
    assert [change.verb for change in control.history()] == ["pause"]


def test_names_skip_entries_of_another_release(control: Control, limiter: Limiter, client: Any) -> None:
    """Every command reads the names first, so no entry there may make a command fail."""
    limiter.acquire(LIMIT)
    limiter.close()
    for kept in (b"", b"torn", b"1 [1]", b"1 {}", b"1 2", b"1 \xff"):
        client.hset(fleet_name("limits"), kept, kept)
    assert control.names() == (LIMIT.name,)


def test_the_end_of_an_absent_rule_is_no_change(control: Control) -> None:
    """Ending a rule that is not in force changes nothing, and is not recorded."""
    for verb in (control.resume, control.unset, control.enforce, control.reset, control.clear_waitlist):
        assert verb("api") == ()
    assert control.history() == ()


def test_reset_by_name(control: Control, limiter: Limiter) -> None:
    """A reset by name fills the bucket of a key or of all, also if names begin alike, and ends a pause after a 429."""
    daily, other = (TokenBucket(name, "2/day", key="{account}") for name in ("daily", "daily:2"))
    for limit in (daily, other):
        for account in (1, 2):
            limiter.acquire(limit, key=account, cost=1)
    limiter.pause(daily, 3600, key=1)
    (change,) = control.reset("daily", key=1)
    assert change.forgotten == 2  # the charge, and the pause
    assert limiter.peek(daily, key=1)
    assert not limiter.acquire(daily, key=2)
    control.reset(daily)
    assert limiter.acquire(daily, key=2)
    assert not limiter.acquire(other, key=1)
    assert not limiter.acquire(other, key=2)
    assert [each.verb for each in control.history()] == ["reset", "reset"]


def test_a_waitlist_is_cleared_by_name(control: Control, limiter: Limiter) -> None:
    """
    The waitlist of one key or of all is cleared, also if names begin alike. The counts stay, and so does a pause after
    a 429.
    """
    daily, other = (TokenBucket(name, "2/day", burst=2, key="{account}") for name in ("daily", "daily:2"))
    for limit in (daily, other):
        for account in (1, 2, 3):
            for job in range(5):
                limiter.acquire(limit, job=Job(id=str(job), kwargs={"account": account}))
    limiter.pause(daily, 3600, key=3)
    next_unit = 43_200  # the time until it is free
    assert limiter.peek(daily, key=1).retry_after > 86_400
    (change,) = control.clear_waitlist("daily", key=1)
    assert (change.verb, change.forgotten) == ("clear-waitlist", 1)
    cleared, *kept = (limiter.peek(daily, key=each).retry_after for each in (1, 2, 3))
    assert cleared <= next_unit
    assert min(kept) > 86_400
    assert control.clear_waitlist("daily", key=1) == ()
    (change,) = control.clear_waitlist(daily)
    assert change.forgotten == 2
    assert [limiter.peek(daily, key=each).reason for each in (1, 2, 3)] == ["exhausted", "exhausted", "paused"]
    assert limiter.peek(other, key=1).retry_after > 86_400
    limiter.clear_waitlist(other, key=1)
    assert limiter.peek(other, key=1).retry_after <= next_unit
    assert limiter.peek(other, key=2).retry_after > 86_400
    assert [each.verb for each in control.history()] == ["clear-waitlist", "clear-waitlist"]


def test_ended_rules_are_deleted(control: Control, client: Any) -> None:
    """A rule whose duration is over is not in force, needs no end, and is deleted by the next change."""
    (change,) = control.pause("old", duration=0.01)
    assert change.after is not None
    assert change.after.until_us - change.after.since_us == 10_000
    wait_until(lambda: control.rules() == (), description="the pause is over")
    assert control.resume("old") == ()
    control.pause("new")
    assert client.hlen(RULES) == 1


def test_live_control_works_on_a_cluster(cluster: Cluster) -> None:
    """On a cluster, the rules reach the keys of every node."""
    with contextlib.closing(Limiter(cluster.url)) as limiter, Control(limiter) as control:
        for account in range(9):
            assert reason(limiter, KEYED, account=account) == "allowed"
        control.pause(KEYED)
        limiter.fleet.follower.follow()
        assert reason(limiter, KEYED, account=1) == "paused"
        control.resume(KEYED)
        limiter.pause(KEYED, 60, key=1)
        assert control.clear_waitlist(KEYED)
        assert reason(limiter, KEYED, account=1) == "paused"
        (change,) = control.reset(KEYED)
        assert change.forgotten >= 9
        assert [each.verb for each in control.history()] == ["reset", "clear-waitlist", "resume", "pause"]


def test_memory_has_no_fleet() -> None:
    """`Control` of a limiter in memory raises, and the message says how to pause its limits."""
    with pytest.raises(ConfigurationError, match="limiter in memory"):
        Control("memory://")
    with pytest.raises(ConfigurationError, match="limiter in memory"):
        Control(Limiter())


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("set", ("api", "fast"), "'fast' is not a rate"),
        ("set", ("api", "0/s"), "0"),
        ("set", ("api", (3, 5)), "the rate must be like"),
        ("set", ("api", "9" * 5000), "the rate must be some text"),
        ("set", (LIMIT, "3/s", {"tier": "pro"}), "has no tiers"),
        ("set", ("api", 0), "the amount must be a whole number"),
        ("set", ("api", "3", {"burst": 2}), "no burst"),
        ("set", ("api", "3/s", {"burst": 0}), "the burst must be"),
        ("set", ("api", "3/s", {"tier": ""}), "tier must be some text"),
        ("set", (TokenBucket("t", {"a": "1/s"}, tier="{x}"), "3/s"), "has tiers"),
        ("set", (LIMIT, 3), "not a rate"),
        ("set", (SLOTS, "3/s"), "the amount must be a whole number"),
        ("scale", ("api", 0), "the factor must be a number from 0.001 to 1, not 0"),
        ("scale", ("api", 1.01), "the factor must be"),
        ("scale", ("api", float("nan")), "the factor must be"),
        ("scale", ("api", True), "the factor must be"),
        ("scale", ("api", "0.5"), "the factor must be"),
        ("scale", ("", 0.5), "name must be some text"),
        ("scale", ("api", 0.5, {"duration": 0}), "duration must be"),
        ("pause", ("",), "name must be some text"),
        ("pause", ("api", {"duration": 0}), "duration must be"),
        ("pause", ("api", {"duration": -1}), "duration must be"),
        ("pause", ("api", {"duration": 1e9}), "duration must be"),
        ("pause", ("api", {"key": 1.5}), "a key must be"),
    ],
)
def test_wrong_arguments_are_configuration_errors(control: Control, verb: str, arguments: Any, message: str) -> None:
    """The message has the value and what would be right, as the limit's constructor says; nothing is changed."""
    *positional, named = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(ConfigurationError, match=message):
        getattr(control, verb)(*positional, **named)
    assert control.history() == ()


def test_rules_are_bounded(control: Control, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Every process reads all rules, so one rule too many is rejected, and the message says what to do. A change of a rule
    adds none.
    """
    monkeypatch.setattr("throttlekit.control.MOST_RULES", 3)
    control.pause("api", key=0, duration=0.01)
    wait_until(lambda: not control.rules(), description="the first pause is over")
    for key in range(1, 4):
        control.pause("api", key=key)
    with pytest.raises(ConfigurationError, match="3 rules are in force already"):
        control.pause("api", key=4)
    assert control.pause("api", key=3, duration=60)
    control.resume("api", key=1)
    assert control.pause("api", key=4)
    assert len(control.history()) == 7


def test_a_monthly_rate_is_set_by_name(control: Control, limiter: Limiter) -> None:
    """A monthly quota gets another amount by its name; a burst for a month is rejected, because no limit has one."""
    quota = FixedWindow("quota", "100/month")
    (change,) = control.set("quota", "1/month")
    assert change.after is not None
    assert change.after.rate == "1/month"
    assert [reason(limiter, quota) for _ in range(2)] == ["allowed", "exhausted"]
    with pytest.raises(ConfigurationError, match="FixedWindow"):
        control.set("quota", "1/month", burst=5)
    with pytest.raises(ConfigurationError, match="not a rate"):
        control.set("quota", "a lot")


def test_rates_of_the_application_are_one_count_on_a_server(control: Control, limiter: Limiter) -> None:
    """
    A key that has used up one rate has no new budget at another rate, nor at a rate that is set. The fleet reports the
    limit.
    """
    limit = TokenBucket("varying", lambda job: job.arguments["rate"], key="{account}")
    assert reason(limiter, limit, rate="10/d", account=1) == "allowed"
    assert reason(limiter, limit, rate="11/d", account=1) == "exhausted"
    assert reason(limiter, limit, rate="11/d", account=2) == "allowed"
    control.set("varying", "12/d")
    requesting = Job(kwargs={"rate": "11/d"})
    wait_until(lambda: limiter.in_force([limit], requesting) == [limit.at("12/d")], description="the rule is in force")
    assert limiter.in_force([limit], None) == [limit]
    assert reason(limiter, limit, rate="11/d", account=2) == "exhausted"
    limiter.flush()
    wait_until(lambda: "varying" in control.names(), description="the fleet knows the limit")

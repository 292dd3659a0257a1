"""The commands of live control: their effects, their output and their exit codes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner, Result

from throttlekit import Concurrency, Control, Job, LeakyBucket, Limiter, Share, SlidingLog, TokenBucket
from throttlekit_cli import _control
from throttlekit_cli._commands import cli

Run = Callable[..., Result]


@pytest.fixture
def run(redis_url: str) -> Run:
    """Run `throttlekit …` on the store of the test."""
    environment = {"THROTTLEKIT_URL": redis_url, "THROTTLEKIT_BY": "ann"}
    return lambda *words: CliRunner().invoke(cli, words, env=environment)


@pytest.mark.parametrize(
    ("begin", "end", "line"),
    [
        (["pause", "api"], ["resume", "api"], "api: as declared -> paused\n"),
        (["pause", "api", "--for", "10m"], ["resume", "api"], "api: as declared -> paused until 20"),
        (["pause", "api", "--key", "7"], ["resume", "api", "--key", "7"], "api (key 7): as declared -> paused\n"),
        (["set", "api", "50/s", "--burst", "5"], ["unset", "api"], "api: as declared -> 50/s burst 5\n"),
        (["set", "db", "4", "--for", "1h30m"], ["unset", "db"], "db: as declared -> 4 until 20"),
        (
            ["set", "api", "9/m", "--tier", "pro"],
            ["unset", "api", "--tier", "pro"],
            "api (tier pro): as declared -> 9/m",
        ),
        (["shadow", "api"], ["enforce", "api"], "api: as declared -> shadow\n"),
        (
            ["weight", "api", "acme", "2.5"],
            ["weight", "api", "acme", "--unset"],
            "api (tenant acme): as declared -> weight 2.5\n",
        ),
        (["scale", "api", "0.5"], ["scale", "api", "--unset"], "api: as declared -> scaled to 0.5\n"),
        (
            ["scale", "llm-*", "0.25", "--for", "10m"],
            ["scale", "llm-*", "--unset"],
            "llm-*: as declared -> scaled to 0.25 until 20",
        ),
    ],
)
def test_each_command_and_its_opposite_print_the_change(run: Run, begin: list[str], end: list[str], line: str) -> None:
    """
    Each command prints one line with the change and the time until workers apply it. So does its opposite. A repeated
    opposite changes nothing.
    """
    outcome = run(*begin, "--yes")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith(line)
    assert "within 2 seconds" in outcome.stdout
    assert run("rules").exit_code == 0
    ended = run(*end)
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[0].endswith(" -> as declared")
    assert "*" not in begin[1] or ended.stderr == "", "the rule of a pattern ends, whichever limits the fleet has used"
    again = run(*end)
    assert (again.exit_code, again.stdout) == (1, "")
    assert begin[1] in again.stderr
    assert run("rules").exit_code == 1


def test_rules_and_history_are_printed(run: Run) -> None:
    """
    The commands print the rules in force, and the changes with their authors, as lines and as JSON, for one limit or
    for a number of changes.
    """
    assert run("history").exit_code == 1
    run("set", "api", "50/s", "--yes")
    run("pause", "other", "--by", "bob", "--yes")
    assert re.fullmatch(
        r"api: 50/s, since \S+ \S+ \S+, by ann\nother: paused, since \S+ \S+ \S+, by bob\n", run("rules").stdout
    )
    lines = run("history").stdout.splitlines()
    assert re.fullmatch(r"20\S+ \S+ \S+  bob  other: as declared -> paused", lines[0])
    assert len(lines) == 2
    assert run("history", "--limit", "1").stdout.splitlines() == lines[:1]
    assert run("history", "api").stdout.splitlines() == lines[1:]
    (entry,) = json.loads(run("history", "api", "--json").stdout)
    assert (entry["verb"], entry["by"], entry["before"], entry["after"]["rate"]) == ("set", "ann", None, "50/s")
    assert [rule["limit"] for rule in json.loads(run("rules", "--json").stdout)] == ["api", "other"]


def test_reset_deletes_the_counts(run: Run, redis_url: str) -> None:
    """`reset` prints how much was deleted. If there are no counts, the exit code is 1."""
    assert run("reset", "api").exit_code == 1
    with contextlib.closing(Limiter(redis_url)) as limiter:
        limiter.acquire(TokenBucket("api", "1/day"))
    outcome = run("reset", "api")
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("api: reset: 1 stored values deleted\nStore: ")


def test_clear_waitlist_empties_the_waitlists(run: Run, redis_url: str) -> None:
    """`clear-waitlist` prints how many lists it emptied, and keeps the counts. If no job waits, the exit code is 1."""
    limit = TokenBucket("api", "1/day")
    assert run("clear-waitlist", "api").exit_code == 1
    with contextlib.closing(Limiter(redis_url)) as limiter:
        for job in range(3):
            limiter.acquire(limit, job=Job(id=str(job)))
        outcome = run("clear-waitlist", "api")
        assert outcome.exit_code == 0
        assert outcome.stdout.startswith("api: clear-waitlist: 1 waitlists emptied\nStore: ")
        assert limiter.peek(limit).reason == "exhausted"
    assert "clear-waitlist: 1 waitlists emptied" in run("history", "api").stdout


_CHANGES = [
    ["pause", "api"],
    ["resume", "api"],
    ["set", "api", "5/s"],
    ["unset", "api"],
    ["shadow", "api"],
    ["enforce", "api"],
    ["weight", "api", "acme", "2"],
    ["weight", "api", "acme", "--unset"],
    ["scale", "api", "0.5"],
    ["scale", "api", "--unset"],
    ["clear-waitlist", "api"],
    ["reset", "api"],
]


def test_every_confirmation_names_the_store(redis_url: str) -> None:
    """Each confirmation has the host and the database without the password, whether or not something was changed."""
    assert {words[0] for words in _CHANGES} == {command.name for command in _control.COMMANDS}
    limit = TokenBucket("api", "1/day", burst=1, share=Share("{tenant}"))
    place = redis_url.partition("://")[2].partition("?")[0]
    environment = {
        "THROTTLEKIT_URL": redis_url.replace("://", "://default:hunter2@")
    }  # the test's server accepts any password
    with contextlib.closing(Limiter(redis_url)) as limiter:
        for job in range(3):
            limiter.acquire(limit, job=Job(id=str(job), kwargs={"tenant": "acme"}))
    for words in _CHANGES:
        done = CliRunner().invoke(cli, words, env=environment)
        assert (done.exit_code, f"Store: {place}." in done.stdout) == (0, True), (words, done.output)
        assert "hunter2" not in done.output
    for words in (["resume", "api"], ["unset", "api"], ["enforce", "api"], ["reset", "api"]):
        nothing = CliRunner().invoke(cli, words, env=environment)
        assert (nothing.exit_code, f"Store: {place}." in nothing.stderr) == (1, True), words
    unknown = CliRunner().invoke(cli, ["pause", "apii"], env=environment)
    assert (unknown.exit_code, f"Store: {place}" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("words", [["pause", "partner-ap"], ["set", "partner-ap", "5/s"], ["shadow", "partner-ap"]])
def test_a_name_that_is_not_in_use_is_refused_without_yes(run: Run, redis_url: str, words: list[str]) -> None:
    """
    For a name that is not in use, the exit code is 2, similar names are printed, and nothing is stored. A change for a
    limit that is deployed later needs --yes.
    """
    with contextlib.closing(Limiter(redis_url)) as limiter:
        limiter.acquire(TokenBucket("partner-api", "100/s"))
    outcome = run(*words)
    assert outcome.exit_code == 2
    assert "has not used a limit named 'partner-ap'" in outcome.stderr
    assert "Did you mean partner-api?" in outcome.stderr
    assert "repeat the command with --yes" in outcome.stderr
    assert (run("rules").exit_code, run("history").exit_code) == (1, 1)
    assert run(*words, "--yes").exit_code == 0
    known = run(words[0], "partner-api", *words[2:])
    assert (known.exit_code, known.stderr) == (0, "")


@pytest.mark.parametrize("words", [["pause"], ["set", "5/s"], ["shadow"], ["weight", "acme", "2"]])
def test_only_scale_takes_a_pattern(run: Run, redis_url: str, words: list[str]) -> None:
    """A rule for a pattern would apply to no limit, so it is refused like a name that is not in use."""
    with contextlib.closing(Limiter(redis_url)) as limiter:
        limiter.acquire(TokenBucket("llm-a", "100/s"))
    outcome = run(words[0], "llm-*", *words[1:])
    assert "has not used a limit named 'llm-*'" in outcome.stderr
    assert (outcome.exit_code, run("rules").exit_code) == (2, 1)


TOKENS = TokenBucket("tokens", "20000/minute", burst=1200)
SLOTS = Concurrency("db", 8)
LEAKY = LeakyBucket("leaky", "5/s")
PLANS = TokenBucket("plans", {"free": "1/s", "pro": "10/s"}, tier="{plan}")
RANKS = TokenBucket("ranks", "1/s", share=Share("{rank}", weight={"high": 2, "low": 1}, strict=True))
LOG = SlidingLog("log", "5/s")
DEAR = TokenBucket("dear", "100/s", burst=100, cost=10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "tokens", "50"], "50 is not a rate"),
        (["set", "db", "50/s"], "'50/s'"),
        (["set", "db", "4", "--burst", "2"], "which has no burst"),
        (["set", "leaky", "5/s", "--burst", "2"], "which has no burst"),
        (["set", "plans", "5/s"], "limit 'plans' has tiers"),
        (["set", "tokens", "5/s", "--tier", "free"], "limit 'tokens' has no tiers"),
        (["set", "plans", "5/s", "--tier", "por"], "It has used pro."),
        (["set", "dear", "5/s", "--burst", "5"], "a cost of 10"),
        (["pause", "tokens", "--key", "7"], "limit 'tokens' has no key"),
        (["scale", "log", "0.5"], "limit 'log' is a SlidingLog"),
        (["scale", "lo*", "0.5"], "limit 'log' is a SlidingLog"),
        (["weight", "tokens", "acme", "3"], "limit 'tokens' has no share="),
        (["weight", "ranks", "low", "3"], "the weights of limit 'ranks' are priorities"),
    ],
)
def test_a_change_that_the_limit_in_use_cannot_apply_is_refused(
    run: Run, redis_url: str, words: list[str], message: str
) -> None:
    """
    For a change that the limit cannot apply, the exit code is 2, the reason is printed, and the rule in force stays.
    --yes does not help, except for a new tier.
    """
    with contextlib.closing(Limiter(redis_url)) as limiter:
        for limit in (TOKENS, SLOTS, LEAKY, LOG, DEAR):
            limiter.acquire(limit)
        limiter.acquire(PLANS, job=Job(kwargs={"plan": "pro"}))
        limiter.acquire(RANKS, job=Job(kwargs={"rank": "low"}))
    assert run("set", "tokens", "10000/minute").exit_code == 0
    before = run("rules").stdout
    outcome = run(*words)
    assert outcome.exit_code == 2, outcome.output
    assert message in outcome.stderr
    assert run("rules").stdout == before
    assert run(*words, "--yes").exit_code == (0 if "por" in words else 2)


def test_a_change_that_one_definition_in_use_can_apply_is_stored(run: Run, redis_url: str) -> None:
    """While a deployment replaces a bucket by slots, a change for either of them is accepted."""
    for limit in (TokenBucket("db", "5/s"), SLOTS):
        with contextlib.closing(Limiter(redis_url)) as limiter:
            limiter.acquire(limit)
    assert [run("set", "db", rate).exit_code for rate in ("4", "9/s")] == [0, 0]


def test_the_names_in_use_are_printed_if_none_is_similar(run: Run, redis_url: str) -> None:
    """Each command that ends a change prints the names that the fleet uses, or that it uses none."""
    commands = ("resume", "unset", "enforce", "reset", "clear-waitlist")
    for command in commands:
        assert "It has used no limit at all" in run(command, "x").stderr, command
    with contextlib.closing(Limiter(redis_url)) as limiter:
        limiter.acquire(TokenBucket("partner-api", "100/s"), TokenBucket("mail", "1/s"))
    for command in commands:
        assert "It has used mail, partner-api." in run(command, "x").stderr, command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pause", "api", "--for", "10"], "write it as 90s, 10m, 1h30m or 2d"),
        (["pause", "api", "--for", "0s", "--yes"], "duration must be more than 0 seconds"),
        (["pause", "api", "--for", "400d", "--yes"], "from 0 to"),
        (["set", "api", "fast", "--yes"], "'fast' is not a rate"),
        (["set", "api", "3/s", "--burst", "0", "--yes"], "the burst must be"),
        (["set", "api"], "Missing argument 'RATE'"),
        (["pause"], "Missing argument 'NAME'"),
        (["weight", "api", "acme"], "name the new weight"),
        (["weight", "api", "acme", "3", "--unset"], "name the new weight"),
        (["weight", "api", "acme", "0", "--yes"], "a weight must be a number from 0.001"),
        (["weight", "api", "acme", "nan", "--yes"], "a weight must be a number from 0.001"),
        (["scale", "api"], "name the factor"),
        (["scale", "api", "0.5", "--unset"], "name the factor"),
        (["scale", "api", "0", "--yes"], "the factor must be a number from 0.001 to 1"),
        (["scale", "api", "1.5", "--yes"], "the factor must be a number from 0.001 to 1"),
        (["scale", "a*", "0.5"], "repeat the command with --yes"),
        (["pause", "api", "--key", "k" * 1001, "--yes"], "the key has 1001 characters: a rule takes 1000 at most"),
        (["weight", "api", "t" * 1001, "3", "--yes"], "the tenant has 1001 characters: a rule takes 1000 at most"),
        (["pause", "api", "--url", "memory://"], "this store is not shared by a fleet"),
        (["pause", "api", "--url", "redis://:hunter2@127.0.0.1:1/0"], "the store gave no usable answer"),
        (["pause", "api", "--url", "gopher://:hunter2@x"], "no store is known"),
        (["history", "--url", "redis://:hunter2@127.0.0.1:1/0"], "the store gave no usable answer"),
    ],
)
def test_a_command_that_cannot_be_run_changes_nothing(run: Run, words: list[str], message: str) -> None:
    """If a command cannot be run, the exit code is 2, and the reason is printed without a password."""
    outcome = run(*words)
    assert outcome.exit_code == 2, outcome.output
    assert message in outcome.stderr
    assert "hunter2" not in outcome.output
    assert run("history").exit_code == 1


def test_without_a_url_the_message_says_what_is_needed() -> None:
    """Without a URL, the message names the option and the environment variable."""
    outcome = CliRunner().invoke(cli, ["rules"], env={"THROTTLEKIT_URL": None})
    assert outcome.exit_code == 2
    assert "--url URL, or THROTTLEKIT_URL" in outcome.stderr


def test_by_is_the_user_and_the_host_by_default(redis_url: str) -> None:
    """Without --by, the history shows the user and the host."""
    CliRunner().invoke(cli, ["pause", "api", "--yes", "--url", redis_url], env={"THROTTLEKIT_BY": None})
    with contextlib.closing(redis.Redis.from_url(redis_url)), Control(redis_url) as control:
        assert re.fullmatch(r"\S+@\S+", control.history()[0].by)

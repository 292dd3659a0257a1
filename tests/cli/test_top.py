"""`throttlekit top` and `explain`: what they show for a live store, and their messages for an empty one."""

from __future__ import annotations

import calendar
import contextlib
import json
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from support.servers.processes import patient
from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import Adapt, Concurrency, Control, FixedWindow, Job, Limit, Limiter, Share, SlidingLog, TokenBucket
from throttlekit._core.storage_keys import digest_of
from throttlekit.fleet.activity import reported_rate
from throttlekit.fleet.definitions import share_of_minute
from throttlekit.fleet.last_minute import Minute
from throttlekit_cli._commands import cli
from throttlekit_cli.formatting import format_date, format_duration, format_key, format_limit, format_pace, format_time

API = TokenBucket("partner-api", "2/minute", burst=2)
ACCOUNT = TokenBucket("account", "1/minute", key="{account}")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "170"})


def _top(url: str, *options: str) -> Any:
    return json.loads(run("top", "--url", url, "--once", "--json", *options).stdout)


def test_decisions_of_a_worker_are_shown_while_it_works(redis_url: str, limiter: Limiter) -> None:
    """`top` shows the decisions of another process, without any of its code."""
    for number in range(5):
        limiter.acquire(API, job=Job(id=str(number)))
    (shown,) = wait_until(
        lambda: [each for each in _top(redis_url)["limits"] if each["last_minute"]["denied"] == {"exhausted": 3}],
        description="the process has reported all decisions",
    )
    assert (shown["limit"], shown["definition"]) == ("partner-api", "token-bucket 2/minute burst 2")
    assert (shown["used"], shown["capacity"], shown["waiting_jobs"]) == (2, 2, 3)
    assert 60 < shown["last_starts_in_seconds"] <= 91
    assert shown["last_minute"]["rate_used_ratio"] == 1.0


def test_the_table_shows_waitlists_denials_and_pauses(redis_url: str, limiter: Limiter) -> None:
    """
    The table has one row for each limit, with the waiting time, the denials by reason and a pause, and its notes below.
    """
    for number in range(5):
        limiter.acquire(API, job=Job(id=str(number)))
    limiter.pause(Concurrency("db", 2), 600)
    limiter.acquire(Concurrency("db", 2), job=Job(id="x"))
    limiter.close()
    shown = run("top", "--url", redis_url, "--once")
    assert shown.exit_code == 0
    line = next(line for line in shown.stdout.splitlines() if line.startswith("partner-api"))
    assert "2/2" in line
    assert "~3" in line
    assert "1 m " in line
    assert "exhausted 3" in line
    assert re.search(r"paused for another (10 m 00|9 m [0-5][0-9]) s", shown.stdout)


def test_tenants_of_a_shared_limit_are_shown(redis_url: str, limiter: Limiter) -> None:
    """
    `top` shows the heaviest tenant with its weight and share, and the one that waits longest. Keys are shown only on
    request.
    """
    shared = TokenBucket("shared", "6/minute", burst=6, share=Share("{tenant}", weight={"acme": 2}))
    for number in range(4):
        limiter.acquire(shared, job=Job(id=f"a{number}", kwargs={"tenant": "acme"}))
    for number in range(3):
        limiter.acquire(shared, job=Job(id=f"b{number}", kwargs={"tenant": "bee"}))
    limiter.close()
    (row,) = _top(redis_url, "--show-keys")["limits"]
    tenants = [(each["tenant"], each["weight"], each["units"]) for each in row["tenants"]]
    assert tenants == [("acme", 2.0, 4), ("bee", 1.0, 2)]
    shown = run("top", "--url", redis_url, "--once").stdout
    assert f"2 tenants; most used by {digest_of('acme')} (67%, weight 2)" in shown
    assert "acme" not in shown


def test_changes_by_an_operator_are_shown(redis_url: str, limiter: Limiter) -> None:
    """A pause with its author and its end, and another rate, are shown below the limit that they change."""
    limiter.acquire(API)
    limiter.acquire(ACCOUNT, key="ann smith")
    limiter.close()
    with Control(patient(redis_url), by="ann") as control:
        control.pause(ACCOUNT, key="ann smith")
        control.pause(API, duration=600)
        control.set("another", "5/s")
        control.set(API, "5/s", burst=7)
        control.scale("partner*", 0.5)
        control.scale("acc-*", 0.5)
    keyed, plain = _top(redis_url, "--sort", "name")["limits"]
    assert [rule["text"] for rule in keyed["rules"]] == [f"paused of key {keyed['keys'][0]['key']} by ann"]
    paused, group, rate = sorted(rule["text"] for rule in plain["rules"])
    assert group == "scaled of partner* to 0.5 by ann"
    assert paused.startswith("paused by ann, for ")
    assert rate == "set to 5/s burst 7 by ann"
    assert rate in run("top", "--url", redis_url, "--once").stdout


def test_a_change_that_workers_do_not_apply_is_marked(redis_url: str, limiter: Limiter) -> None:
    """
    A change that was stored before the limit was deployed, and is of another kind, is marked. Two definitions of one
    limit are marked too.
    """
    with Control(patient(redis_url), by="ann") as control:
        control.set("partner-api", 4)
    limiter.acquire(API)
    limiter.close()
    (shown,) = _top(redis_url)["limits"]
    (warning,) = shown["warnings"]
    assert warning.startswith("workers do not apply 'set to 4 by ann': ")
    assert "is not a rate" in warning
    assert "workers do not apply" in run("top", "--url", redis_url, "--once").stdout
    with contextlib.closing(Limiter(patient(redis_url))) as another:
        another.acquire(TokenBucket("partner-api", "9/minute"))
    shown = _top(redis_url, "--sort", "name")["limits"]
    assert len(shown) == 2
    assert all("another definition of this name" in " ".join(each["warnings"]) for each in shown)


def test_settled_units_are_shown(redis_url: str, limiter: Limiter) -> None:
    """The units and the share of the last minute are those that jobs really used."""
    tokens = TokenBucket("tokens", "1000/minute", burst=1000)
    for actual in (40, 300):
        limiter.settle(limiter.acquire(tokens, cost=200), actual=actual)
    limiter.close()
    (shown,) = _top(redis_url)["limits"]
    assert (shown["last_minute"]["allowed"], shown["last_minute"]["units"]) == (2, 340)
    assert shown["last_minute"]["rate_used_ratio"] == 0.34


def test_429s_are_shown(redis_url: str, limiter: Limiter) -> None:
    """The 429s of the last 15 minutes have a column, also in a terminal of 80 columns, and only while there are any."""
    limiter.acquire(API)
    limiter.fleet.activity.report()  # type: ignore[union-attr]
    assert "429s" not in run("top", "--url", redis_url, "--once").stdout
    for _ in range(2):
        limiter.fleet.count_429(API)  # type: ignore[union-attr]
    limiter.close()
    assert [each["downstream_429"] for each in _top(redis_url)["limits"]] == [2]
    for columns in ("80", "170"):
        shown = CliRunner().invoke(cli, ["top", "--url", redis_url, "--once"], env={"COLUMNS": columns}).stdout
        head, row = (next(line for line in shown.splitlines() if word in line) for word in ("429s", "partner-api"))
        assert row[: head.index("429s") + 4].split()[-1] == "2"


def test_more_arrivals_than_grants_are_shown(redis_url: str, limiter: Limiter) -> None:
    """
    If more jobs arrive than are granted, the note is below the limit, and the JSON has the numbers of the last minute.
    """
    for number in range(9):
        limiter.acquire(API, job=Job(id=str(number)))
    limiter.close()
    (shown,) = _top(redis_url)["limits"]
    granted = shown["last_minute"]["allowed"]
    text = f"grows: 9 arrived in the last minute, {granted} were granted"
    assert shown["outlook"] == {
        "arrived_jobs": 9,
        "granted_jobs": granted,
        "trend": "grows",
        "clears_in_seconds": None,
        "limit_has_room": False,
        "text": text,
    }
    assert text in run("top", "--url", redis_url, "--once").stdout


def test_a_limit_with_room_says_that_the_workers_are_the_bottleneck(redis_url: str, limiter: Limiter) -> None:
    """
    If jobs have waited for a minute although units are free, a note is below the limit. `explain` gives the same reason
    for a job.
    """
    roomy = TokenBucket("roomy", "600/minute", burst=1)
    text = "the limit has room: the workers are the bottleneck, or another limit holds the jobs back"
    with contextlib.closing(held(limiter)) as waker:
        limiter.acquire(roomy)
        for number in range(3):
            assert not ask(limiter, waker, roomy, job=Job(id=f"job-{number}"), waited_s=90)
        limiter.fleet.activity.report()  # type: ignore[union-attr]
        wait_until(
            lambda: [each["outlook"]["text"] for each in _top(redis_url)["limits"]] == [text],
            description="top says that the limit has room",
        )
        assert text in run("top", "--url", redis_url, "--once").stdout
        why = run("explain", "job-0", "--url", redis_url).stdout
        assert "its turn       now: it is next, and is woken as soon as its worker has a free thread" in why
        assert "the limit now  0 of 1 used" in why


def test_a_slowed_limit_shows_its_reduced_rate(redis_url: str, limiter: Limiter) -> None:
    """
    `top` shows the reason, the reduced rate, the remaining time, and the jobs that wait. `explain` shows them too.
    """
    adapting = TokenBucket("adapting", "60/hour", burst=2, adapt=Adapt(floor="6/hour"))
    quota = TokenBucket("quota", "100/minute", burst=50)
    for limit in (adapting, quota):
        limiter.acquire(limit)
    limiter.report_overload(adapting)
    limiter.apply_response(SimpleNamespace(headers={"RateLimit": '"day";r=3;t=3600'}), quota)
    for number in range(5):
        for limit in (adapting, quota):
            limiter.acquire(limit, job=Job(id=f"{limit.name}-{number}"))
    limiter.close()
    rows = {each["limit"]: each for each in _top(redis_url)["limits"]}
    assert rows["adapting"]["waiting_jobs"] in (4, 5), "one job can be admitted after a quarter of a second"
    assert rows["quota"]["waiting_jobs"] == 5
    assert rows["adapting"]["slowed"]["by"] == "adapt"
    assert rows["adapting"]["slowed"]["units_per_second"] == pytest.approx(0.76 / 60, rel=0.01)
    assert rows["quota"]["slowed"]["by"] == "headers"
    assert 3500 < rows["quota"]["slowed"]["ends_in_seconds"] <= 3600
    shown = run("top", "--url", redis_url, "--once").stdout
    assert re.search(r"slowed down to 46/hour by its adapt=, for another \d", shown)
    assert re.search(r"slowed down to 3/hour by the partner's response headers, for another (1 h 00|59) m", shown)
    why = run("explain", "quota-1", "--url", redis_url).stdout
    assert re.search(r"  slowed down    to 3/hour by the partner's response headers", why)
    assert json.loads(run("explain", "quota-1", "--url", redis_url, "--json").stdout)["slowed"]["by"] == "headers"


@pytest.mark.parametrize(
    ("rate", "text"), [(40, "40/s"), (2.5, "2.5/s"), (1, "60/minute"), (0.005, "18/hour"), (1 / 86_400, "1/day")]
)
def test_a_reduced_rate_is_formatted_for_people(rate: float, text: str) -> None:
    """The rate has the smallest time unit in which it is a few units."""
    assert format_pace(rate) == text


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (TokenBucket("a", "100/minute"), 0.5),
        (TokenBucket("a", "1200/hour"), 2.5),
        (TokenBucket("a", "1/hour", burst=50), None),
        (FixedWindow("a", "100/minute"), 0.5),
        (FixedWindow("a", "50000/month"), None),
        (SlidingLog("a", "1000/day"), None),
        (Concurrency("a", 2), None),
    ],
)
def test_a_share_is_shown_if_it_is_meaningful(limit: Limit, share: float | None) -> None:
    """
    50 units in a minute are a share of what the rate admits in a minute. For a longer window, `now` shows the use.
    """
    minute = Minute(units=50, rates=frozenset(filter(None, [reported_rate(limit)])))
    assert share_of_minute(limit, minute) == share


def test_a_share_needs_one_known_rate() -> None:
    """No share is shown for a minute in which the rate changed or is unknown."""
    limit = TokenBucket("a", "10/minute")
    rate = reported_rate(limit)
    for rates in ({rate * 2}, {rate, rate * 2}, {rate, -1}):
        assert share_of_minute(limit, Minute(units=14, rates=frozenset(rates))) is None
    assert share_of_minute(limit, Minute(rates=frozenset({rate}), is_known=False)) is None


def test_keys_are_hidden_by_default(redis_url: str, limiter: Limiter) -> None:
    """A key can contain arguments of a job, so `top` and `explain` show a digest."""
    for _ in range(2):
        limiter.acquire(ACCOUNT, job=Job(id="j", kwargs={"account": "jane@example.org"}))
    limiter.close()
    for command in (["top", "--once"], ["top", "--once", "--json"], ["explain", "j"], ["explain", "j", "--json"]):
        hidden = run(*command, "--url", redis_url)
        assert hidden.exit_code == 0, hidden.output
        assert "jane" not in hidden.output
        assert "#" in hidden.output
        assert "jane@example.org" in run(*command, "--url", redis_url, "--show-keys").output


def test_a_limit_can_show_its_keys(redis_url: str, limiter: Limiter) -> None:
    """
    With show_key=True the key is shown, also if the limit came with a message. The hint about names is then left out.
    """
    named = TokenBucket("named", "1/minute", key="{tenant}", share=Share("{tenant}"), show_key=True)
    for _ in range(2):
        limiter.acquire(named, job=Job(id="j", kwargs={"tenant": "acme"}))
    limiter.close()
    with Control(patient(redis_url), by="ann") as control:
        control.pause(named, key="acme")
    shown = run("top", "--url", redis_url, "--once").stdout
    assert "most used by acme" in shown
    assert "paused of key acme by ann" in shown
    assert "--show-keys" not in shown
    assert "key acme:" in run("explain", "j", "--url", redis_url).stdout
    with contextlib.closing(Limiter(patient(redis_url))) as other:
        other.acquire(ACCOUNT, key="ann")
    shown = run("top", "--url", redis_url, "--once").stdout
    assert re.search("--show-keys.*show_key=True", shown), "a digest is shown now"


def test_the_name_of_the_store_is_shown(redis_url: str) -> None:
    """The store's host and database are behind the title, and in the JSON."""
    place = redis_url.partition("://")[2].partition("?")[0]
    first = run("top", "--url", redis_url, "--once", "--title", "production").stdout.splitlines()[0]
    assert first.startswith(f"throttlekit top  production ({place})  ")
    assert _top(redis_url)["store"] == place


def test_the_bar_shows_the_last_minute(redis_url: str, limiter: Limiter) -> None:
    """
    For a small burst, the current use would be full in one second and empty in the next. For slots, the bar shows the
    current use.
    """
    small, slots = TokenBucket("small", "10/minute", burst=1), Concurrency("slots", 2)
    limiter.acquire(small)
    limiter.acquire(slots)
    limiter.close()
    lines = run("top", "--url", redis_url, "--once").stdout.splitlines()
    used, held = (next(line for line in lines if line.startswith(name)) for name in ("small", "slots"))
    assert "1/1  █░░░░░░░░░  " in used
    assert "full" not in used
    assert "1/2  █████░░░░░" in held


def test_rows_can_be_sorted_filtered_and_limited(redis_url: str, limiter: Limiter) -> None:
    """--sort sets the order, --filter the limits, and --limit the number of keys."""
    for account in range(5):
        limiter.acquire(ACCOUNT, key=account)
    for number in range(5):
        limiter.acquire(API, job=Job(id=str(number)))
    limiter.close()
    names = {
        order: [each["limit"] for each in _top(redis_url, "--sort", order)["limits"]] for order in ("name", "wait")
    }
    assert names == {"name": ["account", "partner-api"], "wait": ["partner-api", "account"]}
    (only,) = _top(redis_url, "--filter", "acc", "--limit", "2")["limits"]
    assert (only["limit"], len(only["keys"]), only["last_minute"]["allowed"]) == ("account", 2, 5)


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this process is 9 hours ahead of UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_times_are_in_utc_in_every_time_zone() -> None:
    """`top`, `explain`, `history`, `rules` and confirmations agree with each other, with the log and with the page."""
    assert (format_date(0), format_time(60)) == ("1970-01-01 00:00:00 UTC", "00:01:00 UTC")


@pytest.mark.usefixtures("in_tokyo")
def test_every_command_prints_the_same_time_for_the_same_event(redis_url: str, limiter: Limiter) -> None:
    """Each time of day is marked as UTC, and is within two minutes of now in UTC."""
    for number in range(3):
        limiter.acquire(API, job=Job(id=f"job-{number}"))
    limiter.close()
    commands = (
        ["pause", "partner-api", "--for", "1m"],
        ["set", "partner-api", "4/minute", "--for", "1m"],
        ["top", "--once"],
        ["explain", "job-2"],
        ["rules"],
        ["history"],
    )
    for command in commands:
        shown = run(*command, "--url", redis_url).output
        times = re.findall(r"(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d:\d\d)( UTC)?", shown)
        assert times or command[0] in ("pause", "set"), shown
        for day, clock, zone in times:
            assert zone, shown
            today = time.strftime("%Y-%m-%d", time.gmtime())
            at = calendar.timegm(time.strptime(f"{day or today} {clock}", "%Y-%m-%d %H:%M:%S"))
            assert abs((at - time.time() + 43_200) % 86_400 - 43_200) < 120, shown


def test_explain_prints_json(redis_url: str, limiter: Limiter) -> None:
    """The JSON says whether the job is known, and so does the text. The exit code for an unknown job is 1."""
    limiter.acquire(API, cost=2)
    limiter.acquire(API, job=Job(id="job-1"))
    limiter.close()
    known = run("explain", "job-1", "--url", redis_url, "--json")
    found = json.loads(known.stdout)
    assert (known.exit_code, found["job"], found["known"], found["limit"]) == (0, "job-1", True, "partner-api")
    unknown = run("explain", "another", "--url", redis_url, "--json")
    found = json.loads(unknown.stdout)
    assert (unknown.exit_code, found["job"], found["known"], found["state"]) == (1, "another", False, "unknown")
    assert found["searched_all"] is True
    assert "is not known" in run("explain", "another", "--url", redis_url).stdout


def test_explain_shows_an_operators_pause(redis_url: str, limiter: Limiter) -> None:
    """`explain` shows the author and the end of the pause, and when the job requests again."""
    with Control(patient(redis_url), by="ann") as control:
        control.pause(API, duration=600)
    for _ in range(2):
        limiter.acquire(API, job=Job(id="j"))
    limiter.close()
    shown = run("explain", "j", "--url", redis_url).stdout
    for words in ("deferred       once", "tries again    in about ", "an operator    paused by ann, for "):
        assert words in shown


def test_control_characters_are_not_printed(redis_url: str, limiter: Limiter) -> None:
    """A key or a name can contain a sequence that would set the window's title, or worse."""
    evil = "\x1b]0;evil\x07"
    limiter.acquire(ACCOUNT, job=Job(id="j", kwargs={"account": evil}))
    limiter.acquire(ACCOUNT, job=Job(id="j", kwargs={"account": evil}))
    limiter.close()
    with Control(patient(redis_url), by=evil) as control:
        control.pause(ACCOUNT, key=evil)
    for command in (["top", "--once", "--show-keys"], ["explain", "j", "--show-keys"], ["rules"], ["history"]):
        shown = run(*command, "--url", redis_url).output
        assert "evil" in shown
        assert not {"\x1b", "\x07"} & {*shown}


def test_an_empty_store_is_reported(redis_url: str) -> None:
    """If no limit was used, there is nothing to show, which is not an error."""
    shown = run("top", "--url", redis_url, "--once")
    assert (shown.exit_code, "Nothing was decided" in shown.stdout) == (0, True)


@pytest.mark.parametrize("command", [["top", "--once"], ["explain", "x"]])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://", "not shared by a fleet"),
        ("redis://:hunter2@127.0.0.1:1/0", "no usable answer"),
        ("redis://:hunter2@localhost:port/0", "cannot be read"),
        ("redis://:hunter2@[::1/0", "cannot be read"),
    ],
)
def test_a_store_that_cannot_be_shown_is_one_line(command: list[str], url: str, message: str) -> None:
    """If the store cannot be shown, the exit code is 2, and no password is printed."""
    outcome = run(*command, "--url", url)
    assert outcome.exit_code == 2
    assert message in outcome.output
    assert "hunter2" not in outcome.output
    assert "Traceback" not in outcome.output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (9.96, "10 s"),
        (192, "3 m 12 s"),
        (7500, "2 h 05 m"),
        (3e5, "3 d 11 h"),
    ],
)
def test_durations_are_formatted_for_people(seconds: float | None, text: str) -> None:
    """A duration has at most two figures."""
    assert format_duration(seconds) == text


def test_definitions_and_keys_are_abbreviated() -> None:
    """A limit is described in a few words, and a key without its content."""
    assert format_limit(TokenBucket("a", "5/10s", burst=3)) == "token-bucket 5/10 s burst 3"
    assert format_limit(Concurrency("a", 8)) == "concurrency 8 lease 30"
    assert format_key("", None, clear=False) == ""
    assert format_key("", "default", clear=False) == "default"
    assert format_key("a%20b", "default", clear=True) == "default a b"

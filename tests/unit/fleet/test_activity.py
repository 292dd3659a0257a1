"""What a process counts of its decisions, and its report about them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from support.threads import run_in_threads
from support.waiting import wait_until
from support.waitlists import ask, held
from throttlekit import Job, Limiter, StoreUnavailable, TokenBucket
from throttlekit._core.slowdown import Refusal, Remaining, Slowdown, apply_refusal, apply_remaining
from throttlekit._core.storage_keys import bucket_name, limit_id, parts_of
from throttlekit.fleet import activity
from throttlekit.fleet.activity import KEYS
from throttlekit.fleet.downstream import DOWNSTREAM_429S
from throttlekit.fleet.list_now import ListNow, list_from
from throttlekit.fleet.tenants import TENANTS
from throttlekit.stores.memory import MemoryStore

API = TokenBucket("api", "1/minute", burst=2)
ACCOUNT = TokenBucket("account", "1/minute", burst=1, key="{account}")


class _Fleet(MemoryStore):
    """A store in memory with the interface of a fleet, which keeps the reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, Any]] = []
        self.away = False
        self.sent: list[str] = []
        self.tenants: list[list[list[Any]]] = []

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        if self.away:
            raise StoreUnavailable("gone")
        if commands[-1][2] != len(KEYS):
            return [[[b"1", b"0"], []]]  # there are no rules
        self.tenants += [json.loads(str(each[-1])) for each in commands[:-1] if each[3] == TENANTS[0]]
        self.sent.append(str(commands[-1][-1]))
        self.reports.append(json.loads(self.sent[-1]))
        return [0] * len(commands)

    @property
    def counts(self) -> dict[str, int]:
        """The counts of all reports: a slow machine sends several."""
        summed = Counter[str]()
        for report in self.reports:
            summed.update(dict(report["counts"]))
        return dict(summed)


@pytest.fixture
def fleet() -> _Fleet:
    return _Fleet()


@pytest.fixture
def limiter(fleet: _Fleet) -> Limiter:
    return Limiter(fleet)


def test_each_decision_is_counted_by_limit_and_reason(fleet: _Fleet, limiter: Limiter) -> None:
    """Grants are counted with their units, denials by their reason, for the limit and for its key."""
    for number in range(5):
        limiter.acquire(API, job=Job(id=str(number)))
    limiter.close()
    bucket, limit = bucket_name("api", "", API.fingerprint), limit_id("api", API.fingerprint)
    assert fleet.counts == {f"a {limit}": 2, f"n {limit}": 5, f"u {limit}": 2, f"e {limit}": 3, f"e {bucket}": 3}
    (row,) = [each for report in fleet.reports for each in report["keys"]]
    assert row[:3] == [bucket, 2, 3]
    assert row[3] > 0


def test_429s_are_reported_for_limits_of_the_fleet(fleet: _Fleet, limiter: Limiter) -> None:
    """A 429 is reported once, beside the report; not for a limit of this process, and for at most 100 limits."""
    assert limiter.fleet is not None
    limiter.acquire(API)
    limiter.fleet.count_429(TokenBucket("own", "1/s", scope="process"))
    for number in range(150):
        limiter.fleet.count_429(TokenBucket(f"limit-{number}", "1/s"))
    sent: list[Sequence[str | int]] = []
    commands = fleet.commands
    fleet.commands = lambda some: [sent.extend(some), commands(some)][1]  # type: ignore[assignment]
    limiter.close()
    (counted,) = [each for each in sent if each[3] == DOWNSTREAM_429S]
    assert len(json.loads(str(counted[-1]))) == 100


def test_threads_lose_no_count(fleet: _Fleet, limiter: Limiter) -> None:
    """If many threads count at once, every count is exact."""
    wide = TokenBucket("wide", "1000000/s", burst=1_000_000)

    def request(_: int) -> None:
        for _ in range(500):
            limiter.acquire(wide)

    run_in_threads(4, request)
    limiter.close()
    assert sum(n for report in fleet.reports for what, n in report["counts"] if what.startswith("a wide:")) == 2000


def test_tenants_with_most_units_and_longest_waits_are_reported(fleet: _Fleet, limiter: Limiter) -> None:
    """Of 500 tenants the heaviest ones and those that wait are reported, at most 40 a report; none without a share."""
    shared = TokenBucket("shared", "1/minute", burst=2000, share="{tenant}")
    for number in range(500):
        for each in range(4 if number == 77 else 2):
            limiter.acquire(shared, job=Job(id=f"{number}-{each}", kwargs={"tenant": number}))
    for _ in range(2000):
        limiter.acquire(API)
    limiter.close()
    rows = [row for report in fleet.tenants for row in report]
    assert [f"{limit_id('shared', shared.fingerprint)} 77", 4, 0, 1000] in rows
    assert all(len(report) <= 40 for report in fleet.tenants)
    assert not [row for row in rows if row[0].startswith("api:")]


def test_stored_keys_are_bounded(fleet: _Fleet, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """For keys beyond the bound, only the sum of their limit is kept."""
    monkeypatch.setattr(activity, "_MOST_KEPT", 10)
    for account in range(50):
        limiter.acquire(ACCOUNT, key=account)
    limiter.close()
    assert len(fleet.reports[0]["keys"]) == 10
    assert fleet.counts[f"a {limit_id('account', ACCOUNT.fingerprint)}"] == 50


def test_jobs_are_reported_by_id_only(fleet: _Fleet, limiter: Limiter) -> None:
    """A denied job is reported with its id, its limit's key and its position. The number of jobs is bounded."""
    for number in range(300):
        limiter.acquire(API, job=Job(id=f"job-{number}", name="secret", args=("secret",), kwargs={"a": "secret"}))
    limiter.close()
    jobs = {job_id: json.loads(text) for report in fleet.reports for job_id, text in report["jobs"]}
    assert 100 <= len(jobs) <= 100 * len(fleet.reports)
    assert jobs["job-2"][:2] == [bucket_name("api", "", API.fingerprint), "exhausted"]
    assert "secret" not in json.dumps(fleet.reports)


def test_report_without_an_answer_is_dropped(fleet: _Fleet, limiter: Limiter) -> None:
    """A report that gets no reply is not sent again, because it may have been counted; the next one has what is new."""
    counter = limiter.fleet.activity
    counter._store = fleet
    limiter.acquire(API)
    fleet.away = True
    with pytest.raises(StoreUnavailable):
        counter.report()
    fleet.away = False
    limiter.acquire(API)
    limiter.close()
    assert fleet.counts[f"a {limit_id('api', API.fingerprint)}"] == 1


def test_a_definition_is_reported_again_until_there_is_an_answer(fleet: _Fleet, limiter: Limiter) -> None:
    """A definition whose only report got no reply is reported again: its counts are lost, but the limit is listed."""
    counter = limiter.fleet.activity
    counter._store = fleet
    limiter.acquire(API)
    fleet.away = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            counter.report()
    fleet.away = False
    fleet.reports.clear()
    counter.report()
    counter.report()
    assert [[name for name, _ in report["limits"]] for report in fleet.reports] == [[limit_id("api", API.fingerprint)]]
    limiter.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_reports_its_own_counts(fleet: _Fleet, limiter: Limiter) -> None:
    """Counts that the parent has not reported yet are not reported by its child as well."""
    limiter.acquire(API)
    child = os.fork()
    if child == 0:
        os._exit(len(limiter.fleet.activity.counts.take()[0]) if limiter.fleet.activity else 9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    limiter.close()
    assert fleet.counts[f"a {limit_id('api', API.fingerprint)}"] == 1


def test_short_lived_process_reports_at_its_end(
    fleet: _Fleet, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young process reports its decisions on `flush`; an older one does so by itself."""
    limiter.acquire(API)
    limiter.flush()
    assert len(fleet.reports) == 1
    assert fleet.reports[0]["process"] == [""]
    limiter.acquire(API)
    monkeypatch.setattr(activity, "_SHORT_LIFE", 0.0)
    limiter.flush()
    assert len(fleet.reports) == 1
    fleet.away = True
    limiter.flush()
    Limiter().flush()


@pytest.mark.parametrize("part", [None, "default", "a:b {c}"])
@pytest.mark.parametrize("key", ["", "42", "x:y{z}", "é" * 50])
def test_stored_names_are_parsed(key: str, part: str | None) -> None:
    """Every name of a bucket contains its limit, its key and its part, whatever they contain; no other name does."""
    parts = parts_of(bucket_name("a: {b}", key, "f00", part))
    assert parts is not None
    assert parts[0] == limit_id("a: {b}", "f00")
    assert (parts[2] is None) == (part is None)
    assert parts_of(KEYS[0]) is None


S = 1_000_000


def _read(
    *record: bytes | None, waiting: int = 0, woken: int = 0, owners: int = 0, first: list[bytes], some: list[bytes]
) -> ListNow:
    """Return what is read from a waitlist at second 100."""
    known = [*record, None, None, None][:3]
    return list_from(iter([known, waiting, woken, owners, first, some]), 100 * S, 1_000_000_000)


@pytest.mark.parametrize(
    ("until", "begun", "expected"),
    [
        (None, None, None),
        (b"120000000", b"100000000", 20.0),
        (b"100000000", b"90000000", None),
        (b"150000000", b"130000000", 20.0),
    ],
    ids=["none", "now", "over", "of a later clock"],
)
def test_stored_pause_is_read(until: bytes | None, begun: bytes | None, expected: float | None) -> None:
    """Reading a stored pause gives the time for which no job is granted."""
    assert _read(until, begun, first=[], some=[]) == (0, 0, (), expected, None)


def test_stored_jobs_are_read() -> None:
    """Reading a waitlist gives the numbers of waiting and woken jobs, of their owners, and some ids in order."""
    place = b"15" + b"0" * 28
    some = [b"oa|" + place + b"|one", b"ob|" + place + b"|x|y", b"wb|" + b"0" * 16 + b"|three"]
    found = _read(waiting=7, woken=2, owners=2, first=[b"h" + place + b"b|x|y"], some=some)
    assert found == (9, 2, (b"x|y", b"one", b"three"), None, None)


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (Slowdown(), None),
        (apply_refusal(None, Refusal(None, 60 * S, 1000), 0, 100 * S), (0.76, "adapt", 120.0)),
        (apply_refusal(None, Refusal(None, 60 * S, 1000), 0, 90 * S), (0.8335, "adapt", 110.0)),
        (apply_refusal(None, Refusal(None, 60 * S, 1000), 130 * S, 100 * S), (0.76, "adapt", 150.0)),
        (apply_remaining(None, Remaining(3, 600 * S), 1000, 100 * S), (0.005, "headers", 600.0)),
        (
            apply_remaining(
                apply_refusal(None, Refusal(None, 60 * S, 1000), 0, 100 * S), Remaining(590, 600 * S), 1000, 100 * S
            ),
            (0.76, "adapt", 120.0),
        ),
        (apply_refusal(None, Refusal(None, 1 * S, 1000), 0, 50 * S), None),
        (Slowdown(fell_us=99 * S, span_us=0, floor=0, top=0, back_us=200 * S), None),
    ],
)
def test_stored_slowdown_is_read(slow: Slowdown, expected: tuple[float, str, float] | None) -> None:
    """
    For a limit of one a second, reading a slow-down gives the pace, its cause and the remaining time; and the waiting
    jobs.
    """
    found = _read(None, None, " ".join(map(str, slow)).encode(), waiting=7, owners=1, first=[], some=[])
    assert found[:4] == (7, 1, (), None)
    if found.slowed is None or expected is None:
        assert found.slowed is expected
    else:
        rate, by, ends = expected
        assert found.slowed == (pytest.approx(rate, rel=0.01), by, pytest.approx(ends))


def test_a_slowdown_of_another_release_hides_no_job() -> None:
    """A slow-down that cannot be read is left out, and the waiting jobs are shown."""
    for slow in (b"1 2 3", b"x" + b" x" * 10, b"1" + b" 1" * 30):
        assert _read(None, None, slow, waiting=7, owners=1, first=[], some=[]) == (7, 1, (), None, None)


def test_a_hostile_job_id_does_not_spoil_the_report(fleet: _Fleet, limiter: Limiter) -> None:
    """A lone surrogate, which JSON allows and no server reads, is reported as "?", and the rest is complete."""
    limiter.acquire(API)
    limiter.acquire(ACCOUNT, key="1")
    for job_id in (json.loads('"bad \\ud800"'), "größe"):
        limiter.acquire(ACCOUNT, job=Job(id=job_id, kwargs={"account": 1}))
    limiter.close()
    (report,) = fleet.reports
    assert [job_id for job_id, _ in report["jobs"]] == ["bad ?", "größe"]
    assert "\\ud8" not in fleet.sent[-1]
    fleet.sent[-1].encode()


def test_wait_on_a_waitlist_is_counted_from_the_first_denial(fleet: _Fleet, limiter: Limiter) -> None:
    """The first denial is the first deferral, without a wait; the grant has the wait since then."""
    waker = held(limiter)
    fast = TokenBucket("fast", "20/s", burst=1)
    for job in ("first", "second"):
        ask(limiter, waker, fast, job=Job(id=job))
    (known,) = _jobs_reported(limiter, fleet)
    assert known[:2] == [bucket_name("fast", "", fast.fingerprint), "exhausted"]
    assert (known[3], fleet.reports[-1]["waits"]) == (1, [])
    since_us = known[2]
    ask(limiter, waker, fast, job=Job(id="second"))
    (known,) = _jobs_reported(limiter, fleet)
    assert (known[2], known[3]) == (pytest.approx(since_us, abs=1000), 2)
    wait_until(lambda: ask(limiter, waker, fast, job=Job(id="second")).allowed, description="a unit becomes free")
    (known,) = _jobs_reported(limiter, fleet)
    assert known[:2] == ["", "allowed"]
    assert known[2] == pytest.approx(since_us, abs=1000)
    waited = dict(fleet.reports[-1]["waits"])
    assert waited[f"w {limit_id('fast', fast.fingerprint)}"] == pytest.approx(known[5] - known[2], abs=1000)
    limiter.close()


def _jobs_reported(limiter: Limiter, fleet: _Fleet) -> list[list[Any]]:
    assert limiter.fleet is not None
    limiter.fleet.activity.report()
    return [json.loads(text) for _, text in fleet.reports[-1]["jobs"]]


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        ("/app/bin/dramatiq", "dramatiq"),
        ("/app/bin/celery", "celery"),
        ("/app/lib/rq/__main__.py", "rq"),
        ("/app/bin/taskiq", "taskiq"),
        ("/app/lib/huey/bin/huey_consumer.py", "huey"),
        ("/app/manage.py", "-"),
    ],
)
def test_the_framework_is_known_by_its_command(command: str, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of processes shows the framework of each worker, and "-" for a process of no framework."""
    for name in ("dramatiq", "rq", "celery", "taskiq", "huey"):
        monkeypatch.delitem(sys.modules, f"throttlekit_{name}", raising=False)
    monkeypatch.setattr(sys, "argv", [command])
    assert activity._framework() == framework

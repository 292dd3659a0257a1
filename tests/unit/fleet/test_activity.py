"""What a process counts of its decisions, and the report that it makes of them."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

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
    """A memory that the fleet sees: keeps the reports."""

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
            return [[[b"1", b"0"], []]]  # nobody was told anything
        self.tenants += [json.loads(str(each[-1])) for each in commands[:-1] if each[3] == TENANTS[0]]
        self.sent.append(str(commands[-1][-1]))
        self.reports.append(json.loads(self.sent[-1]))
        return [0] * len(commands)

    @property
    def counts(self) -> dict[str, int]:
        """Of all reports: a slow machine sends several."""
        summed = Counter[str]()
        for report in self.reports:
            summed.update(dict(report["counts"]))
        return dict(summed)


class _FleetWithLists(_Fleet, MemoryStore):
    """As `_Fleet`, with waitlists."""


@pytest.fixture
def fleet() -> _Fleet:
    return _Fleet()


@pytest.fixture
def limiter(fleet: _Fleet) -> Limiter:
    return Limiter(fleet)


def test_each_decision_is_counted_by_limit_and_reason(fleet: _Fleet, limiter: Limiter) -> None:
    """Grants with their units, denials by their reason, for the limit and for its key."""
    for number in range(5):
        limiter.acquire(API, job=Job(id=str(number)))
    limiter.close()
    bucket, limit = bucket_name("api", "", API.fingerprint), limit_id("api", API.fingerprint)
    assert fleet.counts == {f"a {limit}": 2, f"n {limit}": 5, f"u {limit}": 2, f"e {limit}": 3, f"e {bucket}": 3}
    (told,) = [each for report in fleet.reports for each in report["keys"]]
    assert told[:3] == [bucket, 2, 3]
    assert told[3] > 0


def test_429s_are_reported_for_limits_of_the_fleet(fleet: _Fleet, limiter: Limiter) -> None:
    """Once, beside the report; not for a limit of this process, and for 100 limits at most."""
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
    """Counts are exact."""
    wide = TokenBucket("wide", "1000000/s", burst=1_000_000)

    def ask() -> None:
        for _ in range(500):
            limiter.acquire(wide)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limiter.close()
    assert sum(n for report in fleet.reports for what, n in report["counts"] if what.startswith("a wide:")) == 2000


def test_tenants_that_got_most_and_waited_longest_are_reported(fleet: _Fleet, limiter: Limiter) -> None:
    """Of 500 tenants the heaviest, and those that wait; not more than 40 a report. Without a share there is none."""
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


def test_what_is_kept_is_bounded(fleet: _Fleet, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of keys beyond the bound only their limit's sum is kept."""
    monkeypatch.setattr(activity, "_MOST_KEPT", 10)
    for account in range(50):
        limiter.acquire(ACCOUNT, key=account)
    limiter.close()
    assert len(fleet.reports[0]["keys"]) == 10
    assert fleet.counts[f"a {limit_id('account', ACCOUNT.fingerprint)}"] == 50


def test_jobs_are_told_by_id_alone(fleet: _Fleet, limiter: Limiter) -> None:
    """Of a denied job its id, its limit's key and its place are told; no argument, no name. A bounded number."""
    for number in range(300):
        limiter.acquire(API, job=Job(id=f"job-{number}", name="secret", args=("secret",), kwargs={"a": "secret"}))
    limiter.close()
    jobs = {job_id: json.loads(text) for report in fleet.reports for job_id, text in report["jobs"]}
    assert 100 <= len(jobs) <= 100 * len(fleet.reports)
    assert jobs["job-2"][:2] == [bucket_name("api", "", API.fingerprint), "exhausted"]
    assert "secret" not in json.dumps(fleet.reports)


def test_what_gets_no_answer_is_dropped(fleet: _Fleet, limiter: Limiter) -> None:
    """A report that may have been counted is not sent again; the next says what is new by then."""
    told = limiter.fleet.activity
    assert told is not None
    told._store = fleet
    limiter.acquire(API)
    fleet.away = True
    with pytest.raises(StoreUnavailable):
        told.report()
    fleet.away = False
    limiter.acquire(API)
    limiter.close()
    assert fleet.counts[f"a {limit_id('api', API.fingerprint)}"] == 1


def test_a_definition_is_reported_again_until_there_is_an_answer(fleet: _Fleet, limiter: Limiter) -> None:
    """A limit that no later job uses is known all the same: the counts of its only report are lost, and not its row."""
    told = limiter.fleet.activity
    assert told is not None
    told._store = fleet
    limiter.acquire(API)
    fleet.away = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            told.report()
    fleet.away = False
    fleet.reports.clear()
    told.report()
    told.report()
    assert [[name for name, _ in report["limits"]] for report in fleet.reports] == [[limit_id("api", API.fingerprint)]]
    limiter.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_tells_its_own(fleet: _Fleet, limiter: Limiter) -> None:
    """What the parent has not told yet is not told by its child as well."""
    limiter.acquire(API)
    child = os.fork()
    if child == 0:
        os._exit(len(limiter.fleet.activity.counts.take()[0]) if limiter.fleet.activity else 9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    limiter.close()
    assert fleet.counts[f"a {limit_id('api', API.fingerprint)}"] == 1


def test_process_that_ends_at_once_has_a_last_word(
    fleet: _Fleet, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young process tells what it decided when it is asked to; an older one does so by itself."""
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
def test_stored_names_are_taken_apart(key: str, part: str | None) -> None:
    """Every name of a bucket tells its limit, its key and its part, whatever is in them; no other name does."""
    parts = parts_of(bucket_name("a: {b}", key, "f00", part))
    assert parts is not None
    assert parts[0] == limit_id("a: {b}", "f00")
    assert (parts[2] is None) == (part is None)
    assert parts_of(KEYS[0]) is None


S = 1_000_000


def _read(
    *record: bytes | None, waiting: int = 0, woken: int = 0, owners: int = 0, first: list[bytes], some: list[bytes]
) -> ListNow:
    """What is read of a list at second 100."""
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
def test_pause_as_it_is_stored(until: bytes | None, begun: bytes | None, expected: float | None) -> None:
    """For how much longer no job passes."""
    assert _read(until, begun, first=[], some=[]) == (0, 0, (), expected, None)


def test_jobs_as_they_are_stored() -> None:
    """How many wait, woken ones too, of how many owners; and some ids, the first before all others."""
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
def test_slowdown_as_it_is_stored(slow: Slowdown, expected: tuple[float, str, float] | None) -> None:
    """At which pace units pass, why, and how long yet, of a limit of one a second; the jobs that wait are there too."""
    found = _read(None, None, " ".join(map(str, slow)).encode(), waiting=7, owners=1, first=[], some=[])
    assert found[:4] == (7, 1, (), None)
    if found.slowed is None or expected is None:
        assert found.slowed is expected
    else:
        rate, by, ends = expected
        assert found.slowed == (pytest.approx(rate, rel=0.01), by, pytest.approx(ends))


def test_a_slowdown_of_another_release_hides_no_job() -> None:
    """What cannot be read of it is left out."""
    for slow in (b"1 2 3", b"x" + b" x" * 10, b"1" + b" 1" * 30):
        assert _read(None, None, slow, waiting=7, owners=1, first=[], some=[]) == (7, 1, (), None, None)


def test_a_hostile_job_id_does_not_spoil_the_report(fleet: _Fleet, limiter: Limiter) -> None:
    """
    JSON allows a lone surrogate, which no server reads: it is reported as "?", and all else of the report is there.
    """
    limiter.acquire(API)
    limiter.acquire(ACCOUNT, key="1")
    for job_id in (json.loads('"bad \\ud800"'), "größe"):
        limiter.acquire(ACCOUNT, job=Job(id=job_id, kwargs={"account": 1}))
    limiter.close()
    (report,) = fleet.reports
    assert [job_id for job_id, _ in report["jobs"]] == ["bad ?", "größe"]
    assert "\\ud8" not in fleet.sent[-1]
    fleet.sent[-1].encode()


def test_a_job_that_waits_on_a_waitlist_is_counted_as_one_that_waits_in_a_line() -> None:
    """Its first denial is its first deferral, and no wait; its start has the wait since then."""
    fleet = _FleetWithLists()
    limiter = Limiter(fleet)
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
    wait_until(lambda: ask(limiter, waker, fast, job=Job(id="second")).allowed, description="a unit comes")
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

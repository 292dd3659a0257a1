"""The examples' partner enforces its contract, which is checked window by window against the definition."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.partner.strict import PARTNER, Contract
from support.servers.processes import free_port
from support.waiting import wait_until

SECOND = 1_000_000_000

contracts = st.tuples(st.integers(1, 50), st.integers(1, 8))
histories = st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=40)


def satisfies_contract(arrivals: list[int], rate: int, burst: int) -> bool:
    """Return whether every window, from any call to any later one, satisfies the contract."""
    return all(
        j - i + 1 <= burst + Fraction(rate * (arrivals[j] - arrivals[i]), SECOND)
        for i in range(len(arrivals))
        for j in range(i, len(arrivals))
    )


def times(gaps: list[int]) -> list[int]:
    now, arrivals = 12345, []
    for gap in gaps:
        now += gap
        arrivals.append(now)
    return arrivals


@given(contracts, histories)
def test_a_call_is_refused_exactly_if_some_window_would_exceed_the_bound(
    contract: tuple[int, int], gaps: list[int]
) -> None:
    """By the definition on every window, the partner answers no call too many, and refuses no call without reason."""
    judge, answered = Contract(*contract), list[int]()
    for now in times(gaps):
        admitted = judge.admit(now) == 0
        assert admitted == satisfies_contract([*answered, now], *contract)
        if admitted:
            answered.append(now)


@given(contracts, histories)
def test_a_refused_call_is_answered_at_the_promised_time_and_not_before(
    contract: tuple[int, int], gaps: list[int]
) -> None:
    """One nanosecond before the promised time the call is refused again; at that time it is answered."""
    judge = Contract(*contract)
    for now in times(gaps):
        wait = judge.admit(now)
        if wait:
            assert judge.admit(now + wait - 1) == 1
            assert judge.admit(now + wait) == 0
            return


@pytest.fixture
def partner() -> Iterator[int]:
    """The port of a partner that answers 3 calls at once, and one a second."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(PARTNER), "--port", str(port), "--rate", "1", "--burst", "3"])
    try:
        wait_until(lambda: _is_ready(port), description="the partner answers")
        yield port
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        return get(port, "/record")[0] == 200
    except OSError:
        return False


def get(port: int, path: str) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.getheader("Retry-After"), body


def test_the_partner_answers_429_with_retry_after_beyond_its_limit(partner: int) -> None:
    """Of six calls at once some are answered, and one gets 429 and the seconds until a call would be admitted."""
    answers = [get(partner, "/accounts/7") for _ in range(6)]
    assert [status for status, _, _ in answers][:3] == [200, 200, 200]
    assert [retry_after for status, retry_after, _ in answers if status == 429][:1] == ["1"]


def test_the_partner_records_calls_and_nothing_else(partner: int) -> None:
    """A request for the record, or for a path that does not exist, is not a call."""
    get(partner, "/accounts/7")
    assert get(partner, "/favicon.ico")[0] == 404
    record = get(partner, "/record")[2]
    assert record.startswith(b"[[")
    assert record.endswith(b', "7", 200]]')

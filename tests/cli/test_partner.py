"""The partner enforces its contract: checked against the definition, window by window."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.waiting import wait_until
from throttlekit_cli.demo.account import burst_needed
from throttlekit_cli.demo.partner import Contract

SECOND = 1_000_000_000

contracts = st.tuples(st.integers(1, 50), st.integers(1, 3 * SECOND), st.integers(1, 8))
histories = st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=40)


def within(arrivals: list[int], amount: int, period: int, burst: int) -> bool:
    """The contract as defined: every window from any call to any later one."""
    return all(
        j - i + 1 <= burst + Fraction(amount * (arrivals[j] - arrivals[i]), period)
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
def test_a_call_is_refused_exactly_if_some_window_would_pass_the_bound(
    contract: tuple[int, int, int], gaps: list[int]
) -> None:
    """Against the definition, on every window: no call too many is answered, and no call is refused without reason."""
    judge, answered = Contract(*contract), list[int]()
    for now in times(gaps):
        admitted = judge.admit(now) == 0
        assert admitted == within([*answered, now], *contract)
        if admitted:
            answered.append(now)


@given(contracts, histories)
def test_a_refused_call_is_answered_at_the_promised_instant_and_not_before(
    contract: tuple[int, int, int], gaps: list[int]
) -> None:
    """One nanosecond before the promised instant the call is refused again, at the instant it is answered."""
    judge = Contract(*contract)
    for now in times(gaps):
        wait = judge.admit(now)
        if wait:
            assert judge.admit(now + wait - 1) == 1
            assert judge.admit(now + wait) == 0
            return


def test_a_burst_at_either_side_of_an_edge_is_refused() -> None:
    """A double burst at the end of one second and the start of the next, as a fixed window allows, is refused."""
    judge = Contract(5, SECOND, 5)
    before = [judge.admit(SECOND - 10 + i) for i in range(5)]
    after = [judge.admit(SECOND + i) for i in range(5)]
    assert not any(before)
    assert all(after)


@given(st.integers(1, 50), histories)
def test_the_burst_needed_is_the_smallest_that_no_window_passes(amount: int, gaps: list[int]) -> None:
    """The account's measure agrees with the definition, on every window."""
    arrivals = times(gaps)
    smallest = max(
        j - i + 1 - Fraction(amount * (arrivals[j] - arrivals[i]), SECOND)
        for i in range(len(arrivals))
        for j in range(i, len(arrivals))
    )
    assert burst_needed((at / SECOND for at in arrivals), amount) == pytest.approx(float(smallest), abs=1e-6)


@pytest.fixture
def partner(tmp_path: Path) -> Iterator[int]:
    """The port of a partner that allows 3 calls an hour, all at once."""
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "throttlekit_cli.demo.partner", "--port-file", str(port_file)]
    process = subprocess.Popen([*command, "--amount", "3", "--period", "3600.0", "--burst", "3"])
    try:
        wait_until(port_file.exists, description="the partner answers")
        yield int(port_file.read_text())
    finally:
        process.kill()
        process.wait()


def get(port: int, path: str) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.getheader("Retry-After"), body


def test_over_http_it_answers_429_with_retry_after_beyond_its_limit(partner: int) -> None:
    """Three calls are answered, the fourth gets 429 and the seconds until the next one passes."""
    assert [get(partner, "/accounts/7")[0] for _ in range(3)] == [200, 200, 200]
    status, retry_after, _ = get(partner, "/accounts/7")
    assert status == 429
    assert retry_after is not None
    assert 1190 <= int(retry_after) <= 1200


def test_it_counts_calls_and_nothing_else(partner: int) -> None:
    """Reading the counts, or a path that does not exist, is not a call."""
    get(partner, "/accounts/7")
    assert get(partner, "/favicon.ico")[0] == 404
    assert get(partner, "/counts")[2] == b'{"calls": 1, "refused": 0}'

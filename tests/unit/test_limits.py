"""Limits as values: defaults, keys, costs, and what is refused when one is made."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttlekit import ConfigurationError, CostExceedsLimit, Job, TokenBucket
from throttlekit._core.key import key_text


def call_partner(account_id: int, region: str = "eu", *rest: int, **more: str) -> None: ...


def plain(account_id: int) -> None: ...


JOB = Job(id="1", name="call_partner", args=(42,), kwargs={"region": "us"}, function=call_partner)


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        ("100/s", 100),
        ("10/s", 10),
        ("1/s", 1),
        ("100/minute", 1),
        ("120/minute", 2),
        ("1/day", 1),
        ("300000/s", 300_000),
    ],
)
def test_default_burst_is_a_second_worth(rate: str, burst: int) -> None:
    """Without a burst given, a limit has one second's worth of its rate, and at least 1."""
    assert TokenBucket("partner", rate).burst == burst


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": None},
        {"name": 7},
        {"rate": "often"},
        {"burst": 0},
        {"burst": -1},
        {"burst": 1.5},
        {"burst": True},
        {"burst": "9"},
        {"rate": "1/day", "burst": 10 * 366 + 1},
        {"key": 7},
        {"key": b"{account_id}"},
        {"key": ""},
        {"key": "all"},
        {"key": "{"},
        {"key": "{}"},
        {"key": "{0}"},
        {"key": "{a b}"},
        {"cost": -1},
        {"cost": 1.5},
        {"cost": True},
        {"cost": "1"},
        {"cost": None},
    ],
)
def test_limit_that_cannot_work_is_refused_when_made(wrong: dict[str, Any]) -> None:
    """A value that can never work fails where it is written, and not in a job."""
    values: dict[str, Any] = {"name": "partner", "rate": "10/s", **wrong}
    with pytest.raises(ConfigurationError):
        TokenBucket(values.pop("name"), values.pop("rate"), **values)


def test_error_names_the_limit() -> None:
    """The message says which limit is wrong."""
    with pytest.raises(ConfigurationError, match="limit 'partner': "):
        TokenBucket("partner", "often")


def test_cost_above_the_burst_is_refused_when_made() -> None:
    """A fixed cost that could never pass fails at once, and tells the numbers."""
    with pytest.raises(CostExceedsLimit) as caught:
        TokenBucket("partner", "10/s", burst=5, cost=6)
    error = caught.value
    assert (error.cost, error.limit, error.most) == (6, "partner", 5)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_cost_error_travels(copied: Any) -> None:
    """The error can be pickled and copied, numbers included: job frameworks do both."""
    error = copied(CostExceedsLimit(cost=6, limit="partner", most=5))
    assert (error.cost, error.limit, error.most) == (6, "partner", 5)
    assert "a cost of 6" in str(error)


def test_cost_of_the_whole_burst_is_fine() -> None:
    """A cost may be as large as the burst."""
    assert TokenBucket("partner", "10/s", burst=5, cost=5).cost_of(None) == 5


def test_burst_of_ten_years_is_fine() -> None:
    """A bucket may take ten years to fill, and not longer."""
    assert TokenBucket("partner", "1/day", burst=3660).burst == 3660


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, ""),
        ("{account_id}", "42"),
        ("{region}:{account_id}", "us:42"),
        ("{account_id:05d}", "00042"),
        ("{region!r}", "'us'"),
        (lambda job: job.kwargs["region"], "us"),
        (lambda job: 7, "7"),
        (lambda job: "", ""),
    ],
)
def test_key_is_worked_out_from_the_job(key: Any, text: str) -> None:
    """A key comes from a template over the arguments by name, or from a callable that is given the job."""
    assert TokenBucket("partner", "10/s", key=key).key_of(JOB) == text


@pytest.mark.parametrize(
    "key",
    [
        "{customer}",
        "{account_id.customer}",
        "{region[9]}",
        lambda job: None,
        lambda job: 1.5,
        lambda job: True,
        lambda job: ["a"],
        lambda job: job.kwargs["customer"],
        lambda job: 1 // 0,
        "{account_id:no such format}",
    ],
)
def test_key_that_cannot_be_worked_out_is_a_configuration_error(key: Any) -> None:
    """A key that fails on a job is a permanent fault, and the message names the limit."""
    with pytest.raises(ConfigurationError, match="limit 'partner': "):
        TokenBucket("partner", "10/s", key=key).key_of(JOB)


def test_missing_argument_is_named_with_those_there() -> None:
    """The message says what the template wants, and what the job has."""
    with pytest.raises(ConfigurationError, match=r"names 'customer', which job 'send' .* has a, b"):
        TokenBucket("partner", "10/s", key="{customer}").key_of(Job(name="send", kwargs={"b": 1, "a": 2}))


def test_missing_argument_of_a_job_without_arguments() -> None:
    """The message says so when the job has no arguments at all."""
    with pytest.raises(ConfigurationError, match="has no arguments"):
        TokenBucket("partner", "10/s", key="{customer}").key_of(Job(name="send"))


def test_key_without_a_job_is_refused() -> None:
    """A limit with a key needs a job, or the key itself."""
    with pytest.raises(ConfigurationError, match="pass job=, or the key itself as key="):
        TokenBucket("partner", "10/s", key="{account_id}").key_of(None)


def test_callable_cost_is_given_the_job() -> None:
    """A cost may be worked out from the job."""
    assert TokenBucket("tokens", "10/s", cost=lambda job: len(job.args)).cost_of(JOB) == 1


@pytest.mark.parametrize("cost", [-1, 1.5, None, True, "3", len, lambda job: 1])
def test_callable_cost_must_be_a_whole_number(cost: Any) -> None:
    """What a cost callable returns is checked like a cost that is written down."""
    with pytest.raises(ConfigurationError, match="limit 'tokens'"):
        TokenBucket("tokens", "10/s", cost=lambda job: cost).cost_of(JOB)


def test_callable_cost_above_the_burst_can_never_pass() -> None:
    """A cost that turns out larger than the burst raises, it never gets a delay."""
    with pytest.raises(CostExceedsLimit) as caught:
        TokenBucket("tokens", "10/s", burst=5, cost=lambda job: 6).cost_of(JOB)
    assert (caught.value.cost, caught.value.most) == (6, 5)


def test_callable_cost_that_fails_names_limit_and_job() -> None:
    """A cost callable that raises is a permanent fault; the original error stays the cause."""
    with pytest.raises(ConfigurationError, match="limit 'tokens': its cost failed on job 'call_partner'") as caught:
        TokenBucket("tokens", "10/s", cost=lambda job: 1 // 0).cost_of(JOB)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_callable_cost_without_a_job_is_refused() -> None:
    """A cost that comes from the job needs one, or the cost itself."""
    with pytest.raises(ConfigurationError, match="pass job=, or cost="):
        TokenBucket("tokens", "10/s", cost=lambda job: 1).cost_of(None)


@pytest.mark.parametrize("key", [None, "{account_id}", "{more[zone]}", "{anything}", lambda job: 1])
def test_function_with_the_named_arguments_fits(key: Any) -> None:
    """A template may name any argument that the function takes; with **kwargs, any at all."""
    TokenBucket("partner", "10/s", key=key).check_function(call_partner)


def test_function_without_the_named_argument_is_refused() -> None:
    """A template that names an argument the function does not take fails where the two meet."""
    limit = TokenBucket("partner", "10/s", key="{account_id}-{tenant.id}")
    with pytest.raises(ConfigurationError, match=r"names an argument 'tenant' that plain\(account_id\) does not take"):
        limit.check_function(plain)


def test_function_with_exactly_the_arguments_fits() -> None:
    """A function without **kwargs fits when it takes every argument that the template names."""
    TokenBucket("partner", "10/s", key="{account_id}").check_function(plain)


@pytest.mark.parametrize("key", ["x", 7, ""])
def test_key_text_reads_what_has_one_text(key: Any) -> None:
    """Text and whole numbers have the same text everywhere."""
    assert key_text(key) == str(key)


@pytest.mark.parametrize("key", [None, True, 1.5, b"x", object(), ["a"], ("a",)])
def test_key_text_refuses_the_rest(key: Any) -> None:
    """Values whose text may differ between processes are no keys."""
    with pytest.raises(ConfigurationError, match="a key must be text or a whole number"):
        key_text(key)


def test_fingerprint_is_of_the_definition() -> None:
    """All ways to write one rate have one fingerprint; another rate or burst has another."""
    same = [TokenBucket("a", rate, burst=1) for rate in ("60/minute", "1/s", "10/10s", "3600/h", (2, 2.0))]
    others = [TokenBucket("a", "60/minute", burst=2), TokenBucket("a", "61/minute")]
    assert len({limit.fingerprint for limit in same}) == 1
    assert len({limit.bucket for limit in same}) == 1
    assert len({limit.fingerprint for limit in [same[0], *others]}) == 3


def test_fingerprint_does_not_depend_on_the_process() -> None:
    """The fingerprint is the same in every process and release: tickets and stored lines carry it."""
    assert TokenBucket("a", "100/minute", burst=20).fingerprint == "a85b65378f"


def test_limit_is_a_value() -> None:
    """Limits compare and hash by what was declared, copy, pickle, and can be changed only into new ones."""
    limit = TokenBucket("partner", "10/s", key="{account_id}")
    assert limit == TokenBucket("partner", "10/s", burst=10, key="{account_id}")
    assert len({limit, copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))}) == 1
    assert dataclasses.replace(limit, burst=3).bucket.burst == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.name = "other"  # type: ignore[misc]


_LIMITS = st.builds(
    lambda amount, period_us, burst, cost: TokenBucket(
        "naïve: {name}", (amount, period_us / 1_000_000), burst=burst, cost=min(cost, burst), key="{tenant}"
    ),
    st.integers(1, 10**6),
    st.integers(1, 86_400_000_000),
    st.integers(1, 1000),
    st.integers(0, 1000),
)


@given(limit=_LIMITS, tenant=st.text() | st.integers())
def test_limit_survives_a_trip_through_a_message(limit: TokenBucket, tenant: str | int) -> None:
    """A limit sent by value is the same limit on arrival: name, definition, key and cost of its job."""
    job = Job(kwargs={"tenant": tenant})
    sent = json.loads(json.dumps(limit.dump(job)))
    loaded = TokenBucket.load(sent)
    assert loaded.fingerprint == limit.fingerprint
    assert loaded.bucket == limit.bucket
    assert (loaded.name, loaded.key_of(job), loaded.cost_of(None)) == (
        limit.name,
        limit.key_of(job),
        limit.cost_of(job),
    )
    assert loaded.by_value
    assert not limit.by_value


def test_limit_without_a_key_survives_a_trip_through_a_message() -> None:
    """A limit that counts everything together needs no job on arrival."""
    assert TokenBucket.load(TokenBucket("partner", "10/s").dump(Job())).key_of(None) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": None},
        {"rate": None},
        {"rate": [1]},
        {"rate": [1, "x"]},
        {"rate": [0, 1]},
        {"rate": [1, 0]},
        {"burst": 0},
        {"cost": -1},
        {"cost": 99},
    ],
)
def test_limit_that_was_tampered_with_is_refused(wrong: dict[str, Any]) -> None:
    """Data that `dump` does not write is a configuration error."""
    data = {**TokenBucket("partner", "10/s").dump(Job()), **wrong}
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        TokenBucket.load(data)


@pytest.mark.parametrize("part", ["name", "rate", "burst", "key", "cost"])
def test_limit_that_lost_a_part_is_refused(part: str) -> None:
    """Data without one of its parts is a configuration error."""
    data = TokenBucket("partner", "10/s").dump(Job())
    del data[part]
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        TokenBucket.load(data)

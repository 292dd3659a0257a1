"""Jobs: their arguments by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from throttlekit import ConfigurationError, Job, Limiter, TokenBucket


class Names(str, Enum):
    ONE = "one"


def send(account_id: int, region: str = "eu", /, *rest: int, urgent: bool = False, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "arguments"),
    [
        (None, (1, 2), {"a": 3}, {"a": 3}),
        (send, (1,), {}, {"account_id": 1, "region": "eu", "rest": (), "urgent": False}),
        (send, (1, "us", 7, 8), {}, {"account_id": 1, "region": "us", "rest": (7, 8), "urgent": False}),
        (send, (1,), {"zone": "x"}, {"account_id": 1, "region": "eu", "rest": (), "urgent": False, "zone": "x"}),
    ],
)
def test_arguments_have_names(
    function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """Positional arguments and defaults get the names of the function's parameters."""
    assert Job(name="send", args=args, kwargs=kwargs, function=function).arguments == arguments


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("5", "5"),
        (Names.ONE, "one"),
        (5, "5"),
        (1.5, "1.5"),
        (b"caf\xc3\xa9\xff", "café\\xff"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (None, ""),
    ],
)
def test_id_becomes_text(id: Any, text: str) -> None:
    """An id that is not text is converted by the limiter, so every store finds the job by the same id."""
    job = Job(id=id)
    assert Limiter().acquire(TokenBucket("a", "1/s"), job=job).allowed
    assert (job.id, type(job.id)) == (text, str)


@pytest.mark.parametrize("id", [["l"], ("t", 1), {"a": 1}, object(), bytearray(b"x")])
def test_invalid_id_is_a_configuration_error(id: Any) -> None:
    """A value that cannot identify a job is rejected by the limiter, and the error shows it."""
    limiter, limit = Limiter(), TokenBucket("a", "1/s")
    with pytest.raises(ConfigurationError, match="a job's id must be a text, a number or a UUID") as caught:
        limiter.acquire(limit, job=Job(id=id))
    assert f"not the {type(id).__name__} {id!r}" in str(caught.value)


def test_arguments_that_do_not_fit_are_a_configuration_error() -> None:
    """A job whose arguments do not match its function can never run."""
    with pytest.raises(ConfigurationError, match="the arguments of job 'send' do not fit its function"):
        _ = Job(name="send", function=send).arguments


@pytest.mark.parametrize("function", [max, 5], ids=["built-in", "not callable"])
def test_arguments_without_known_names_are_a_configuration_error(function: Any) -> None:
    """Some functions written in C have no signature, so a key that names an argument cannot be computed."""
    with pytest.raises(ConfigurationError, match="the arguments of job 'most' have no known names"):
        _ = Job(name="most", args=(1, 2), function=function).arguments


def test_arguments_are_a_copy() -> None:
    """A key function that changes the arguments does not change the job."""
    kwargs = {"a": 1}
    Job(kwargs=kwargs).arguments["a"] = 2
    assert kwargs == {"a": 1}


@pytest.mark.parametrize("kwargs", [7, ["no pair"]])
def test_kwargs_that_are_no_mapping_are_a_configuration_error(kwargs: Any) -> None:
    """If a job's kwargs are not a mapping, the error shows the type of the value that the sender wrote."""
    with pytest.raises(ConfigurationError, match="a job's kwargs must be a mapping, not"):
        assert Job(kwargs=kwargs).arguments


def test_unhashable_function_is_inspected_each_time() -> None:
    """The arguments of a callable object without a hash have names like those of any other."""

    class Task:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, account_id: int) -> None: ...

    assert Job(args=(42,), function=Task()).arguments == {"account_id": 42}

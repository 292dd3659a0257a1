"""The Sentry filter of docs/logging.md, with the hints that the SDK passes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from support.markdown import all_pages
from throttlekit import RateLimited, WaitedTooLong

EVENT = {"level": "error"}


@pytest.fixture(scope="module")
def before_send() -> Any:
    """The function as on the page."""
    (page,) = [page for page in all_pages() if page.path.endswith("logging.md")]
    (text,) = [block.text for block in page.blocks("python") if "before_send" in block.text]
    names: dict[str, Any] = {}
    exec(text, names)
    return names["before_send"]


def raised(error: BaseException) -> dict[str, Any]:
    try:
        raise error
    except BaseException:
        return {"exc_info": sys.exc_info()}


class Own(RateLimited):
    """A user's own subclass."""


@pytest.mark.parametrize("error", [RateLimited(3), Own(3)])
def test_a_429_that_defers_a_job_is_no_issue(before_send: Any, error: Exception) -> None:
    """A subclass of the error that a user defines is not reported either."""
    assert before_send(EVENT, raised(error)) is None


@pytest.mark.parametrize(
    "hint", [raised(ValueError("x")), raised(WaitedTooLong("x")), {}, {"exc_info": None}, {"log_record": object()}]
)
def test_everything_else_is_reported(before_send: Any, hint: dict[str, Any]) -> None:
    """Other errors, and messages without an error, are reported."""
    assert before_send(EVENT, hint) is EVENT

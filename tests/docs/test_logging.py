"""docs/logging.md: the fields of log records, for structlog and JSON logs, and the filter for Sentry."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest

from support.markdown import Page
from throttlekit import Job, Limiter, RateLimited, TokenBucket, WaitedTooLong
from throttlekit._engine.plugins import EventLog
from throttlekit.hookspecs import Deferred, RateLimitReceived

PARTNER = TokenBucket("partner", "1/minute", burst=1, key="{customer}")
JOB = Job(id="j", kwargs={"customer": "jane"})
EVENT = {"level": "error"}
_PAGE = Page("docs/logging.md")


@pytest.fixture(scope="module")
def documented() -> dict[str, str]:
    """The description of each attribute on the page."""
    return dict(re.findall(r"^\| `(throttlekit_\w+)` \| (.+) \|$", _PAGE.text, re.MULTILINE))


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> dict[str, list[logging.LogRecord]]:
    """The records of a denial, by "deferral", and of a 429."""
    limiter = Limiter("memory://")
    limiter.acquire(PARTNER, key="jane")
    denied = limiter.acquire(PARTNER, key="jane")
    found = dict[str, list[logging.LogRecord]]()
    with caplog.at_level(logging.DEBUG, "throttlekit"):
        EventLog().throttlekit_deferred(Deferred(JOB, denied))
        found["deferral"] = caplog.records[:]
        caplog.clear()
        EventLog().throttlekit_rate_limited(RateLimitReceived(JOB, PARTNER, 30.0, "jane"))
        found["429"] = caplog.records[:]
    return found


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name.startswith("throttlekit_")}


def test_the_lines_about_a_denial_have_every_field_of_the_page(
    documented: dict[str, str], records: dict[str, list[logging.LogRecord]]
) -> None:
    """The DEBUG line about the job and the INFO line about the limit have exactly the fields that the page lists."""
    assert [record.levelname for record in records["deferral"]] == ["DEBUG", "INFO"]
    assert all(_fields(record).keys() == documented.keys() for record in records["deferral"])


def test_the_line_about_a_429_has_the_fields_that_the_page_lists(
    documented: dict[str, str], records: dict[str, list[logging.LogRecord]]
) -> None:
    """The line has all fields but those that the page excludes. The reason is "429"."""
    (record,) = records["429"]
    assert _fields(record).keys() == {name for name, text in documented.items() if "absent for a 429" not in text}
    assert (_fields(record)["throttlekit_reason"], _fields(record)["throttlekit_wait"]) == ("429", 30.0)


def test_no_field_has_the_key(records: dict[str, list[logging.LogRecord]]) -> None:
    """A key can contain an argument of the job, so no field has the key."""
    fields = [_fields(record) for some in records.values() for record in some]
    assert len(fields) == 3
    assert "jane" not in repr(fields)


# Sentry, with the hints that its SDK passes


@pytest.fixture(scope="module")
def before_send() -> Any:
    """The function as on the page."""
    (text,) = [block.text for block in _PAGE.blocks("python") if "before_send" in block.text]
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

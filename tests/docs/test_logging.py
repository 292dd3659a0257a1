"""The fields of log records that docs/logging.md names, for structlog and JSON logs."""

from __future__ import annotations

import logging
import re

import pytest

from support.markdown import all_pages
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._engine.plugins import DeferralLog, RateLimitLog
from throttlekit.hookspecs import Deferred, RateLimitReceived

PARTNER = TokenBucket("partner", "1/minute", burst=1, key="{customer}")
JOB = Job(id="j", kwargs={"customer": "jane"})


@pytest.fixture(scope="module")
def documented() -> dict[str, str]:
    """The description of each attribute on the page."""
    (page,) = [page for page in all_pages() if page.path.endswith("logging.md")]
    return dict(re.findall(r"^\| `(throttlekit_\w+)` \| (.+) \|$", page.text, re.MULTILINE))


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> dict[str, list[logging.LogRecord]]:
    """The records of a denial, by "deferral", and of a 429."""
    limiter = Limiter("memory://")
    limiter.acquire(PARTNER, key="jane")
    denied = limiter.acquire(PARTNER, key="jane")
    found = dict[str, list[logging.LogRecord]]()
    with caplog.at_level(logging.DEBUG, "throttlekit"):
        DeferralLog().throttlekit_deferred(Deferred(JOB, denied))
        found["deferral"] = caplog.records[:]
        caplog.clear()
        RateLimitLog().throttlekit_rate_limited(RateLimitReceived(JOB, PARTNER, 30.0, "jane"))
        found["429"] = caplog.records[:]
    return found


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name.startswith("throttlekit_")}


def test_the_lines_about_a_denial_have_every_field_of_the_page(
    documented: dict[str, str], records: dict[str, list[logging.LogRecord]]
) -> None:
    """
    The DEBUG line about the job and the INFO line about the limit have the fields that the page lists, and no others.
    """
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

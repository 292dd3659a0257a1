"""`show_key=`: tools show the names of a limit's keys. Copies of the limit keep it; the definition excludes it."""

from __future__ import annotations

from typing import Any

import pytest

from throttlekit import Concurrency, ConfigurationError, FixedWindow, Job, Limit, SlidingLog, TokenBucket
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit._core.serialize import dump, load, plain

NAMED = TokenBucket("api", "10/s", key="{tenant}", show_key=True)
PLAIN = TokenBucket("api", "10/s", key="{tenant}")
ACME = Job(kwargs={"tenant": "acme"})


@pytest.mark.parametrize(
    "limit",
    [
        NAMED,
        change_rate(NAMED, "5/s"),
        scale_rate(NAMED, 500),
        load(dump(NAMED, ACME)),
        load(plain(NAMED, "acme", 1)),
        TokenBucket("api", {"free": "1/s"}, tier="{plan}", show_key=True).for_job(Job(kwargs={"plan": "free"})),
        TokenBucket("api", lambda job: "1/s", show_key=True).at("1/s"),
        Concurrency("api", 2, show_key=True),
        FixedWindow("api", "1/s", show_key=True),
        SlidingLog("api", "1/s", show_key=True),
    ],
    ids=lambda limit: f"{type(limit).__name__}-{limit.rate}",
)
def test_derived_limits_keep_show_key(limit: Limit) -> None:
    """The option is kept at another rate, for a tier, in a message, and by every algorithm."""
    assert limit.show_key is True


def test_show_key_is_no_part_of_the_definition() -> None:
    """Limits that differ only in `show_key` count together. By default it is off, and not in a message."""
    assert PLAIN.show_key is False
    assert PLAIN.definition == NAMED.definition
    assert PLAIN != NAMED
    assert "show_key=True" in repr(NAMED)
    assert "show_key" not in repr(PLAIN)
    assert "show_key" not in dump(PLAIN, ACME)


def test_a_value_that_is_not_a_bool_is_refused() -> None:
    """The error says what would be right. A message with another value shows no names."""
    wrong: Any = "yes"
    with pytest.raises(ConfigurationError, match="show_key must be True or False, not 'yes'"):
        TokenBucket("api", "10/s", show_key=wrong)
    assert load({**dump(PLAIN, ACME), "show_key": "yes"}).show_key is False

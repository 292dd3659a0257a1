"""The name of a store, as operators see it: from which URL, and with no secret of it."""

from __future__ import annotations

from typing import Any

import pytest

from throttlekit import Limiter
from throttlekit_cli.store import name_store

UNNAMED = "a store without a readable name"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://limits:6380/1", "limits:6380/1"),
        ("redis://limits", "limits:6379/0"),
        ("redis:///1", "localhost:6379/1"),
        ("valkeys://ann:s3cret@limits/3", "limits:6379/3"),
        ("redis://:s3@cret@limits/1", "limits:6379/1"),
        ("redis://limits/0?password=s3cret&username=s3cret&db=4", "limits:6379/4"),
        ("redis://[::1]:6379/0", "[::1]:6379/0"),
        ("unix:///run/redis.sock?db=3&password=s3cret", "/run/redis.sock?db=3"),
        ("unix://ann:s3cret@/run/redis.sock", "/run/redis.sock?db=0"),
        ("rediss+cluster://ann:s3cret@node-1:7000", "node-1:7000, cluster"),
        (
            "redis+sentinel://ann:s3cret@one:26379,two:26379/limits/0?sentinel_password=s3cret",
            "service limits/0 of the Sentinels one:26379,two:26379",
        ),
        ("postgres://ann:s3cret@db:5432/limits?sslpassword=s3cret", "db:5432/limits"),
        ("mine://ann:s3cret@host/a/b?key=s3cret", "host"),
        ("memory://", "the memory of one process"),
    ],
)
def test_hosts_and_database_are_shown(url: str, name: str) -> None:
    """Of each kind of store, without the user, the password and the options of its URL."""
    assert name_store(url) == name
    assert name_store(url, "production") == f"production ({name})"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3cret",
        "redis://:s3cret",
        "redis://:s3/cret@limits/0",
        "redis://ann:12/s3cret@limits/0",
        "redis://ann:12?s3cret@limits/0",
        "redis://ann:12#s3cret@limits/0",
        "redis://ann:s3cret/0",
        "redis://ann:12/s3cret",
        "redis://limits/0?db=s3cret",
        "redis://[s3cret/0",
        "redis://s3\u2100cret/0",
        "redis://s3 cret/0",
        "redis+sentinel://one:26379/s3cret/s3cret",
    ],
)
def test_a_url_that_cannot_be_read_shows_nothing_of_itself(url: str) -> None:
    """It may hold a password whose signs are not escaped. Nothing is raised either."""
    assert name_store(url) == UNNAMED
    assert name_store(url, "staging") == f"staging ({UNNAMED})"


def test_a_limiter_and_a_store_have_their_addresses() -> None:
    """A page that is mounted in an app is given those."""
    with Limiter("redis://ann:s3cret@limits/2") as limiter:
        assert name_store(limiter) == "limits:6379/2"
    store: Any = object()
    assert name_store(store) == UNNAMED


def test_a_title_cannot_speak_to_the_terminal() -> None:
    """It is one line of printable signs, at most 60."""
    assert name_store("redis://limits/1", "a\x1b[31m\nb") == "a?[31m?b (limits:6379/1)"
    assert name_store("redis://limits/1", "  ") == "limits:6379/1"
    assert len(name_store("redis://limits/1", "x" * 1000)) < 80

"""The name of a store, as operators see it: derived from its URL, without any secret."""

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
    """For each kind of store, the name leaves out the user, the password and the options of the URL."""
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
def test_nothing_of_an_invalid_url_is_shown(url: str) -> None:
    """
    No part of an invalid URL is shown, because it can contain a password with unescaped characters. Nothing is raised
    either.
    """
    assert name_store(url) == UNNAMED
    assert name_store(url, "staging") == f"staging ({UNNAMED})"


def test_a_limiter_and_a_store_have_a_name() -> None:
    """A limiter or a store has a name too, because a page that is mounted in an app gets one instead of a URL."""
    with Limiter("redis://ann:s3cret@limits/2") as limiter:
        assert name_store(limiter) == "limits:6379/2"
    store: Any = object()
    assert name_store(store) == UNNAMED


def test_a_title_cannot_control_the_terminal() -> None:
    """The title is one line of at most 60 printable characters."""
    assert name_store("redis://limits/1", "a\x1b[31m\nb") == "a?[31m?b (limits:6379/1)"
    assert name_store("redis://limits/1", "  ") == "limits:6379/1"
    assert len(name_store("redis://limits/1", "x" * 1000)) < 80

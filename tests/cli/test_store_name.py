"""The name of a store, as operators see it: without any secret of its URL."""

from __future__ import annotations

import pytest

from throttlekit import ConfigurationError, Limiter
from throttlekit.stores import MemoryStore
from throttlekit.stores.access import StoreAccess
from throttlekit_cli.store import name_store, open_store


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
    ],
)
def test_hosts_and_database_are_shown(url: str, name: str) -> None:
    """For each kind of store, the name leaves out the user, the password and the options of the URL."""
    store = open_store(url)
    assert name_store(store) == name
    assert name_store(store, "production") == f"production ({name})"


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
        "redis+sentinel://one:26379/s3cret/s3cret",
    ],
)
def test_nothing_of_an_invalid_url_is_shown(url: str) -> None:
    """An invalid URL has no name, and no part of it is shown: it can contain a password with unescaped characters."""
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "cret" not in str(caught.value)


def test_a_limiter_and_a_store_have_a_name() -> None:
    """A limiter or a store has a name too, because a page that is mounted in an app gets one instead of a URL."""
    with Limiter("redis://ann:s3cret@limits/2") as limiter:
        assert name_store(open_store(limiter)) == "limits:6379/2"
    assert name_store(StoreAccess(MemoryStore())) == "a store without a readable name"


def test_a_title_cannot_control_the_terminal() -> None:
    """The title is one line of at most 60 printable characters."""
    store = open_store("redis://limits/1")
    assert name_store(store, "a\x1b[31m\nb") == "a?[31m?b (limits:6379/1)"
    assert name_store(store, "  ") == "limits:6379/1"
    assert len(name_store(store, "x" * 1000)) < 80

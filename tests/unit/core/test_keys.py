"""Names in the store: no two pairs share one, and each has exactly one hash tag."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from throttlekit._core.storage_keys import (
    bucket_name,
    held_since,
    holder_name,
    is_bucket_of,
    parts_of,
    patterns_of,
    wait_names,
)

_TRICKY = [
    "",
    "a",
    ":",
    "a:",
    ":a",
    "::",
    "{",
    "}",
    "{}",
    "}{",
    "{a}",
    "%",
    "%3A",
    "%253A",
    "~",
    "~" + "0" * 40,
    "%7E",
    "\n",
    "\r\n",
    "\x00",
    " ",
    "é",
    "e\u0301",
    "😀",
    "\ud800",
    "\udfff",
    "*",
    "a" * 119,
    "a" * 120,
    "a" * 121,
    "a" * 10_000,
    "é" * 20,
    "é" * 21,
    "é" * 5_000,
    "bucket",
    "line",
    "\\",
    "Ａ",
    "/",
    "@",
    "+",
    "=",
    "-",
    "_",
    ".",
]

texts = st.sampled_from(_TRICKY) | st.text(st.characters(), max_size=8) | st.text("a:{}%~é\ud800\n", max_size=6)


parts = st.none() | texts
triples = st.tuples(texts, texts, parts)


def stored_name(triple: tuple[str, str, str | None], fingerprint: str = "0a1b2c3d4e") -> str:
    name, key, part = triple
    return bucket_name(name, key, fingerprint, part)


@given(one=triples, other=triples)
@example(("a", "b:c", None), ("a:b", "c", None))
@example(("a", "b:c", None), ("a", "b", "c"))
@example(("a", "b", None), ("a", "b", ""))
@example(("a", "b", ""), ("a", "b:", None))
@example(("a", ":", "b"), ("a", "", ":b"))
@example(("a", "}:x", None), ("a}", "x", None))
@example(("~", "", None), ("%7E", "", None))
@example(("a", "b" * 10_000, "c"), ("a", "b" * 10_001, "c"))
def test_no_two_keys_share_a_name(one: tuple[str, str, str | None], other: tuple[str, str, str | None]) -> None:
    """Two stored names are equal only if limit, key and the scope's part are equal."""
    assert (stored_name(one) == stored_name(other)) == (one == other)
    assert (wait_names(stored_name(one))[0] == wait_names(stored_name(other))[0]) == (one == other)


def test_tricky_keys_have_distinct_names() -> None:
    """Every combination of the tricky texts has a name of its own."""
    few = [None, *_TRICKY[::4]]
    triples = [(name, key, part) for name in _TRICKY for key in _TRICKY for part in few]
    assert len({stored_name(triple) for triple in triples}) == len(triples)


@given(triple=triples)
def test_each_name_has_one_hash_tag(triple: tuple[str, str, str | None]) -> None:
    """The bucket and the waitlist of a key have the same hash tag, which is never empty, whatever the texts contain."""
    names = stored_name(triple), wait_names(stored_name(triple))[0]
    tags = [re.fullmatch(r"tk1:(\{[^{}]+\}):[a-z0-9:]+", name) for name in names]
    assert None not in tags
    assert len({tag.group(1) for tag in tags if tag}) == 1


@given(triple=triples)
def test_names_are_short_and_plain(triple: tuple[str, str, str | None]) -> None:
    """A stored name is printable ASCII without spaces, and short even for long texts."""
    name = wait_names(stored_name(triple))[0]
    assert name.isascii()
    assert name.isprintable()
    assert " " not in name
    assert len(name) <= 390


@given(triple=triples)
def test_two_definitions_share_no_name(triple: tuple[str, str, str | None]) -> None:
    """Two definitions of one limit share neither a bucket nor a waitlist."""
    names = {stored_name(triple, fingerprint) for fingerprint in ("aaa", "bbb")}
    assert len(names | {each for name in names for each in wait_names(name)}) == 10


@pytest.mark.parametrize(
    ("name", "key", "part", "stored"),
    [
        ("partner-api", "42", None, "tk1:{partner-api:42}:f00"),
        ("partner", "", None, "tk1:{partner:}:f00"),
        ("a", "user@example.org", None, "tk1:{a:user@example.org}:f00"),
        ("a b", "x:y", None, "tk1:{a%20b:x%3Ay}:f00"),
        ("a", "~", None, "tk1:{a:%7E}:f00"),
        ("a", "x" * 120, None, "tk1:{a:" + "x" * 120 + "}:f00"),
        ("partner", "42", "default", "tk1:{partner:42:default}:f00"),
        ("partner", "42", "", "tk1:{partner:42:}:f00"),
        ("partner", "42", "a:b c", "tk1:{partner:42:a%3Ab%20c}:f00"),
    ],
)
def test_stored_names_do_not_change(name: str, key: str, part: str | None, stored: str) -> None:
    """Names are the same in every release that reads version 1 of the state. The scope's part is in the hash tag."""
    assert bucket_name(name, key, "f00", part) == stored
    assert wait_names(stored) == tuple(f"{stored}:{each}" for each in ("wait1", "order1", "entries1", "tags1"))


@pytest.mark.parametrize("key", ["x" * 121, "é" * 21])
def test_long_texts_are_stored_by_digest(key: str) -> None:
    """A text that takes more than 120 characters to write is stored as its digest."""
    assert re.fullmatch(r"tk1:\{a:~[0-9a-f]{40}\}:f00", bucket_name("a", key, "f00"))


@pytest.mark.parametrize("name", ["tk1:{a:b}:x0123", "a:b}:0123", "tk1:{a:b}:0123:line"])
def test_only_names_of_a_definition_are_its_buckets(name: str) -> None:
    """A name that other software wrote, or of another definition, is not a bucket."""
    assert is_bucket_of(bucket_name("a", "b", "0123"), "0123")
    assert not is_bucket_of(name, "0123")


def test_name_of_a_waitlist_has_no_parts() -> None:
    """Only a bucket's name has parts."""
    bucket = bucket_name("a", "b", "0123", "mail")
    assert parts_of(bucket) == ("a:0123", "b", "mail")
    assert parts_of(wait_names(bucket)[0]) is None


def test_holder_name_contains_the_time_of_the_request() -> None:
    """The time is in whole seconds; an id of any text is quoted."""
    holder = holder_name("job: 1", "c0ffee", 1_800_000_000_999_999)
    assert holder == "job%3A%201#6b49d200.c0ffee"
    assert held_since(holder) == 1_800_000_000
    assert held_since("job%3A1#0") is None


def test_patterns_find_the_names_of_one_key_or_of_all() -> None:
    """
    Every stored name of a limit matches the pattern of all its keys. The patterns of one key match it with every part
    of its scope, but no other key that begins in the same way.
    """
    alone, scoped = patterns_of("partner", "4")
    assert (alone, scoped) == ("tk1:{partner:4}:*", "tk1:{partner:4:*")
    names = [bucket_name("partner", key, "f00", part) for key in ("4", "42") for part in (None, "mail")]
    for patterns, found in ((patterns_of("partner"), names), ([alone], names[:1]), ([scoped], names[1:2])):
        assert [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)] == found

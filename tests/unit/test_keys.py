"""Names in the store: no two pairs share one, and each has exactly one hash tag."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from throttlekit._core.keys import bucket_name, line_name

_TRICKY = [
    "", "a", ":", "a:", ":a", "::", "{", "}", "{}", "}{", "{a}", "%", "%3A", "%253A", "~", "~" + "0" * 40, "%7E",
    "\n", "\r\n", "\x00", " ", "é", "e\u0301", "😀", "\ud800", "\udfff", "*",
    "a" * 119, "a" * 120, "a" * 121, "a" * 10_000,
    "é" * 20, "é" * 21, "é" * 5_000, "bucket", "line", "\\", "Ａ", "/", "@", "+", "=", "-", "_", ".",
]  # fmt: skip

texts = st.sampled_from(_TRICKY) | st.text(st.characters(), max_size=8) | st.text("a:{}%~é\ud800\n", max_size=6)


@given(one=st.tuples(texts, texts), other=st.tuples(texts, texts))
@example(("a", "b:c"), ("a:b", "c"))
@example(("a", "}:x"), ("a}", "x"))
@example(("~", ""), ("%7E", ""))
def test_no_two_pairs_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Two stored names are the same only if limit and key are."""
    assert (bucket_name(*one, "f00") == bucket_name(*other, "f00")) == (one == other)
    assert (line_name(*one, "f00") == line_name(*other, "f00")) == (one == other)


def test_tricky_pairs_are_all_apart() -> None:
    """Every pair of the tricky texts has a name of its own."""
    pairs = [(name, key) for name in _TRICKY for key in _TRICKY]
    assert len({bucket_name(*pair, "f00") for pair in pairs}) == len(pairs)


@given(name=texts, key=texts)
def test_each_name_has_one_hash_tag(name: str, key: str) -> None:
    """Bucket and line of one pair carry one hash tag, the same, with something in it, whatever the texts hold."""
    tags = {re.fullmatch(r"tk1:(\{[^{}]+\}):[a-z0-9:]+", stored) for stored in (bucket_name(name, key, "0a1b2c3d4e"),)}
    tags |= {re.fullmatch(r"tk1:(\{[^{}]+\}):[a-z0-9:]+", line_name(name, key, "0a1b2c3d4e"))}
    assert None not in tags
    assert len({tag.group(1) for tag in tags if tag}) == 1


@given(name=texts, key=texts)
def test_names_are_short_and_plain(name: str, key: str) -> None:
    """A stored name is printable ASCII without spaces, and short even for long texts."""
    stored = line_name(name, key, "0a1b2c3d4e")
    assert stored.isascii()
    assert stored.isprintable()
    assert " " not in stored
    assert len(stored) <= 270


@given(name=texts, key=texts)
def test_bucket_and_line_are_apart(name: str, key: str) -> None:
    """A bucket never shares a name with a line."""
    assert bucket_name(name, key, "0a1b2c3d4e") != line_name(name, key, "0a1b2c3d4e")


def test_two_definitions_never_meet() -> None:
    """Two definitions of one limit share neither bucket nor line."""
    assert bucket_name("partner", "42", "aaa") != bucket_name("partner", "42", "bbb")
    assert line_name("partner", "42", "aaa") != line_name("partner", "42", "bbb")


@pytest.mark.parametrize(
    ("name", "key", "stored"),
    [
        ("partner-api", "42", "tk1:{partner-api:42}:f00"),
        ("partner", "", "tk1:{partner:}:f00"),
        ("a", "user@example.org", "tk1:{a:user@example.org}:f00"),
        ("a b", "x:y", "tk1:{a%20b:x%3Ay}:f00"),
        ("a", "~", "tk1:{a:%7E}:f00"),
        ("a", "x" * 120, "tk1:{a:" + "x" * 120 + "}:f00"),
    ],
)
def test_stored_names_do_not_change(name: str, key: str, stored: str) -> None:
    """Names are the same in every release that reads version 1 of the state."""
    assert bucket_name(name, key, "f00") == stored
    assert line_name(name, key, "f00") == f"{stored}:line"


@pytest.mark.parametrize("key", ["x" * 121, "é" * 21])
def test_long_texts_are_stored_by_digest(key: str) -> None:
    """A text that takes more than 120 characters to write is stored as its digest."""
    assert re.fullmatch(r"tk1:\{a:~[0-9a-f]{40}\}:f00", bucket_name("a", key, "f00"))

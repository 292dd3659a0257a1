"""The adapters' own scripts, and the fleet's, match their headers. (For the Lua that they use: see test_scripts.py.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contracts.tree import ADAPTERS_LUA, FLEET_LUA, section, split_script

every_script = pytest.mark.parametrize("path", ADAPTERS_LUA + FLEET_LUA, ids=lambda path: path.name)

_WRITING = (
    "SET|DEL|PEXPIRE|PEXPIREAT|EXPIRE|INCRBY|HSET|HDEL|HINCRBY|LPUSH|LREM|LTRIM|RPUSH|SADD|ZADD|ZINCRBY|ZREM|"
    "RPOP|ZPOPMIN|ZREMRANGEBYRANK|UNLINK|PERSIST|XCLAIM"
)


def _patterns(found: list[str]) -> set[str]:
    """Patterns of indices: `2 * claim - 1` and the like as `2i-1`, and `4+m+i` as `4+i+i`."""
    return {re.sub(r"[a-z]\w*", "i", re.sub(r"[\s*]", "", index)) for index in found}


def _documented(header: str, word: str) -> set[str]:
    return _patterns(re.findall(rf"^  {word}\[(.+?)\]", header, re.MULTILINE))


def _used(text: str, word: str) -> set[str]:
    return _patterns(re.findall(rf"{word}\[(.+?)\]", text))


@every_script
@pytest.mark.parametrize("word", ["KEYS", "ARGV"])
def test_header_names_every_key_and_argument(path: Path, word: str) -> None:
    """The header documents exactly the KEYS and ARGV indices that the script uses."""
    header, body = split_script(path)
    assert _used(body, word) == _documented(header, word)


@every_script
def test_header_names_what_is_written(path: Path) -> None:
    """The header's section Writes names exactly the keys that the script writes."""
    header, body = split_script(path)
    writes = re.findall(rf"redis\.call\('(?:{_WRITING})', (KEYS\[.+?\])", body)
    assert writes or "Writes   nothing" in header
    assert _used(" ".join(writes), "KEYS") == _used(section(header, "Writes"), "KEYS")


@every_script
def test_numbers_written_for_a_framework_are_formatted(path: Path) -> None:
    """A call that writes gets no unformatted sum, because Lua would print only 14 digits of it."""
    _, body = split_script(path)
    calls = re.findall(rf"redis\.call\('(?:{_WRITING})', KEYS\[.+?\],?(.*?)\)(?:\n| else| end)", body)
    for call in calls:
        text = r"(?:whole|string\.format)\(.*\)?|'[^']*'|(?:KEYS|ARGV|job|each|known|report\.\w+)\[.+?\]"
        bare = re.sub(text, "", call)
        assert re.fullmatch(r"[\s,]*(?:1,)?[\s,]*(?:(?:id|job|note|old)[\s,]*)*", bare), call

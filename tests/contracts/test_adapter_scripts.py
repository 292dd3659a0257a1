"""The adapters' own scripts, and the fleet's: they match their headers, and run on every supported server's Lua."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contracts.tree import ADAPTERS_LUA, FLEET_LUA, read

every_script = pytest.mark.parametrize("path", ADAPTERS_LUA + FLEET_LUA, ids=lambda path: path.name)

_WRITING = (
    "SET|DEL|PEXPIRE|PEXPIREAT|EXPIRE|INCRBY|HSET|HDEL|HINCRBY|LPUSH|LREM|LTRIM|RPUSH|SADD|ZADD|ZINCRBY|ZREM|"
    "RPOP|ZPOPMIN|ZREMRANGEBYRANK|UNLINK|PERSIST|XCLAIM"
)


def _parts(path: Path) -> tuple[str, str]:
    header, _, body = read(path).partition("]]")
    return header, re.sub(r"--.*", "", body)


def _section(header: str, word: str) -> str:
    match = re.search(rf"^  {word}  .*\n(?:    .*\n|\n)*", header, re.MULTILINE)
    assert match, f"the header has no {word}"
    return match.group()


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
    header, body = _parts(path)
    assert _used(body, word) == _documented(header, word)


@every_script
def test_header_names_what_is_written(path: Path) -> None:
    """The header's section Writes names exactly the keys that the script writes."""
    header, body = _parts(path)
    writes = re.findall(rf"redis\.call\('(?:{_WRITING})', (KEYS\[.+?\])", body)
    assert writes or "Writes   nothing" in header
    assert _used(" ".join(writes), "KEYS") == _used(_section(header, "Writes"), "KEYS")


@every_script
def test_script_runs_on_old_and_new_servers(path: Path) -> None:
    """A script uses only what every supported server's Lua has: no shebang, %d, global unpack or later command."""
    _, body = _parts(path)
    assert not read(path).startswith("#!")
    assert not re.search(r"format\([^)]*%d|(?<!table\.)(?<!unpack or )\bunpack\b|PXAT|EXAT|GETEX|//|\bgoto\b", body)


@every_script
def test_numbers_written_for_a_framework_are_formatted(path: Path) -> None:
    """A call that writes gets no unformatted sum, because Lua would print only 14 digits of it."""
    _, body = _parts(path)
    calls = re.findall(rf"redis\.call\('(?:{_WRITING})', KEYS\[.+?\],?(.*?)\)(?:\n| else| end)", body)
    for call in calls:
        text = r"(?:whole|string\.format)\(.*\)?|'[^']*'|(?:KEYS|ARGV|job|each|known|report\.\w+)\[.+?\]"
        bare = re.sub(text, "", call)
        assert re.fullmatch(r"[\s,]*(?:1,)?[\s,]*(?:(?:id|job|note|old)[\s,]*)*", bare), call

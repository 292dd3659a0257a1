"""A script's header is its contract: it says what the script uses, returns and writes, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contracts.tree import LUA, read

pytestmark = pytest.mark.parametrize("path", LUA, ids=lambda path: path.name)

_WRITING = "SET|DEL|PEXPIRE|EXPIRE|INCRBY|HSET|HDEL|ZADD|ZREM|UNLINK|PERSIST"


def _parts(path: Path) -> tuple[str, str]:
    header, _, body = read(path).partition("]]")
    return header, re.sub(r"--.*", "", body)


def _section(header: str, word: str) -> str:
    match = re.search(rf"^  {word}  .*\n(?:    .*\n|\n)*", header, re.MULTILINE)
    assert match, f"the header has no {word}"
    return match.group()


def _documented(header: str, word: str) -> set[str]:
    return set(re.findall(rf"^  {word}\[(.+?)\]", header, re.MULTILINE))


def _used(text: str, word: str) -> set[str]:
    """The index patterns in use, `2 * claim - 1` and the like as `2i-1`."""
    found = re.findall(rf"{word}\[(.+?)\]", text)
    return {re.sub(r"[a-z]\w*", "i", re.sub(r"[\s*]", "", index)) for index in found}


@pytest.mark.parametrize("word", ["KEYS", "ARGV"])
def test_header_names_every_key_and_argument(path: Path, word: str) -> None:
    """Every KEYS and ARGV index that the script uses is in its header, and the other way round."""
    header, body = _parts(path)
    assert _used(body, word) == _documented(header, word)


def test_header_names_what_is_written(path: Path) -> None:
    """Every key that the script writes is under Writes, and the other way round."""
    header, body = _parts(path)
    writes = re.findall(rf"redis\.call\('(?:{_WRITING})', (KEYS\[.+?\])", body)
    assert writes
    assert _used(" ".join(writes), "KEYS") == _used(_section(header, "Writes"), "KEYS")


def test_header_names_what_is_returned(path: Path) -> None:
    """The reply's fields are those under Returns, in their order."""
    header, body = _parts(path)
    documented = re.search(r"Returns  \{(.*?)\}", header)
    replied = re.search(r"local reply = \{(.*?)\}", body)
    assert documented
    assert replied
    names = [name.strip().removesuffix("_us") for name in documented.group(1).split(",")]
    fixed = [name.strip() for name in replied.group(1).split(",")]
    assert names[: len(fixed)] == fixed
    assert len(names) == len(fixed) + 1, "one entry for those of each claim"


def test_header_numbers_the_reasons(path: Path) -> None:
    """The reasons that the header numbers are those that the store reads, in order."""
    from throttlekit.stores.redis import _REASONS

    header, _ = _parts(path)
    numbered = re.search(r"reason: (.*)", header)
    assert numbered
    assert numbered.group(1) == ", ".join(f"{i} {reason.value}" for i, reason in enumerate(_REASONS))


def test_script_runs_on_old_and_new_servers(path: Path) -> None:
    """No word that some server's Lua does not have: no shebang, no %d, no global unpack, no later command."""
    _, body = _parts(path)
    assert not read(path).startswith("#!")
    assert not re.search(r"format\([^)]*%d|(?<!table\.)\bunpack\b|PXAT|EXAT|GETEX|//|\bgoto\b", body)


def test_every_number_goes_through_one_format(path: Path) -> None:
    """Each number in a writing call is written by `whole`, the time to live too."""
    _, body = _parts(path)
    for call in re.findall(r"redis\.call\('SET', KEYS\[.+?\],\s*(.+?)\)\n", body, re.DOTALL):
        values = re.split(r",\s*|\s*\.\.\s*", call)
        assert all(re.fullmatch(r"whole\(.*\)|'PX'|' '", value.strip()) for value in values), call
        assert "'PX'" in values

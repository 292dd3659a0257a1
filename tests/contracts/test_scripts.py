"""A script's header is its contract: it states what the script uses, returns and writes, and nothing else."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path

import pytest

import throttlekit_lua
from contracts.tree import ADAPTERS_LUA, FLEET_LUA, parsed, read, section, split_script
from contracts.tree import LUA as ALL

WAITLISTS = [
    path for path in ALL if path.stem in ("decide", "at_once", "claims", "one_record") or path.stem.startswith("wait")
]
"""
These mirror a specification step by step. tests/parity/test_waitlists.py checks for them what the tests below read in
the text of the other scripts: that each value is text, and that each key has a time to live.
"""
LUA = [path for path in ALL if path not in WAITLISTS]
CLOCK = next(path for path in LUA if path.stem == "clock")
COMMON = next(path for path in LUA if path.stem == "common")
RING = next(path for path in LUA if path.stem == "ring")
SLOWDOWN = next(path for path in LUA if path.stem == "slowdown")
VERBS = [path for path in LUA if "ARGV[" in read(path) and path != CLOCK]
ALGORITHMS = [path for path in LUA if path not in (*VERBS, CLOCK, COMMON, RING, SLOWDOWN)]
every_script = pytest.mark.parametrize("path", LUA, ids=lambda path: path.name)
every_algorithm = pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.name)

_WRITING = (
    "SET|SETRANGE|DEL|PEXPIRE|EXPIRE|INCRBY|HSET|HDEL|ZADD|ZREM|ZREMRANGEBYRANK|ZREMRANGEBYSCORE|UNLINK|PERSIST|APPEND"
)
_READING = "GET|GETRANGE|TIME|ZCOUNT|ZRANGE|ZRANGEBYSCORE|ZREVRANGE|ZREVRANGEBYSCORE|ZSCORE|ZRANK"


_PROBE = (
    "local instant = format('%d', now)\nlocal INTEGER, WIDE = '%.0f', '%016.0f'\n"
    "if #instant > 11 then INTEGER, WIDE = '%d', '%016d' end\n"
)


def _body(path: Path) -> str:
    return split_script(path)[1]


def _calls(body: str) -> list[tuple[str, str]]:
    """Return every call of the server, as (command, the rest of its arguments)."""
    found: list[tuple[str, str]] = []
    for match in re.finditer(r"redis\.call\('([A-Z]+)'(?:, *)?", body):
        depth, end, quoted = 1, match.end(), False
        while depth:
            quoted ^= body[end] == "'"
            depth += 0 if quoted else {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        found.append((match.group(1), body[match.end() : end - 1]))
    assert len(found) == body.count("redis.call"), "a command must be written out"
    return found


def _split(arguments: str) -> list[str]:
    """Return the arguments of a call, split at the commas outside of brackets."""
    parts, depth, last, quoted = [], 0, 0, False
    for i, character in enumerate(arguments):
        quoted ^= character == "'"
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(arguments[last:i].strip())
            last = i + 1
    return [*parts, arguments[last:].strip()]


# Scripts of waitlists


@pytest.mark.parametrize("path", WAITLISTS, ids=lambda path: path.name)
def test_script_of_waitlists_calls_only_known_commands_by_name(path: Path) -> None:
    """A script writes each command's name out, and calls only commands that these tests list."""
    body = _body(path)
    commands = re.findall(r"(?<!local )\bcall\((.*?)[,)]", body)
    more = "'(?:EXISTS|HGET|HMGET|HLEN|PTTL|PUBLISH|ZLEXCOUNT|ZRANGEBYLEX|ZREVRANGEBYLEX)'"
    assert all(re.fullmatch(f"'(?:{_WRITING}|{_READING})'|{more}", command) for command in commands), commands
    assert "redis." not in re.sub("local call(, match, sub, concat)? = redis.call", "", body)
    assert "tostring" not in body


@pytest.mark.parametrize(
    "verb",
    ["decide", "wait_forget", "wait_look", "wait_pause", "wait_return", "wait_settle", "wait_slow", "wait_where"],
)
@pytest.mark.parametrize("letters", ["t", "fsl", "ca", "tfslca"])
def test_script_of_waitlists_is_composed_of_its_files(verb: str, letters: str) -> None:
    """The script has the clock, the common head, the algorithms of its claims, and the required files of waitlists."""
    text = throttlekit_lua.read(verb, frozenset(letters))
    expected = {"clock", "common", "claims", "slowdown", "waitlist", verb}
    expected |= {"at_once"} if verb == "decide" else set()
    expected |= {throttlekit_lua.ALGORITHMS[letter] for letter in letters}
    expected |= {"one_record"} if verb == "decide" and "c" not in letters else set()
    expected |= {"ring"} if "l" in letters else set()
    assert {path.stem for path in ALL if read(path) in text} == expected


@pytest.mark.parametrize("verb", ["wait_clear", "wait_list"])
def test_script_without_claims_is_composed_of_its_files(verb: str) -> None:
    """A script that reads no claim has no algorithm."""
    text = throttlekit_lua.read(verb)
    assert {path.stem for path in ALL if read(path) in text} == {"clock", "common", "claims", verb}


# All scripts


@pytest.mark.parametrize("path", ALL + ADAPTERS_LUA + FLEET_LUA, ids=lambda path: path.name)
def test_script_runs_on_old_and_new_servers(path: Path) -> None:
    """A script uses only what every supported server has: no shebang or later command, %d for whole numbers only."""
    assert not read(path).startswith("#!")
    body = _body(path).replace(_PROBE, "").replace("table.unpack or unpack", "")
    assert not re.search(r"format\([^)]*%d|\bunpack\b|PXAT|EXAT|GETEX|//|\bgoto\b|&|~=\s*~", body)


@every_script
def test_script_calls_only_known_commands_by_name(path: Path) -> None:
    """A script writes each command's name out, and calls only commands that these tests list as reads or writes."""
    for command, _ in _calls(_body(path)):
        assert re.fullmatch(f"{_WRITING}|{_READING}", command), command


# The holder of a slot is passed as text, and is never a number.
_FORMATS = r"whole|ttl|bytes|get|string\.(?:sub|rep)|table\.concat|range|text_of|member_of|mark_of"
# Values that are kept until they are written are text: members, kinds, names of tenants, and parts of a waitlist entry.
_KEPT = r"c\.leaves|c\.(?:joins|paid)\[\d\]|(?:c\.)?tenant|kind"
_TEXT = (
    rf"'[^']*'|format\((?:INTEGER|'%016\.0f 1'), .*\)|c\.c|{_KEPT}|(?:{_FORMATS})\(.*\)"
    r"|redis\.call\('GET', c\.key\)(?: or '')?"
)


def _is_text(value: str, body: str, seen: tuple[str, ...] = ()) -> bool:
    """Whether *value* is text: a literal, a part or concatenation of text, or the result of one of the formats."""
    pieces = re.split(r"\s*\.\.\s*", value)
    if len(pieces) > 1 or re.fullmatch(_TEXT, value):
        return all(re.fullmatch(_TEXT, piece) or _is_text(piece, body, seen) for piece in pieces)
    if value in seen:
        return True
    if not re.fullmatch(r"[\w.]+", value):
        return False
    if re.search(rf"\bfor _, {value} in ipairs\((?:redis\.call\(|c\.aside\))", body):
        return True
    sources = re.findall(rf"(?<![\w.]){re.escape(value)} = (.+?)(?= else | end$|$)", body, re.MULTILINE)
    for function, inside in re.findall(rf"local function (\w+)\([\w, ]*\b{value}\)\n(.*?)(?:\nend|$)", body, re.DOTALL):
        if "redis.call" not in inside:
            continue
        calls = re.findall(rf"(?<!function ){function}\((.+)\)(?: end)?$", body, re.MULTILINE)
        sources += [_split(arguments)[-1] for arguments in calls]
    return bool(sources) and all(_is_text(text, body, (*seen, value)) for text in sources)


@every_script
def test_every_number_is_formatted_by_one_function(path: Path) -> None:
    """Each value that a script sends to the server is text, whose numbers `whole`, `ttl` or `bytes` format."""
    body = _body(path)
    for command, arguments in _calls(body):
        if command == "TIME":
            continue
        key, *values = _split(arguments)
        assert re.fullmatch(r"c\.key|c\.order_key|(?:c\.)?jobs_key|KEYS\[.+\]", key), arguments
        before = body[: body.index(arguments)]
        for value in values:
            since = before.rfind(f"local {value} = ")
            assert _is_text(value, body if since < 0 else before[since:]), (command, value)
    assert "tostring" not in body


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ("c.tat", "c.tat = now + 1"),
        ("now", ""),
        ("1e8", ""),
        ("stored", "local stored = c.tat"),
        ("whole(x) .. c.debt", "c.debt = 7"),
        ("string.format('%d', x)", ""),
        ("text", "local function put(c, text)\n  redis.call('SET', c.key, text)\nend\nput(c, now)"),
    ],
)
def test_number_that_is_not_formatted_is_found(value: str, body: str) -> None:
    """The check above finds a number that reaches the server unformatted."""
    assert not _is_text(value, body)


_TTL = r"(?:ttl\(|format\(INTEGER, max\(1, ceil\(\()"


@every_script
def test_every_written_key_gets_a_time_to_live(path: Path) -> None:
    """A SET has PX or KEEPTTL; an algorithm that writes otherwise ends its `keep` with such a SET, or a PEXPIRE."""
    body = _body(path)
    calls = [(command, text) for command, text in _calls(body) if "'KEEPTTL'" not in text]
    writing = [(command, text) for command, text in calls if command in ("SET", "SETRANGE", "APPEND", "ZADD")]
    if any("'PX'" not in text for _, text in writing):
        keep = re.search(r"keep = function\(c\)\n(.*?)\n  end,", body, re.DOTALL)
        assert keep
        last = keep.group(1).splitlines()[-1]
        assert re.search(r"redis\.call\('PEXPIRE', c\.key, \w+\)( end)?$", last)
        assert {text.split(",")[0] for command, text in writing} == {"c.key"}
        assert all("'PX'" in text for command, text in _calls(last) if command == "SET")
    for _, text in writing:
        times = _split(text)[-1] if "'PX'" in text else "ttl(now)"
        assert times.startswith(("ttl(", "format(INTEGER, ceil((")) or re.search(rf"local {times} = {_TTL}", body), text


def test_scripts_are_composed_of_every_file() -> None:
    """
    The script of a verb is the clock, the common head, the requested algorithms, and the verb, once each. A log also
    needs numbers of 7 bytes.
    """
    assert {_code(path): path.stem for path in ALGORITHMS} == throttlekit_lua.ALGORITHMS
    for verb, letters in product(VERBS, ["t", "fs", "l", "c", "ca", "tfslca"]):
        text = throttlekit_lua.read(verb.stem, frozenset(letters))
        head = [CLOCK, *([RING] if "l" in letters else []), COMMON]
        parts = [*head, *(path for path in ALGORITHMS if _code(path) in letters), verb]
        assert sorted(path for path in LUA if read(path) in text) == sorted(parts)
        assert len(text) == sum(len(read(path)) for path in parts) + len(parts) - 1
        assert text.startswith("\n".join(map(read, head)))
        assert text.endswith(read(verb))
    assert throttlekit_lua.read("decide", frozenset("a")) == throttlekit_lua.read("decide", frozenset("ca"))
    assert throttlekit_lua.read("decide") == throttlekit_lua.read("decide", frozenset("tfslca"))


def test_each_verb_of_the_store_has_a_script() -> None:
    """There is a script for each verb that the Redis store runs, and no other."""
    names = {
        node.value
        for module in ("redis", "wire")
        for node in ast.walk(parsed(f"throttlekit.stores.{module}"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {path.stem for path in VERBS} <= names
    assert {path.stem for path in VERBS} == {"renew"}


def test_header_numbers_the_reasons() -> None:
    """The header numbers the reasons in the order in which the store reads them."""
    from throttlekit.stores.wire import _REASONS

    header, _ = split_script(next(path for path in WAITLISTS if path.stem == "at_once"))
    numbered = re.search(r"reason: (.*)", header)
    assert numbered
    assert numbered.group(1) == ", ".join(f"{i} {reason.value}" for i, reason in enumerate(_REASONS))


# Algorithms

_CHARGES = ("concurrency", "fixed_window", "gcra", "sliding_log", "sliding_window")


def _verbs_of_an_algorithm() -> list[str]:
    header = split_script(COMMON)[0].partition("Additional functions")[0]
    return re.findall(r"^  (\w+)\(c(?:, \w+)*\)  ?", header, re.MULTILINE)


def _verbs_of_leases() -> list[str]:
    return re.findall(r"^  (\w+)\(c\)  ", split_script(COMMON)[0].partition("Additional functions")[2], re.MULTILINE)


def _functions(path: Path) -> list[str]:
    return re.findall(r"^  (\w+) = (?:function\(|(?!true)[\w.]+,$)", _body(path), re.MULTILINE)


def _code(path: Path) -> str:
    match = re.search(
        r"^  .*\bMirrors throttlekit/_core/algorithms/(\w+)\.py\. Code (\w)\.$", split_script(path)[0], re.MULTILINE
    )
    assert match, "the header does not say what it mirrors, and its code"
    return match.group(2)


def _mirrored(path: Path) -> str:
    match = re.search(r"Mirrors throttlekit/_core/algorithms/(\w+)\.py", split_script(path)[0])
    assert match
    return f"throttlekit._core.algorithms.{match.group(1)}"


@every_algorithm
def test_algorithm_has_exactly_the_functions_of_the_head(path: Path) -> None:
    """Each algorithm has the functions that the head names, and those for leases where slots are estimates."""
    leases = _verbs_of_leases() if "estimates = true" in _body(path) else []
    leases += ["drop"] if path.stem == "latency" else []
    leases += ["one"] if path.stem in ("latency", "token_bucket") else []
    assert sorted(_functions(path)) == sorted([*_verbs_of_an_algorithm(), *leases])


@every_algorithm
def test_algorithm_registers_under_its_code(path: Path) -> None:
    """The script and the core register the algorithm under the code in the header, and the core no other one."""
    assert re.findall(r"^algorithms\.(\w) = \{", _body(path), re.MULTILINE) == [_code(path)]
    codes = [
        ast.literal_eval(node.value)
        for node in ast.walk(parsed(_mirrored(path)))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "code"
        and node.value is not None
    ]
    assert sorted(codes) == sorted(_code(each) for each in ALGORITHMS if _mirrored(each) == _mirrored(path))


def test_no_two_algorithms_share_a_code() -> None:
    """Each algorithm of the scripts has a code of its own, and every file of the core has a script."""
    assert len({_code(path) for path in ALGORITHMS}) == len(ALGORITHMS)
    charges = {f"throttlekit._core.algorithms.{name}" for name in _CHARGES}
    assert {_mirrored(path) for path in ALGORITHMS} == charges


@every_script
def test_mirrored_modules_name_their_scripts(path: Path) -> None:
    """The Python module that a script mirrors names that script, so that an editor of one finds the other."""
    for name in re.findall(r"throttlekit/_core/([\w/]+)\.py", split_script(path)[0]):
        docstring = ast.get_docstring(parsed(f"throttlekit._core.{name.replace('/', '.')}")) or ""
        sentence = rf"lua/throttlekit_lua/([\w., ]+ )?{re.escape(path.name)}[\w., ]* mirrors? (this file|it)\. "
        sentence += r"Change (both|all), or the parity tests fail\."
        assert re.search(sentence, " ".join(docstring.split())), name


@every_algorithm
def test_header_documents_the_key_and_its_numbers(path: Path) -> None:
    """The header documents those of a, b and c that the script uses, and the content of the key."""
    header, body = split_script(path)
    used = {name for name in "abc" if re.search(rf"\bc\.{name}\b", body)}
    documented = re.search(r"^  ((?:\w, )*\w)   ?", header.partition("Code")[2], re.MULTILINE)
    numbers = set(re.findall(r"^  (a(?:, b)?(?:, c)?|b|c) ", header, re.MULTILINE))
    assert documented
    assert {name for names in numbers for name in names.split(", ")} == used
    assert section(header, "Key")


@every_algorithm
def test_algorithm_uses_only_its_claim(path: Path) -> None:
    """An algorithm reads and writes only the key of its claim, and reads no argument of the call."""
    body = _body(path)
    assert not re.search(r"\bKEYS\b|\bARGV\b|order_key|jobs_key", body)
    assert {arguments.split(",")[0].strip() for _, arguments in _calls(body)} == {"c.key"}

"""
Mutants by hand: each changes one thing in the core or the script, and the fast tests must notice.

    python tests/mutants.py            all of them
    python tests/mutants.py line.py    those whose file or text has "line.py" in it

Works on a copy of the tree. Prints a table; exits with 1 if a mutant survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support.servers import shared_redis

ROOT = Path(__file__).parents[1]

ACQUIRE_LUA = "lua/throttlekit_lua/acquire.lua"
ACQUIRE = "throttlekit/_core/acquire.py"
GCRA = "throttlekit/_core/gcra.py"
LINE = "throttlekit/_core/line.py"

PARITY = [
    "tests/parity/test_lua.py::test_long_random_histories",
    "tests/conformance/test_redis_store.py",
    "tests/conformance/test_stores.py",
    "tests/parity/test_lua.py",
]
FAST = [
    "tests/unit/test_acquire.py",
    "tests/unit/test_gcra.py",
    "tests/unit/test_line_simulation.py",
    PARITY[0],
]

MUTANTS: dict[str, list[tuple[str, str]]] = {
    ACQUIRE_LUA: [
        ("GRACE, GUESTS, STALE = 5000000,", "GRACE, GUESTS, STALE = 5000001,"),
        ("5000000, 60000000, 60000000", "5000000, 60000001, 60000000"),
        ("5000000, 60000000, 60000000", "5000000, 60000000, 60000001"),
        ("'%.0f'", "'%.14g'"),
        ("* 1000000 + tonumber(time[2])", "* 1000000"),
        ("'PX', whole(math.ceil((tat[i] - now + GRACE) / 1000))", "'PX', math.ceil((tat[i] - now + GRACE) / 1000)"),
        ("whole(math.ceil((tat[i] - now + GRACE) / 1000))", "whole(math.ceil((tat[i] - now) / 1000))"),
        ("KEYS[2 * i - 1], whole(tat[i])", "KEYS[2 * i - 1], tat[i]"),
        ("now - tat[i] < GRACE", "now - tat[i] <= GRACE"),
        ("tail, late, guest = string", "tail, guest, late = string"),
        ("line[i].last = math.max(line[i][1], line[i][2])", "line[i].last = line[i][1]"),
        ("> capacity + STALE", ">= capacity + STALE"),
        ("stale[i] = now + capacity, true", "stale[i] = now, true"),
        ("tat[i] or -1", "tat[i] or 0"),
        ("place_slot <= now", "place_slot < now"),
        ("place_slot < line[place].last", "place_slot <= line[place].last"),
        ("answer(3, place, place_slot, place_slot)", "answer(3, place, now, place_slot)"),
        ("if charge > 0 then\n    local ready", "if charge >= 0 then\n    local ready"),
        ("(tat[i] or 0) - headroom", "(tat[i] or 0)"),
        ("if not holder then opens_i", "if true then opens_i"),
        ("if opens_i > now then", "if opens_i >= now then"),
        ("retry = math.max(retry, opens_i)", "retry = opens_i"),
        ("slot_i = math.max(line[i][2], opens_i)", "slot_i = opens_i"),
        ("slot_i = math.max(line[i][3], opens_i)", "slot_i = opens_i"),
        ("elseif caller == 'guest' then slot_i", "elseif caller == 'job' then slot_i"),
        ("if slot_i > slot then", "if slot_i >= slot then"),
        ("binding, slot, opens = i, slot_i, opens_i", "binding, slot = i, slot_i"),
        ("ready > now and 1 or 2", "ready > now and 2 or 1"),
        ("ready > now and 1 or 2", "opens_i > now and 1 or 2"),
        ("if caller == 'peek' then", "if caller == 'peek' and reason > 0 then"),
        ("math.max(now, tat[i] or 0) + charge", "(tat[i] or now) + charge"),
        ("if charge > 0 then\n      tat[i]", "if charge >= 0 then\n      tat[i]"),
        ("if not holder and not lives[i] then", "if not lives[i] then"),
        ("if not holder and not lives[i] then", "if not holder then"),
        ("if not holder and not lives[i] then", "if false then"),
        ("if stale[i] and tonumber(ARGV[4 * i + 2]) > 0 then", "if stale[i] then"),
        ("if stale[i] and tonumber(ARGV[4 * i + 2]) > 0 then", "if false then"),
        ("slot - now > (tonumber(ARGV[5]) or math.huge)", "slot - now >= (tonumber(ARGV[5]) or math.huge)"),
        ("slot - now > (tonumber(ARGV[5]) or math.huge)", "slot > (tonumber(ARGV[5]) or math.huge)"),
        ("slot + tonumber(ARGV[4 * binding + 5])", "slot + tonumber(ARGV[4 * binding + 2])"),
        ("slot + tonumber(ARGV[4 * binding + 5])", "opens + tonumber(ARGV[4 * binding + 5])"),
        ("if holder then booked[2] = after", "if holder then booked[1] = after"),
        ("math.min(after, opens + GUESTS)", "after"),
        ("math.min(after, opens + GUESTS)", "math.min(after, now + GUESTS)"),
        ("math.max(booked[1], booked[2], booked[3])", "math.max(booked[1], booked[2])"),
        ("whole(math.ceil((last - now + GRACE) / 1000))", "whole(math.ceil((last - now) / 1000))"),
        ("whole(booked[2])", "booked[2]"),
    ],
    ACQUIRE: [
        ("place.slot_us <= now_us", "place.slot_us < now_us"),
        ("now_us < place.slot_us < lines[place.claim].end_us", "now_us <= place.slot_us < lines[place.claim].end_us"),
        ("now_us < place.slot_us < lines[place.claim].end_us", "now_us < place.slot_us <= lines[place.claim].end_us"),
        ("now_us < place.slot_us < lines[place.claim].end_us", "now_us < place.slot_us"),
        ("if ask.charge.charge_us == 0:", "if False:"),
        ("opens = ready if holder else max(ready, lines[i].end_us)", "opens = max(ready, lines[i].end_us)"),
        ("opens = ready if holder else max(ready, lines[i].end_us)", "opens = ready"),
        ("if opens <= now_us:", "if opens < now_us:"),
        ("retry_us = max(retry_us, opens)", "retry_us = opens"),
        ("if slot > slot_us:", "if slot >= slot_us:"),
        ("Reason.EXHAUSTED if ready > now_us", "Reason.EXHAUSTED if opens > now_us"),
        ("if caller is Caller.PEEK:", "if caller is Caller.PEEK and reason is Reason.ALLOWED:"),
        ("if caller is Caller.PEEK:", "if caller is Caller.PEEK and reason is not Reason.ALLOWED:"),
        ("if ask.charge.charge_us and tats", "if tats"),
        ("slot_us + asks[binding].spacing_us", "slot_us + asks[binding].charge.charge_us"),
        ("slot_us + asks[binding].spacing_us", "opens_us + asks[binding].spacing_us"),
        ("_book(lines[binding]", "_book(lines[0]"),
        ("_book(lines[binding]", "_book(EMPTY"),
        ("State(states[binding].tat_us, line)", "State(tats[binding], lines[binding])"),
        ("None if given_up else changed[i].line", "None if given_up else EMPTY"),
        ("reason is Reason.ALLOWED and not holder and lines[i] is EMPTY", "reason is Reason.ALLOWED and not holder"),
        ("reason is Reason.ALLOWED and not holder and lines[i] is EMPTY", "not holder and lines[i] is EMPTY"),
        ("and not holder and lines[i] is EMPTY", "and lines[i] is EMPTY"),
        ("reason is Reason.ALLOWED and not holder and lines[i] is EMPTY", "False"),
        (">= GRACE_US:", "> GRACE_US:"),
        ("or state.tat_us is None or now_us - state.tat_us", "or now_us - (state.tat_us or now_us)"),
        ("return max(line.late_us, opens_us)", "return opens_us"),
        ("return max(line.guest_us, opens_us)", "return opens_us"),
        ("Line(line.tail_us, after_us, line.guest_us)", "Line(after_us, line.late_us, line.guest_us)"),
        ("min(after_us, opens_us + GUESTS_US)", "after_us"),
        ("Line(after_us, line.late_us, line.guest_us)", "Line(after_us, 0, line.guest_us)"),
        ("Line(after_us, line.late_us, line.guest_us)", "Line(after_us, line.late_us, 0)"),
    ],
    GCRA: [
        ("STALE_US = 60_000_000", "STALE_US = 60_000_001"),
        ("_WORTH_ROUNDING = 200", "_WORTH_ROUNDING = 199"),
        ("* _WORTH_ROUNDING <= period_us", "* _WORTH_ROUNDING < period_us"),
        ("whole = -(-period_us // amount)", "whole = period_us // amount"),
        ("-(-cost * self.numerator // self.denominator)", "(cost * self.numerator // self.denominator)"),
        ("room_us = self.burst * self.numerator //", "room_us = 1 + self.burst * self.numerator //"),
        ("capacity_us = -(-self.burst * self", "capacity_us = (self.burst * self"),
        ("max(0, room_us - charge_us)", "room_us - charge_us"),
        ("max(0, room_us - charge_us)", "max(0, room_us)"),
        ("return max(0, left // self.numerator)", "return left // self.numerator"),
        ("return max(0, left // self.numerator)", "return max(0, -(-left // self.numerator))"),
        ("max(0, tat_us - now_us)", "tat_us - now_us"),
        ("<= request.capacity_us + STALE_US", "< request.capacity_us + STALE_US"),
        ("return now_us + request.capacity_us", "return now_us"),
        ("if tat_us is None or request.charge_us == 0:", "if tat_us is None:"),
        ("return max(now_us, tat_us - request.headroom_us)", "return tat_us - request.headroom_us"),
        ("tat_us - request.headroom_us)", "tat_us - request.headroom_us + 1)"),
        ("if request.charge_us == 0:\n        return tat_us", "if False:\n        return tat_us"),
        ("held_us(tat_us, now_us) + request.charge_us", "request.charge_us"),
    ],
    LINE: [
        ("GRACE_US = 5_000_000", "GRACE_US = 5_000_001"),
        ("GUESTS_US = 60_000_000", "GUESTS_US = 60_000_001"),
        ("return max(self.tail_us, self.late_us)", "return self.tail_us"),
        ("return max(self.tail_us, self.late_us)", "return self.late_us"),
        ("request.headroom_us >= lateness_us", "request.headroom_us > lateness_us"),
        ("_SLACK = 25", "_SLACK = 24"),
        ("_MOST_SLACK_US = 20_000", "_MOST_SLACK_US = 20_001"),
        ("min(request.charge_us // _SLACK, _MOST_SLACK_US)", "max(request.charge_us // _SLACK, _MOST_SLACK_US)"),
    ],
}  # fmt: skip


def _survives(tree: Path, tests: list[str], environment: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]
    outcome = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode not in (0, 1):
        raise RuntimeError(outcome.stdout + outcome.stderr)
    return outcome.returncode == 0


def main(wanted: list[str]) -> int:
    for name, mutants in MUTANTS.items():
        for old, _ in mutants:
            if (count := (ROOT / name).read_text("utf-8").count(old)) != 1:
                raise SystemExit(f"{name}: {old!r} is there {count} times, not once")
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="tk-mutants-") as folder, shared_redis() as url:
        tree = Path(folder)
        for name in ("throttlekit", "lua", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "lua")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "THROTTLEKIT_TEST_REDIS": url,
        }
        if _survives(tree, FAST + PARITY[1:], environment):
            print("the tests pass without a mutant\n")
        else:
            print("the tests fail without any mutant: nothing to learn")
            return 2
        for name, mutants in MUTANTS.items():
            path = tree / name
            original = path.read_text("utf-8")
            for number, (old, new) in enumerate(mutants, 1):
                if wanted and not any(word in f"{name} {old} {new}" for word in wanted):
                    continue
                path.write_text(original.replace(old, new), "utf-8")
                started = time.monotonic()
                survived = _survives(tree, PARITY if name == ACQUIRE_LUA else FAST, environment)
                survivors += survived
                print(
                    f"{'SURVIVED' if survived else 'dead':8}  {time.monotonic() - started:4.1f} s  "
                    f"{path.name} {number:2}  {old!r} -> {new!r}",
                    flush=True,
                )
            path.write_text(original, "utf-8")
    print(f"\n{survivors} of {sum(map(len, MUTANTS.values()))} survived" if survivors else "\nall dead")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

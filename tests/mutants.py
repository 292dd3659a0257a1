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

LUA = "lua/throttlekit_lua/"
CORE = "throttlekit/_core/"

HISTORIES = "tests/parity/test_lua.py::test_long_random_histories[{}]"
UNIT = [
    f"tests/unit/test_{name}.py"
    for name in ("acquire", "concurrency", "pause", "gcra", "fixed_window", "sliding_window", "sliding_log")
]
REST = [
    "tests/unit/test_line_simulation.py",
    "tests/unit/test_bounds.py",
    "tests/conformance/test_redis_store.py",
    "tests/conformance/test_stores.py",
    "tests/parity/test_lua.py",
]

# Which random histories are most likely to notice, by file.
FIRST = {
    "acquire.lua": "mixtures",
    "acquire.py": "mixtures",
    "common.lua": "mixtures",
    "concurrency.lua": "concurrency",
    "concurrency.py": "concurrency",
    "lease.lua": "concurrency",
    "fixed_window.lua": "fixed-window",
    "fixed_window.py": "fixed-window",
    "gcra.py": "token-bucket",
    "line.py": "mixtures",
    "settle.lua": "mixtures",
    "sliding_log.lua": "sliding-log",
    "sliding_log.py": "sliding-log",
    "sliding_window.lua": "sliding-window",
    "sliding_window.py": "sliding-window",
    "token_bucket.lua": "token-bucket",
}

MUTANTS: dict[str, list[tuple[str, str]]] = {
    LUA + "common.lua": [
        ("GRACE, GUESTS, STALE = 5000000,", "GRACE, GUESTS, STALE = 5000001,"),
        ("5000000, 60000000, 60000000", "5000000, 60000001, 60000000"),
        ("5000000, 60000000, 60000000", "5000000, 60000000, 60000001"),
        ("and '%d' or '%.0f'", "and '%.14g' or '%.0f'"),
        ("and '%d' or '%.0f'", "and '%d' or '%d'"),
        ("* 1000000 + tonumber(time[2])", "* 1000000"),
        ("(last - now + GRACE) / 1000", "(last - now) / 1000"),
        ("return whole(math.max(1, math.ceil", "return (math.max(1, math.ceil"),
        ("math.max(1, math.ceil((last - now + GRACE) / 1000))", "math.ceil((last - now + GRACE) / 1000)"),
        ("math.ceil((last - now + GRACE) / 1000)", "math.floor((last - now + GRACE) / 1000)"),
    ],
    LUA + "acquire.lua": [
        ("c.stored and now - c.of.spoken_for(c) < GRACE", "c.stored and now - c.of.spoken_for(c) <= GRACE"),
        ("c.last_slot = math.max(c.line[1], c.line[2])", "c.last_slot = c.line[1]"),
        ("place ~= 0 and place_slot <= now", "place ~= 0 and place_slot < now"),
        ("place ~= 0 and place_slot <= now", "place > 0 and place_slot <= now"),
        ("place_slot < claims[place].last_slot", "place_slot <= claims[place].last_slot"),
        ("if c.size > 0 then\n    ready", "if c.size >= 0 then\n    ready"),
        ("if opens_c > now then", "if opens_c >= now then"),
        ("retry = math.max(retry, opens_c)", "retry = opens_c"),
        ("slot_c = math.max(c.line[2], opens_c)", "slot_c = opens_c"),
        ("slot_c = math.max(c.line[3], opens_c)", "slot_c = opens_c"),
        ("elseif caller == 'guest' then slot_c", "elseif caller == 'job' then slot_c"),
        ("c.room and not holder and opens_c", "c.room and opens_c"),
        ("if reason ~= 4 and (slot_c > slot or full)", "if slot_c > slot or full"),
        ("(slot_c > slot or full)", "(slot_c >= slot or full)"),
        ("(slot_c > slot or full)", "slot_c > slot"),
        ("binding, slot, opens = i, slot_c, opens_c", "binding, slot = i, slot_c"),
        ("if caller == 'peek' then", "if caller == 'peek' and reason > 0 then"),
        ("or reason == 4 or slot", "or slot"),
        ("slot - now > (patience or math.huge)", "slot - now >= (patience or math.huge)"),
        ("slot - now > (patience or math.huge)", "slot > (patience or math.huge)"),
        ("if holder then line[2] = after", "if holder then line[1] = after"),
        ("math.min(after, opens + GUESTS)", "after"),
        ("math.min(after, opens + GUESTS)", "math.min(after, now + GUESTS)"),
    ],
    LUA + "settle.lua": [
        ("if settled then corrected", "if true then corrected"),
        ("if settled or c.stale then", "if settled then"),
        ("if settled or c.stale then", "if true then"),
        ("granted = tonumber(ARGV[at + 4])", "granted = now"),
        ("by = tonumber(ARGV[at + 5])", "by = -tonumber(ARGV[at + 5])"),
    ],
    LUA + "token_bucket.lua": [
        ("MOST_DEBT_US = 316224000000000", "MOST_DEBT_US = 316224000000001"),
        ("'^(%d+) (%d+)$'", "'^(%d+) (%d)'"),
        ("c.tat, c.debt = tonumber(stored), 0", "c.tat, c.debt = tonumber(stored), 1"),
        ("> c.b + c.debt + STALE", ">= c.b + c.debt + STALE"),
        ("> c.b + c.debt + STALE", "> c.b + STALE"),
        ("= now + c.b, 0, true", "= now, 0, true"),
        ("= now + c.b, 0, true", "= now + c.b, 0, false"),
        ("math.max(now, (c.tat or 0) - c.a)", "math.max(now, (c.tat or 0))"),
        ("c.tat, c.debt = math.max(now, c.tat or 0) + c.size, 0", "c.tat, c.debt = (c.tat or now) + c.size, 0"),
        ("if not c.tat and c.by <= 0 then", "if not c.tat then"),
        ("if not c.tat and c.by <= 0 then", "if false then"),
        ("math.max(now, c.tat or 0) + c.by", "(c.tat or now) + c.by"),
        ("c.tat = math.max(now, math.min(", "c.tat = math.max(0, math.min("),
        ("now + c.b + MOST_DEBT_US", "now + MOST_DEBT_US"),
        ("c.debt = math.max(0, c.tat - now - c.b)", "c.debt = math.max(0, c.tat - now)"),
        ("c.debt = math.max(0, c.tat - now - c.b)", "c.debt = 0"),
        ("whole(c.debt)", "c.debt"),
        ("'PX', ttl(c.tat)", "'PX', ttl(now)"),
        ("return 0, c.tat or now", "return 0, c.tat or 0"),
    ],
    LUA + "fixed_window.lua": [
        ("MOST_DEBT_UNITS = 60", "MOST_DEBT_UNITS = 61"),
        ("'%-?%d+'", "'%d+'"),
        ("if at >= zone[i] then offset", "if at > zone[i] then offset"),
        ("(at + offset) / c.b", "at / c.b"),
        ("local begin = from - offset", "local begin = from"),
        ("if now < zone[i] and zone[i] <= begin then", "if zone[i] <= begin then"),
        ("if now < zone[i] and zone[i] <= begin then", "if now < zone[i] then"),
        ("if now < zone[i] and zone[i] <= begin then", "if now < zone[i] and zone[i] < begin then"),
        ("math.max(zone[i], from - zone[i + 1])", "from - zone[i + 1]"),
        ("window_begun(c, c.last) - now > STALE", "window_begun(c, c.last) - now >= STALE"),
        ("c.running, c.a, true", "c.running, 0, true"),
        ("if c.used + c.size <= c.a then", "if c.used + c.size < c.a then"),
        ("return window_begin(c, c.window + 1)", "return window_begin(c, c.running + 1)"),
        ("if c.by <= 0 and (not c.stored or", "if (not c.stored or"),
        ("window_at(c, c.granted) ~= c.window", "window_at(c, c.granted) ~= c.running"),
        ("window_at(c, c.granted) ~= c.window", "false"),
        ("math.max(0, math.min(c.used + c.by", "math.max(1, math.min(c.used + c.by"),
        ("'PX', ttl(full)", "'PX', ttl(now)"),
        ("or c.last_used == 0 then", "or c.last_used < 0 then"),
        ("return c.used, window_begin(c, c.last + 1)", "return c.last_used, window_begin(c, c.last + 1)"),
        ("(math.min(c.last_used, c.a) + 1)", "math.min(c.last_used, c.a)"),
        ("math.ceil(c.b / c.a)", "math.floor(c.b / c.a)"),
        ("return math.min(over, over - c.b", "return math.max(over, over - c.b"),
    ],
    LUA + "sliding_window.lua": [
        ("MOST_DEBT = 60", "MOST_DEBT = 61"),
        ("(c.last_used > 0 and 2 or 1)", "(c.last_used > 0 and 2 or 2)"),
        ("math.floor(math.max(0, now - c.window * c.b) / c.c)", "math.max(0, now - c.window * c.b) / c.c"),
        ("math.max(0, now - c.window * c.b)", "(now - c.window * c.b)"),
        ("c.before * (c.steps - over)", "c.before * c.steps"),
        ("math.ceil(c.b / c.c), running", "math.floor(c.b / c.c), running"),
        ("if c.last * c.b - now > STALE", "if c.last * c.b - now >= STALE"),
        ("running, 0, c.a, true", "running, c.a, c.a, true"),
        ("running, 0, c.a, true", "running, 0, 0, true"),
        ("if c.last >= running then", "if c.last == running then"),
        ("elseif c.last == running - 1", "elseif c.last < running"),
        ("if units_of(c) + c.size <= c.a", "if units_of(c) + c.size < c.a"),
        ("if room < 0 then", "if room <= 0 then"),
        ("begin + c.b, c.used, c.a - c.size end", "begin + c.b, c.used, c.a end"),
        ("c.steps + 1 - math.ceil((room + 1)", "c.steps - math.ceil((room + 1)"),
        ("math.ceil((room + 1) * c.steps / fading)", "math.floor((room + 1) * c.steps / fading)"),
        ("(room + 1) * c.steps / fading", "room * c.steps / fading"),
        ("math.min(c.b, faded * c.c)", "faded * c.c"),
        ("if c.by > 0 then return", "if c.by > 1 then return"),
        ("granted < c.window - 1 or", "granted < c.window or"),
        ("or granted > c.window then", "then"),
        ("math.max(0, c.used + c.by))", "c.used + c.by)"),
        ("math.max(0, c.before + c.by)", "c.before + c.by"),
        ("'PX', ttl(full)", "'PX', ttl(now)"),
        ("math.floor(load_of(c) / c.steps)", "math.ceil(load_of(c) / c.steps)"),
        ("c.last_before + c.last_used == 0", "c.last_used == 0"),
        ("if c.b <= GRACE", "if c.b < GRACE"),
        ("math.floor(load_of(c) / c.a) * c.c + math.ceil(c.b / c.a)", "math.floor(load_of(c) / c.a) * c.c"),
        ("math.floor(load_of(c) / c.a)", "math.ceil(load_of(c) / c.a)"),
        ("math.ceil(c.b / c.a)", "math.floor(c.b / c.a)"),
    ],
    LUA + "sliding_log.lua": [
        ("for i = 7, 1, -1 do", "for i = 6, 1, -1 do"),
        ("string.sub(c.bytes, 7 * at + 1, 7 * (at + count))", "string.sub(c.bytes, 7 * at, 7 * (at + count))"),
        ("whole(7 * (at + count) - 1)", "whole(7 * (at + count))"),
        ("string.rep('\\0', 7 * count - #found)", "''"),
        ("'SETRANGE', c.key, whole(7 * at), text", "'SETRANGE', c.key, 7 * at, text"),
        ("string.rep('\\0', 7 * at - #c.bytes)", "''"),
        ("string.sub(before, 1, 7 * at)", "string.sub(before, 1, 7 * at + 1)"),
        ("string.sub(before, 7 * at + #text + 1)", "''"),
        ("(c.head + i) % c.a, 1", "c.head + i, 1"),
        ("7 * math.min(#instants / 7, c.a - c.head)", "#instants"),
        ("put(c, 2, string.sub(instants, first + 1))", "put(c, 2, instants)"),
        ("if first < #instants then", "if false then"),
        ("c.newest - now > STALE", "c.newest - now >= STALE"),
        ("unit(c, c.size - 1) + c.b", "unit(c, c.size % c.a) + c.b"),
        ("math.max(now, c.newest), c.size", "now, c.size"),
        ("if c.by > 0 then", "if c.by > 1 then"),
        ("math.max(now, c.newest), math.min(c.by, c.a)", "now, math.min(c.by, c.a)"),
        ("math.min(c.by, c.a)", "math.min(c.by, c.a - 1)"),
        ("(c.by > c.a and c.newest or", "(c.by >= c.a and c.newest or"),
        ("if forgotten > now then", "if true then"),
        ("or now < c.owed then", "then"),
        ("or now < c.owed then", "or now <= c.owed then"),
        ("if last == 0 or", "if"),
        ("unit(c, last - 1) + c.b <= now", "unit(c, last - 1) + c.b < now"),
        ("or unit(c, last - 1) + c.b <= now", ""),
        ("math.min(-c.by, last)", "-c.by"),
        ("math.min(last - back, c.a - c.head)", "last - back"),
        ("write(c, string.rep('\\0', 7 * back) .. get", "write(c, get"),
        ("    c.newest = unit(c, c.a - 1)\n    return true", "    return true"),
        ("count_until(c, now - c.b) + c.push", "count_until(c, now - c.b)"),
        ("(c.head + c.push) % c.a", "c.head + c.push"),
        (".. bytes(c.owed))", ".. bytes(0))"),
        ("ttl(c.newest > 0 and c.newest + c.b or now)", "ttl(c.newest + c.b)"),
        ("ttl(c.newest > 0 and c.newest + c.b or now)", "ttl(now)"),
        ("PEXPIRE', c.key, last", "PEXPIRE', c.key, ttl(now)"),
        ("if c.newest == 0 then return 0, now end", ""),
        ("c.units or c.a - count_until(c, now - c.b)", "c.units or c.a - count_until(c, now - c.b - 1)"),
        ("c.units or c.a", "c.a"),
        ("math.max(c.newest, free) + math.ceil", "c.newest + math.ceil"),
        ("math.ceil(c.b / c.a)", "math.floor(c.b / c.a)"),
        (", c.newest + c.b)\n", ", c.newest + 2 * c.b)\n"),
    ],
    LUA + "concurrency.lua": [
        ("tonumber(till) > now", "tonumber(till) >= now"),
        ("math.max(SHORTEST,", "math.max(1,"),
        ("2 * age", "age"),
        ("c.full > c.most + STALE", "c.full >= c.most + STALE"),
        ("now + math.max(c.b, c.longest)", "now + c.b"),
        ("c.live < c.a and now", "c.live <= c.a and now"),
        ("c.by < 0 and redis", "redis"),
        ("math.max(1, now - c.granted)", "now - c.granted"),
        ("not holds(c) and c.live >= c.a", "c.live >= c.a"),
        ("not holds(c) and c.live >= c.a", "not holds(c) and c.live > c.a"),
        ("if c.live >= c.a then return now end", "if c.live > c.a then return now end"),
        ("math.floor(pace(c) / SLACK)", "0"),
    ],
    LUA + "pause.lua": [
        ("math.min(before, now)", "now"),
        ("math.max(before, now + tonumber(ARGV[2]))", "now + tonumber(ARGV[2])"),
        ("c.of.used_up(c, wanted)", "c.of.used_up(c, now)"),
    ],
    LUA + "lease.lua": [
        ("if done or c.stale then", "if done then"),
    ],
    CORE + "concurrency.py": [
        ("if lease[1] > now_us)", "if lease[1] >= now_us)"),
        ("most_us = now_us + max(self.lease_us, state.longest_us)", "most_us = now_us + self.lease_us"),
        ("most_us + STALE_US:", "most_us:"),
        ("if len(_living(state, now_us)) >= self.amount:\n            return now_us\n        return max", "return max"),
        ("self.holder not in dict(_living(state, now_us))", "self.holder not in dict(state.leases)"),
        ("held_us = max(1, now_us - granted_us)", "held_us = now_us - granted_us"),
        ("_replace(mean_us=mean_us, freed_us=now_us)", "_replace(mean_us=mean_us)"),
        ("self.holder in dict(living) or len(living) < self.amount", "len(living) < self.amount"),
        ("self.holder in dict(living) or len(living) < self.amount", "self.holder in dict(living)"),
        ("return pace_us + pace_us // _SLACK", "return pace_us"),
        ("max(state.mean_us, age_us)", "state.mean_us"),
        ("2 * age_us)", "age_us)"),
        ("return max(_SHORTEST_US, hold_us", "return max(1, hold_us"),
        ("state is None or by >= 0 or", "state is None or"),
    ],
    CORE + "acquire.py": [
        ("if not asks[place.claim].charge.estimates:", "if True:"),
        ("max(line.paused_us, now_us + for_us)", "now_us + for_us"),
        ("if line.paused_us > now_us else state", "if line.paused_us else state"),
        ("if until_us else held", "if False else held"),
        ("max(ask.charge.ready_us(taken[i], now_us), paused[i])", "ask.charge.ready_us(taken[i], now_us)"),
        ("if early is not None and reason is not Reason.ALLOWED:", "if False:"),
        ("charge.used_up(charge.believed(state.taken, now_us), line.paused_us)", "state.taken"),
        ("or now_us < state.line.paused_us:", "or False:"),
        ("return replace(line, paused_us=0) if", "return line if"),
        ("place is not None and place.slot_us <= now_us", "place is not None and place.slot_us < now_us"),
        ("place.claim != ELSEWHERE and now_us", "now_us"),
        ("now_us < place.slot_us < lines[place.claim].end_us", "now_us <= place.slot_us < lines[place.claim].end_us"),
        ("now_us < place.slot_us < lines[place.claim].end_us", "now_us < place.slot_us <= lines[place.claim].end_us"),
        ("now_us < place.slot_us < lines[place.claim].end_us", "now_us < place.slot_us"),
        ("if opens <= now_us:", "if opens < now_us:"),
        ("retry_us = max(retry_us, opens)", "retry_us = opens"),
        ("reason is not Reason.FULL and (slot", "(slot"),
        ("(slot > slot_us or full)", "(slot >= slot_us or full)"),
        ("(slot > slot_us or full)", "slot > slot_us"),
        ("Reason.EXHAUSTED if ready > now_us", "Reason.EXHAUSTED if opens > now_us"),
        ("if caller is Caller.PEEK:", "if caller is Caller.PEEK and reason is Reason.ALLOWED:"),
        ("if caller is Caller.PEEK:", "if caller is Caller.PEEK and reason is not Reason.ALLOWED:"),
        ("elif reason is not Reason.FULL and (", "elif ("),
        ("slot_us - now_us <= patience_us", "slot_us - now_us < patience_us"),
        ("_book(lines[binding]", "_book(lines[0]"),
        ("_book(lines[binding]", "_book(EMPTY"),
        ("State(states[binding].taken, line)", "State(taken[binding], lines[binding])"),
        (">= GRACE_US:", "> GRACE_US:"),
        ("return max(line.late_us, opens_us)", "return opens_us"),
        ("return max(line.guest_us, opens_us)", "return opens_us"),
        ("min(after_us, opens_us + GUESTS_US)", "after_us"),
    ],
    CORE + "charge.py": [
        ("STALE_US = 60_000_000", "STALE_US = 60_000_001"),
    ],
    CORE + "gcra.py": [
        ("_WORTH_ROUNDING = 200", "_WORTH_ROUNDING = 199"),
        ("* _WORTH_ROUNDING <= period_us", "* _WORTH_ROUNDING < period_us"),
        ("_SLACK = 25", "_SLACK = 24"),
        ("_MOST_SLACK_US = 20_000", "_MOST_SLACK_US = 20_001"),
        ("min(self.size // _SLACK, _MOST_SLACK_US)", "max(self.size // _SLACK, _MOST_SLACK_US)"),
        ("self.headroom_us < lateness_us", "self.headroom_us <= lateness_us"),
        ("whole = -(-period_us // amount)", "whole = period_us // amount"),
        ("-(-cost * self.numerator // self.denominator)", "(cost * self.numerator // self.denominator)"),
        ("room_us = self.burst * self.numerator //", "room_us = 1 + self.burst * self.numerator //"),
        ("capacity_us = -(-self.burst * self", "capacity_us = (self.burst * self"),
        ("max(0, room_us - charge_us)", "room_us - charge_us"),
        ("max(0, room_us - charge_us)", "max(0, room_us)"),
        ("return max(0, left // self.numerator)", "return left // self.numerator"),
        ("return max(0, left // self.numerator)", "return max(0, -(-left // self.numerator))"),
        ("max(0, tat_us - now_us)", "tat_us - now_us"),
        ("<= self.capacity_us + state.debt_us + STALE_US", "< self.capacity_us + state.debt_us + STALE_US"),
        ("<= self.capacity_us + state.debt_us + STALE_US", "<= self.capacity_us + STALE_US"),
        ("return Tat(now_us + self.capacity_us)", "return Tat(now_us)"),
        ("if state is None or self.size == 0:", "if state is None:"),
        ("return max(now_us, state.at_us - self.headroom_us)", "return state.at_us - self.headroom_us"),
        ("state.at_us - self.headroom_us)", "state.at_us - self.headroom_us + 1)"),
        ("if self.size == 0:\n            return state", "if False:\n            return state"),
        ("Tat(_from_us(state, now_us) + self.size)", "Tat(now_us + self.size)"),
        ("if state is None and by <= 0:", "if state is None:"),
        ("now_us + self.capacity_us + _MOST_DEBT_US", "now_us + _MOST_DEBT_US"),
        ("at_us = max(now_us, min(", "at_us = max(0, min("),
        ("max(0, at_us - now_us - self.capacity_us)", "max(0, at_us - now_us)"),
        ("max(now_us, state.at_us)\n", "state.at_us\n"),
    ],
    CORE + "line.py": [
        ("GRACE_US = 5_000_000", "GRACE_US = 5_000_001"),
        ("GUESTS_US = 60_000_000", "GUESTS_US = 60_000_001"),
        ("return max(self.tail_us, self.late_us)", "return self.tail_us"),
        ("return max(self.tail_us, self.late_us)", "return self.late_us"),
        ("_SLACK = 25", "_SLACK = 24"),
        ("-(-units * period_us // amount)", "(units * period_us // amount)"),
        ("min(charge_us // _SLACK, charge_us * lateness_us // period_us)", "charge_us // _SLACK"),
        ("min(charge_us // _SLACK, charge_us * lateness_us // period_us)", "charge_us * lateness_us // period_us"),
        ("period_us < _SLACK * lateness_us", "period_us <= _SLACK * lateness_us"),
    ],
    CORE + "fixed_window.py": [
        ("_MOST_DEBT = 60", "_MOST_DEBT = 61"),
        ("if now_us >= from_us:", "if now_us > from_us:"),
        ("- now_us <= STALE_US", "- now_us < STALE_US"),
        ("return Count(self._window(now_us), self.amount)", "return Count(self._window(now_us), 0)"),
        ("used + self.size <= self.amount", "used + self.size < self.amount"),
        ("if self.size == 0 or used", "if used"),
        ("return self._begin_us(window + 1, now_us)", "return self._begin_us(self._window(now_us) + 1, now_us)"),
        ("if self.size == 0:\n            return state", "if False:\n            return state"),
        ("return Count(window, used + self.size)", "return Count(self._window(now_us), used + self.size)"),
        ("if by <= 0 and (", "if ("),
        ("self._window(granted_us) != window", "self._window(granted_us) != self._window(now_us)"),
        ("max(0, min(used + by,", "max(1, min(used + by,"),
        ("if state.used else now_us)", "if state.used >= 0 else now_us)"),
        ("(min(state.used, self.amount) + 1)", "min(state.used, self.amount)"),
        ("-(-self.period_us // self.amount)", "(self.period_us // self.amount)"),
        ("return min(end_us, end_us", "return max(end_us, end_us"),
        ("state.window < window else state", "state.window != window else state"),
        ("(now_us + self.zone.at(now_us)) //", "now_us //"),
        ("if now_us < from_us <= begin_us:", "if from_us <= begin_us:"),
        ("if now_us < from_us <= begin_us:", "if now_us < from_us:"),
        ("if now_us < from_us <= begin_us:", "if now_us < from_us < begin_us:"),
        ("max(from_us, local_us - changed_us)", "local_us - changed_us"),
        ("_SEARCHED_DAYS = 200", "_SEARCHED_DAYS = 100"),
        ("for day in range(1, 2 * _SEARCHED_DAYS + 1)", "for day in range(1, _SEARCHED_DAYS + 1)"),
        ("changes.append((high_us, after_us))", "changes.append((low_us, after_us))"),
    ],
    CORE + "sliding_window.py": [
        ("_MOST_DEBT = 60", "_MOST_DEBT = 61"),
        ("_LARGEST_LOAD = 2**46", "_LARGEST_LOAD = 2**47"),
        ("-(-amount * period_us // _LARGEST_LOAD)", "max(1, amount * period_us // _LARGEST_LOAD)"),
        ("- now_us <= STALE_US", "- now_us < STALE_US"),
        ("now_us // self.period_us, 0, self.amount)", "now_us // self.period_us, self.amount, self.amount)"),
        ("if self.size == 0 or self._units", "if self._units"),
        ("+ self.size <= self.amount:", "+ self.size < self.amount:"),
        ("if room < 0:", "if room <= 0:"),
        ("begin_us + self.period_us, used, self.amount - self.size", "begin_us + self.period_us, used, self.amount"),
        ("self._steps + 1 + -(room + 1)", "self._steps + -(room + 1)"),
        ("-(room + 1) * self._steps // fading", "-room * self._steps // fading"),
        ("min(self.period_us, faded * self.step_us)", "faded * self.step_us"),
        ("if self.size == 0:\n            return state", "if False:\n            return state"),
        ("if by > 0:", "if by > 1:"),
        ("granted not in (window, window - 1)", "granted != window"),
        ("granted not in (window, window - 1)", "granted > window"),
        ("max(0, used + by)", "used + by"),
        ("max(0, before + by)", "before + by"),
        ("return self._load(state, now_us) // self._steps", "return -(-self._load(state, now_us) // self._steps)"),
        ("if state.used or state.before else now_us", "if state.used else now_us"),
        ("if self.period_us <= GRACE_US:", "if self.period_us < GRACE_US:"),
        ("* self.step_us + interval_us", "* self.step_us"),
        ("interval_us = -(-self.period_us // self.amount)", "interval_us = self.period_us // self.amount"),
        ("return -(-self.size * self.period_us // self.amount)", "return self.size * self.period_us // self.amount"),
        ("state.window < window - 1:", "state.window < window:"),
        ("state.window < window - 1:", "state.window < window - 2:"),
        ("state.used, 0) if state.window < window", "state.used, 0) if state.window != window"),
        ("max(0, now_us - window * self.period_us)", "(now_us - window * self.period_us)"),
        ("before * (self._steps - over)", "before * self._steps"),
        ("(2 if state.used else 1)", "2"),
        ("return -(-self.period_us // self.step_us)", "return self.period_us // self.step_us"),
    ],
    CORE + "sliding_log.py": [
        ("state.units[-1] - now_us <= STALE_US", "state.units[-1] - now_us < STALE_US"),
        ("or not state.units or state.units[-1] - now_us", "or state.units[-1] - now_us"),
        ("return Log((now_us,) * self.amount)", "return Log((now_us,))"),
        ("last = self.size - 1 - self.amount", "last = self.size - self.amount"),
        ("or last < 0:", "or last <= 0:"),
        ("max(now_us, units[last] + self.period_us)", "units[last] + self.period_us"),
        ("state if self.size == 0 else", "state if False else"),
        ("if by > 0:", "if by > 1:"),
        ("min(by, self.amount + 1)", "min(by, self.amount)"),
        ("now_us < state.owed_until_us:", "now_us <= state.owed_until_us:"),
        ("if state is None or now_us < state.owed_until_us:", "if state is None:"),
        ("bisect_right(state.units, granted_us)", "bisect_right(state.units, granted_us - 1)"),
        ("end == 0 or units", "units"),
        ("units[end - 1] + self.period_us <= now_us", "units[end - 1] + self.period_us < now_us"),
        ("or units[end - 1] + self.period_us <= now_us", ""),
        ("max(0, end + by)", "end + by"),
        ("+ units[end:]", ""),
        ("units[end:], state.owed_until_us)", "units[end:])"),
        ("bisect_right(units, now_us - self.period_us)", "bisect_right(units, now_us - self.period_us - 1)"),
        ("if len(state.units) == self.amount else 0", "if state.units else 0"),
        ("max(newest_us, free_us) - (-self.period_us", "newest_us - (-self.period_us"),
        ("- (-self.period_us // self.amount)", "+ (self.period_us // self.amount)"),
        (", newest_us + self.period_us)", ", newest_us + 2 * self.period_us)"),
        ("max(now_us, state.units[-1]) if state.units else now_us", "now_us"),
        ("units[-self.amount - 1] + self", "units[-self.amount] + self"),
        ("if len(units) > self.amount else 0", "if False else 0"),
        ("max(state.owed_until_us, forgotten_us", "max(0, forgotten_us"),
        ("units[-self.amount :]", "units[: self.amount]"),
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
        if _survives(tree, UNIT + REST, environment):
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
                likely = HISTORIES.format(FIRST.get(path.name, "mixtures"))
                survived = _survives(tree, [likely, *UNIT, *REST], environment)
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

"""Random histories of waitlists, run on the memory store and on the Redis store at the same times."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from redis import ResponseError

from parity.rules import Rule, rule, rules
from throttlekit import ByLatency, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.algorithms.gcra import Tat
from throttlekit._core.algorithms.sliding_log import Log
from throttlekit._core.answer import Answer, Caller, Reason, Requester, Waited
from throttlekit._core.claim import CLASS
from throttlekit._core.decide import TURN_US, Stored
from throttlekit._core.late import EARLY_US, lateness_us
from throttlekit._core.latency import Drop, Gauge
from throttlekit._core.limit.base import Limit
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit._core.storage_keys import slots_of_holder, wait_names
from throttlekit._core.wait_control import Charge
from throttlekit._core.waitlist import (
    DEAF,
    FREE_UNKNOWN,
    FUTURE_US,
    LEAD_US,
    PATIENCE_US,
    Pause,
    State,
    Waitlist,
    Wake,
)
from throttlekit.stores import Correction, Lease, Slowing, StoreClaim
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.wire import bell_of, encode_text

__all__ = ["LIMITS", "NOW_US", "BothStores", "WaitHistory", "stored_list"]

NOW_US = 1_800_000_000_000_000
MS, SECOND = 1_000, 1_000_000
LIMITS: dict[str, list[Limit]] = {
    "token-bucket": [
        TokenBucket("a", "10/s", burst=1),
        TokenBucket("a", "50/s", burst=10),
        TokenBucket("a", "1/s", burst=2),
        TokenBucket("a", "300000/s", burst=4),
        TokenBucket("a", "200/s", burst=40),
        TokenBucket("a", "7/s", burst=7),
    ],
    "leaky-bucket": [LeakyBucket("b", "7/s", queue=3), LeakyBucket("b", "40/s")],
    "fixed-window": [FixedWindow("c", "5/s"), FixedWindow("c", "20/s"), FixedWindow("c", "30/minute")],
    "sliding-window": [SlidingWindow("d", "5/s"), SlidingWindow("d", "40/s")],
    "sliding-log": [SlidingLog("e", "5/s"), SlidingLog("e", "300/s")],
    "concurrency": [Concurrency("f", 2, lease=30), Concurrency("f", 12, lease=30)],
    "adaptive-concurrency": [
        Concurrency("g", 8, lease=30, adapt=ByLatency(2)),
        Concurrency("g", 20, lease=30, adapt=ByLatency(1, timeout=0.5)),
        Concurrency("g", 2, lease=30, adapt=ByLatency(1)),
    ],
}
_NEVER_EXPIRES = -1
"""PTTL of a key that never expires."""
GAUGE = ("slots", "base", "sum", "spread", "holds", "skip", "peak", "rounds", "fell")
OWNERS = ("p1", "p10", "p2", "host.example:1234.0f", "q", "~", "~50", "~2100")
ODD = ("{}", "{}", "{}", "j|{}", "é {}\n", "{}|1|x", "%00\x00{}", "\ud800{}", "o{}}}", "12 34;{};", "{}" * 30)

# Code before each script: keys expire an hour later, for tests on a busy machine.
LONGER = """
local given = redis
local redis = {sha1hex = redis.sha1hex, call = function(...)
  local words = {...}
  for i = 1, #words do
    if type(words[i]) ~= 'string' then error('not text: ' .. tostring(words[i])) end
  end
  local at = words[1] == 'PEXPIRE' and 3 or words[1] == 'SET' and 5
  if at and words[at] then words[at] = string.format('%.0f', words[at] + 3600000) end
  return given.call((unpack or table.unpack)(words))
end}
"""


def _read(claim: StoreClaim, value: Any, expected: object) -> object:
    """Return the value of a key: a ring as its log with the oldest unit first, and a sorted set as its holders."""
    if isinstance(value, list):
        words = value[0].decode().split("\n")
        pairs = list(zip(words[::2], [int(float(score)) for score in words[1::2]], strict=True))
        known = {name: -number for name, number in pairs if name[:1] == ":"}
        leases = tuple(pair for pair in pairs if pair[0][:1] != ":")
        assert known.get(":extra", 0) == sum(slots_of_holder(holder) - 1 for holder, _ in leases), pairs
        gauge = Gauge(*(known.get(":" + name, 0) for name in GAUGE)) if ":slots" in known else None
        return Holders(leases, *(known.get(name, 0) for name in (":mean", ":granted", ":lease")), gauge)
    if value is None or not isinstance(expected, Log):
        return value
    head, owed_until_us, *ring = (int.from_bytes(value[i : i + 7], "big") for i in range(0, len(value), 7))
    head %= int(claim.algorithm.params[0])
    return Log(tuple(at_us for at_us in ring[head:] + ring[:head] if at_us), owed_until_us)


def written_as(value: object) -> object:
    """
    Return how a key stores *value*. Logs and holders are returned unchanged: a log's ring may begin anywhere, and a
    sorted set has no text.
    """
    if value is None or isinstance(value, (Log, Holders)):
        return value
    if isinstance(value, Tat):
        value = (value.at_us, value.debt_us, *value.measure) if value.measure else value[: 2 if value.debt_us else 1]
    assert isinstance(value, tuple)
    return " ".join(str(number) for number in value).encode()


class _Longer(RedisStore):
    """The Redis store, with scripts whose keys expire later, and with epochs that the test sets."""

    epoch = "ab"

    def _run(self, script: Any, arguments: list[Any]) -> Any:
        return self._command("EVAL", LONGER + script.text, *arguments)

    def _decide(self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, attempt: str) -> Any:
        return self._run(*self._question(claims, requester, now_us, attempt))

    def _epoch(self) -> str:
        return self.epoch


class _Memory(MemoryStore):
    epoch = "ab"

    def _epoch(self) -> str:
        return self.epoch


class BothStores:
    """
    Calls methods of a memory store and a Redis store, and compares what they return, publish and store.

    Attributes:
        seen: How often each case of interest was stored or returned.
    """

    def __init__(self, url: str, client: Any) -> None:
        self.memory, self.redis = _Memory(), _Longer(url, timeout=20)
        self._client = client
        self._bells = client.pubsub()
        self._bells.subscribe("nobody")  # a connection without a subscription receives nothing, not even a pong
        self._published: list[tuple[str, str, tuple[Wake, ...]]] = []
        self._stop_functions: dict[str, Any] = {}
        self._known: dict[str, tuple[StoreClaim, Any]] = {}
        self.seen = Counter[str]()
        self.steps = 0

    def close(self) -> None:
        self._bells.close()
        self.redis.close()

    def listen(self, owner: str) -> None:
        if owner in self._stop_functions:
            return

        def on_wakes(bucket: str, wakes: Sequence[Wake]) -> None:
            self._published.append((owner, bucket, tuple(wakes)))

        self._stop_functions[owner] = self.memory.listen(owner, on_wakes)
        self._bells.subscribe(f"tk1:{owner}")
        self._read_bells()

    def stop_listening(self, owner: str) -> None:
        if owner in self._stop_functions:
            self._stop_functions.pop(owner)()
            self._bells.unsubscribe(f"tk1:{owner}")
            self._read_bells()

    def _read_bells(self) -> list[tuple[str, str, tuple[Wake, ...]]]:
        """Return all wake messages until now: those that are received before the reply to a ping."""
        found: list[tuple[str, str, tuple[Wake, ...]]] = []
        self._bells.ping("end")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            message = self._bells.get_message(timeout=1)  # None from time to time, before the time-out
            if message is not None and message["type"] == "pong":
                return found
            if message is not None and message["type"] == "message":
                bucket, wakes = bell_of(message["data"])
                found.append((message["channel"].decode()[4:], bucket, tuple(wakes)))
        raise AssertionError("the server does not reply")

    def expire(self, now_us: int) -> None:
        """Delete the keys that have expired in the memory store."""
        values = self.memory._values  # pyright: ignore[reportPrivateUsage]
        gone = [name for name, (_, expires_us) in values.items() if expires_us <= now_us]
        for name in gone:
            del values[name]
            if (known := next((each for each in self._known if wait_names(each)[0] == name), None)) is not None:
                self._client.delete(*wait_names(known))
            else:
                self._client.delete(name)

    def run(
        self, verb: str, claims: Sequence[StoreClaim], now_us: int, *args: Any, what: Any = None, **options: Any
    ) -> Any:
        """
        Call the method *verb* of both stores at *now_us*.

        Args:
            what: The first argument, if it is not *claims*.
        """
        self.steps += 1
        self.memory.epoch = self.redis.epoch = f"{self.steps:x}"
        self._known |= {claim.bucket: (claim, None) for claim in claims}
        self.expire(now_us)
        answers: list[Any] = []
        for store in (self.memory, self.redis):
            first: Any = claims[0] if verb == "look" else claims
            first = first if what is None else what
            answers.append(getattr(store, verb)(first, *args, now_us=now_us, **options))
        assert answers[0] == answers[1], f"\nmemory {answers[0]}\nredis  {answers[1]}"
        bells = self._compare_bells()
        self.check(claims)
        if isinstance(answers[0], Answer):
            self.seen[answers[0].reason.value] += 1
            self.seen["early"] += answers[0].reason is Reason.ALLOWED and answers[0].retry_us > now_us
            self.seen["own wakes"] += len(answers[0].wakes)
            self.seen["positions"] += any(answers[0].positions)
            waited = answers[0].waited
            self.seen["waited"] += waited is not None and waited.claim is not None
            self.seen["waited, list unknown"] += waited is not None and waited.claim is None
        if verb not in ("decide", "look", "forget"):
            self.seen[verb] += 1
            self.seen[f"bells of {verb}"] += bells
        return answers[0]

    def _compare_bells(self) -> int:
        """Compare the wake messages. Return how many there were."""
        published, self._published = self._published, []
        assert sorted(published, key=repr) == sorted(self._read_bells(), key=repr)
        self.seen["bells"] += len(published)
        return len(published)

    def clear(self, claim: StoreClaim, now_us: int) -> None:
        """Remove all entries of a list."""
        self.expire(now_us)
        found = [store.clear_waitlists([claim.bucket]) for store in (self.memory, self.redis)]
        assert found[0] == found[1]
        self.check([claim])

    def list_waiting(self, claim: StoreClaim, now_us: int, most: int) -> None:
        """Compare what both stores return for a waitlist."""
        self.expire(now_us)
        found = [store.list_waiting(claim, most) for store in (self.memory, self.redis)]
        assert found[0] == found[1]
        self.seen["listed"] += len(found[0].first) > 1

    def pause(self, claim: StoreClaim, now_us: int, for_us: int | None, *, emptied: bool) -> None:
        """Pause a waitlist."""
        self.run("pause", [claim], now_us, for_us, emptied=emptied)

    def _stored(self, claim: StoreClaim) -> Stored:
        values = self.memory._values  # pyright: ignore[reportPrivateUsage]
        taken, waitlist = (values.get(name, (None, 0))[0] for name in (claim.bucket, wait_names(claim.bucket)[0]))
        return Stored(taken, waitlist)  # type: ignore[arg-type]

    def read_state(self, bucket: str) -> object:
        """Return the state of a bucket, as the memory store keeps it."""
        values = self.memory._values  # pyright: ignore[reportPrivateUsage]
        return values.get(bucket, (None, 0))[0]

    def waitlist(self, claim: StoreClaim) -> Waitlist:
        return self._stored(claim).waitlist or Waitlist()

    def check(self, claims: Sequence[StoreClaim]) -> None:
        """Compare what is stored for *claims*."""
        for claim in claims:
            stored = self._stored(claim)
            found = stored_list(self._client, claim.bucket)
            expected = _plain(stored.waitlist or Waitlist())
            assert found == expected, f"{claim.bucket}\nmemory {expected}\nredis  {found}"
            expected_taken = written_as(stored.taken)
            reads = (
                self._client.pipeline(transaction=False).get(claim.bucket).zrange(claim.bucket, 0, -1, withscores=True)
            )
            value, pairs = reads.execute(raise_on_error=False)  # one of them is of the wrong type
            if isinstance(value, ResponseError):
                value = [b"\n".join(b"%b\n%d" % (name, int(score)) for name, score in pairs)]
            found_taken = _read(claim, value, stored.taken)
            assert found_taken == expected_taken, f"{claim.bucket}\nmemory {expected_taken}\nredis  {found_taken}"
            if stored.waitlist is not None:
                self._count(stored.waitlist)
        keys = list(self._client.scan_iter(match="tk1:*", count=1000))
        expiries = self._client.pipeline(transaction=False)
        for key in keys:
            expiries.pttl(key)
        assert _NEVER_EXPIRES not in (left := expiries.execute()), (keys, left)

    def _count(self, waitlist: Waitlist) -> None:
        entries = waitlist.entries.values()
        self.seen["waiting"] += any(each.state is State.WAITING for each in entries)
        self.seen["woken"] += any(each.state is State.WOKEN for each in entries)
        self.seen["trial wakes"] += any(each.state is State.WOKEN and not each.counts for each in entries)
        self.seen["kept late"] += any(each.counts and lateness_us(each.owner) > 0 for each in entries)
        self.seen["kept"] += any(each.state is State.KEPT for each in entries)
        self.seen["turns"] += bool(waitlist.turns)
        self.seen["deaf"] += any(owner.free == DEAF for owner in waitlist.owners.values())
        self.seen["tags"] += bool(waitlist.finishes)
        self.seen["paused"] += waitlist.pause.until_us > 0
        self.seen["slow"] += waitlist.slow is not None
        self.seen["workflows"] += any(each.workflow and each.state is State.WAITING for each in entries)


def _plain(waitlist: Waitlist) -> dict[str, Any]:
    """Return a waitlist as plain values, without values that have no meaning in its state."""
    return {
        "epoch": waitlist.epoch,
        "numbers": (waitlist.number, waitlist.v, waitlist.look_us) if waitlist.epoch else None,
        "retry": waitlist.next_retry_us,
        "pause": waitlist.pause,
        "slow": tuple(waitlist.slow or ()),
        "tags": waitlist.finishes,
        "entries": {
            each.id: (
                each.state.value,
                each.owner,
                tuple(each.place),
                each.cost,
                each.at_us,
                each.until_us,
                each.counts,
                each.workflow,
                each.tenant,
                each.step,
                each.since_us,
                each.denials,
            )
            for each in waitlist.entries.values()
        },
        "ends": waitlist.ends,
        "turns": waitlist.turns,
        "owners": {
            name: (owner.free, [(tuple(place), id) for place, id in owner.waiting], list(owner.woken))
            for name, owner in waitlist.owners.items()
        },
    }


_STATES = {"o": "waiting", "w": "woken", "p": "woken", "k": "kept"}
_NUMBERS = ("retry", "n", "v", "look", "renewed", "paused", "from", "emptied")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def _place(text: str) -> tuple[int, int, int]:
    return int(text[:2]), int(text[2:18]), int(text[18:30])


def stored_list(client: Any, bucket: str) -> dict[str, Any]:
    """Return a stored waitlist in the format of `_plain`. Check every member of the order."""
    record_name, order_name, entries_name, tags_name = wait_names(bucket)
    reads = client.pipeline(transaction=False).hgetall(record_name).zrange(order_name, 0, -1).hgetall(entries_name)
    fields, members, texts, scores = reads.zrange(tags_name, 0, -1, withscores=True).execute()
    record = {_text(name): _text(value) for name, value in fields.items()}
    free = {name[1:]: int(text) for name, text in record.items() if name[0] == "p" and name != "paused"}
    numbers = {name: int(text) for name, text in record.items() if name in _NUMBERS}
    assert len(record) == len(free) + len(numbers) + ("epoch" in record) + ("slow" in record), record
    order = [_text(member) for member in members]
    entries: dict[str, tuple[Any, ...]] = {}
    for id, value in texts.items():
        state, owner, place, cost, at, until, step, since, denials, workflow, tenant = _text(value).split(" ", 10)
        until_us = None if until == "-" else int(until)
        entries[_text(id)] = (
            _STATES[state],
            owner,
            _place(place),
            int(cost),
            int(at),
            until_us,
            state == "w",
            workflow,
            tenant,
            int(step),
            int(since),
            int(denials),
        )
    owners: dict[str, tuple[int, list[Any], list[Any]]] = {}
    for name in {entry[1] for entry in entries.values() if entry[0] != "kept"}:
        own = [member[len(name) + 2 :] for member in order if member.startswith(f"o{name}|")]
        woken = [member[len(name) + 2 :] for member in order if member.startswith(f"w{name}|")]
        owners[name] = (
            free.pop(name) if own else FREE_UNKNOWN,
            [(_place(each), each[31:]) for each in own],
            [(int(each[:16]), each[17:]) for each in woken],
        )
    assert not free, free
    ends = [(int(member[1:17]), member[18:]) for member in order if member[0] == "x"]
    turns = sorted(
        (int(member[1:17]), member.split("|", 1)[1]) for member in order if member[0] == "k" and member[17] == "t"
    )
    _check_members(order, entries, owners)
    assert bool(entries) == bool(order) == ("epoch" in record), (entries, order, record)
    tags = {_text(name): int(score) for name, score in scores}
    return {
        "epoch": record.get("epoch", ""),
        "numbers": (numbers.get("n", 0), numbers.get("v", 1), numbers.get("look", 0)) if "epoch" in record else None,
        "retry": numbers.get("retry", 0),
        "pause": Pause(numbers.get("paused", 0), numbers.get("from", 0), numbers.get("emptied", 0)),
        "slow": tuple(map(int, record.get("slow", "").split())),
        "tags": tags,
        "entries": entries,
        "ends": ends,
        "turns": turns,
        "owners": owners,
    }


def _check_members(order: Sequence[str], entries: Any, owners: Any) -> None:
    """Check that the order has exactly the members that follow from the entries and their owners."""
    expected: list[str] = []
    for id, (state, owner, place, cost, at, until, counts, workflow, *_) in entries.items():
        text = f"{place[0]:02}{place[1]:016}{place[2]:012}"
        if state == "waiting":
            expected.append(f"o{owner}|{text}|{id}")
            expected += [f"g{workflow}|{text}|{id}"] if workflow else []
        if state == "woken":
            expected.append(f"w{owner}|{at:016}|{id}")
            late_us = lateness_us(owner)
            for_us = min(late_us, FUTURE_US) or PATIENCE_US
            expected += [f"k{at + for_us:016}{'l' if late_us else 'w'}{cost}|{id}"] if counts else []
        expected += [f"x{until:016}|{id}"] if until is not None else []
        expected += [f"k{at:016}t{cost}|{id}"] if state == "kept" and at else []
    for name, (_, waiting, _) in owners.items():
        if waiting:
            (rank, tag, number), id = waiting[0]
            expected.append(f"h{rank:02}{tag:016}{number:012}{name}|{id}")
    assert sorted(order, key=encode_text) == sorted(expected, key=encode_text)


class _Bound(NamedTuple):
    rule: Rule
    shared: bool
    queue: int | None


@dataclass(eq=False)
class _Job:
    id: str
    owner: str
    early_us: int | None
    claims: list[StoreClaim]
    again: bool
    requests: int = 0
    leases: list[Lease] = field(default_factory=list)


class WaitHistory:
    """Makes random calls for some limits."""

    def __init__(self, rnd: random.Random, algorithms: Sequence[str], stores: BothStores) -> None:
        self._rnd, self._stores = rnd, stores
        self._now_us = NOW_US + rnd.randrange(10**12)
        self._limits: list[_Bound] = []
        for number in range(rnd.choice([1, 1, 2, 3])):
            kinds = LIMITS[rnd.choice(algorithms)]
            first = rule(rnd.choice(kinds), number=number)
            defined = [first]
            other = rnd.choice(kinds)
            if rnd.random() < 0.3 and other.count_with(first.limit) and not isinstance(other, Concurrency):
                defined.append(replace(first, limit=other))
            self._add(defined)
        self._steps_us = [0, 0, 1, 900, 5_000, 20_000, 60_000, 150_000, 260_000, 400_000]
        if rnd.random() < 0.3:  # limits of any rate and period
            self._limits = []
            chosen = rules(rnd, algorithms, self._now_us)
            for bucket in dict.fromkeys(each.bucket for each in chosen):
                self._add([each for each in chosen if each.bucket == bucket])
            for each in chosen:
                own = [each.step_us, 2 * each.step_us, each.span_us, each.span_us - 1]
                self._steps_us += [min(step_us, 400 * 86_400 * SECOND) for step_us in own]
        self._owners = rnd.sample(OWNERS, rnd.randint(1, len(OWNERS)))
        self._jobs: list[_Job] = []
        self._running: list[_Job] = []
        self._wide = rnd.random() < 0.2
        self._has_short_steps, self._woken_weight = rnd.random() < 0.4, rnd.choice([1, 6, 12])

    def run(self, steps: int) -> None:
        verbs = {
            self._request_new: 10,
            self._request_again: 4,
            self._request_woken: self._woken_weight,
            self._look: 6,
            self._forget: 1,
            self._wake: 1,
            self._pause: 0.4,
            self._slow: 0.3,
            self._end: 4,
            self._settle: 0.3,
            self._bell: 0.5,
            self._leave: 0.5,
            self._where: 1,
            self._list: 0.5,
            self._clear: 0.1,
        }
        for _ in range(steps):
            steps_us = [*self._steps_us]
            if self._has_short_steps:
                steps_us += [0, 900, 5_000, 20_000, 60_000, 150_000, -30_000]
            if self._rnd.random() < 0.1:
                steps_us += [1_100_000, 61 * SECOND, -SECOND, -100_000, -61 * SECOND, 700 * SECOND]
            self._now_us += self._rnd.choice(steps_us)
            (verb,) = self._rnd.choices([*verbs], [*verbs.values()])
            verb()

    def _add(self, defined: Sequence[Rule]) -> None:
        """Add definitions of one limit: the first one, and others that use the same state."""
        queue, shared = self._rnd.choice([None, None, None, 0, 3, 8]), self._rnd.random() < 0.5
        self._limits += [_Bound(each, shared, queue) for each in defined]

    def _owner(self) -> str:
        return self._rnd.choice(self._owners)

    def _claims(self, id: str) -> list[StoreClaim]:
        buckets = dict.fromkeys(each.rule.bucket for each in self._limits)
        chosen = self._rnd.sample([*buckets], self._rnd.randint(1, len(buckets)))
        return [
            self._claim(self._rnd.choice([each for each in self._limits if each.rule.bucket == bucket]), id)
            for bucket in chosen
        ]

    def _claim(self, of: _Bound, id: str, cost: int | None = None) -> StoreClaim:
        rnd = self._rnd
        if cost is None:
            cost = rnd.choice([1, 1, 1, 0, rnd.randint(1, min(5, of.rule.limit.capacity))])
        holder = f"job{len(self._jobs)}x{rnd.randrange(10**9)}#0"
        if isinstance(of.rule.limit, Concurrency) and rnd.random() < 0.3:
            holder = f"w{rnd.randrange(3)}#"
        tenant = rnd.choice(["u", "v", "w w", "ü"]) if of.shared and rnd.random() < 0.8 else ""
        step = -(-cost * 1_000_000 // rnd.choice([1, 2, 7])) if tenant else 0
        if self._wide and step and rnd.random() < 0.05:
            step = 10**18
        priority_offset = rnd.choice([0, 0, 0, 1, 15]) * CLASS
        return StoreClaim(of.rule.bucket, of.rule.bind(cost, holder), cost, of.queue, tenant, step, priority_offset)

    def _unit(self) -> StoreClaim:
        return self._claim(self._rnd.choice(self._limits), "", 1)

    def _request(self, job: _Job, caller: Caller, *, owner: str | None = None) -> None:
        rnd = self._rnd
        attempt = rnd.choice(["", f"{job.requests}", f"{job.requests}", f"{max(0, job.requests - 1)}"])
        job.requests += 1
        wait = rnd.choice([None, None, None, 0, 50_000, 3 * SECOND])
        id = "" if caller is Caller.WITHOUT_JOB and rnd.random() < 0.9 else job.id
        waited = Waited(*rnd.choice([(0, 0), (0, 0), (0, 1), (SECOND, 2)]))
        requester = Requester(caller, id, owner or job.owner, rnd.choice([0, 0, 1, 3, 8]), wait, waited, job.early_us)
        answer = self._stores.run("decide", job.claims, self._now_us, requester, attempt=attempt if id else "")
        if answer.reason is Reason.ALLOWED and caller is not Caller.PEEK:
            if rnd.random() < 0.15 and answer.now_us == self._now_us:
                self._return(job, answer, requester if rnd.random() < 0.8 else requester._replace(job=""))
                return
            job.leases = [
                Lease(each.bucket, each.algorithm, self._now_us)
                for each in job.claims
                if each.algorithm.holder and each.algorithm.size
            ]
            self._running.append(job)
            if job in self._jobs and rnd.random() < 0.95:
                self._jobs.remove(job)

    def _request_new(self) -> None:
        rnd = self._rnd
        if len(self._jobs) > 40:
            self._request_woken()
            return
        number = self._stores.steps
        id = rnd.choice(ODD).format(*[number] * 30)
        early_us = rnd.choice([None] * 8 + [LEAD_US, EARLY_US, 0])
        job = _Job(id, self._owner(), early_us, self._claims(id), rnd.random() < 0.1)
        caller = rnd.choice([Caller.JOB] * 8 + [Caller.WITHOUT_JOB, Caller.PEEK])
        if caller is Caller.JOB:
            self._jobs.append(job)
            caller = Caller.AGAIN if job.again else caller
        self._request(job, caller)

    def _request_again(self) -> None:
        if self._jobs:
            job = self._rnd.choice(self._jobs)
            owner = self._owner() if self._rnd.random() < 0.1 else None
            caller = self._rnd.choice([Caller.JOB] * 6 + [Caller.AGAIN, Caller.PEEK, Caller.WITHOUT_JOB])
            self._request(job, caller, owner=owner)

    def _request_woken(self) -> None:
        woken = [job for job in self._jobs if any(self._is_woken(claim, job.id) for claim in job.claims)]
        if not woken:
            self._request_new() if len(self._jobs) < 30 else self._look()
            return
        job = self._rnd.choice(woken)
        at = [
            self._stores.waitlist(claim).entries[job.id].at_us for claim in job.claims if self._is_woken(claim, job.id)
        ]
        if self._rnd.random() < 0.6 and 0 < at[0] - self._now_us < SECOND:
            self._now_us = at[0] - self._rnd.choice([0, 0, 1_000, 5_000, 6_000])
        self._request(job, Caller.AGAIN if job.again else Caller.JOB)

    def _is_woken(self, claim: StoreClaim, id: str) -> bool:
        entry = self._stores.waitlist(claim).entries.get(id)
        return entry is not None and entry.state is State.WOKEN

    def _ids(self, most: int) -> list[str]:
        ids = [job.id for job in self._rnd.sample(self._jobs, min(len(self._jobs), self._rnd.randint(0, most)))]
        return ids + (["unknown"] if self._rnd.random() < 0.2 else [])

    def _look(self) -> None:
        owner = self._owner()
        free = self._rnd.choice([0, 1, 2, 4, 8, 999_999])
        self._stores.run("look", [self._unit()], self._now_us, owner, free, self._ids(8))

    def _forget(self) -> None:
        ids = self._ids(3)
        claims = [self._claim(each, "", 1) for each in {each.rule.bucket: each for each in self._limits}.values()]
        owner, keep = self._rnd.choice(["", self._owner()]), self._rnd.random() < 0.3
        self._stores.run("forget", claims, self._now_us, ids, owner, keep=keep)
        if not keep and self._rnd.random() < 0.7:
            self._jobs = [job for job in self._jobs if job.id not in ids]

    def _wake(self) -> None:
        self._stores.run("forget", [self._unit()], self._now_us, ())

    def _pause(self) -> None:
        for_us = self._rnd.choice([None, 3_000, 50_000, SECOND, 3 * SECOND, 100 * SECOND])
        self._stores.pause(self._unit(), self._now_us, for_us, emptied=self._rnd.random() < 0.5)

    def _slow(self) -> None:
        rnd = self._rnd
        granted_us = rnd.choice([None, None, self._now_us - rnd.choice([1, SECOND, 90 * SECOND])])
        refusal = Refusal(granted_us, rnd.choice([SECOND, 60 * SECOND]), rnd.choice([50_000, 50_000, 800_000]))
        why = rnd.choice([refusal, Remaining(rnd.choice([0, 3]), rnd.choice([0, 5 * SECOND, 5 * SECOND]))])
        claim = self._unit()
        if claim.algorithm.code == "a" and rnd.random() < 0.8:
            why = Drop(rnd.choice([None, self._now_us - 50_000, self._now_us]))
        self._stores.run("slow", [claim], self._now_us, what=[Slowing(claim, why)])

    def _end(self) -> None:
        if not self._running:
            return
        job = self._running.pop(self._rnd.randrange(len(self._running)))
        if not job.leases:
            return
        self._stores.run("release", job.claims, self._now_us, what=job.leases)

    def _settle(self) -> None:
        claim = self._unit()
        by = self._rnd.choice([-1, 1, 2, 40]) * claim.algorithm.size
        granted_us = self._now_us - self._rnd.choice([0, 1_000, 3_600 * SECOND])
        correction = Correction(claim.bucket, claim.algorithm, granted_us, by)
        if claim.algorithm.holder:
            return
        self._stores.run("settle", [claim], self._now_us, what=[correction])

    def _leave(self) -> None:
        if self._jobs:
            job = self._jobs.pop(self._rnd.randrange(len(self._jobs)))
            self._stores.run("forget", job.claims, self._now_us, [job.id])

    def _where(self) -> None:
        if self._jobs:
            job = self._rnd.choice(self._jobs)
            found = self._stores.run("where", job.claims, self._now_us, job.id)
            self._stores.seen["found"] += found is not None

    def _list(self) -> None:
        self._stores.list_waiting(self._unit(), self._now_us, self._rnd.choice([0, 1, 3, 40]))

    def _clear(self) -> None:
        self._stores.clear(self._unit(), self._now_us)

    def _return(self, job: _Job, answer: Answer, requester: Requester) -> None:
        """Return the granted units, as if another store had denied the job."""
        rnd = self._rnd
        positions, turns = answer.positions or (None,) * len(job.claims), [None, 0, TURN_US]
        charges = [
            Charge(claim, answer.now_us, use.full_us, position and position.place, position and rnd.choice(turns))
            for claim, use, position in zip(job.claims, answer.uses, positions, strict=True)
            if use is not None
        ]
        if rnd.random() < 0.1:
            charges = [Charge(claim) for claim in job.claims]
        self._now_us += rnd.choice([0, 0, 1_000, 50_000, SECOND])
        if rnd.random() < 0.3:  # another copy of the message makes a request in between, perhaps at another rate
            limits = {each.rule.bucket: each for each in rnd.sample(self._limits, len(self._limits))}
            claims = [self._claim(limits[each.bucket], job.id) for each in job.claims]
            self._stores.run("decide", rnd.choice([job.claims, claims]), self._now_us, requester)
        self._stores.run("return_units", job.claims, self._now_us, requester, what=charges)

    def _bell(self) -> None:
        owner = self._owner()
        (self._stores.listen if self._rnd.random() < 0.6 else self._stores.stop_listening)(owner)

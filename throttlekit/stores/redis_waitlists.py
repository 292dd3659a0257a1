"""The stores on Redis servers with waitlists."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from typing import Any

import redis
from redis import exceptions

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Asker, Look
from throttlekit._core.latency import Drop
from throttlekit._core.storage_keys import bucket_of, granted_name, is_line, is_waitlist, line_name, wait_names
from throttlekit._core.verdict import Verdict
from throttlekit._core.wait_control import Charge, Waiting, Where
from throttlekit._core.waitlist import Wake
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Correction, Lease, Request, Slowing, acquire_or_error
from throttlekit.stores.bells import Listener
from throttlekit.stores.cluster import RedisClusterStore, by_hash_slot
from throttlekit.stores.errors import STORE_ERRORS
from throttlekit.stores.from_client import ClusterOfClient, ServerOfClient, store_of_client
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.sentinel import RedisSentinelStore
from throttlekit.stores.wait_parts import WaitPart, ask_in_parts
from throttlekit.stores.waitlist_wire import (
    answer_of,
    ask_frame,
    asked_verdict_of,
    asker_arguments,
    charge_arguments,
    encoded,
    look_of,
    wait_keys,
    waiting_of,
    where_of,
)
from throttlekit.stores.waitlists import (
    MOST_LISTED,
    batches,
    binding_where,
    unit_of,
    verdict_of_answer,
    with_waitlists,
)
from throttlekit.stores.wire import Script, claims_arguments, script_for, slowing_row

__all__ = [
    "WaitlistClusterStore", "WaitlistRedisStore", "WaitlistSentinelStore",
    "waitlist_store_of_client",
]  # fmt: skip

_MOST_IDS = 50
"""So many entries of waitlists one script moves or removes: it takes up to 60 µs for each."""

_MOST_LISTS = 4
"""On so many lists one script wakes jobs after a change: 16 on each."""


class WaitlistRedisStore(RedisStore):
    """
    A Redis store whose jobs wait on waitlists: one script for each of the verbs of `SupportsWaitlists`.

    It comes first among the bases of a store of another kind. Where that has several servers, the claims of one call of
    these methods lie on one of them.
    """

    # Questions

    _is_cluster = False
    """Whether scripts run on a node of a cluster."""

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        script, arguments = self._question(claims, asker, now_us, attempt)
        reply = self._call(claims[0].bucket, lambda: self._run(script, arguments))
        return self._call(claims[0].bucket, lambda: answer_of(reply))

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        if request.asker is None:
            return super().acquire(request, now_us)
        if self._is_cluster:
            return verdict_of_answer(self.ask(request.claims, request.asker, now_us, attempt=request.attempt))
        try:
            return asked_verdict_of(self._decide_asked(request, request.asker, now_us))
        except STORE_ERRORS as error:
            raise self._failed(request.claims[0].bucket, error) from error

    def _decide_asked(self, request: Request, asker: Asker, now_us: int | None) -> Any:
        claims, attempt, now = request.claims, request.attempt, _or_empty(now_us)
        epoch = self._epoch() if asker.job else "0"
        try:
            return self._pool.execute(ask_frame(claims, asker, now, epoch, attempt, cluster=False))
        except exceptions.NoScriptError:  # the server ran nothing, so this cannot charge twice
            script, arguments = self._question(claims, asker, now_us, attempt)
            return self._command("EVAL", script.text, *arguments)

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        askers = [each.asker for each in requests if each.asker is not None]
        if not askers:
            return super().acquire_all(requests)
        if len(askers) < len(requests):
            return [acquire_or_error(self, request) for request in requests]
        questions = [
            self._question(each.claims, asker, None, each.attempt) for each, asker in zip(requests, askers, strict=True)
        ]
        commands = [("EVALSHA", script.sha, *arguments) for script, arguments in questions]
        try:
            replies = self._call(requests[0].claims[0].bucket, lambda: self._send_all(commands))
        except ConfigurationError:  # a text of one request cannot be encoded, and nothing was sent
            return [acquire_or_error(self, request) for request in requests]
        return [self._verdict_of_reply(*each) for each in zip(requests, questions, replies, strict=True)]

    def return_units(self, charges: Sequence[Charge], asker: Asker, now_us: int | None = None) -> None:
        claims = [each.claim for each in charges]
        who = [
            asker.caller.value,
            encoded(asker.job),
            encoded(asker.owner),
            self._epoch(),
            asker.waited_us,
            asker.denials,
        ]
        rows = chain.from_iterable(map(charge_arguments, charges))
        self._run_wait("wait_return", claims, [_or_empty(now_us), len(claims), *who], rows)

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None, *,
        near: bool = False,
    ) -> Look:  # fmt: skip
        head = [_or_empty(now_us), encoded(owner), f"{max(0, free)} {near:d}"]
        reply = self._run_wait("wait_look", [claim], head, map(encoded, ids))
        return self._call(claim.bucket, lambda: look_of(reply))

    def own(self, claim: StoreClaim, owner: str, ids: Sequence[str], now_us: int | None = None) -> Look:
        looks: list[Look] = []
        for part in _parts(ids, _MOST_IDS):
            reply = self._run_wait("wait_own", [claim], [_or_empty(now_us), encoded(owner)], map(encoded, part))
            looks.append(self._call(claim.bucket, lambda: look_of(reply)))  # noqa: B023
        again = tuple(chain.from_iterable(look.again for look in looks))
        in_us = min((look.look_in_us for look in looks if look.look_in_us is not None), default=None)
        return looks[-1]._replace(again=again, look_in_us=in_us)

    def forget(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str = "", now_us: int | None = None, *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        def forget(those: Sequence[StoreClaim]) -> None:
            for part in _parts(ids, max(1, _MOST_IDS // len(those))):
                head = [_or_empty(now_us), len(those), encoded(owner), "1" if keep else ""]
                self._run_wait("wait_forget", those, head, map(encoded, part))

        self._for_each_hash_slot(claims, forget)

    def wake(self, claims: Sequence[StoreClaim], now_us: int | None = None) -> None:
        self.forget(claims, (), now_us=now_us)

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        return binding_where(self._entries_of(claims, id, now_us))

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        script, order = script_for("wait_list", frozenset[str]()), wait_names(claim.bucket)[1]
        arguments = [1, order, "", min(most, MOST_LISTED)]
        return self._call(claim.bucket, lambda: waiting_of(self._run(script, arguments)))

    def listen(
        self, owner: str, heard: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        with ExitStack() as stack:
            for server in self.servers():
                client = stack.enter_context(closing(_client_of_its_own(server.connection_pool)))
                stack.callback(Listener(client, f"tk1:{owner}", heard, missed).close)
            return stack.pop_all().close

    # Changes

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._for_each_hash_slot(corrections, lambda those: self._change("settle", those, lambda each: each.by, now_us))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._for_each_hash_slot(leases, lambda those: self._change("release", those, lambda _: 0, now_us))

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        super().pause(claims, for_us, now_us, emptied=emptied)

        def pause(those: Sequence[StoreClaim]) -> None:
            for batch in batches(those, _MOST_LISTS):
                head = [_or_empty(now_us), len(batch), _or_empty(for_us), "1" if emptied else ""]
                self._run_wait("wait_pause", [unit_of(each) for each in batch], head)

        self._for_each_hash_slot(claims, pause)

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        super().slow(slowings, now_us)

        def slow(those: Sequence[Slowing]) -> None:
            for batch in batches(those, _MOST_LISTS):
                rows = chain.from_iterable(slowing_row(each)[5:] for each in batch)
                head = [_or_empty(now_us), len(batch)]
                self._run_wait("wait_slow", [unit_of(each.claim) for each in batch], head, rows)

        self._for_each_hash_slot([each for each in slowings if not isinstance(each.why, Drop)], slow)

    def reset(self, names: Sequence[str]) -> None:
        super().reset(with_waitlists(names))

    def clear_lines(self, names: Sequence[str]) -> None:
        buckets = dict.fromkeys(map(bucket_of, names))
        super().clear_lines([name for each in buckets for name in (line_name(each), wait_names(each)[0])])

    # How

    def _question(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None, attempt: str
    ) -> tuple[Script, list[Any]]:
        keys = wait_keys(claims) + ([granted_name(claims[0].bucket, asker.job)] if attempt else [])
        head = asker_arguments(asker, _or_empty(now_us), self._epoch(), attempt)
        return self._script("ask", claims), [len(keys), *keys, *head, *claims_arguments(claims)]

    def _verdict_of_reply(
        self, request: Request, question: tuple[Script, list[Any]], reply: Any
    ) -> Verdict | Exception:
        def verdict() -> Verdict:
            return asked_verdict_of(self._or_evaluated(reply, *question))

        try:
            return self._call(request.claims[0].bucket, verdict)
        except (StoreUnavailable, ConfigurationError) as error:
            return error

    def _entries_of(self, claims: Sequence[StoreClaim], id: str, now_us: int | None) -> list[Where]:
        reply = self._run_wait("wait_where", claims, [_or_empty(now_us), len(claims), encoded(id)])
        return self._call(claims[0].bucket, lambda: where_of(reply))

    def _change(
        self, verb: str, items: Sequence[Correction | Lease], by: Callable[[Any], int], now_us: int | None
    ) -> None:
        for batch in batches(items, _MOST_LISTS):
            rows = [(*each.algorithm.params, each.granted_us, by(each)) for each in batch]
            head = [_or_empty(now_us), len(batch), verb]
            self._run_wait("wait_settle", [unit_of(each) for each in batch], head, chain.from_iterable(rows))

    def _lines_among(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if is_waitlist(name)]

    def _clear(self, names: Sequence[str]) -> int:
        lines, lists = [name for name in names if is_line(name)], [name for name in names if is_waitlist(name)]
        return (super()._clear(lines) if lines else 0) + (self._clear_lists(lists) if lists else 0)

    def _clear_lists(self, names: Sequence[str]) -> int:
        keys = [each for name in names for each in wait_names(bucket_of(name))]
        cleared: int = self._run(script_for("wait_clear", frozenset[str]()), [len(keys), *keys, ""])
        return cleared

    def _run_wait(self, verb: str, claims: Sequence[StoreClaim], head: Sequence[Any], rows: Any = ()) -> Any:
        """Run the script for *verb*: its own arguments, the claims, and *rows*."""
        keys = wait_keys(claims)
        arguments = [len(keys), *keys, *head, *claims_arguments(claims), *rows]
        return self._call(claims[0].bucket, lambda: self._run(self._script(verb, claims), arguments))

    def _script(self, verb: str, claims: Sequence[StoreClaim]) -> Script:
        codes = frozenset([claim.algorithm.code for claim in claims])
        return script_for(verb, codes, cluster=self._is_cluster)

    def _epoch(self) -> str:
        return os.urandom(4).hex()


class WaitlistSentinelStore(WaitlistRedisStore, RedisSentinelStore):
    """A store behind Sentinels whose jobs wait on waitlists."""


class WaitlistClusterStore(WaitlistRedisStore, RedisClusterStore):
    """A cluster store whose jobs wait on waitlists: one call for each hash slot."""

    _is_cluster = True

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        numbers = {id(claim): number for number, claim in enumerate(claims)}
        groups = by_hash_slot(claims)
        if len(groups) == 1:
            return super().ask(claims, asker, now_us, attempt=attempt)
        parts = [WaitPart(self, [numbers[id(claim)] for claim in group]) for group in groups]
        return ask_in_parts(parts, claims, asker, now_us, attempt=attempt)

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        return [acquire_or_error(self, request) for request in requests]

    def _entries_of(self, claims: Sequence[StoreClaim], id: str, now_us: int | None) -> list[Where]:
        numbers, found = list(claims), list[Where]()
        for group in by_hash_slot(claims):
            for each in super()._entries_of(group, id, now_us):
                found.append(each._replace(claim=numbers.index(group[each.claim])))
        return found

    def _clear_lists(self, names: Sequence[str]) -> int:
        clear = super()._clear_lists
        return sum(clear([name]) for name in names)


class _WaitlistServerOfClient(WaitlistRedisStore, ServerOfClient):
    pass


class _WaitlistClusterOfClient(WaitlistClusterStore, ClusterOfClient):
    pass


def waitlist_store_of_client(client: object) -> RedisStore:
    """As `store_of_client`, with waitlists."""
    return store_of_client(client, _WaitlistServerOfClient, _WaitlistClusterOfClient)


def _client_of_its_own(pool: Any) -> Any:
    """A client with connections like those of *pool*: `close` of the store leaves them open."""
    own = redis.ConnectionPool(connection_class=pool.connection_class, **pool.connection_kwargs)
    return redis.Redis(connection_pool=own)


def _parts(ids: Sequence[str], most: int) -> list[Sequence[str]]:
    """*ids* in parts; one that is empty if there are none."""
    return [ids[first : first + most] for first in range(0, max(1, len(ids)), most)]


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number

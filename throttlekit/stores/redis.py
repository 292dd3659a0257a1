"""The store on a Redis or Valkey server: one EVALSHA per decision, by the server's clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from redis import exceptions

from throttlekit._core.answer import Answer, Look, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import granted_name, wait_names
from throttlekit._core.wait_control import Charge, Waiting, Where
from throttlekit._core.waitlist import Wake
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.base import Correction, Lease, Request, Slowing, decide_or_error
from throttlekit.stores.bells import Listener, client_of_its_own
from throttlekit.stores.errors import STORE_ERRORS
from throttlekit.stores.redis_server import RedisServer
from throttlekit.stores.waitlists import MOST_LISTED, batches, binding_where, unit_of
from throttlekit.stores.wire import (
    Script,
    answer_of,
    charge_arguments,
    claims_arguments,
    decide_frame,
    encode_text,
    look_of,
    requester_arguments,
    script_for,
    slowing_arguments,
    wait_keys,
    waiting_of,
    where_of,
)

__all__ = ["RedisStore"]

_MOST_IDS = 50
"""The most entries of waitlists that one script moves or removes. Each takes up to 60 µs."""

_MOST_LISTS = 4
"""The most waitlists on which one script wakes jobs after a change: up to 16 jobs on each."""

_SCAN_COUNT = 1000
_N = TypeVar("_N", StoreClaim, Charge, Correction, Lease, Slowing)


class RedisStore(RedisServer):
    """
    Keeps limits in a Redis or Valkey server, which several processes can share. Arguments and errors are those of
    `RedisServer`.
    """

    # Requests and queries

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        try:
            return answer_of(self._decide(claims, requester, now_us, attempt))
        except STORE_ERRORS as error:
            raise self._failed(claims[0].bucket, error) from error

    def decide_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        questions = [self._question(each.claims, each.requester, None, each.attempt) for each in requests]
        commands = [("EVALSHA", script.sha, *arguments) for script, arguments in questions]
        try:
            replies = self._call(requests[0].claims[0].bucket, lambda: self._send_all(commands))
        except ConfigurationError:  # a text of one request cannot be encoded, so nothing was sent
            return [decide_or_error(self, request) for request in requests]
        return [self._answer_of_reply(*each) for each in zip(requests, questions, replies, strict=True)]

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        who = [requester.caller.value, encode_text(requester.job), encode_text(requester.owner)]
        waited = requester.waited[:2]

        def return_units(those: Sequence[Charge]) -> None:
            head = [_or_empty(now_us), *who, self._epoch(), *waited]
            rows = chain.from_iterable(map(charge_arguments, those))
            self._run_wait("wait_return", [each.claim for each in those], head, rows)

        self._for_each_hash_slot(charges, return_units)

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None
    ) -> Look:
        head = [_or_empty(now_us), encode_text(owner), max(0, free)]
        reply = self._run_wait("wait_look", [claim], head, map(encode_text, ids))
        return self._call(claim.bucket, lambda: look_of(reply))

    def forget(
        self,
        claims: Sequence[StoreClaim],
        ids: Sequence[str],
        owner: str = "",
        now_us: int | None = None,
        *,
        keep: bool = False,
    ) -> None:
        def forget(those: Sequence[StoreClaim]) -> None:
            for part in _parts(ids, max(1, _MOST_IDS // len(those))):
                head = [_or_empty(now_us), encode_text(owner), "1" if keep else ""]
                self._run_wait("wait_forget", those, head, map(encode_text, part))

        self._for_each_hash_slot(claims, forget)

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        return binding_where(self._entries_of(claims, id, now_us))

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        script, order = script_for("wait_list", frozenset[str]()), wait_names(claim.bucket)[1]
        arguments = [1, order, "", min(most, MOST_LISTED)]
        return self._call(claim.bucket, lambda: waiting_of(self._run(script, arguments)))

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        client = client_of_its_own(self._client.connection_pool)
        return Listener(client, f"tk1:{owner}", on_wakes, missed, lambda: self._demoted_at).close

    # Changes

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._for_each_hash_slot(corrections, lambda those: self._change("settle", those, lambda each: each.by, now_us))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._for_each_hash_slot(leases, lambda those: self._change("release", those, lambda _: 0, now_us))

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        keys = [each.bucket for each in leases]
        rows = [(each.algorithm.code, *each.algorithm.params) for each in leases]
        script = script_for("renew", frozenset(row[0] for row in rows))
        arguments = [len(keys), *keys, _or_empty(now_us), *chain.from_iterable(rows)]
        replies = self._call(keys[0], lambda: self._run(script, arguments))
        return [reply == 1 for reply in replies]

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        def pause(those: Sequence[StoreClaim]) -> None:
            for batch in batches(those, _MOST_LISTS):
                head = [_or_empty(now_us), _or_empty(for_us), "1" if emptied else ""]
                self._run_wait("wait_pause", [unit_of(each) for each in batch], head)

        self._for_each_hash_slot(claims, pause)

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        def slow(those: Sequence[Slowing]) -> None:
            for batch in batches(those, _MOST_LISTS):
                rows = chain.from_iterable(map(slowing_arguments, batch))
                self._run_wait("wait_slow", [unit_of(each.claim) for each in batch], [_or_empty(now_us)], rows)

        self._for_each_hash_slot(slowings, slow)

    def reset(self, buckets: Sequence[str]) -> None:
        for each in buckets:
            self._call(each, partial(self._command, "UNLINK", each, *wait_names(each)))

    def clear_waitlists(self, buckets: Sequence[str]) -> int:
        return self._call(buckets[0], lambda: self._clear(buckets))

    def scan(self, pattern: str, cursor: str = "") -> tuple[str, list[str]]:
        return self._call(pattern, lambda: self._scan(pattern, cursor))

    # Implementation

    def _decide(self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, attempt: str) -> Any:
        epoch = self._epoch() if requester.job else "0"
        try:
            return self._pool.execute(decide_frame(claims, requester, now_us, epoch, attempt))
        except exceptions.NoScriptError:  # the server ran nothing, so this cannot charge twice
            script, arguments = self._question(claims, requester, now_us, attempt)
            return self._command("EVAL", script.text, *arguments)

    def _question(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None, attempt: str
    ) -> tuple[Script, list[Any]]:
        keys = wait_keys(claims) + ([granted_name(claims[0].bucket, requester.job)] if attempt else [])
        head = map(encode_text, requester_arguments(claims, requester, now_us, self._epoch(), attempt))
        return self._script("decide", claims), [len(keys), *keys, *head, *claims_arguments(claims)]

    def _answer_of_reply(self, request: Request, question: tuple[Script, list[Any]], reply: Any) -> Answer | Exception:
        try:
            return self._call(request.claims[0].bucket, lambda: answer_of(self._run_if_unknown(reply, *question)))
        except (StoreUnavailable, ConfigurationError) as error:
            return error

    def _entries_of(self, claims: Sequence[StoreClaim], id: str, now_us: int | None) -> list[Where]:
        reply = self._run_wait("wait_where", claims, [_or_empty(now_us), encode_text(id)])
        return self._call(claims[0].bucket, lambda: where_of(reply))

    def _change(
        self, verb: str, items: Sequence[Correction | Lease], by: Callable[[Any], int], now_us: int | None
    ) -> None:
        for batch in batches(items, _MOST_LISTS):
            rows = [(*each.algorithm.params, each.granted_us, by(each)) for each in batch]
            units = [unit_of(each) for each in batch]
            self._run_wait("wait_settle", units, [_or_empty(now_us), verb], chain.from_iterable(rows))

    def _scan(self, pattern: str, cursor: str) -> tuple[str, list[str]]:
        """Return one page of names. *cursor* consists of the number of a server and the cursor on that server."""
        number, at = map(int, (cursor or "0 0").split(" "))
        servers = self.servers()
        after, names = servers[number].scan(at, match=pattern, count=_SCAN_COUNT)
        found = [name.decode("utf-8", "replace") for name in names]
        if after == 0 and number + 1 == len(servers):
            return "", found
        return (f"{number} {after}" if after else f"{number + 1} 0"), found

    def _clear(self, buckets: Sequence[str]) -> int:
        keys = [name for each in buckets for name in wait_names(each)]
        cleared: int = self._run(script_for("wait_clear", frozenset[str]()), [len(keys), *keys, ""])
        return cleared

    def _for_each_hash_slot(self, items: Sequence[_N], call: Callable[[Sequence[_N]], None]) -> None:
        """Run *call* for each group of *items* that one script can change: on a single server, for all *items*."""
        if items:
            call(items)

    def _run_wait(self, verb: str, claims: Sequence[StoreClaim], head: Sequence[Any], rows: Any = ()) -> Any:
        """Run the script for *verb* with its own arguments *head*, the claims, and *rows*."""
        keys = wait_keys(claims)
        arguments = [len(keys), *keys, *head, *claims_arguments(claims), *rows]
        return self._call(claims[0].bucket, lambda: self._run(self._script(verb, claims), arguments))

    def _script(self, verb: str, claims: Sequence[StoreClaim]) -> Script:
        codes = frozenset([claim.algorithm.code for claim in claims])
        return script_for(verb, codes)

    def _epoch(self) -> str:
        return os.urandom(4).hex()


def _parts(ids: Sequence[str], most: int) -> list[Sequence[str]]:
    """Split *ids* into parts. Without ids, return a single empty part."""
    return [ids[first : first + most] for first in range(0, max(1, len(ids)), most)]


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number

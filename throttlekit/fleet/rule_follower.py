"""The rules in force, which this process reads from the store once a second."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit._util.log_limiter import Every
from throttlekit.errors import StoreUnavailable
from throttlekit.fleet.replies import pairs
from throttlekit.fleet.rules import RULES, Rule, Rules, as_text, parse_rule, plain, rules_of
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import SupportsCommands

__all__ = ["KEPT_MS", "RuleFollower", "read_rules"]

_log = logging.getLogger("throttlekit")

KEPT_MS = 400 * 86_400_000
"""The time for which the store keeps rules after they were last written or read."""

_READ = "return {redis.call('TIME'), redis.call('HGETALL', KEYS[1])}"
_REPLACE = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end"
_KEEP_EVERY = 3600.0
_FAILURES_BEFORE_LOG = 2


def read_rules(store: SupportsCommands) -> tuple[int, list[tuple[bytes, bytes]]]:
    """
    Return the time of the store's clock, in µs, and the stored rules, as fields and values.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    ((seconds, micros), kept) = store.commands([("EVAL", _READ, 1, RULES)])[0]
    return int(seconds) * 1_000_000 + int(micros), pairs(kept)


class RuleFollower:
    """
    Keeps the rules in force. While the store does not reply, it keeps those that it read last.

    Attributes:
        rules: The rules in force, by the limit's name or by the pattern. The dict is replaced, never changed.
        patterns: The rules whose name is a pattern.
    """

    def __init__(self, store: StoreAccess) -> None:
        self._store = store
        self._clock = time.monotonic
        self._lock = threading.Lock()  # one read at a time, so that an older reply does not replace a newer one
        renew_lock_after_fork(self, "_lock")
        self._kept: list[tuple[bytes, bytes]] = []
        self._known: list[Rule] = []
        self._ahead_us = 0
        self._kept_at = self._clock()
        self._foreign_log, self._unread_log = Every(), Every()
        self._failures = 0
        self.rules: dict[str, Rules] = {}
        self.patterns: tuple[Rule, ...] = ()
        self._listeners: list[weakref.WeakMethod[Callable[[], None]]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call *listener*, a method, after each change of the rules. Its object is referenced only weakly."""
        self._listeners = [each for each in self._listeners if each() is not None]
        self._listeners.append(weakref.WeakMethod(listener))

    def follow(self) -> None:
        """
        Read the rules in force with one command.

        Raises:
            StoreUnavailable: The store did not answer. The rules stay as they were, except those that expire.
        """
        with self._lock:
            self._follow()

    def now_us(self) -> int:
        """Estimate the store's clock, in µs."""
        return self._ahead_us + round(self._clock() * 1_000_000)

    def _follow(self) -> None:
        try:
            began = self._clock()
            now_us, kept = read_rules(self._store)
            self._ahead_us = now_us - round((began + self._clock()) / 2 * 1_000_000)
            if kept != self._kept:
                self._read(kept)
            if any(rule.since_us > now_us for rule in self._known):
                self._restart_rules(now_us)
            if kept and self._clock() - self._kept_at > _KEEP_EVERY:
                self._kept_at = self._clock()
                self._store.commands([("PEXPIRE", RULES, KEPT_MS)])
            self._failures = 0
        except StoreUnavailable as error:
            self._failures += 1
            # An error without a part is no outage, so the breaker does not log it.
            if error.part is None and self._failures > _FAILURES_BEFORE_LOG and self._unread_log.due():
                _log.warning("This process cannot read the rules of live control: %s.", error)
            raise
        finally:
            now_us = self.now_us()
            if any(rule.over(now_us) for rule in self._known):
                self._take([rule for rule in self._known if not rule.over(now_us)])

    def _read(self, kept: list[tuple[bytes, bytes]]) -> None:
        found = [parse_rule(*each) for each in kept]
        if None in found and self._foreign_log.due():
            _log.warning(
                "This process ignores %d of the fleet's rules, which another release wrote: is a newer one running?",
                found.count(None),
            )
        self._kept = kept
        self._take([rule for rule in found if rule is not None])

    def _restart_rules(self, now_us: int) -> None:
        """
        Let rules that begin in the future begin now, because the store's clock has stepped back. So no rule lasts
        longer than its operator has set. A rule that was changed in the meantime is not overwritten.
        """
        self._take([rule.at(now_us) for rule in self._known])
        commands: list[tuple[str | int, ...]] = []
        for field, value in self._kept:
            rule = parse_rule(field, value)
            if rule is not None and rule.since_us > now_us:
                dated = as_text(plain(rule.at(now_us)))
                commands.append(("EVAL", _REPLACE, 1, RULES, field.decode(), value.decode(), dated))
        self._store.commands(commands)

    def _take(self, rules: list[Rule]) -> None:
        self._known = rules
        self.patterns = tuple(rule for rule in rules if rule.is_pattern)
        self.rules = rules_of(rules)
        for each in self._listeners:
            if (listener := each()) is not None:
                listener()

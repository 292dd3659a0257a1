"""Live control: an operator changes a limit in the whole fleet, without a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.durations import seconds_within
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate
from throttlekit._core.limit.share import check_weight
from throttlekit._core.limit.template import key_text, safe_repr
from throttlekit._core.spelling import checks_spelling
from throttlekit._core.storage_keys import bucket_of, is_waitlist, patterns_of
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit._engine.rate_limited import LONGEST_PAUSE
from throttlekit._wiring import wiring_of
from throttlekit.errors import ConfigurationError
from throttlekit.fleet.changes import Change, Verb, change_of, history_commands, this_operator
from throttlekit.fleet.definitions import check_rule, names_of, tiers_of
from throttlekit.fleet.rule_follower import KEPT_MS, read_rules
from throttlekit.fleet.rules import (
    HISTORY,
    RULES,
    Rule,
    What,
    as_text,
    check_rate,
    field_of,
    parse_rule,
    plain,
    round_factor,
)
from throttlekit.limiter import Limiter
from throttlekit.stores.base import Store
from throttlekit.stores.breaker import CircuitBreaker

__all__ = ["MOST_RULES", "Control"]

MOST_RULES = 1000
"""The largest number of rules that may be in force at once."""
_LONGEST_TEXT = 1000


class Control:
    """
    Sets rules for limits, by name, in every process that uses the same store. A running process applies a rule within
    2 seconds, and a new process at its first decision. A rule is rejected if it does not fit the definition of the
    limit that the fleet has reported. A rule for a name that the fleet has not used lately is stored, because the limit
    may be deployed later; see `names`.

    Each verb returns the changes that it made, or none if there was nothing to change. The last 1 000 changes are kept:
    see `history`. If two operators change the same rule at the same time, the last change wins.

    Args:
        store: The limiter's URL, the limiter itself, or its store.
        by: The operator, as the history shows it. Default: user@host.

    Raises:
        ConfigurationError: Only this process uses the store. Call `pause` and `resume` of its limiter instead.
    """

    @checks_spelling
    def __init__(self, store: str | Store | Limiter, *, by: str | None = None) -> None:
        self._own = not isinstance(store, Limiter)
        if isinstance(store, Limiter):
            self._store = wiring_of(store).stores.shared
        else:
            self._store = CircuitBreaker(store_from(store, plugin_manager([])))
        if not self._store.shared:
            raise ConfigurationError(
                "live control needs a store that the whole fleet sees, like redis://localhost:6379/0. For a limiter "
                "in memory, call a method of the limiter instead: limiter.pause(limit, 30)"
            )
        self._by = _text("by", this_operator() if by is None else by)

    def set(
        self,
        limit: Limit | str,
        rate: str | int,
        *,
        burst: int | None = None,
        tier: str | None = None,
        duration: float | timedelta | None = None,
    ) -> Sequence[Change]:
        """
        Change the rate of a limit, or the amount of a concurrency limit.

        The limit keeps its state: the remaining units (at most the new burst), the order of waiting jobs, and a pause
        after a 429. A `SlidingLog`, and a window whose period changes, do not: they start again with their full amount
        and an empty waitlist. The slots that are held already count against a new amount.

        A rate that does not fit the limit (another kind, a burst for a limit without one, tiers but no *tier*, a cost
        that could never be admitted) is rejected, if the fleet has used the limit in the last hour or if *limit* is the
        limit itself, not its name. Otherwise the limit keeps its rate, and its processes log that.

        Args:
            rate: "50/s"; or a whole number, for a concurrency limit.
            burst: The burst of a token bucket. Default: the declared burst; if none was declared, that of the new rate.
            tier: The tier that changes. A limit with tiers needs one.
            duration: Seconds until the limit is as declared again. Default: until `unset`.

        Raises:
            ConfigurationError: A value that can never work, or 1 000 rules are in force already.
            StoreUnavailable: The store did not answer. It may be set, or not.
        """
        name = _name(limit)
        text = _text("the rate", rate).strip() if isinstance(rate, str) else ""
        amount: Any = int(text) if text.isascii() and text.isdigit() else rate
        if not isinstance(amount, (int, str)):
            raise ConfigurationError(f'the rate must be like "50/s", or a whole number, not {safe_repr(rate)}')
        if tier is not None and isinstance(limit, Limit) and limit.tiers is None:
            raise ConfigurationError(f"limit {name!r} has no tiers: leave tier= out")
        if isinstance(limit, Limit):
            change_rate(limit.tiers.get(tier or "", limit) if limit.tiers else limit, amount, burst)
        elif isinstance(amount, int):
            change_rate(Concurrency(name, 1), amount, burst)
        else:
            check_rate(name, amount, burst)
        rule = Rule(what="set", name=name, part=None if tier is None else _text("tier", tier), rate=amount, burst=burst)
        check_rule(self._store, rule)
        return self._write_rule("set", rule, duration)

    def unset(self, limit: Limit | str, *, tier: str | None = None) -> Sequence[Change]:
        """
        Restore the declared rate of a limit, for one tier, or for all tiers if none is named.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return self._end_rules("unset", "set", _name(limit), tier)

    def pause(
        self, limit: Limit | str, *, key: str | int | None = None, duration: float | timedelta | None = None
    ) -> Sequence[Change]:
        """
        Admit no job under a limit. Its jobs are deferred, uncharged, and keep their positions.

        As with `Limiter.pause`, the counts stay: the limit refills during the pause, and up to one burst follows it.
        Unlike `Limiter.pause`, this needs only the limit's name, and pauses every key at once.

        Args:
            key: The only key to pause. Default: all keys.
            duration: Seconds until it ends. Default: until `resume`.

        Raises:
            ConfigurationError: A value that can never work, or 1 000 rules are in force already.
            StoreUnavailable: The store did not answer. It may be paused, or not.
        """
        rule = Rule(what="pause", name=_name(limit), part=None if key is None else _part("the key", key))
        if key is not None:
            check_rule(self._store, rule)
        return self._write_rule("pause", rule, duration)

    def resume(self, limit: Limit | str, *, key: str | int | None = None) -> Sequence[Change]:
        """
        End a pause that `pause` began, for all keys if none is named. A pause after a 429 stays: see `reset`.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return self._end_rules("resume", "pause", _name(limit), None if key is None else key_text(key))

    def shadow(self, limit: Limit | str, *, duration: float | timedelta | None = None) -> Sequence[Change]:
        """
        Set shadow mode: the limit decides and counts, but denies no job. Every 30 seconds each process logs how many
        jobs the limit would have denied, and calls the hook `throttlekit_shadow_denied`.

        Args:
            duration: Seconds until it denies again. Default: until `enforce`.

        Raises:
            ConfigurationError: A value that can never work, or 1 000 rules are in force already.
            StoreUnavailable: The store did not answer. It may be set, or not.
        """
        return self._write_rule("shadow", Rule(what="shadow", name=_name(limit)), duration)

    def enforce(self, limit: Limit | str) -> Sequence[Change]:
        """
        End shadow mode: the limit denies jobs again.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return self._end_rules("enforce", "shadow", _name(limit), None)

    def weight(
        self, limit: Limit | str, tenant: str | int, weight: float | None, *, duration: float | timedelta | None = None
    ) -> Sequence[Change]:
        """
        Change the weight of one tenant of a shared limit. The new weight applies to jobs that begin to wait from then
        on: jobs that wait already keep their positions, and jobs of one tenant keep their order.

        Args:
            tenant: The tenant's name, as the limit's share returns it.
            weight: From 0.001 to a million. If None, the weight that the share declares is restored.
            duration: Seconds until the share's weight is restored. Default: until it is ended.

        Raises:
            ConfigurationError: A value that can never work, a limit without a share or with priorities, or 1 000 rules
                are in force already.
            StoreUnavailable: The store did not answer. It may be set, or not.
        """
        name, part = _name(limit), _part("the tenant", tenant)
        if weight is None:
            return self._end_rules("weight", "weight", name, part)
        rule = Rule(what="weight", name=name, part=part, weight=check_weight(weight))
        check_rule(self._store, rule)
        return self._write_rule("weight", rule, duration)

    def scale(
        self, limit: Limit | str, factor: float | None, *, duration: float | timedelta | None = None
    ) -> Sequence[Change]:
        """
        Reduce the rate of a limit, or of a group of limits, to a part of the rate in force: the declared rate, or that
        of `set`. For a concurrency limit, reduce its amount. The factor applies to all tenants and tiers. Counts, the
        waitlist and pauses stay, as with `set`.

        A factor never raises a rate, so every bound still holds. A rule for a limit's own name overrides patterns; of
        several patterns, the lowest factor applies. A `SlidingLog` keeps its rate, and its processes log that.

        Args:
            limit: A limit, its name, or a pattern for several names, in which each `*` matches any text: "llm-*".
            factor: From 0.001 to 1, in thousandths. If None, the rule for exactly this name or pattern ends.
            duration: Seconds until the limits have their full rate again. Default: until it is ended.

        Raises:
            ConfigurationError: A value that can never work, a limit that cannot be scaled, or 1 000 rules are in force
                already.
            StoreUnavailable: The store did not answer. It may be set, or not.
        """
        name = _name(limit)
        if factor is None:
            return self._end_rules("scale", "scale", name, None)
        rule = Rule(what="scale", name=name, factor=round_factor(factor))
        check_rule(self._store, rule)
        return self._write_rule("scale", rule, duration)

    def reset(self, limit: Limit | str, *, key: str | int | None = None) -> Sequence[Change]:
        """
        Delete the state of a limit, for one key or for all: buckets are full again, waitlists are empty, no slot is
        held, and a pause after a 429 ends. Rules of `set`, `pause` and `shadow` stay. This scans every name in the
        store, a thousand at a time, which takes seconds if there are millions.

        Raises:
            StoreUnavailable: The store did not answer. Some state may be deleted.
        """
        return self._delete_state("reset", limit, key)

    def clear_waitlist(self, limit: Limit | str, *, key: str | int | None = None) -> Sequence[Change]:
        """
        Empty the waitlists of a limit, for one key or for all. Counts, pauses and rules stay. Use it after a queue was
        purged, when the waiting jobs no longer exist: the next job is admitted as soon as there is a unit. This scans
        every name in the store, as `reset` does.

        A waiting job that still exists loses its position, and is decided like a new one.

        Raises:
            StoreUnavailable: The store did not answer. Some waitlists may be empty already.
        """
        return self._delete_state("clear-waitlist", limit, key)

    def rules(self) -> Sequence[Rule]:
        """
        Return the rules in force now.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        now_us, found = self._stored_rules()
        rules = [rule for rule in found.values() if rule is not None and not rule.over(now_us)]
        return tuple(sorted(rules, key=lambda rule: (rule.name, rule.what, rule.part or "")))

    def names(self) -> Sequence[str]:
        """
        Return the names of the limits that the fleet has used lately, sorted. If a name is missing, it is mistyped, or
        its limit was not used in the last hour.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return names_of(self._store)

    def tiers(self, limit: Limit | str) -> Sequence[str]:
        """
        Return the tiers of a limit that the fleet has used lately, sorted; empty if it has no tiers, or was not used.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        return tiers_of(self._store, _name(limit))

    def history(self, limit: Limit | str | None = None) -> Sequence[Change]:
        """
        Return the last changes of one limit, or of all, the newest first.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        name = None if limit is None else _name(limit)
        kept = self._store.commands([("LRANGE", HISTORY, 0, -1)])[0]
        changes = [change for change in map(change_of, kept) if change is not None]
        return tuple(change for change in changes if name is None or change.name == name)

    def close(self) -> None:
        """Close the store's connections, unless they belong to a limiter."""
        if self._own:
            self._store.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stored_rules(self) -> tuple[int, dict[str, Rule | None]]:
        """Return the store's clock in µs, and the stored rules by their fields; None for one of another release."""
        now_us, kept = read_rules(self._store)
        rules = {field.decode("utf-8", "replace"): parse_rule(field, value) for field, value in kept}
        return now_us, {field: rule and rule.at(now_us) for field, rule in rules.items()}

    def _delete_state(self, verb: Verb, limit: Limit | str, key: str | int | None) -> Sequence[Change]:
        name, part = _name(limit), None if key is None else key_text(key)
        forgotten = 0
        for names in self._stored_names(patterns_of(name, part)):
            if verb == "reset":
                forgotten += sum(self._store.commands([("UNLINK", each) for each in names]))
            elif buckets := [bucket_of(each) for each in names if is_waitlist(each)]:
                forgotten += self._store.clear_waitlists(buckets)
        if not forgotten:
            return ()
        now_us, _ = read_rules(self._store)
        change = Change(at=now_us / 1_000_000, by=self._by, verb=verb, name=name, part=part, forgotten=forgotten)
        self._store.commands(history_commands(change))
        return (change,)

    def _stored_names(self, patterns: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield the names in the store that match one of *patterns*, page by page."""
        for pattern in patterns:
            cursor, is_last = "", False
            while not is_last:
                cursor, names = self._store.scan(pattern, cursor)
                is_last = not cursor
                if names:
                    yield names

    def _write_rule(self, verb: Verb, rule: Rule, duration: float | timedelta | None) -> Sequence[Change]:
        duration_us = (
            0 if duration is None else round(seconds_within("duration", duration, 0, LONGEST_PAUSE) * 1_000_000)
        )
        if duration is not None and duration_us < 1:
            raise ConfigurationError(f"duration must be more than 0 seconds, not {safe_repr(duration)}")
        now_us, found = self._stored_rules()
        rule = replace(rule, since_us=now_us, until_us=now_us + duration_us if duration_us else 0, by=self._by)
        field = field_of(rule.what, rule.name, rule.part)
        before = found.pop(field, None)
        ended = [kept for kept, old in found.items() if old is not None and old.over(now_us)]
        others = len(found) - len(ended)
        if others >= MOST_RULES:
            raise ConfigurationError(
                f"{others} rules are in force already, and every process reads them all once a second: end some first. "
                "`throttlekit rules` lists them. To pause many keys at once, pause the limit"
            )
        change = Change(
            at=now_us / 1_000_000,
            by=self._by,
            verb=verb,
            name=rule.name,
            part=rule.part,
            before=None if before is None or before.over(now_us) else before,
            after=rule,
        )
        self._store.commands(
            [
                *history_commands(change),
                ("HSET", RULES, field, as_text(plain(rule))),
                ("PEXPIRE", RULES, KEPT_MS),
                *([("HDEL", RULES, *ended)] if ended else []),
            ]
        )
        return (change,)

    def _end_rules(self, verb: Verb, what: What, name: str, part: str | None) -> Sequence[Change]:
        now_us, found = self._stored_rules()
        ended = [
            rule
            for rule in found.values()
            if rule is not None
            and (rule.what, rule.name) == (what, name)
            and part in (None, rule.part)
            and not rule.over(now_us)
        ]
        changes = [
            Change(at=now_us / 1_000_000, by=self._by, verb=verb, name=name, part=rule.part, before=rule)
            for rule in ended
        ]
        if changes:
            history = [command for change in changes for command in history_commands(change)]
            fields = [field_of(what, name, rule.part) for rule in ended]
            self._store.commands([*history, ("HDEL", RULES, *fields)])
        return tuple(changes)


def _name(limit: Limit | str) -> str:
    return limit.name if isinstance(limit, Limit) else _text("the limit's name", limit)


def _text(what: str, text: object) -> str:
    if not isinstance(text, str) or not text or len(text) > _LONGEST_TEXT:
        raise ConfigurationError(
            f"{what} must be some text of at most {_LONGEST_TEXT} characters, not {safe_repr(text)}"
        )
    return text


def _part(what: str, key: str | int) -> str:
    """Return the text of *key* for a rule. It must be short, because every process reads all rules each second."""
    text = key_text(key)
    if len(text) > _LONGEST_TEXT:  # the error does not show the text, which may be a secret
        raise ConfigurationError(f"{what} has {len(text)} characters: a rule takes {_LONGEST_TEXT} at most")
    return text

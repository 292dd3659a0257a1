"""Apply the rules of live control to the limits of a call."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from throttlekit._core.answer import Waited
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit._core.limit.template import safe_repr
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim, ClaimResolver
from throttlekit._util.log_limiter import CountedEvery, Every
from throttlekit.errors import ConfigurationError, CostExceedsLimit
from throttlekit.fleet.rule_follower import RuleFollower
from throttlekit.fleet.rules import Rule, Rules, thousandths

__all__ = ["OverriddenLimits", "Overrides", "Paused"]

_log = logging.getLogger("throttlekit")

_SOONEST, _LATEST = 2.0, 60.0  # the shortest and longest time until a job retries during a pause without an end
_LONGEST_WHY = 500
_NO_RULES = Rules()
_SPREAD, _SPREAD_SHARE = 10.0, 0.1  # after a pause with an end, its jobs retry over this time


@dataclass(frozen=True, slots=True)
class Paused:
    """A limit that admits no job now, and the rule that pauses it."""

    limit: Limit
    rule: Rule


@dataclass(frozen=True, slots=True)
class OverriddenLimits:
    """
    The limits of a call after the rules are applied.

    Attributes:
        limits: The limits that are enforced.
        shadow: The limits in shadow mode, which decide but deny no job.
        paused: The limit that is paused for the longest time, or None if no limit is paused.
    """

    limits: list[Limit]
    shadow: list[Limit]
    paused: Paused | None = None


class Overrides:
    """
    Applies the rules that are in force to the limits of a call.

    A rule that does not fit its limit is logged and ignored.
    """

    def __init__(self, follower: RuleFollower) -> None:
        self._follower = follower
        self._made: dict[tuple[str, str | None], tuple[Limit, Rule | None, Rule | None, Limit]] = {}
        self._ignored_log = CountedEvery()
        self._denied_log = Every()
        follower.add_listener(self._forget_made)

    def weight_of(self, limit: str, tenant: str) -> float | None:
        """Return the weight that an operator set for *tenant* of the limit named *limit*, or None."""
        own = self._follower.rules.get(limit)
        rule = own.weight.get(tenant) if own is not None else None
        return None if rule is None or rule.over(self._follower.now_us()) else rule.weight

    def apply(self, call: Call, resolver: ClaimResolver) -> OverriddenLimits:
        """
        Apply the rules to the limits of *call*.

        Raises:
            ConfigurationError: A key or a tier cannot be computed.
        """
        rules, now_us = self._follower.rules, self._follower.now_us()
        limits, shadow, longest = list[Limit](), list[Limit](), None
        for declared in call.limits:
            own, scale = rules.get(declared.name, _NO_RULES), self._scale(declared.name, now_us)
            if own is _NO_RULES and scale is None:
                limits.append(declared)
                continue
            limit = self._alter(declared.for_job(call.real_job), own.set, scale, now_us)
            paused = _pause(call, limit, resolver.key(call, limit), own.pause, now_us) if own.pause else None
            if paused is not None and (longest is None or _end(paused.rule) > _end(longest.rule)):
                longest = paused
            is_shadowed = any(not rule.over(now_us) for rule in own.shadow.values())
            (shadow if is_shadowed else limits).append(limit)
        return OverriddenLimits(limits, shadow, longest)

    def too_dear(self, error: CostExceedsLimit, call: Call) -> Paused:
        """
        Return the limit and the rule for a cost that the operator's rate can never admit, but the declared rate can.
        The job waits until the rule ends or is replaced.

        Raises:
            CostExceedsLimit: The declared rate cannot admit the cost either.
        """
        now_us = self._follower.now_us()
        for limit in (declared.for_job(call.real_job) for declared in call.limits if declared.name == error.limit):
            own = self._follower.rules.get(limit.name, _NO_RULES)
            rule, scale = own.set.get(limit.of_tier), self._scale(limit.name, now_us)
            if scale is not None and error.cost <= self._alter(limit, own.set, None, now_us).most:
                rule = scale
            if rule is not None and error.cost <= limit.most:
                if not own.shadow and self._denied_log.due():
                    _log.warning(
                        "Limit %r denies jobs that cost more than %d, the most that the rate set by %s can admit. "
                        "Set a greater burst, rate or factor, or end the rule.",
                        limit.name,
                        error.most,
                        rule.by,
                    )
                return Paused(limit, rule)
        raise error

    def in_force(self, limits: Sequence[Limit], job: Job | None) -> list[Limit]:
        """Return *limits* with the rules applied. For a job, the limit of its tier replaces a limit with tiers."""
        return [self._in_force(declared, job) for declared in limits]

    def deny_during_pause(self, claim: Claim, rule: Rule, waited: Waited) -> Decision:
        """
        Return the denial of a call during a pause.

        No request is sent to a store, and the job keeps its position. If the pause has an end, jobs retry just after
        it, in order. Otherwise a job retries after a part of the time that the pause has lasted. So it makes few
        requests during a long pause, and still retries soon after the end.

        Args:
            waited: How the job has waited, with this denial.
        """
        now_us = self._follower.now_us()
        if rule.until_us:
            lasts, left = rule.until_us - rule.since_us, (rule.until_us - now_us) / 1_000_000
            part = min(1.0, max(0.0, (now_us - waited.for_us - rule.since_us) / max(1, lasts)))
            retry = max(0.0, left)
            delay = retry + part * min(_SPREAD, _SPREAD_SHARE * lasts / 1_000_000)
        else:
            lasted = (now_us - rule.since_us) / 1_000_000
            retry = delay = min(_LATEST, max(_SOONEST, lasted / 2)) * random.uniform(0.5, 1)
        return Decision(
            allowed=False,
            limit=claim.limit,
            key=claim.key,
            cost=claim.cost,
            retry_after=retry,
            delay=delay,
            reason="paused",
            waited=waited.for_us / 1_000_000,
            deferrals=waited.denials,
        )

    def _in_force(self, declared: Limit, job: Job | None) -> Limit:
        now_us = self._follower.now_us()
        own, scale = self._follower.rules.get(declared.name), self._scale(declared.name, now_us)
        if (own is None and scale is None) or (job is None and declared.varies):
            return declared
        return self._alter(declared.for_job(job), (own or _NO_RULES).set, scale, now_us)

    def _scale(self, name: str, now_us: int) -> Rule | None:
        """Return the rule that scales the limit *name*: its own, or the matching pattern with the lowest factor."""
        own = self._follower.rules.get(name, _NO_RULES).scale.get(None)
        if own is not None and not own.over(now_us):
            return own
        patterns = self._follower.patterns
        found = [rule for rule in patterns if rule.is_for(name) and not rule.over(now_us)] if patterns else ()
        return min(found, key=lambda rule: rule.factor or 1, default=None)

    def _alter(self, limit: Limit, rules: dict[str | None, Rule], scale: Rule | None, now_us: int) -> Limit:
        rule = rules.get(limit.of_tier)
        if rule is None and None in rules and limit.of_tier is not None:
            self._log_ignored(limit.name, rules[None], "it has tiers, and the rule names none")
        if rule is not None and rule.over(now_us):
            rule = None
        if rule is None and scale is None:
            return limit
        made = self._made.get((limit.name, limit.of_tier))
        if made is not None and made[0] is limit and made[1] is rule and made[2] is scale:
            return made[3]
        new = limit
        for each in filter(None, (rule, scale)):
            try:
                new = (
                    scale_rate(new, thousandths(each.factor))
                    if each.factor
                    else change_rate(new, each.rate, each.burst)
                )
            except ConfigurationError as error:
                self._log_ignored(limit.name, each, str(error))
        if not limit.by_value:  # a limit by value is created again for each job
            self._made[limit.name, limit.of_tier] = limit, rule, scale, new
        return new

    def _forget_made(self) -> None:
        """Drop the limits of rules that have ended."""
        self._made = {}

    def _log_ignored(self, name: str, rule: Rule, why: str) -> None:
        if self._ignored_log.one_more(name):
            stays, what = "as it was declared", f"the rate {safe_repr(rule.rate)}"
            if rule.what == "scale":
                stays, what = "as it is", f"the factor {rule.factor:g}"
            _log.warning(
                "Limit %r stays %s: it does not support %s, which %s set: %s.",
                name,
                stays,
                what,
                rule.by,
                why.rstrip(".")[:_LONGEST_WHY],
            )


def _end(rule: Rule) -> float:
    return rule.until_us or math.inf


def _pause(call: Call, limit: Limit, text: str, rules: dict[str | None, Rule], now_us: int) -> Paused | None:
    """Return the longest pause that applies to the call's key, which is *text*."""
    part = limit.part_of(call.real_job)
    shown = text if part is None else f"{part}:{text}" if text else part
    found = [rules[name] for name in {None, text, shown} if name in rules and not rules[name].over(now_us)]
    return Paused(limit, max(found, key=_end)) if found else None

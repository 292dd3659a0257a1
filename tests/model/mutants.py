"""Mutants of `_core`: each changes one thing, and the rule that is named must notice it in the world that is named."""

from __future__ import annotations

import re
from typing import NamedTuple

from model.core import Edit

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    name: str
    edit: Edit
    world: str
    rule: str


# name: module, world: rule
#   - what stands there, once
#   + what stands there instead
_TABLE = r"""
# The bound

charge from now on: gcra, one tenant: charge
  - self._tat(_from_us(state, now_us) + self.size)
  + self._tat(now_us + self.size)
room for one more: gcra, one tenant: bound
  - max(0, burst_us - charge_us), capacity_us,
  + burst_us, capacity_us,
a greater cost is not charged: gcra, a fault: bound
  - min(_from_us(state, now_us) + by, empty_us
  + min(_from_us(state, now_us) + min(0, by), empty_us
a smaller cost is given back twice: gcra, a fault: bound
  - min(_from_us(state, now_us) + by, empty_us
  + min(_from_us(state, now_us) + by + min(0, by), empty_us
a burst follows a 429: slowdown, a fault: bound
  - algorithm.exhausted(taken, emptied_us) if emptied_us else taken
  + taken
a place is a right to pass: acquire, one tenant: bound
  - ready_us = ready(0, now_us)\n
  + ready_us = ready(0, now_us) if place is None else now_us\n

# All limits or none

a denial charges: acquire, one tenant: charge
  - changed[i] = State(known[i], line)
  + changed[i] = State(claim.algorithm.admit(known[i], now_us), line)
only the first limit is charged: acquire, two limits: charge
  - if claim.algorithm.size:
  + if claim.algorithm.size and not i:
only the first limit decides: acquire, two limits: bound
  - if look.passes_us <= now_us:
  + if look.passes_us <= now_us or i:
stands where it would pass: acquire, two limits: once
  - elif look.passes_us > now_us and patient:
  + elif look.line.epoch and patient:
stays where it would pass: acquire, two limits: once
  - if look.stands.waits:
  + if False:

# Pauses

a resume does nothing: slowdown, a fault: pause
  - if for_us is None:\n
  + if for_us is None:\n            return self\n        if for_us is None:\n
a booking forgets the pause: line, a fault: pause
  - jobs=jobs, extra=line.extra + stands
  + jobs=jobs, paused_us=0, extra=line.extra + stands
a booking forgets the 429: line, a fault: bound
  - jobs=jobs, extra=line.extra + stands
  + jobs=jobs, emptied_us=0, extra=line.extra + stands
a pause empties: slowdown, a pause and a 429: idle
  - end_us if emptied else 0
  + end_us
a pause forgets the 429 before it: slowdown, a pause and a 429: bound
  - max(self.emptied_us, end_us if emptied else 0)
  + end_us if emptied else 0
a 429 is over as the pause ends: slowdown, a pause and a 429: idle
  - max(self.emptied_us, end_us if emptied else 0)
  + max(self.until_us, end_us) if emptied or self.emptied_us else 0
a 429 ends the pause: slowdown, a pause and a 429: pause
  - max(self.until_us, end_us), max
  + end_us if emptied else max(self.until_us, end_us), max

# A caller that only looks, and jobs that will not wait

a peek writes: acquire, one tenant: peek
  - if caller is Caller.PEEK:
  + if False:
a guest stands in line: acquire, one tenant: guest
  - if caller is Caller.GUEST:\n            if i
  + if caller is Caller.PEEK:\n            if i
a job stands that will not wait: acquire, one tenant: guest
  - elif look.passes_us > now_us and patient:
  + elif look.passes_us > now_us:

# The order

told without those before: acquire, one tenant: before
  - ready(ahead.about, opens_us) if ahead.about else ready_us
  + ready_us
told without costs: line, mixed costs: before
  - if not line.extra:
  + if True:
told one unit late: acquire, one tenant: idle
  - ready(ahead.about, opens_us) if ahead.about else ready_us
  + ready(ahead.about + 1, opens_us)
passes by a guess: acquire, jobs that are away: before
  - if passes_us <= now_us and ahead.most > ahead.about and
  + if False and
the dearest is not known: line, jobs that are away: before
  - dear=max(line.dear, stands.entry.cost),
  + dear=1,
v falls: line, one tenant: v
  - v=max(line.v, entry.start), mean
  + v=entry.start, mean
v stays: line, one tenant: v
  - v=max(line.v, entry.start), mean
  + v=line.v, mean
a place before v: line, one tenant: pace
  - start = max(v, line.finishes.get(tenant, 0) if step else last)
  + start = v
who passed stands on: line, one tenant: once
  - return _without(line, entry) if stands.waits else line
  + return line
numbers are given twice: line, one tenant: once
  - if entry.number > line.number:
  + if False:
every return is a new place: line, one tenant: stays
  - if step and (behind
  + if True or (behind
far behind is no matter: line, burst 1: stays
  - behind > FAR * step or (behind > 0 and now_us > place.due_us + grace_us)
  + behind > 0 and now_us > place.due_us + grace_us
late without grace: line, one tenant: stays
  - now_us > place.due_us + grace_us
  + now_us > place.due_us
late is no matter: line, one tenant: stays
  - behind > FAR * step or (behind > 0 and now_us > place.due_us + grace_us)
  + behind > FAR * step
a return before its tag: line, burst 1: stays
  - start = max(v, line.returns.get(tenant, 0))
  + start = v
a return pays nothing: line, burst 1: pace
  - return replace(line, returns={**line.returns, tenant: min(entry.start + step, _MOST_TAG)})
  + return line
its own entry is set aside: absence, two tenants: stays
  - if entry.number == own or entry.cost > idle:
  + if entry.cost > idle:
a seal is not read: line, a fault: forged
  - return place if place == signed(line, name, place.start, place.number, place.due_us) else None
  + return place
told an instant too early: acquire, one tenant: promise
  - told_us = max(look.passes_us for look in looks)
  + told_us = max(look.passes_us for look in looks) - 60_000

# Without shares

in front of those that shared the limit: line, shares that come and go: coming
  - start = max(v, line.finishes.get(tenant, 0) if step else last)
  + start = max(v, line.finishes.get(tenant, 0))
no place where it would pass: acquire, two limits without shares: coming
  - if patient and caller is Caller.JOB and not claim.step and claim.max_queue is None:
  + if False:
a number that another job has: line, two limits without shares: coming
  - line = replace(line, number=max(line.number, entry.number), until_us
  + line = replace(line, until_us

# Shares

costs and weights do not count: line, two tenants: pace
  - line.finishes, tenant: min(entry.start + step, _MOST_TAG)}
  + line.finishes, tenant: entry.start + UNIT}
new jobs at the end of the line: line, two tenants: newcomer
  - start = max(v, line.finishes.get(tenant, 0) if step else last)
  + start = max([v, line.finishes.get(tenant, 0)] + [each.start for each in line.jobs])
a place costs nothing: line, always two tenants: fair
  - return replace(line, finishes={**line.finishes, tenant: min(entry.start + step, _MOST_TAG)})
  + return line
first come, first served: line, always two tenants: fair
  - start = max(v, line.finishes.get(tenant, 0) if step else last)
  + start = max([v, *(each.start for each in line.jobs)])
tenants do not weigh: line, always two tenants: fair
  - line.finishes, tenant: min(entry.start + step, _MOST_TAG)}
  + line.finishes, tenant: entry.start + UNIT}
the last place is forgotten: line, always two tenants: fair
  - v=max(line.v, entry.start), mean
  + v=line.v, finishes=NO_TAGS, mean
a denial moves v: line, one tenant: quiet
  - until_us = max(line.until_us, due_us)
  + until_us, line = max(line.until_us, due_us), replace(line, v=max(line.v, stands.entry.start))
a denial makes others pay: line, two tenants: quiet
  - until_us = max(line.until_us, due_us)
  + until_us = due_us\n    line = replace(line, finishes={a: b + 1 for a, b in line.finishes.items()})
a job pays whenever it comes: line, two tenants: quiet
  - until_us = max(line.until_us, due_us)
  + until_us = due_us\n    line = replace(line, finishes={a: b + UNIT for a, b in line.finishes.items()})
a denial forgets what is owed: line, two tenants: quiet
  - kept.append({tenant: tag for tenant, tag in tags.items() if tag > line.v} if over else tags)
  + kept.append({})

# Jobs that do not come

set aside without costs: absence, one tenant: aside
  - if entry.number == own or entry.cost > idle:
  + if entry.number == own:
units serve twice: absence, one tenant: aside
  - idle -= entry.cost
  + idle -= 0
no grace: absence, one tenant: aside
  - if now_us < max(line.since_us, looked_us) + grace_us:
  + if now_us < max(line.since_us, looked_us):
units that came just now: absence, one tenant: aside
  - min(line.low, there) * budgets, 0
  + there * budgets, 0
a line begins with units to come: line, one tenant: aside
  - since_us=max(line.since_us, now_us), low=there, mark=mark
  + since_us=max(line.since_us, now_us), low=there + 1, mark=mark
one budget more: absence, one tenant: aside
  - budgets = 1 + doubt // DOUBT
  + budgets = 2
a grant hands units down: line, one tenant: aside
  - mean=mean, low=low, over_us=over_us)
  + mean=mean, over_us=over_us)
a leaver hands units down: line, one tenant: aside
  - low, over_us = max(min(line.low, least), line.low - entry.cost),
  + low, over_us = line.low,
nothing is set aside: absence, one tenant: dead
  - if entry.number == own or entry.cost > idle:
  + if True:
what lies there is never counted: absence, one tenant: live
  - line, since_us=now_us, low=there, doubt=
  + line, doubt=
what is set aside is not counted: absence, one tenant: moved
  - jobs=line.jobs[number:], gone=line.gone + cost,
  + jobs=line.jobs[number:],
what leaves is not counted: line, one tenant: moved
  - gone=line.gone + entry.cost)
  + gone=line.gone)
a leaver stays: acquire, one tenant: leave
  - if not stands.waits:
  + if True:
a leaver gives its place back: acquire, one tenant: leave
  - return State(state.taken, left(line, stands.entry
  + return State(state.taken, left(replace(line, finishes={}), stands.entry
a purge of an hour: absence, one tenant: purge
  - if entry.number == own or entry.cost > idle:
  + if True:
half the budget: absence, burst 1: dead
  - budgets, 0
  + budgets // 2, 0
half the rate: acquire, one tenant: bounded
  - passes_us += ahead.about * algorithm.slack_us(longest_us)
  + passes_us += 4 * (passes_us - now_us)
instants twice as far: acquire, one tenant: bounded
  - passes_us += ahead.about * algorithm.slack_us(longest_us)
  + passes_us += 500_000

# Slots

one slot more: concurrency, 1 slot: slots
  - max(0, self.slots(state) - self.use(state, now_us).units)
  + max(0, self.slots(state) + 1 - self.use(state, now_us).units)
a renewal takes what is not free: concurrency, 1 slot: slots
  - if self.holder in dict(living) or fits:
  + if True:
a renewal takes fewer than it needs: concurrency, 3 slots, costs: slots
  - _slots(living) + slots_of_holder(self.holder) <= self.slots(state)
  + _slots(living) < self.slots(state)
each holder counts as one: concurrency, 3 slots, costs: slots
  - return sum(slots_of_holder(holder) for holder, _ in leases)
  + return len(leases)
a job passes that needs more than is free: concurrency, 3 slots, costs: slots
  - over = ahead + self.size - self.there(state, now_us)
  + over = ahead + 1 - self.there(state, now_us)
a lease lasts half: concurrency, 1 slot: lease
  - now_us + self.lease_us + longer_us))
  + now_us + self.lease_us // 2))
a lease lasts twice: concurrency, 1 slot: lease
  - now_us + self.lease_us + longer_us))
  + now_us + 2 * self.lease_us))
a holder that died holds on: concurrency, 1 slot: idle
  - if lease[1] > now_us)
  + if lease[1] > now_us - 10_000_000)
a slot is not given back: concurrency, 1 slot: release
  - return self._without(state)._replace(mean_us=mean_us)
  + return state._replace(mean_us=mean_us)
given back by a job that has none: concurrency, 2 slots: release
  - if state is None or self.holder not in dict(_living(state, now_us)):
  + if state is None:
gives back another's slot: concurrency, 2 slots: others
  - if lease[0] != self.holder))
  + if lease[0] < self.holder))
a renewal takes no free slot: concurrency, 1 slot: renewal
  - if self.holder in dict(living) or fits:
  + if self.holder in dict(living):
a renewal ends the others' leases: concurrency, 2 slots: others
  - others = (lease for lease in _living(state, now_us) if lease[0] != self.holder)
  + others = ()
new jobs take what comes free: acquire, 1 slot, with the line: turn
  - if kept and line.paused_us <= now_us and algorithm.tight(longest_us):
  + if place is None and algorithm.tight(longest_us):
a denial takes a slot: acquire, 1 slot: quiet
  - changed[i] = State(known[i], line)
  + changed[i] = State(claim.algorithm.admit(known[i], now_us), line)

# Slots of workflows

each job of a workflow takes a slot: concurrency, 1 slot, two workflows: enters
  - if self.size == 0 or over <= 0 or self.holds(state, now_us):
  + if self.size == 0 or over <= 0:
one slot more for workflows: concurrency, 1 slot, two workflows: slots
  - max(0, self.slots(state) - self.use(state, now_us).units)
  + max(0, self.slots(state) + 1 - self.use(state, now_us).units)
a workflow passes by its name: concurrency, 1 slot, two workflows: slots
  - return self.stays and state is not None and self.holder in dict(_living(state, now_us))
  + return self.stays and state is not None
the end of a job gives its workflow's slot back: concurrency, 1 slot, two workflows: stays
  - if self.stays:\n            return self._with(state, now_us, _KEPT_US)\n        held_us
  + held_us
a late renewal takes a slot: concurrency, 1 slot, two workflows: stays
  - fits = not self.stays and
  + fits =
a workflow that is done holds on: concurrency, 1 slot, two workflows: done
  - return is_workflow(self.holder) and self.lease_us > 0
  + return is_workflow(self.holder)
a cancelled grant gives back what a job before it took: concurrency, 1 slot, two workflows: cancel
  - if self.stays and (self.holder, granted_us + self.lease_us) not in state.leases:
  + if self.stays and state.leases[-1][1] < granted_us + self.lease_us:
a grant that is cancelled keeps the slot: concurrency, 1 slot, two workflows: cancel
  - if self.stays and (self.holder, granted_us + self.lease_us) not in state.leases:
  + if self.stays:
a lease that begins anew looks like the grant's: concurrency, 1 slot, two workflows: cancel
  - _KEPT_US = 1\n
  + _KEPT_US = 0\n
"""
_ENTRY = re.compile(r"^(\w.*): (\w+), (.+): (\w+)\n  - (.+)\n  \+ (.*)$", re.MULTILINE)
MUTANTS = tuple(
    Mutant(name, Edit(module, old.replace("\\n", "\n"), new.replace("\\n", "\n")), world, rule)
    for name, module, world, rule, old, new in _ENTRY.findall(_TABLE)
)

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
_TABLE = """
# The bound

charge from now on: gcra, burst 2: charge
  - Tat(_from_us(state, now_us) + self.size)
  + Tat(now_us + self.size)
charge from now on, by the meter: gcra, a fault: bound
  - Tat(_from_us(state, now_us) + self.size)
  + Tat(now_us + self.size)
room for one more: gcra, burst 1: bound
  - max(0, burst_us - charge_us)
  + burst_us
a job that is due passes: acquire, burst 1: bound
  - ready = max(claim.algorithm.ready_us(taken[i], now_us), paused[i])
  + ready = now_us if holder else max(claim.algorithm.ready_us(taken[i], now_us), paused[i])
a greater cost is not charged: gcra, a fault: bound
  - min(_from_us(state, now_us) + by, most_us)
  + min(_from_us(state, now_us) + min(0, by), most_us)
a smaller cost is given back twice: gcra, a fault: bound
  - min(_from_us(state, now_us) + by, most_us)
  + min(_from_us(state, now_us) + by + min(0, by), most_us)
a burst follows a pause: acquire, a fault: bound
  - claim.algorithm.exhausted(held, until_us) if until_us else held
  + held

# All limits or none

a denial charges: acquire, burst 1: charge
  - changed[binding] = State(states[binding].taken, line)
  + changed[binding] = State(claims[binding].algorithm.admit(taken[binding], now_us), line)
only the first limit is charged: acquire, two tenants: charge
  - taken = [claim.algorithm.admit(held, now_us) for held, claim in zip(taken, claims, strict=True)]
  + taken[0] = claims[0].algorithm.admit(taken[0], now_us)
only the first limit decides: acquire, two tenants: bound
  - if opens <= now_us:
  + if opens <= now_us or i:

# Pauses

a pause is not read: acquire, a fault: pause
  - paused = [state.line.paused_us if state.line else 0 for state in states]
  + paused = [0 for _ in states]
a booking forgets the pause: acquire, a fault: pause
  - replace(line, tail_us=after_us)
  + Line(after_us, line.late_us, line.guest_us)
a job that is due passes in a pause: acquire, a fault: pause
  - ready = max(claim.algorithm.ready_us(taken[i], now_us), paused[i])
  + ready = now_us if holder else max(claim.algorithm.ready_us(taken[i], now_us), paused[i])
a resume does nothing: acquire, a fault: pause
  - if line.paused_us > now_us else state
  + if line.paused_us < now_us else state

# A caller that only looks, and jobs that do not come back

a peek books: acquire, burst 1: peek
  - if caller is Caller.PEEK:
  + if False:
a peek does not see the line: acquire, burst 1: peek
  - opens = ready if holder or early else max(ready, lines[i].end_us)
  + opens = ready if holder or early or caller is Caller.PEEK else max(ready, lines[i].end_us)
jobs wait for a guest: acquire, burst 1: guest
  - replace(line, guest_us=min(after_us, opens_us + GUESTS_US))
  + replace(line, tail_us=after_us)
a job books that will not wait: acquire, burst 1: guest
  - (max_wait_us is None or due_us - now_us <= max_wait_us)
  + True

# First come, first served

early, another instant is told: acquire, burst 1: early
  - place.due_us, place.due_us, uses)
  + place.due_us, lines[place.claim].end_us, uses)
early, books anew: acquire, burst 2: early
  - now_us < place.due_us < lines[place.claim].end_us
  + place.due_us < now_us
early, passes: acquire, burst 1: promise
  - if not claims[place.claim].algorithm.estimates:
  + if False:
due is no right of way: acquire, burst 1: promise
  - opens = ready if holder or early else max(ready, lines[i].end_us)
  + opens = max(ready, lines[i].end_us)
new jobs go first: acquire, burst 1: promise
  - opens = ready if holder or early else max(ready, lines[i].end_us)
  + opens = ready
all get one instant: acquire, burst 2: promise
  - return replace(line, tail_us=after_us)
  + return line
the tail is no end: line, burst 2: promise
  - return max(self.tail_us, self.late_us)
  + return self.late_us
due a tick too late: acquire, burst 1: promise
  - place.due_us <= now_us
  + place.due_us < now_us
instants half as far apart: acquire, burst 1: promise
  - due_us + distance_us
  + due_us + distance_us // 2

# Every job passes at last, and no unit lies there in vain

late, to the end of the line, again and again: acquire, burst 1: live
  - opens = ready if holder or early else max(ready, lines[i].end_us)
  + opens = max(ready, lines[i].end_us)
what is due now is not due yet: acquire, a fault: live
  - place.due_us <= now_us
  + place.due_us < now_us
instants twice as far apart: acquire, two jobs: idle
  - due_us + distance_us
  + due_us + 2 * distance_us
no burst: gcra, two jobs: idle
  - max(0, burst_us - charge_us)
  + 0
a line is given up later: acquire, burst 1: purge
  - >= GRACE_US:
  + >= 3 * GRACE_US:
a line is never given up: acquire, burst 1: purge
  - >= GRACE_US:
  + >= 300 * GRACE_US:

# Slots

one slot more: concurrency, 1 slot: slots
  - len(_living(state, now_us)) < self.amount:
  + len(_living(state, now_us)) <= self.amount:
a renewal takes what is not free: concurrency, 1 slot: slots
  - if self.holder in dict(living) or len(living) < self.amount:
  + if True:
a lease lasts half: concurrency, 1 slot: lease
  - now_us + self.lease_us))
  + now_us + self.lease_us // 2))
a lease lasts twice: concurrency, 1 slot: lease
  - now_us + self.lease_us))
  + now_us + 2 * self.lease_us))
a holder that died holds on: concurrency, 1 slot: idle
  - if lease[1] > now_us)
  + if lease[1] > now_us - 10_000_000)
a slot is not given back: concurrency, 1 slot: release
  - return self._without(state)._replace(mean_us=mean_us, freed_us=now_us)
  + return state._replace(mean_us=mean_us, freed_us=now_us)
given back by a job that has none: concurrency, 2 slots: release
  - if state is None or self.holder not in dict(_living(state, now_us)):
  + if state is None:
gives back another's slot: concurrency, 2 slots: others
  - if lease[0] != self.holder))
  + if lease[0] < self.holder))
a renewal takes no free slot: concurrency, 1 slot: renewal
  - if self.holder in dict(living) or len(living) < self.amount:
  + if self.holder in dict(living):
a renewal ends the others' leases: concurrency, 2 slots: others
  - others = (lease for lease in _living(state, now_us) if lease[0] != self.holder)
  + others = ()
a denial takes a slot: acquire, 1 slot: quiet
  - changed[binding] = State(states[binding].taken, line)
  + changed[binding] = State(claims[binding].algorithm.admit(taken[binding], now_us), line)
"""
_ENTRY = re.compile(r"^(\w.*): (\w+), (.+): (\w+)\n  - (.+)\n  \+ (.*)$", re.MULTILINE)
MUTANTS = tuple(
    Mutant(name, Edit(module, old, new), world, rule) for name, module, world, rule, old, new in _ENTRY.findall(_TABLE)
)

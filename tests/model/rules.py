"""What must hold of each answer in a small world: the rules, told from its own record."""

from __future__ import annotations

from typing import Any

from model.state import DOUBT, EPOCH, EXACT, FAR, NOW_US, NUMBER, TAG, TICK_US, Entry, Job, Shipped, State

__all__ = ["Rules"]


class Rules(Shipped):
    """A world that judges answers."""

    def _lags(self, old: Any, new: Any) -> bool:
        for e in old.jobs:
            if e in new.jobs:
                went = sum(o.cost for o in old.jobs if o < e) - sum(o.cost for o in new.jobs if o < e)
                if new.gone - old.gone < went:
                    return True
        return False

    def _told(self, shipped: Any, entry: Any, limit: int) -> int:
        """The instant at which an entry of the line could pass, by true costs."""
        ahead = sum(e.cost for e in shipped.line.jobs if e < entry)
        tat_us = NOW_US if shipped.taken is None else max(NOW_US, shipped.taken.at_us)
        told = tat_us + (ahead + entry.cost - self.bursts[limit]) * self.interval * TICK_US
        return int(max(told, NOW_US, shipped.line.paused_us))

    def _wrong(
        self, state: State, after: State, job: Job, verdict: Any, stores: list[Any], before: list[Any], again: bool
    ) -> str | None:
        for index, (limit, cost) in enumerate(self.kinds[job.kind].costs):
            old, new, meter = state.stored[limit], after.stored[limit], state.meters[limit]
            granted = cost if verdict.allowed else 0
            if granted and meter.paused > 0:
                return "pause"
            interval = self.kinds[job.kind].interval or self.interval
            if granted and max(meter[:2]) + cost * interval > self.bursts[limit] * self.interval:
                return "bound"
            if old.emptied is None and max(new.tat, 0) != max(old.tat, 0) + granted * interval:
                return "charge"
            if not granted and (max(new.tat, 0), new.debt) != (max(old.tat, 0), old.debt):
                return "charge"
            rule = self._misplaced(state, job, index, limit, cost, verdict, stores[index], before[index], again)
            if rule:
                return rule
        return None

    def _misplaced(
        self, state: State, job: Job, index: int, limit: int, cost: int, verdict: Any, shipped: Any, opened: Any,
        again: bool,
    ) -> str | None:  # fmt: skip
        """What is wrong with the line of one limit."""
        meter, kind = state.meters[limit], self.kinds[job.kind]
        old_line = opened.line or self.core.line.EMPTY
        new_line = shipped.line or self.core.line.EMPTY
        old = old_line.jobs
        new = new_line.jobs
        tenant, step = self._claims[job.kind][index].tenant, self._claims[job.kind][index].step
        ticket = job.places[limit]
        known = ticket is not None and ticket.current and old_line.epoch == EPOCH
        own = None
        if known and ticket is not None:
            own = next((e for e in old if e[:2] == (TAG + ticket.start, NUMBER + ticket.number)), None)
        gone = [e for e in old if e not in new]
        came = [e for e in new if e not in old]
        if len({e.number for e in new}) != len(new) and len({e.number for e in old}) == len(old):
            return "once"
        if len(came) > 1 or (verdict.allowed and (came or own in new)):
            return "once"
        # set aside
        ages = dict(zip(state.stored[limit].jobs, meter.ages, strict=True))
        aside = [e for e in gone if e != own]
        calm = old_line.doubt < DOUBT
        for e in aside:
            if calm and ages[Entry(e.start - TAG, e.number - NUMBER, e.cost)] < self.grace:
                return "aside"
        if old and new_line.epoch == old_line.epoch and self._lags(old_line, new_line):
            return "moved"
        if new_line.epoch == old_line.epoch and new_line.v < old_line.v:
            return "v"
        # where it stands, by the book
        emptied = shipped.line is not opened.line and not [e for e in old if e not in aside]
        v = old_line.v if old_line.epoch else new_line.v
        mine = v - kind.rank * self.core.line.CLASS
        finishes = {} if emptied else dict(old_line.finishes)
        returns = {} if emptied else dict(old_line.returns)
        late = False
        if again:
            start = mine - 1
        elif known and ticket is not None:
            start = TAG + ticket.start
            mine = min([mine, *(e.start for e in old if e not in aside)]) if kind.weight else mine
            behind = mine - start
            late = own is None and (behind > FAR * step or (behind > 0 and -ticket.due > self.grace))
            late = late and kind.weight > 0
            if late:
                start = max(mine, returns.get(tenant, 0))
        elif kind.weight:
            start = max(mine, finishes.get(tenant, 0))
        else:
            start = max([v, *(e.start for e in old if e not in aside)])
        tight = (self.bursts[limit] - cost) * self.interval < self.grace
        if verdict.allowed:
            on_time = known and not late and ticket is not None and ticket.due <= 0
            if old and not (tight and on_time):
                number = NUMBER + ticket.number if known and not late and ticket else old_line.number + 1
                for e in new:
                    stood = e[:2] < (start, number) and e in old
                    if stood and self._told(opened, e, limit) < self._told(shipped, e, limit):
                        return "before"
            if old and new_line.v < start:
                return "v"
            return None
        place = verdict.places[index] if verdict.places else None
        stands = place is not None and any(e[:2] == (place.start, place.number) for e in new)
        if came and not stands:
            return "once"
        if place is not None and sum(e[:2] == (place.start, place.number) for e in new) > 1:
            return "once"
        if len(verdict.places) == 1 and not stands:
            return "once"
        if stands and len(verdict.places) > 1:
            entry = next(e for e in new if e[:2] == (place.start, place.number))
            near = sum(e < entry for e in new) <= EXACT
            if near and self._told(shipped, entry, limit) <= NOW_US and not tight:
                return "once"  # it would pass here
        if own is not None and not stands and len(verdict.places) == 1:
            return "once"
        if place is None:
            return "coming" if verdict.places and not (kind.weight or again) else None
        keeps = known and not late and ticket is not None and not again
        if keeps and (place.start, place.number) != (TAG + ticket.start, NUMBER + ticket.number):
            return "stays"
        stands_last = (place.start, place.number) == (start, old_line.number + 1) and new_line.number == place.number
        if not kind.weight and not keeps and not stands_last:
            return "coming"
        if not keeps and stands and place.start != start:
            return "stays" if known else "pace" if finishes.get(tenant, 0) > v else "newcomer"
        # tags
        charged = step and stands and not again and (late or not known)
        for tags, was, pays in (
            (new_line.finishes, finishes, charged and not known),
            (new_line.returns, returns, charged and late),
        ):
            for name in {*tags, *was, tenant}:
                should = max(v, was.get(name, 0))
                if name == tenant and pays:
                    should = start + step
                if max(new_line.v, tags.get(name, 0)) != max(new_line.v, should):
                    return "pace" if name == tenant and pays else "quiet"
        if old_line.epoch and new_line.v != old_line.v:
            return "quiet"
        return None

    def _fairness(
        self, state: State, after: State, job: Job, verdict: Any
    ) -> tuple[tuple[int, int] | None, str | None]:
        """The spread of n0/w0 - n1/w1 since both wait, in halves of a unit."""
        if "fair" not in self.rules or len(self._tenants) < 2 or len(self.bursts) > 1:
            return None, None
        stored = state.stored[0]
        tenants = {}
        for each in (*state.jobs, job):
            ticket = each.places[0]
            if ticket is not None and ticket.current:
                tenants[ticket.start, ticket.number] = self.kinds[each.kind].tenant
        waiting = {tenants.get(e[:2]) for e in stored.jobs}
        ticket = job.places[0]
        overdue = any(each.places[0] and each.places[0].due < 0 for each in state.jobs)
        back = overdue or (ticket is not None and (ticket.start, ticket.number) not in {e[:2] for e in stored.jobs})
        now = {e.number for e in after.stored[0].jobs}
        aside = any(e.number not in now and (ticket is None or e.number != ticket.number) for e in stored.jobs)
        old = any(e.start < 0 for e in stored.jobs) or stored.returns
        if None in waiting or len(waiting) < 2 or back or aside or old or state.faults < self.faults:
            return None, None
        fair = state.fair or (0, 0)
        if not verdict.allowed:
            return fair, None
        kind = self.kinds[job.kind]
        cost = kind.costs[0][1]
        got = 2 * cost // kind.weight * (1 if kind.tenant == 0 else -1)
        low, high = min(fair[0] - got, 0), max(fair[1] - got, 0)
        allowed = sum(
            max(2 * each.costs[0][1] // each.weight for each in self.kinds if each.tenant == one) for one in (0, 1)
        )
        allowed += 2 * self.unfair
        still = {tenants.get(e[:2]) for e in stored.jobs if ticket is None or e.number != ticket.number}
        keeps = (low, high) if self.renewed or (len(still) == 2 and None not in still) else None
        return keeps, "fair" if max(-low, high) > allowed else None

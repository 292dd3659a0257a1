"""An independent discrete-event simulator of design W: the store knows who waits and wakes the first job.

    python waitlist.py                       every scenario, the text's rules and the corrected ones, seeds 1 2 3
    python waitlist.py NAME [NAME ...] [rules=text,corr] [seeds=1,2,3] [key=value ...]     key: a rule of RULES, or T
    python waitlist.py list

Standard library only. Times in seconds. Written from the text of the design, sharing no code with the other simulators.
A store call takes 1 ms there and back; a bell 2 ms; threads are finite, bodies take time; a job asks when a thread is free.
"""
import heapq, math, random, sys, time
from bisect import bisect_left, insort
from collections import deque

RTT, BELL, NET, LEASE = .001, .002, .5, 2.0

# Every rule in which the text leaves a choice, or which was changed. TEXT is the literal reading, CORR the corrected one.
TEXT = dict(
    win=.25, winmin=4, winslots=None,     # window of an owner: max(winmin, rate x win); slots: winslots or slots / 4
    patience=1.0, patfrom='wake',         # how long a wake counts against room (0: until asked), from the wake or from its instant
    probe=(1.0, 30.0), overdue=False,     # first and longest pause of probes (0, 0: none); only if the oldest wake is overdue
    looks='next',                         # none (the net alone) | next (all that are told) | appt (one is appointed)
    net='flat',                           # the net look of a list: each .5 s | due (by rate and number of owners)
    lead='question', leadmin=.01, leadmax=1.0,      # question | arrival (one a list) | owner (one an owner) | seconds
    free='drop',                          # wakes that a later question frees: drop | requeue | aside
    nobody='any',                         # "nobody waits": any entry | live (one that could be woken)
    multi='B', place='first',             # several limits: A woken anywhere | B per list | C turn kept | D kept, and counts 1 s
    parkowner='park', near=('rate', 2.0), nearlive=False, again=False, nearwin=False,   # the park: owner, budget of hands
    alive=0, rcpt=False,                  # skip owners silent for so long; PUBLISH that nobody receives
    cap=False, adapt=False,               # no more wakes than free threads; a window that follows lateness
    early=False, give=0, handback=0,      # woken and denied stays in hand; a full owner gives back
    resync=False, idem=False,             # net looks name ids and the epoch; a grant is repeated to the same attempt
    bell=True, slots='first')             # slots: first entry, or own (the releasing process first)
CORR = dict(TEXT, winmin=1, patience=.25, patfrom='at', overdue=True, looks='appt', net='due', lead='owner', leadmin=.03,
            free='aside', nobody='live', multi='D', place='all', parkowner='queue', near=('rate', 3.0), nearlive=True,
            again=True, rcpt=True, cap=True, early='hand', give=.5, handback=.5, resync=True, idem=True)
RULES = dict(text=TEXT, corr=CORR)

class Entry:
    __slots__ = 'id key cost oid woken at counted called strikes job'.split()

class Owner:
    __slots__ = 'oid order woken asked probed back seen lead deaf w cap full'.split()
    def __init__(s, oid, now, back):
        s.oid, s.order, s.woken, s.asked, s.probed, s.back, s.seen, s.lead = oid, [], {}, now, 0., back, now, .02; s.deaf, s.w, s.cap, s.full = False, 1e9, 1e9, 0.

class List:
    """One limit and key: its units and its waitlist."""
    def __init__(s, sim, name, rate=0., burst=1, slots=0, share=False):
        s.sim, s.name, s.rate, s.burst, s.slots, s.share = sim, name, rate, burst, slots, share
        s.tok, s.t0, s.holders, s.paused = float(burst), 0., {}, False
        s.history = [(0., rate)]
        s.log, s.maxburst = [], burst
        s.clear()
    def clear(s):
        s.owners, s.ent, s.memo, s.aside = {}, {}, {}, {}
        s.early, s.prefer = -1., None
        s.recent, s.wc, s.v, s.fin, s.num, s.lead = [], 0., {}, {}, 0, .02
        s.appt, s.epoch, s.reserved, s.marks = -1., s.sim.rng.random(), {}, set()
    # ---- units
    def avail(s, now):
        if s.slots: return s.slots - len(s.holders)
        return min(s.burst, s.tok + s.elapsed(now) * s.rate)
    def elapsed(s, now): return now - s.t0
    def setrate(s, now, rate):
        s.tok, s.t0, s.rate = s.avail(now), now, rate
        s.history.append((s.sim.now, rate))
    def charge(s, now, job, cost):
        if s.slots: s.holders[job.id] = now
        else: s.tok, s.t0 = s.avail(now) - cost, now
        s.log.append((s.sim.now, cost, job))
    # ---- order
    def place(s, job, cost):
        if job.id not in s.memo:
            s.num += 1
            tag = 0.
            if s.share:
                f = s.fin.get((job.cls, job.tenant), 0.)
                tag = max(s.v.get(job.cls, 0.), f)
                s.fin[job.cls, job.tenant] = tag + cost / job.weight
            s.memo[job.id] = (job.cls, tag, s.num, job.id)
        return s.memo[job.id]
    def owner(s, oid, now):
        if oid not in s.owners: s.owners[oid] = Owner(oid, now, s.sim.R['probe'][0])
        return s.owners[oid]
    def enter(s, job, cost, oid, now):
        e = Entry()
        e.id, e.key, e.cost, e.oid, e.woken, e.at, e.counted, e.called, e.strikes, e.job = job.id, s.place(job, cost), cost, oid, None, 0, False, -9, 0, job
        s.ent[job.id] = e
        insort(s.owner(oid, now).order, e.key)
        s.aside.pop(job.id, None)
        return e
    def out(s, e):
        """Takes an entry out of its owner's order or its wakes; it stays in no list."""
        o = s.owners[e.oid]
        if e.woken is None:
            i = bisect_left(o.order, e.key)
            if i < len(o.order) and o.order[i] == e.key: del o.order[i]
        else: o.woken.pop(e.id, None)
        if e.counted: s.wc -= e.cost; e.counted = False
        s.ent.pop(e.id, None)
    def window(s):
        R = s.sim.R
        if s.slots: return max(R['winmin'], R['winslots'] or s.slots // 4)
        return max(R['winmin'], s.rate * R['win'])
    def skipped(s, o, now):
        R = s.sim.R
        return o.deaf or len(o.woken) >= min(s.window(), o.w, o.cap) or (R['alive'] and o.oid[0] != 'k' and now - max(o.seen, s.sim.seen.get(o.oid, -9)) > R['alive'])
    def head(s, now):
        best = None
        if s.prefer and s.slots and s.sim.R['slots'] == 'own':          # as today: who releases wakes its own first
            o = s.owners.get(s.prefer)
            if o and o.order and not s.skipped(o, now): return (o.order[0], o)
        for o in s.owners.values():
            if o.order and (best is None or o.order[0] < best[0]) and not s.skipped(o, now): best = (o.order[0], o)
        return best
    def waits(s, now):
        if s.sim.R['nobody'] == 'any': return any(o.order for o in s.owners.values())
        return s.head(now) is not None
    def leadof(s, o):
        l = s.sim.R['lead']
        if isinstance(l, float): return l
        return min(s.sim.R['leadmax'], o.lead if l == 'owner' else s.lead)
    def expire_wakes(s, now):
        p = s.sim.R['patience']
        while p and s.recent and s.recent[0][0] < now - p:
            _, _, t, e = heapq.heappop(s.recent)
            if e.counted and e.woken == t: e.counted = False; s.wc -= e.cost
        s.drop_future(now)
    def drop_future(s, now): pass
    def res(s):
        if not s.reserved: return 0.
        for i in [i for i, (c, u) in s.reserved.items() if not s.turn_counts(u)]: del s.reserved[i]
        return sum(c for c, u in s.reserved.values())
    def turn_counts(s, u): return u >= s.sim.st
    def unmark(s, i): s.marks.discard(i); s.reserved.pop(i, None)
    def wake(s, now):
        """While there is room for the first entry, wakes it. [(owner, id, at)]"""
        got = []
        if s.paused: return got
        s.expire_wakes(now)
        while True:
            h = s.head(now)
            if not h: break
            e, o = s.ent[h[0][3]], h[1]
            if s.sim.R['rcpt'] and o.oid[0] == 'p' and s.sim.unheard(o.oid): o.deaf = True; continue      # PUBLISH answered 0
            a, used = s.avail(now), s.wc + s.res()
            room = a - used + (0 if s.slots else s.leadof(o) * s.rate)
            if room < e.cost - 1e-9: break
            at = now if a - used >= e.cost - 1e-9 else now + (used + e.cost - a) / s.rate
            s._wake(e, o, now, at, True); got.append((o.oid, e.id, at))
        R = s.sim.R
        if R['give'] and s.sim.home == 'park' and got:
            # jobs that come before the one just woken, whose owner is full: after .5 s they go back to the queue's front
            last = s.ent[got[-1][1]].key
            for o in s.owners.values():
                if o.oid[0] == 'p' and o.order and o.order[0] < last and o.cap <= 0:
                    if not o.full: o.full = now
                    elif now - o.full > R['give']:
                        o.full = now
                        for k in o.order[:4]:
                            if k < last: s.sim.n['give'] += 1; s.sim.at(now + BELL, s.sim.giveback, o.oid, k[3])
                else: o.full = 0.
        if R['probe'][0]:
            for o in s.owners.values():
                if R['overdue'] and not (o.woken and now - min(s.ent[i].at for i in o.woken) > 1.0): continue
                if o.order and not o.deaf and now - max(o.asked, o.probed) >= (o.back if o.probed else 1.0) and s.skipped(o, now):
                    o.back = min(R['probe'][1], o.back * 2) if o.probed else R['probe'][0]; o.probed = now
                    e = s.ent[o.order[0][3]]
                    s._wake(e, o, now, now, False); got.append((o.oid, e.id, now)); s.sim.n['probe'] += 1
        return got
    def _wake(s, e, o, now, at, counts):
        del o.order[0]
        o.woken[e.id] = now
        e.woken, e.at, e.counted = now, at, counts
        if counts: s.wc += e.cost; s.sim.seq += 1; heapq.heappush(s.recent, (at if s.sim.R['patfrom'] == 'at' else now, s.sim.seq, now, e))
    def next_at(s, now):
        if s.slots or s.paused: return None
        h = s.head(now)
        if not h: return None
        e = s.ent[h[0][3]]
        na = now + (e.cost + s.wc + s.res() - s.avail(now)) / s.rate - s.leadof(h[1])
        if s.sim.R['overdue']:
            # a wake that nobody answers stops counting: somebody must look then
            while s.recent and not (s.recent[0][3].counted and s.recent[0][3].woken == s.recent[0][2]): heapq.heappop(s.recent)
            if s.recent: na = min(na, s.recent[0][0] + s.sim.R['patience'] + .001)
        return max(now + .01, na)
    def heard(s, oid, now, asked=None):
        """A question from an owner: frees its wakes of more than a second before the one that asks."""
        R = s.sim.R
        o = s.owners.get(oid)
        if not o: return
        o.deaf = False; o.seen = o.asked = now; o.back, o.probed = R['probe'][0], 0.
        if not R['free']: return
        ref = asked.woken if asked is not None and asked.woken is not None else None
        if ref is None: return
        for i, t in list(o.woken.items()):
            if t >= ref - 1.0: break
            e = s.ent[i]
            s.out(e)
            if R['free'] == 'requeue' or (R['free'] == 'aside' and e.strikes < 1 and oid[0] == 'p'):
                k = e.strikes
                e2 = s.enter(e.job, e.cost, oid, now); e2.strikes = k + 1
            elif R['free'] == 'aside': s.aside[i] = now
            else: s.memo.pop(i, None)

class Job:
    __slots__ = 'id tenant weight cls claims body queue born until done ask ndel started copy nonce first granted last'.split()

class Msg:
    __slots__ = 'job near queue'.split()
    def __init__(s, job): s.job, s.near, s.queue = job, False, job.queue

class Proc:
    def __init__(s, sim, i, queues, threads):
        s.sim, s.oid, s.i, s.queues, s.free, s.threads = sim, 'p%d' % i, i, queues, threads, threads
        s.fresh, s.ready, s.hand, s.coming, s.flying, s.running = deque(), [], {}, {}, 0, {}
        s.dead, s.hang, s.gen, s.bylist, s.epochs, s.ownbuf, s.pre, s.nextlook, s.asking, s.planned, s.told = False, 0., 0, {}, {}, {}, max(2, threads), {}, {}, {}, {}
    def cap(s): return 0 if s.dead or s.sim.now < s.hang else s.pre - len(s.fresh) - s.flying

class Sim:
    def __init__(s, R, seed, home='park', procs=8, threads=8, lat='fast', redeliver=30., bell_loss=0., ans_loss=0., queues=None, lease=30.):
        s.R, s.rng, s.home, s.lat, s.redeliver, s.bl, s.al, s.slease = R, random.Random(seed), home, lat, redeliver, bell_loss, ans_loss, lease
        s.now, s.h, s.seq, s.lists, s.jobs, s.seen = 0., [], 0, {}, [], {}
        s.n = dict.fromkeys('ask look own rel leave bell bdel probe lost retry near parkmove dupe give'.split(), 0)
        s.broker, s.park, s.moved, s.moved0, s.missing, s.lossy = {}, {}, set(), set(), False, 0.
        s.procs = [Proc(s, i, (queues or (lambda i: ['q']))(i), threads if isinstance(threads, int) else threads(i)) for i in range(procs)]
        s.byid = {p.oid: p for p in s.procs}
        s.waker, s.lease, s.rr, s.events, s.storedown = 0, 0., 0, [], 0.
        s.idle = {}
        for p in s.procs: s.at(s.rng.random() * NET, s.netlook, p, p.gen)
        s.at(.01, s.parkloop); s.at(.5, s.sample)
    off, rel = 0., True                      # the store's clock is off by so much; whether answers carry delays or instants
    @property
    def st(s): return s.now + s.off
    def local(s, at): return at - s.off if s.rel else at
    def at(s, t, f, *a):
        s.seq += 1; heapq.heappush(s.h, (max(t, s.now), s.seq, f, a))
    def add(s, *a, **k):
        l = List(s, *a, **k); s.lists[l.name] = l; return l
    def run(s, T):
        h, pop = s.h, heapq.heappop
        while h and h[0][0] <= T:
            s.now, _, f, a = pop(h); f(*a)
        s.now = T
    def latency(s):
        r = s.rng
        if s.lat == 'fast': return .001 + r.random() * .004
        if s.lat == 'poll': return .001 + r.random() * .099
        return min(5., .060 * math.exp(.99 * r.gauss(0, 1)))
    # ---- jobs and the broker
    def job(s, t, claims, tenant='a', weight=1., cls=0, body=.002, queue='q', ttl=0.):
        j = Job()
        j.id, j.tenant, j.weight, j.cls, j.claims, j.body, j.queue, j.born = len(s.jobs), tenant, weight, cls, claims, body, queue, t
        j.until, j.done, j.ask, j.ndel, j.started, j.nonce, j.first, j.granted, j.last = (t + ttl if ttl else 0), 0, 0, 0, 0., 0, 0., 0, -1
        s.jobs.append(j); s.at(t, s.push, Msg(j), False)
        return j
    def push(s, m, front):
        q = s.broker.setdefault(m.queue, deque())
        q.appendleft(m) if front else q.append(m)
        s.kick(m.queue)
    def kick(s, q):
        d = s.broker.get(q)
        n = len(s.procs)
        while d:
            need = d[0].near and s.R['cap'] and any(q in p.queues and not p.dead and s.now >= p.hang and p.free > 0 for p in s.procs)
            for k in range(n):
                p = s.procs[(s.rr + k) % n]
                if need and p.free <= 0: continue
                if q in p.queues and (p.cap() > 0 or (d[0].near and p.cap() > -p.threads)) and not p.dead and s.now >= p.hang: break
            else: return
            s.rr = (s.rr + k + 1) % n
            m = d.popleft(); p.flying += 1
            m.job.ndel += 1; s.n['bdel'] += 1
            s.at(s.now + s.latency(), s.deliver, p, p.gen, m)
    def kickall(s, p):
        for q in p.queues: s.kick(q)
    def deliver(s, p, gen, m):
        if p.dead or gen != p.gen: return s.at(s.now + s.redeliver, s.push, m, False)
        if s.now < p.hang: return s.at(p.hang, s.deliver, p, gen, m)
        p.flying -= 1
        if m.near:
            m.near = False; s.moved.discard(m.job.id)
            p.coming[m.job.id] = m
            if not p.ownbuf: s.at(s.now + .005, s.own, p, p.gen)
            p.ownbuf[m.job.id] = m
        else: s.moved.discard(m.job.id); p.fresh.append(m)
        s.pump(p); s.kickall(p)
    # ---- a process
    def pump(s, p):
        while p.free > 0 and not p.dead and s.now >= p.hang and (p.ready or p.fresh):
            if p.ready: since, _, m, early = heapq.heappop(p.ready)[0:4]; wait = early
            else: m = p.fresh.popleft(); wait = 0.
            j = m.job
            if j.until and s.now > j.until:
                j.done = -1; s.leave(j); continue
            p.free -= 1; j.ask += 1; s.n['ask'] += 1; j.nonce += 1
            p.asking[j.id] = m
            s.at(s.now + RTT / 2, s.s_ask, p, p.gen, m, wait, p.free)
            if R_cap(s):
                for l, c in j.claims:
                    if p.free <= 0: p.told[l] = True
                    else: p.told.pop(l, None)
        if p.ready and s.R['handback'] and p.free == 0: pass
    def unheard(s, oid):
        p = s.byid[oid]
        return p.dead or p.oid != oid
    def leave(s, j):
        s.n['leave'] += 1
        for l, c in j.claims:
            e = l.ent.get(j.id)
            if e: l.out(e)
            l.memo.pop(j.id, None); l.aside.pop(j.id, None); l.unmark(j.id)
    def s_ask(s, p, gen, m, early, free):
        """In the store: looks at every limit, grants all or none."""
        now, j, R = s.st, m.job, s.R
        if s.now < s.storedown: return s.at(s.now + .25, s.r_lost, p, gen, m)
        oid = p.oid; s.seen[oid] = now
        if R['idem'] and j.granted and j.granted == -j.nonce: ans = ('grant',)
        else:
            bind, denies = None, []
            state = {}
            anywoken = any((e := l.ent.get(j.id)) is not None and e.woken is not None for l, c in j.claims)
            for l, c in j.claims:
                e = l.ent.get(j.id)
                l.expire_wakes(now)
                w = e is not None and e.woken is not None
                if w:
                    took = max(0., now - e.woken - (early if R['lead'] != 'question' else 0.))
                    o = l.owners[e.oid]
                    if R['adapt']:
                        o.w = min(o.w, max(s.now and l.window(), 1))
                        o.w = max(1., o.w / 2) if now - e.at > .25 else min(l.window(), o.w + 1)
                    if R['lead'] == 'owner': o.lead = max(R['leadmin'], o.lead + (took - o.lead) * (.5 if took > o.lead else .05))
                    else: l.lead = max(R['leadmin'], l.lead + (took - l.lead) * (.5 if took > l.lead else .05))
                    l.heard(e.oid, now, e)
                    if oid != e.oid: l.heard(oid, now)
                else: l.heard(oid, now)
                c = s.cost_in(l, j, c)
                right = w or s.passes_free(l, j) or (R['multi'] == 'A' and anywoken) or (R['multi'] in 'CD' and j.id in l.marks)
                a = l.avail(now)
                need = c if right else c + l.wc + l.res()
                if l.paused or a < need - 1e-9 or (not right and l.waits(now)):
                    denies.append((2 if l.paused else 1, (need - a) / (l.rate or 1e9), l, c, right))
                state[l.name] = w
            if not denies:
                for l, c in j.claims:
                    e = l.ent.get(j.id)
                    l.charge(now, j, s.cost_in(l, j, c))
                    k = l.memo.get(j.id)
                    if k: l.v[j.cls] = max(l.v.get(j.cls, 0.), k[1])
                    if e: l.out(e)
                    l.memo.pop(j.id, None); l.aside.pop(j.id, None); l.unmark(j.id)
                j.granted = -j.nonce
                s.after_grant(p, m)
                ans = ('grant',)
                if any(l.slots for l, c in j.claims): s.at(s.now + s.slease, s.lease_end, j, now)
            elif (R['early'] == 'stay' and len(denies) == 1 and state[denies[0][2].name] and not denies[0][2].paused and denies[0][2].rate
                  and denies[0][1] <= R['leadmax'] and j.id in denies[0][2].ent):
                # woken, and too early: it stays woken, and waits in the worker's hands
                B = denies[0][2]; e = B.ent[j.id]; at = max(now + max(denies[0][1], .001), B.early + denies[0][3] / B.rate); B.early = at
                if e.oid != oid:
                    B.owners[e.oid].woken.pop(e.id, None); B.owner(oid, now).woken[e.id] = e.woken; e.oid = oid
                e.at = at; ans = ('early', B, at)
            else:
                bind = max(denies, key=lambda d: d[:2])
                B = bind[2]
                if s.refused(j, B): return s.refuse(p, gen, m)
                if not j.first: j.first = s.now
                dn = {d[2].name for d in denies}
                for l, c in j.claims:
                    e = l.ent.get(j.id)
                    if e: l.out(e)
                    if R['place'] == 'all' or l is B: l.place(j, c)
                    if l is B or (R['multi'] == 'D' and l.name in dn and l.avail(now) < c): l.unmark(j.id)
                    elif R['multi'] in 'CD' and (state[l.name] or j.id in l.marks):
                        # it had its turn here: it keeps it, and counts for a second if this limit is the scarcer one
                        l.marks.add(j.id)
                        if R['multi'] == 'D' and not B.paused and (l.rate or 1e9, l.name) < (B.rate or 1e9, B.name): l.reserved[j.id] = (c, now + 1.)
                e = B.enter(j, bind[3], oid, now)
                hand = True; was = any(state.values())
                if s.home == 'park' and m.queue not in s.heldq:
                    hand = (was and R['early'] == 'hand') or s.rank(B, e.key, now) < s.nearbudget(B)
                    if not hand:
                        o = B.owners[oid]; i = bisect_left(o.order, e.key); del o.order[i]
                        e.oid = s.parkoid(m); insort(B.owner(e.oid, now).order, e.key)
                ans = ('deny', B, hand)
        if R['cap']:
            for l, c in j.claims:
                if oid in l.owners: l.owners[oid].cap = free + (ans[0] != 'grant')
        mine, nexts = s.ring([l for l, c in j.claims], p)
        if s.al and s.rng.random() < s.al:
            s.n['lost'] += 1
            return s.at(s.now + .25, s.r_lost, p, gen, m)
        s.at(s.now + RTT / 2, s.r_ask, p, gen, m, ans, mine, nexts)
    def cost_in(s, l, j, c): return c
    def passes_free(s, l, j): return False
    def refused(s, j, B): return False
    def after_grant(s, p, m): pass
    def parkoid(s, m): return 'k' + (m.queue if s.R['parkowner'] == 'queue' else '')
    def nearbudget(s, l):
        k, x = s.R['near']
        if k == 'fixed': return x
        return max(4, (l.rate if not l.slots else l.slots * 2) * x)
    def rank(s, l, key, now):
        r = 0
        for o in l.owners.values():
            if s.R['nearlive'] and o.oid[0] == 'p' and l.skipped(o, now) and (not s.R['alive'] or now - max(o.seen, s.seen.get(o.oid, -9)) > s.R['alive']): continue
            r += bisect_left(o.order, key)
        return r
    def ring(s, lists, p):
        """Wakes, rings the bells of others, and makes the appointment for the next look."""
        mine, nexts = [], []
        for l in lists:
            l.prefer = p.oid if p is not None else None
            for oid, i, at in l.wake(s.st):
                at = s.local(at)
                if p is not None and oid == p.oid: mine.append((l, i, at))
                elif s.R['bell']:
                    s.n['bell'] += 1
                    if s.rng.random() >= s.bl: s.at(s.now + BELL, s.bellrung, oid, l, i, at)
            if p is None: continue
            na = l.next_at(s.st)
            if na is not None:
                if s.R['looks'] == 'appt':
                    if not (l.appt > s.st - .02 and l.appt <= na + .002):
                        l.appt = na; nexts.append((l, s.local(na)))
                elif s.R['looks'] == 'next' and na < s.st + NET: nexts.append((l, s.local(na)))
        return mine, nexts
    def bellrung(s, oid, l, i, at):
        if oid[0] == 'k': return s.parkwake(l, i, at)
        p = s.byid[oid]
        if p.dead: return
        if s.now < p.hang: return s.at(p.hang, s.bellrung, oid, l, i, at)
        s.woken(p, i, at)
    def woken(s, p, i, at):
        m = p.hand.pop(i, None)
        if m is None: 
            if i in p.asking: p.coming.setdefault(('w', i), at)
            else: s.unknown_wake(p, i)
            return
        p.coming[i] = m
        if at > s.now: s.at(at, s.setready, p, p.gen, m, at - s.now)
        else: s.setready(p, p.gen, m, 0.)
    def unknown_wake(s, p, i): pass
    def setready(s, p, gen, m, early):
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.setready, p, gen, m, early)
        p.coming.pop(m.job.id, None)
        s.seq += 1
        heapq.heappush(p.ready, (s.now, s.seq, m, early))
        s.pump(p)
        if s.R['handback']: s.at(s.now + s.R['handback'], s.handback, p, gen, m)
    def giveback(s, oid, i):
        p = s.byid[oid]
        if p.dead or s.now < p.hang: return
        m = p.hand.pop(i, None)
        if m: m.near = True; s.push(m, True)
    def handback(s, p, gen, m):
        """A woken job that still waits for a thread goes to another worker."""
        if p.dead or gen != p.gen or s.home != 'park': return
        for x in p.ready:
            if x[2] is m:
                p.ready.remove(x); heapq.heapify(p.ready); s.n['retry'] += 1
                return s.push(m, True)
    def r_ask(s, p, gen, m, ans, mine, nexts):
        j = m.job
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.r_ask, p, gen, m, ans, mine, nexts)
        p.asking.pop(j.id, None)
        w = p.coming.pop(('w', j.id), None)
        if ans[0] == 'early':
            p.free += 1; p.coming[j.id] = m; p.bylist.setdefault(ans[1], {})[j.id] = m
            s.at(ans[2], s.setready, p, gen, m, 0.)
        elif ans[0] == 'grant':
            j.started = s.now; p.running[j.id] = m
            s.at(s.now + j.body, s.end, p, gen, m)
        else:
            p.free += 1
            if ans[2]: p.hand[j.id] = m; p.bylist.setdefault(ans[1], {})[j.id] = m
            else: s.park.setdefault(m.queue, {})[j.id] = m; m.near = False; s.moved.discard(j.id); s.parked.add(ans[1])
            if j.until and ans[2]: s.at(j.until + .001, s.expire, p, gen, j)
            if w is not None: s.woken(p, j.id, w)
        for l, i, at in mine: s.woken(p, i, at)
        for l, na in nexts: s.plan(p, l, na)
        s.pump(p); s.kickall(p)
    def plan(s, p, l, na):
        """One planned look for a process and list: the earliest."""
        if s.now < p.planned.get(l, -1.) <= na + .001: return
        p.planned[l] = na
        s.at(na, s.planlook, p, p.gen, l, na)
    def planlook(s, p, gen, l, na):
        if gen == p.gen and p.planned.get(l) == na: p.planned.pop(l); s.look(p, gen, l)
    def expire(s, p, gen, j):
        if gen == p.gen and not p.dead and j.id in p.hand:
            del p.hand[j.id]; j.done = -1; s.leave(j); s.n['leave'] -= .8       # in batches
    def r_lost(s, p, gen, m):
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.r_lost, p, gen, m)
        p.asking.pop(m.job.id, None); p.coming.pop(('w', m.job.id), None)
        p.free += 1; s.n['retry'] += 1
        m.job.nonce -= 1
        s.at(s.now + .25, s.setready, p, gen, m, 0.)
        s.pump(p)
    def end(s, p, gen, m):
        j = m.job
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.end, p, gen, m)
        p.running.pop(j.id, None); p.free += 1
        if j.done == 1: s.n['dupe'] += 1
        j.done = 1
        if any(l.slots for l, c in j.claims):
            s.n['rel'] += 1; s.at(s.now + RTT / 2, s.s_rel, p, gen, j)
        s.pump(p); s.kickall(p)
        if s.R['cap'] and p.free > 0 and p.told:
            # it was full, and said so: now it says that it has a thread
            for l in [l for l, c in j.claims if l in p.told][:1] or list(p.told)[:1]:
                p.told.pop(l)
                if any(i in p.hand for i in p.bylist.get(l, ())): s.look(p, gen, l)
    def s_rel(s, p, gen, j):
        for l, c in j.claims: l.holders.pop(j.id, None) if l.slots else 0
        mine, nexts = s.ring([l for l, c in j.claims], p)
        s.at(s.now + RTT / 2, s.r_look, p, gen, mine, nexts, ())
    def lease_end(s, j, t):
        for l, c in j.claims:
            if l.slots and l.holders.get(j.id) == t: del l.holders[j.id]
        s.ring([l for l, c in j.claims if l.slots], None)
    # ---- looks
    def look(s, p, gen, l, net=False):
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.look, p, gen, l, net)
        s.n['look'] += 1
        s.at(s.now + RTT / 2, s.s_look, p, gen, l, net, p.free)
        if p.free <= 0: p.told[l] = True
    def s_look(s, p, gen, l, net, free):
        if s.now < s.storedown: return
        if l.appt <= s.st + .001: l.appt = -1e9
        s.seen[p.oid] = s.now
        if p.oid in l.owners: o = l.owners[p.oid]; o.seen = s.st; o.deaf = False; o.cap = free if s.R['cap'] else 1e9
        mine, nexts = s.ring([l], p)
        o = l.owners.get(p.oid)
        again = ()
        if net:
            if o: mine += [(l, i, s.local(l.ent[i].at)) for i in o.woken if (l, i, s.local(l.ent[i].at)) not in mine]      # bells that were lost
            if s.R['resync']:
                mineids = l_ids(p, l)
                if p.epochs.get(l, l.epoch) != l.epoch: again = list(mineids)
                else: again = [i for i in mineids[:8] if i not in l.ent or l.ent[i].oid != p.oid]
                p.epochs[l] = l.epoch
        s.at(s.now + RTT / 2, s.r_look, p, gen, mine, nexts, again)
    def r_look(s, p, gen, mine, nexts, again):
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.r_look, p, gen, mine, nexts, again)
        for l, i, at in mine: s.woken(p, i, at)
        for k, i in enumerate(again):
            m = p.hand.pop(i, None)
            if m: p.coming[i] = m; s.at(s.now + k * .001, s.setready, p, gen, m, 0.)
        for l, na in nexts: s.plan(p, l, na)
    def netlook(s, p, gen):
        if p.dead or gen != p.gen: return
        if s.now < p.hang: return s.at(p.hang, s.netlook, p, gen)
        beat = False
        for l, ids in list(p.bylist.items()):
            if not any(i in p.hand for i in ids): del p.bylist[l]; continue
            if len(ids) > 64: p.bylist[l] = {i: m for i, m in ids.items() if i in p.hand}
            if s.R['net'] == 'due':
                # a slow list needs no look each half second: the next unit's time says when
                if s.now < p.nextlook.get(l, 0.): continue
                per = .5 if l.slots else min(max(5., 1 / l.rate), max(.5, 2. * len(l.owners) / l.rate))
                p.nextlook[l] = s.now + per - .01
            s.look(p, gen, l, True); beat = True
        if not beat and s.R['alive'] and p.bylist: s.n['look'] += 1; s.seen[p.oid] = s.now
        s.at(s.now + NET, s.netlook, p, gen)
    # ---- the park: one waker, by a lease
    parked = set()
    heldq = ()
    def parkwake(s, l, i, at):
        w = s.procs[s.waker]
        if w.dead or s.now < w.hang: return
        s.parkmove(l, i, False)
    def parkmove(s, l, i, near):
        e = l.ent.get(i)
        for q, d in s.park.items():
            m = d.pop(i, None)
            if m:
                m.near = near; s.n['parkmove'] += 1; s.moved.add(i); s.moved0.add(i)
                if s.now < s.lossy and s.rng.random() < .3: m.job.done = -2; return
                if m.job.until and s.now > m.job.until: m.job.done = -1; s.moved.discard(i); s.leave(m.job); s.n['leave'] -= .8; return
                return s.push(m, True)
        if e and e.oid[0] == 'k' and near is not None:
            # not in the park: on its way, or purged. Called a second time (2 s later) it is taken for gone, and put aside
            first = e.strikes == 0 and i in s.moved0
            e.strikes += 1
            if not first and e.woken is None:
                l.out(e); s.n['leave'] += .1
                if s.R['free'] == 'aside': l.aside[i] = s.now
                else: l.memo.pop(i, None)
                if s.R['again']: s.pnext[l] = 0.; s.missing = True
    def parkloop(s):
        w = s.procs[s.waker]
        if w.dead or s.now < w.hang:
            if s.now >= s.lease:
                live = [p.i for p in s.procs if not p.dead and s.now >= p.hang]
                if live: s.waker = s.rng.choice(live); s.lease = s.now + LEASE; s.newwaker = True
            return s.at(s.now + .25, s.parkloop)
        s.lease = s.now + LEASE
        if s.home == 'park' and s.now >= s.storedown:
            for l in list(s.lists.values()):
                if not any(o.oid[0] == 'k' and (o.order or o.woken) for o in l.owners.values()):
                    continue
                if s.R['net'] == 'due':
                    if s.now < s.pnext.get(l, 0.): continue
                    s.pnext[l] = s.now + (.5 if l.slots or l.rate >= 2 else min(5., max(.5, .25 * s.nearbudget(l) / l.rate))) - .01
                s.n['look'] += 1
                for oid, i, at in l.wake(s.st):
                    at = s.local(at)
                    if oid[0] == 'k': s.at(s.now + .002, s.parkmove, l, i, False)
                    else: s.at(s.now + BELL, s.bellrung, oid, l, i, at)
                for o in list(l.owners.values()):
                    if o.oid[0] != 'k': continue
                    for i in list(o.woken):                                                    # woken, still in the park: the bell was lost
                        if any(i in d for d in s.park.values()): s.parkmove(l, i, False)
                    out = 0
                    if s.R['nearwin']: out = sum(1 for k in o.order[:200] if s.st - l.ent[k[3]].called < 1.)
                    N = s.nearbudget(l)
                    for k in o.order[:int(N) + 200]:
                        e = l.ent[k[3]]
                        if 0 <= s.st - e.called < 2.0 and e.called != -9: continue
                        if s.R['nearwin']:
                            if out >= N / 2: break
                        if s.rank_for(l, k, o) >= N: break
                        e.called = s.st; out += 1; s.n['near'] += 1
                        s.at(s.now + .002, s.parkmove, l, k[3], True)
                # after a flush of the limits' store, what is parked is not known there: bring it back
            if s.R['resync']:
                for q, d in s.park.items():
                    lost = [i for i, m in list(d.items())[:400] if not any(i in l.ent or i in l.aside for l, c in m.job.claims)]
                    for i in lost[:200]:
                        m = d.pop(i); m.near = False; s.push(m, True)
        s.at(s.now + NET, s.parkloop)
        if s.R['again']: s.at(s.now + .01, s.parkagain)
    def parkagain(s):
        """What the waker did not find makes room for others at once."""
        if not s.missing: return
        s.missing = False
        w = s.procs[s.waker]
        if w.dead or s.now < w.hang: return
        for l in list(s.lists.values()):
            if s.pnext.get(l, 1.) != 0.: continue
            s.pnext[l] = s.now + NET; s.n['look'] += 1
            for o in list(l.owners.values()):
                if o.oid[0] != 'k': continue
                N = s.nearbudget(l)
                for k in o.order[:int(N) + 200]:
                    e = l.ent[k[3]]
                    if 0 <= s.st - e.called < 2.0 and e.called != -9: continue
                    if s.rank_for(l, k, o) >= N: break
                    e.called = s.st
                    s.at(s.now + .002, s.parkmove, l, k[3], True)
        s.at(s.now + .01, s.parkagain)
    pnext = None
    def rank_for(s, l, key, mine):
        """How many come before: with the corrected rule only those of live owners, and of this queue's park."""
        r = 0
        for o in l.owners.values():
            if s.R['nearlive']:
                if o.oid[0] == 'p' and l.skipped(o, s.st): continue
                if o.oid[0] == 'k' and o is not mine: continue
                if o.oid[0] == 'p' and mine.oid != 'k' and mine.oid[1:] not in s.byid[o.oid].queues: continue
            r += bisect_left(o.order, key)
        return r
    def own(s, p, gen):
        if p.dead or gen != p.gen: return
        buf, p.ownbuf = p.ownbuf, {}
        s.n['own'] += 1; s.seen[p.oid] = s.now
        for i, m in buf.items():
            p.coming.pop(i, None)
            j = m.job; got = None
            if j.until and s.now > j.until: j.done = -1; s.leave(j); continue
            for l, c in j.claims:
                e = l.ent.get(i)
                if e is None and i in l.aside: e = l.enter(j, c, p.oid, s.st)
                if e is None: continue
                got = l
                if e.oid != p.oid:
                    w = e.woken
                    o = l.owners[e.oid]
                    if w is None:
                        k = bisect_left(o.order, e.key); del o.order[k]
                        insort(l.owner(p.oid, s.st).order, e.key)
                    else:
                        o.woken.pop(i, None); l.owner(p.oid, s.st).woken[i] = w
                    e.oid = p.oid
                p.hand[i] = m; p.bylist.setdefault(l, {})[i] = m
                if j.until: s.at(j.until + .001, s.expire, p, gen, j)
                if e.woken is not None: s.woken(p, i, s.local(e.at))
                break
            if got is None: p.fresh.append(m)
        for l in {l for m in buf.values() for l, c in m.job.claims}:
            for oid, i, at in l.wake(s.st): s.at(s.now + BELL, s.bellrung, oid, l, i, s.local(at))
        s.pump(p)
    # ---- events
    def kill(s, p, back=None, graceful=False):
        p.dead = True; p.gen += 1
        ms = list(p.fresh) + [x[2] for x in p.ready] + list(p.hand.values()) + [m for k, m in p.coming.items() if not isinstance(k, tuple)] + list(p.running.values()) + list(p.asking.values()) + list(p.ownbuf.values())
        p.fresh, p.ready, p.hand, p.coming, p.running, p.asking, p.ownbuf, p.bylist, p.flying, p.planned = deque(), [], {}, {}, {}, {}, {}, {}, 0, {}
        for m in {m.job.id: m for m in ms}.values():
            m.near = False
            s.at(s.now + (.05 if graceful else s.redeliver), s.push, m, False)
        if back is not None: s.at(s.now + back, s.revive, p)
    def revive(s, p):
        # a new process is a new owner
        s.byid.pop(p.oid, None); np = 'p%d.%d' % (p.i, p.gen)
        old, p.oid = p.oid, np
        s.byid[old] = s.byid[np] = p
        p.dead, p.free, p.hang = False, p.threads, 0.
        s.at(s.now + .1, s.netlook, p, p.gen); s.kickall(p)
    def hangp(s, p, d): p.hang = s.now + d; s.at(p.hang + .001, s.wakeup, p)
    def wakeup(s, p): s.pump(p); s.kickall(p)
    def flush(s):
        for l in s.lists.values(): l.clear(); l.tok, l.t0, l.holders = float(l.burst), s.st, {}
        s.flushed = s.now
    def sample(s):
        """Is there anybody who waits, alive, while the units are idle?"""
        for l in s.lists.values():
            if l.slots: idle = len(l.holders) < l.slots
            else: idle = l.avail(s.st) >= l.burst - 1e-6 and not l.paused
            if idle and s.livewait(l): s.idle.setdefault(l.name, []).append(s.now)
        s.at(s.now + (.1 if len(s.lists) < 50 else 1.), s.sample)
    def livewait(s, l):
        if s.now < s.storedown: return False
        for e in list(l.ent.values())[:50] if len(s.lists) > 50 else l.ent.values():
            if e.job.done or any(x.paused or x.avail(s.st) < c for x, c in e.job.claims if x is not l): continue
            if e.oid[0] == 'k':
                if any(e.id in d for d in s.park.values()) and any(not p.dead and s.now >= p.hang and p.free and e.job.queue in p.queues for p in s.procs): return True
            else:
                p = s.byid.get(e.oid)
                if p and p.oid == e.oid and not p.dead and s.now >= p.hang and p.free and (e.id in p.hand): return True
        return False

def R_cap(s): return s.R['cap']

def l_ids(p, l):
    return [i for i in p.bylist.get(l, ()) if i in p.hand]

# ---------------------------------------------------------------- what is checked
def bound(l):
    """The exact bound in every window: granted <= burst + units that came. Worst excess in units (<= 0 is kept)."""
    if l.slots:
        return 0
    hist, k, cum, t0 = l.history, 0, 0., 0.
    lo, P, worst = 1e18, 0., -1e18
    for t, c, j in l.log:
        while k + 1 < len(hist) and hist[k + 1][0] <= t:
            cum += (hist[k + 1][0] - t0) * hist[k][1]; t0 = hist[k + 1][0]; k += 1
        C = cum + (t - t0) * hist[k][1]
        lo = min(lo, P - C); P += c
        worst = max(worst, P - C - lo - l.maxburst)
    return worst

def use(l, a, b):
    got = sum(c for t, c, j in l.log if a <= t < b)
    if l.slots: return 0.
    cap = 0.; h = l.history
    for i, (t, r) in enumerate(h):
        e = h[i + 1][0] if i + 1 < len(h) else 1e18
        cap += max(0., min(b, e) - max(a, t)) * r
    return got / cap if cap else 0.

def slotuse(l, a, b, sim):
    return sum(max(0., min(b, j.started + j.body) - max(a, j.started)) for t, c, j in l.log if j.started) / (l.slots * (b - a))

def recovery(l, t, T, sim=None, need=.95, w=2.0):
    x = t
    while x < T - w:
        u = slotuse(l, x, x + w, sim) if l.slots else use(l, x, x + w)
        if u >= need: return x - t
        x += .1
    return 999.

def disorder(l, key=lambda j: (j.cls, j.tenant)):
    """Share of jobs that pass after one that was denied later, of the same tenant and class; worst displacement."""
    seqs = {}
    for t, c, j in l.log:
        if j.first: seqs.setdefault(key(j), []).append(j.first)
    n = bad = worst = 0
    for q in seqs.values():
        srt = sorted(q)
        for i, f in enumerate(q):
            d = abs(bisect_left(srt, f) - i); n += 1
            if d: bad += 1; worst = max(worst, d)
    return (bad / n if n else 0.), worst

def pct(xs, q):
    xs = sorted(xs)
    return xs[min(len(xs) - 1, int(q * len(xs)))] if xs else 0.

def longest(ts, step=.1):
    best = run = 0.; last = None
    for t in ts:
        run = run + step if last is not None and t - last < 1.5 * step else step
        best = max(best, run); last = t
    return best

def apart(l, weights, a, b):
    """The worst distance of two tenants' service divided by weight, in units, over [a, b) in which all of them wait."""
    got = {k: 0. for k in weights}; worst = 0.
    for t, c, j in l.log:
        if a <= t < b and j.tenant in got:
            got[j.tenant] += c / weights[j.tenant]
            worst = max(worst, max(got.values()) - min(got.values()))
    return worst

# ---------------------------------------------------------------- scenarios: f(R, seed, **kw) -> (sim, dict of figures)
S = {}
def scenario(f): S[f.__name__] = f; return f

def mk(R, seed, T, **kw):
    s = Sim(R, seed, **kw); s.T = T; s.parked, s.pnext = set(), {}
    return s

def report(s, l, a, b, extra=None, light=None, left=True):
    d = {}
    done = [j for j in s.jobs if j.done == 1]
    d['use'] = round(slotuse(l, a, b, s) if l.slots else use(l, a, b), 3)
    n = max(1, len({j.id for x in s.lists.values() for t, c, j in x.log}))
    ran = {j.id for x in s.lists.values() for t, c, j in x.log}
    d['asks'] = round(sum(j.ask for j in s.jobs if j.id in ran) / n, 2)
    d['bdel'] = round(sum(j.ndel for j in s.jobs if j.id in ran) / n, 2)
    d['ops'] = round((s.n['ask'] - sum(j.ask for j in s.jobs if j.id not in ran and not j.until) + s.n['look'] + s.n['own'] + s.n['rel'] + s.n['leave']) / n, 2)
    o, w = disorder(l)
    d['ooo%'], d['ooomax'] = round(100 * o, 1), w
    d['idle'] = round(max([longest(v, .1 if len(s.lists) < 50 else 1.) for v in s.idle.values()] or [0]), 1)
    x = max(bound(q) for q in s.lists.values())
    d['excess'] = round(x, 6) if x > 1e-6 else 0
    if light:
        ws = [j.started - j.born for j in done if light(j) and j.started]
        d['l50'], d['l99'] = round(pct(ws, .5), 2), round(pct(ws, .99), 2)
        d['lmiss'] = sum(1 for j in s.jobs if light(j) and not j.done and j.born < b - 5)
    if left: d['left'] = sum(1 for j in s.jobs if not j.done and j.born < s.now)
    if s.n['probe']: d['probes'] = s.n['probe']
    if extra: d.update(extra)
    return d

def back(s, l, n, t=0., tenant='a', **kw):
    for i in range(n): s.job(t + i * 1e-4, [(l, kw.get('cost', 1.))], tenant=tenant, **{k: v for k, v in kw.items() if k != 'cost'})
def flow(s, claims, rate, a, b, **kw):
    t = a + s.rng.expovariate(rate)
    while t < b:
        s.job(t, claims(s) if callable(claims) else claims, **kw); t += s.rng.expovariate(rate)

def simple(R, seed, rate=50., burst=10, T=None, home='park', lat='fast', n=None, **kw):
    T = T or 40.; s = mk(R, seed, T, home=home, lat=lat, **kw); l = s.add('L', rate, burst)
    back(s, l, n or int(rate * T * 1.3))
    s.run(T)
    return s, report(s, l, 3, T, left=False)

@scenario
def one(R, seed, **k): return simple(R, seed, **k)
@scenario
def one_held(R, seed, **k): return simple(R, seed, home='held', **k)
@scenario
def slow1(R, seed, **k): return simple(R, seed, rate=1., burst=1, T=120., **k)
@scenario
def r10b1(R, seed, **k): return simple(R, seed, rate=10., burst=1, T=60., **k)
@scenario
def r50b1(R, seed, **k): return simple(R, seed, rate=50., burst=1, **k)
@scenario
def r50b2(R, seed, **k): return simple(R, seed, rate=50., burst=2, **k)
@scenario
def r50b50(R, seed, **k): return simple(R, seed, rate=50., burst=50, **k)
@scenario
def fast1000(R, seed, **k): return simple(R, seed, rate=1000., burst=100, T=12., procs=16, **k)
@scenario
def fast1000_b1(R, seed, **k): return simple(R, seed, rate=1000., burst=1, T=8., procs=16, **k)
@scenario
def poll_b1(R, seed, **k): return simple(R, seed, rate=10., burst=1, T=60., lat='poll', **k)
@scenario
def over_b1(R, seed, **k): return simple(R, seed, rate=10., burst=1, T=60., lat='over', **k)
@scenario
def over_b10(R, seed, **k): return simple(R, seed, lat='over', **k)

def floody(R, seed, rate=50., burst=10, T=60., lat='fast', home='park', lights=10, lrate=.1, **kw):
    s = mk(R, seed, T, lat=lat, home=home, **kw); l = s.add('L', rate, burst, share=True)
    back(s, l, int(rate * T * 1.2), tenant='heavy')
    for i in range(lights): flow(s, [(l, 1.)], lrate * rate / 50, 10, T, tenant='l%d' % i)
    s.run(T)
    return s, report(s, l, 3, T, light=lambda j: j.tenant != 'heavy', left=False)
@scenario
def flood(R, seed, **k): return floody(R, seed, **k)
@scenario
def flood_held(R, seed, **k): return floody(R, seed, home='held', **k)
@scenario
def flood_over(R, seed, **k): return floody(R, seed, lat='over', **k)
@scenario
def flood_b1(R, seed, **k): return floody(R, seed, rate=10., burst=1, T=120., lrate=.3, **k)

@scenario
def weights(R, seed, T=40., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10, share=True); w = dict(a=1., b=5., c=25.)
    for t, x in w.items(): back(s, l, 2500, tenant=t, weight=x)
    s.run(T)
    return s, report(s, l, 3, T, dict(apart=round(apart(l, w, 2, T), 2)), left=False)

@scenario
def classes16(R, seed, T=60., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10, share=True)
    for c in range(16): flow(s, [(l, 1.)], 4., 0, T - 10, cls=c, tenant='t%d' % (c % 3))
    s.run(T)
    hi = [j.started - j.born for j in s.jobs if j.done == 1 and j.cls < 8]
    return s, report(s, l, 10, T - 12, dict(hi50=round(pct(hi, .5), 2), hi99=round(pct(hi, .99), 2)), left=False)

@scenario
def costs(R, seed, T=60., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10, share=True); w = dict(a=1., b=1., c=1.)
    for t in w:
        for i in range(1500): s.job(i * 1e-4, [(l, float(s.rng.choice([1, 1, 1, 3, 10]) if t != 'c' else 10))], tenant=t)
    s.run(T)
    return s, report(s, l, 3, T, dict(apart=round(apart(l, w, 2, T), 1)), left=False)

def ratechange(R, seed, f, T=60., home='park', **k):
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10)
    back(s, l, 12000 if f > 1 else 2500)
    s.at(20., l.setrate, 20., 50. * f); s.run(20.); s.run(T)
    e = min(T, 20 + (12000 - 1100) / (50. * f))
    return s, report(s, l, 3, min(T, e), dict(full=round(recovery(l, 20., e), 1)), left=False)
@scenario
def rate_x10(R, seed, **k): return ratechange(R, seed, 10., T=35., **k)
@scenario
def rate_d10(R, seed, **k): return ratechange(R, seed, .1, **k)
@scenario
def pause10(R, seed, T=50., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back(s, l, 3000)
    s.at(15., setattr, l, 'paused', True); s.at(25., setattr, l, 'paused', False); s.run(T)
    return s, report(s, l, 27, T, dict(full=round(recovery(l, 25., T), 1)), left=False)

@scenario
def expiring(R, seed, T=60., home='park', **k):
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10)
    t = 0.
    while t < T - 10:
        s.job(t, [(l, 1.)], ttl=3. if s.rng.random() < .9 else 0.); t += s.rng.expovariate(200.)
    s.run(T)
    return s, report(s, l, 3, T - 11, left=False)

def two(R, seed, heavy=40., srate=50., krate=10., T=60., n=4, pausekey=False, **k):
    """A shared limit, and one by key; a heavy key that its own limit binds, others that only the shared one binds."""
    s = mk(R, seed, T, **k); sh = s.add('S', srate, 10)
    K = [s.add('K%d' % i, krate, 5) for i in range(n)]
    flow(s, [(sh, 1.), (K[0], 1.)], heavy, 0, T, tenant='k0')
    for i in range(1, n): flow(s, [(sh, 1.), (K[i], 1.)], (srate * 1.1 - min(heavy, krate)) / (n - 1) * .5, 0, T, tenant='k%d' % i)
    flow(s, [(sh, 1.)], (srate * 1.1 - min(heavy, krate)) * .5, 0, T, tenant='none')
    if pausekey: s.at(15., setattr, K[1], 'paused', True); s.at(45., setattr, K[1], 'paused', False)
    s.run(T)
    x = {'k0/s': round(sum(1 for t, c, j in K[0].log if 10 < t < T) / (T - 10), 1),
         'none/s': round(sum(1 for t, c, j in sh.log if j.tenant == 'none' and 10 < t < T) / (T - 10), 1)}
    mine = [j.started - j.born for j in s.jobs if j.done == 1 and j.tenant == 'none']
    x['n99'] = round(pct(mine, .99), 1)
    return s, report(s, sh, 10, T, x, left=False)
@scenario
def two_limits(R, seed, **k): return two(R, seed, **k)
@scenario
def two_paused_key(R, seed, **k): return two(R, seed, pausekey=True, **k)
@scenario
def two_both_full(R, seed, T=60., **k):
    """Both bind: all keys have backlogs, and their rates together are more than the shared one."""
    s = mk(R, seed, T, **k); sh = s.add('S', 50., 10); K = [s.add('K%d' % i, 10., 5) for i in range(8)]
    for i in range(8): back(s, sh, 0)
    for i in range(4000): s.job(i * 2e-3, [(sh, 1.), (K[i % 8], 1.)], tenant='k%d' % (i % 8))
    s.run(T)
    return s, report(s, sh, 8, T, left=False)

def slots(R, seed, n=8, body=.1, T=60., procs=4, threads=8, **k):
    s = mk(R, seed, T, procs=procs, threads=threads, **k); l = s.add('L', slots=n)
    rng = s.rng
    for i in range(int(T / body * n * 1.3)): s.job(i * 1e-4, [(l, 1.)], body=body * (.5 + rng.random()))
    s.run(T)
    return s, report(s, l, 2, T - 2, left=False)
@scenario
def slots_01(R, seed, **k): return slots(R, seed, body=.1, T=30., **k)
@scenario
def slots_2s(R, seed, **k): return slots(R, seed, body=2., **k)
@scenario
def slots_1(R, seed, **k): return slots(R, seed, n=1, body=.2, **k)
@scenario
def slots_die(R, seed, n=2, T=90., lease=10., **k):
    """Two slots; 6 of 8 owners die with waiting jobs at 20 s and return as new ones after 5 s; leases of 10 s."""
    s = mk(R, seed, T, procs=8, threads=4, home='held', lease=lease, redeliver=30., **k); l = s.add('L', slots=n)
    for i in range(900): s.job(i * 1e-4, [(l, 1.)], body=.2)
    for i in range(6): s.at(20., s.kill, s.procs[i], 5.)
    s.run(T)
    return s, report(s, l, 2, 70, dict(full=round(recovery(l, 20., T, s, .9), 1), u2040=round(slotuse(l, 20, 40, s), 2)), left=False)

@scenario
def hang30(R, seed, T=70., home='held', **k):
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); back(s, l, 4500)
    s.at(15., s.hangp, s.procs[2], 30.); s.run(T)
    return s, report(s, l, 3, T, dict(full=round(recovery(l, 15., T), 1), u1=round(use(l, 15, 16), 2), u5=round(use(l, 16, 20), 2)), left=False)
@scenario
def hang30_slow(R, seed, T=120., **k):
    """1/s, burst 1: what does an owner that hangs cost?"""
    s = mk(R, seed, T, home='held', **k); l = s.add('L', 1., 1); back(s, l, 300)
    for i in range(4): s.at(20., s.hangp, s.procs[i], 60.)
    s.run(T)
    return s, report(s, l, 3, T, dict(full=round(recovery(l, 20., T, None, .9, 5.), 1), u20=round(use(l, 20, 40), 2)), left=False)

@scenario
def half_die(R, seed, T=80., home='park', **k):
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); back(s, l, 4500)
    for i in range(4): s.at(15., s.kill, s.procs[i], 5.)
    s.run(T)
    return s, report(s, l, 3, T, dict(full=round(recovery(l, 15., T), 1)), left=False)
def rolling(R, seed, rate=50., burst=10, T=150., graceful=False, procs=50, home='held', every=1., **k):
    s = mk(R, seed, T, procs=procs, threads=4, home=home, redeliver=30., **k); l = s.add('L', rate, burst); back(s, l, int(rate * T * 1.2))
    for i in range(procs): s.at(20. + i * every, s.kill, s.procs[i], 3., graceful)
    s.run(T)
    return s, report(s, l, 3, T, dict(u=round(use(l, 20, 20 + procs * every), 2), after=round(use(l, 20 + procs * every, T), 2)), left=False)
@scenario
def rolling50(R, seed, **k): return rolling(R, seed, **k)
@scenario
def rolling50_park(R, seed, **k): return rolling(R, seed, home='park', **k)
@scenario
def rolling50_1s(R, seed, **k): return rolling(R, seed, rate=1., burst=1, T=300., every=2., **k)
@scenario
def rolling50_polite(R, seed, **k): return rolling(R, seed, graceful=True, **k)

@scenario
def waker_dies(R, seed, T=50., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back(s, l, 3000)
    for t in (15., 25., 35.): s.at(t, lambda: s.kill(s.procs[s.waker], 5.))
    s.run(T)
    return s, report(s, l, 3, T, dict(w=round(use(l, 15, 18), 2), full=round(recovery(l, 15., T), 1)), left=False)

@scenario
def waker_hangs(R, seed, T=60., **k):
    """The park's waker hangs for 30 s: lease of 2 s, another takes it, the first one returns."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back(s, l, 4000)
    s.at(15., lambda: s.hangp(s.procs[s.waker], 30.)); s.run(T)
    return s, report(s, l, 3, T, dict(w=round(use(l, 15, 18), 2), full=round(recovery(l, 15., T), 1)), left=False)
@scenario
def slots_rolling(R, seed, T=90., **k):
    """4 slots, bodies of .5 s, leases of 5 s; 20 owners are killed one a second."""
    s = mk(R, seed, T, procs=20, threads=4, home='held', lease=5., redeliver=20., **k); l = s.add('L', slots=4)
    for i in range(1000): s.job(i * 1e-4, [(l, 1.)], body=.5)
    for i in range(20): s.at(20. + i, s.kill, s.procs[i], 3.)
    s.run(T)
    return s, report(s, l, 2, 70, dict(u=round(slotuse(l, 20, 40, s), 2), after=round(slotuse(l, 46, 70, s), 2)), left=False)
@scenario
def zipf300(R, seed, T=60., **k):
    """300 tenants, Zipf, 100/s offered of 50/s: a light tenant is one of rank over 100."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10, share=True); w = [1 / (i + 1) for i in range(300)]; W = sum(w)
    for i in range(300): flow(s, [(l, 1.)], 100. * w[i] / W, 0, T, tenant=i)
    s.run(T)
    return s, report(s, l, 5, T, light=lambda j: j.tenant >= 100, left=False)
def purge(s, park=0., queue=False):
    if park:
        for q, d in s.park.items():
            for i in list(d):
                if s.rng.random() < park: d.pop(i).job.done = -2
    if queue:
        for q, d in s.broker.items():
            for m in [m for m in d if m.job.id in s.moved]: m.job.done = -2; d.remove(m)
@scenario
def purge_waiting(R, seed, T=60., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back(s, l, 8000)
    s.at(15., purge, s, .7); s.run(T)
    return s, report(s, l, 17, T, dict(full=round(recovery(l, 15., T), 1)), left=False)
@scenario
def purge_woken(R, seed, T=60., **k):
    """From 15 to 20 s, 30 % of the messages that go from the park to a worker are purged on the way, and nobody tells."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back(s, l, 6000)
    s.at(15., setattr, s, 'lossy', 20.); s.run(T)
    return s, report(s, l, 20, T, dict(full=round(recovery(l, 15., T), 1), gone=sum(j.done == -2 for j in s.jobs)), left=False)
@scenario
def purge_direct(R, seed, T=60., **k):
    """The same, with near hands off: every wake goes through the park."""
    return purge_woken(dict(R, near=('fixed', 0)), seed, T, **k)
@scenario
def parked_only(R, seed, **k): return simple(dict(R, near=('fixed', 0)), seed, **k)
@scenario
def parked_only_over(R, seed, **k): return floody(dict(R, near=('fixed', 0)), seed, lat='over', **k)
@scenario
def worker_bound(R, seed, T=60., home='park', **k):
    """The workers can do 40/s of the 50/s: 8 processes of 2 threads, bodies of .4 s."""
    s = mk(R, seed, T, threads=2, home=home, **k); l = s.add('L', 50., 10, share=True)
    for i in range(4000): s.job(i * 1e-4, [(l, 1.)], tenant='heavy', body=.4)
    for i in range(10): flow(s, [(l, 1.)], .1, 10, T, tenant='l%d' % i, body=.4)
    s.run(T)
    return s, report(s, l, 10, T, light=lambda j: j.tenant[0] == 'l', left=False)
@scenario
def hang_light(R, seed, T=70., **k):
    """Owners that hang beside light tenants: 2 of 8 hang for 30 s; light jobs of the live ones."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10, share=True); back(s, l, 4500, tenant='heavy')
    for i in range(10): flow(s, [(l, 1.)], .1, 5, T, tenant='l%d' % i)
    for i in (2, 5): s.at(15., s.hangp, s.procs[i], 30.)
    s.run(T)
    return s, report(s, l, 5, T, dict(u1=round(use(l, 15, 16), 2)), light=lambda j: j.tenant[0] == 'l', left=False)
@scenario
def rate_and_slots(R, seed, T=60., **k):
    """A job needs 1 of 20/s and one of 4 slots (bodies .15 s: 26/s): the rate binds; at 30 s bodies of .5 s: the slots bind."""
    s = mk(R, seed, T, **k); l = s.add('R', 20., 5); q = s.add('Z', slots=4)
    for i in range(1500): s.job(i * 1e-3, [(l, 1.), (q, 1.)], body=.15 if i < 600 else .5)
    s.run(T)
    return s, report(s, l, 5, 29, dict(slot=round(slotuse(q, 36, 58, s), 2)), left=False)
@scenario
def three_limits(R, seed, T=60., **k):
    """Shared 50/s, account 5/s (20 of them), endpoint 20/s (3): every job has all three; one endpoint is paused 15-45 s."""
    s = mk(R, seed, T, **k); sh = s.add('S', 50., 10); A = [s.add('A%d' % i, 5., 5) for i in range(20)]; E = [s.add('E%d' % i, 20., 5) for i in range(3)]
    flow(s, lambda s: [(sh, 1.), (s.rng.choice(A), 1.), (s.rng.choice(E), 1.)], 54., 0, T)
    s.at(15., setattr, E[0], 'paused', True); s.at(45., setattr, E[0], 'paused', False); s.run(T)
    p = sum(1 for t, c, j in sh.log if 17 < t < 44) / 27
    return s, report(s, sh, 5, 15, dict(paused_rest=round(p, 1)), left=False)
@scenario
def redelivered(R, seed, T=60., **k):
    """At 15 s the broker delivers every message that is in a worker's hands once more (a visibility time-out)."""
    s = mk(R, seed, T, home='held', **k); l = s.add('L', 50., 10); back(s, l, 1500)
    def again():
        for p in s.procs:
            for m in list(p.hand.values()):
                if s.rng.random() < .5: s.push(Msg(m.job), False)
    s.at(15., again); s.run(T)
    orphans = sum(1 for p in s.procs for m in p.hand.values())
    return s, report(s, l, 3, 25, dict(orphans=orphans, dupes=s.n['dupe']))

@scenario
def lost_answers(R, seed, T=60., home='park', **k):
    s = mk(R, seed, T, ans_loss=.02, home=home, **k); l = s.add('L', 50., 10, share=True)
    back(s, l, 2000, tenant='heavy')
    for i in range(10): flow(s, [(l, 1.)], .1, 1, T - 10, tenant='l%d' % i)
    s.run(T)
    return s, report(s, l, 3, 35, light=lambda j: j.tenant != 'heavy')
@scenario
def lost_bells(R, seed, T=40., **k):
    s = mk(R, seed, T, bell_loss=.05, **k); l = s.add('L', 50., 10); back(s, l, 2600); s.run(T)
    return s, report(s, l, 3, T, left=False)
@scenario
def no_bell(R, seed, T=40., **k):
    s = mk(dict(R, bell=False), seed, T, **k); l = s.add('L', 50., 10); back(s, l, 2600); s.run(T)
    return s, report(s, l, 3, T, left=False)

@scenario
def flushed(R, seed, T=60., home='park', **k):
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); back(s, l, 2000)
    s.at(15., s.flush); s.run(T)
    l.maxburst += 10
    return s, report(s, l, 17, 38, dict(full=round(recovery(l, 15., T), 1)))
@scenario
def flushed_held(R, seed, **k): return flushed(R, seed, home='held', **k)
@scenario
def store_away(R, seed, T=60., **k):
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back(s, l, 2000)
    s.at(15., setattr, s, 'storedown', 25.); s.run(T)
    return s, report(s, l, 26, 45, dict(full=round(recovery(l, 25., T), 1)))

def queues2(R, seed, T=60., home='park', dead=False, burst=10, **k):
    """Two queues on one limit. B's two workers are slow (bodies of .4 s, 2 threads: 10/s), or all dead at 15 s."""
    s = mk(R, seed, T, home=home, procs=8, threads=lambda i: 2 if i >= 6 else 8, queues=lambda i: ['b'] if i >= 6 else ['a'], redeliver=1e9 if dead else 30., **k)
    l = s.add('L', 50., burst, share=True)
    for i in range(3500):
        s.job(i * 1e-4, [(l, 1.)], tenant='a', queue='a'); s.job(i * 1e-4, [(l, 1.)], tenant='b', queue='b', body=.4)
    if dead: s.at(15., s.kill, s.procs[6]); s.at(15., s.kill, s.procs[7])
    s.run(T)
    x = {q + '/s': round(sum(1 for t, c, j in l.log if j.queue == q and t > 20) / (T - 20), 1) for q in 'ab'}
    return s, report(s, l, 20, T, x, left=False)
@scenario
def queues_slow(R, seed, **k): return queues2(R, seed, **k)
@scenario
def queues_slow_held(R, seed, **k): return queues2(R, seed, home='held', **k)
@scenario
def queues_slow_b1(R, seed, **k): return queues2(R, seed, burst=1, **k)
@scenario
def queues_slow_b1_held(R, seed, **k): return queues2(R, seed, burst=1, home='held', **k)
@scenario
def queue_dead(R, seed, **k): return queues2(R, seed, dead=True, **k)
@scenario
def slow_light(R, seed, T=60., **k):
    """A slow queue beside a fast one, shares, light tenants on the fast queue: does its lead hurt them?"""
    s = mk(R, seed, T, home='held', threads=lambda i: 1 if i >= 6 else 8, queues=lambda i: ['b'] if i >= 6 else ['a'], **k)
    l = s.add('L', 50., 10, share=True)
    for i in range(4000): s.job(i * 1e-4, [(l, 1.)], tenant='a', queue='a'); s.job(i * 1e-4, [(l, 1.)], tenant='b', queue='b', body=.5)
    for i in range(10): flow(s, [(l, 1.)], .1, 10, T, tenant='l%d' % i, queue='a')
    s.run(T)
    return s, report(s, l, 3, T, light=lambda j: j.tenant[0] == 'l', left=False)
@scenario
def busy(R, seed, T=90., **k):
    """Half of the processes are full of other jobs' bodies of 10 s, by turns; a flood and light tenants beside them."""
    s = mk(R, seed, T, procs=8, threads=4, queues=lambda i: ['q', 'x'] if i < 4 else ['q'], **k); l = s.add('L', 50., 10, share=True)
    big = s.add('free', 1e6, 1000000)
    back(s, l, 6000, tenant='heavy')
    for i in range(10): flow(s, [(l, 1.)], .1, 12, T, tenant='l%d' % i)
    for t in range(10, 80, 20):
        for i in range(16): s.job(t + i * .01, [(big, 1.)], tenant='x', body=10., queue='x')
    s.run(T)
    return s, report(s, l, 5, T, light=lambda j: j.tenant[0] == 'l', left=False)

@scenario
def idle_with_dead(R, seed, T=90., **k):
    """A third of the limit is asked for; entries of dead processes stand in the list. Does a new job still pass at once?"""
    s = mk(R, seed, T, home='held', redeliver=1e9, **k); l = s.add('L', 50., 10); back(s, l, 300)
    for i in range(4): s.at(3., s.kill, s.procs[i], 1.)
    flow(s, [(l, 1.)], 17., 15, T, tenant='new')
    s.run(T)
    new = [j for j in s.jobs if j.tenant == 'new' and j.done == 1]
    ws = [j.started - j.born for j in new]
    return s, report(s, l, 15, T, dict(newasks=round(sum(j.ask for j in new) / max(1, len(new)), 2), n50=round(pct(ws, .5), 3), n99=round(pct(ws, .99), 3)), left=False)

def many(R, seed, lists=400, rate=1., T=30., each=None, **k):
    s = mk(R, seed, T, procs=8, threads=16, **k)
    ls = [s.add('K%d' % i, rate, 2) for i in range(lists)]
    n = each or int(rate * T * 1.2) + 4
    order = [l for l in ls for _ in range(n)]; s.rng.shuffle(order)
    for i, l in enumerate(order): s.job(i * 2. / len(order), [(l, 1.)], tenant=l.name)
    s.run(T)
    us = sorted(use(l, 5, T) for l in ls)
    d = report(s, ls[0], 5, T, left=False)
    d.update(use=round(sum(us) / len(us), 3), min=round(us[0], 2), opss=int((s.n['ask'] + s.n['look'] + s.n['own'] + s.n['leave']) / T))
    return s, d
@scenario
def keys400(R, seed, **k): return many(R, seed, **k)
@scenario
def keys5000(R, seed, **k): return many(R, seed, lists=5000, rate=.05, T=60., each=6, **k)

def main(argv):
    if argv == ['list']: return print('\n'.join(S))
    names = [a for a in argv if '=' not in a] or list(S)
    opt = dict(a.split('=', 1) for a in argv if '=' in a)
    rules = opt.pop('rules', 'text,corr').split(',')
    seeds = [int(x) for x in opt.pop('seeds', '1,2,3').split(',')]
    T = opt.pop('T', None)
    for name in names:
        for r in rules:
            rows = []
            for seed in seeds:
                R = dict(RULES[r])
                for k, v in opt.items(): R[k] = v if k in ('multi', 'place', 'free', 'nobody', 'parkowner', 'looks', 'net', 'patfrom', 'slots', 'early') or (k == 'lead' and v[0].isalpha()) else eval(v)
                t = time.time()
                _, d = S[name](R, seed, **({'T': float(T)} if T else {}))
                rows.append(d)
            keys = list(dict.fromkeys(k for d in rows for k in d))
            def cell(k):
                v = [d.get(k, 0) for d in rows]
                return '%s=%s' % (k, v[0] if min(v) == max(v) else '%s..%s' % (min(v), max(v)))
            print('%-16s %-5s %s  [%.0f s]' % (name, r, ' '.join(map(cell, keys)), time.time() - t), flush=True)

if __name__ == '__main__': main(sys.argv[1:])

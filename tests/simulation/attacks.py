"""New scenarios for design W, on the simulator of waitlist.py: where the first validation did not look.

    python attacks.py [NAME ...] [rules=corr,new] [seeds=1,2,3] [KEY=VALUE ...]

corr: the corrected rules of the first validation, section 3. new: with the changes of README.md. A KEY is a rule of RULES or of EXTRA below.
"""
import sys, time
import waitlist as V
from waitlist import *

EXTRA = dict(clock=False,     # wakes and turns from the future do not count; appointments from the future are void
             rel=True,        # answers carry delays; False: instants of the store's clock, read with the process's
             stale=60.,       # a state so far ahead of the clock is mended (STALE_US)
             qlive=False,     # queue=N does not count entries of deaf owners or those set aside
             qat='bind',      # queue=N is checked in the binding limit at each denial | in all limits, at the first denial only
             unknown=False,   # a process that is woken for a job that it does not hold sends leave
             refund=False,    # a grant that nobody takes is given back
             wf=False,        # a slot taken by a workflow wakes its other entries at once, at cost 0
             expbatch=0,      # the waker removes so many entries whose deadline passed, in one look, and goes on at once
             settlewake=False,# settle ends with wake(L)
             moved=False,     # what another waker moved is not "not found": the move says whether the message existed
             strict=False,    # two stores: a give-back returns the cost less what a full bucket would have refused since the charge
             refwake=False,   # a question that is refused (queue full) also ends with wake(L)
             twostore=None, keepturn=False, prefetch=None, old=None)
V.RULES['corr'] = dict(CORR, **EXTRA)
V.RULES['new'] = dict(CORR, **dict(EXTRA, clock=True, qlive=True, qat='first', unknown=True, refund=True, wf=True, expbatch=200, settlewake=True, refwake=True, strict=True, moved=True,
                                   keepturn=True))

class L2(List):
    def clear(s):
        super().clear(); s.queue = None; s.refusals = 0; s.wf = {}
    def elapsed(s, now):
        # GCRA: a state that lies more than `stale` ahead is mended; until then nothing comes
        if s.t0 > now:
            if s.t0 - now > s.sim.R['stale']: s.t0 = now; return 0.
            return now - s.t0
        return now - s.t0
    def drop_future(s, now):
        if not s.sim.R['clock']: return
        for e in s.ent.values() if s.sim.stepped > s.sim.now - 61 else ():
            if e.counted and e.at > now + 1.: e.counted = False; s.wc -= e.cost
    def turn_counts(s, u): return u >= s.sim.st and not (s.sim.R['clock'] and s.sim.st + 1.001 < u < 1e17)

class Sim2(Sim):
    stepped = -99.
    def __init__(s, *a, **k): s.retrying = set(); super().__init__(*a, **k)
    def add(s, *a, **k):
        l = L2(s, *a, **k); s.lists[l.name] = l; return l
    def step(s, d):
        s.off += d; s.stepped = s.now
    # ---- queue=
    def refused(s, j, B):
        for l in ([c[0] for c in j.claims] if s.R['qat'] == 'first' and not j.first else [B] if s.R['qat'] == 'bind' else []):
            if l.queue is None or j.id in l.ent: continue
            n = len(l.ent) - (sum(len(o.order) + len(o.woken) for o in l.owners.values() if o.deaf) if s.R['qlive'] else 0)
            if n >= l.queue: l.refusals += 1; j.done = -3; return True
        return False
    def refuse(s, p, gen, m):
        s.n['refused'] = s.n.get('refused', 0) + 1
        for l, c in m.job.claims:
            e = l.ent.get(m.job.id)
            if e: l.out(e)
            l.memo.pop(m.job.id, None); l.unmark(m.job.id)
        def back():
            if p.dead or gen != p.gen: return
            p.asking.pop(m.job.id, None); p.coming.pop(('w', m.job.id), None); p.free += 1; s.pump(p); s.kickall(p)
        if s.R['refwake']: s.ring([l for l, c in m.job.claims], None)      # a refused question ends with wake(L), like every script
        s.at(s.now + RTT / 2, back)
    # ---- cancelled callers
    def unknown_wake(s, p, i):
        if not s.R['unknown'] or i in p.coming or i in p.running or (p.oid, i) in s.retrying: return   # known in any state: no leave
        s.n['unk'] = s.n.get('unk', 0) + 1
        j = s.jobs[i]
        if p.oid[0] == 'p' and not p.dead:
            s.n['leave'] += .2
            s.at(s.now + RTT / 2, s.s_leave, j, p.oid)
    def r_lost(s, p, gen, m):
        if not p.dead and gen == p.gen and s.now >= p.hang: s.retrying.add((p.oid, m.job.id))
        super().r_lost(p, gen, m)
    def setready(s, p, gen, m, early):
        s.retrying.discard((p.oid, m.job.id)); super().setready(p, gen, m, early)
    def s_leave(s, j, oid):
        for l, c in j.claims:
            e = l.ent.get(j.id)
            if e and e.oid == oid: l.out(e); l.memo.pop(j.id, None); l.unmark(j.id)
        s.ring([l for l, c in j.claims], None)
    def cancel(s, j, lost):
        """The caller of job j is cancelled: its process forgets it, and sends leave, which may be lost."""
        for p in s.procs:
            m = p.hand.pop(j.id, None) or p.coming.pop(j.id, None)
            ready = [x for x in p.ready if x[2].job is j]
            if ready: p.ready.remove(ready[0]); heapq.heapify(p.ready)
            if m or ready:
                if j.done == 0: j.done = -4
                if s.rng.random() >= lost:
                    s.n['leave'] += 1; s.at(s.now + RTT / 2, s.s_leave, j, p.oid)
                return
            if j.id in p.asking: j.done = -4        # the question is on its way: its answer finds nobody
    def r_ask(s, p, gen, m, ans, mine, nexts):
        j = m.job
        if j.done == -4 and not p.dead and gen == p.gen and s.now >= p.hang:
            p.asking.pop(j.id, None); p.coming.pop(('w', j.id), None); p.free += 1
            if ans[0] == 'grant':
                s.n['wasted'] = s.n.get('wasted', 0) + 1
                if s.R['refund']: s.at(s.now + RTT / 2, s.s_refund, j); s.n['rel'] += 1
            elif s.R['unknown']: s.at(s.now + RTT / 2, s.s_leave, j, p.oid); s.n['leave'] += 1
            for l, i, at in mine: s.woken(p, i, at)
            for l, na in nexts: s.plan(p, l, na)
            s.pump(p); s.kickall(p); return
        super().r_ask(p, gen, m, ans, mine, nexts)
    def s_refund(s, j, only=None):
        for l, c in j.claims:
            if only is None or l in only:
                if l.slots: l.holders.pop(j.id, None)
                else:
                    l.tok, l.t0 = min(l.burst, l.avail(s.st) + c), s.st
                    for k in range(len(l.log) - 1, -1, -1):
                        if l.log[k][2] is j: del l.log[k]; break
        s.ring([l for l, c in j.claims if only is None or l in only], None)
    # ---- settle
    def settle(s, l, c):
        l.tok, l.t0 = min(l.burst, l.avail(s.st) - c), s.st
        l.history.append((s.now, l.rate)); s.n['rel'] += 1
        l.settled = getattr(l, 'settled', 0.) + c
        if s.R['settlewake']: s.ring([l], None)
    # ---- workflows: j.tenant is the workflow; a slot is held by it
    wfhold = None
    def passes_free(s, l, j): return s.wfhold is not None and l.slots and j.tenant in s.wfhold
    def cost_in(s, l, j, c): return 0. if s.passes_free(l, j) else c
    def after_grant(s, p, m):
        j = m.job
        if s.wfhold is None: return
        first = j.tenant not in s.wfhold
        s.wfhold.setdefault(j.tenant, j.id)
        for l, c in j.claims:
            if not l.slots: continue
            if not first: l.holders.pop(j.id, None)
            elif s.R['wf']:
                for e in [e for e in l.ent.values() if e.job.tenant == j.tenant and e.job is not j and e.woken is None]:
                    o = l.owners[e.oid]; i = bisect_left(o.order, e.key); del o.order[i]
                    o.woken[e.id] = s.st; e.woken, e.at, e.counted, e.cost = s.st, s.st, False, 0.
                    s.n['bell'] += 1; s.at(s.now + BELL, s.bellrung, e.oid, l, e.id, s.now)
    def end(s, p, gen, m):
        super().end(p, gen, m)
        if s.wfhold is not None and m.job.done == 1: s.wfdone(m.job)
    def s_rel(s, p, gen, j):
        if s.wfhold is not None: return s.at(s.now + RTT / 2, s.r_look, p, gen, [], [], ())
        super().s_rel(p, gen, j)
    # ---- deadlines in the park
    def parkloop(s):
        w = s.procs[s.waker]
        if s.R['expbatch'] and s.home == 'park' and not w.dead and s.now >= w.hang: s.expire_park()
        super().parkloop()
    def expire_park(s):
        n = 0
        for q, d in s.park.items():
            for i in [i for i, m in d.items() if m.job.until and s.now > m.job.until][:s.R['expbatch']]:
                m = d.pop(i); m.job.done = -1; n += 1
                for l, c in m.job.claims:
                    e = l.ent.get(i)
                    if e: l.out(e)
                    l.memo.pop(i, None); l.unmark(i)
        if n:
            s.n['look'] += 1; s.n['leave'] += .0; s.n['expired'] = s.n.get('expired', 0) + n
            if n >= s.R['expbatch']: s.at(s.now + .01, s.expire_park)
            else:
                for l in s.lists.values(): s.pnext[l] = 0.; s.missing = True

def mk(R, seed, T, **kw):
    s = Sim2(R, seed, **kw); s.T = T; s.parked, s.pnext = set(), {}; s.rel = R.get('rel', True)
    return s
V.mk = mk
S = {}
def scenario(f): S[f.__name__] = f; return f

# ---------------------------------------------------------------- the store's clock steps
def clockstep(R, seed, d, T=60., home='held', kill=0, back=-1, settle=False, **k):
    """At 20 s the store's clock steps by d. kill: so many of 8 owners hang just before, with wakes out."""
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); back_(s, l, int(50 * T * (2.2 if kill else 1.2)))
    for i in range(kill): s.at(19.9, s.hangp, s.procs[i], 100.)
    s.at(20., s.step, d); s.run(T)
    stop = 0.
    ts = [20.] + [t for t, c, j in l.log if t > 20]
    stop = max(b - a for a, b in zip(ts, ts[1:]))
    return s, report(s, l, 3, T, dict(u5=round(use(l, 20, 25), 2), rest=round(use(l, 25, T), 3), longest_stop=round(stop, 2)), left=False)
def back_(s, l, n, **kw): return V.back(s, l, n, **kw)
for n_, d_ in (('p1', 1.), ('m1', -1.), ('p60', 60.), ('m60', -60.1)):
    for k_ in (0, 4):
        def f(R, seed, d=d_, kk=k_, **k): return clockstep(R, seed, d, kill=kk, **k)
        f.__name__ = 'clock_%s%s' % (n_, '_hang' if k_ else ''); scenario(f)
@scenario
def clock_park_m60(R, seed, **k): return clockstep(R, seed, -60.1, home='park', **k)
@scenario
def clock_park_p60(R, seed, **k): return clockstep(R, seed, 60., home='park', **k)
@scenario
def clock_two_m60(R, seed, T=100., **k):
    """Two limits with turns that count; the store's clock steps back 60 s at 20 s, forwards at 60 s."""
    s = mk(R, seed, T, **k); sh = s.add('S', 50., 10); K = [s.add('K%d' % i, 10., 5) for i in range(4)]
    V.flow(s, [(sh, 1.), (K[0], 1.)], 40., 0, T, tenant='k0')
    for i in range(1, 4): V.flow(s, [(sh, 1.), (K[i], 1.)], 8., 0, T, tenant='k%d' % i)
    V.flow(s, [(sh, 1.)], 30., 0, T, tenant='none')
    s.at(20., s.step, -60.1); s.at(60., s.step, 60.1); s.run(T)
    x = {'k0/s': round(sum(1 for t, c, j in K[0].log if 25 < t < 60) / 35, 1), 'u2060': round(use(sh, 20.5, 60), 3)}
    return s, report(s, sh, 10, T, x, left=False)

# ---------------------------------------------------------------- queue=N
@scenario
def queue_full(R, seed, T=60., N=100, home='held', **k):
    """queue=100, 60/s offered of 50/s: what is refused is the excess."""
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); l.queue = N
    V.flow(s, [(l, 1.)], 60., 0, T); s.run(T)
    most = 0
    return s, report(s, l, 10, T, dict(refused=l.refusals, offered=len(s.jobs)), left=False)
@scenario
def queue_dead(R, seed, T=60., N=100, **k):
    """… at 15 s six of eight owners die for good, and their messages are gone. Is the queue full of ghosts?"""
    s = mk(R, seed, T, home='held', redeliver=1e9, **k); l = s.add('L', 50., 10); l.queue = N
    V.flow(s, [(l, 1.)], 60., 0, T)
    for i in range(6): s.at(15., s.kill, s.procs[i])
    s.run(T)
    return s, report(s, l, 20, T, dict(refused=l.refusals, ghosts=sum(1 for e in l.ent.values() if s.byid[e.oid].dead),
                                       newasks=round(sum(j.ask for j in s.jobs if j.born > 40 and j.done == 1) / max(1, sum(1 for j in s.jobs if j.born > 40 and j.done == 1)), 2)), left=False)
@scenario
def queue_purged(R, seed, T=60., N=200, **k):
    """… park: at 15 s, 70 % of what is parked is purged by an operator."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); l.queue = N
    V.flow(s, [(l, 1.)], 65., 0, T); s.at(15., V.purge, s, .7); s.run(T)
    return s, report(s, l, 17, T, dict(refused=l.refusals), left=False)
@scenario
def queue_two(R, seed, T=60., N=60, **k):
    """Two limits, each with queue=60: is a job refused after it has waited?"""
    s = mk(R, seed, T, home='held', **k); sh = s.add('S', 50., 10); K = [s.add('K%d' % i, 10., 5) for i in range(4)]
    for l in [sh] + K: l.queue = N
    V.flow(s, [(sh, 1.), (K[0], 1.)], 40., 0, T, tenant='k0')
    for i in range(1, 4): V.flow(s, [(sh, 1.), (K[i], 1.)], 12., 0, T, tenant='k%d' % i)
    V.flow(s, [(sh, 1.)], 20., 0, T, tenant='none')
    s.run(T)
    return s, report(s, sh, 10, T, dict(refused=sum(l.refusals for l in s.lists.values()), waited_then_refused=sum(1 for j in s.jobs if j.done == -3 and j.ask > 1),
                                        most=max(len(l.ent) for l in s.lists.values())), left=False)

# ---------------------------------------------------------------- max_wait
def deadline(R, seed, where, T=60., home='park', n=4000, **k):
    """4 000 jobs whose deadline is 10 s, all at once; then 2 000 without. where: at the head, or mixed."""
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10)
    for i in range(6000):
        d = i < n if where == 'head' else s.rng.random() < .67
        s.job(i * 1e-4, [(l, 1.)], ttl=10. if d else 0.)
    s.run(T)
    rest = sum(1 for j in s.jobs if not j.done and j.until)
    return s, report(s, l, 3, min(T, 45), dict(full=round(recovery(l, 10., 45), 1), u3=round(use(l, 10.2, 13.2), 2), u10=round(use(l, 10.2, 20.2), 2), late=rest,
                                       entries=len(l.ent)), left=False)
@scenario
def deadline_head(R, seed, **k): return deadline(R, seed, 'head', **k)
@scenario
def deadline_mixed(R, seed, **k): return deadline(R, seed, 'mixed', **k)
@scenario
def deadline_head_held(R, seed, **k): return deadline(R, seed, 'head', home='held', **k)

# ---------------------------------------------------------------- cancelled callers
def cancelled(R, seed, lost, T=40., part=.5, **k):
    """Half of the callers are cancelled, at a random time within 8 s; leave is sent, or lost."""
    s = mk(R, seed, T, home='held', **k); l = s.add('L', 50., 10)
    t = 0.
    while t < T:
        j = s.job(t, [(l, 1.)])
        if s.rng.random() < part: s.at(t + s.rng.random() * 8, s.cancel, j, lost)
        t += s.rng.expovariate(85.)
    s.run(T)
    return s, report(s, l, 10, T - 1, dict(entries=len(l.ent), held=sum(len(p.hand) for p in s.procs), wasted=s.n.get('wasted', 0), unknown=s.n.get('unk', 0)), left=False)
@scenario
def cancel_leave(R, seed, **k): return cancelled(R, seed, 0., **k)
@scenario
def cancel_lost(R, seed, **k): return cancelled(R, seed, 1., **k)
@scenario
def cancel_lost_1s(R, seed, T=120., **k):
    """1/s, burst 1: most callers are cancelled, every leave is lost."""
    s = mk(R, seed, T, home='held', **k); l = s.add('L', 1., 1)
    for i in range(400):
        j = s.job(i * .3, [(l, 1.)])
        if s.rng.random() < .7: s.at(i * .3 + s.rng.random() * 20, s.cancel, j, 1.)
    s.run(T)
    return s, report(s, l, 10, T - 1, dict(entries=len(l.ent), held=sum(len(p.hand) for p in s.procs), wasted=s.n.get('wasted', 0), unknown=s.n.get('unk', 0)), left=False)
@scenario
def cancel_asking_slots(R, seed, T=60., **k):
    """4 slots, bodies .2 s, leases 30 s: 5 % of callers are cancelled while they ask. Are slots lost until their lease ends?"""
    s = mk(R, seed, T, home='held', **k); l = s.add('L', slots=4)
    for i in range(1500): s.job(i * 1e-3, [(l, 1.)], body=.2)
    ask = s.s_ask
    def s_ask(p, gen, m, early, free):
        ask(p, gen, m, early, free)
        if s.rng.random() < .05 and m.job.done == 0: m.job.done = -4
    s.s_ask = s_ask
    s.run(T)
    return s, report(s, l, 2, T - 2, dict(wasted=s.n.get('wasted', 0)), left=False)

# ---------------------------------------------------------------- adaptive
@scenario
def adaptive_rate(R, seed, T=60., home='park', **k):
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); back_(s, l, 4500)
    for t in range(5, int(T)): s.at(float(t), lambda: l.setrate(s.st, 50. * (.5 + s.rng.random())))
    s.run(T)
    return s, report(s, l, 6, T, left=False)
@scenario
def adaptive_rate_b1(R, seed, T=60., **k):
    s = mk(R, seed, T, home='held', **k); l = s.add('L', 10., 1); back_(s, l, 1200)
    for t in range(5, int(T)): s.at(float(t), lambda: l.setrate(s.st, 10. * (.5 + s.rng.random())))
    s.run(T)
    return s, report(s, l, 6, T, left=False)
@scenario
def adaptive_slots(R, seed, T=60., **k):
    """The number of slots changes each second, 2 to 12; bodies .1 s."""
    s = mk(R, seed, T, procs=8, **k); l = s.add('L', slots=8); l.cap_s = 0.; l.last = (2., 8)
    for i in range(6500): s.job(i * 1e-4, [(l, 1.)], body=.05 + .1 * s.rng.random())
    def ch():
        if s.now > 3: l.cap_s += min(l.slots, 99)
        l.slots = s.rng.randint(2, 12)
    for t in range(2, int(T)): s.at(float(t), ch)
    s.run(T)
    done = sum(max(0., min(T - 1, j.started + j.body) - max(3., j.started)) for t, c, j in l.log if j.started)
    d = report(s, l, 3, T - 2, dict(slotuse=round(done / l.cap_s, 3)), left=False); d.pop('use')
    return s, d

# ---------------------------------------------------------------- workflows
def workflow(R, seed, T=120., n=60, jobs=3, serial=False, slots=2, **k):
    """2 slots held by workflows of three jobs (bodies .2 s), all three queued at once, or one after the other. A slot is free when the third is done."""
    s = mk(R, seed, T, home='held', procs=4, threads=4, lease=1e9, **k); l = s.add('L', slots=slots); s.wfhold = {}
    left = {w: jobs for w in range(n)}
    def wfdone(j):
        left[j.tenant] -= 1
        if left[j.tenant] == 0:
            l.holders.pop(s.wfhold.pop(j.tenant, None), None); s.n['rel'] += 1; s.ring([l], None)
        elif serial: s.job(s.now, [(l, 1.)], tenant=j.tenant, body=.2)
    s.wfdone = wfdone
    for w in range(n):
        for i in range(1 if serial else jobs): s.job(w * .001 + i * .1, [(l, 1.)], tenant=w, body=.2)
    s.run(T)
    fin = sum(1 for w in left.values() if w == 0)
    end = max([j.started for j in s.jobs if j.done == 1] or [0])
    return s, dict(finished=fin, of=n, last=round(end, 1), asks=round(s.n['ask'] / max(1, len([j for j in s.jobs if j.done == 1])), 2), most=len(l.holders), left=sum(1 for j in s.jobs if not j.done))
@scenario
def workflow_at_once(R, seed, **k): return workflow(R, seed, **k)
@scenario
def workflow_serial(R, seed, **k): return workflow(R, seed, serial=True, **k)

# ---------------------------------------------------------------- two parks and held processes; wakers; moves
@scenario
def parks_and_held(R, seed, T=60., **k):
    """Queues a and b are two parks, c is held (RabbitMQ): one limit, 1 : 1 : 1 backlogs."""
    s = mk(R, seed, T, procs=9, queues=lambda i: ['abc'[i % 3]], **k); s.heldq = ('c',); l = s.add('L', 50., 10)
    for i in range(3500): s.job(i * 1e-3, [(l, 1.)], queue='abc'[i % 3], tenant='t')
    s.run(T)
    x = {q: round(sum(1 for t, c, j in l.log if j.queue == q and t > 5) / (T - 5), 1) for q in 'abc'}
    return s, report(s, l, 5, T, x, left=False)
@scenario
def parks_held_die(R, seed, T=60., **k):
    """… the waker and all but one process of each of a and b are killed at 15 s, back after 5 s."""
    s = mk(R, seed, T, procs=9, queues=lambda i: ['abc'[i % 3]], **k); s.heldq = ('c',); l = s.add('L', 50., 10)
    for i in range(3500): s.job(i * 1e-3, [(l, 1.)], queue='abc'[i % 3], tenant='t')
    def die():
        for i in range(6):
            if i % 3 < 2: s.kill(s.procs[i], 5.)
        if not s.procs[s.waker].dead: s.kill(s.procs[s.waker], 5.)
    s.at(15., die); s.run(T)
    x = {q: round(sum(1 for t, c, j in l.log if j.queue == q and t > 25) / (T - 25), 1) for q in 'abc'}
    x.update(w=round(use(l, 15, 18), 2), full=round(recovery(l, 15., T), 1))
    return s, report(s, l, 5, T, x, left=False)
@scenario
def wakers_die(R, seed, T=60., **k):
    """The waker of three parks dies with half of the fleet, and its successor one second after it takes over; four times."""
    s = mk(R, seed, T, procs=12, queues=lambda i: ['a', 'b', 'c'], **k); l = s.add('L', 50., 10)
    for i in range(4000): s.job(i * 1e-3, [(l, 1.)], queue='abc'[i % 3])
    def die():
        s.kill(s.procs[s.waker], 4.)
        for p in s.procs[:6]:
            if not p.dead: s.kill(p, 4.)
    for t in (15., 18.5, 22., 25.5): s.at(t, die)
    s.run(T)
    return s, report(s, l, 3, T, dict(w=round(use(l, 15, 18), 2), during=round(use(l, 15, 30), 2), full=round(recovery(l, 15., T), 1)), left=False)
@scenario
def lease_lost(R, seed, T=60., **k):
    """The waker hangs for 2.6 s while it is handing over, every 5 s; what it had read it moves when it comes back."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back_(s, l, 4000)
    pm = s.parkmove
    def hang():
        w = s.procs[s.waker]; s.hangp(w, 2.6)
    def parkmove(l, i, near):
        e = l.ent.get(i)
        w = s.mover.get((l, i))
        if w is not None and s.now < w.hang: return s.at(w.hang, parkmove, l, i, near)
        if s.R['moved'] and not any(i in d for d in s.park.values()) and i in s.moved0 and e is not None and e.oid[0] == 'k': return
        pm(l, i, near)
    s.mover = {}
    at = s.at
    def at2(t, f, *a):
        if f == s.parkmove: s.mover[a[0], a[1]] = s.procs[s.waker]
        at(t, f, *a)
    s.at, s.parkmove = at2, parkmove
    for t in range(10, 45, 5): at(t + .001, hang)
    s.run(T)
    return s, report(s, l, 3, T, dict(aside=len(l.aside), w=round(use(l, 10, 45), 3)), left=False)

# ---------------------------------------------------------------- costs
@scenario
def cost_burst(R, seed, T=60., **k):
    """Costs 1 and 10 of burst 10, alternating; and light jobs of cost 1 that come by themselves."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10, share=True)
    for i in range(1200): s.job(i * 1e-3, [(l, 10. if i % 2 else 1.)], tenant='heavy')
    for i in range(10): V.flow(s, [(l, 1.)], .1, 5, T, tenant='l%d' % i)
    s.run(T)
    return s, report(s, l, 3, T, light=lambda j: j.tenant != 'heavy', left=False)
@scenario
def settle_more(R, seed, T=60., **k):
    """Each second a settle charges 20 more (twice the burst), while wakes are out: 30/s are left."""
    s = mk(R, seed, T, **k); l = s.add('L', 50., 10); back_(s, l, 3000)
    for t in range(5, int(T)): s.at(t + s.rng.random(), s.settle, l, 20.)
    s.run(T)
    got = sum(c for t, c, j in l.log if 10 <= t < T)
    d = report(s, l, 10, T, dict(ran_of_left=round(got / (30. * (T - 10)), 3)), left=False); d.pop('excess')
    return s, d
@scenario
def settle_less(R, seed, T=60., **k):
    """Costs 10 of a 5/s limit; half a second after each grant 8 of them are given back (an estimate that was too high)."""
    s = mk(R, seed, T, home='held', **k); l = s.add('L', 5., 10)
    for i in range(400): s.job(i * 1e-3, [(l, 10.)])
    s.given = 0.
    def watch():
        for t, c, j in l.log[s.seenlog:]: s.at(s.now + .5, s.settle, l, -8.); s.given += 8
        s.seenlog = len(l.log); s.at(s.now + .05, watch)
    s.seenlog = 0; s.at(.05, watch); s.run(T)
    got = sum(2. for t, c, j in l.log if 10 <= t < T)
    d = report(s, l, 10, T, dict(used=round(got / (5. * (T - 10)), 3)), left=False); d.pop('excess'); d.pop('use')
    return s, d

# ---------------------------------------------------------------- prefetch of units
def prefetching(R, seed, mode, T=40., offered=60., burst=200, rate=100., **k):
    """A process takes up to 50 units ahead (at most half of those left) for .25 s. mode: never while one waits, or always."""
    s = mk(dict(R, prefetch=mode), seed, T, home='held', procs=4, **k); l = s.add('L', rate, burst, share=False)
    V.flow(s, [(l, 1.)], offered, 0, T)
    s.over = 0; s.saved = 0; s.lostu = 0.
    if R.get('pause'): s.at(10., setattr, l, 'paused', True); s.at(16., setattr, l, 'paused', False)
    take = {}
    ask, pump = s.s_ask, s.pump
    def s_ask(p, gen, m, early, free):
        n0 = len(l.log)
        ask(p, gen, m, early, free)
        if len(l.log) > n0 and p.oid not in take:
            x = min(50., l.avail(s.st) / 2)
            if l.paused: x = 0.
            if mode == 'quiet' and (l.waits(s.st)): x = 0.
            if mode == 'taken' : x = 0. if l.waits(s.st) else min(50., (l.avail(s.st) - l.wc - l.res()) / 2)
            if x >= 2:
                x = float(int(x)); l.tok, l.t0 = l.avail(s.st) - x, s.st
                take[p.oid] = [x, s.now + .25]; s.at(s.now + .2501, end, p.oid)
    def end(oid):
        u = take.pop(oid, None)
        if u: s.lostu += u[0]
    def deliver(p):
        u = take.get(p.oid)
        while u and u[0] >= 1 and s.now < u[1] and not l.paused and p.fresh and p.free > 0 and not p.ready:
            m = p.fresh.popleft(); j = m.job; u[0] -= 1; p.free -= 1
            if any(o.order for o in l.owners.values()): s.over += 1
            s.saved += 1; j.started = s.now; j.nonce += 1; l.log.append((s.now, 1., j)); p.running[j.id] = m
            s.at(s.now + j.body, s.end, p, p.gen, m)
        pump(p)
    s.s_ask, s.pump = s_ask, deliver
    s.run(T)
    d = report(s, l, 5, T, dict(saved=round(s.saved / max(1, len(l.log)), 2), overtook=s.over, lost=int(s.lostu)), left=False)
    ws = [j.started - j.born for j in s.jobs if j.done == 1]
    d.update(w50=round(pct(ws, .5), 3), w99=round(pct(ws, .99), 3)); d.pop('excess')
    return s, d
@scenario
def prefetch_always(R, seed, **k): return prefetching(R, seed, 'always', offered=110., **k)
@scenario
def prefetch_quiet(R, seed, **k): return prefetching(R, seed, 'quiet', offered=110., **k)
@scenario
def prefetch_taken(R, seed, **k): return prefetching(R, seed, 'taken', offered=110., **k)
@scenario
def prefetch_low(R, seed, **k): return prefetching(R, seed, 'taken', offered=70., **k)

# ---------------------------------------------------------------- the previous release side by side
def oldrelease(R, seed, mode, T=40., oldprocs=4, **k):
    """4 processes of this release, 4 of the previous one, 50/s, a flood on both.
    apart: the old ones know the bucket only, and their own line (what happens with two sets of keys).
    fresh: they ask the new list, and are never woken: a denial gives the delay rank / rate.
    place: … and keep a place; at its time an old job passes as if woken, if it is not behind the head."""
    s = mk(dict(R, old=mode), seed, T, home='held', queues=lambda i: ['old'] if i >= 8 - oldprocs else ['new'], **k); l = s.add('L', 50., 10)
    for i in range(2500): s.job(i * 1e-3, [(l, 1.)], tenant='new', queue='new')
    line, OLD = [], {}
    def olds(j):
        """A question of the previous release: with no owner and no free threads; only ever gets a delay."""
        j.ask += 1; s.n['ask'] += 1
        if not j.first: j.first = s.now
        a = l.avail(s.st)
        if mode == 'reserve':
            if line: l.reserved['old'] = (1., 1e18)
            else: l.reserved.pop('old', None)
        if mode in ('apart', 'reserve'):
            if j.id not in OLD: OLD[j.id] = len(OLD); line.append(j.id)
            ok = a >= 1 - 1e-9 and line.index(j.id) < a
            rank = line.index(j.id)
        else:
            k = l.place(j, 1.)
            rank = sum(bisect_left(o.order, k) for o in l.owners.values())
            h = l.head(s.st)
            if mode == 'fresh': ok = h is None and a - l.wc - l.res() >= 1
            else: ok = a - l.wc - l.res() >= 1 - 1e-9 and (h is None or k < h[0][0])
        if ok:
            l.charge(s.st, j, 1.); j.done = 1; j.started = s.now; l.memo.pop(j.id, None)
            l.v[0] = max(l.v.get(0, 0.), 0.)
            if mode in ('apart', 'reserve'): line.remove(j.id)
            s.ring([l], None)
        else:
            e = l.ent.get(j.id)
            s.at(s.now + max(.05 if mode == 'fresh' else .02, (rank + 1 - (a if mode in ('apart', 'reserve') else 0)) / l.rate) + s.rng.random() * .005, olds, j)
    for i in range(2500):
        j = s.job(1e9, [(l, 1.)], tenant='old', queue='old'); j.born = i * 1e-3; s.at(i * 1e-3, olds, j)
    s.run(T)
    x = {t + '/s': round(sum(1 for tt, c, j in l.log if j.tenant == t and tt > 5) / (T - 5), 1) for t in ('new', 'old')}
    for t in ('new', 'old'):
        js = [j for j in s.jobs if j.tenant == t and j.started]
        x[t + '_asks'] = round(sum(j.ask for j in js) / max(1, len(js)), 2)
    d = report(s, l, 5, T, x, left=False); d.pop('bdel')
    return s, d
@scenario
def old_apart(R, seed, **k): return oldrelease(R, seed, 'apart', **k)
@scenario
def old_fresh(R, seed, **k): return oldrelease(R, seed, 'fresh', T=15., **k)
@scenario
def old_reserve(R, seed, **k): return oldrelease(R, seed, 'reserve', **k)
@scenario
def old_place(R, seed, **k): return oldrelease(R, seed, 'place', **k)


@scenario
def clock_m59(R, seed, **k): return clockstep(R, seed, -59., T=100., **k)
@scenario
def clock_m30_back(R, seed, T=110., home='held', **k):
    """The clock steps back by 30 s at 20 s, and forwards by 30 s at 30 s."""
    s = mk(R, seed, T, home=home, **k); l = s.add('L', 50., 10); back_(s, l, 6000)
    s.at(20., s.step, -30.); s.at(30., s.step, 30.); s.run(T)
    return s, report(s, l, 3, T, dict(u2030=round(use(l, 20, 30), 3), full=round(recovery(l, 30., T), 2)), left=False)
@scenario
def clock_abs_p1(R, seed, T=60., home='held', **k):
    """As clock_p1, but answers carry instants of the store's clock, read with the clock of the process."""
    return clockstep(dict(R, rel=False), seed, 1., T=T, home=home, **k)
@scenario
def queue_allghosts(R, seed, T=60., N=100, **k):
    """queue=100; all 8 processes are killed at 15 s and return after 1 s; their messages are gone (in-memory broker). 55/s offered."""
    s = mk(R, seed, T, home='held', redeliver=1e9, **k); l = s.add('L', 50., 10); l.queue = N
    V.flow(s, [(l, 1.)], 60., 0, 15., tenant='x'); V.flow(s, [(l, 1.)], 45., 15, T, tenant='y')
    for p in list(s.procs): s.at(15., s.kill, p, 1.)
    s.run(T)
    late = [j for j in s.jobs if j.born > 20]
    return s, report(s, l, 20, T, dict(refused_late=sum(j.done == -3 for j in late), offered_late=len(late), ghosts=sum(1 for e in l.ent.values() if s.byid[e.oid].oid != e.oid)), left=False)
def prefetch_pause(R, seed, mode, T=40., **k):
    """A pause of 6 s with 100/s offered of 200/s, burst 200: at its end 600 wait and 200 units are there."""
    global PAUSE
    s, d = prefetching(dict(R, pause=True), seed, mode, T=T, offered=100., rate=120., **k)
    return s, d
@scenario
def prefetch_pause_always(R, seed, **k): return prefetch_pause(R, seed, 'always', **k)
@scenario
def prefetch_pause_taken(R, seed, **k): return prefetch_pause(R, seed, 'taken', **k)

# ---------------------------------------------------------------- two limits in two stores (or two slots of a cluster)
class Sim3(Sim2):
    """Each limit has its own store. An ask goes to one after the other; a denial gives back what was charged before.
    R['twostore']: plain   no position where it was charged and given back, no turn
                   turn    the give-back keeps the position and the turn there (one script), with the scarcer rule by the client
                   first   … and the client asks the list first that held the job back last"""
    def s_ask(s, p, gen, m, early, free):
        j = m.job; mode = s.R['twostore']
        order = list(j.claims)
        if mode == 'first' and j.last != -1: order.sort(key=lambda x: x[0].name != j.last)
        s.step2(p, gen, m, early, free, order, 0, [])
    def step2(s, p, gen, m, early, free, order, k, done):
        """In the store of order[k]."""
        j, now, oid, mode = m.job, s.st, p.oid, s.R['twostore']
        l, c = order[k]
        s.seen[oid] = now
        if k: s.n['ask2'] = s.n.get('ask2', 0) + 1
        l.expire_wakes(now)
        e = l.ent.get(j.id); w = e is not None and e.woken is not None
        if w:
            took = max(0., now - e.woken - early); o = l.owners[e.oid]
            o.lead = max(.03, o.lead + (took - o.lead) * (.5 if took > o.lead else .05))
            l.heard(e.oid, now, e)
        l.heard(oid, now)
        right = w or (mode != 'plain' and j.id in l.marks)
        a = l.avail(now); need = c if right else c + l.wc + l.res()
        if not (l.paused or a < need - 1e-9 or (not right and l.waits(now))):
            was = w or j.id in l.marks
            l.a0 = getattr(l, 'a0', {}); l.a0[j.id] = a
            l.charge(now, j, c)
            key = e.key if e else l.memo.get(j.id)
            if e: l.out(e)
            l.memo.pop(j.id, None)
            l.aside.pop(j.id, None); l.reserved.pop(j.id, None); l.marks.discard(j.id)
            done.append((l, c, was, key))
            if oid in l.owners: l.owners[oid].cap = free
            if k + 1 < len(order): return s.at(s.now + RTT, s.step2, p, gen, m, early, free, order, k + 1, done)
            for x, cc, ww, kk in done:
                if kk: x.v[j.cls] = max(x.v.get(j.cls, 0.), kk[1])
            j.granted = -j.nonce
            mine, nexts = s.ring([x for x, cc in j.claims], p)
            return s.at(s.now + RTT / 2, s.r_ask, p, gen, m, ('grant',), mine, nexts)
        # denied here: wait here, give back what was charged
        if not j.first: j.first = s.now
        if e: l.out(e)
        lacks = a < c
        l.unmark(j.id)
        en = l.enter(j, c, oid, now); j.last = l.name
        if oid in l.owners: l.owners[oid].cap = free + 1
        if mode != 'plain':
            for x, cc in j.claims:                           # a position in each store that was not reached yet, in the background
                if x is not l and not any(x is d[0] for d in done): s.n['reserve'] = s.n.get('reserve', 0) + (j.id not in x.memo); x.place(j, cc)
        mine, nexts = s.ring([l], p)
        s.at(s.now + RTT / 2, s.r_ask, p, gen, m, ('deny', l, True), mine, nexts)
        for x, cc, ww, kk in done: s.at(s.now + RTT, s.giveback2, p, j, x, cc, ww, kk, l)
    def giveback2(s, p, j, x, cc, ww, kk, B):
        s.n['rel'] += 1
        gap = next((s.now - q[0] for q in x.log[-400:] if q[2] is j), 0.) if s.R['strict'] else 0.   # what came while the units were out, at a full bucket
        x.tok, x.t0 = min(x.burst, x.avail(s.st) + max(0., cc - (max(0., x.a0[j.id] + x.rate * gap - x.burst) if s.R['strict'] else 0.))), s.st
        for q in range(max(0, len(x.log) - 400), len(x.log)):
            if x.log[q][2] is j: del x.log[q]; break
        if s.R['twostore'] != 'plain' and j.done == 0 and j.granted == 0:
            if kk: x.memo[j.id] = kk
            else: x.place(j, cc)
            if ww:
                x.marks.add(j.id)
                if not B.paused and (x.rate or 1e9, x.name) < (B.rate or 1e9, B.name): x.reserved[j.id] = (cc, s.st + 1.)
        mine, nexts = s.ring([x], p)
        s.at(s.now + RTT / 2, s.r_look, p, p.gen, mine, nexts, ())
def twostore(R, seed, mode, T=60., pause=False, reverse=False, **k):
    """The workload of two_limits, held: shared 50/s in one store, keys of 10/s in another; one heavy key (40/s offered)."""
    s = Sim3(dict(R, twostore=mode), seed, home='held', **k); s.T = T; s.parked, s.pnext = set(), {}; s.rel = True
    sh = s.add('S', 50., 10); K = [s.add('K%d' % i, 10., 5) for i in range(4)]
    cl = lambda i: [(K[i], 1.), (sh, 1.)] if reverse else [(sh, 1.), (K[i], 1.)]
    V.flow(s, cl(0), 40., 0, T, tenant='k0')
    for i in range(1, 4): V.flow(s, cl(i), 45 / 3 * .5, 0, T, tenant='k%d' % i)
    V.flow(s, [(sh, 1.)], 45 * .5, 0, T, tenant='none')
    if pause: s.at(15., setattr, K[1], 'paused', True); s.at(45., setattr, K[1], 'paused', False)
    s.run(T)
    x = {'k0/s': round(sum(1 for t, c, j in K[0].log if 10 < t < T) / (T - 10), 1)}
    d = report(s, sh, 10, T, x, left=False)
    d['ops'] = round(d['ops'] + (s.n.get('ask2', 0) + s.n.get('reserve', 0)) / max(1, len(sh.log)), 2)
    o, w = disorder(K[0]); d['k0ooo%'], d['k0ooomax'] = round(100 * o, 1), w
    return s, d
for m_ in ('plain', 'turn', 'first'):
    for rv in (False, True):
        def f(R, seed, m=m_, rv=rv, **k): return twostore(R, seed, m, reverse=rv, **k)
        f.__name__ = 'stores_%s%s' % (m_, '_rev' if rv else ''); scenario(f)
@scenario
def stores_first_paused(R, seed, **k): return twostore(R, seed, 'first', pause=True, **k)

def main(argv):
    if argv == ['list']: return print('\n'.join(S))
    names = [a for a in argv if '=' not in a] or list(S)
    opt = dict(a.split('=', 1) for a in argv if '=' in a)
    rules = opt.pop('rules', 'corr,new').split(',')
    seeds = [int(x) for x in opt.pop('seeds', '1,2,3').split(',')]
    for name in names:
        last = None
        for r in rules:
            rows = []
            t = time.time()
            for seed in seeds:
                R = dict(V.RULES[r])
                for k, v in opt.items(): R[k] = v if v.isalpha() and v not in ('True', 'False', 'None') else eval(v)
                _, d = S[name](R, seed)
                rows.append(d)
            keys = list(dict.fromkeys(k for d in rows for k in d))
            def cell(k):
                v = [d.get(k, 0) for d in rows]
                return '%s=%s' % (k, v[0] if min(v) == max(v) else '%s..%s' % (min(v), max(v)))
            print('%-20s %-5s %s  [%.0f s]' % (name, r, ' '.join(map(cell, keys)), time.time() - t), flush=True)

if __name__ == '__main__': main(sys.argv[1:])

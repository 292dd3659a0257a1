"""Costs of the prototype on a real redis-server. Starts its own server on a free port and stops it by pid."""
import os, socket, subprocess, sys, time, uuid, threading, random, statistics as st
PORT = 26391
srv = subprocess.Popen(['redis-server', '--port', str(PORT), '--save', '', '--appendonly', 'no', '--bind', '127.0.0.1'], stdout=subprocess.DEVNULL)
class C:
    def __init__(s):
        for _ in range(100):
            try: s.k = socket.create_connection(('127.0.0.1', PORT)); break
            except OSError: time.sleep(.1)
        s.k.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); s.f = s.k.makefile('rb', 1 << 20)
    @staticmethod
    def pack(*a):
        o = [b'*%d\r\n' % len(a)]
        for x in a:
            x = x if isinstance(x, bytes) else str(x).encode(); o.append(b'$%d\r\n%s\r\n' % (len(x), x))
        return b''.join(o)
    def read(s):
        l = s.f.readline()
        c, r = l[:1], l[1:-2]
        if c == b'-': raise RuntimeError(r.decode())
        if c == b'$': 
            n = int(r)
            return None if n < 0 else s.f.read(n + 2)[:-2]
        if c == b'*': return [s.read() for _ in range(max(0, int(r)))]
        return r
    def __call__(s, *a): s.k.sendall(s.pack(*a)); return s.read()
    def pipe(s, frames, chunk=100):
        out = []
        for i in range(0, len(frames), chunk):
            part = frames[i:i + chunk]; s.k.sendall(b''.join(part)); out += [s.read() for _ in part]
        return out
c = C()
def info(sec): return dict(l.split(':', 1) for l in c('INFO', sec).decode().split('\r\n') if ':' in l)
def cpu():
    i = info('cpu'); return float(i['used_cpu_user_main_thread']) + float(i['used_cpu_sys_main_thread'])
here = os.path.dirname(os.path.abspath(__file__)); src = lambda n: open(os.path.join(here, n)).read()
sha = {n: c('SCRIPT', 'LOAD', src('head.lua') + src(n + '.lua')).decode() for n in ('ask', 'look', 'leave')}
def keys(k): return ['tk1:{%s:}:b' % k, 'tk1:{%s:}:w' % k, 'tk1:{%s:}:o' % k, 'tk1:{%s:}:e' % k]
# a subscriber that reads all channels
def sub():
    d = C(); d.k.sendall(C.pack('SUBSCRIBE', *['chan%04d' % i for i in range(1, 51)]))
    while True:
        try:
            if not d.k.recv(1 << 16): return
        except OSError: return
threading.Thread(target=sub, daemon=True).start()
R = random.Random(1)
def fill(k, n, owners, shared):
    b, w, o, e = keys(k); c('DEL', b, w, o, e)
    m0 = int(info('memory')['used_memory'])
    ids = [str(uuid.UUID(int=R.getrandbits(128))) for _ in range(n)]
    heads = {}
    for a in range(0, n, 500):
        h, z = [], []
        for j in range(a, min(n, a + 500)):
            ix = 'chan%04d' % (j % owners + 1); place = '01' + ('%016d' % (j * 1000) if shared else '') + '%010d' % j
            heads.setdefault(ix, place)
            h += [ids[j], 'o %s %s 20000' % (ix, place)]; z += [0, 'o%s%s|%s' % (ix, place, ids[j])]
        c.pipe([C.pack('HSET', e, *h), C.pack('ZADD', o, *z)])
    rec = ['n', n, 'v', 0, 'wc', 0, 'ts', 0, 'appt', 0, 'x', 0]
    for i in range(1, owners + 1):
        ix = 'chan%04d' % i; rec += ['p' + ix, '999999 0 0 %s' % heads.get(ix, '-')]
        if ix in heads: c('ZADD', o, 0, 'h' + heads[ix] + ix)
    c('HSET', w, *rec)
    return ids, (int(info('memory')['used_memory']) - m0) / n
def cost(frames, chunk=100, rounds=1):
    a = cpu(); r = c.pipe(frames, chunk); return (cpu() - a) / len(frames) * 1e6, r
def idbytes(n, ln):
    b, w, o, e = keys('B'); c('DEL', b, w, o, e); m0 = int(info('memory')['used_memory']); fr = []
    for j in range(n):
        i = str(uuid.UUID(int=R.getrandbits(128)))[:ln]; pl = '01%016d%010d' % (j * 1000, j)
        fr += [C.pack('HSET', e, i, 'o chan0001 %s 20000' % pl), C.pack('ZADD', o, 0, 'ochan0001%s|%s' % (pl, i))]
    c.pipe(fr, 1000); print('id of', ln, 'characters:', round((int(info('memory')['used_memory']) - m0) / n), 'bytes an entry')
def ev(name, ks, *a): return C.pack('EVALSHA', sha[name], len(ks), *ks, *a)
def setfull(ks):
    for k in ks: c('SET', keys(k)[0], int(time.time() * 1e6) + 10**12)
def bench(n, owners, nl, shared=True, K=400):
    ks = ['L%d' % i for i in range(nl)]; al = sum([keys(k) for k in ks], [])
    per = []
    for k in ks: ids, b = fill(k, n, owners, shared); per.append(b)
    res = dict(n=n, owners=owners, limits=nl, shared=int(shared), bytes=round(st.mean(per)))
    lim = ['20000', '20000', '200000'] * nl
    asker = lambda i: 'chan%04d' % (i % owners + 1)
    base = min(cost([C.pack('INCR', 'x')] * 2000)[0] for _ in range(3)); res['incr'] = round(base, 2)
    # denied: the job enters
    setfull(ks)
    v = []; new = []
    for r in range(3):
        my = [str(uuid.UUID(int=R.getrandbits(128))) for _ in range(K)]; new += my
        x, out = cost([ev('ask', al, my[i], asker(i), 8, 1, 't%d' % (i % 20), 1, int(shared), *lim) for i in range(K)]); v.append(x)
        assert all(o[:1] == b'D' for o in out), out[:3]
    res['denied'] = round(min(v), 1)
    # leave, one of the newest, and 100 in one script from the middle
    v = []
    for r in range(3): v.append(cost([ev('leave', al, asker(i), j) for i, j in enumerate(new[r * K:(r + 1) * K])])[0])
    res['leave'] = round(min(v), 1)
    if n >= 100000:
        mid = ids[n // 2:n // 2 + 300]
        res['leave100_ms'] = round(cost([ev('leave', keys(ks[-1]), 'chan0001', ','.join(mid[r * 100:r * 100 + 100])) for r in range(3)])[0] / 1000, 2)
    # looks with w wakes, then asks of the woken that are granted
    for w in (0, 1, 8, 16, 64):
        if n < 1000 and w >= 16: continue
        v, g = [], []
        for r in range(8 if w > 8 else 20):
            if n < 1000: ids, _ = fill(ks[0], n, owners, shared)
            if w == 0: setfull(ks)
            else: c.pipe([C.pack('DEL', *[keys(k)[0] for k in ks])])
            for k in ks[:1]:
                pre = c('HGET', keys(k)[1], 'wc')
                c('HSET', keys(k)[1], 'wc', 0)
            x, out = cost([ev('look', keys(ks[0]), 'chan0001', 999999, ','.join(ids[-8:]), 1000, 1000, 10**9, max(1, w))]); v.append(x)
            got = out[0].split(b'|')
            assert int(got[0]) == w, (w, out)
            if w:
                wo = c('ZRANGEBYLEX', keys(ks[0])[2], '[w', '(x')
                al_ids = [z.decode().split('|')[1] for z in wo]
                fr = []
                gl = ['1000000', '1000000', '1000000'] * nl
                # the other limits: the job has a position there (as after its first denial)
                for k in ks[1:]:                       # the other limits: a place and a turn there
                    for i in al_ids:
                        c('HSET', keys(k)[1], 't' + i, '1000000 %d' % (time.time() * 1e6 + 10**6))
                        c('HSET', keys(k)[3], i, 'p chan0001 01' + ('0' * 16 if shared else '') + '%010d 20000' % (n + 5))
                if w >= 8:
                    fr = [f for i in al_ids for f in (C.pack('DEL', *[keys(k)[0] for k in ks]), ev('ask', al, i, 'chan0001', 8, 2, 't1', 1, int(shared), *gl))]
                    y, o2 = cost(fr, len(fr)); g.append(2 * y)
                    assert all(x[:1] == b'G' for x in o2[1::2]), o2
                for i in al_ids if w < 8 else ():
                    d = C.pack('DEL', *[keys(k)[0] for k in ks])
                    y, o2 = cost([d, ev('ask', al, i, 'chan0001', 8, 2, 't1', 1, int(shared), *gl)], 2); g.append(2 * y)
                    if nl == 1: assert o2[1][:1] == b'G', o2
                for k in ks: c('DEL', keys(k)[0])
        res['look%d' % w] = round(sorted(v)[len(v) // 4], 1)
        if g and w >= 8: res['granted'] = round(min(res.get('granted', 1e9), min(g)), 1)
        n -= 0
    return res
def latency(n, nl=1, shared=True, rounds=12, K=120):
    """Single calls on one connection, interleaved: median latency of an ask / INCR in the same round."""
    ks = ['L%d' % i for i in range(nl)]; al = sum([keys(k) for k in ks], [])
    for k in ks: ids, _ = fill(k, n, 1, shared)
    rd, rg, rp, e1, fresh = [], [], [], [], []
    lim = ['20000', '20000', '200000'] * nl
    one = c('SCRIPT', 'LOAD', 'return 1').decode()
    def med(fr):
        t = []
        for f in fr:
            a = time.perf_counter(); c.k.sendall(f); c.read(); t.append(time.perf_counter() - a)
        t.sort(); return t[len(t) // 4] * 1e6
    import redis
    rp = redis.Redis(port=PORT); pool = rp.connection_pool; rp.incr('x')
    def med2(fs):
        t = []
        for f in fs:
            a = time.perf_counter(); f(); t.append(time.perf_counter() - a)
        t.sort(); return t[len(t) // 4] * 1e6
    def viapool(frame):
        k = pool.get_connection(); k.send_packed_command([frame], check_health=False); r = k.read_response(); pool.release(k); return r
    pinc, pd, pg = [], [], []
    inc = []
    for r in range(rounds):
        b = med([C.pack('INCR', 'x')] * K); inc.append(b)
        e1.append(med([C.pack('EVALSHA', one, 0)] * K) / b)
        setfull(ks)
        my = [str(uuid.UUID(int=R.getrandbits(128))) for _ in range(K)]
        rd.append(med([ev('ask', al, i, 'chan0001', 8, 1, 't1', 1, int(shared), *lim) for i in my]) / b)
        # woken ones, granted
        c('DEL', *[keys(k)[0] for k in ks]); c('HSET', keys(ks[0])[1], 'wc', 0)
        c.k.sendall(ev('look', keys(ks[0]), 'chan0001', 999999, '', 1000, 1000, 10**9, min(60, K))); c.read()
        w = [z.decode().split('|')[1] for z in c('ZRANGEBYLEX', keys(ks[0])[2], '[w', '(x')]
        t = []
        for i in w:
            c('DEL', *[keys(k)[0] for k in ks])
            f = ev('ask', al, i, 'chan0001', 8, 2, 't1', 1, int(shared), *(['1000000'] * 3 * nl))
            a = time.perf_counter(); c.k.sendall(f); c.read(); t.append(time.perf_counter() - a)
        t.sort(); rg.append(t[len(t) // 4] * 1e6 / b)
        b2 = med2([lambda: rp.incr('x')] * K); pinc.append(b2)
        setfull(ks)
        pd.append(med2([(lambda f=ev('ask', al, str(uuid.UUID(int=R.getrandbits(128))), 'chan0001', 8, 1, 't1', 1, int(shared), *lim): viapool(f)) for i in range(K)]) / b2)
        c('DEL', *[keys(k)[0] for k in ks]); c('HSET', keys(ks[0])[1], 'wc', 0)
        c.k.sendall(ev('look', keys(ks[0]), 'chan0001', 999999, '', 1000, 1000, 10**9, min(60, K))); c.read()
        w = [z.decode().split('|')[1] for z in c('ZRANGEBYLEX', keys(ks[0])[2], '[w', '(x')]
        t = []
        for i in w:
            c('DEL', *[keys(k)[0] for k in ks])
            f = ev('ask', al, i, 'chan0001', 8, 2, 't1', 1, int(shared), *(['1000000'] * 3 * nl))
            a = time.perf_counter(); viapool(f); t.append(time.perf_counter() - a)
        t.sort(); pg.append(t[len(t) // 4] * 1e6 / b2)
        # fast path: nobody waits, granted
        fk = keys('F%d' % r)
        fresh.append(med([ev('ask', fk, 'j%d' % q, 'chan0001', 8, 1, 't1', 1, int(shared), '1', '1', '100000000') for q in range(K)]) / b)
        n2 = c('SCRIPT', 'EXISTS', sha['ask'])
    m = lambda x: round(st.median(x), 2)
    return dict(n=n, limits=nl, incr_us=round(st.median(inc), 1), empty_script=m(e1), denied_x=m(rd), granted_woken_x=m(rg), granted_nobody_waits_x=m(fresh), both_mean_x=round((m(rd) + m(rg)) / 2, 2), redispy_incr_us=round(st.median(pinc), 1), denied_pool_x=m(pd), granted_pool_x=m(pg), pool_mean_x=round((m(pd) + m(pg)) / 2, 2))
try:
    what = sys.argv[1:]
    for a in what:
        p = a.split(',')
        if p[0] == 'bytes': idbytes(100000, int(p[1]))
        elif p[0] == 'lat': print(latency(int(p[1]), int(p[2])), flush=True)
        else: print(bench(int(p[0]), int(p[1]), int(p[2]), shared=(len(p) < 4)), flush=True)
finally:
    try: c('SHUTDOWN', 'NOSAVE')
    except Exception: pass
    srv.terminate(); srv.wait()

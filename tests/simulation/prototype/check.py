"""Random histories on the prototype: after each script the sorted set, the entries and the record agree; order of grants."""
import sys; sys.argv = ['bench.py']
exec(open('bench.py').read().split("\ntry:\n    what")[0])
try:
    bad = grants = ooo = wakes = 0
    for seed in range(6):
        R = random.Random(seed); K = keys('C%d' % seed); al = K; N = 0; live = {}; woken = []
        first = {}; owners = ['chan%04d' % i for i in range(1, 6)] + ['nobody00']
        for step in range(700):
            x = R.random()
            if x < .4:
                N += 1; i = 'job%05d' % N; o = R.choice(owners); r = c('EVALSHA', sha['ask'], 4, *K, i, o, R.randint(0, 4), 1, 't%d' % R.randint(0, 3), 1, 1, 20000, 20000, 60000)
                if r[:1] == b'D': live[i] = o
            elif x < .7 and live:
                ws = [z.decode() for z in c('ZRANGEBYLEX', K[2], '[w', '(x')]
                if ws:
                    i = R.choice(ws).split('|')[1]; r = c('EVALSHA', sha['ask'], 4, *K, i, live[i], R.randint(0, 4), 2, 't1', 1, 1, 20000, 20000, 60000)
                    if r[:1] == b'G': live.pop(i); grants += 1
            elif x < .9: c('EVALSHA', sha['look'], 4, *K, R.choice(owners[:5]), R.randint(0, 5), '', 20000, 20000, 60000, 64)
            elif live:
                i = R.choice(list(live)); c('EVALSHA', sha['leave'], 4, *K, live[i], i); live.pop(i)
            if R.random() < .3: time.sleep(.004)
            z = [m.decode() for m in c('ZRANGE', K[2], 0, -1)]
            e = c('HGETALL', K[3]); e = {e[j].decode(): e[j + 1].decode() for j in range(0, len(e), 2)}
            rec = c('HGETALL', K[1]); rec = {rec[j].decode(): rec[j + 1].decode() for j in range(0, len(rec), 2)}
            o_ = {m.split('|')[1] for m in z if m[0] == 'o'}; w_ = {m.split('|')[1] for m in z if m[0] == 'w'}; k_ = [m for m in z if m[0] == 'k']
            heads = {}
            for m in z:
                if m[0] == 'o': heads.setdefault(m[1:9], m[9:].split('|')[0])
            h_ = {m[-8:]: m[1:-8] for m in z if m[0] == 'h'}
            errs = []
            if set(e) != set(live): errs.append('entries %s' % (set(e) ^ set(live)))
            if {i for i, v in e.items() if v[0] == 'o'} != o_ or {i for i, v in e.items() if v[0] == 'w'} != w_: errs.append('states')
            if heads != h_: errs.append('heads %s %s' % (heads, h_))
            if int(float(rec.get('wc', 0))) != sum(int(m[17:27]) for m in k_): errs.append('wc %s %s' % (rec.get('wc'), k_))
            for n in owners:
                p = rec.get('p' + n)
                if p:
                    f, k, d, hd = p.split()
                    if int(k) != sum(1 for m in z if m[0] == 'w' and m[1:9] == n): errs.append('woken of ' + n)
                    if (hd if hd != '-' else None) != heads.get(n): errs.append('head of ' + n)
            if any(c('PTTL', x) == b'-1' for x in K): errs.append('TTL')
            if errs: bad += 1; print(seed, step, errs[:2]); break
    print('histories 6 x 700, broken:', bad, 'grants after a wake', grants, 'TTLs', [c('PTTL', k) for k in K[:4]])
finally:
    try: c('SHUTDOWN', 'NOSAVE')
    except Exception: pass
    srv.terminate(); srv.wait()

"""Messages that are due much later wait in Redis, in no worker: each runs once, in its turn, whatever befalls them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dramatiq.worker
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import dq_name
from dramatiq.middleware import AgeLimit
from redis.sentinel import Sentinel

from support.dramatiq.helpers import Site, dead_letters, left_over, working
from support.flood.checks import assert_bound, in_order, starts_of
from support.flood.figures import inversions
from support.flood.run import Flood, FloodLimit, run
from support.servers.flood import Servers
from support.servers.sentinel import watched
from support.servers.stores import Recording
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket, current
from throttlekit.adapter import Park
from throttlekit.fleet.control import Control
from throttlekit.stores.redis import RedisStore
from throttlekit_dramatiq import Throttle

SLOW = TokenBucket("slow", "2/s", burst=1)
MANY = 40


@pytest.fixture
def limits(redis_url: str) -> Iterator[Limiter]:
    """One that counts in Redis: live control changes it."""
    with Limiter(redis_url) as limiter:
        limiter.reset(SLOW)
        yield limiter


def sends(site: Site, limiter: Limiter, **options: Any) -> Any:
    """The actor, of which so many messages wait, with *options* of `Throttle`."""
    site.broker.add_middleware(Throttle(limiter, max_inline_wait=0, **options))

    @site.actor(throttle=SLOW, max_retries=0)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(MANY):
        job.send(n)
    return job


def parked(site: Site) -> int:
    parks = [park for park in Park.all_of(site.broker.client) if park.queue == site.queue]
    return sum(line.jobs for park in parks for line in park.lines())


def in_hand(worker: Any, site: Site) -> int:
    """Messages that the worker holds, or has taken from its queues."""
    broker = site.broker
    return sum(
        int(broker.client.scard(f"{broker.namespace}:__acks__.{broker.broker_id}.{queue}"))
        for queue in (site.queue, dq_name(site.queue))
    )


def until_parked(worker: Any, site: Site) -> None:
    """Whatever is due later than in some seconds is parked."""

    def stands() -> bool:
        taken_up = site.broker.client.llen(f"{site.broker.namespace}:{site.queue}") == 0
        return taken_up and parked(site) + len(site.ran) + 10 > MANY

    wait_until(stands, description="all but the next few are parked")


def runs_the_rest(site: Site, limits: Limiter) -> None:
    """At a raised rate, a worker runs all that wait; each message has run once then."""
    with Control(limits) as control:
        control.set("slow", "100/s")
        with site.working():
            site.until_ran(MANY)
        control.unset("slow")
    assert sorted(site.ran) == list(range(MANY))


def test_what_is_due_later_waits_in_no_worker_and_runs_in_its_turn(redis_site: Site, limits: Limiter) -> None:
    """Of 40 at 2/s the worker holds a few. A raised rate wakes the rest, a stop between leaves them; each runs once."""
    site = redis_site
    sends(site, limits)
    with working(site.broker) as worker:
        until_parked(worker, site)
        assert in_hand(worker, site) < 10
        assert left_over(site.broker, site.queue) >= MANY - len(site.ran)
    waiting = parked(site)
    assert waiting > MANY - 20
    assert sum(park.queue == site.queue for park in Park.all_of(site.broker.client)) == 1
    runs_the_rest(site, limits)
    assert parked(site) == 0
    assert inversions(site.ran) < 0.25  # threads ask in any order; by chance it were a half


def test_what_is_parked_behind_sentinels_outlives_a_fail_over(limits: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's client gets its master from the Sentinels. After the fail-over each parked message runs once."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.1)
    with watched() as pair, contextlib.closing(Sentinel([("127.0.0.1", pair.port)]).master_for("limits")) as client:
        site = Site("redis", "behind-sentinels", lambda **options: RedisBroker(client=client, **options))
        limits.pause(SLOW, 600)  # no message moves in what the replica has not seen as the master is killed
        sends(site, limits)
        with working(site.broker):
            wait_until(lambda: parked(site) == MANY, description="all are parked")
            pair.fail_over()
        limits.resume(SLOW)
        runs_the_rest(site, limits)


def test_a_purge_of_the_queue_drops_what_is_parked(redis_site: Site, limits: Limiter) -> None:
    """`flush` takes the messages; the promoter clears the places, and nothing runs."""
    site = redis_site
    sends(site, limits)
    with working(site.broker) as worker:
        until_parked(worker, site)
        site.broker.flush(site.queue)
        wait_until(lambda: parked(site) == 0, description="no place is left")
        ran = len(site.ran)
    assert ran < 20
    assert left_over(site.broker, site.queue) < 10  # what the worker had in its hands


def test_a_message_past_its_max_age_ends_while_it_is_parked(redis_site: Site, limits: Limiter) -> None:
    """`AgeLimit` ends it at its age, and not at its turn, which is hours off once the limit has become slow."""
    site = redis_site
    site.broker.add_middleware(AgeLimit())
    job = sends(site, limits)
    for n in range(100):
        job.send(n)
    with Control(limits) as control:
        control.set("slow", "10/s")
        with working(site.broker) as worker:
            wait_until(lambda: parked(site) > MANY, description="its turn is 4 s off at least")
            job.send_with_options(args=(-1,), max_age=20_000)
            control.set("slow", "1/m")
            wait_until(lambda: dead_letters(site.broker, site.queue), description="it is dead")
            assert in_hand(worker, site) < MANY
        control.unset("slow")
    assert -1 not in site.ran


@pytest.mark.parametrize("who", ["a 429", "an operator"])
def test_jobs_whose_own_key_is_paused_keep_no_other_back(redis_site: Site, limits: Limiter, who: str) -> None:
    """A tenant's key is paused while its messages are the first in a shared line: those of other tenants run."""
    site = redis_site
    shared = TokenBucket("shared", "10/s", burst=1)
    each = TokenBucket("each", "1000/s", burst=1000, key="{tenant}")
    limits.reset(shared)
    site.broker.add_middleware(Throttle(limits, max_inline_wait=0))

    @site.actor(throttle=[shared, each], max_retries=0)
    def job(tenant: str) -> None:
        site.ran.append(tenant)

    many = {"first": 50, "paused": 600, "last": 50}
    for tenant, count in many.items():
        for _ in range(count):
            job.send(tenant)
    with Control(limits) as control, working(site.broker) as worker:
        wait_until(lambda: parked(site) > 640, description="those of two tenants are parked")
        if who == "an operator":
            control.pause(each, key="paused", for_=3600)
        else:
            limits.pause(each, 3600, key="paused")
        wait_until(lambda: site.ran.count("last") == 50, description="the last tenant's have run", timeout=40)
        ran = site.ran.count("paused")
        wait_until(lambda: parked(site) == 600 - ran, description="the paused tenant's are parked")
        assert in_hand(worker, site) == 0
        control.set(shared, "500/s", burst=500)
        control.resume(each, key="paused")
        limits.resume(each, key="paused")
        site.until_ran(700)
        control.unset(shared)
    assert Counter(site.ran) == many


def test_messages_of_an_actor_that_is_gone_keep_no_other_back(redis_site: Site, limits: Limiter) -> None:
    """A deploy has removed it while its messages are parked first in the line of a limit: they are dead-lettered."""
    site = redis_site
    site.broker.add_middleware(Throttle(limits, max_inline_wait=0))
    shared = TokenBucket("shared", "10/s", burst=1)
    limits.reset(shared)
    gone = site.actor(lambda n: site.ran.append(n), actor_name="gone", throttle=shared, max_retries=0)
    stays = site.actor(lambda n: site.ran.append(n), actor_name="stays", throttle=shared, max_retries=0)
    for n in range(200):
        gone.send(n)
    for n in range(200, 220):
        stays.send(n)
    with working(site.broker):
        wait_until(lambda: parked(site) > 150, description="most are parked")
    del site.broker.actors["gone"]
    with working(site.broker):
        wait_until(lambda: {*range(200, 220)} <= {*site.ran}, description="all of the other actor have run", timeout=40)
        wait_until(lambda: parked(site) == 0, description="nothing is parked")
    assert len(dead_letters(site.broker, site.queue)) == 220 - len(site.ran)


def test_a_unit_that_is_given_back_wakes_the_next_at_once(redis_site: Site, limits: Limiter) -> None:
    """Of a limit of one an hour, bodies that use no unit run one after the other, and not one at each look."""
    site = redis_site
    hourly = TokenBucket("hourly", "1/h", burst=1)
    limits.reset(hourly)
    site.broker.add_middleware(Throttle(limits, max_inline_wait=0))

    @site.actor(throttle=hourly, max_retries=0)
    def job(n: int) -> None:
        wait_until(lambda: n or parked(site) == 12, description="the others are parked")
        site.ran.append(time.monotonic())
        current().settle(0)

    for n in range(13):
        job.send(n)
    with working(site.broker):
        site.until_ran(13)
    assert site.ran[-1] - site.ran[0] < 3.0, "a look is twice a second"


def test_a_store_that_is_away_wakes_nothing_and_loses_nothing(
    redis_site: Site, redis_url: str, limits: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the limiter's store does not answer what is parked stays parked, and runs when it is back."""
    site = redis_site
    store = Failing(RedisStore(redis_url))
    sends(site, Limiter(store))
    with working(site.broker) as worker:
        until_parked(worker, site)
        store.away = True
        asked = store.refused
        wait_until(lambda: store.refused >= asked + 5, description="the promoter has asked in vain")
        stays, ran = parked(site), len(site.ran)
        wait_until(lambda: store.refused >= asked + 15, description="and again")
        assert parked(site) == stays
        assert len(site.ran) <= ran + 1
        store.away = False
        site.until_ran(ran + 5)


class Failing(Recording):
    """A store that can be away."""

    away = False
    refused = 0

    def acquire(self, request: Any, now_us: int | None = None) -> Any:
        if self.away:
            from throttlekit import StoreUnavailable

            self.refused += 1
            raise StoreUnavailable("away")
        return super().acquire(request, now_us)


def test_it_is_turned_off(redis_site: Site, limits: Limiter) -> None:
    """`parking=False`: the worker holds all that wait, as on a broker without Redis."""
    site = redis_site
    sends(site, limits, parking=False)
    with working(site.broker) as worker:
        wait_until(lambda: in_hand(worker, site) + len(site.ran) >= MANY, description="the worker has all of them")
    assert parked(site) == 0


def test_turned_off_it_still_wakes_what_others_have_parked(redis_site: Site, limits: Limiter) -> None:
    """A deploy with `parking=False` strands nothing that the workers before it parked."""
    site = redis_site
    sends(site, limits)
    with working(site.broker) as worker:
        until_parked(worker, site)
    middleware = site.broker.middleware
    middleware.remove(next(each for each in middleware if isinstance(each, Throttle)))
    site.broker.add_middleware(Throttle(limits, max_inline_wait=0, parking=False))
    assert parked(site) > 0
    runs_the_rest(site, limits)


def test_what_a_process_counts_for_itself_is_held(redis_site: Site, limits: Limiter) -> None:
    """A promoter in another process knows nothing of it, and would wake it at every look."""
    site = redis_site
    site.broker.add_middleware(Throttle(limits, max_inline_wait=0))

    @site.actor(throttle=TokenBucket("here", "1/m", burst=1, scope="process"), max_retries=0)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(10):
        job.send(n)
    with working(site.broker) as worker:
        wait_until(lambda: in_hand(worker, site) == 9, description="one has run, and the worker holds the others")
        assert parked(site) == 0


def test_with_limits_in_memory_messages_are_held(redis_site: Site) -> None:
    site = redis_site
    sends(site, Limiter())
    with working(site.broker) as worker:
        wait_until(lambda: in_hand(worker, site) > MANY - 10, description="the worker holds them")
        assert parked(site) == 0


def test_a_broker_made_of_redis_broker_holds_its_messages(
    redis_site: Site, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its messages are is not known, so nothing is parked; the log says so once."""

    class Own(RedisBroker):
        pass

    broker: Any = Own(url=redis_url)
    site = Site("redis", redis_site.queue, lambda: broker)
    with caplog.at_level(logging.INFO, "throttlekit.dramatiq"):
        sends(site, Limiter(Recording()))
        with working(broker) as worker:
            wait_until(lambda: in_hand(worker, site) + len(site.ran) >= MANY, description="the worker has all")
    assert parked(site) == 0
    assert [record.message for record in caplog.records if "parked" in record.message] != []
    broker.flush(site.queue)
    broker.close()


def test_the_layout_of_redis_broker_is_the_one_that_a_park_relies_on(redis_site: Site, limits: Limiter) -> None:
    """Delayed messages are in a hash by `redis_message_id`, what is fetched in a set; ack leaves what is not there."""
    site, broker = redis_site, redis_site.broker
    broker.declare_queue(site.queue)
    actor = site.actor(lambda n: None, actor_name="layout")
    whole = f"{broker.namespace}:{dq_name(site.queue)}"
    message = broker.enqueue(actor.message(1), delay=60_000)
    ids = [message.options["redis_message_id"].encode()]
    assert broker.client.hkeys(f"{whole}.msgs") == ids
    assert broker.client.lrange(whole, 0, -1) == ids
    consumer = broker.consume(dq_name(site.queue), prefetch=1, timeout=100)
    taken: Any = next(consumer)
    acks = f"{broker.namespace}:__acks__.{broker.broker_id}.{dq_name(site.queue)}"
    assert broker.client.smembers(acks) == set(ids)
    broker.client.srem(acks, *ids)
    consumer.ack(taken)
    assert broker.client.hkeys(f"{whole}.msgs") == ids
    broker.flush(site.queue)
    assert not broker.client.exists(f"{whole}.msgs")


@pytest.mark.workers
def test_sigkill_of_workers_loses_no_parked_message(on_redis: Servers) -> None:
    """All processes are killed four times while most messages are parked: each ends, and the bound holds."""
    flood = Flood(
        limits=(FloodLimit("one", "15/s", 5),), jobs=250, kills=(1.5, 4.0, 7.0, 10.0), settle=1.0, give_up=120
    )
    told = in_order(run(flood, on_redis))
    assert set(told.ends) == {str(n) for n in range(250)}
    assert_bound(told, "one", 66_667, 5)
    assert sum(starts_of(told).values()) <= 250 + 4 * 8

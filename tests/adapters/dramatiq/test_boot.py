"""What a worker refuses at boot, because it could not keep its promises later."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from support.dramatiq.helpers import working
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_dramatiq import Throttle


def test_a_second_worker_of_a_throttle_is_refused() -> None:
    """While one worker runs, another one of the same Throttle does not start. After the first has stopped, it does."""
    broker = StubBroker()
    broker.add_middleware(Throttle(Limiter()))
    with working(broker, threads=1):
        second = dramatiq.Worker(broker, worker_threads=1)
        with pytest.raises(ConfigurationError, match="already has a running worker"):
            second.start()
    with working(broker, threads=1):
        pass
    broker.close()


def test_two_throttles_on_a_broker_are_refused() -> None:
    """
    A second Throttle on a broker raises: two would charge each message twice, and overwrite each other's data in it.
    """
    broker = StubBroker()
    for _ in range(2):
        broker.add_middleware(Throttle(Limiter()))
    with pytest.raises(ConfigurationError, match="two Throttle middlewares on one broker"):
        dramatiq.Worker(broker, worker_threads=1).start()
    broker.close()


def test_a_default_is_checked_against_existing_actors() -> None:
    """A default limit whose key an earlier actor cannot fill is refused at boot, not at each job."""
    broker = StubBroker()

    @dramatiq.actor(broker=broker)
    def early(account_id: Any) -> None: ...

    broker.add_middleware(Throttle(Limiter(), throttle=TokenBucket("default", "10/s", key="{tenant}")))
    with pytest.raises(ConfigurationError, match=r"actor 'early'.*names an argument 'tenant'"):
        dramatiq.Worker(broker, worker_threads=1).start()
    broker.close()

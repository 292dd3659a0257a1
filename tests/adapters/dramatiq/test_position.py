"""Where Throttle stands among the middleware: behind AgeLimit, before whatever can interrupt."""

from __future__ import annotations

import logging
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import (
    AgeLimit,
    AsyncIO,
    Callbacks,
    CurrentMessage,
    Middleware,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)

from support.dramatiq.helpers import working
from throttlekit import Limiter
from throttlekit_dramatiq import Throttle


class Mine(Middleware):
    pass


class Other(Middleware):
    pass


def order(broker: dramatiq.Broker) -> list[str]:
    """The middleware of *broker* once a worker has booted."""
    with working(broker, threads=1):
        names = [type(middleware).__name__ for middleware in broker.middleware]
    broker.close()
    return [name for name in names if name != "_WorkerMiddleware"]


def throttle() -> Throttle:
    return Throttle(Limiter("redis://localhost:1/0"))


def test_plain_add_middleware_ends_up_behind_age_limit() -> None:
    """With Dramatiq's own middleware Throttle stands between AgeLimit and TimeLimit, the rest as it was."""
    broker = StubBroker()
    broker.add_middleware(throttle())
    assert order(broker) == [
        "AgeLimit", "Throttle", "TimeLimit", "ShutdownNotifications", "Callbacks", "Pipelines", "Retries",
    ]  # fmt: skip


def test_current_message_added_before_or_after_stands_behind() -> None:
    """CurrentMessage, wherever it was added, is not told of a message that is denied."""
    for before in (True, False):
        broker = StubBroker()
        both = [CurrentMessage(), throttle()] if before else [throttle(), CurrentMessage()]
        for middleware in both:
            broker.add_middleware(middleware)
        names = order(broker)
        assert names[:3] == ["AgeLimit", "Throttle", "TimeLimit"]
        assert names[-1] == "CurrentMessage"


@pytest.mark.parametrize(
    "place",
    [{"after": AgeLimit}, {"before": TimeLimit}, {"after": Mine}],
    ids=["after AgeLimit", "before TimeLimit", "after Mine"],
)
def test_a_good_place_of_the_users_own_is_kept(place: dict[str, Any]) -> None:
    """Anywhere behind AgeLimit and before TimeLimit is good: what the user chose there stays."""
    broker = StubBroker(middleware=[AgeLimit(), Mine(), Other(), TimeLimit(), Retries()])
    broker.add_middleware(throttle(), **place)
    chosen = [type(middleware).__name__ for middleware in broker.middleware]
    assert order(broker) == chosen


def test_a_place_before_age_limit_is_mended() -> None:
    """An expired message is not charged, even if the user put Throttle first."""
    broker = StubBroker()
    broker.add_middleware(throttle(), before=AgeLimit)
    assert order(broker)[:2] == ["AgeLimit", "Throttle"]


def test_an_order_without_a_good_place_warns(caplog: pytest.LogCaptureFixture) -> None:
    """TimeLimit before AgeLimit: safety goes first, and the warning says what to do."""
    broker = StubBroker(middleware=[TimeLimit(), AgeLimit(), Retries(), throttle()])
    with caplog.at_level(logging.WARNING, "throttlekit"):
        assert order(broker) == ["Throttle", "TimeLimit", "AgeLimit", "Retries"]
    (record,) = [record for record in caplog.records if record.name == "throttlekit.dramatiq"]
    assert "Put AgeLimit first" in record.getMessage()


def test_a_good_order_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said when there is nothing to say."""
    broker = StubBroker()
    broker.add_middleware(throttle())
    with caplog.at_level(logging.INFO, "throttlekit"):
        order(broker)
    assert [record for record in caplog.records if record.name.startswith("throttlekit")] == []


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([], ["Throttle"]),
        (["Mine"], ["Mine", "Throttle"]),
        (["Retries", "TimeLimit", "Mine"], ["Retries", "Throttle", "TimeLimit", "Mine"]),
        (["Mine", "AgeLimit", "Other"], ["Mine", "AgeLimit", "Other", "Throttle"]),
        (["ShutdownNotifications", "Callbacks"], ["Throttle", "ShutdownNotifications", "Callbacks"]),
        (["Pipelines", "AsyncIO", "CurrentMessage"], ["Pipelines", "AsyncIO", "Throttle", "CurrentMessage"]),
    ],
    ids=repr,
)
def test_a_broker_with_middleware_of_its_own(own: list[str], expected: list[str]) -> None:
    """Whatever middleware there is keeps its order; Throttle, given last, finds its place among them."""
    kinds = (
        Mine,
        Other,
        AgeLimit,
        TimeLimit,
        Retries,
        ShutdownNotifications,
        Callbacks,
        Pipelines,
        AsyncIO,
        CurrentMessage,
    )
    by_name = {kind.__name__: kind for kind in kinds}
    broker = StubBroker(middleware=[*(by_name[name]() for name in own), throttle()])
    assert order(broker) == expected


def test_every_middleware_still_hears_of_the_boot(caplog: pytest.LogCaptureFixture) -> None:
    """Moving Throttle while the boot is being told does not make anybody miss it, or hear of it twice."""
    heard: list[str] = []

    class Hears(Middleware):
        def before_worker_boot(self, broker: Any, worker: Any) -> None:
            heard.append(type(self).__name__)

    class Hears2(Hears):
        pass

    broker = StubBroker(middleware=[throttle(), Hears(), AgeLimit(), TimeLimit(), Hears2()])
    assert order(broker) == ["Hears", "AgeLimit", "Throttle", "TimeLimit", "Hears2"]
    assert heard == ["Hears", "Hears2"]


def test_booting_twice_changes_nothing_more() -> None:
    """A second worker on the same broker finds Throttle where the first put it."""
    broker = StubBroker()
    broker.add_middleware(throttle())
    with working(broker, threads=1):
        pass
    first = [type(m).__name__ for m in broker.middleware if type(m).__name__ != "_WorkerMiddleware"]
    assert order(broker) == first

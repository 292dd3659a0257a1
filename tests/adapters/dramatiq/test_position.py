"""The position of Throttle among the middleware: after AgeLimit, and before any middleware that can interrupt."""

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
    """Return the middleware of *broker* after a worker has booted."""
    with working(broker, threads=1):
        names = [type(middleware).__name__ for middleware in broker.middleware]
    broker.close()
    return [name for name in names if name != "_WorkerMiddleware"]


def throttle() -> Throttle:
    return Throttle(Limiter("redis://localhost:1/0"))


@pytest.mark.parametrize("position", [{}, {"before": AgeLimit}], ids=["no position", "before AgeLimit"])
def test_throttle_is_after_age_limit(position: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """
    Among Dramatiq's own middleware, Throttle is between AgeLimit and TimeLimit, wherever the user put it. The order of
    the others is unchanged, CurrentMessage is later, no line is logged, and a second boot changes nothing.
    """
    broker = StubBroker()
    broker.add_middleware(CurrentMessage())
    broker.add_middleware(throttle(), **position)
    with caplog.at_level(logging.INFO, "throttlekit"), working(broker, threads=1):
        pass
    assert order(broker) == [
        "AgeLimit",
        "Throttle",
        "TimeLimit",
        "ShutdownNotifications",
        "Callbacks",
        "Pipelines",
        "Retries",
        "CurrentMessage",
    ]
    assert [record for record in caplog.records if record.name.startswith("throttlekit")] == []


@pytest.mark.parametrize(
    "position",
    [{"after": AgeLimit}, {"before": TimeLimit}, {"after": Mine}],
    ids=["after AgeLimit", "before TimeLimit", "after Mine"],
)
def test_a_valid_position_of_the_user_is_kept(position: dict[str, Any]) -> None:
    """Any position after AgeLimit and before TimeLimit is valid, and is kept if the user chose it."""
    broker = StubBroker(middleware=[AgeLimit(), Mine(), Other(), TimeLimit(), Retries()])
    broker.add_middleware(throttle(), **position)
    chosen = [type(middleware).__name__ for middleware in broker.middleware]
    assert order(broker) == chosen


def test_an_order_without_a_valid_position_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """If TimeLimit is before AgeLimit, the safe position is used, and the warning names the remedy."""
    broker = StubBroker(middleware=[TimeLimit(), AgeLimit(), Retries(), throttle()])
    with caplog.at_level(logging.WARNING, "throttlekit"):
        assert order(broker) == ["Throttle", "TimeLimit", "AgeLimit", "Retries"]
    (record,) = [record for record in caplog.records if record.name == "throttlekit.dramatiq"]
    assert "Put AgeLimit first" in record.getMessage()


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
def test_throttle_is_positioned_among_other_middleware(own: list[str], expected: list[str]) -> None:
    """All other middleware keeps its order. Throttle, which is given last, is moved to its position among them."""
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


def test_every_middleware_is_notified_of_the_boot_once(caplog: pytest.LogCaptureFixture) -> None:
    """Throttle is moved during the boot notification. No middleware is left out or notified twice."""
    notified: list[str] = []

    class Booted(Middleware):
        def before_worker_boot(self, broker: Any, worker: Any) -> None:
            notified.append(type(self).__name__)

    class Booted2(Booted):
        pass

    broker = StubBroker(middleware=[throttle(), Booted(), AgeLimit(), TimeLimit(), Booted2()])
    assert order(broker) == ["Booted", "AgeLimit", "Throttle", "TimeLimit", "Booted2"]
    assert notified == ["Booted", "Booted2"]

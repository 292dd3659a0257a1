"""Mistakes raise where they are made: in the decorator, in the constructor, or in the send."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.generic import GenericActor

from support.dramatiq.helpers import Site
from support.ids import stable_repr
from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

PARTNER = TokenBucket("partner", "10/s")
TENANT = TokenBucket("tenant", "10/s", key="{tenant}")


@pytest.fixture
def throttled(stub: Site) -> Site:
    stub.broker.add_middleware(Throttle(Limiter()))
    return stub


class Explodes:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "wrong",
    ["10/s", b"10/s", 10, [PARTNER, "10/s"], ["partner"], {"partner": PARTNER}, object(), [None], TokenBucket, True],
    ids=stable_repr,
)
def test_the_decorator_refuses_values_other_than_limits(throttled: Site, wrong: Any) -> None:
    """
    throttle= takes a limit, several limits, or None. For any other value, the error names it and the correct form.
    """
    with pytest.raises(ConfigurationError, match=r"actor 'job'.*takes a limit or a list of limits"):

        @throttled.actor(throttle=wrong)
        def job() -> None: ...

    assert "job" not in throttled.broker.actors


def test_an_unexpected_error_does_not_declare_the_actor_unthrottled(throttled: Site) -> None:
    """Dramatiq ignores errors of a declaration hook. Any error must still stop the declaration."""
    with pytest.raises(ConfigurationError):

        @throttled.actor(throttle=Explodes())
        def job() -> None: ...

    assert "job" not in throttled.broker.actors


@pytest.mark.parametrize("fine", [PARTNER, [PARTNER], (PARTNER, TENANT), {PARTNER}, [], None], ids=stable_repr)
def test_a_limit_or_several_or_none_is_accepted(throttled: Site, fine: Any) -> None:
    """One limit, a list, a tuple, a set or None is accepted."""

    @throttled.actor(throttle=fine)
    def job(tenant: str) -> None: ...

    assert "job" in throttled.broker.actors


def test_two_definitions_of_one_name_are_refused(throttled: Site) -> None:
    """One name means one budget, for all actors of the process."""
    throttled.actor(lambda: None, actor_name="one", throttle=PARTNER)
    with pytest.raises(ConfigurationError, match="'partner' is used for two limits"):
        throttled.actor(lambda: None, actor_name="two", throttle=TokenBucket("partner", "11/s"))


def test_the_default_counts_as_a_definition(stub: Site) -> None:
    """A limit of Throttle itself and another one with its name on an actor are two definitions."""
    stub.broker.add_middleware(Throttle(Limiter(), throttle=PARTNER))
    with pytest.raises(ConfigurationError, match="two limits"):
        stub.actor(lambda: None, actor_name="one", throttle=TokenBucket("partner", "11/s"))


def test_a_default_limit_is_checked_against_every_actor(stub: Site) -> None:
    """A default with a key is refused by the first actor without that argument."""
    stub.broker.add_middleware(Throttle(Limiter(), throttle=[TENANT]))
    with pytest.raises(ConfigurationError, match="names an argument 'tenant'"):
        stub.actor(lambda account: None, actor_name="job")


def test_a_key_of_an_async_actor_is_checked_against_its_own_signature(throttled: Site) -> None:
    """The wrapper that Dramatiq puts around a coroutine function does not hide its signature."""

    @throttled.actor(throttle=TENANT)
    async def fine(tenant: str) -> None: ...

    with pytest.raises(ConfigurationError, match="names an argument"):

        @throttled.actor(throttle=TENANT)
        async def job(account: str) -> None: ...


def test_a_key_of_a_class_based_actor_is_checked_against_perform(throttled: Site) -> None:
    """A GenericActor's arguments are those of `perform`."""

    class Fine(GenericActor):
        class Meta:
            broker = throttled.broker
            throttle = TENANT

        def perform(self, tenant: str) -> None: ...

    with pytest.raises(ConfigurationError, match="names an argument"):

        class Wrong(GenericActor):
            class Meta:
                broker = throttled.broker
                throttle = TENANT

            def perform(self, account: str) -> None: ...


@pytest.mark.parametrize("wrong", ["5", -1, float("nan"), float("inf"), True, [1]], ids=stable_repr)
def test_a_max_wait_that_can_never_work_is_refused(throttled: Site, wrong: Any) -> None:
    """throttle_max_wait is a number of seconds or a timedelta, in the decorator and in the constructor."""
    with pytest.raises(ConfigurationError, match="throttle_max_wait must be"):
        throttled.actor(lambda: None, actor_name="job", throttle=PARTNER, throttle_max_wait=wrong)
    with pytest.raises(ConfigurationError, match="max_wait must be"):
        Throttle(Limiter(), max_wait=wrong)


@pytest.mark.parametrize("wrong", ["redis://localhost:6379/0", None, PARTNER, Limiter])
def test_throttle_accepts_only_a_limiter(wrong: Any) -> None:
    """A URL, a limit or the class itself is refused, and the message shows the correct form."""
    with pytest.raises(ConfigurationError, match="Throttle takes a limiter"):
        Throttle(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_waited_too_long": "retry"},
        {"max_deferrals": -1},
        {"max_deferrals": True},
        {"max_deferrals": 1.5},
        {"max_deferrals": "3"},
        {"own_limits": 0},
        {"throttle": "10/s"},
        {"throttle": [PARTNER, PARTNER]},
    ],
    ids=stable_repr,
)
def test_settings_that_can_never_work_are_refused(wrong: dict[str, Any]) -> None:
    """Every setting is checked when Throttle is created."""
    with pytest.raises(ConfigurationError):
        Throttle(Limiter(), **wrong)


def test_an_actor_with_throttle_before_the_middleware_is_dramatiqs_own_error() -> None:
    """Without the middleware, an actor's throttle= is an unknown option. It is never ignored silently."""
    broker = StubBroker()
    with pytest.raises(ValueError, match="actor options are undefined: throttle"):
        dramatiq.actor(lambda: None, actor_name="job", broker=broker, throttle=PARTNER)
    broker.close()


def test_a_declaration_error_is_also_a_value_error(throttled: Site) -> None:
    """`except ConfigurationError` and `except ValueError` both catch it, with its own name."""
    with pytest.raises(ValueError, match="actor 'job'") as caught:
        throttled.actor(lambda: None, actor_name="job", throttle="10/s")
    assert isinstance(caught.value, ConfigurationError)
    assert type(caught.value).__name__ == "ConfigurationError"

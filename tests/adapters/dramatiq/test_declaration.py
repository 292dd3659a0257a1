"""Mistakes show where they are made: at the decorator, at the constructor, at the send."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.generic import GenericActor

from support.dramatiq.helpers import Site
from support.ids import told
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
    ids=told,
)
def test_what_is_not_a_limit_is_refused_at_the_decorator(throttled: Site, wrong: Any) -> None:
    """throttle= takes a limit, several, or None; anything else names itself and what would be right."""
    with pytest.raises(ConfigurationError, match=r"actor 'job'.*takes a limit or a list of limits"):

        @throttled.actor(throttle=wrong)
        def job() -> None: ...

    assert "job" not in throttled.broker.actors


def test_an_error_that_nobody_foresaw_does_not_declare_the_actor_unthrottled(throttled: Site) -> None:
    """Dramatiq swallows what a declaration hook raises: whatever goes wrong there must still stop the declaration."""
    with pytest.raises(ConfigurationError):

        @throttled.actor(throttle=Explodes())
        def job() -> None: ...

    assert "job" not in throttled.broker.actors


@pytest.mark.parametrize("fine", [PARTNER, [PARTNER], (PARTNER, TENANT), {PARTNER}, [], None], ids=told)
def test_a_limit_or_several_or_none_is_taken(throttled: Site, fine: Any) -> None:
    """One limit, a list, a tuple, a set, nothing."""

    @throttled.actor(throttle=fine)
    def job(tenant: str) -> None: ...

    assert "job" in throttled.broker.actors


def test_two_definitions_of_one_name_are_refused(throttled: Site) -> None:
    """The same name is the same budget, over all actors of the process."""
    throttled.actor(lambda: None, actor_name="one", throttle=PARTNER)
    with pytest.raises(ConfigurationError, match="'partner' is used for two limits"):
        throttled.actor(lambda: None, actor_name="two", throttle=TokenBucket("partner", "11/s"))


def test_the_default_is_a_definition_too(stub: Site) -> None:
    """A limit given to Throttle itself and another of its name on an actor are two definitions."""
    stub.broker.add_middleware(Throttle(Limiter(), throttle=PARTNER))
    with pytest.raises(ConfigurationError, match="two limits"):
        stub.actor(lambda: None, actor_name="one", throttle=TokenBucket("partner", "11/s"))


def test_a_default_limit_is_held_against_every_actor(stub: Site) -> None:
    """A default with a key is refused by the first actor that lacks the argument."""
    stub.broker.add_middleware(Throttle(Limiter(), throttle=[TENANT]))
    with pytest.raises(ConfigurationError, match="names an argument 'tenant'"):
        stub.actor(lambda account: None, actor_name="job")


def test_a_key_may_name_what_kwargs_hold(throttled: Site) -> None:
    """**kwargs may hold any name: the declaration stands."""

    @throttled.actor(throttle=TENANT)
    def job(**options: Any) -> None: ...

    assert "job" in throttled.broker.actors


def test_a_key_of_an_async_actor_is_held_against_its_own_signature(throttled: Site) -> None:
    """The wrapper that Dramatiq puts around a coroutine function hides nothing."""

    @throttled.actor(throttle=TENANT)
    async def fine(tenant: str) -> None: ...

    with pytest.raises(ConfigurationError, match="names an argument"):

        @throttled.actor(throttle=TENANT)
        async def job(account: str) -> None: ...


def test_a_key_of_a_class_based_actor_is_held_against_perform(throttled: Site) -> None:
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


@pytest.mark.parametrize("wrong", ["5", -1, float("nan"), float("inf"), True, [1]], ids=told)
def test_a_max_wait_that_can_never_work_is_refused(throttled: Site, wrong: Any) -> None:
    """throttle_max_wait is a number of seconds, or a timedelta: at the decorator as in the constructor."""
    with pytest.raises(ConfigurationError, match="throttle_max_wait must be"):
        throttled.actor(lambda: None, actor_name="job", throttle=PARTNER, throttle_max_wait=wrong)
    with pytest.raises(ConfigurationError, match="max_wait must be"):
        Throttle(Limiter(), max_wait=wrong)


@pytest.mark.parametrize("wrong", ["redis://localhost:6379/0", None, PARTNER, Limiter])
def test_throttle_takes_a_limiter(wrong: Any) -> None:
    """A URL, a limit or the class itself is not a limiter, and the message shows what is."""
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
    ids=told,
)
def test_settings_that_can_never_work_are_refused(wrong: dict[str, Any]) -> None:
    """Every setting is checked when Throttle is made."""
    with pytest.raises(ConfigurationError):
        Throttle(Limiter(), **wrong)


def test_throttle_added_after_the_actors_is_dramatiqs_own_error() -> None:
    """Without the middleware an actor's throttle= is an unknown option: it is never ignored in silence."""
    broker = StubBroker()
    with pytest.raises(ValueError, match="actor options are undefined: throttle"):
        dramatiq.actor(lambda: None, actor_name="job", broker=broker, throttle=PARTNER)
    broker.close()


def test_a_declaration_error_is_also_a_value_error(throttled: Site) -> None:
    """Whoever catches ConfigurationError or ValueError catches it, with its own name."""
    with pytest.raises(ValueError, match="actor 'job'") as caught:
        throttled.actor(lambda: None, actor_name="job", throttle="10/s")
    assert isinstance(caught.value, ConfigurationError)
    assert type(caught.value).__name__ == "ConfigurationError"

"""Short waits in place: few at once, and only short ones."""

from __future__ import annotations

import threading

import pytest

from throttlekit._engine import inline
from throttlekit._engine.inline import InlineWaits


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(inline.time, "sleep", slept.append)
    return slept


def test_short_wait_is_slept(slept: list[float]) -> None:
    """A wait up to the longest is slept in full."""
    assert InlineWaits(longest=0.05).wait(0.05)
    assert slept == [0.05]


@pytest.mark.parametrize(("waits", "seconds"), [(InlineWaits(longest=0.05), 0.051), (InlineWaits(at_once=0), 0.01)])
def test_other_waits_are_not(slept: list[float], waits: InlineWaits, seconds: float) -> None:
    """A longer wait, or any where none may wait, is refused at once."""
    assert not waits.wait(seconds)
    assert slept == []


def test_few_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While as many wait as may, one more is refused; afterwards the place is free again."""
    asleep, wake = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        asleep.set()
        assert wake.wait(30)

    monkeypatch.setattr(inline.time, "sleep", sleep)
    waits = InlineWaits(at_once=1)
    thread = threading.Thread(target=waits.wait, args=(0.01,))
    thread.start()
    assert asleep.wait(30)
    assert not waits.wait(0.01)
    wake.set()
    thread.join()
    assert waits.wait(0.01)


def test_place_is_given_back_when_the_sleep_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is interrupted (a worker that stops) frees its place."""

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    waits = InlineWaits(at_once=1)
    with monkeypatch.context() as patch:
        patch.setattr(inline.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waits.wait(0.01)
    monkeypatch.setattr(inline.time, "sleep", lambda _: None)
    assert waits.wait(0.01)

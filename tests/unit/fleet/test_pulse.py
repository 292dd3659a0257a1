"""The pulse: once a second, beside the decisions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from support.waiting import wait_until
from throttlekit import StoreUnavailable
from throttlekit.fleet.pulse import Pulse


class _Beats:
    def __init__(self) -> None:
        self.threads: list[str] = []

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def beats() -> _Beats:
    return _Beats()


@pytest.fixture
def pulse(beats: _Beats) -> Iterator[Pulse]:
    pulse = Pulse([beats], every=0.01)
    yield pulse
    pulse.stop()


def test_first_beat_is_the_callers(pulse: Pulse, beats: _Beats) -> None:
    """Whoever feels it first knows, when he goes on, what the fleet knows; later beats are in a thread."""
    pulse.felt()
    assert beats.threads[0] == threading.current_thread().name
    wait_until(lambda: len(beats.threads) >= 3, description="it beats by itself")
    assert set(beats.threads[1:]) == {"throttlekit-pulse"}


def test_process_that_has_no_more_threads_beats_all_the_same(
    beats: _Beats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever decides does it then, each time; no decision fails, and the thread begins once there is one to have."""
    pulse = Pulse([beats], every=60)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            pulse.felt()
    assert (len(beats.threads), pulse.beats) == (3, False)
    assert caplog.text.count("No thread could be started") == 1
    pulse.felt()
    assert pulse.beats
    pulse.stop()


def test_felt_again_does_nothing(beats: _Beats) -> None:
    """Only the first decision of a process pays for it."""
    pulse = Pulse([beats], every=60)
    for _ in range(3):
        pulse.felt()
    assert len(beats.threads) == 1
    pulse.stop()


def test_stop_beats_once_more_and_ends_the_thread(beats: _Beats) -> None:
    """What a process has to say at its end is said; and it can begin again."""
    before = set(threading.enumerate())
    pulse = Pulse([beats], every=60)
    pulse.stop()
    assert beats.threads == []
    pulse.felt()
    pulse.stop()
    assert len(beats.threads) == 2
    assert set(threading.enumerate()) <= before
    pulse.felt()
    assert len(beats.threads) == 3
    pulse.stop()


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ValueError("a fault of ours")])
def test_beat_that_fails_stops_nothing(error: Exception, beats: _Beats) -> None:
    """The others are called all the same, and it is called again."""
    called: list[int] = []

    def fails() -> None:
        called.append(1)
        raise error

    pulse = Pulse([fails, beats], every=0.01)
    pulse.felt()
    wait_until(lambda: len(called) >= 2, description="it is called again")
    pulse.stop()
    assert len(beats.threads) >= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_beats_for_itself(beats: _Beats) -> None:
    """A child has none of its parent's threads: its first decision begins anew."""
    pulse = Pulse([beats], every=60)
    pulse.felt()
    child = os.fork()
    if child == 0:
        pulse.felt()
        os._exit(len(beats.threads))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    pulse.stop()

"""A fork while another thread holds a lock: the child must not wait for a thread that it does not have."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

from throttlekit import Job, Limiter, TokenBucket, _forks
from throttlekit._forks import renew_lock_after_fork
from throttlekit._plugins import DeferralLog
from throttlekit.hookspecs import Deferred
from throttlekit.inline import InlineWaits
from throttlekit.stores import MemoryStore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
LIMIT = TokenBucket("partner", "10/s", burst=1)


def in_a_child(work: Callable[[], object]) -> int:
    """Run *work* in a forked child; its exit code, 0 if all went well, or minus the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a fork among threads is risky is the point
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_deferrals_are_logged_in_a_child() -> None:
    """A deferral is told in a child that was forked while another thread told one."""
    log, limiter = DeferralLog(), Limiter()
    limiter.acquire(LIMIT)
    event = Deferred(Job(), limiter.peek(LIMIT), 1, 0.0)

    def tell() -> bool:
        log.throttlekit_deferred(event)
        return True

    with log._lock:
        assert in_a_child(tell) == 0


def test_child_may_wait_in_place() -> None:
    """A thread that waits in place at the fork takes no place from the child."""
    waits = InlineWaits(at_once=1)
    assert waits._places is not None
    with waits._places:
        assert not waits.wait(0.0)
        assert in_a_child(lambda: waits.wait(0.0)) == 0


def test_memory_store_answers_in_a_child() -> None:
    """A store in memory answers in a child that was forked in the middle of a decision."""
    store = MemoryStore()
    limiter = Limiter(store)
    with store._lock:
        assert in_a_child(lambda: limiter.acquire(LIMIT).allowed) == 0


def test_owner_is_not_kept_alive() -> None:
    """An owner that is gone is forgotten."""

    class Owner:
        lock = threading.Lock()

    gc.collect()
    before = len(_forks._owners)
    owner = Owner()
    renew_lock_after_fork(owner, "lock")
    assert len(_forks._owners) == before + 1
    del owner
    gc.collect()
    assert len(_forks._owners) == before

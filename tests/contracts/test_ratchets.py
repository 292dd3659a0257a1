"""Limits of the complexity of waiting. These numbers may decrease, and must not increase."""

from __future__ import annotations

import ast
import sys
from types import FrameType
from typing import Any

import dramatiq
import pytest
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import SkipMessage

from contracts.tree import LUA, ROOT, parsed, read
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

WAITING_MODULES = [
    "throttlekit._core.decide",
    "throttlekit._core.late",
    "throttlekit._core.waitlist",
    "throttlekit._engine.room",
    "throttlekit._engine.waker",
    "throttlekit._engine.relay",
    "throttlekit.stores.bells",
    "throttlekit.stores.parts",
]
MAX_CALLS, MAX_FILES = 87, 32
MAX_CONSTANTS = 34
MAX_LUA_LINES = 2_196
_PACKAGES = {"throttlekit", "throttlekit_dramatiq", "throttlekit_lua"}
_SLOW = TokenBucket("slow", "1/h", burst=1)


def test_a_denied_message_makes_few_calls(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A denied message makes few calls from the middleware to the waker and back, with one limit on Redis: the design with
    waiting lines, before waitlists, made 154 calls in 41 files.
    """
    monkeypatch.delenv("THROTTLEKIT_URL", raising=False)
    broker, limiter = StubBroker(), Limiter(redis_url)
    throttle = Throttle(limiter)
    broker.add_middleware(throttle)

    @dramatiq.actor(throttle=_SLOW, broker=broker)
    def job() -> None: ...

    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    counted: list[list[str]] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in files and not code.co_name.startswith("<"):
            counted[-1].append(code.co_filename)

    def deny() -> None:
        message: Any = MessageProxy(job.message())
        with pytest.raises(SkipMessage):
            throttle.before_process_message(broker, message)
        throttle.after_skip_message(broker, message)
        throttle.before_ack(broker, message)

    files = {each.__file__ for name, each in sys.modules.items() if name.split(".")[0] in _PACKAGES}
    try:
        limiter.acquire(_SLOW)
        for _ in range(5):  # until every value that is computed once is cached
            deny()
        for _ in range(3):  # some denials also renew something whose time has come
            counted.append([])
            sys.setprofile(record)
            try:
                deny()
            finally:
                sys.setprofile(None)
    finally:
        worker.stop()
    calls = min(counted, key=len)
    assert 50 < len(calls) <= MAX_CALLS
    assert 10 < len(set(calls)) <= MAX_FILES


def test_waiting_has_few_constants() -> None:
    """The modules of waiting have few chosen numbers: the design with waiting lines had 137."""
    names = [f"{module}.{name}" for module in WAITING_MODULES for name in _constants(parsed(module))]
    assert 10 < len(names) <= MAX_CONSTANTS, names


def test_the_scripts_that_decide_stay_short() -> None:
    """The scripts of the design with waiting lines had 2 862 lines, those of adapters included."""
    assert 500 < sum(len(read(path).splitlines()) for path in LUA) <= MAX_LUA_LINES


def test_no_function_is_complex() -> None:
    """The linter allows 15 branches per function (with waiting lines: 44). Tests and simulations may have more."""
    rules = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '"C90"' in rules
    assert "max-complexity = 15" in rules


def _constants(module: ast.Module) -> list[str]:
    """Return the names in capitals to which a module assigns a number."""
    found: list[str] = []
    for node in module.body:
        if not isinstance(node, ast.Assign):
            continue
        values = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
        if any(type(value) in (int, float) for value in values):
            names = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            found += [name for name in names if name.isupper()]
    return found

"""The error about a misspelt argument names what the caller wrote, and the argument that was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import throttlekit_celery
import throttlekit_dramatiq
import throttlekit_huey
import throttlekit_rq
import throttlekit_taskiq
from throttlekit import Adapt, AsyncLimiter, ByLatency, Control, Limiter, Share


@pytest.mark.parametrize(
    ("function", "name", "wrong", "meant"),
    [
        (Limiter, "Limiter", "plugin", "plugins"),
        (AsyncLimiter, "AsyncLimiter", "store_s", "stores"),
        (Control, "Control", "buy", "by"),
        (Adapt, "Adapt", "flor", "floor"),
        (ByLatency, "ByLatency", "time_out", "timeout"),
        (Share, "Share", "wieght", "weight"),
        (throttlekit_dramatiq.Throttle, "Throttle", "on429", "on_429"),
        (throttlekit_taskiq.Throttle, "Throttle", "maxwait", "max_wait"),
        (throttlekit_celery.install, "install", "max_waits", "max_wait"),
        (throttlekit_huey.install, "install", "max_deferals", "max_deferrals"),
        (throttlekit_rq.configure, "configure", "max_defferals", "max_deferrals"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misspelt_argument_is_named_with_the_right_one(
    function: Callable[..., Any], name: str, wrong: str, meant: str
) -> None:
    """The error is Python's, and ends with the name that was probably meant."""
    with pytest.raises(TypeError) as caught:
        function(**{wrong: None})
    assert str(caught.value) == f"{name}() got an unexpected keyword argument {wrong!r}: did you mean {meant!r}?"


def test_an_argument_that_resembles_none_has_no_hint() -> None:
    """The error is Python's alone."""
    with pytest.raises(TypeError) as caught:
        Limiter(zzz=1)  # type: ignore[call-arg]
    assert str(caught.value) == "Limiter() got an unexpected keyword argument 'zzz'"

"""Random values of every kind, valid and invalid, from a seed."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import string
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

__all__ = ["Values", "hanging_fails"]

_TEXTS = [
    "",
    " ",
    "\0",
    "\n",
    "a",
    "{",
    "}",
    "{}",
    "{{}}",
    "{a",
    "{a}",
    "{a.b}",
    "{a[0]}",
    "{a!r}",
    "{a:>10}",
    "{0}",
    "{ }",
    "{a.__class__}",
    "100/minute",
    "10/s",
    "5/10s",
    "0/s",
    "-1/s",
    "1e3/s",
    "1/0s",
    "999999999999/s",
    "1/999999999d",
    "٣/s",
    "1//s",
    "1/s/s",
    "１/s",
    "ｓ",
    "memory://",
    "redis://",
    "redis://:p@h:1/0",
    "\ud800",
    "é",
    "日",
    "%s",
    "%00",
    "${x}",
    "../..",
    "global",
    "queue",
    "process",
    "Europe/Berlin",
    "UTC",
    "../etc/passwd",
    "Mars/Base",
    "free",
    "a" * 10_000,
    "{" * 500,
    "1" * 5_000,
    "token-bucket",
    "fixed-window",
    "sliding-log",
    "leaky-bucket",
    "nan",
    "inf",
]
_NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    10,
    100,
    2**31,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**63,
    2**64,
    10**12,
    10**15,
    10**18,
    10**30,
    10**5000,
    -(2**63),
    0.0,
    -0.0,
    0.5,
    1.0,
    1e-9,
    1e-6,
    1e15,
    1e16,
    1e22,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
    True,
    False,
]


class Value:
    """A value of a type that no function accepts."""


class Values:
    """Draws random values. The same seed draws the same values."""

    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self._kinds: list[Callable[[], Any]] = [
            lambda: None,
            self.number,
            self.number,
            self.text,
            self.text,
            lambda: self.rnd.choice([Value, Value(), len, print, int, object(), Ellipsis, b"raw", b""]),
            lambda: self.rnd.choice([Decimal("1e5"), Fraction(1, 3), 1j, timedelta(1), timedelta(-1), timedelta.max]),
            lambda: lambda job: self.any(2),
            lambda: [self.any(2) for _ in range(self.rnd.randint(0, 3))],
            lambda: tuple(self.any(2) for _ in range(self.rnd.randint(0, 3))),
            lambda: {self.text(): self.any(2) for _ in range(self.rnd.randint(0, 3))},
            lambda: {self.rnd.choice([1, None, "free", "pro", (1,)]): self.any(2) for _ in range(2)},
            lambda: {1, 2},
            lambda: range(3),
            self._raising,
        ]

    def any(self, depth: int = 0) -> Any:
        """Draw a value of any kind. From *depth* 2 on, it is not a container."""
        return self.rnd.choice(self._kinds[: 7 if depth >= 2 else None])()

    def number(self) -> Any:
        if self.rnd.random() < 0.6:
            return self.rnd.choice(_NUMBERS)
        return self.rnd.choice([self.rnd.randint(-10, 1000), self.rnd.randint(0, 2**60), self.rnd.random() * 1e6])

    def text(self) -> str:
        if self.rnd.random() < 0.7:
            return self.rnd.choice(_TEXTS)
        letters = string.printable + "é日\ud800\0{}/:@"
        return "".join(self.rnd.choice(letters) for _ in range(self.rnd.randint(0, 40)))

    def rate(self) -> Any:
        """Draw a value that is similar to a rate."""
        rnd = self.rnd
        near = [
            lambda: (
                f"{rnd.choice(_NUMBERS[:16])}/{rnd.choice(['', '1', '10', '0', '999999999'])}{rnd.choice('smhdxS')}"
            ),
            lambda: (self.number(), timedelta(microseconds=rnd.randint(-5, 10**12))),
            lambda: (self.number(), self.number()),
            lambda: {"free": self.rate(), "pro": "100/m"},
            lambda: "10/s",
            lambda: "100/m",
            lambda: (rnd.randint(1, 10**12), rnd.randint(1, 10**7)),
        ]
        return rnd.choice(near)() if rnd.random() < 0.8 else self.any()

    def mutated(self, data: Any) -> Any:
        """Return JSON-like *data* with a random change."""
        rnd = self.rnd
        if isinstance(data, dict) and data and rnd.random() < 0.9:
            key = rnd.choice(list(data))
            choice = rnd.random()
            if choice < 0.15:
                return {name: value for name, value in data.items() if name != key}
            if choice < 0.25:
                return {**data, self.text(): self.any()}
            return {**data, key: self.mutated(data[key])}
        if isinstance(data, list) and data and rnd.random() < 0.8:
            at = rnd.randrange(len(data))
            choice = rnd.random()
            if choice < 0.2:
                return data[:at] + data[at + 1 :]
            return [*data[:at], self.mutated(data[at]), *data[at + 1 :]]
        return self.any()

    def _raising(self) -> Any:
        def raises(job: Any) -> Any:
            raise RuntimeError("raised by the fuzz")

        return raises


@contextlib.contextmanager
def hanging_fails(seconds: float = 20.0) -> Iterator[Callable[[], None]]:
    """Yield a function to call before each value. If the use of a value takes longer than *seconds*, it raises."""

    def raise_error(*_: Any) -> None:
        raise AssertionError(f"a value took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, raise_error)
    try:
        yield lambda: (signal.setitimer(signal.ITIMER_REAL, seconds), None)[1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

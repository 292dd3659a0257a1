"""The shipped `_core`, and copies of it with one thing changed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

__all__ = ["Edit", "core"]

_MODULES = {
    "slowdown": "slowdown", "line": "line", "absence": "absence", "acquire": "acquire", "gcra": "algorithms.gcra",
    "concurrency": "algorithms.concurrency",
}  # fmt: skip


class Edit(NamedTuple):
    """One thing changed in a module of `throttlekit._core`: a text that stands there once, and what stands instead."""

    module: str
    old: str
    new: str


class Core(NamedTuple):
    slowdown: ModuleType
    line: ModuleType
    absence: ModuleType
    acquire: ModuleType
    gcra: ModuleType
    concurrency: ModuleType


def core(edits: Sequence[Edit] = ()) -> Core:
    """
    The modules that decide; copies of their own if there are *edits*.

    Raises:
        ValueError: A text does not stand in its module exactly once.
    """
    names = [f"throttlekit._core.{name}" for name in _MODULES.values()]
    shipped = [importlib.import_module(name) for name in names]
    if not edits:
        return Core(*shipped)
    texts = {name: _text(module.__file__) for name, module in zip(_MODULES, shipped, strict=True)}
    for module, old, new in edits:
        if texts[module].count(old) != 1:
            raise ValueError(f"{old!r} stands {texts[module].count(old)} times in {module}")
        texts[module] = texts[module].replace(old, new)
    try:
        for short, name in zip(_MODULES, names, strict=True):
            copy = sys.modules[name] = ModuleType(name)
            exec(compile(texts[short], f"<{name}, changed>", "exec"), copy.__dict__)
        return Core(*(sys.modules[name] for name in names))
    finally:
        sys.modules.update(zip(names, shipped, strict=True))


@cache
def _text(path: str | None) -> str:
    assert path is not None
    return Path(path).read_text(encoding="utf-8")

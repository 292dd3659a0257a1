"""Sites of `AdapterConformance` that several tests use one after the other, because workers take seconds to start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from throttlekit.adapter import WaitRules
from throttlekit.testing.adapter_site import Settings

__all__ = ["SharedSites", "settings_from", "settings_to"]


class _Closing(Protocol):
    def log(self) -> str: ...

    def close(self) -> None: ...


_S = TypeVar("_S", bound=_Closing)


class SharedSites(Generic[_S]):
    """
    Keeps a site for each value of the settings, until `close`. A site is not used again after a test failed on it.
    """

    def __init__(self, make: Callable[[Settings], _S]) -> None:
        self._make = make
        self._sites: dict[Settings, _S] = {}

    @contextmanager
    def site(self, settings: Settings) -> Iterator[_S]:
        if settings not in self._sites:
            self._sites[settings] = self._make(settings)
        try:
            yield self._sites[settings]
        except BaseException:
            print(self._sites[settings].log()[-6000:])  # pytest shows the output
            self._drop(settings)
            raise
        if settings.killed:
            self._drop(settings)

    def close(self) -> None:
        for settings in list(self._sites):
            self._drop(settings)

    def _drop(self, settings: Settings) -> None:
        self._sites.pop(settings).close()


def settings_to(settings: Settings) -> dict[str, Any]:
    """Return *settings* as JSON data, for worker processes."""
    return {**settings.options(), "longest": settings.longest}


def settings_from(data: Mapping[str, Any]) -> Settings:
    max_wait, max_deferrals = (math.inf if data[name] is None else data[name] for name in ("max_wait", "max_deferrals"))
    return Settings(WaitRules(max_wait, max_deferrals, data["on_waited_too_long"]), data["longest"])

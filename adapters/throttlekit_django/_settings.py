"""The project's setting THROTTLEKIT, and the limiter that it describes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from django.conf import settings  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from throttlekit import ConfigurationError, Limiter
from throttlekit.adapter import spelling_hint

__all__ = ["PAGE_OPTIONS", "find_faults", "forget_limiter", "get_limiter", "read_options"]

PAGE_OPTIONS = ("allow_control", "show_keys", "title", "token")
"""The options of the page in the admin."""

_OPTIONS = ("url", "client", "plugins", "stores", *PAGE_OPTIONS)
_lock = threading.Lock()
_made: list[Limiter] = []


def get_limiter() -> Limiter:
    """
    Return the project's limiter. The first call in a process creates it from `settings.THROTTLEKIT`, without opening a
    connection:

        THROTTLEKIT = {"url": "redis://localhost:6379/1"}

    The options `url`, `client`, `plugins` and `stores` are the arguments of `Limiter`. A client and plugins may also be
    dotted names. The default of `url` is the environment variable THROTTLEKIT_URL, otherwise memory.

    Raises:
        ConfigurationError: An option is unknown, or can never work.
    """
    with _lock:
        if not _made:
            given = {name: value for name, value in read_options().items() if name not in PAGE_OPTIONS}
            if "client" in given:
                given["client"] = _import_named(given["client"])
            if isinstance(given.get("plugins"), (list, tuple)):
                given["plugins"] = [_import_named(each) for each in given["plugins"]]
            url = given.pop("url", None)
            _made.append(Limiter(**given) if url is None else Limiter(url, **given))
        return _made[0]


def forget_limiter() -> None:
    """Close the limiter. The next call of `get_limiter` creates another limiter."""
    with _lock:
        while _made:
            _made.pop().close()


def read_options() -> dict[str, Any]:
    """
    Return the setting THROTTLEKIT.

    Raises:
        ConfigurationError: The setting is not a dict, or has an unknown option.
    """
    for fault in find_faults():
        raise ConfigurationError(fault)
    return dict(getattr(settings, "THROTTLEKIT", {}))


def find_faults() -> Iterator[str]:
    """Yield the errors in the type of the setting and in the names of its options."""
    options: Any = getattr(settings, "THROTTLEKIT", {})
    if not isinstance(options, dict):
        kind = type(options).__name__
        yield f'settings.THROTTLEKIT must be a dict, like {{"url": "redis://localhost:6379/1"}}, not {kind}'
        return
    names: list[Any] = [*options]
    for name in (name for name in names if name not in _OPTIONS):
        what = spelling_hint(str(name).lower(), _OPTIONS) or f": the options are {', '.join(_OPTIONS)}"
        yield f"settings.THROTTLEKIT has an unknown option {name!r}{what}"


def _import_named(value: object) -> object:
    """Return *value*, or the object with this dotted name. If that is a class, return an instance."""
    if not isinstance(value, str):
        return value
    try:
        found: object = import_string(value)
    except ImportError as error:
        raise ConfigurationError(f"settings.THROTTLEKIT names {value!r}, which cannot be imported: {error}") from error
    return found() if isinstance(found, type) else found

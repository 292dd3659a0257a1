"""The app, `INSTALLED_APPS = [..., "throttlekit_django"]`, and its system checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.core.checks import CheckMessage, Error, Warning, register  # type: ignore[import-untyped]
from django.core.signals import setting_changed  # type: ignore[import-untyped]

from throttlekit import ConfigurationError
from throttlekit_django._settings import find_faults, forget_limiter, get_limiter, read_options

__all__ = ["ThrottlekitConfig"]


class ThrottlekitConfig(AppConfig):  # type: ignore[misc]
    name = "throttlekit_django"
    verbose_name = "throttlekit"
    default_auto_field: Any = "django.db.models.AutoField"

    def ready(self) -> None:
        register(_check_settings)
        changed: Any = setting_changed
        changed.connect(_follow_setting)


def _follow_setting(*, setting: str, **_: object) -> None:
    """Forget the limiter when a test changes the setting, for example with `override_settings`."""
    if setting == "THROTTLEKIT":
        forget_limiter()


def _check_settings(**_: object) -> list[CheckMessage]:
    """Check the setting THROTTLEKIT, without opening a connection."""
    faults: list[CheckMessage] = [Error(text, id="throttlekit.E001") for text in find_faults()]
    return faults or list(_check_limiter(read_options()))


def _check_limiter(options: dict[str, Any]) -> Iterator[CheckMessage]:
    try:
        limiter = get_limiter()
    except (ConfigurationError, ImportError) as error:
        yield Error(f"settings.THROTTLEKIT: {error}", id="throttlekit.E002")
        return
    if options.get("allow_control") and not options.get("token"):
        hint = 'Add "token", of at least 16 characters, or remove "allow_control".'
        yield Error("settings.THROTTLEKIT has allow_control and no token.", hint=hint, id="throttlekit.E003")
    if limiter.in_memory and not settings.DEBUG:
        hint = 'Name a Redis or Valkey server: THROTTLEKIT = {"url": "redis://localhost:6379/1"}.'
        yield Warning("Limits are counted in each process alone, not in the fleet.", hint=hint, id="throttlekit.W001")

"""The error of an adapter whose framework is not installed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["installed_by"]


@contextmanager
def installed_by(requirement: str) -> Generator[None, None, None]:
    """
    Add the command to install a missing module to an import error, for the imports of an adapter's `__init__`.

    Args:
        requirement: The argument for pip: "throttlekit-jobs[celery]".

    Raises:
        ModuleNotFoundError: The original error, with the command that installs the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.startswith("throttlekit"):
            raise
        raise ModuleNotFoundError(f"{name} is not installed: pip install '{requirement}'", name=name) from None

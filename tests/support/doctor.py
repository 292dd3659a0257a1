"""Run `throttlekit doctor` in this process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import celery._state
import dramatiq.broker
import pytest
from click.testing import CliRunner, Result

from throttlekit_cli._commands import cli

__all__ = ["run_doctor"]


def run_doctor(*options: str, folder: Path | None = None) -> Result:
    """
    Run the doctor in *folder*. The module `shop`, which it may import from there, and what that module registers with
    its framework, is forgotten afterwards.
    """
    importlib.invalidate_caches()
    sys.modules.pop("shop", None)
    app_before = celery._state._tls.current_app, celery._state.default_app
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("THROTTLEKIT_URL", raising=False)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(dramatiq.broker, "global_broker", None)
        patch.setattr(celery._state, "_on_app_finalizers", set(celery._state._on_app_finalizers))
        if folder is not None:
            patch.chdir(folder)
        try:
            return CliRunner().invoke(cli, ["doctor", *options], env={"COLUMNS": "1000"}, catch_exceptions=False)
        finally:
            sys.modules.pop("shop", None)
            celery._state._tls.current_app, celery._state.default_app = app_before

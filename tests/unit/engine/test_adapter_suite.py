"""The conformance suite as a tool: unsupported promises are visible, and importing throttlekit.testing stays cheap."""

from __future__ import annotations

import subprocess
import sys
import unittest

import pytest

from throttlekit.testing import AdapterConformance


def test_an_unsupported_promise_is_skipped_with_its_reason() -> None:
    """An unsupported promise never passes silently."""

    class Suite(AdapterConformance):
        unsupported = {"settle": "there is no body"}  # noqa: RUF012

    with pytest.raises(unittest.SkipTest, match="unsupported: there is no body"):
        Suite().test_settle()
    assert Suite.test_settle.__doc__ == AdapterConformance.test_settle.__doc__


def test_an_unknown_promise_is_an_error() -> None:
    """A misspelt promise in `unsupported` raises, because it would skip no test."""
    with pytest.raises(TypeError, match="there is no promise 'setle'"):

        class Suite(AdapterConformance):
            unsupported = {"setle": "a slip"}  # noqa: RUF012


def test_the_suite_is_imported_when_it_is_used() -> None:
    """Importing throttlekit.testing does not import the suite, so tests of jobs do not wait for it."""
    code = "import sys, throttlekit.testing as t; sys.exit(any('adapter_conformance' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

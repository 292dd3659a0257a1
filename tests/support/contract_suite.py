"""`AdapterConformance` on shared sites. Workers import contract_sites.py and need no pytest, so it is not there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from support.contract_sites import SharedSites
from throttlekit.testing import AdapterConformance
from throttlekit.testing.adapter_site import Settings

__all__ = ["ConformanceOnSharedSites"]


class ConformanceOnSharedSites(AdapterConformance):
    """The promises, on the sites of the fixture `sites`, which each module defines for its framework."""

    _sites: SharedSites[Any]

    @pytest.fixture(autouse=True)
    def _use_sites(self, sites: SharedSites[Any]) -> None:
        self._sites = sites

    def make_site(self, settings: Settings) -> AbstractContextManager[Any]:
        return self._sites.site(settings)

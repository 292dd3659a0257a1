"""
`AdapterConformance` on shared sites, and sites whose workers are processes. Workers import contract_sites.py and need
no pytest, so neither is there.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import pytest

from support.contract_sites import SharedSites
from support.faults.processes import Command
from support.rq.workers import Fleet
from throttlekit.testing import AdapterConformance
from throttlekit.testing.adapter_site import AdapterSite, Settings

__all__ = ["ConformanceOnSharedSites", "ProcessSite"]


class ProcessSite(AdapterSite):
    """A site whose workers are processes. Its log includes that of workers that were killed."""

    _workers: Command | Fleet | None = None
    _logged = ""

    @abstractmethod
    def start_workers(self) -> Command | Fleet:
        """Start the workers. Return when they are ready for jobs."""

    def start(self) -> None:
        if self._workers is None:
            self._workers = self.start_workers()

    def kill(self) -> None:
        assert self._workers is not None
        self._workers.kill()
        self._logged += self._workers.log()
        self._workers.close()
        self._workers = None

    def close(self) -> None:
        if self._workers is not None:
            self._workers.stop()
            self._workers.close()
        self.limiter.close()

    def log(self) -> str:
        return self._logged + (self._workers.log() if self._workers is not None else "")


class ConformanceOnSharedSites(AdapterConformance):
    """The promises, on the sites of the fixture `sites`."""

    _sites: SharedSites[Any]

    @classmethod
    def open_site(cls, base: str, rabbitmq_url: str, settings: Settings) -> Any:
        """
        Make a site.

        Args:
            base: The Redis server of the sites, without a database number.
            rabbitmq_url: Empty, unless the attribute `kind` of the class is "rabbitmq".
        """
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _use_sites(self, sites: SharedSites[Any]) -> None:
        self._sites = sites

    def make_site(self, settings: Settings) -> AbstractContextManager[Any]:
        return self._sites.site(settings)

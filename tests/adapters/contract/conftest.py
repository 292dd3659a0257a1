"""The sites of a class of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from support.contract_sites import SharedSites
from support.servers.processes import redis_server


@pytest.fixture(scope="class")
def sites(request: pytest.FixtureRequest) -> Iterator[SharedSites[Any]]:
    """Sites on a Redis of the class's own."""
    rabbitmq_url = request.getfixturevalue("rabbitmq_url") if request.cls.kind == "rabbitmq" else ""
    with (
        redis_server() as base,
        closing(SharedSites(partial(request.cls.open_site, base, rabbitmq_url))) as sites,
    ):
        yield sites

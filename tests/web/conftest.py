"""A limiter with a store of its own, and the page of that store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.servers.processes import patient
from support.web import Answer, call_wsgi
from throttlekit import Limiter
from throttlekit_web import Site
from throttlekit_web._wsgi import serve_wsgi


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    with contextlib.closing(Limiter(patient(redis_url))) as limiter:
        yield limiter


@pytest.fixture
def report(limiter: Limiter) -> Callable[[], None]:
    """Return a function that reports the limiter's decisions to the store."""

    def report_decisions() -> None:
        assert limiter.fleet is not None
        limiter.fleet.activity.report()

    return report_decisions


@pytest.fixture
def make_site(redis_url: str) -> Iterator[Callable[..., Any]]:
    """Return a function that creates a site and returns a function that calls it, as `call_wsgi` without the app."""
    with contextlib.ExitStack() as made:

        def make(**options: Any) -> Callable[..., Answer]:
            site = Site(patient(redis_url), **{"token": None, **options})
            made.callback(site.close)
            app = serve_wsgi(site)
            return lambda path, **request: call_wsgi(app, path, **request)

        yield make


@pytest.fixture
def page(make_site: Callable[..., Any]) -> Callable[..., Answer]:
    """The page with its default options."""
    return make_site()

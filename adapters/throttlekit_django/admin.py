"""The page of `throttlekit web` in Django's admin, for staff with the permission `throttlekit_django.view_limits`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.contrib import admin  # type: ignore[import-untyped]
from django.core.exceptions import PermissionDenied  # type: ignore[import-untyped]
from django.http import HttpResponse  # type: ignore[import-untyped]
from django.urls import path, re_path  # type: ignore[import-untyped]
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped]

from throttlekit import ConfigurationError, Limiter
from throttlekit_django._settings import PAGE_OPTIONS, get_limiter, read_options
from throttlekit_django.models import Limits
from throttlekit_web import Request, Site
from throttlekit_web._http import MAX_BODY

__all__ = ["LimitsAdmin"]


@admin.register(Limits)  # pyright: ignore[reportUnknownMemberType]
class LimitsAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The admin of the limits, which shows the page instead of the lists and forms of a model."""

    def get_urls(self) -> list[Any]:
        site: Any = self.admin_site
        view = site.admin_view(_page)
        return [path("", view, name="throttlekit_django_limits_changelist"), re_path("^(?P<below>.*)$", view)]

    def has_add_permission(self, request: Any) -> bool:
        return False


@csrf_exempt  # type: ignore[untyped-decorator]
def _page(request: Any, below: str = "") -> HttpResponse:
    """
    Return the page. It does not use Django's CSRF token: it accepts a change only from its own origin, and with its own
    token in a header, which a form cannot send.
    """
    if not request.user.has_perm("throttlekit_django.view_limits"):
        raise PermissionDenied
    headers = {name.lower(): value for name, value in request.headers.items()}
    root = request.path.removesuffix(below).rstrip("/")
    body = request.read(MAX_BODY + 1)
    page_request = Request(request.method, f"/{below}", request.META["QUERY_STRING"], headers, body, root)
    try:
        answer = _site(get_limiter()).handle(page_request)
    except ConfigurationError as error:  # in the setting; the system checks report most of them earlier
        return HttpResponse(f"{error}\n".encode(), status=503, content_type="text/plain; charset=utf-8")
    return HttpResponse(answer.body, status=answer.status, headers=answer.headers)


@lru_cache(maxsize=1)
def _site(limiter: Limiter) -> Site:
    """Return the page of the project's *limiter*. A change of the setting, in a test, makes another limiter."""
    options: dict[str, Any] = {"token": None, **read_options()}
    return Site(limiter, **{name: value for name, value in options.items() if name in PAGE_OPTIONS})

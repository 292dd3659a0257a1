"""A view with a limit, and the admin, which has the page of throttlekit."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from throttlekit import TokenBucket
from throttlekit_django import get_limiter, throttled

SEARCH = TokenBucket("search", "1/hour", burst=1)


@throttled(get_limiter(), SEARCH)
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [path("admin/", admin.site.urls), path("search", search)]

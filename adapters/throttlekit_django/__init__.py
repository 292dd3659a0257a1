"""
throttlekit for Django: limits for views, with `@throttled(limiter, search)`, and an app for `INSTALLED_APPS`. The app
has the project's limiter, a page in the admin, system checks, and the command line as `manage.py throttlekit`.
"""

from throttlekit.adapter import installed_by as _installed_by

with _installed_by("throttlekit-jobs[django]"):
    from throttlekit_django._decorator import throttled
    from throttlekit_django._settings import get_limiter

__all__ = ["get_limiter", "throttled"]

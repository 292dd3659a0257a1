"""Django views, held to limits: `@throttled(limiter, search)`."""

from throttlekit_django._decorator import throttled

__all__ = ["throttled"]

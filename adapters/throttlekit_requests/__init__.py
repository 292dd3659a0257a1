"""throttlekit for requests: `session.mount("https://api.partner.example", LimitedAdapter(limiter, partner))`."""

from throttlekit.adapter import installed_by as _installed_by

with _installed_by("throttlekit-jobs[requests]"):
    from throttlekit_requests._adapter import LimitedAdapter

__all__ = ["LimitedAdapter"]

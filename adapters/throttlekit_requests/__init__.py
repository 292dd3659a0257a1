"""requests, held to limits: `session.mount("https://api.partner.example", LimitedAdapter(limiter, partner))`."""

from throttlekit_requests._adapter import LimitedAdapter

__all__ = ["LimitedAdapter"]

"""throttlekit for httpx: `httpx.Client(transport=LimitedTransport(limiter, partner))`."""

from throttlekit.adapter import installed_by as _installed_by

with _installed_by("throttlekit-jobs[httpx]"):
    from throttlekit_httpx._transport import AsyncLimitedTransport, LimitedTransport

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]

"""httpx, held to limits: `httpx.Client(transport=LimitedTransport(limiter, partner))`."""

from throttlekit_httpx._transport import AsyncLimitedTransport, LimitedTransport

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]

"""Flask views, held to limits: `@throttled(limiter, search)` below `@app.get("/search")`."""

from throttlekit_flask._decorator import throttled

__all__ = ["throttled"]

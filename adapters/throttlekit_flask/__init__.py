"""throttlekit for Flask: limits for views, `@throttled(limiter, search)` below `@app.get("/search")`."""

from throttlekit.adapter import installed_by as _installed_by

with _installed_by("throttlekit-jobs[flask]"):
    from throttlekit_flask._decorator import throttled

__all__ = ["throttled"]

"""throttlekit for FastAPI: `@app.get("/search", dependencies=[Depends(Throttled(limiter, search))])`."""

from throttlekit.adapter import installed_by as _installed_by

with _installed_by("throttlekit-jobs[fastapi]"):
    from throttlekit_fastapi._dependency import Throttled

__all__ = ["Throttled"]

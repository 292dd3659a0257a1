"""FastAPI, held to limits: `@app.get("/search", dependencies=[Depends(Throttled(limiter, search))])`."""

from throttlekit_fastapi._dependency import Throttled

__all__ = ["Throttled"]

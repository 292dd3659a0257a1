"""A missing FastAPI: taskiq imports it if it is installed, and workers of tests start faster without it."""

raise ImportError(__doc__)

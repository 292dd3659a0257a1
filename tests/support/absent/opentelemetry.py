"""A missing OpenTelemetry: redis-py imports it if it is installed, and workers of tests start faster without it."""

raise ImportError(__doc__)

"""OpenTelemetry, which redis-py imports if it is installed: the workers of tests run without it, and start sooner."""

raise ImportError(__doc__)

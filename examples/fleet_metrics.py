"""
Serves the metrics of all limits of a store to Prometheus: `python fleet_metrics.py`, on port 9810.

The workers serve the metrics of their own decisions: see dramatiq/with_metrics.py.
"""

import os
import sys

from prometheus_client import CollectorRegistry, start_http_server

from throttlekit.metrics.fleet import FleetMetrics

registry = CollectorRegistry()
registry.register(FleetMetrics(os.environ.get("THROTTLEKIT_URL", "redis://localhost:6379/1")))
_, thread = start_http_server(int(sys.argv[1]) if len(sys.argv) > 1 else 9810, registry=registry)
thread.join()

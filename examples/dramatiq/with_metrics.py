"""The jobs of tasks.py in workers that serve metrics on port 9191, for Prometheus: `dramatiq with_metrics`."""

from dramatiq.middleware.prometheus import Prometheus
from tasks import broker

broker.add_middleware(Prometheus())

"""The broker for `taskiq worker`, made from the environment."""

from __future__ import annotations

from throttlekit_cli.demo.plan import Settings
from throttlekit_cli.demo.taskiq_jobs import declare

__all__ = ["broker"]

broker = declare(Settings.of_environment()).broker

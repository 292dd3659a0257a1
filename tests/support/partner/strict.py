"""The contract of the examples' partner, by which tests check the times of calls."""

from __future__ import annotations

import runpy
from typing import Any

from support.markdown import ROOT

__all__ = ["PARTNER", "Contract"]

PARTNER = ROOT / "examples" / "partner.py"

Contract: Any = runpy.run_path(str(PARTNER))["Contract"]

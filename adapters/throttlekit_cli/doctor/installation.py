"""Check which distributions own the import name of this package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from throttlekit_cli.doctor.findings import Finding

__all__ = ["examine_installation"]

_OWN, _NAME = "throttlekit-jobs", "throttlekit"


def examine_installation() -> Iterator[Finding]:
    """Check that no other distribution has a package named `throttlekit`, which would overwrite files of this one."""
    owners = metadata.packages_distributions().get(_NAME, ())
    for other in sorted({each.lower().replace("_", "-").replace(".", "-") for each in owners} - {_OWN}):
        yield Finding(
            "warning", "install",
            f"The distribution {other!r} installs a package named {_NAME!r} too. The one that was installed last has "
            "overwritten files of the other.",
            f"pip uninstall {other}, then pip install --force-reinstall {_OWN}",
        )  # fmt: skip

"""A hook of mkdocs: the site has each page as Markdown, too, at the address that llms.txt names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def on_post_build(*, config: Any) -> None:
    """Copy the source of each page, such as docs/tutorial.md, to the root of the site."""
    source, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in source.rglob("*.md"):
        target = site / page.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)

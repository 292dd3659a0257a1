"""
Run the conformance suite of the adapters on every framework and broker, and print the promises that each of them keeps.

    python tests/adapters/contract/table.py docs/promises.md -n 2

Further arguments are passed to pytest. Exits with 1 if a promise is broken, and the page names it. With `--sizes`, only
the table of the adapters' sizes is printed again, and no test runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parents[1]))

from support.adapter_sizes import MARKED, sizes  # noqa: E402
from support.promises import Outcomes, page  # noqa: E402


def main() -> int:
    if "--sizes" in sys.argv:
        target = Path(sys.argv[1])
        target.write_text(MARKED.sub(lambda _: sizes(), target.read_text("utf-8")), "utf-8")
        return 0
    outcomes = Outcomes()
    code = int(pytest.main([str(_HERE), "-q", *sys.argv[2:]], plugins=[outcomes]))
    Path(sys.argv[1]).write_text(page(outcomes.kept, outcomes.reasons), "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())

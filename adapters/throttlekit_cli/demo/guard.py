"""
The guard: a process that outlives the demo by a moment, should the demo be killed outright.

It reads the ids of process groups from its standard input, "+123" started and "-123" gone. When the
input ends, whatever is left is killed, and the run's folder is removed. The demo does both itself on every
way out that it can take; the guard is for `kill -9`.

Run by path, with nothing but the standard library: it starts in some 20 ms.
"""

import contextlib
import os
import shutil
import signal
import sys

__all__ = ["main"]


def main() -> None:
    left: set[int] = set()
    for line in sys.stdin:
        group = int(line)
        if group > 0:
            left.add(group)
        else:
            left.discard(-group)
    for group in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()

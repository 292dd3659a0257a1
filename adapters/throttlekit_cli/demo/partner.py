"""
The partner: a small HTTP API that enforces a limit, and records every call.

Rule 1: it shares no code with throttlekit, because it judges throttlekit.
Rule 2: it enforces the contract itself, in whole nanoseconds: in any window, from any call to any
later one, at most `burst + rate × length of the window` calls are answered.
Rule 3: a call counts when it arrives, by this process's monotonic clock.

GET /accounts/<n>  200, or 429 with Retry-After
GET /counts        {"calls", "refused"} so far
GET /record        every call: [[arrived, in ns, status], …]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from pathlib import Path

__all__ = ["Contract", "main"]

_SECOND = 1_000_000_000


class Contract:
    """
    At most `burst + amount × w / period` answered calls in any window of length w.

    The nth answered call, at t, together with those since call i, at tᵢ, is within that if
    `n - i + 1 <= burst + amount × (t - tᵢ) / period`. It is enough to check the i with the lowest
    `i × period - amount × tᵢ`, so that one number is the whole state.

    Time is an argument, in nanoseconds, and does not go backwards.

    Args:
        amount: Calls per period.
        period_ns: The period.
        burst: Calls that may come at once, the first included.
    """

    def __init__(self, amount: int, period_ns: int, burst: int) -> None:
        self._amount = amount
        self._period = period_ns
        self._burst = burst
        self._answered = 0
        self._lowest: int | None = None

    def admit(self, now_ns: int) -> int:
        """Return 0 if the call is answered, else the nanoseconds until it would be. A refused call does not count."""
        level = self._answered * self._period - self._amount * now_ns
        lowest = level if self._lowest is None else min(self._lowest, level)
        beyond = level + self._period - lowest - self._burst * self._period
        if beyond > 0:
            return -(-beyond // self._amount)
        self._lowest = lowest
        self._answered += 1
        return 0


class _Partner:
    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._record: list[tuple[int, int]] = []
        self._refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request, one answer."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            status, headers, body = self._answer(head.split(b" ")[1].decode("ascii"), time.monotonic_ns())
            text = json.dumps(body).encode()
            lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(text)}", *headers]
            writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + text)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError, UnicodeError):
            pass  # not a request, or the caller has gone
        finally:
            writer.close()

    def _answer(self, path: str, now_ns: int) -> tuple[str, list[str], object]:
        if path.startswith("/accounts/"):
            return self._call(path, now_ns)
        if path == "/counts":
            return "200 OK", [], {"calls": len(self._record), "refused": self._refused}
        if path == "/record":
            return "200 OK", [], self._record
        return "404 Not Found", [], {"error": f"no such path: {path}"}

    def _call(self, path: str, now_ns: int) -> tuple[str, list[str], object]:
        wait_ns = self._contract.admit(now_ns)
        self._record.append((now_ns, 429 if wait_ns else 200))
        if not wait_ns:
            return "200 OK", [], {"account": path.rpartition("/")[2], "balance": 42}
        self._refused += 1
        retry_after = f"Retry-After: {math.ceil(wait_ns / _SECOND)}"
        return "429 Too Many Requests", [retry_after], {"error": "too many requests"}


async def _main(contract: Contract, port_file: Path) -> None:
    server = await asyncio.start_server(_Partner(contract).serve, "127.0.0.1", 0, backlog=1024)
    unfinished = port_file.with_suffix(".new")
    unfinished.write_text(str(server.sockets[0].getsockname()[1]), "ascii")
    unfinished.replace(port_file)
    await server.serve_forever()


def main() -> None:
    """Serve on a free port of this machine, and write its number to a file."""
    parser = argparse.ArgumentParser(description="An HTTP API with a limit.")
    parser.add_argument("--amount", type=int, required=True)
    parser.add_argument("--period", type=float, required=True, help="seconds")
    parser.add_argument("--burst", type=int, required=True)
    parser.add_argument("--port-file", type=Path, required=True, help="written when the partner accepts calls")
    options = parser.parse_args()
    asyncio.run(_main(Contract(options.amount, round(options.period * _SECOND), options.burst), options.port_file))


if __name__ == "__main__":
    main()

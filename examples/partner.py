"""
A strict partner API: it answers at most BURST calls at once and RATE calls a second, and 429 to every other call.

    python partner.py                                 # listens on localhost:8000
    python partner.py --rate 10 --burst 15 --port 8000

GET /accounts/<n>  200 after 50 ms, or 429 at once, with Retry-After
GET /record        every call so far: [[seconds by this machine's monotonic clock, n, status], …]

It judges throttlekit, so it shares no code with it. A call counts when it arrives.
"""

import argparse
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECOND_NS = 1_000_000_000
LATENCY_S = 0.05


class Contract:
    """
    At most `burst + rate × w` answered calls in every window of w seconds.

    The nth answered call, at time t, is within this bound for the window that begins with call i, at time t_i, if
    `n - i + 1 <= burst + rate × (t - t_i)`. The window with the lowest `i - rate × t_i` decides, so that
    minimum is the whole state. Times are integers, in nanoseconds, and do not go backwards.
    """

    def __init__(self, rate: int, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._answered = 0
        self._lowest: int | None = None

    def admit(self, now_ns: int) -> int:
        """Return 0 if the call is answered, otherwise the nanoseconds until it would be. A 429 does not count."""
        level = self._answered * SECOND_NS - self._rate * now_ns
        lowest = level if self._lowest is None else min(self._lowest, level)
        excess = level + SECOND_NS - lowest - self._burst * SECOND_NS
        if excess > 0:
            return -(-excess // self._rate)
        self._lowest = lowest
        self._answered += 1
        return 0


class Partner(ThreadingHTTPServer):
    """The server, its contract and its record of calls."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, address: tuple[str, int], contract: Contract) -> None:
        super().__init__(address, Handler)
        self.contract = contract
        self.record: list[tuple[float, str, int]] = []
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Partner

    def do_GET(self) -> None:
        _, kind, *rest = self.path.split("/")
        if kind == "record":
            return self.answer(200, self.server.record)
        if kind != "accounts" or len(rest) != 1:
            return self.answer(404, {"error": "no such path"})
        with self.server.lock:
            arrived_ns = time.monotonic_ns()
            wait_ns = self.server.contract.admit(arrived_ns)
            status = 429 if wait_ns else 200
            self.server.record.append((arrived_ns / SECOND_NS, rest[0], status))
        if wait_ns:
            return self.answer(429, {"error": "too many requests"}, retry_after=math.ceil(wait_ns / SECOND_NS))
        time.sleep(LATENCY_S)
        return self.answer(200, {"account": rest[0], "balance": 42})

    def answer(self, status: int, body: object, *, retry_after: int | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="A partner API with a strict limit.")
    parser.add_argument("--rate", type=int, default=10, help="calls a second")
    parser.add_argument("--burst", type=int, default=15, help="calls at once")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    Partner((options.host, options.port), Contract(options.rate, options.burst)).serve_forever()


if __name__ == "__main__":
    main()

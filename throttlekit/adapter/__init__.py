"""
The interface for adapters. An adapter for another framework needs these names only.

An adapter reads options (`JobOptions`, `WaitRules`) when jobs are declared. Admission (`Throttling`) turns a message
into one of four outcomes. The body runs between `begin` and `end`. Denied messages that stay in the process wait with a
`Waker`, or in a `HoldingStream` of `throttlekit.adapter.loop`, which needs asyncio. docs/write-an-adapter.md shows an
adapter of 150 lines; `throttlekit.testing.AdapterConformance` is its test suite.
"""

from throttlekit._core.answer import Waited
from throttlekit._core.durations import seconds_in
from throttlekit._core.spelling import checks_spelling, spelling_hint
from throttlekit._engine.call import Delivery, JobHolder, Waiting
from throttlekit._engine.relay import Relay, read_note
from throttlekit._engine.running import Running
from throttlekit._engine.waker import Waker
from throttlekit._util.log_limiter import Every, once_in_fleet
from throttlekit._util.threads import set_in_loop
from throttlekit.adapter.admission import Host, Throttling
from throttlekit.adapter.around import Admitted, Around, watched
from throttlekit.adapter.body import (
    begin,
    begin_from_receipt,
    decision_from_receipt,
    end,
    end_async,
    receipt,
    resume,
    running,
)
from throttlekit.adapter.calls import CallLimits, Calls, OfRequest, Tokens
from throttlekit.adapter.log import show_log
from throttlekit.adapter.options import (
    MAX_WAIT,
    ON_429,
    OPTIONS,
    THROTTLE,
    JobOptions,
    OnWaitedTooLong,
    WaitRules,
    boolean_in,
    check_function,
    check_limiter,
    check_on_429,
    check_spelling,
    dump_limits,
    load_limits,
    misspelt,
    name_of,
    read_limits,
)
from throttlekit.adapter.outcome import Deferred, Dropped, Failed, Outcome, Run
from throttlekit.adapter.request_limits import RequestLimits
from throttlekit.adapter.requirement import installed_by

__all__ = [
    "MAX_WAIT",
    "ON_429",
    "OPTIONS",
    "THROTTLE",
    "Admitted",
    "Around",
    "CallLimits",
    "Calls",
    "Deferred",
    "Delivery",
    "Dropped",
    "Every",
    "Failed",
    "Host",
    "JobHolder",
    "JobOptions",
    "OfRequest",
    "OnWaitedTooLong",
    "Outcome",
    "Relay",
    "RequestLimits",
    "Run",
    "Running",
    "Throttling",
    "Tokens",
    "WaitRules",
    "Waited",
    "Waiting",
    "Waker",
    "begin",
    "begin_from_receipt",
    "boolean_in",
    "check_function",
    "check_limiter",
    "check_on_429",
    "check_spelling",
    "checks_spelling",
    "decision_from_receipt",
    "dump_limits",
    "end",
    "end_async",
    "installed_by",
    "load_limits",
    "misspelt",
    "name_of",
    "once_in_fleet",
    "read_limits",
    "read_note",
    "receipt",
    "resume",
    "running",
    "seconds_in",
    "set_in_loop",
    "show_log",
    "spelling_hint",
    "watched",
]

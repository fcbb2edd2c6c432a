"""What happened to a queue, written down by each process that works with it, and a check that it was right.

Example:
    ```python
    log = HistoryLog(folder / "worker-1.jsonl")
    queue = record_calls(AsyncWorkQueue.from_url(url, "emails"), log)  # adds, leases, outcomes
    worker = Worker(middleware=[record_runs(log)])  # and the runs of handlers
    ...
    history = History.load(folder)  # when all is over, of all processes
    assert not check(history, await FinalState.read(queue))
    ```
"""

from leasehold.testing.history.events import Event, FinalState, History, HistoryLog
from leasehold.testing.history.memory import Growth, check_memory
from leasehold.testing.history.recording import record_calls, record_runs
from leasehold.testing.history.rules import RULES, Violation, check

__all__ = [
    "RULES",
    "Event",
    "FinalState",
    "Growth",
    "History",
    "HistoryLog",
    "Violation",
    "check",
    "check_memory",
    "record_calls",
    "record_runs",
]

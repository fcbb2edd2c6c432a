"""Record what each process does with a queue, and check the recorded history against the guarantees.

Example:
    ```python
    log = HistoryLog(folder / "worker-1.jsonl")
    queue = record_calls(AsyncWorkQueue.from_url(url, "emails"), log)  # adds, leases, outcomes
    worker = Worker(middleware=[record_runs(log)])  # the runs of handlers
    ...
    history = History.load(folder)  # the logs of all processes, when they have ended
    assert not check(history, await FinalState.read(queue))
    ```
"""

from leasequeue.testing.history.events import Event, FinalRun, FinalState, History, HistoryLog
from leasequeue.testing.history.memory import Growth, check_memory
from leasequeue.testing.history.recording import record_calls, record_runs
from leasequeue.testing.history.rules import RULES, Violation, check

__all__ = [
    "RULES",
    "Event",
    "FinalRun",
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

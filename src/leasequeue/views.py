"""What calls return and no program makes: counts, reports, and what is seen of items, runs and workers.

A name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from leasequeue.lazy import lazy_names

if TYPE_CHECKING:
    from leasequeue.alive import RunView, WorkerView
    from leasequeue.queue import (
        Chunk,
        CleanReport,
        Counts,
        DeadLetter,
        Event,
        Finding,
        FlowRunView,
        GroupCounts,
        HistoryCell,
        HoldLimit,
        ItemView,
        Limit,
        LoggedRecord,
        Pause,
        QueueHistory,
        QueueLimits,
        QueueStats,
        ScheduleView,
        StageView,
        WaitTimes,
        WorkerStats,
    )
    from leasequeue.tasks import JobStatus
    from leasequeue.worker import Health

__all__ = [
    "Chunk",
    "CleanReport",
    "Counts",
    "DeadLetter",
    "Event",
    "Finding",
    "FlowRunView",
    "GroupCounts",
    "Health",
    "HistoryCell",
    "HoldLimit",
    "ItemView",
    "JobStatus",
    "Limit",
    "LoggedRecord",
    "Pause",
    "QueueHistory",
    "QueueLimits",
    "QueueStats",
    "RunView",
    "ScheduleView",
    "StageView",
    "WaitTimes",
    "WorkerStats",
    "WorkerView",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = lazy_names(__name__, __all__, ("queue", "alive", "worker", "tasks"), parent="leasequeue")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

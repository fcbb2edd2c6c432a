"""Leasehold: an atomic work queue for asyncio on Redis or Valkey.

A name is imported when it is first used, so that programs and the command line start quickly.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.embedded import EmbeddedServer
    from leasehold.errors import (
        AccessDenied,
        ConnectionLost,
        DatabaseMissing,
        EmbeddedServerError,
        EventsError,
        EventsLost,
        EvictionWarning,
        ExtraMissing,
        InsideEventLoop,
        InvalidArgument,
        InvalidCall,
        InvalidTask,
        ItemCancelled,
        ItemExpired,
        ItemFailed,
        ItemUnknown,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobUnknown,
        LeaseholdError,
        LimitExceeded,
        LoginRefused,
        NoCurrentRun,
        NoEventsKept,
        NoEventsPublished,
        PayloadError,
        QueueClosed,
        QueueDeleted,
        ResultError,
        ScriptFailed,
        ServerBusy,
        ServerError,
        ServerOutOfMemory,
        ServerReadOnly,
        ServerRefused,
        ServerTooOld,
        TimeLimitExceeded,
        TlsFailed,
        WorkerBusy,
        WorkerNotRunning,
        WorkerUnknown,
        WrongKeyType,
    )
    from leasehold.fleet import Fleet, RunView, WorkerView
    from leasehold.item import Item
    from leasehold.keys import KeyPrefix
    from leasehold.queue import (
        AsyncWorkQueue,
        CleanReport,
        Counts,
        DeadLetter,
        Event,
        Failure,
        Finding,
        ItemView,
        Lease,
        Limit,
        Pause,
        QueueLimits,
        QueueStats,
        ScheduleView,
        WaitTimes,
        WorkerStats,
        lease_from,
        list_queues,
    )
    from leasehold.retry import RetryPolicy
    from leasehold.sync import call_sync
    from leasehold.tasks import Call, Job, JobStatus, Provided, Task, TaskQueue
    from leasehold.worker import Health, Reject, Retry, Run, Snooze, Worker, current_run

__all__ = [
    "AccessDenied",
    "AsyncWorkQueue",
    "Call",
    "CleanReport",
    "ConnectionLost",
    "Counts",
    "DatabaseMissing",
    "DeadLetter",
    "EmbeddedServer",
    "EmbeddedServerError",
    "Event",
    "EventsError",
    "EventsLost",
    "EvictionWarning",
    "ExtraMissing",
    "Failure",
    "Finding",
    "Fleet",
    "Health",
    "InsideEventLoop",
    "InvalidArgument",
    "InvalidCall",
    "InvalidTask",
    "Item",
    "ItemCancelled",
    "ItemExpired",
    "ItemFailed",
    "ItemUnknown",
    "ItemView",
    "Job",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobStatus",
    "JobUnknown",
    "KeyPrefix",
    "Lease",
    "LeaseholdError",
    "Limit",
    "LimitExceeded",
    "LoginRefused",
    "NoCurrentRun",
    "NoEventsKept",
    "NoEventsPublished",
    "Pause",
    "PayloadError",
    "Provided",
    "QueueClosed",
    "QueueDeleted",
    "QueueLimits",
    "QueueStats",
    "Reject",
    "ResultError",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunView",
    "ScheduleView",
    "ScriptFailed",
    "ServerBusy",
    "ServerError",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "Snooze",
    "Task",
    "TaskQueue",
    "TimeLimitExceeded",
    "TlsFailed",
    "WaitTimes",
    "Worker",
    "WorkerBusy",
    "WorkerNotRunning",
    "WorkerStats",
    "WorkerUnknown",
    "WorkerView",
    "WrongKeyType",
    "call_sync",
    "current_run",
    "lease_from",
    "list_queues",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    #: Where the names are, searched in this order: what takes longer to import comes later.
    _ROOMS = ("errors", "keys", "item", "retry", "queue", "fleet", "worker", "tasks", "sync", "embedded")

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _ROOMS:
            return import_module(f"leasehold.{name}")
        for room in _ROOMS if name in __all__ else ():
            found = vars(import_module(f"leasehold.{room}"))
            if name in found:
                return globals().setdefault(name, found[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})

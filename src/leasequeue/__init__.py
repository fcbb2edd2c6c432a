"""Leasequeue: an atomic work queue for asyncio on Redis or Valkey.

Here is what a program is written with. All errors are in `leasequeue.errors`, what calls only return is in
`leasequeue.views`. A name is imported when it is first used, so that programs and the command line start
quickly.
"""

from typing import TYPE_CHECKING

from leasequeue.lazy import lazy_names

if TYPE_CHECKING:
    from leasequeue.alive import Fleet
    from leasequeue.errors import (
        ConnectionLost,
        InvalidArgument,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobUnknown,
        LeaseLost,
        LeasequeueError,
        LimitExceeded,
        QueueClosed,
        ServerError,
        TimeLimitExceeded,
    )
    from leasequeue.flow import Flow
    from leasequeue.item import Item
    from leasequeue.keys import KeyPrefix
    from leasequeue.queue import AsyncWorkQueue, AtLeast, Failure, Lease, lease_from, list_queues
    from leasequeue.sync import call_sync
    from leasequeue.tasks import (
        Call,
        Chain,
        FlowRun,
        Group,
        Job,
        Partial,
        Provided,
        Task,
        TaskQueue,
        fan_out,
        group,
        signal,
    )
    from leasequeue.worker import (
        FanOut,
        HandedOver,
        Next,
        Reject,
        Retry,
        Run,
        Snooze,
        StageContext,
        Worker,
        correlation_id,
        current_run,
        current_stage,
        once,
    )
    from leasequeue.worker.retry import RetryPolicy

__all__ = [
    "AsyncWorkQueue",
    "AtLeast",
    "Call",
    "Chain",
    "ConnectionLost",
    "Failure",
    "FanOut",
    "Fleet",
    "Flow",
    "FlowRun",
    "Group",
    "HandedOver",
    "InvalidArgument",
    "Item",
    "Job",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobUnknown",
    "KeyPrefix",
    "Lease",
    "LeaseLost",
    "LeasequeueError",
    "LimitExceeded",
    "Next",
    "Partial",
    "Provided",
    "QueueClosed",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Run",
    "ServerError",
    "Snooze",
    "StageContext",
    "Task",
    "TaskQueue",
    "TimeLimitExceeded",
    "Worker",
    "call_sync",
    "correlation_id",
    "current_run",
    "current_stage",
    "fan_out",
    "group",
    "lease_from",
    "list_queues",
    "once",
    "signal",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    _MODULES = (
        "errors",
        "keys",
        "item",
        "queue",
        "alive",
        "worker",
        "tasks",
        "flow",
        "sync",
    )
    __getattr__ = lazy_names(__name__, __all__, (*_MODULES, "embedded", "views"))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES, "embedded", "views"})

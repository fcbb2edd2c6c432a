"""The queue, its leases, and the results of its calls."""

from leasequeue.queue.dead_letters import DeadLetter
from leasequeue.queue.event import Event
from leasequeue.queue.findings import Finding
from leasequeue.queue.groups import GroupCounts
from leasequeue.queue.history import HistoryCell, QueueHistory
from leasequeue.queue.lease import Failure, Lease
from leasequeue.queue.limits import HoldLimit, Limit, Pause, QueueLimits
from leasequeue.queue.many_queues import lease_from
from leasequeue.queue.operations import list_queues
from leasequeue.queue.plans.plan import AtLeast
from leasequeue.queue.plans.reading import FlowRunView, StageView
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.queue.run_logs import LoggedRecord
from leasequeue.queue.schedules import ScheduleView
from leasequeue.queue.shards.queue import ShardedQueue as _  # noqa: F401 - so that `shards=` has it
from leasequeue.queue.stats import QueueStats, WaitTimes, WorkerStats
from leasequeue.queue.streams import Chunk
from leasequeue.queue.views import CleanReport, Counts, ItemView

__all__ = [
    "AsyncWorkQueue",
    "AtLeast",
    "Chunk",
    "CleanReport",
    "Counts",
    "DeadLetter",
    "Event",
    "Failure",
    "Finding",
    "FlowRunView",
    "GroupCounts",
    "HistoryCell",
    "HoldLimit",
    "ItemView",
    "Lease",
    "Limit",
    "LoggedRecord",
    "Pause",
    "QueueHistory",
    "QueueLimits",
    "QueueStats",
    "ScheduleView",
    "StageView",
    "WaitTimes",
    "WorkerStats",
    "lease_from",
    "list_queues",
]

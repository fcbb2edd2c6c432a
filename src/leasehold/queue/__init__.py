"""The queue, its leases, and the results of its calls."""

from leasehold.queue.dead_letters import DeadLetter
from leasehold.queue.event import Event
from leasehold.queue.findings import Finding
from leasehold.queue.lease import Failure, Lease
from leasehold.queue.limits import Limit, Pause, QueueLimits
from leasehold.queue.many_queues import lease_from
from leasehold.queue.operations import list_queues
from leasehold.queue.plan import AtLeast
from leasehold.queue.queue import AsyncWorkQueue
from leasehold.queue.runs.views import FlowRunView, StageView
from leasehold.queue.schedules import ScheduleView
from leasehold.queue.stats import QueueStats, WaitTimes, WorkerStats
from leasehold.queue.views import CleanReport, Counts, ItemView

__all__ = [
    "AsyncWorkQueue",
    "AtLeast",
    "CleanReport",
    "Counts",
    "DeadLetter",
    "Event",
    "Failure",
    "Finding",
    "FlowRunView",
    "ItemView",
    "Lease",
    "Limit",
    "Pause",
    "QueueLimits",
    "QueueStats",
    "ScheduleView",
    "StageView",
    "WaitTimes",
    "WorkerStats",
    "lease_from",
    "list_queues",
]

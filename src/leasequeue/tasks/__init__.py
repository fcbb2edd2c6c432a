"""Typed functions as tasks of a queue, and their results.

A name is imported when it is first used: `leasequeue.tasks.wire` needs none of them.
"""

from typing import TYPE_CHECKING

from leasequeue.lazy import lazy_names

if TYPE_CHECKING:
    from leasequeue.queue.plans.flow_runs import FlowRun
    from leasequeue.tasks.arguments import Provided
    from leasequeue.tasks.chains import Chain, Group, Partial, group
    from leasequeue.tasks.fan_outs import fan_out
    from leasequeue.tasks.job import Job, JobStatus
    from leasequeue.tasks.queue import TaskQueue
    from leasequeue.tasks.signals import signal
    from leasequeue.tasks.task import AsyncTask, BatchTask, Call, PlainTask, Task

__all__ = [
    "AsyncTask",
    "BatchTask",
    "Call",
    "Chain",
    "FlowRun",
    "Group",
    "Job",
    "JobStatus",
    "Partial",
    "PlainTask",
    "Provided",
    "Task",
    "TaskQueue",
    "fan_out",
    "group",
    "signal",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = lazy_names(
        __name__, __all__, ("arguments", "job", "chains", "task", "queue", "fan_outs", "signals")
    )

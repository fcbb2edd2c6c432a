"""Typed functions as tasks of a queue, and their results.

A name is imported when it is first used: `leasehold.tasks.wire` needs none of them.
"""

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.tasks.arguments import Provided
    from leasehold.tasks.chains import Chain, Group, group
    from leasehold.tasks.fan_outs import fan_out
    from leasehold.tasks.flow_run import FlowRun
    from leasehold.tasks.job import Job, JobStatus
    from leasehold.tasks.queue import TaskQueue
    from leasehold.tasks.task import AsyncTask, BatchTask, Call, PlainTask, Task

__all__ = [
    "AsyncTask",
    "BatchTask",
    "Call",
    "Chain",
    "FlowRun",
    "Group",
    "Job",
    "JobStatus",
    "PlainTask",
    "Provided",
    "Task",
    "TaskQueue",
    "fan_out",
    "group",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = lazy_names(
        __name__, __all__, ("arguments", "job", "flow_run", "chains", "task", "queue", "fan_outs")
    )

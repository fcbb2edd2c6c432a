"""Typed functions as tasks of a queue, and their results.

A name is imported when it is first used: `leasehold.tasks.wire` needs none of them.
"""

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.tasks.arguments import Provided
    from leasehold.tasks.job import Job, JobStatus
    from leasehold.tasks.queue import TaskQueue
    from leasehold.tasks.task import AsyncTask, BatchTask, Call, PlainTask, Task

__all__ = ["AsyncTask", "BatchTask", "Call", "Job", "JobStatus", "PlainTask", "Provided", "Task", "TaskQueue"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = lazy_names(__name__, __all__, ("arguments", "job", "task", "queue"))

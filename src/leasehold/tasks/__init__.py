"""Typed functions as tasks of a queue, and their results."""

from leasehold.tasks.arguments import Provided
from leasehold.tasks.job import Job, JobStatus
from leasehold.tasks.queue import TaskQueue
from leasehold.tasks.task import AsyncTask, BatchTask, Call, PlainTask, Task

__all__ = ["AsyncTask", "BatchTask", "Call", "Job", "JobStatus", "PlainTask", "Provided", "Task", "TaskQueue"]

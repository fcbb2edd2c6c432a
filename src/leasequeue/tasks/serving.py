"""What a worker needs to run tasks: a handler for each, one dispatcher for each queue.

A task is a handler like any other, with its own retry policy, time limit, place and batch; what is new is
only which of several handlers an item of the queue is for. The dispatcher asks that once for each item, when
it has been leased; from there on, a run has its handler, and the parts of the worker need not know of tasks.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue.durations import duration_text
from leasequeue.errors import PayloadError
from leasequeue.errors.log import Log
from leasequeue.tasks.arguments import UnknownArguments
from leasequeue.tasks.definition import BATCH
from leasequeue.tasks.wire import correlation_of, first_due_of, task_of, write_result
from leasequeue.worker.dispatch import Dispatcher
from leasequeue.worker.handler import Handler, Inputs
from leasequeue.worker.outcomes import Reject, Signal, Snooze
from leasequeue.worker.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.tasks.task import Task

#: The first and the longest delay of a task that this worker does not know (s).
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
#: For how long a worker must have met an item before that is a dead letter, unless it is kept shorter (s).
MET_SECONDS = 600.0
#: How often to log the same unknown task (s).
WARN_EVERY = 60.0
#: How many items, and how many names, a worker remembers that it does not know.
MAX_REMEMBERED = 10_000

log = Log("leasequeue.worker")


class UnknownTask(Snooze):
    """The worker does not know the task, or an argument of it, and leaves it to another one."""

    def __init__(self, what: str, delay: float) -> None:
        super().__init__(delay)
        self.args = (f"this worker does not know {what}",)


class UnknownTasks:
    """Releases tasks that the worker does not know, until they are too old.

    During a deploy, some workers know a task and others do not yet. So an item is released with a growing
    delay, which is no attempt. It becomes a dead letter when `keep` has passed since it was to run first, and
    the worker has met it for a while: a backlog may be older than `keep` when a deploy begins.
    """

    def __init__(self, keep: float) -> None:
        self._keep = keep
        #: For each item: when it was seen first, by the server's clock, and how often.
        self._seen: dict[str, tuple[float, int]] = {}
        #: When each was logged last, by `time.monotonic()`.
        self._warned: dict[str, float] = {}

    def signal(self, lease: Lease, what: str) -> Signal:
        """Return what to raise for an item."""
        now = lease.deadline - lease.remaining()
        seen_at, count = self._seen.pop(lease.id, (now, 0))
        first_due = first_due_of(lease.data)
        age = now - (seen_at if first_due is None else first_due)
        if age > self._keep and now - seen_at > min(self._keep, MET_SECONDS):
            return Reject(f"no worker that leased it since {self._keep:g} s has known {what}")
        self._seen[lease.id] = seen_at, count + 1
        if len(self._seen) > MAX_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._warn(lease, what)
        return UnknownTask(what, min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(count, 60)))

    def _warn(self, lease: Lease, what: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(what, -WARN_EVERY) >= WARN_EVERY:
            if len(self._warned) >= MAX_REMEMBERED:
                self._warned.clear()
            self._warned[what] = now
            log.warning(
                "this worker does not know %s (item %s, %s): it is released for others, and is a dead letter "
                "after %s",
                what,
                lease.id,
                lease.queue_name,
                duration_text(self._keep),
            )


def dispatcher_of(
    queue: AsyncWorkQueue, tasks: Sequence[Task[..., Any]], unknown: UnknownTasks, **defaults: Any
) -> Dispatcher:
    """Return what a worker calls with the items of a queue."""
    return Dispatcher(
        queue,
        [handler_of(task, unknown, **defaults) for task in tasks],
        choose=_name_of,
        otherwise=Handler(
            queue,
            _never_called,
            run_in="loop",
            batch=None,
            weight=1.0,
            retry=RetryPolicy(attempts=1_000_000),
            timeout=None,
            lease_time=defaults["lease_time"],
            keep_result=None,
            name="an unknown task",
            inputs=Inputs(decode=partial(_refuse, unknown)),
        ),
        declarations=[one for task in tasks if (one := task.definition.declaration) is not None],
        limits=[limit for task in tasks if (limit := task.definition.limit) is not None],
    )


def handler_of(
    task: Task[..., Any], unknown: UnknownTasks, *, retry: RetryPolicy, lease_time: float
) -> Handler:
    """Return the handler of a task."""
    definition = task.definition
    settings, arguments = definition.settings, definition.arguments
    resources = [name for name in arguments.provided if name not in arguments.lease_names]
    return Handler(
        task.queue,
        definition.picklable(task) if definition.run_in == "process" else definition.function,
        run_in=definition.run_in,
        batch=settings.batch,
        weight=settings.weight,
        retry=settings.retry or retry,
        timeout=settings.timeout,
        lease_time=lease_time if settings.lease_time is None else settings.lease_time,
        keep_result=settings.keep_result,
        keep_logs=settings.keep_logs,
        name=task.name,
        inputs=Inputs(
            decode=_decoder(task, unknown),
            by_name=settings.batch is None,
            lease_names=arguments.lease_names,
            resource_names=resources,
            required=resources,
        ),
        encode=write_result,
        correlation_of=correlation_of,
        fits=definition.read_output,
        may_return=definition.may_return,
        fan_misfit=definition.fan_misfit,
        stream=definition.stream,
        gathers=definition.gathers is not None,
        together=b"" if settings.batch_by is None else BATCH.encode(),
    )


def _decoder(task: Task[..., Any], unknown: UnknownTasks) -> Callable[[Lease], Any]:
    definition = task.definition
    arguments = definition.arguments
    read = arguments.decode if definition.settings.batch is None else arguments.decode_one

    def decode(lease: Lease) -> Any:
        try:
            return read(lease)
        except UnknownArguments as error:
            raise unknown.signal(lease, f"the argument {error} of the task {task.name!r}") from None

    return decode


def _name_of(lease: Lease) -> str:
    return task_of(lease.data) or ""


def _refuse(unknown: UnknownTasks, lease: Lease) -> Any:
    """Release an item whose task is not known here; one that is no task is a dead letter."""
    name = task_of(lease.data)
    if name is None:
        raise PayloadError(lease.id, "task", 'it is not JSON of the form {"task": name, "args": {}}')
    raise unknown.signal(lease, f"the task {name!r}")


async def _never_called(_: bytes) -> None:
    """Stand for the function of a task that is not known."""

"""Tasks that run as soon as a test adds them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from leasequeue.durations import check_bool, check_list
from leasequeue.errors import InvalidArgument, TimeLimitExceeded
from leasequeue.queue.encoding import AddOptions, UniqueOptions
from leasequeue.queue.plans.flow_runs import FlowRuns
from leasequeue.queue.plans.signals import NOT_GIVEN
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.tasks.queue import TaskQueue
from leasequeue.worker.outcomes import Reject, outcome_of
from leasequeue.worker.retry import RetryPolicy
from leasequeue.worker.run import RUNNING, Interruption
from leasequeue.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

    from leasequeue.durations import Duration
    from leasequeue.item import Item
    from leasequeue.queue.lease import Lease
    from leasequeue.queue.plans.plan import FlowPlan
    from leasequeue.worker.dispatch import Dispatcher
    from leasequeue.worker.run import Run

#: How often to ask whether a task is done that another caller of the test is running (s).
_POLL_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One attempt at a task in a test.

    Attributes:
        task: The name of the task.
        id: The id of its job.
        attempt: The number of the attempt, beginning with 1.
        returned: What the function returned; of a batch, the answer to this call.
        error: What it raised, or None.
    """

    task: str
    id: str
    attempt: int
    returned: Any = None
    error: BaseException | None = None


class InlineTasks:
    """Runs the tasks of task queues as soon as they are added. The fixture `leasequeue_inline` makes it.

        async def test_signing_up(leasequeue_inline):
            inline = leasequeue_inline(app.tasks, provide={"smtp": smtp})
            await app.sign_up("ann@example.org")        # adds a task, which runs before this returns
            assert [run.task for run in inline.runs] == ["send_mail"]

    The tasks are items on the server of the tests as in production: arguments and results go through JSON,
    and the worker is a real one. Different are these:

    - A task that failed is tried again at once. A delay that the program asks for stays.
    - Functions for processes run in threads.
    - A flow run has ended when the call that starts it returns, unless a call of it is delayed.
    - The code that adds a task raises what the last attempt at it raised.

    Args:
        queues: The task queues.
        open_queue: Makes a queue of the test.
        provide: What the worker fills in, by name.
        raise_errors: Whether adding a task raises the error of its last attempt.

    Attributes:
        runs: Each attempt that has ended, in that order.

    Raises:
        InvalidArgument: If an argument is invalid.
    """

    def __init__(
        self,
        queues: Sequence[TaskQueue],
        *,
        open_queue: Callable[[type[_InlineQueue], str], _InlineQueue],
        provide: Mapping[str, Any],
        raise_errors: bool,
    ) -> None:
        if not queues or not all(isinstance(one, TaskQueue) for one in queues):
            raise InvalidArgument("queues", queues, "one or more task queues")
        if not isinstance(provide, Mapping):
            raise InvalidArgument("provide", provide, "a mapping of names to values")
        self._raises = check_bool("raise_errors", raise_errors)
        self._provide = provide
        self._task_queues = queues
        self._opened: list[AsyncWorkQueue] = []
        self._moved = ExitStack()
        self.runs: list[TaskRun] = []

        def open_inline(name: str) -> AsyncWorkQueue:
            queue = open_queue(_InlineQueue, name)
            queue.added = self._run_added
            queue.flow_runs = _InlineFlowRuns(queue, self._run_added)
            self._opened.append(queue)
            return queue

        for tasks in queues:
            self._moved.enter_context(tasks._on(open_inline))  # noqa: SLF001 - a door for this class

    async def run(self) -> None:
        """Run the tasks that have become due, such as after a test has moved the clock.

        Raises:
            Exception: What a last attempt raised; an ExceptionGroup of several.
        """
        failed: list[Exception] = []

        async def watch(run: Run, call_next: Callable[[Run], Awaitable[Any]]) -> Any:
            return await self._watch(run, call_next, failed)

        @asynccontextmanager
        async def lifespan() -> AsyncIterator[Mapping[str, Any]]:
            yield self._provide

        sources = [_AtOnceTasks(one) for one in self._task_queues]
        names = [queue.name for queue in self._opened]
        feeds = dict.fromkeys(names, names)
        await Worker(*sources, feeds=feeds, lifespan=lifespan, middleware=[watch]).drain()
        if failed and self._raises:
            raise failed[0] if len(failed) == 1 else ExceptionGroup("several tasks failed", failed)

    def close(self) -> None:
        """Give the task queues their own queues again."""
        self._moved.close()

    async def _run_added(self, queue: AsyncWorkQueue, ids: Sequence[str]) -> None:
        """Run tasks that were just added; those that a task adds are run by its worker."""
        running = RUNNING.get()
        if running is not None and running.handler.queue in self._opened:
            return
        await self.run()
        # Another caller may have leased some of them.
        while (await queue.counts()).leased:
            views = await asyncio.gather(*(queue.find(one, data=False) for one in ids))
            if not any(view is not None and view.state == "leased" for view in views):
                break
            await asyncio.sleep(_POLL_SECONDS)
            await self.run()

    async def _watch(
        self, run: Run, call_next: Callable[[Run], Awaitable[Any]], failed: list[Exception]
    ) -> Any:
        """Note what a run returns or raises."""
        try:
            self._check_provided(run)
            returned = await call_next(run)
        except BaseException as error:
            timed_out = run.interruption is Interruption.TIMEOUT and isinstance(error, asyncio.CancelledError)
            if isinstance(error, Exception) or timed_out:
                seen = TimeLimitExceeded(run.handler.timeout or 0) if timed_out else error
                for lease in run.leases:
                    self._note(run, lease, None, seen, failed)
            raise
        answers = [returned] if run.handler.batch is None else returned
        for lease, answer in zip(run.leases, answers, strict=True):
            if run.handler.batch is not None and isinstance(answer, Exception):
                self._note(run, lease, None, answer, failed)
            else:
                self._note(run, lease, answer, None, failed)
        return returned

    def _check_provided(self, run: Run) -> None:
        missing = [name for name in run.handler.inputs.resource_names if name not in self._provide]
        if missing:
            raise Reject(f"{run.handler.name} has {', '.join(missing)} = Provided(): see provide=")

    def _note(
        self, run: Run, lease: Lease, returned: Any, error: BaseException | None, failed: list[Exception]
    ) -> None:
        name = run.handler.name
        self.runs.append(
            TaskRun(task=name, id=lease.id, attempt=lease.attempt, returned=returned, error=error)
        )
        if isinstance(error, Exception) and outcome_of(error, lease.attempt, run.handler.retry).is_final:
            failed.append(error)


class _InlineFlowRuns(FlowRuns):
    """The flow runs of a queue, whose tasks run when one is started or continues."""

    def __init__(
        self, queue: AsyncWorkQueue, added: Callable[[AsyncWorkQueue, Sequence[str]], Awaitable[None]]
    ) -> None:
        self.__dict__.update(vars(queue.flow_runs))
        self._added = partial(added, queue, ())

    async def start(self, plan: FlowPlan, run_id: str) -> bool:
        started = await super().start(plan, run_id)
        await self._added()
        return started

    async def retry(self, run_id: str) -> bool:
        goes_on = await super().retry(run_id)
        await self._added()
        return goes_on

    async def report(self, run_id: str, stage: str, result: object = None) -> bool:
        reported = await super().report(run_id, stage, result)
        await self._added()
        return reported

    async def report_failed(self, run_id: str, stage: str, error: str) -> bool:
        reported = await super().report_failed(run_id, stage, error)
        await self._added()
        return reported

    async def signal(self, run_id: str, name: str, value: Any = NOT_GIVEN, /, **values: Any) -> bool:
        given = await super().signal(run_id, name, value, **values)
        await self._added()
        return given


class _Adding(AddOptions, total=False):
    delay: Duration
    at: datetime | None


class _AddingUnique(UniqueOptions, total=False):
    delay: Duration
    at: datetime | None


class _InlineQueue(AsyncWorkQueue):
    """A queue that says when items are added to it."""

    added: Callable[[AsyncWorkQueue, Sequence[str]], Awaitable[None]]

    async def add_item(self, item: Item, **options: Unpack[_Adding]) -> bool:
        added = await super().add_item(item, **options)
        await self.added(self, [item.id])
        return added

    async def add_or_find(self, item: Item, **options: Unpack[_Adding]) -> tuple[str, bool]:
        found = await super().add_or_find(item, **options)
        await self.added(self, [found[0]])
        return found

    async def add_unique_item(self, item: Item, **options: Unpack[_AddingUnique]) -> None:
        await super().add_unique_item(item, **options)
        await self.added(self, [item.id])

    async def add_items(self, items: Iterable[Item], **options: Unpack[_Adding]) -> list[bool]:
        items = check_list("items", items, "items")
        added = await super().add_items(items, **options)
        await self.added(self, [item.id for item in items])
        return added


@dataclass(frozen=True, kw_only=True)
class _AtOnce(RetryPolicy):
    """A policy that retries as another one, without its waits."""

    policy: RetryPolicy

    def delay_after(self, attempt: int, error: BaseException) -> float | None:
        return None if self.policy.delay_after(attempt, error) is None else 0.0

    def wait(self, attempt: int) -> float:  # noqa: ARG002 - as in the policy
        return 0.0


class _AtOnceTasks:
    """The tasks of a task queue, for a worker that tries them again at once and starts no process."""

    def __init__(self, tasks: TaskQueue) -> None:
        self._tasks = tasks

    def consumers(self, *, retry: RetryPolicy, lease_time: float) -> Sequence[Dispatcher]:
        found = self._tasks.consumers(retry=retry, lease_time=lease_time)
        for one in found:
            one.limits = ()  # a test waits for no rate
        for handler in (handler for one in found for handler in one.handlers):
            handler.retry = _AtOnce(attempts=handler.retry.attempts, policy=handler.retry)
            handler.inputs = replace(handler.inputs, required=())
            if handler.run_in == "process":
                handler.run_in = "thread"
        return found

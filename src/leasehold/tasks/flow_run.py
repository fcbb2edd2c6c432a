"""A flow run that a chain, a group or a flow has started, by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from leasehold.describing import text_of
from leasehold.durations import Duration
from leasehold.errors import (
    FlowCancelled,
    FlowFailed,
    ItemCancelled,
    ItemFailed,
    ItemUnknown,
    JobFailed,
    ResultError,
    RunGone,
)
from leasehold.queue.stages import read_results
from leasehold.tasks.plans import One
from leasehold.tasks.wire import read_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.queue.runs import FlowRunView
    from leasehold.tasks.plans import Output

R_co = TypeVar("R_co", covariant=True)

#: Where a flow run is: unfinished, ended in one of three ways, or gone: never started, or no longer kept.
RunState: TypeAlias = Literal["active", "completed", "failed", "cancelled", "gone"]


class FlowRun(Generic[R_co]):
    """A flow run. Its `id` finds it in any process: `chain.flow_run(id)` makes the same object there.

        run = await download.call(url).then(resize).add()
        picture = await run.result(timeout=60)

    Attributes:
        id: The id of the run.
        created: Whether it was started, and not there already under this id; None if it was not this object's
            call.
    """

    __slots__ = ("_output", "_queue", "created", "id")

    def __init__(self, queue: AsyncWorkQueue, run_id: str, output: Output, *, created: bool | None) -> None:
        self.id = run_id
        self.created = created
        self._queue = queue
        self._output = output

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the run has ended, and return its result: that of its last stage, or those of a group.

        Args:
            timeout: How long to wait, in seconds; None waits without limit.

        Raises:
            FlowFailed: If it has failed.
            FlowCancelled: If it was cancelled.
            RunGone: If there is no such run, or it is no longer kept.
            ResultError: If it was completed, but its result cannot be read.
            TimeoutError: If it is unfinished after `timeout`.
            QueueClosed, ServerError: As in `AsyncWorkQueue.lease`.
        """
        try:
            data = await self._queue.results.wait(self.id, timeout=timeout)
            if data is not None:
                ended: R_co | None = read_result(self.id, data, self._read_whole)
        except JobFailed as error:
            if error.type == FlowCancelled.__name__:
                raise FlowCancelled(self.id) from error
            stage, _, text = error.message.partition(": ")
            raise FlowFailed(self.id, stage, text) from error
        ...

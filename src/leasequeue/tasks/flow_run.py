"""A flow run that a chain or a group has started, by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from leasequeue.describing import text_of
from leasequeue.errors import (
    FlowCancelled,
    FlowFailed,
    ItemCancelled,
    ItemFailed,
    ItemUnknown,
    JobFailed,
    ResultError,
    RunGone,
)
from leasequeue.queue.runs.stage_inputs import read_needs
from leasequeue.tasks.plans import One
from leasequeue.tasks.wire import raw_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue.durations import Duration
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.runs.views import FlowRunView
    from leasequeue.tasks.plans import Output

R_co = TypeVar("R_co", covariant=True)

#: Where a flow run is: unfinished, ended in one of three ways, or gone: never started, or no longer kept.
FlowRunState: TypeAlias = Literal["active", "completed", "failed", "cancelled", "gone"]


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

    def __init__(
        self, queue: AsyncWorkQueue, run_id: str, output: Output | None, *, created: bool | None
    ) -> None:
        self.id = run_id
        self.created = created
        self._queue = queue
        self._output = output

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the run has ended, and return its result: that of its last call, or those of its group.

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
            data = await self._queue.results.wait(self.id, timeout=timeout, what="flow run")
            raw = None if data is None else raw_result(self.id, data)
        except JobFailed as error:
            kind, _, message = error.error.partition(": ")
            if kind == FlowCancelled.__name__:
                raise FlowCancelled(self.id) from error
            stage, _, text = message.partition(": ")
            raise FlowFailed(self.id, stage, text) from error
        except ItemFailed as error:
            raise FlowFailed(self.id, "", error.error) from error
        except ItemCancelled as error:
            raise FlowCancelled(self.id) from error
        except ItemUnknown as error:
            raise RunGone(self.id) from error
        value: R_co = await self._value(raw)
        return value

    async def view(self) -> FlowRunView:
        """Return what is known of the run: its state, and its stages with their results and errors.

        Raises:
            RunGone: If there is no such run, or it is no longer kept.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return await self._queue.runs.get(self.id, children=True)

    async def status(self) -> FlowRunState:
        """Return the state of the run: `"gone"` if there is no such run, or it is no longer kept.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        [view] = await self._queue.runs.list([self.id], fields=[])
        return "gone" if view is None else view.state

    async def cancel(self) -> bool:
        """Cancel the run: what waits is removed, what runs is cancelled, and nothing follows.

        Returns:
            False if it has ended.

        Raises:
            RunGone: If there is no such run, or it is no longer kept.
            QueueClosed, ServerError: As in `AsyncWorkQueue.cancel`.
        """
        return await self._queue.runs.cancel(self.id)

    async def retry(self) -> bool:
        """Go on with a run that has failed, from the calls that failed. What is done stays.

        Returns:
            False if it has not failed.

        Raises:
            RunGone: If there is no such run, or it is no longer kept.
            RunUnfinished: If it has failed at once, and some of its calls are unfinished.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return await self._queue.runs.retry(self.id)

    async def _value(self, raw: bytes | None) -> Any:
        """Return the result of a run that was completed.

        Args:
            raw: The result of its last stage in JSON; None: that has none, or there are several.
        """
        output = self._output
        if output is None:
            return None
        leaves = [*_leaves(output)]
        if isinstance(output, One) and raw is not None:
            found: dict[str, bytes | None] = {output.path: raw}
        else:
            paths = [one.path for one in leaves]
            found = dict(zip(paths, await read_needs(self._queue, self.id, paths), strict=True))
        if leaves and not any(found.values()) and (await self.status()) == "gone":
            raise RunGone(self.id)
        if isinstance(output, One) and found[output.path] is None:
            raise ResultError(self.id, f"its last stage, {output.path!r}, has no result")
        try:
            return _value(output, found)
        except Exception as error:
            raise ResultError(self.id, f"its result cannot be read: {text_of(error)}") from error

    def __repr__(self) -> str:
        return f"<flow run {self.id!r}>"


def _leaves(output: Output) -> Iterator[One]:
    if isinstance(output, One):
        yield output
    else:
        if output.joined_by is not None:
            yield One(output.joined_by, _unread)
        for one in output.outputs:
            yield from _leaves(one)


def _value(output: Output, found: dict[str, bytes | None]) -> Any:
    """Return the value of an output; a list has those of its parts that have one."""
    if isinstance(output, One):
        return output.read(found[output.path] or b"")
    return [_value(one, found) for one in output.outputs if _is_there(one, found)]


def _is_there(output: Output, found: dict[str, bytes | None]) -> bool:
    """Return whether an output has a value: a group that has failed has none, whatever its parts have."""
    path = output.path if isinstance(output, One) else output.joined_by
    return path is None or found[path] is not None


def _unread(_: bytes) -> None:
    """Read what a stage has that only joins others."""

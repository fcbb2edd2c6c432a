"""The runs of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.errors import RunGone
from leasequeue.flow.diagram import draw_run

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Iterable

    from leasequeue.durations import Duration
    from leasequeue.flow.attributes import Attributes
    from leasequeue.queue.runs.runs import Runs
    from leasequeue.queue.runs.views import FlowRunView, RunState


class FlowRuns:
    """The runs of a flow: `Flow.runs`.

        for run in await access.runs.find(user_id=62):
            print(run.id, run.state, run.progress)
        await access.runs.cancel("order-7")

    They are among those of the flow's queue, `AsyncWorkQueue.runs`, which has the runs of all flows. Every
    call raises QueueClosed and ServerError as `AsyncWorkQueue.counts` does.
    """

    def __init__(self, flow: str, runs: Callable[[], Runs], attributes: Attributes) -> None:
        self._flow = flow
        self._runs = runs
        self._attributes = attributes

    async def get(
        self,
        id: str,  # noqa: A002 - the name of the attribute
        *,
        fields: Collection[str] | None = None,
        children: bool = False,
    ) -> FlowRunView:
        """Return one run, with its plan.

        Args:
            id: The id of the run.
            fields: The names of the attributes to read, and of the stages of which to read the result; None:
                all.
            children: Whether to read the children of stages that have fanned out, also their children.

        Raises:
            RunGone: If the flow has no such run.
            InvalidArgument: If an argument cannot be used.
        """
        view = await self._runs().get(id, fields=fields, children=children)
        if view.flow != self._flow:
            raise RunGone(id)
        return view

    async def list(
        self,
        ids: Iterable[str] | None = None,
        *,
        state: RunState | None = None,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
    ) -> builtins.list[FlowRunView | None]:
        """Return runs of the flow: those with given ids, or the newest.

        Args:
            ids: The ids of the runs, at most 1,000; None: those that have entered their state last.
            state: Without ids: only those in this state; None: in any.
            fields: As in `get`.
            children: As in `get`.
            count: Without ids: the maximum number of runs, 1 to 1,000.

        Returns:
            With ids, the run of each id at its place; None: the flow has none. Without, only runs.

        Raises:
            InvalidArgument: If an argument cannot be used.
        """
        runs = self._runs()
        if ids is None:
            return await runs.list(
                state=state, flow=self._flow, fields=fields, children=children, count=count
            )
        found = await runs.list(ids, fields=fields, children=children)
        return [view if view is not None and view.flow == self._flow else None for view in found]

    async def find(
        self,
        *,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
        **attributes: Any,
    ) -> builtins.list[FlowRunView]:
        """Return the runs that have given values of attributes: first those that are unfinished.

            await access.runs.find(user_id=62, guilds=1985)

        Args:
            fields: As in `get`.
            children: As in `get`.
            count: The maximum number of runs, 1 to 1,000.
            attributes: A value for each attribute; a run must have all. Of an attribute that is an array, a
                value is an element; of a list, a run must have each element.

        Raises:
            UnknownAttribute: If an attribute is not among those of `lookup`.
            InvalidArgument: If another argument cannot be used.
        """
        sought = self._attributes.sought(attributes)
        return await self._runs().find(self._flow, fields=fields, children=children, count=count, **sought)

    async def cancel(self, id: str) -> bool:  # noqa: A002 - as in `get`
        """Cancel a run: what waits is removed, what runs is cancelled, nothing follows; see `Runs.cancel`.

        Raises:
            RunGone: If there is no such run.
        """
        return await self._runs().cancel(id)

    async def retry(self, id: str) -> bool:  # noqa: A002 - as in `get`
        """Try a failed run again from the stages that have failed; see `Runs.retry`.

        Raises:
            RunGone: If there is no such run.
        """
        return await self._runs().retry(id)

    async def replay(self, id: str, *, new_id: str | None = None) -> str:  # noqa: A002 - as in `get`
        """Start a new run with the plan and the attributes of another, and return its id; see `Runs.replay`.

        Raises:
            RunGone: If there is no such run.
        """
        return await self._runs().replay(id, new_id=new_id)

    async def delete(self, id: str) -> bool:  # noqa: A002 - as in `get`
        """Delete a run that has ended. No trace is left; see `Runs.delete`.

        Raises:
            RunUnfinished: If it is unfinished.
        """
        return await self._runs().delete(id)

    async def report(self, id: str, stage: str, result: object = None) -> bool:  # noqa: A002 - as in `get`
        """Record the result of a stage that was handed over, and go on; see `Runs.report`."""
        return await self._runs().report(id, stage, result)

    async def report_failed(self, id: str, stage: str, error: str) -> bool:  # noqa: A002 - as in `get`
        """Record that such a stage has failed; see `Runs.report_failed`."""
        return await self._runs().report_failed(id, stage, error)

    async def result(
        self,
        id: str,  # noqa: A002 - as in `get`
        *,
        timeout: Duration | None = None,
    ) -> Any:
        """Wait until a run has ended, and return its result, from JSON; see `Runs.result`.

        Raises:
            FlowFailed: If it has failed.
            FlowCancelled: If it was cancelled.
            RunGone: If there is no such run.
            TimeoutError: If it is unfinished after `timeout`.
        """
        return await self._runs().result(id, timeout=timeout)

    async def mermaid(self, id: str) -> str:  # noqa: A002 - as in `get`
        """Return a run as a Mermaid diagram: a box for each stage, with its state and its children's.

        Raises:
            RunGone: If the flow has no such run.
        """
        return draw_run(await self.get(id, fields=()))

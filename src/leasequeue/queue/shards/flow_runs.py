"""The flow runs of a queue with shards: each is in the shard of its id, with the items of all its stages."""

# ruff: noqa: SLF001 - those of the shards are of the same class

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue.errors import InvalidArgument, InvalidFlow
from leasequeue.queue.plans.flow_runs import FlowRuns, joined_pages, place_of
from leasequeue.queue.plans.plan import ChildPlan, StagePlan, check_run_id
from leasequeue.queue.plans.signals import NOT_GIVEN
from leasequeue.queue.shards.parts import merged
from leasequeue.queue.views import CleanReport

if TYPE_CHECKING:
    import builtins
    from collections.abc import Collection, Mapping, Sequence

    from leasequeue.durations import Duration
    from leasequeue.queue.plans.flow_runs import RunsPage
    from leasequeue.queue.plans.plan import FlowPlan, Need
    from leasequeue.queue.plans.reading import FlowRunView
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.results import Results
    from leasequeue.queue.shards.spreading import Shards

Planned = TypeVar("Planned", StagePlan, ChildPlan)


class ShardedFlowRuns(FlowRuns):
    """See `FlowRuns`. A run is in the shard of its id, also with `shard_by="group"`.

    In its plan, the name of the queue stands for that shard; here it is replaced, so that no script, and no
    worker, knows of the others.
    """

    def __init__(self, shards: Shards, results: Results) -> None:
        super().__init__(shards.name, shards.refuse, results)
        self._shards = shards
        #: What a plan may name: also a shard, as one that was read from a run does.
        self._names = {shards.name, *(one.name for one in shards.all)}

    async def start(self, plan: FlowPlan, run_id: str) -> bool:
        """See `FlowRuns.start`.

        Raises:
            InvalidFlow: Also if one of its items is on another queue, or has a group with `shard_by="group"`.
        """
        home = self._shards.of(check_run_id(run_id)).name
        for stage in plan.stages:
            try:
                self._check(stage, *stage.children)
            except InvalidArgument as error:
                raise InvalidFlow(plan.flow, f"stage {stage.name!r}: {error}") from error
        return await (await self._at(run_id)).start(self._renamed(plan, home), run_id)

    async def get(
        self, run_id: str, *, fields: Collection[str] | None = None, children: bool = False
    ) -> FlowRunView:
        """See `FlowRuns.get`."""
        view = await (await self._at(run_id)).get(run_id, fields=fields, children=children)
        return replace(view, plan=None if view.plan is None else self._renamed(view.plan, self._name))

    async def find(
        self,
        flow: str | None = None,
        /,
        *,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
        **attributes: object,
    ) -> builtins.list[FlowRunView]:
        """See `FlowRuns.find`: first those that are unfinished, then those that have ended last."""
        found = await self._shards.each(
            lambda shard: self._in(shard).find(
                flow, fields=fields, children=children, count=count, **attributes
            )
        )
        return merged(found, lambda view: -view.ended.timestamp() if view.ended else -math.inf)[:count]

    async def cancel_for(self, run_id: str, why: str) -> bool:
        """See `FlowRuns.cancel_for`."""
        return await (await self._at(run_id)).cancel_for(run_id, why)

    async def retry(self, run_id: str) -> bool:
        """See `FlowRuns.retry`."""
        return await (await self._at(run_id)).retry(run_id)

    async def check(self, *, repair: bool = True) -> CleanReport:
        """See `FlowRuns.check`."""
        found = await self._shards.each(lambda shard: self._in(shard).check(repair=repair))
        return sum(found, CleanReport())

    async def delete(self, run_id: str) -> bool:
        """See `FlowRuns.delete`."""
        return await (await self._at(run_id)).delete(run_id)

    async def report(self, run_id: str, stage: str, result: object = None) -> bool:
        """See `FlowRuns.report`."""
        return await (await self._at(run_id)).report(run_id, stage, result)

    async def report_failed(self, run_id: str, stage: str, error: str) -> bool:
        """See `FlowRuns.report_failed`."""
        return await (await self._at(run_id)).report_failed(run_id, stage, error)

    async def signal(self, run_id: str, name: str, value: Any = NOT_GIVEN, /, **values: Any) -> bool:
        """See `FlowRuns.signal`."""
        runs = (await self._at(run_id)).with_signals(self._of, self._signals)
        return await runs.signal(run_id, name, value, **values)

    def placed(self, child: ChildPlan, home: str) -> ChildPlan:
        """Return a child as it is added by a run in a shard.

        Raises:
            InvalidArgument: If it is on another queue, or has a group with `shard_by="group"`.
        """

        def here(part: ChildPlan) -> ChildPlan:
            self._check(part)
            return replace(part, queue=home)

        return child.on(here)

    def _check(self, *items: StagePlan | ChildPlan) -> None:
        for one in items:
            if one.queue and one.queue not in self._names:
                allowed = f"{self._name!r}, as a run is in one of its shards; or see Flow.then_start"
                raise InvalidArgument("queue", one.queue, allowed)
            if one.group is not None and self._shards.by == "group":
                allowed = "None, as a run is in the shard of its id; or a queue with shard_by='id'"
                raise InvalidArgument("group", one.group, allowed)

    def _renamed(self, plan: FlowPlan, name: str) -> FlowPlan:
        """Return a plan with another name for its queue: that of a shard, or of all."""

        def renamed(one: Planned) -> Planned:
            return replace(one, queue=name) if one.queue in self._names else one

        stages = (replace(one, children=tuple(map(renamed, one.children))) for one in plan.stages)
        return replace(plan, stages=tuple(map(renamed, stages)))

    async def _at(self, run_id: str) -> FlowRuns:
        """Return the runs of the shard of a run."""
        shard = self._shards.of(check_run_id(run_id))
        await self._shards.checked()
        return self._in(shard)

    def _in(self, shard: AsyncWorkQueue) -> FlowRuns:
        runs = shard.flow_runs
        return runs if self._flow is None else runs.of_flow(self._flow, self._sought)

    async def _ended(self, run_id: str, timeout: Duration | None) -> Any:
        return await (await self._at(run_id))._ended(run_id, timeout)

    async def _read(self, run_id: str, needs: Sequence[Need]) -> builtins.list[bytes | None]:
        return await (await self._at(run_id))._read(run_id, needs)

    async def _views(
        self, ids: Sequence[str], fields: Collection[str] | None, *, children: bool
    ) -> builtins.list[FlowRunView | None]:
        found = await self._shards.each(
            lambda shard: shard.flow_runs._views(
                [one for one in ids if self._shards.of(one) is shard], fields, children=children
            )
        )
        views = {view.id: view for some in found for view in some if view is not None}
        return [views.get(one) for one in ids]

    async def _listed(
        self,
        states: Sequence[str],
        flow: str | None,
        count: int,
        cursor: bytes = b"",
        steps: int | None = None,
    ) -> RunsPage:
        found = await self._shards.each(
            lambda shard: shard.flow_runs._listed(states, flow, count, cursor, steps)
        )
        return joined_pages(found, count)

    async def _found(
        self,
        attributes: Mapping[str, object],
        flow: str,
        count: int,
        cursor: bytes = b"",
        steps: int | None = None,
    ) -> tuple[builtins.list[str], bytes]:
        """Return what `FlowRuns._found` does, one shard after the other: a cursor begins with its number."""
        number, _, after = (cursor or b"0 ").partition(b" ")
        at = int(number) if number.isdigit() else len(self._shards.all)
        if at >= len(self._shards.all) or (after and place_of(after) is None):
            raise InvalidArgument("after", cursor, "the cursor that a page has returned")
        ids: list[str] = []
        await self._shards.checked()
        while at < len(self._shards.all) and len(ids) < count:
            left = count - len(ids)
            some, after = await self._in(self._shards.all[at])._found(attributes, flow, left, after, steps)
            ids += some
            if after and len(ids) < count:
                break  # it has taken all its steps
            at += not after
        return ids, b"" if at == len(self._shards.all) else b"%d %b" % (at, after)

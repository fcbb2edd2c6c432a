"""Finds what keeps flow runs from going on: stages whose items exist nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.queue.encoding import SLOW_ROWS
from leasequeue.queue.findings import Problem, read_repairs
from leasequeue.queue.runs.reads import RUNS_PER_STEP
from leasequeue.queue.runs.settling import settle_at
from leasequeue.queue.slot import run_at
from leasequeue.queue.stage_ref import StageRef
from leasequeue.queue.views import CleanReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.runs.reads import RunReader
    from leasequeue.queue.slot import QueueObject

#: Values per item in the reply of `find_many`; the first two are its state and its id.
_FIELDS = 12


async def check_stages(
    queue: QueueObject, reader: RunReader, run_ids: Sequence[str], *, repair: bool
) -> CleanReport:
    """Find the stages of unfinished runs that wait for items which exist nowhere, and end them.

    Args:
        queue: The home queue.
        reader: Reads its runs.
        run_ids: The ids of runs; those that have ended are left alone.
        repair: Whether to end the stages.
    """
    report = CleanReport()
    # Most of them have ended: their children are not read.
    unfinished = [
        view.id
        for at in range(0, len(run_ids), RUNS_PER_STEP)
        for view in await reader.views(run_ids[at : at + RUNS_PER_STEP], (), children=False)
        if view is not None and view.unfinished
    ]
    for run_id in unfinished:
        [view] = await reader.views([run_id], (), children=True)
        if view is None or not view.unfinished:
            continue
        report += CleanReport(examined=1)
        for name, paths in (await reader.open_items(view)).items():
            for at in range(0, len(paths), SLOW_ROWS):
                some = [StageRef(queue.name, run_id, path) for path in paths[at : at + SLOW_ROWS]]
                report += await _check_items(queue, name or queue.name, some, repair=repair)
    return report


async def _check_items(
    queue: QueueObject, name: str, stages: Sequence[StageRef], *, repair: bool
) -> CleanReport:
    ids = {one.item_id.encode(errors="surrogateescape"): one for one in stages}
    reply = await run_at(queue, name, "find_many", [*ids], which=b"living", max_bytes=-1)
    existing = {*reply[2::_FIELDS]}
    lost = [one for one in ids if one not in existing]
    if lost and repair:
        await settle_at(queue, name, [b"=" + ids[one].encode() for one in lost])
    problem = Problem.SETTLED_STAGE if repair else Problem.STUCK_STAGE
    return CleanReport(findings=read_repairs([part for one in lost for part in (problem.encode(), one)]))

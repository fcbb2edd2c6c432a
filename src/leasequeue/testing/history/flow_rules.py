"""The rules of a history in which flow runs take part: each stage ends once, and none begins too early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.testing.history.events import STAGE_ENDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasequeue.testing.history.events import FinalRun, FinalState
    from leasequeue.testing.history.index import Call, HistoryIndex, ItemHistory

    Finals = Mapping[str, FinalState]
    Findings = Iterator[tuple[ItemHistory, str, int | None]]

#: How a run keeps what its stages have recorded.
_RECORDED = {"stage_done": "done", "stage_failed": "failed"}


def stage_ended_twice(index: HistoryIndex, _: Finals) -> Findings:
    """Find stages that two calls have ended, without a retry of the run in between."""
    for item in index.items:
        ended = [call for call in item.calls_of(*STAGE_ENDS) if call.applied]
        if len(ended) > 1 + len(retries_of(item, index)):
            yield item, f"was ended {len(ended)} times", int(ended[-1].answered_at)


def run_lost(index: HistoryIndex, finals: Finals) -> Findings:
    """Find runs that were started and are gone, and open stages without an item."""
    unfinished = {one for final in finals.values() for one in final.unfinished}
    for item in index.items:
        final = finals.get(item.queue)
        if final is None or final.runs is None:
            continue
        started = any(call.applied for call in item.calls_of("start"))
        deleted = any(call.maybe_applied for call in item.calls_of("run_delete"))
        run = final.runs.get(item.id)
        if started and run is None and not deleted:
            yield item, "was started, and is gone", None
        for path, state in run.stages.items() if run else ():
            if state == "entered" and f"{item.id}/{path}" not in unfinished:
                yield item, f"waits for {path!r}, whose item does not exist", None


def stage_unrecorded(index: HistoryIndex, finals: Finals) -> Findings:
    """Find stages whose run does not say what the server has accepted."""
    runs = _runs(finals)
    for item in index.items:
        run_id, _, path = item.id.partition("/")
        run = runs.get(run_id)
        if run is None or retries_of(item, index):
            continue
        for kind in ("stage_done", "stage_failed"):
            accepted = [call for call in item.calls_of(kind) if call.applied]
            state = run.stages.get(path, "not entered")
            # One that another call had recorded before is only completed.
            others = [call for call in item.calls_of(*STAGE_ENDS) if call.kind != kind and call.maybe_applied]
            if accepted and not others and state not in {_RECORDED[kind], "cancelled"}:
                yield item, f"was accepted as {_RECORDED[kind]}, and is {state}", int(accepted[0].answered_at)


def stage_early(index: HistoryIndex, finals: Finals) -> Findings:
    """Find stages that began before those that they wait for had ended, and children before their parents."""
    runs = _runs(finals)
    items = {item.id: item for item in index.items}
    for item in index.items:
        run_id, _, path = item.id.partition("/")
        run = runs.get(run_id)
        if run is None or not item.begins:
            continue
        parent = path.rpartition("/")[0]
        began = min(begin.at for begin in item.begins)
        for before in (parent,) if parent else run.waits_for.get(path, ()):
            other = items.get(f"{run_id}/{before}")
            if other is None or not other.leases or (not parent and run.stages.get(before) != "done"):
                continue  # it has ended in another way, or has no item
            ended = other.calls_of(*STAGE_ENDS)
            # The answer to one that fans out says only whether its item was completed.
            fanned = [call for call in ended if call.maybe_applied or call.kind == "stage_fanned"]
            if not any(call.called_at < began for call in fanned):
                yield item, f"began before {before!r} had ended", began


def _runs(finals: Finals) -> dict[str, FinalRun]:
    return {name: run for final in finals.values() for name, run in (final.runs or {}).items()}


def retries_of(item: ItemHistory, index: HistoryIndex) -> list[Call]:
    """Return the calls that may have opened a stage again, or started its run anew after it was deleted."""
    run = index.runs.get(item.id.partition("/")[0])
    if run is None or not item.calls_of(*STAGE_ENDS):
        return []
    starts = [call for call in run.calls_of("start") if call.maybe_applied]
    return [*(call for call in run.calls_of("run_retry") if call.maybe_applied), *starts[1:]]

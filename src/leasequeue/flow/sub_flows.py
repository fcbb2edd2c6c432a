"""Stages that are other flows: each starts a run of the other flow, and waits for its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from leasequeue.durations import duration_text
from leasequeue.errors import FlowRunUnfinished
from leasequeue.item.codec import read_number
from leasequeue.queue.plans.plan import run_key, sub_run_id
from leasequeue.queue.queue import engine_of
from leasequeue.worker.outcomes import HandedOver, Reject, Snooze
from leasequeue.worker.stage_context import current_stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from leasequeue.queue.plans.flow_runs import FlowRuns
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.stage_context import StageContext

#: After how long a stage without a time limit is looked at again (s): its end does not depend on it.
LOOK_SECONDS = 86_400.0
#: How long to wait for what is left of a run before it is done again (s).
LEFT_SECONDS = 1.0


def waiting_for(
    start: Callable[..., Awaitable[Any]], runs_of: Callable[[], FlowRuns], timeout: float | None
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the function of a stage that starts a run of a flow, given its attributes, and waits for it.

    `start` starts a run, with the arguments of `Flow._start`, among those that `runs_of` returns. The
    script that ends that run ends the stage. So the function runs again only if its worker has died, if the
    time limit has passed, or if the run of the stage is retried. It finds by its id the run that it has
    started.
    """

    async def wait_for_run(**given: Any) -> Any:
        stage = current_stage()
        runs, run_id = runs_of(), sub_run_id(stage.run, stage.path)
        state, is_its, seconds, level = await _found(stage, run_id)
        if state == "completed" and is_its:  # its end was recorded, and not in this stage
            return await runs.result(run_id)
        if state == "active" and not is_its:
            raise Reject(f"there is a run {run_id!r} that this stage has not started: cancel it")
        try:
            if state == "failed" and is_its:
                await _retry(runs, run_id)
                seconds = 0
            elif state != "active":
                if state:  # of an earlier run of this id, or cancelled
                    await runs.delete(run_id)
                await start(given, id=run_id, **_inherited(stage, level))
                seconds = 0
            elif timeout is not None and seconds >= timeout:
                why = f"the run {run_id!r} has not ended within {duration_text(timeout)}"
                # Not awaited: it cancels the item of this stage, and so its function.
                engine_of(cast("AsyncWorkQueue", stage.lease.queue)).soon(runs.cancel_for(run_id, why))
                raise Snooze(LEFT_SECONDS)
        except FlowRunUnfinished:
            raise Snooze(LEFT_SECONDS) from None
        raise HandedOver(LOOK_SECONDS if timeout is None else timeout - seconds)

    return wait_for_run


async def _retry(runs: FlowRuns, run_id: str) -> None:
    """Do a failed run again; if nothing of it can be, fail as it has: no end of it would end the stage."""
    if not await runs.retry(run_id):
        [view] = await runs.list([run_id], fields=())
        if view is not None and view.state == "failed":
            raise Reject(view.error or "")


async def _found(stage: StageContext, run_id: str) -> tuple[str, bool, float, int]:
    """Return the state of a run, empty if there is none; whether the stage has started it; its age (s).

    And the priority of the run that has the stage.
    """
    lease = stage.lease
    engine = engine_of(cast("AsyncWorkQueue", lease.queue))
    names = (b"state", b"parent", b"reopened", b"created")
    (state, parent, *began), level = await engine.read_many_at(
        [
            (b"HMGET", run_key(stage.home, run_id), *names),
            (b"HGET", run_key(stage.home, stage.run), b"level"),
        ]
    )
    now = lease.deadline - lease.remaining()
    began_at = next((read_number(one, 0) for one in began if one), 0) / 1000
    is_its = lease.stage is not None and parent == lease.stage.encode()
    return (state or b"").decode(errors="replace"), is_its, now - began_at, read_number(level, 0)


def _inherited(stage: StageContext, level: int) -> Mapping[str, Any]:
    """Return what a run has of the one whose stage waits for it: the correlation id, and the priority."""
    ref = stage.lease.stage
    return {
        "correlation": stage.correlation,
        "priority": level,
        "parent": b"" if ref is None else ref.encode(),
    }

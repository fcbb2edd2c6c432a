"""Reading what is published of a flow run when it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leasequeue.errors import FlowCancelled, FlowFailed, ResultError
from leasequeue.queue.runs.stage_inputs import read_needs

if TYPE_CHECKING:
    from leasequeue.queue.slot import QueueObject


async def read_result(queue: QueueObject, run_id: str, data: bytes | None) -> Any:
    """Return the result of a run, from JSON, as its end was published.

    Args:
        queue: The home queue.
        run_id: The run's id.
        data: What was published; None: the run is not kept.

    Raises:
        FlowFailed: If it has failed.
        FlowCancelled: If it was cancelled.
        ResultError: If its result cannot be read.
    """
    try:
        end = json.loads(data or b"{}")
        failure, stage = end.get("error"), end.get("stage")
    except (ValueError, AttributeError) as error:
        raise ResultError(run_id, f"its result is not that of a flow run: {data!r}") from error
    if failure is None and stage is not None:  # it has fanned out
        [children] = await read_needs(queue, run_id, [f"{stage}/*"])
        return json.loads(children or b"null")
    if failure is None:
        return end.get("result")
    if failure.get("type") == FlowCancelled.__name__:
        raise FlowCancelled(run_id)
    path, _, text = str(failure.get("message", "")).partition(": ")
    raise FlowFailed(run_id, path, text)

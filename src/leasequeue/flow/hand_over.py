"""The stage that starts a run of another flow.

Two runs in different slots cannot change in one step. So the hand-over has two phases, of which the first may
be repeated: the run of the other flow is started under an id that is made of this run and stage, and then the
stage is finished. Whatever happens between them, the stage is run again and starts what is there already.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any, Protocol

from leasequeue.tasks.definition import Definition, Settings
from leasequeue.tasks.fitting import accepts_none
from leasequeue.tasks.task import AsyncTask
from leasequeue.worker.stage_context import current_stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasequeue.queue.queue import AsyncWorkQueue


class Start(Protocol):
    """Starts a run of the other flow, if there is none of this id."""

    async def __call__(
        self, run_id: str, correlation: str | None, attributes: Mapping[str, Any], /
    ) -> object:
        """Start it.

        Args:
            run_id: The id of the run.
            correlation: Its correlation id.
            attributes: Its attributes.
        """


def hand_over(
    queue: AsyncWorkQueue, name: str, start: Start, attributes: Mapping[str, Any]
) -> AsyncTask[..., str]:
    """Return a task, not registered, that starts a run of another flow, and returns its id.

    Args:
        queue: The queue of its items.
        name: Its name.
        start: Starts a run of the other flow.
        attributes: Its attributes, which the task takes as parameters, with their types.

    Raises:
        InvalidTask: If the attributes cannot be its parameters.
    """

    async def start_other(**given: Any) -> str:
        stage = current_stage()
        run_id = f"{stage.run}.{stage.path}"
        await start(run_id, stage.correlation, given)
        return run_id

    keyword = inspect.Parameter.KEYWORD_ONLY
    start_other.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # read by inspect.signature
        [
            inspect.Parameter(
                name,
                keyword,
                annotation=kind,
                default=None if accepts_none(kind) else inspect.Parameter.empty,
            )
            for name, kind in attributes.items()
        ],
        return_annotation=str,
    )
    settings = Settings(
        run_in=None, batch=None, weight=1.0, retry=None, timeout=None, lease_time=None, keep_result=3600
    )
    return AsyncTask(Definition(name, start_other, queue, settings), time.time)

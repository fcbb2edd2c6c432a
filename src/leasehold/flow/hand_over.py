"""The stage that starts a run of another flow.

Two runs in different slots cannot change in one step. So the hand-over has two phases, of which the first may
be repeated: the run of the other flow is started under an id that is made of this run and stage, and then the
stage is finished. Whatever happens between them, the stage is run again and starts what is there already.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.flow.fitting import accepts_none
from leasehold.worker.stage_context import current_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping


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


def hand_over(start: Start, attributes: Mapping[str, Any]) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return the function of a stage that starts a run of another flow, and returns its id.

    Args:
        start: Starts a run of the other flow.
        attributes: Its attributes, which the function takes as parameters, with their types.
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
    return start_other

"""Calls of the parts of a pass: queues and back ends. Each is limited in time, and fails alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue.autoscale.report import PassError
from leasequeue.describing import describe
from leasequeue.errors import LeasequeueError
from leasequeue.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Result = TypeVar("_Result")

#: At most so many characters of a problem are reported.
MAX_PROBLEM = 2000

log = Log("leasequeue.autoscale")


class Parts:
    """Calls the parts of one pass, and collects what goes wrong."""

    #: Calls that took too long and were cancelled, and have not ended yet: kept, so that they can end.
    _left: set[asyncio.Task[Any]] = set()  # noqa: RUF012 - of all passes

    def __init__(self) -> None:
        self.errors: list[PassError] = []

    def fail(self, part: str, problem: str) -> None:
        """Note that a part has failed. Two calls of it that fail alike are one problem."""
        # It is kept in the state: short, and without what JSON cannot hold.
        text = (problem or "unknown")[:MAX_PROBLEM].encode(errors="replace").decode()
        if (error := PassError(part=part, problem=text)) not in self.errors:
            self.errors.append(error)

    async def call(
        self, part: str, make: Callable[[], Coroutine[Any, Any, _Result]], *, limit: float
    ) -> _Result | None:
        """Return the result of a call; None: it has failed, or took too long.

        A call that takes too long is cancelled and not waited for any further, in case it does not end.
        """
        task = asyncio.ensure_future(_begin(make))
        try:
            await asyncio.wait([task], timeout=limit)
        finally:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(_forget)
        if not task.done():
            self.fail(part, f"no answer within {limit:g} s")
        elif task.cancelled():
            self.fail(part, "the call was cancelled")
        elif (error := task.exception()) is not None:
            self.fail(part, str(error) if isinstance(error, LeasequeueError) else describe(error))
            if not isinstance(error, LeasequeueError):
                log.error("%s has failed", part, exc_info=error)
        else:
            return task.result()
        return None


async def _begin(make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Make the call in its own task, so that what is raised while it is made is its error, too."""
    return await make()


def _forget(task: asyncio.Task[Any]) -> None:
    Parts._left.discard(task)  # noqa: SLF001 - its own
    if not task.cancelled():
        task.exception()  # so that it counts as read

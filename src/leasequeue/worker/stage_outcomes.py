"""How the runs of stages end: outcomes that are recorded in a flow run, in the step that ends the item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leasequeue import codec
from leasequeue.queue.encoding import error_text
from leasequeue.queue.runs.stages import StageRow, fan_all, finish_stages
from leasequeue.worker.outcomes import Complete, Fail, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue


@dataclass(frozen=True, slots=True)
class StageDone(Outcome):
    """The stage is done: its result is recorded, what follows is added, and the item is completed.

    Attributes:
        result: Its result in JSON.
        chosen: The successors that are entered; None: all.
        trace: The `traceparent` of its run, to which what follows is linked; None: it is not traced.
    """

    like: ClassVar[type[Outcome] | None] = Complete
    counted_as = Complete.counted_as
    is_attempt = True

    result: bytes
    chosen: tuple[str, ...] | None = None
    trace: bytes | None = None

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Finish the stages."""
        rows = [
            StageRow(
                lease,
                "done",
                one.result,
                b"" if one.chosen is None else codec.encode(one.chosen),
                trace=one.trace,
            )
            for lease, one in zip(leases, outcomes, strict=True)
        ]
        return await finish_stages(queue, rows)

    def __str__(self) -> str:
        return "stage done"


@dataclass(frozen=True, slots=True)
class StageFanned(Outcome):
    """The stage has children: they are added, and the item is completed with the last.

    Attributes:
        children: The definition of each, as `child_text` returns it; None: some are added already, and the
            rest is known to the server.
        join: The text of the policy by which they are joined.
        trace: As of `StageDone`.
    """

    counted_as = "fanned out"
    is_attempt = True

    children: Sequence[bytes] | None
    join: str = "all"
    trace: bytes | None = None

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Add the children."""
        pairs = zip(leases, outcomes, strict=True)
        return await fan_all(
            queue, [(lease, one.children, one.join.encode(), one.trace) for lease, one in pairs]
        )

    def __str__(self) -> str:
        return "fans out" if self.children is None else f"fans out to {len(self.children)} children"


@dataclass(frozen=True, slots=True)
class StageFailed(Outcome):
    """The stage has failed for good: the item becomes a dead letter, and the flow run goes on without it.

    Attributes:
        error: What went wrong; kept with the item and in the run.
        trace: As of `StageDone`.
    """

    like: ClassVar[type[Outcome] | None] = Fail
    counted_as = Fail.counted_as
    is_attempt = True

    error: str
    trace: bytes | None = None

    @property
    def is_final(self) -> bool:
        """True."""
        return True

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Fail the stages."""
        pairs = zip(leases, outcomes, strict=True)
        return await finish_stages(
            queue, [StageRow(lease, "failed", error_text(one.error), trace=one.trace) for lease, one in pairs]
        )

    def __str__(self) -> str:
        return "a dead letter now, and the stage has failed"


@dataclass(frozen=True, slots=True)
class StageDropped(Outcome):
    """The flow run needs the stage no more: the item is completed without a run.

    Attributes:
        reason: Why.
    """

    counted_as = "dropped"
    is_attempt = False

    reason: str

    @classmethod
    async def acknowledge(
        cls,
        queue: AsyncWorkQueue,
        leases: Sequence[Lease],
        outcomes: Sequence[Self],  # noqa: ARG003 - as the others
    ) -> list[bool]:
        """Drop the items."""
        return await finish_stages(queue, [StageRow(lease, "drop") for lease in leases])

    def __str__(self) -> str:
        return f"dropped, since {self.reason}"

"""The stages of flow runs in a worker: what is read before their handlers, and how their runs end.

Their outcomes are recorded in the flow run, in the step that ends the item.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from msgspec import UNSET

from leasequeue.errors import (
    AccessDenied,
    FormatTooNew,
    LeasequeueError,
    ResultError,
    ResultMismatch,
    copied,
)
from leasequeue.errors.describing import describe, shown, text_of
from leasequeue.errors.log import Log
from leasequeue.item import MAX_DATA_BYTES, codec
from leasequeue.queue.encoding import error_text
from leasequeue.queue.plans.inputs import EntryState, read_stages
from leasequeue.queue.plans.stages import FinishRow, child_text, fan_all, finish_stages
from leasequeue.queue.queue import engine_of
from leasequeue.worker.outcomes import Complete, Fail, Outcome, Release, Signal, by_exception
from leasequeue.worker.refusals import Reminder
from leasequeue.worker.run import FlowItems
from leasequeue.worker.stage_context import FanOut, Next

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.plans.flow_runs import FlowRuns
    from leasequeue.queue.plans.inputs import AwaitedSignal
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.retry import RetryPolicy
    from leasequeue.worker.run import ActiveRun

#: How long an item waits whose flow run could not be read, since the server was away (s).
UNREAD_SECONDS = 0.5
#: How long one waits for another worker if the access rules forbid this one to read its flow run, or the
#: queue where that is kept is too new for it (s).
DENIED_SECONDS = 5.0

#: How many children of a stage are written in one turn of the event loop: that takes about 2 ms.
CHILDREN_PER_TURN = 200

#: Leases whose stages are to be read, and where their states go.
_Asked: TypeAlias = "tuple[Sequence[Lease], asyncio.Future[list[EntryState]]]"

log = Log("leasequeue.worker")


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
            FinishRow(
                lease,
                "done",
                one.result,
                b"" if one.chosen is None else codec.encode(one.chosen),
                trace=one.trace,
            )
            for lease, one in zip(leases, outcomes, strict=True)
        ]
        return await finish_stages(engine_of(queue), rows)

    def __str__(self) -> str:
        return "stage done"


@dataclass(frozen=True, slots=True)
class StageFanned(Outcome):
    """The stage has children: they are added, and the item is completed with the last.

    Attributes:
        children: The definition of each, as `child_text` returns it; None: some are added already, and the
            rest is known to the server.
        join: The text of the policy by which they are joined.
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
            engine_of(queue), [(lease, one.children, one.join.encode(), one.trace) for lease, one in pairs]
        )

    def __str__(self) -> str:
        return "fans out" if self.children is None else f"fans out to {len(self.children)} children"


@dataclass(frozen=True, slots=True)
class StageFailed(Outcome):
    """The stage has failed finally: the item becomes a dead letter; the flow run continues without it.

    Attributes:
        error: What went wrong; kept with the item and in the run.
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
        rows = [
            FinishRow(lease, "failed", error_text(one.error), trace=one.trace)
            for lease, one in zip(leases, outcomes, strict=True)
        ]
        return await finish_stages(engine_of(queue), rows)

    def __str__(self) -> str:
        return "a dead letter now, and the stage has failed"


@dataclass(frozen=True, slots=True)
class StageDropped(Outcome):
    """The flow run needs the stage no more: the item is completed without a run."""

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
        return await finish_stages(engine_of(queue), [FinishRow(lease, "drop") for lease in leases])

    def __str__(self) -> str:
        return f"dropped, since {self.reason}"


class Skipped(Signal):
    """An item of a batch whose handler is not called: its stage needs no run."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


@by_exception.register(Skipped)
def _(error: Skipped, attempt: int, policy: RetryPolicy) -> Outcome:  # noqa: ARG001 - as the others
    return error.outcome


def note_stages(runs: Iterable[ActiveRun], leases: Iterable[Lease]) -> None:
    """Note in runs which of their items are for stages; `leases` are those of all runs."""
    for lease in leases:
        if lease._carried is not None:  # noqa: SLF001 - the quick check: it is so with most items
            break
    else:
        return
    for run in runs:
        if any(lease.stage for lease in run.leases):
            run.stages = FlowItems(run.leases)


class EntryReader:
    """Reads stages for all slots of a worker: those that begin in one turn of the event loop together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: What is asked for in this turn, by queue.
        self._asked: dict[AsyncWorkQueue, list[_Asked]] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self.reminder = Reminder()

    async def read(self, queue: AsyncWorkQueue, leases: Sequence[Lease]) -> list[EntryState]:
        """Return the states of the stages of some leases."""
        if not self._asked:
            self._loop.call_soon(self._start)
        future: asyncio.Future[list[EntryState]] = self._loop.create_future()
        self._asked.setdefault(queue, []).append((leases, future))
        return await future

    def _start(self) -> None:
        asked, self._asked = self._asked, {}
        for queue, some in asked.items():
            task = self._loop.create_task(self._read(queue, some), name="leasequeue read stages")
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _read(self, queue: AsyncWorkQueue, asked: Sequence[_Asked]) -> None:
        """Read what was asked for of one queue; if that still fails at last, each for itself."""
        try:
            states = iter(
                await read_stages(engine_of(queue), [lease for leases, _ in asked for lease in leases])
            )
            for leases, future in asked:
                its = [*itertools.islice(states, len(leases))]
                if not future.done():
                    future.set_result(its)
        except BaseException as error:
            if len(asked) > 1 and isinstance(error, LeasequeueError) and not error.transient:
                await asyncio.gather(*(self._read(queue, [one]) for one in asked))
                return
            for future in [future for _, future in asked if not future.done()]:
                future.set_exception(copied(error))
            if not isinstance(error, LeasequeueError):
                raise


async def prepare(run: ActiveRun, reader: EntryReader) -> bool:
    """Read the flow runs that the items of a run belong to; return whether the handler is to be called.

    If it is not, the run has its outcomes: the flow run was cancelled, or the stage has ended before.
    """
    stages = run.stages
    if stages is None:
        return True
    leases = stages.leases
    try:
        states = await reader.read(run.handler.queue, leases)
    except FormatTooNew as error:
        reader.reminder.log(f"stages of {run.handler.queue.name} are left to newer workers", error)
        run.outcomes = [Release(delay=DENIED_SECONDS)] * len(run.leases)
        return False
    except LeasequeueError as error:
        is_denied = isinstance(error, AccessDenied)
        if not (error.transient or is_denied):
            raise
        homes = sorted({lease.stage.home for lease in leases if lease.stage is not None})
        log.log(
            logging.ERROR if is_denied else logging.WARNING,
            "%r cannot start, since its flow run, on the queue %s, cannot be read: %s",
            *(run, ", ".join(homes), error),
            extra=run.log_fields,
        )
        delay = DENIED_SECONDS if is_denied else UNREAD_SECONDS
        run.outcomes = [Release(delay=delay)] * len(run.leases)
        return False
    for lease, state in zip(leases, states, strict=True):
        context = stages.contexts[lease.token]
        context.flow, context.correlation, context.inputs = state.flow, state.correlation, state.inputs
        lease._inputs = state.inputs  # noqa: SLF001 - its worker sets it
        if (outcome := _without_a_run(lease, state)) is not None:
            stages.skipped[lease.token] = outcome
    if len(stages.skipped) < len(run.leases):
        return True
    run.outcomes = [stages.skipped[lease.token] for lease in run.leases]
    log.info("%r needs no run: %s", run, run.outcomes[0], extra=run.log_fields)
    return False


def _without_a_run(lease: Lease, state: EntryState) -> Outcome | None:
    """Return the outcome of a stage whose handler must not be called; None: call it."""
    if state.stage == "x":
        return StageFanned(None)
    if state.stage == "d":
        return StageDone(b"null")
    if state.stage == "f":
        return StageFailed(state.error or f"the stage of {lease.id!r} has failed before")
    if state.stage == "w" and state.run in ("active", "failed"):
        return None if state.signal is None else _without_its_signal(state.signal)
    return StageDropped(f"its flow run {'is ' + state.run if state.run else 'is gone'}")


def _without_its_signal(signal: AwaitedSignal) -> Outcome:
    """Return the outcome of a stage whose item is due, as it has waited long enough for its signal."""
    if signal.otherwise is UNSET:
        return StageFailed(f"SignalMissing: the signal {signal.name!r} has not come in time")
    return StageDone(bytes(signal.otherwise))


async def write_children(run: ActiveRun, value: Any) -> Any:
    """Write the children in what a function has returned, some in each turn of the event loop.

    Raise ResultMismatch if they cannot be added; of a batch, it is the answer to that item.
    """
    runs = run.handler.queue.whole.flow_runs
    if run.handler.batch is None:
        return await _with_texts(run.leases[0], value, runs)
    answers = list(value) if isinstance(value, list) else []
    for at, (lease, answer) in enumerate(zip(run.leases, answers, strict=False)):
        try:
            answers[at] = await _with_texts(lease, answer, runs)
        except ResultMismatch as error:
            answers[at] = error
    return answers or value


async def _with_texts(lease: Lease, value: Any, runs: FlowRuns) -> Any:
    """Return a value; if it is a `FanOut`, with the definitions of its children, as `child_text` has them."""
    if lease.stage is None or not isinstance(value, FanOut):
        return value
    texts: list[bytes] = []
    try:
        for child in value.children:
            texts.append(child_text(lease.stage, runs.placed(child, lease.stage.home)))
            if len(texts) % CHILDREN_PER_TURN == 0:
                await asyncio.sleep(0)
    except Exception as error:
        raise ResultMismatch(_name(lease), f"its children cannot be added: {describe(error)}") from error
    return FanOut(texts, value.join, value.returned)


def stage_done(run: ActiveRun, lease: Lease, value: Any) -> Outcome:
    """Return the outcome of a stage whose function has returned a value, also if that cannot be kept."""
    try:
        return _done(run, lease, value)
    except KeyboardInterrupt:
        raise
    except ResultMismatch as error:
        problem: LeasequeueError = error
    except BaseException as error:  # noqa: BLE001 - any error of a user's class
        problem = ResultError(lease.id, f"its result cannot be written: {describe(error)}")
    log.error("%r has failed: %s", run, problem, extra=run.log_fields)
    return StageFailed(describe(problem), _trace_of(run))


def _done(run: ActiveRun, lease: Lease, value: Any) -> Outcome:
    chosen: tuple[str, ...] | None = None
    may_return = run.handler.may_return
    for kind in (FanOut, Next):
        if isinstance(value, kind) and may_return is not None and not may_return(kind):
            raise ResultMismatch(_name(lease), f"its function does not say that it returns {kind.__name__}")
    if isinstance(value, Next):
        chosen, value = value.stages, value.value
        if isinstance(value, FanOut):
            raise ResultMismatch(_name(lease), "a stage that fans out cannot choose what follows")
    if isinstance(value, FanOut):
        if (problem := run.handler.fan_misfit(value)) is not None:
            raise ResultMismatch(_name(lease), problem)
        return _fanned(run, lease, value)
    written = codec.encode(value)
    if len(written) > MAX_DATA_BYTES:
        raise ValueError(f"it is {len(written)} bytes long; the maximum is {MAX_DATA_BYTES}")
    if run.handler.fits is not None:
        try:
            run.handler.fits(written)
        except Exception as error:
            raise ResultMismatch(
                _name(lease), f"{shown(value):.200} is no result of it: {text_of(error)}"
            ) from error
    return StageDone(written, chosen, _trace_of(run))


def _name(lease: Lease) -> str:
    return lease.id if lease.stage is None else lease.stage.path


def _trace_of(run: ActiveRun) -> bytes | None:
    return None if run.stages is None else run.stages.trace


def _fanned(run: ActiveRun, lease: Lease, value: FanOut[Any]) -> Outcome:
    if not value.children:
        if value.join.startswith("n:"):
            raise ResultMismatch(_name(lease), f"it has no children, and its join {value.join!r} needs some")
        return StageDone(b"[]", trace=_trace_of(run))
    return StageFanned(value.children, value.join, _trace_of(run))


def stage_failed(run: ActiveRun, lease: Lease, outcome: Outcome) -> Outcome:
    """Return what an outcome is for the item of a stage: if it is the final failure, one of the stage."""
    if lease.stage is None or not outcome.is_final or not isinstance(outcome, Fail):
        return outcome
    return StageFailed(outcome.error, _trace_of(run))

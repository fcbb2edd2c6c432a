"""The slots of a worker: each runs one run at a time, from its beginning to its outcome."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from leasehold.errors import TimeLimitExceeded
from leasehold.worker.outcomes import DONE, INTERRUPTED, Complete, Fail, Outcome, Signal, outcome_of, poisoned
from leasehold.worker.payload import encode_result
from leasehold.worker.run import Cut, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.worker.handler import Handler
    from leasehold.worker.keeper import Keeper

#: After so many runs without a pause the others in the event loop get their turn.
RUNS_PER_TURN = 32

log = logging.getLogger("leasehold.worker")


class Slots:
    """Runs what the keeper has waiting, so many at a time.

    Args:
        concurrency: How many runs at once.
        keeper: Where runs come from.
        ended: Called with each run when it has its outcomes.
    """

    def __init__(self, concurrency: int, keeper: Keeper, ended: Callable[[Run], None]) -> None:
        self._concurrency = concurrency
        self._keeper = keeper
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.running: set[Run] = set()
        #: How many runs have ended, cut off ones included.
        self.finished = 0
        self.cut_off = 0

    @property
    def free(self) -> int:
        """How many more runs could begin now."""
        return self._concurrency - len(self.running)

    def wake(self, count: int) -> None:
        """So many runs have arrived: let as many slots look."""
        while count > 0 and self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                count -= 1
        while count > 0 and len(self._tasks) < self._concurrency:
            task = asyncio.create_task(self._slot(), name="leasehold slot")
            self._tasks.add(task)
            task.add_done_callback(self._slot_ended)
            count -= 1

    async def finish(self, *, within: float, hurry: asyncio.Event) -> None:
        """Begin nothing more. Let what runs go on for so many seconds, or until told to hurry."""
        self._stopping = True
        self._wake_all()
        hurried = asyncio.create_task(hurry.wait())
        deadline = self._loop.time() + within
        while self._tasks and not hurried.done() and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait([*self._tasks, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        await self.cut_all()

    async def cut_all(self) -> None:
        """End all runs now. A thread cannot be ended: its item is given back all the same."""
        self._stopping = True
        self._wake_all()
        for run in list(self.running):
            run.end_early(Cut.STOP)
        if self._tasks:
            # A handler may take a moment to clean up, and no longer: the process is about to end.
            _, stuck = await asyncio.wait(self._tasks, timeout=5)
            for task in stuck:
                log.error("a handler does not end although it was cancelled: %r", task)

    def _wake_all(self) -> None:
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a slot of the worker has failed", exc_info=error)

    async def _slot(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a slot runs as a task")
        at = 0
        while not self._stopping:
            run = self._keeper.next_run()
            if run is None:
                idle: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            self.running.add(run)
            await self._perform(run, task)
            self.finished += 1
            if run.cut is not None:
                self._ended(run)
                await self._outlive(run.handler, task)
                self.running.discard(run)
            else:
                self.running.discard(run)
                self._ended(run)
            at += 1
            if at % RUNS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _outlive(self, handler: Handler, task: asyncio.Task[None]) -> None:
        """A thread cannot be cancelled: the slot is free when it has ended."""
        thread = handler.thread_of.pop(task, None)
        while thread is not None and not thread.done() and not self._stopping:  # noqa: ASYNC110 - either
            await asyncio.sleep(0.05)

    async def _perform(self, run: Run, task: asyncio.Task[None]) -> None:
        """Run the handler, and write down what is to become of each item."""
        if run.lost and len(run.lost) == len(run.leases):
            run.outcomes = [INTERRUPTED] * len(run.leases)  # nobody will ask for them
            return
        if run.handler.batch is None and run.attempt > run.handler.most_deliveries:
            run.outcomes = (poisoned(run.attempt),)
            return
        run.begin(task, self._loop)
        try:
            value = await run.handler.call(run)
        except asyncio.CancelledError as error:
            run.over()
            if run.cut is not None:
                task.uncancel()
            elif task.cancelling():
                run.cut = Cut.STOP  # the whole event loop is being torn down
            run.outcomes = self._after_cut(run, error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit: a handler does not end the worker
            run.over()
            run.outcomes = [_judge(run, at, error) for at in range(len(run.leases))]
            _tell(run, error)
        else:
            run.over()
            run.outcomes = _after_return(run, value)

    def _after_cut(self, run: Run, error: BaseException) -> list[Outcome]:
        if run.cut is Cut.LIMIT:
            error = TimeLimitExceeded(run.handler.timeout or 0)
            _tell(run, error)
        elif run.cut is not None:
            self.cut_off += 1
            log.info("%r was cut off: %s", run, run.cut.value)
            return [INTERRUPTED] * len(run.leases)
        return [_judge(run, at, error) for at in range(len(run.leases))]


def _after_return(run: Run, value: Any) -> list[Outcome] | tuple[Outcome]:
    if run.handler.batch is None:
        return (_complete(run, value),) if run.handler.keep_result is not None else (DONE,)
    outcomes: list[Outcome] = []
    for at, answer in enumerate(value):
        if isinstance(answer, BaseException):
            outcomes.append(_judge(run, at, answer))
            _tell(run, answer)
        elif run.leases[at].deliveries > run.handler.most_deliveries:
            outcomes.append(poisoned(run.leases[at].deliveries))
        else:
            outcomes.append(DONE if run.handler.keep_result is None else _complete(run, answer))
    return outcomes


def _complete(run: Run, value: Any) -> Outcome:
    try:
        return Complete(encode_result(value))
    except Exception as error:
        # Not again: the handler has done its work. Its result is what cannot be kept.
        log.exception("the result of %r cannot be written as JSON", run)
        return Fail(f"the handler returned what cannot be kept as a result: {error}", None)


def _judge(run: Run, at: int, error: BaseException) -> Outcome:
    return outcome_of(error, attempt=run.leases[at].deliveries, policy=run.handler.retry)


def _tell(run: Run, error: BaseException) -> None:
    if isinstance(error, Signal):
        log.info("%r: %s", run, error)
    else:
        log.warning("%r failed (attempt %d): %s: %s", run, run.attempt, type(error).__name__, error)

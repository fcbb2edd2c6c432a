"""The slots of a worker: each runs one run at a time, from its beginning to its outcome."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

from leasehold.errors import PayloadError, TimeLimitExceeded
from leasehold.log import Log
from leasehold.worker.outcomes import (
    DONE,
    INTERRUPTED,
    Complete,
    Fail,
    Outcome,
    Signal,
    in_short,
    outcome_of,
    poisoned,
)
from leasehold.worker.payload import encode_result
from leasehold.worker.run import Cut, Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from leasehold.worker.lease_renewer import LeaseRenewer

#: How long a handler that is cut off may take to clean up, and how long after a second signal (s).
CLEAN_UP_SECONDS, HURRIED_SECONDS = 3.0, 1.0
#: In each turn of the event loop so many slots begin, with so many runs each if these wait for nothing. Then
#: others get their turn: what has ended goes to the server, and more is taken, while the rest is run.
SLOTS_PER_TURN, RUNS_PER_SLOT = 4, 8

log = Log("leasehold.worker")


class Executor:
    """Runs what the renewer has waiting, so many at a time.

    Args:
        concurrency: How many runs at once.
        renewer: Where runs come from.
        ended: Called with each run when it has its outcomes.
        freed: Called when a slot is free later than its run had its outcomes.
        torn_down: Says whether the whole event loop is being torn down.
    """

    def __init__(
        self,
        concurrency: int,
        renewer: LeaseRenewer,
        *,
        ended: Callable[[Run], None],
        freed: Callable[[], None],
        torn_down: Callable[[], bool],
    ) -> None:
        self._concurrency = concurrency
        self._renewer = renewer
        self._ended = ended
        self._freed = freed
        self._torn_down = torn_down
        self._loop = asyncio.get_running_loop()
        #: What each run begins with: what one sets for itself, the next must not see.
        self._context = contextvars.copy_context()
        self._idle: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.running: set[Run] = set()
        #: How many runs have ended, cut off ones included.
        self.finished = 0
        #: How many runs did not come to their end because the worker stopped.
        self.cut_off = 0
        self._abandoned: set[Run] = set()
        #: Asked once, as this is between each run and the next.
        self._chatty = log.isEnabledFor(logging.DEBUG)

    @property
    def free(self) -> int:
        """How many more runs could begin now."""
        return self._concurrency - len(self.running)

    def wake(self) -> None:
        """Runs wait: let slots look, as many as may begin in this turn, and the others after it."""
        self._scheduled = False
        if self._stopping:
            return
        count = min(SLOTS_PER_TURN, len(self._renewer.waiting))
        while count > 0 and self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                count -= 1
        while count > 0 and len(self._tasks) < self._concurrency:
            task = self._loop.create_task(self._slot(), name="leasehold slot", context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._slot_ended)
            count -= 1
        if len(self._renewer.waiting) > SLOTS_PER_TURN and count == 0:
            self._wake_more()

    def _wake_more(self) -> None:
        """Wake others in the next turn. Whoever goes idle though runs wait calls this."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.wake)

    async def finish(self, *, within: float, hurry: asyncio.Event) -> None:
        """Begin nothing more. Let what runs go on for so many seconds, or until told to hurry."""
        self._stopping = True
        self._wake_all()
        hurried = asyncio.create_task(hurry.wait())
        deadline = self._loop.time() + within
        while self._tasks and not hurried.done() and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait([*self._tasks, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        await self.cut_all(clean_up=HURRIED_SECONDS if hurry.is_set() else CLEAN_UP_SECONDS)

    async def cut_all(self, *, clean_up: float = CLEAN_UP_SECONDS) -> None:
        """End all runs now. A thread cannot be ended: its item is given back all the same.

        Args:
            clean_up: How long a cancelled handler may take to clean up, in seconds. What runs on is given
                back while it does, since the process is about to end.
        """
        self._stopping = True
        self._wake_all()
        for run in list(self.running):
            run.end_early(Cut.STOP)
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=clean_up)
            if stuck:
                self._abandon()

    def _abandon(self) -> None:
        """Give back what is in the hands of handlers that go on although they were cancelled."""
        for run in list(self.running):
            if run.task is not None:
                log.error("%r goes on although it was cancelled; it is given back", run, extra=run.facts)
                self._abandoned.add(run)
                self.cut_off += 1
                run.outcomes = [INTERRUPTED] * len(run.leases)
                self._ended(run)

    def _wake_all(self) -> None:
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a slot of the worker has failed", exc_info=error)
            for run in [one for one in self.running if one.task is task]:
                run.over()
                run.outcomes = _judge_all(run, error)
                self.running.discard(run)
                self._ended(run)
        if self._renewer.waiting and not self._stopping:
            self.wake()

    async def _slot(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a slot runs as a task")
        at = 0
        while not self._stopping:
            run = self._renewer.next_run() if at < RUNS_PER_SLOT else None
            if run is None:
                if self._renewer.waiting:
                    self._wake_more()
                idle: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(idle)
                await idle
                at = 0
                continue
            self.running.add(run)
            await self._perform(run, task)
            if run in self._abandoned:
                break
            self.finished += 1
            if run.cut is not None and task.cancelling():
                task.uncancel()  # it was the run that was to end, not the slot
            if run.thread is not None:
                self._ended(run)
                await self._outlive(run.thread)
                self.running.discard(run)
                self._freed()
            else:
                self.running.discard(run)
                self._ended(run)
            if task.cancelling() or contextvars.copy_context() != self._context:
                break  # the run has left traces on this task: the next gets another one
            at += 1

    async def _outlive(self, thread: Future[Any]) -> None:
        """A thread cannot be cancelled: the slot is free when it has ended."""
        while not thread.done() and not self._stopping:  # noqa: ASYNC110 - either
            await asyncio.sleep(0.05)

    async def _perform(self, run: Run, task: asyncio.Task[None]) -> None:
        """Run the handler, and write down what is to become of each item."""
        if run.lost and len(run.lost) == len(run.leases):
            run.outcomes = [INTERRUPTED] * len(run.leases)  # nobody will ask for them
            return
        if run.attempt > run.handler.max_attempts:
            run.outcomes = (poisoned(run.attempt),)
            log.warning("%r: %s It is a dead letter now", run, run.outcomes[0].error, extra=run.facts)
            return
        if not run.begin(task, self._loop):
            run.outcomes = [INTERRUPTED] * len(run.leases)  # the server decides whether they are still ours
            return
        try:
            value = await run.handler.call(run)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit: a handler does not end the worker
            run.over()
            if run.cut is None and isinstance(error, asyncio.CancelledError) and self._torn_down():
                run.cut, self._stopping = Cut.STOP, True
            run.outcomes = self._after_error(run, error)
        else:
            run.over()
            run.outcomes = _after_return(run, value)
            if self._chatty:
                log.debug("%r is done", run, extra=run.facts)

    def _after_error(self, run: Run, error: BaseException) -> list[Outcome]:
        if run.cut is Cut.LIMIT and isinstance(error, asyncio.CancelledError):
            error = TimeLimitExceeded(run.handler.timeout or 0)
        elif run.cut in (Cut.STOP, Cut.LOST) and not isinstance(error, Signal):
            # Whatever it was that came of the cancelling: an interrupted run is no attempt.
            if run.cut is Cut.STOP:
                self.cut_off += 1
            log.warning("%r was cut off: %s", run, run.cut.value, extra=run.facts)
            return [INTERRUPTED] * len(run.leases)
        return _judge_all(run, error)


def _after_return(run: Run, value: Any) -> list[Outcome] | tuple[Outcome]:
    if run.handler.batch is None:
        return (_complete(run, value),) if run.handler.keep_result is not None else (DONE,)
    if value is None:
        value = [None] * len(run.leases)
    if not isinstance(value, list) or len(value) != len(run.leases):
        problem = f"middleware gave {value!r:.60} as the answers of a batch of {len(run.leases)}"
        return _judge_all(run, TypeError(problem))
    outcomes: list[Outcome] = []
    for at, answer in enumerate(value):
        if isinstance(answer, BaseException):
            outcomes.append(_judge(run, at, answer))
            _tell(run, answer, outcomes[-1:])
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
    return outcome_of(error, attempt=run.leases[at].attempt, policy=run.handler.retry)


def _judge_all(run: Run, error: BaseException) -> list[Outcome]:
    outcomes = [_judge(run, at, error) for at in range(len(run.leases))]
    _tell(run, error, outcomes)
    return outcomes


def _tell(run: Run, error: BaseException, outcomes: list[Outcome]) -> None:
    """One line for what went wrong, with the traceback when there is no further attempt."""
    dead = [one for one in outcomes if isinstance(one, Fail) and one.retry_in is None]
    if isinstance(error, Signal) and not dead:
        log.info("%r: %s", run, in_short(error), extra=run.facts)
        return
    if dead:
        then = "a dead letter now" if len(outcomes) == 1 else f"{len(dead)} dead letters now"
    else:
        waits = [one.retry_in or 0.0 for one in outcomes if isinstance(one, Fail)]
        then = f"retry in {max(waits, default=0.0):.1f} s"
    what = in_short(error)
    trace = error if dead and not isinstance(error, (Signal, PayloadError)) else None
    log.warning(
        "%r failed (attempt %d): %s; %s", run, run.attempt, what, then, extra=run.facts, exc_info=trace
    )

"""Run handlers in slots, one run at a time in each."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from leasequeue import telemetry
from leasequeue.errors import LeasequeueError, PayloadError, ResultMismatch, TimeLimitExceeded
from leasequeue.errors.describing import describe, shown, traceback_of
from leasequeue.errors.log import Log
from leasequeue.worker.observed import begin, end
from leasequeue.worker.outcomes import (
    DONE,
    INTERRUPTED,
    Complete,
    Fail,
    Outcome,
    Signal,
    attempts_used_up,
    consequences,
    outcome_of,
)
from leasequeue.worker.payload import encode_error
from leasequeue.worker.run import RUNNING, Interruption
from leasequeue.worker.stage_context import CURRENT, FanOut, Next, correlation_id
from leasequeue.worker.stages import (
    EntryReader,
    prepare,
    stage_done,
    stage_failed,
    write_children,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.worker.cancellations import Cancellations
    from leasequeue.worker.handler import Handler
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.parking import Parking
    from leasequeue.worker.run import ActiveRun

#: How long a cancelled handler may take to clean up, and how long after a second signal (s).
CLEAN_UP_SECONDS, HURRIED_SECONDS = 3.0, 1.0
#: In each turn of the event loop so many slots start, with so many runs each if these await nothing. In
#: between, finished runs are sent to the server and more items are fetched.
SLOTS_PER_TURN, RUNS_PER_SLOT = 4, 8
#: How long an item waits if its outcome cannot be decided, since its retry policy raises an error (s).
RETRY_SECONDS = 1.0
#: The outcomes of a run that is no batch and keeps no result.
ONE_DONE = (DONE,)
#: What a function may return only for a stage of a flow run.
STAGE_RETURNS = (FanOut, Next)
#: The interruptions after which it does not matter what the handler raises.
UNCOUNTED = (Interruption.SHUTDOWN, Interruption.LEASE_LOST, Interruption.CANCELLED)

log = Log("leasequeue.worker")


class Work:
    """How much a worker has done of what a handler is for.

    Attributes:
        seconds: For how many seconds they ran, all together.
        squares: The sum of the squares of the seconds that each item took. Each item of a batch counts as if
            it had taken its part of the time.
    """

    __slots__ = ("items", "seconds", "squares")

    def __init__(self) -> None:
        self.items = 0
        self.seconds = 0.0
        self.squares = 0.0


class Executor:
    """Executes the runs that wait in the lease renewer, up to `concurrency` at once.

    Args:
        on_finished: Called with each run that has its outcomes.
        on_freed: Called when a thread that outlived its run has ended.
        on_failure: Called with the error of a slot that may have lost an outcome.
        is_torn_down: Tells whether all tasks of the event loop are being cancelled.

    Attributes:
        running: The runs that occupy a slot, by the task of the slot.
        finished: How many runs have ended, interrupted ones included.
        ran: For how many seconds those that were called ran, all together.
        log_runs: Whether each run that has returned is a line of the log.
        work: The runs that were called, by their handlers.
        interrupted: How many runs were interrupted because the worker stopped.
    """

    def __init__(
        self,
        concurrency: int,
        renewer: LeaseRenewer,
        cancellations: Cancellations,
        parking: Parking,
        *,
        on_finished: Callable[[ActiveRun], None],
        on_freed: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        is_torn_down: Callable[[], bool],
    ) -> None:
        self._concurrency = concurrency
        self._parking = parking
        self._processes = parking.processes
        self._cancellations = cancellations
        self._renewer = renewer
        self._on_finished = on_finished
        self._on_freed = on_freed
        self._on_failure = on_failure
        self._is_torn_down = is_torn_down
        self.calls: Mapping[Handler, Callable[[ActiveRun], Awaitable[Any]]] = {}
        self._loop = asyncio.get_running_loop()
        #: The context in which each slot starts: what a run sets must not reach the next run.
        self._context = contextvars.copy_context()
        self._idle: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._stages = EntryReader()
        self._stopping = False
        self.running: dict[asyncio.Task[None], ActiveRun] = {}
        self.finished = 0
        self.ran = 0.0
        self.work: defaultdict[Handler, Work] = defaultdict(Work)
        self.interrupted = 0
        self._abandoned: set[ActiveRun] = set()
        #: Read once, since it is needed after each run.
        self.log_runs = False
        self._debug = log.isEnabledFor(logging.DEBUG)
        telemetry.count_runs(self.active_runs)

    def active_runs(self) -> dict[tuple[str, str], int]:
        """Return how many runs occupy a slot, by queue and handler; callable from any thread."""
        counts = {(one.queue.whole.name, one.name): 0 for one in [*self.calls]}
        for run in [*self.running.values()]:
            key = run.handler.queue.whole.name, run.handler.name
            counts[key] = counts.get(key, 0) + 1
        return counts

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._concurrency - len(self.running)

    def wake(self) -> None:
        """Start runs that wait: some in this turn of the event loop, and the others after it."""
        self._scheduled = False
        if self._stopping:
            return
        startable = self._startable()
        count = min(SLOTS_PER_TURN, startable)
        while count > 0 and self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                count -= 1
        while count > 0 and len(self._tasks) < self._concurrency:
            task = self._loop.create_task(self._slot(), name="leasequeue slot", context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._slot_ended)
            count -= 1
        if startable > SLOTS_PER_TURN and count == 0:
            self._wake_later()

    def _startable(self) -> int:
        """Return how many runs a slot may find, with those that wait for a process as far as one is free."""
        parked = self._renewer.parked
        return len(self._renewer.waiting) + (min(len(parked), self._processes.free) if parked else 0)

    def _wake_later(self) -> None:
        """Wake slots in the next turn. A slot that becomes idle although runs wait calls this."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.wake)

    def stop(self) -> None:
        """Start no more runs."""
        self._stopping = True

    async def finish(self, *, within: float, hurry: asyncio.Event) -> None:
        """Start no more runs. Wait up to `within` seconds, or until `hurry` is set, for the current ones."""
        self.stop()
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        hurried = asyncio.create_task(hurry.wait())
        deadline = self._loop.time() + within
        while self._tasks and not hurried.done() and (left := deadline - self._loop.time()) > 0:
            limit = None if left == math.inf else left
            await asyncio.wait([*self._tasks, hurried], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        # This ends the run of a thread as well, and releases its item, although the thread itself continues.
        for run in self.running.values():
            run.interrupt(Interruption.SHUTDOWN)
        if self._tasks:
            clean_up = HURRIED_SECONDS if hurry.is_set() else CLEAN_UP_SECONDS
            await asyncio.wait(self._tasks, timeout=clean_up)
            self._abandon()

    def _abandon(self) -> None:
        """Release the items of handlers that keep running although they were cancelled."""
        for run in [one for one in self.running.values() if one.task is not None]:
            log.error("%r keeps running although it was cancelled; it is released", run, extra=run.log_fields)
            self._abandoned.add(run)
            self.interrupted += 1
            run.outcomes = [INTERRUPTED] * len(run.leases)
            self._on_finished(run)

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if (run := self.running.pop(task, None)) is None:
                self._on_failure(error)  # an outcome may have been lost
                return
            log.critical("a slot of the worker failed", exc_info=error)
            run.finish()
            run.outcomes = [_decide(run, error, lease) for lease in run.leases]
            self._on_finished(run)
        if not self._stopping and self._startable():
            self.wake()

    async def _slot(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a slot runs as a task")
        count = 0
        while not self._stopping:
            run = self._next() if count < RUNS_PER_SLOT else None
            if run is None:
                if self._startable():
                    self._wake_later()
                idle: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(idle)
                await idle
                count = 0
                continue
            self.running[task] = run
            await self._work_on(run, task)
            if run in self._abandoned:
                break
            self.finished += 1
            if run.interruption is not None and task.cancelling():
                task.uncancel()  # the run was to be cancelled, not the slot
            if run.thread is not None:
                self._on_finished(run)
                while not run.thread.done() and not self._stopping:  # noqa: ASYNC110 - either
                    await asyncio.sleep(0.05)  # keep the slot, since the thread cannot be cancelled
                del self.running[task]
                self._on_freed()
            else:
                del self.running[task]
                self._on_finished(run)
            if task.cancelling() or contextvars.copy_context() != self._context:
                break  # the run has changed the state of this task: the next run gets another task
            count += 1

    def _next(self) -> ActiveRun | None:
        """Return the run that is to start now; None if none can.

        One that needs a process is lent it before its time limit begins. If none is free, it is parked.
        """
        parked = self._renewer.parked
        if parked and (process := self._processes.lend()) is not None:
            run = parked.popleft()
            run.process = process
            return run
        while (next_run := self._renewer.pop()) is not None:
            if next_run.handler.run_in != "process":
                return next_run
            next_run.process = self._processes.lend()
            if next_run.process is not None:
                return next_run
            self._parking.park(next_run)
        return None

    async def _work_on(self, run: ActiveRun, task: asyncio.Task[None]) -> None:
        """Call the handler, set the outcomes of the run, and take back its process."""
        try:
            await (self._execute(run, task) if run.stages is None else self._execute_stages(run, task))
        finally:
            if run.process is not None:
                ran = time.monotonic() - run.began if run.began else None
                self._processes.take_back(run.process, ran)
                run.process = None

    async def _execute(self, run: ActiveRun, task: asyncio.Task[None]) -> None:
        if not self._start(run, task):
            return
        running = RUNNING.set(run)
        correlation = run.correlation
        correlated = None if correlation is None else correlation_id.set(correlation)
        active = telemetry.active
        span = None if active is None or active.tracer is None else begin(active, run)
        failure: BaseException | None = None
        try:
            value = await self.calls[run.handler](run)
            value = value if run.stages is None else await write_children(run, value)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit: a handler must not end the worker
            run.finish()
            cancelled = run.interruption is None and isinstance(error, asyncio.CancelledError)
            if cancelled and self._is_torn_down():
                run.interruption, self._stopping = Interruption.SHUTDOWN, True
            failure = _cause(run, error)
            run.outcomes = self._after_error(run, failure)
        else:
            run.finish()
            run.outcomes = _after_return(run, value)
            if self.log_runs or self._debug:
                self._log_return(run)
        finally:
            RUNNING.reset(running)
            if correlated is not None:
                correlation_id.reset(correlated)
            ended = time.monotonic()
            seconds, items = ended - run.began, len(run.leases)
            work = self.work[run.handler]
            self.ran += seconds
            work.items += items
            work.seconds += seconds
            work.squares += seconds * seconds / items
            if active is not None:
                end(active, span, run, failure, ended)

    async def _execute_stages(self, run: ActiveRun, task: asyncio.Task[None]) -> None:
        """Do as `_execute` for stages of flow runs, unless these do not need it."""
        try:
            if run.stages is None or not await prepare(run, self._stages):
                return
        except LeasequeueError as error:
            run.outcomes = _decide_all(run, error)
            return
        entered = CURRENT.set(run.stages.only)
        try:
            await self._execute(run, task)
        finally:
            CURRENT.reset(entered)

    def _start(self, run: ActiveRun, task: asyncio.Task[None]) -> bool:
        """Return whether the handler is to be called; if not, the run has its outcomes."""
        self._cancellations.check(run)
        if run.lost:
            if len(run.lost) == len(run.leases):
                run.outcomes = [INTERRUPTED] * len(run.leases)  # they will be discarded
                return False
            run.leave_out_lost()
        if run.interruption is not None:  # while its flow run was read
            run.outcomes = self._after_error(run, asyncio.CancelledError())
            return False
        if run.attempt > run.handler.max_attempts:
            outcome = attempts_used_up(run.attempt)
            run.outcomes = (stage_failed(run, run.leases[0], outcome),)
            log.warning("%r: %s It is now a dead letter", run, outcome.error, extra=run.log_fields)
            return False
        if not run.start(task, self._loop):
            run.outcomes = [INTERRUPTED] * len(run.leases)  # the server rejects those whose lease has expired
            return False
        return True

    def _log_return(self, run: ActiveRun) -> None:
        ran = time.monotonic() - run.began
        level = logging.INFO if self.log_runs else logging.DEBUG
        log.log(level, "%r returned after %.3f s", run, ran, extra={**run.log_fields, "seconds": ran})

    def _after_error(self, run: ActiveRun, error: BaseException) -> Sequence[Outcome]:
        why = run.interruption
        if why in UNCOUNTED and not isinstance(error, Signal):
            # Any error may follow from the cancellation, so that the run does not count as an attempt.
            if why is Interruption.SHUTDOWN:
                self.interrupted += 1
            level = logging.INFO if why is Interruption.CANCELLED else logging.WARNING
            log.log(level, "%r was interrupted: %s", run, why.value, extra=run.log_fields)
            return [INTERRUPTED] * len(run.leases)
        return _decide_all(run, error)


def _cause(run: ActiveRun, error: BaseException) -> BaseException:
    """Return what a run has failed with: if its time limit has cancelled it, an error that says so."""
    if run.interruption is Interruption.TIMEOUT and isinstance(error, asyncio.CancelledError):
        return TimeLimitExceeded(run.handler.timeout or 0)
    return error


def _after_return(run: ActiveRun, value: Any) -> Sequence[Outcome]:
    if run.handler.batch is None:
        if value is None and run.handler.keep_result is None and run.stages is None:
            return ONE_DONE
        return (_complete(run, run.leases[0], value),)
    if value is None:
        value = [None] * len(run.leases)
    answers = value if isinstance(value, list) else []
    if len(answers) != len(run.leases):
        problem = f"middleware returned {shown(value):.60} as the answers of a batch of {len(run.leases)}"
        return _decide_all(run, TypeError(problem))
    outcomes: list[Outcome] = []
    for lease, answer in zip(run.leases, answers, strict=True):
        if isinstance(answer, BaseException):
            outcomes.append(_decide(run, answer, lease))
            _log_error(run, answer, outcomes[-1:])
        else:
            outcomes.append(_complete(run, lease, answer))
    return outcomes


def _complete(run: ActiveRun, lease: Lease, value: Any) -> Outcome:
    if run.stages is not None and lease.stage is not None:
        return stage_done(run, lease, value)
    keep = run.handler.keep_result
    if type(value) in STAGE_RETURNS:
        return _decide(run, ResultMismatch(lease.id, f"{value!r:.100}: it is no stage of a flow run"), lease)
    if keep is None:
        return DONE
    try:
        return run.handler.returned_none if value is None else Complete(run.handler.encode(value), keep)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The handler has done its work: neither a retry nor a dead letter would be right.
        log.exception("%r is completed, but its result cannot be written as JSON", run)
        return Complete(encode_error("ResultError", f"the result cannot be written: {describe(error)}"), keep)


def _decide_all(run: ActiveRun, error: BaseException) -> list[Outcome]:
    outcomes = [_decide(run, error, lease) for lease in run.leases]
    _log_error(run, error, outcomes)
    return outcomes


def _decide(run: ActiveRun, error: BaseException, lease: Lease) -> Outcome:
    """Decide the outcome of an item, also if its retry policy or the signal that was raised is broken."""
    outcome = _decide_any(run, error, lease.attempt)
    return outcome if run.stages is None else stage_failed(run, lease, outcome)


def _decide_any(run: ActiveRun, error: BaseException, attempt: int) -> Outcome:
    try:
        return outcome_of(error, attempt, run.handler.retry)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        log.exception("the outcome of %r cannot be decided; it counts as failed", run)
        text = f"{traceback_of(error)}\nIts outcome could not be decided:\n{traceback_of(problem)}"
        return Fail(text, None if attempt >= run.handler.max_attempts else RETRY_SECONDS)


def _log_error(run: ActiveRun, error: BaseException, outcomes: Sequence[Outcome]) -> None:
    """Log one line, with the traceback of an unexpected error if there is no further attempt."""
    final = any(outcome.is_final for outcome in outcomes)
    unexpected = not isinstance(error, (Signal, PayloadError))
    failed = final or not isinstance(error, Signal)
    log.log(
        logging.WARNING if failed else logging.INFO,
        "%r %s (%s): %s; %s",
        run,
        "failed" if failed else "ended",
        f"attempt {run.attempt}" if outcomes[0].is_attempt else "not an attempt",
        describe(error),
        consequences(outcomes),
        extra=run.log_fields,
        exc_info=error if final and unexpected else None,
    )

"""The processes that run handlers with `run_in="process"`: at most one for each core, started ahead, kept.

A process costs as much as an interpreter and the modules of the handlers. So there are never more than
`maximum`, but always one more than is needed, as long as there may be: one starts with the worker, and
another one when it gets its first call. None starts within the time limit of a run.

Two libraries were weighed. `anyio.to_process` starts a process when a run is already waiting for it, forgets
idle ones, hides what they print, and kills through asyncio, whose watcher of child processes then finds that
the transport has reaped the process before ("Unknown child process pid"). A pool of `concurrent.futures`
breaks as a whole when one process is killed, and starts one more to track its semaphores.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any

from leasequeue import telemetry
from leasequeue.errors import InvalidArgument
from leasequeue.worker.handler_process import END_SECONDS, HandlerProcess
from leasequeue.worker.run import RUNNING
from leasequeue.worker.stage_context import CURRENT, correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: As many runs are kept here for the processes as will start within this time (s).
KEPT_SECONDS = 1.0
#: A run counts as no shorter than this (s).
SHORTEST_RUN = 0.0001
#: The weight of a new run in the moving average of how long they take.
WEIGHT_OF_NEW = 0.1


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


class Processes:
    """Starts processes, and lends them to runs. Only the event loop may use it.

    `freed` is called when a process becomes free.

    Attributes:
        taken_at: When a process was last lent, by `time.monotonic()`.
    """

    def __init__(self, maximum: int, freed: Callable[[], None]) -> None:
        self.maximum = maximum
        self.taken_at = time.monotonic()
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._functions: list[bytes] = []
        self._all: set[HandlerProcess] = set()
        self._idle: list[HandlerProcess] = []
        self._seconds = math.inf

    def warm_up(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Start the first process, and let processes that start import the modules of these functions."""
        self._functions += [pickle.dumps(function) for function in functions]
        if functions:
            self.want(0)

    def want(self, waiting: int) -> None:
        """Start processes, if there may be more, for so many runs that wait, and one ahead."""
        busy = sum(one.is_lent for one in self._all)
        while len(self._all) < min(self.maximum, busy + waiting + 1):
            self._all.add(HandlerProcess(self._loop, self._ready, self._functions))

    @property
    def free(self) -> int:
        """How many processes can begin a run now."""
        return len(self._idle)

    @property
    def pause(self) -> float:
        """How long it takes on average until the next of all processes is free, in seconds."""
        return self._seconds / self.maximum

    @property
    def keeps(self) -> int:
        """How many runs should wait here: those that start soon, and one for each process."""
        return self.maximum + int(KEPT_SECONDS / self.pause)

    def lend(self) -> HandlerProcess | None:
        """Reserve a process for a run until it is taken back; return None if none is free."""
        while self._idle:
            process = self._idle.pop()
            if process.lend():
                self.taken_at = time.monotonic()
                self.want(0)
                return process
        return None

    def take_back(self, process: HandlerProcess, ran: float | None) -> None:
        """Let others have the process of a run that has ended, after so many seconds if it had begun."""
        process.is_lent = False
        if ran is not None:
            ran = max(SHORTEST_RUN, ran)
            old = ran if math.isinf(self._seconds) else self._seconds
            self._seconds = old + WEIGHT_OF_NEW * (ran - old)
        self._ready(process)

    async def close(self) -> None:
        """Kill all processes, and wait until they have ended."""
        ending, self._all = self._all, set()
        self._idle.clear()
        for process in ending:
            process.close()
        deadline = time.monotonic() + END_SECONDS
        while any(one.thread.is_alive() for one in ending) and time.monotonic() < deadline:  # noqa: ASYNC110 - threads
            await asyncio.sleep(0.005)

    def _ready(self, process: HandlerProcess) -> None:
        if process.usable and not process.is_lent and process in self._all:
            self._idle.append(process)
            self._freed()


def in_process(function: Callable[..., Any], name: str) -> Any:
    """Return what calls a function in the process that is given first."""
    try:
        pickle.dumps(function)
    except Exception as error:
        raise InvalidArgument(
            "handler",
            name,
            f"for a process, a function of a module, and resources that can be pickled: {error}",
        ) from error

    async def invoke(process: HandlerProcess, /, *payload: Any, **names: Any) -> Any:
        trace = None if telemetry.active is None else telemetry.active.current_trace()
        run = RUNNING.get()
        logs = None if run is None else run.logs
        about = run and (run.record_fields, logs and logs.limit)
        around = trace, CURRENT.get(), correlation_id.get(), about
        answer = await process.call(pickle.dumps((function, payload, names, around)), logs)
        value, raised = pickle.loads(answer)  # noqa: S301 - pickled by our own process
        if raised is not None:
            error: BaseException = pickle.loads(raised)  # noqa: S301 - the same
            raise error
        return value

    return invoke

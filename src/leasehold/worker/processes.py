"""The processes that run handlers with `run_in="process"`: at most one for each core, started ahead, kept.

A process costs as much as an interpreter and the modules of the handlers. So there are never more than
`maximum`, but always one more than is needed, as long as there may be: one starts with the worker, and
another one when it gets its first call. None starts within the time limit of a run.

Two libraries were weighed. `anyio.to_process` starts a process when a run is already waiting for it, forgets
idle ones, hides what they print, and kills through asyncio, whose watcher of child processes then finds that
the transport has reaped the process before ("Unknown child process pid"). A pool of `concurrent.futures`
breaks as a whole when one process is killed, and starts one more to track its semaphores. Here, a thread for
each process starts it, sends it calls, and is the only one that reaps it. How a new interpreter gets the
paths and the main module of this one, by multiprocessing's rules for `spawn`, is left to multiprocessing.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import BrokenWorkerProcess

from leasehold import telemetry
from leasehold.errors import InvalidArgument
from leasehold.log import Log
from leasehold.retry import Backoff
from leasehold.worker.child import IGNORED
from leasehold.worker.stage_context import CURRENT, correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: What a process runs: it takes over the paths before it imports anything of ours.
PROGRAM = (
    "import sys; from multiprocessing.connection import Connection; "
    "connection = Connection(int(sys.argv[1])); sys.path[:] = connection.recv(); "
    "from leasehold.worker.child import serve; serve(connection)"
)
#: The first and the longest pause after a process that did not start (s).
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
#: How long a process may take to end after it has closed its connection (s).
END_SECONDS = 1.0
#: As many runs are kept here for the processes as will start within this time (s).
KEPT_SECONDS = 1.0
#: A run counts as no shorter than this (s).
SHORTEST_RUN = 0.0001
#: The weight of a new run in the moving average of how long they take.
WEIGHT_OF_NEW = 0.1

log = Log("leasehold.worker")


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


class Processes:
    """Starts processes, and lends them to runs. Only the event loop may use it.

    Args:
        maximum: How many there may be.
        freed: Called when a process becomes free.

    Attributes:
        maximum: How many there may be.
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

    def close(self) -> None:
        """Kill all processes."""
        for process in self._all:
            process.close()
        self._all.clear()
        self._idle.clear()

    def _ready(self, process: HandlerProcess) -> None:
        if process.usable and not process.is_lent and process in self._all:
            self._idle.append(process)
            self._freed()


class _Call:
    __slots__ = ("future", "request")

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.future: Future[bytes] = Future()


class HandlerProcess:
    """A process, and the thread that starts it, again if it has died, and sends it calls.

    Args:
        loop: The event loop of the worker.
        ready: Called in the event loop when the process can take a call, at first and after it has died.
        functions: The pickled functions of the handlers.

    Attributes:
        is_lent: Whether it is reserved for a run.
        usable: Whether it can take a call, as far as is known.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ready: Callable[[HandlerProcess], None],
        functions: Sequence[bytes],
    ) -> None:
        self.is_lent = False
        self.usable = False
        self._loop = loop
        self._on_ready = ready
        self._functions = functions
        #: None: look whether the process still lives, or is to end.
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        #: Held to change the next four, or to act on them.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._current: _Call | None = None
        self._is_killed = False
        self._is_closed = False
        # Linux kills a process when the thread that has started it ends: so it is this one.
        threading.Thread(target=self._work, name="leasehold process", daemon=True).start()

    # ------------------------------------------------------------------ event loop of the worker

    def lend(self) -> bool:
        """Reserve the process for a run; return False if it has died meanwhile, and starts anew."""
        if self._process is None or self._process.poll() is not None:
            self.usable = False
            self._calls.put(None)
            return False
        self.is_lent = True
        return True

    async def call(self, request: bytes) -> bytes:
        """Send a call, and return its answer. If this is cancelled, the process is killed, and starts anew.

        Raises:
            BrokenWorkerProcess: If the process ends before it has answered.
        """
        call = _Call(request)
        self._calls.put(call)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            self._kill(call)
            raise

    def close(self) -> None:
        """Kill the process for good."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
        self.usable = False
        self._calls.put(None)

    def _kill(self, call: _Call) -> None:
        """Kill the process if it works on this call."""
        with self._lock:
            if self._current is call and self._process is not None:
                self.usable = False
                self._is_killed = True
                self._process.kill()
            else:
                call.future.cancel()

    # ------------------------------------------------------------------ its thread

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)  # for the process, until it ignores them
        backoff = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        while not self._is_closed:
            ours, theirs = Pipe()
            with ours:
                try:
                    self._start(ours, theirs)
                except (OSError, EOFError) as error:
                    how = self._end(error)
                    if not self._is_closed:
                        log.error("a process for handlers does not start (it %s); trying again", how)  # noqa: TRY400 - it is no error of this process
                        time.sleep(backoff.next())
                    continue
                backoff.reset()
                self._tell(usable=True)
                while self._serve(ours):
                    pass
            self._tell(usable=False)
            self._end(None)

    def _start(self, ours: Connection, theirs: Connection) -> None:
        """Start the process, and return when it is ready.

        Raises:
            OSError, EOFError: If it does not start, or ends.
        """
        with theirs, self._lock:
            if self._is_closed:
                raise EOFError
            self._is_killed = False
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with our own program
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        ours.send(sys.path)
        ours.send_bytes(pickle.dumps((os.getpid(), _preparation(), [*self._functions])))
        ours.recv_bytes()

    def _serve(self, connection: Connection) -> bool:
        """Wait for a call, and have it answered; return whether the process can take another one."""
        call = self._calls.get()
        with self._lock:
            if self._is_closed or self._process is None:
                if call is not None:
                    call.future.cancel()
                return False
            if call is None:
                return self._process.poll() is None
            if not call.future.set_running_or_notify_cancel():
                return True
            self._current = call
        answer: bytes | None = None
        try:
            connection.send_bytes(call.request)
            answer = connection.recv_bytes()
        except (OSError, EOFError):
            self._tell(usable=False)
        with self._lock:
            self._current = None
        if answer is None:
            call.future.set_exception(BrokenWorkerProcess(f"the process of the handler {self._end(None)}"))
            return False
        call.future.set_result(answer)
        return not self._is_killed

    def _end(self, error: Exception | None) -> str:
        """Reap the process, and return how it has ended."""
        process = self._process
        if process is None:
            return str(error)
        try:
            code = process.wait(END_SECONDS if error is None else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _tell(self, *, usable: bool) -> None:
        """Let the event loop know, before it learns what has become of the call."""
        try:
            self._loop.call_soon_threadsafe(self._set_usable, usable)
        except RuntimeError:  # the event loop is closed
            self._is_closed = True

    def _set_usable(self, usable: bool) -> None:  # noqa: FBT001 - call_soon_threadsafe gives no names
        self.usable = usable
        if usable:
            self._on_ready(self)


def _preparation() -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` is to be told of this process.

    `get_preparation_data` would fix the start method of the user's own processes.
    """
    data: dict[str, Any] = {"sys_path": sys.path, "sys_argv": sys.argv}
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        data["init_main_from_name"] = name
    elif path is not None:
        data["init_main_from_path"] = str(Path(path).absolute())
    return data


def in_process(function: Callable[..., Any], name: str) -> Any:
    """Return what calls a function in the process that is given first.

    Raises:
        InvalidArgument: If the function cannot be sent to another process.
    """
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
        around = trace, CURRENT.get(), correlation_id.get()
        answer = await process.call(pickle.dumps((function, payload, names, around)))
        value, raised = pickle.loads(answer)  # noqa: S301 - pickled by our own process
        if raised is not None:
            error: BaseException = pickle.loads(raised)  # noqa: S301 - the same
            raise error
        return value

    return invoke

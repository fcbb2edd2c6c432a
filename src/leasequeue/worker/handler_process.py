"""One process that runs handlers, and the thread that starts it, sends it calls, and alone reaps it.

How a new interpreter gets the paths and the main module of this one, by multiprocessing's rules for `spawn`,
is left to multiprocessing.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import BrokenWorkerProcess

from leasequeue.durations import Backoff
from leasequeue.errors.log import Log
from leasequeue.worker.child import IGNORED, RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasequeue.queue.run_logs import RunLogs

#: What a process runs: it takes over the paths before it imports anything of ours.
PROGRAM = (
    "import sys; from multiprocessing.connection import Connection; "
    "connection = Connection(int(sys.argv[1])); sys.path[:] = connection.recv(); "
    "from leasequeue.worker.child import serve; serve(connection)"
)
#: The longest pause after a process that did not start (s).
LONGEST_PAUSE = 5.0
#: How long a process may take to end after it has closed its connection (s).
END_SECONDS = 1.0
#: How often to look whether a process lives that works, if what it has started holds its connection (s).
LOOK_SECONDS = 0.5
#: Why a call has failed that came after the end of the worker.
CLOSED = "the worker has ended"

log = Log("leasequeue.worker")


class _Call:
    __slots__ = ("future", "logs", "request")

    def __init__(self, request: bytes, logs: RunLogs | None) -> None:
        self.request = request
        self.logs = logs
        self.future: Future[bytes] = Future()


class HandlerProcess:
    """A process, and the thread that starts it, again if it has died, and sends it calls.

    `ready` is called in the event loop when the process can take a call, at first and after it has died.

    Attributes:
        is_lent: Whether it is reserved for a run.
        usable: Whether it can take a call, as far as is known.
        thread: Its thread, which ends when the process has ended and no other is to follow.
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
        #: Held to change the next three, or to act on them, and to close.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._current: _Call | None = None
        self._is_killed = False
        self._closed = threading.Event()
        # Linux kills a process when the thread that has started it ends: so it is this one.
        self.thread = threading.Thread(target=self._work, name="leasequeue process", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------------ event loop of the worker

    def lend(self) -> bool:
        """Reserve the process for a run; return False if it has died, and starts again."""
        if self._process is None or self._process.poll() is not None:
            self.usable = False
            self._calls.put(None)
            return False
        self.is_lent = True
        return True

    async def call(self, request: bytes, logs: RunLogs | None = None) -> bytes:
        """Send a call, and return its answer. If this is cancelled, the process is killed, and starts again.

        `logs` is given the log records that the process sends until then.

        Raise BrokenWorkerProcess if the process ends before it has answered, or has been closed.
        """
        call = _Call(request, logs)
        with self._lock:
            if self._closed.is_set():
                raise BrokenWorkerProcess(CLOSED)
            self._calls.put(call)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            self._kill(call)
            raise

    def close(self) -> None:
        """Kill the process, and start no other."""
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.kill()
        self.usable = False
        self._calls.put(None)

    def _kill(self, call: _Call) -> None:
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
        backoff = Backoff(longest=LONGEST_PAUSE)
        while not self._closed.is_set():
            try:
                connection = self._start()
            except Exception as error:
                how, is_clear = self._end(error), isinstance(error, (OSError, EOFError))
                if not self._closed.is_set():
                    log.error(  # noqa: TRY400 - most are no errors of this process
                        "a process for handlers does not start (it %s); trying again",
                        how,
                        exc_info=None if is_clear else error,
                    )
                    self._closed.wait(backoff.next())
                continue
            with connection:
                backoff.reset()
                self._tell(usable=True)
                while self._serve(connection):
                    pass
            self._tell(usable=False)
            self._end(None)

    def _start(self) -> Connection:
        """Start the process, and return the connection to it when it is ready.

        Raise OSError or EOFError if it does not start, or ends.
        """
        with self._lock:
            self._process = None
        ours, theirs = Pipe()
        try:
            with theirs:
                self._spawn(theirs)
            ours.send(sys.path)
            ours.send_bytes(pickle.dumps((os.getpid(), _preparation(), [*self._functions])))
            self._receive(ours)
        except BaseException:
            ours.close()
            raise
        return ours

    def _spawn(self, theirs: Connection) -> None:
        with self._lock:
            if self._closed.is_set():
                raise EOFError
            self._is_killed = False
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with our own program
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def _receive(self, connection: Connection) -> bytes:
        """Return what the process sends; raise OSError or EOFError if it ends before."""
        while not connection.poll(LOOK_SECONDS):
            if self._process is None or (self._process.poll() is not None and not connection.poll()):
                raise EOFError
        return connection.recv_bytes()

    def _serve(self, connection: Connection) -> bool:
        """Wait for a call, and have it answered; return whether the process can take another one."""
        call = self._calls.get()
        if call is not None and not call.future.set_running_or_notify_cancel():
            return True
        with self._lock:
            is_closed = self._closed.is_set()
            self._current = None if is_closed else call
        if call is None:
            return not is_closed and self._process is not None and self._process.poll() is None
        if is_closed:
            call.future.set_exception(BrokenWorkerProcess(CLOSED))
            return False
        answer, problem = b"", None
        try:
            connection.send_bytes(call.request)
            while (answer := self._receive(connection)).startswith(RECORDS):
                if call.logs is not None:
                    dropped, *lines = answer[len(RECORDS) :].split(b"\n")
                    call.logs.extend(lines, dropped=int(dropped))
        except Exception as error:  # noqa: BLE001 - also MemoryError: this thread must continue
            problem = error
            self._tell(usable=False)
        with self._lock:
            self._current = None
        if problem is not None:
            unclear = None if isinstance(problem, (OSError, EOFError)) else problem
            broken = BrokenWorkerProcess(f"the process of the handler {self._end(unclear)}")
            broken.__cause__ = unclear
            call.future.set_exception(broken)
            return False
        call.future.set_result(answer)
        return not self._is_killed

    def _end(self, error: Exception | None) -> str:
        """Reap the process, and return how it has ended."""
        process = self._process
        if process is None:
            return f"raised {error!r}"
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
            self.close()

    def _set_usable(self, usable: bool) -> None:  # noqa: FBT001 - call_soon_threadsafe gives no names
        self.usable = usable
        if usable:
            self._on_ready(self)


def _preparation() -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` needs to know of this process.

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

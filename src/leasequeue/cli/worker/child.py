"""A worker process that follows the orders of its supervisor, and ends when the supervisor dies.

python -m leasequeue.cli.worker.child SETTINGS

Standard input is one end of a socket pair. Orders arrive on it; when it closes, the supervisor has died.
A signal on the parent's death would not do: only Linux has one, and a worker that is killed cannot release
its items.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue.cli.worker.process import work
from leasequeue.cli.worker.settings import CRASHED, STOPPED, WorkerSettings
from leasequeue.errors.log import Log
from leasequeue.worker.signals import LAST_SECONDS, end_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.cli.worker.health import HealthPort
    from leasequeue.worker import Worker

#: The orders, a line each: stop, stop now, and fail the sessions of a process that has died.
STOP, NOW, FAIL = b"stop", b"now", b"fail "
#: The worker sends lines: its grace time when it is ready, its sessions when it is about to lease items (a
#: JSON array of pairs, a queue and a session), and this when another process is to take over.
RETIRING = b"retiring"
#: Seconds between two tries to follow an order: at first the worker may not have started.
REPEAT_SECONDS = 0.2

log = Log("leasequeue.worker")


class SupervisorLink(threading.Thread):
    """The connection to the supervisor, read in a thread because the event loop may be blocked.

    Attributes:
        worker: The worker to stop; None while the user's module is imported.
    """

    def __init__(self, link: socket.socket) -> None:
        super().__init__(name="leasequeue link", daemon=True)
        self._link = link
        self._received = b""
        self._sending = threading.Lock()
        self._announced = False
        self.worker: Worker | None = None
        self._port: HealthPort | None = None

    def ready(self, worker: Worker, port: HealthPort | None) -> None:
        """Keep the worker, and send its grace time to the supervisor; later, its sessions."""
        self.worker, self._port = worker, port
        worker.on_sessions = self._announce_sessions
        self._send(f"{worker.grace}".encode())

    def announce(self) -> None:
        """Notify the supervisor once, if the worker retires."""
        if self.worker is not None and self.worker.retiring and not self._announced:
            self._announced = True
            if self._port is not None:
                self._port.close()
            self._send(RETIRING)

    def run(self) -> None:
        """Read orders and follow them."""
        stopping, now, orphaned = False, False, None
        while True:
            orders = self._next_orders()
            if orders is None:
                orphaned = orphaned or self._on_orphaned()
                time.sleep(REPEAT_SECONDS)
            for order in orders or ():
                if order.startswith(FAIL):
                    self._fail(order.removeprefix(FAIL))
                else:
                    stopping, now = True, now or order == NOW
            now = now or orphaned is not None
            if not stopping and not now:
                continue
            if self.worker is None:
                end_process(STOPPED if orphaned is None else CRASHED)  # no run has started
            else:
                self._link.settimeout(REPEAT_SECONDS)
                self.worker.stop(now=now)

    def _next_orders(self) -> list[bytes] | None:
        """Return the orders that have arrived; None if the supervisor has died."""
        try:
            received = self._link.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            received = b""
        if not received:
            return None
        *orders, self._received = (self._received + received).split(b"\n")
        return orders

    def _announce_sessions(self, sessions: Sequence[tuple[str, str]]) -> None:
        self._send(json.dumps(sessions).encode())

    def _send(self, line: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):  # the supervisor has died: `run` stops the worker
            self._link.sendall(line + b"\n")

    def _fail(self, order: bytes) -> None:
        if self.worker is not None:
            self.worker.fail_sessions([(queue, session) for queue, session in json.loads(order)])

    def _on_orphaned(self) -> bool:
        log.error("the supervisor has died: releasing all items and ending")
        threading.Thread(target=self._end_after_limit, daemon=True).start()
        return True

    @staticmethod
    def _end_after_limit() -> None:
        time.sleep(LAST_SECONDS + 2 * REPEAT_SECONDS)
        end_process(CRASHED)


class Replacement(threading.Thread):
    """Retires the worker when it uses too much memory, and notifies the supervisor when it retires."""

    def __init__(self, link: SupervisorLink, max_memory: int | None) -> None:
        super().__init__(name="leasequeue replacement", daemon=True)
        self._link = link
        self._max_memory = max_memory

    def run(self) -> None:
        """Watch the worker until it retires."""
        while True:
            worker = self._link.worker
            if worker is not None:
                if worker.retiring:
                    self._link.announce()
                    return
                # A process that is too large from the beginning has to get something done before.
                if self._max_memory is not None and worker.runs and resident_bytes() > self._max_memory:
                    mib = resident_bytes() / (1 << 20)
                    log.info("the process has %.0f MiB of memory, more than --max-memory", mib)
                    worker.retire()
            time.sleep(REPEAT_SECONDS)


def resident_bytes() -> int:
    """Return the memory of this process, in bytes: the current resident size on Linux, else its maximum."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return maximum if sys.platform == "darwin" else maximum * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run a worker under a supervisor."""
    link = SupervisorLink(socket.socket(fileno=os.dup(0)))
    # Processes that the user's code starts must not read orders, nor keep the socket open.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    link.start()
    settings = WorkerSettings(**json.loads(sys.argv[1]))
    if settings.max_runs is not None or settings.max_memory is not None:
        Replacement(link, settings.max_memory).start()
    code = work(settings, link.ready)
    link.announce()  # it may have ended since
    sys.exit(code)


if __name__ == "__main__":
    main()

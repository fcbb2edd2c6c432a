"""A worker process that follows the orders of its supervisor, and ends when the supervisor dies.

python -m leasehold.cli.worker.child SETTINGS

Standard input is one end of a socket pair. Orders arrive on it; when it closes, the supervisor has died.
A signal on the parent's death would not do: only Linux has one, and a worker that is killed cannot release
its items.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from leasehold.cli.worker.process import work
from leasehold.cli.worker.settings import CRASHED, STOPPED, Settings
from leasehold.log import Log
from leasehold.worker.signals import LAST_SECONDS, end_process

if TYPE_CHECKING:
    from leasehold.worker import Worker

#: The orders: stop, and stop now. The worker sends its grace time.
STOP, NOW = b"s", b"n"
#: Seconds between two tries to follow an order: at first the worker may not have started.
REPEAT_SECONDS = 0.2

log = Log("leasehold.worker")


class SupervisorLink(threading.Thread):
    """The connection to the supervisor, read in a thread because the event loop may be blocked.

    Attributes:
        worker: The worker to stop; None while the user's module is imported.
    """

    def __init__(self, link: socket.socket) -> None:
        super().__init__(name="leasehold link", daemon=True)
        self._link = link
        self.worker: Worker | None = None

    def ready(self, worker: Worker) -> None:
        """Keep the worker, and send its grace time to the supervisor."""
        self.worker = worker
        self._link.sendall(f"{worker.grace}\n".encode())

    def run(self) -> None:
        """Read orders and stop the worker."""
        now, orphaned = False, None
        while True:
            order = self._next_order()
            if order == b"":
                orphaned = orphaned or self._on_orphaned()
                time.sleep(REPEAT_SECONDS)
            now = now or orphaned is not None or (order is not None and NOW in order)
            if self.worker is None:
                end_process(STOPPED if orphaned is None else CRASHED)  # no run has started
            else:
                self._link.settimeout(REPEAT_SECONDS)
                self.worker.stop(now=now)

    def _next_order(self) -> bytes | None:
        """Return an order; None if there is no new one, and no bytes if the supervisor has died."""
        try:
            return self._link.recv(16)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def _on_orphaned(self) -> bool:
        log.error("the supervisor has died: releasing all items and ending")
        threading.Thread(target=self._end_after_limit, daemon=True).start()
        return True

    @staticmethod
    def _end_after_limit() -> None:
        time.sleep(LAST_SECONDS + 2 * REPEAT_SECONDS)
        end_process(CRASHED)


def main() -> None:
    """Run a worker under a supervisor."""
    link = SupervisorLink(socket.socket(fileno=os.dup(0)))
    # Processes that the user's code starts must not read orders, nor keep the socket open.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    link.start()
    sys.exit(work(Settings(**json.loads(sys.argv[1])), link.ready))


if __name__ == "__main__":
    main()

"""A worker process that has a supervisor: it takes orders from it, and ends with it.

python -m leasehold.cli.worker.child SETTINGS

Standard input is one end of a pair of sockets. Orders come over it, and its end means that the supervisor
has died, in whatever way; no signal would do, since systems other than Linux have none for that, and since a
worker that is killed cannot give back what it has.
"""

from __future__ import annotations

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

#: The orders: stop, and stop now. What we say: how long we may take to stop.
STOP, NOW = b"s", b"n"
#: An order is followed again so often, since the first time the worker may not have begun (s).
AGAIN_SECONDS = 0.2

log = Log("leasehold.worker")


class Link(threading.Thread):
    """Listens to the supervisor, in a thread, as the event loop may be blocked.

    Attributes:
        worker: What is to be stopped; None while the user's module is being imported.
    """

    def __init__(self, link: socket.socket) -> None:
        super().__init__(name="leasehold link", daemon=True)
        self._link = link
        self.worker: Worker | None = None

    def ready(self, worker: Worker) -> None:
        """The worker has been found: tell the supervisor how long it may take to stop."""
        self.worker = worker
        self._link.sendall(f"{worker.grace}\n".encode())

    def run(self) -> None:
        """See the class."""
        now, alone = False, None
        while True:
            order = self._next()
            if order == b"":
                alone = alone or self._left_alone()
                time.sleep(AGAIN_SECONDS)
            now = now or alone is not None or (order is not None and NOW in order)
            if self.worker is None:
                end_process(STOPPED if alone is None else CRASHED)  # nothing has begun
            else:
                self._link.settimeout(AGAIN_SECONDS)
                self.worker.stop(now=now)

    def _next(self) -> bytes | None:
        """An order; nothing if the supervisor has gone; None if there is no new one."""
        try:
            return self._link.recv(16)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def _left_alone(self) -> bool:
        log.error("the supervisor has died: giving everything back and ending")
        threading.Thread(target=self._end_at_last, daemon=True).start()
        return True

    @staticmethod
    def _end_at_last() -> None:
        time.sleep(LAST_SECONDS + 2 * AGAIN_SECONDS)
        end_process(CRASHED)


def main() -> None:
    """Run a worker under a supervisor."""
    link = Link(socket.socket(fileno=os.dup(0)))
    # What the user's code starts must not read our orders, nor keep the line open.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    link.start()
    sys.exit(work(Settings.load(sys.argv[1]), link.ready))


if __name__ == "__main__":
    main()

"""Exit when the parent process dies."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time

#: The option of prctl(2) to be sent a signal when the parent dies.
PR_SET_PDEATHSIG = 1
#: On other systems: how often to compare the parent's process id (s).
POLL_SECONDS = 0.5


@functools.cache
def exit_with(parent: int) -> None:
    """Exit this process when its parent has died, whatever it is doing. Calls after the first do nothing.

    A handler may keep its process busy for hours without reading a pipe, so that closing one would not end
    it.

    Args:
        parent: The parent's process id, as the parent passed it: the parent may have died before this call.
    """
    if not _signal_on_death():
        threading.Thread(target=_poll, args=(parent,), name="leasequeue parent watch", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _signal_on_death() -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _poll(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)

"""A process that ends when its parent dies, in whatever way."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time

#: "Send me this signal when my parent dies", of <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
#: Elsewhere: how often to look (s).
LOOK_SECONDS = 0.5


@functools.cache
def end_with(parent: int) -> None:
    """End this process when its parent has died, whatever it is doing. It may be called more than once.

    A handler may keep its process busy for hours, and looks neither at its standard input nor at anything
    else that tells it of its parent's end.

    Args:
        parent: The process id of the parent, by itself: it may have died before this is called.
    """
    if not _signal_on_death():
        threading.Thread(target=_look, args=(parent,), name="leasehold orphan", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _signal_on_death() -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _look(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)

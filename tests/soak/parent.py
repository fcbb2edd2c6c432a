"""Exit with the parent process."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading


def exit_with_parent() -> None:
    """Exit when standard input ends. On SIGABRT, dump the stacks of all threads."""
    faulthandler.enable()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")

    def watch() -> None:
        # `sys.stdin` has a lock that the interpreter waits for at exit.
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

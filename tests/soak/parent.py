"""What each program of the soak does first: it sees to its own end."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading


def end_with_parent() -> None:
    """End this process when its standard input ends. On SIGABRT it says what each thread is at."""
    faulthandler.enable()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")

    def watch() -> None:
        # Not by way of `sys.stdin`, whose lock the end of the interpreter would wait for.
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

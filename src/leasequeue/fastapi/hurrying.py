"""Let a further signal interrupt the runs while an application stops, as `Worker.serve` does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from leasequeue.worker.signals import SIGNALS


@contextmanager
def hurried_by_signals(hurry: Callable[[], None]) -> Iterator[None]:
    """Call a function at each SIGTERM and SIGINT inside the block, and then the handler from before.

    The server of the application got the first signal, and passes no other on. Outside of the main thread,
    where no handler can be set, this does nothing.

    Args:
        hurry: The function. It is called in the main thread, between any two steps of its program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        hurry()
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) is on_signal:  # otherwise another part of the program has set its own
                signal.signal(number, signal.SIG_DFL if previous is None else previous)

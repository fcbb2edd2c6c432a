"""Queues on a server whose clock a test moves, called without an event loop, and runs of rule machines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from redis import Redis

from leasequeue import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
#: When the tests begin, in ms.
NOW_MS = 1_700_000_000_000


class Live:
    """Opens queues, and makes calls of them.

    Args:
        url: The server.
    """

    def __init__(self, url: str) -> None:
        self.now = NOW_MS
        self.server: Any = Redis.from_url(url)  # its stubs mix bytes and str
        self._runner = asyncio.Runner()
        self._url = url
        self._opened: list[AsyncWorkQueue] = []

    def open(self, name: str, **options: Any) -> AsyncWorkQueue:
        queue = AsyncWorkQueue.from_url(self._url, name, clock=lambda: self.now / 1000, **options)
        self._opened.append(queue)
        return queue

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def keys_of(self, name: str) -> set[str]:
        """Return the keys of a queue, and of those whose names begin like its keys, without its name."""
        found = (key.decode() for key in self.server.scan_iter(count=1000))
        return {key.removeprefix(f"{name}:") for key in found if key.startswith(f"{name}:")}

    def close(self) -> None:
        """Close the queues."""
        for queue in self._opened:
            self.wait(queue.close())
        self._runner.close()
        self.server.close()


def run_machine(
    machine: type[RuleBasedStateMachine], examples: int, *, steps: int = 40, repeats: bool = False
) -> None:
    """Run a rule machine.

    Args:
        machine: Its class.
        examples: How many examples it takes.
        steps: How many rules each applies.
        repeats: Whether each run takes the same examples.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=True,
            derandomize=repeats,
        ),
    )

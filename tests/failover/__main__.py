"""Fail-overs under load, as a command: `python -m tests.failover [ROUNDS]`."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.failover.cluster_kill import TAG, kill_master, replicated
from tests.faults.cluster_nodes import owner
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How many processes keep the processors busy.
BURNERS = 2


def main(rounds: str = "3") -> int:
    """Kill a master in each round, the node that the clients know in every other; print the gaps."""
    with ExitStack() as stack:
        for _ in range(BURNERS):
            stack.enter_context(burner())
        for number in range(int(rounds)):
            asyncio.run(_round(number + 1, seed_dies=number % 2 == 0))
    return 0


@contextmanager
def burner() -> Iterator[None]:
    """Keep a processor busy inside the block."""
    process = multiprocessing.Process(target=_burn, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burn() -> None:
    while True:
        pass


async def _round(number: int, *, seed_dies: bool) -> None:
    async with replicated("embedded", free_port) as nodes:
        victim = owner(nodes, TAG)
        seed = victim if seed_dies else next(node for node in nodes if node is not victim)
        gaps = await kill_master(nodes, seed=seed)
    sys.stdout.write(f"round {number}, {'the seed' if seed_dies else 'another node'} dies: {gaps}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

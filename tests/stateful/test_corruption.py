"""One key or entry of a queue is deleted, duplicated or changed at random: all invariants hold again.

One cycle of cleaning must repair it: what the workers of a queue do by themselves, or `fsck`. Then the queue
is emptied: no item is lost whose data exists, and none is completed twice. The same under load, with real
clients. The tests draw the same steps in each run; on a failure they show them.
"""

from __future__ import annotations

import asyncio
from pprint import pformat
from random import Random
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasehold import AsyncWorkQueue, LeaseholdError
from tests.lua.space import Space
from tests.queue.keyspace import glob
from tests.stateful.corruption import Corruption, violations
from tests.stateful.leftovers import Drawn, draw, furnish, restore
from tests.stateful.recovery import Recovery, View

if TYPE_CHECKING:
    from leasehold import CleanReport

pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]

#: How many states are drawn, and how often one key of each is corrupted.
SMALL, LARGE = (5, 10), (50, 100)


@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["few", "thousands"]
)
def test_all_invariants_hold_again_after_any_corruption(
    redis_url: str, name: str, size: tuple[int, int]
) -> None:
    failures = asyncio.run(_corrupt_all(redis_url, name, *size))
    if failures:
        shown = "\n\n".join(sorted(failures, key=len)[:3])
        pytest.fail(
            f"{len(failures)} of {size[0] * size[1]} have failed; the shortest:\n{shown}", pytrace=False
        )


async def _corrupt_all(url: str, name: str, states: int, times: int) -> list[str]:
    failures: list[str] = []
    async with Redis.from_url(url) as client:
        cases = Cases(Space(client, name), url)
        for number in range(states):
            drawn = await asyncio.to_thread(draw, url, number)
            state = await furnish(cases.space, cases.pattern, drawn, Random(number))
            for seed in range(times):
                failures += [failure for failure in [await cases.failure(state, number, seed)] if failure]
        await cases.recovery.close()
    return failures


class Cases:
    """Corrupts states, has them repaired, and recovers them.

    Args:
        space: The keys of the queue.
        url: The server.
    """

    def __init__(self, space: Space, url: str) -> None:
        self.space = space
        self.pattern = glob(space.prefix) + b":*"
        self.recovery = Recovery(space, url)
        self._now = 0
        self._queue = AsyncWorkQueue.from_url(url, space.prefix, clock=lambda: self._now / 1000)

    async def failure(self, state: Drawn, number: int, seed: int) -> str:
        """Corrupt a state, and return what is wrong after its repair; empty: nothing."""
        random = Random(f"{number} {seed}")
        self._now = state.now + 1  # what was leased before is older than the cleaning
        await restore(self.space, self.pattern, state)
        checks = random.random() < 0.5
        corruption = Corruption(self.space, random, state.now, types=checks)
        await corruption.step()
        before = View(await self.space.snapshot())
        try:
            report = await self._repair(checks=checks)
            found = View(await self.space.snapshot())
            problems = [*violations(found, self._now, waits=not checks)]
            problems += await self._lost(before, found)
            for key in [key for key in found.keys if key.startswith("lost:")]:
                await self.space.redis.unlink(self.space.key(key))
            problems += await self.recovery.problems(state, found, found, None)
        except LeaseholdError as error:
            problems, report = [f"a call raised {error!r}"], None
        if not problems:
            return ""
        lines = [f"State {number}, seed {seed}, by {'fsck' if checks else 'cleaning'}:", *corruption.sent]
        return "\n".join(
            [*lines, *(f"  - {one}" for one in problems), str(report), pformat(before.keys, width=140)]
        )

    async def _repair(self, *, checks: bool) -> CleanReport:
        if checks:
            return await self._queue.fsck()
        return await self._queue.light_clean() + await self._queue.deep_clean()

    async def _lost(self, before: View, found: View) -> list[str]:
        gone = {name for name, data in before.items.items() if isinstance(data, str)} - found.items.keys()
        return [f"the repair has removed the data of {gone}"] if gone else []

"""Scripts that are interrupted after any of their writes: no item is lost, and none is completed twice.

Each script runs on states of the rule machine with leftovers of other clients, and all commands after its
k-th write are refused. Then the queue recovers as a live system does, by leases and light cleans while the
clock moves. In the end every item whose data exists has been leased, with a token above all others, and
completed once; `counts` is right, and no key is left.

On a failure the test shows the script, k, the state, the call, and the commands that ran. The states and the
calls are the same in each run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pprint import pformat
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from redis.asyncio import Redis

from leasequeue.wire.scripts import load
from tests.lua.space import Space
from tests.queue.keyspace import glob
from tests.stateful.calls_of_scripts import CALLS, drawn_call
from tests.stateful.interruption import Interrupter
from tests.stateful.leftovers import Drawn, draw, furnish, restore
from tests.stateful.recovery import Recovery, View, differences

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lua.space import Call
    from tests.stateful.interruption import Run

pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]


class Size(NamedTuple):
    """How much is tried.

    Attributes:
        states: In how many states.
        writes: After how many of the writes of a call; None: after each.
    """

    states: int
    writes: int | None


SMALL = Size(6, 1)
LARGE = Size(60, None)


def test_every_script_is_interrupted_here() -> None:
    assert load().keys() == CALLS


@pytest.mark.slow
@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["sampled", "all"])
def test_an_interrupted_script_loses_nothing(redis_url: str, name: str, size: Size) -> None:
    tried, failures = asyncio.run(_interrupt_all(redis_url, name, size))
    if failures:
        scripts = Counter(failure.split(maxsplit=1)[0] for failure in failures)
        shown = [
            min((one for one in failures if one.split(maxsplit=1)[0] == script), key=len)
            for script in scripts
        ]
        message = (
            f"{len(failures)} of {tried} interruptions have failed: {dict(scripts)}. The shortest reports:"
        )
        pytest.fail("\n\n".join([message, *shown]), pytrace=False)
    assert tried


async def _interrupt_all(url: str, name: str, size: Size) -> tuple[int, list[str]]:
    """Interrupt all scripts in all states; return how many interruptions were tried, and the failures."""
    tried, failures = 0, []
    async with Redis.from_url(url) as client:
        cases = Cases(Space(client, name), url)
        for number in range(size.states):
            random = Random(number)
            drawn = await asyncio.to_thread(draw, url, number)
            state = await furnish(cases.space, cases.pattern, drawn, random)
            for script in (None, *CALLS):
                found = [one async for one in cases.of_script(script, number, state, random, size.writes)]
                tried += len(found)
                failures += [failure for failure in found if failure]
                if script is None and any(found):
                    break  # the state itself cannot recover
        await cases.recovery.close()
    return tried, failures


class Cases:
    """Runs the cases of one state and script after the other.

    Args:
        space: The keys of the queue.
        url: The server.
    """

    def __init__(self, space: Space, url: str) -> None:
        self.space = space
        self.pattern = glob(space.prefix) + b":*"
        self.interrupter = Interrupter(space)
        self.recovery = Recovery(space, url)

    async def of_script(
        self, script: str | None, number: int, state: Drawn, random: Random, writes: int | None
    ) -> AsyncIterator[str | None]:
        """Yield for each case None, or what went wrong. Without a script, only the recovery is tried."""
        before = await self._begin(state)
        if script is None:
            problems = await self._problems(state, before, None)
            yield _report("no script", state, number, before, None, problems) if problems else None
            return
        call = drawn_call(script, before, state, random)
        run = await self.interrupter.run(call)
        counts = [*range(1, run.writes + 1)]
        if writes is not None:
            counts = sorted(random.sample(counts, min(writes, len(counts))))
        for count in counts:
            await self._begin(state)
            run = await self.interrupter.run(call, count)
            problems = await self._problems(state, before, call)
            title = f"{script} after {count} writes"
            yield _report(title, state, number, before, (call, run), problems) if problems else None

    async def _begin(self, state: Drawn) -> View:
        await restore(self.space, self.pattern, state)
        return View(await self.space.snapshot())

    async def _problems(self, state: Drawn, before: View, call: Call | None) -> list[str]:
        after = View(await self.space.snapshot())
        return [
            *(differences(before, after, call) if call else ()),
            *await self.recovery.problems(state, before, after, call),
        ]


def _report(
    title: str, state: Drawn, number: int, before: View, ran: tuple[Call, Run] | None, problems: list[str]
) -> str:
    lines = [f"{title}, in state {number}:", *(f"  - {problem}" for problem in problems)]
    if ran:
        call, run = ran
        lines += [f"The call: {call.script} {call.arguments}", *(f"  {row!r}" for row in call.rows)]
        lines += ["Its commands:", *(f"  {line}" for line in run.commands), f"Its end: {run.reply!r}"]
    lines += [f"The time: {state.now}. The keys before:", pformat(before.keys, width=140)]
    return "\n".join([*lines, "The last steps to them:", *(f"  {step}" for step in state.steps)])

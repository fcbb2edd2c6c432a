"""Add, lease and complete, each measured by itself: what several scenarios do at different sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.contestants import CEILING_ITEMS, Ours, Raw
from benchmarks.measure import Sample, interleaved, metered
from benchmarks.rows import Row, Setting, speed_row

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from benchmarks.bench import Bench

PHASES = ("add", "lease", "complete")


@dataclass
class Trial:
    """One contestant at one setting, and what was measured of it."""

    contestant: Ours | Raw
    setting: Setting
    items: int
    payload: int
    samples: dict[str, list[Sample]] = field(default_factory=lambda: {phase: [] for phase in PHASES})

    async def round(self, bench: Bench) -> None:
        """Add, lease and complete; the queue is then as it was."""
        who = self.contestant
        who.prepare(self.items, self.payload)
        await self._phase(bench, "add")
        await self._phase(bench, "lease")
        who.between()
        await self._phase(bench, "complete")

    def rows(self, scenario: str) -> list[Row]:
        """A row per phase."""
        return [
            speed_row(scenario, phase, self.contestant.who, self.setting, samples)
            for phase, samples in self.samples.items()
        ]

    async def _phase(self, bench: Bench, phase: str) -> None:
        step = {
            "add": self.contestant.add,
            "lease": self.contestant.lease,
            "complete": self.contestant.complete,
        }[phase]
        async with metered(bench, self.items) as sample:
            await step()
        self.samples[phase].append(sample)


async def measured(bench: Bench, scenario: str, trials: list[Trial], rounds: int) -> list[Row]:
    """Let trials take turns, and return their rows."""
    await interleaved(rounds, [partial(trial.round, bench) for trial in trials])
    return [row for trial in trials for row in trial.rows(scenario)]


async def references(
    bench: Bench, stack: AsyncExitStack, setting: Setting, sizes: tuple[int, int], payload: int
) -> list[Trial]:
    """The bare loop and the ceiling, on queues of their own, with so many items in a round."""
    trials: list[Trial] = []
    for per_call, items in zip((1, CEILING_ITEMS), sizes, strict=True):
        client = await stack.enter_async_context(bench.client())
        raw = Raw(client, bench.name("reference"), per_call)
        await raw.load()
        trials.append(Trial(raw, dict(setting), items, payload))
    return trials

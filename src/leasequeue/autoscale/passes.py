"""What a pass does: look at all queues and back ends at once, plan, and ask for units."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue.autoscale.arrivals import look_ahead, trial_of
from leasequeue.autoscale.config import CommandSettings
from leasequeue.autoscale.flow_children import FlowChildren
from leasequeue.autoscale.measuring import measure
from leasequeue.autoscale.model import TierUnits
from leasequeue.autoscale.planning import plan
from leasequeue.autoscale.queues import JobQueues
from leasequeue.autoscale.report import PassError
from leasequeue.autoscale.tiers import PlanMemory
from leasequeue.errors import BackendError, LeasequeueError
from leasequeue.errors.describing import counted, describe
from leasequeue.errors.log import Log
from leasequeue.queue.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from leasequeue.autoscale.backends import Backend
    from leasequeue.autoscale.config import Config
    from leasequeue.autoscale.flow_children import Learned
    from leasequeue.autoscale.leader import State
    from leasequeue.autoscale.measuring import Measured
    from leasequeue.autoscale.model import JobReport, Plan, Signals, TierReport

_Result = TypeVar("_Result")

#: At most so many characters of a problem are reported.
MAX_PROBLEM = 2000

log = Log("leasequeue.autoscale")


class Parts:
    """Calls the parts of one pass, and collects what goes wrong."""

    #: Calls that took too long and were cancelled, and have not ended yet: kept, so that they can end.
    _left: set[asyncio.Task[Any]] = set()  # noqa: RUF012 - of all passes

    def __init__(self) -> None:
        self.errors: list[PassError] = []

    def fail(self, part: str, problem: str) -> None:
        """Note that a part has failed. Two calls of it that fail alike are one problem."""
        # It is kept in the state: short, and without what JSON cannot hold.
        text = (problem or "unknown")[:MAX_PROBLEM].encode(errors="replace").decode()
        if (error := PassError(part=part, problem=text)) not in self.errors:
            self.errors.append(error)

    async def call(
        self, part: str, make: Callable[[], Coroutine[Any, Any, _Result]], *, limit: float
    ) -> _Result | None:
        """Return the result of a call; None: it has failed, or took too long.

        A call that takes too long is cancelled and not waited for any further, in case it does not end.
        """
        task = asyncio.ensure_future(_begin(make))
        try:
            await asyncio.wait([task], timeout=limit)
        finally:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(_forget)
        if not task.done():
            self.fail(part, f"no answer within {limit:g} s")
        elif task.cancelled():
            self.fail(part, "the call was cancelled")
        elif (error := task.exception()) is not None:
            self.fail(part, str(error) if isinstance(error, LeasequeueError) else describe(error))
            if not isinstance(error, LeasequeueError):
                log.error("%s has failed", part, exc_info=error)
        else:
            return task.result()
        return None


async def _begin(make: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Make the call in its own task, so that what is raised while it is made is its error, too."""
    return await make()


def _forget(task: asyncio.Task[Any]) -> None:
    Parts._left.discard(task)  # noqa: SLF001 - its own
    if not task.cancelled():
        task.exception()  # so that it counts as read


#: How long a queue and a back end may take to answer (s), unless a back end has a `timeout` of its own.
CALL_SECONDS = 10.0
#: What fails in a report if the configuration has changed so that units are left.
CONFIGURATION = "configuration"
#: No back end has more units.
MAX_UNITS = 10**9
#: A dry run that has no memory samples twice, so long apart (s), as one sample has no rates.
DRY_PAUSE = 1.0


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What a pass has seen."""

    signals: Mapping[str, Signals]
    units: Mapping[tuple[str, str], TierUnits]
    #: What the next pass is to be given of each job.
    memory: dict[str, dict[str, Any]]
    #: What it is to be given of flows.
    children: list[Learned]

    def seen_of(self, planned: Plan | None) -> tuple[JobReport, ...]:
        """Return what a plan says of the jobs whose queues could be read."""
        jobs = () if planned is None else planned.jobs
        return tuple(one for one in jobs if one.job in self.signals)


class Passes:
    """The queues and the back ends of a configuration."""

    def __init__(
        self,
        config: Config,
        *,
        open_backend: Callable[[Config, str, str], Backend],
        clock: Callable[[], float] | None,
    ) -> None:
        self._config = config
        self._open_backend = open_backend
        self._clock = clock
        self.queues = JobQueues(reply_timeout=CALL_SECONDS, clock=clock)
        self._backends: dict[tuple[str, str], Backend] = {}
        self._children = FlowChildren()
        #: By job: until when scheduled items count as due soon (s), and how long a higher rate is tried.
        self._horizons = {job: look_ahead(config.policy, job) for job in config.jobs}
        self._trials = {job: trial_of(config.policy, job) for job in config.jobs}

    def queue_at(self, url: str, name: str, *, cluster: bool) -> AsyncWorkQueue:
        """Make a queue object; all of one server share their connections."""
        client = self.queues.client(url, name, cluster=cluster)
        return AsyncWorkQueue(name, client, reply_timeout=CALL_SECONDS, clock=self._clock)

    async def look(self, state: State, parts: Parts, *, dry_run: bool) -> Sight:
        """Look at all queues and back ends at once. What fails is left out, and noted in `parts`."""
        tiers = [(name, tier) for name, one in self._config.deployments.items() for tier in one.tiers]
        asked = _asked_before(state.plan)
        for part in sorted(asked.keys() - {_part(*tier) for tier in tiers}):
            had = counted(asked[part], "unit")
            parts.fail(CONFIGURATION, f"it no longer has the {part}: stop the {had} it was asked for last")
        self._children.recall(state.children)
        children, units, measured = await asyncio.gather(
            self._average_children(parts),
            asyncio.gather(*(self._units_of(name, tier, parts) for name, tier in tiers)),
            asyncio.gather(*(self._measure(job, state, parts, dry_run=dry_run) for job in self._config.jobs)),
        )
        signals: dict[str, Signals] = {}
        memory = {job: state.jobs[job] for job in self._config.jobs if job in state.jobs}
        for job, one in zip(self._config.jobs, measured, strict=True):
            if one is not None:
                signals[job] = replace(one.signals, children=children.get(job, {}))
                memory[job] = one.memory
        return Sight(
            signals=signals,
            units=dict(zip(tiers, units, strict=True)),
            memory=memory,
            children=self._children.learned,
        )

    def plan(self, sight: Sight, state: State, parts: Parts, *, now: float) -> Plan | None:
        """Return what to ask for; None: that cannot be said, and no unit is asked for.

        A memory with which no plan can be made is dropped.
        """
        for memory in (state.plan, {}):
            try:
                return plan(self._config.policy, sight.signals, sight.units, memory, now)
            except Exception as error:  # whatever it is, the cleaner and the next pass continue
                log.exception("no plan could be made")
                parts.fail("plan", f"{type(error).__name__}: {error}")
        return None

    async def request(self, planned: Plan, sight: Sight, parts: Parts) -> list[TierReport]:
        """Ask the back ends for the units of a plan, all at once; return the outcome.

        Also where nothing has changed: a back end may have to replace units that are gone. One that could not
        say what it has is asked in the next pass.
        """

        async def ask(one: TierReport) -> TierReport:
            key = (one.deployment, one.tier)
            known = sight.units[key]
            if known.ready is None and known.requested is None:
                return one
            request = partial(self._ask_for, *key, one.wanted)
            done = await parts.call(_part(*key), request, limit=self._limit_of(*key))
            return replace(one, asked=done is True)

        return [*await asyncio.gather(*map(ask, planned.tiers))]

    async def close(self) -> None:
        """Close the back ends and the queues."""
        backends, self._backends = [*self._backends.values()], {}
        for result in await asyncio.gather(*(one.close() for one in backends), return_exceptions=True):
            if isinstance(result, Exception):
                log.warning("a back end could not be closed: %s", result)
        await self.queues.close()

    async def _measure(self, job: str, state: State, parts: Parts, *, dry_run: bool) -> Measured | None:
        async def sample(memory: Mapping[str, object]) -> Measured:
            queue = await self.queues.get(self._config.jobs[job])
            stats = await queue.stats(horizon=self._horizons[job], note=not dry_run)
            return measure(stats, memory, stats.at, trial=trial)

        memory: Mapping[str, object] = state.jobs.get(job, {})
        # The two samples of a dry run show what the rate is, not how long it has lasted.
        trial = self._trials[job] if memory or not dry_run else 0.0
        measured = await parts.call(f"job {job}", partial(sample, memory), limit=CALL_SECONDS)
        if dry_run and not memory and measured is not None:
            await asyncio.sleep(DRY_PAUSE)
            again = partial(sample, measured.memory)
            measured = await parts.call(f"job {job}", again, limit=CALL_SECONDS)
        return measured

    async def _average_children(self, parts: Parts) -> dict[str, dict[str, float]]:
        """Return how many items an item of each job adds to others, for those where that is measured."""
        jobs = self._config.jobs
        parents = [job for job, one in jobs.items() if None in one.policy.children.values()]
        if not parents:
            return {}

        async def read() -> Mapping[tuple[str, str], float]:
            queues = [await self.queues.get(one) for one in jobs.values()]
            return await self._children.of(
                [one for one in queues if one.shards == (one,)]
            )  # others have none

        averages = await parts.call("children", read, limit=CALL_SECONDS) or {}
        return {
            parent: {
                child: averages[pair]
                for child in jobs[parent].policy.children
                if child in jobs and (pair := (jobs[parent].queue, jobs[child].queue)) in averages
            }
            for parent in parents
        }

    async def _units_of(self, deployment: str, tier: str, parts: Parts) -> TierUnits:
        part, limit = _part(deployment, tier), self._limit_of(deployment, tier)

        async def ask(which: str) -> int:
            answer: object = await getattr(self._backend(deployment, tier), which)()
            if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer <= MAX_UNITS:
                kind = self._config.deployments[deployment].tiers[tier].backend
                raise BackendError(kind, f"{deployment}/{tier}", f"`{which}` has answered {answer!r:.80}")
            return answer

        ready, requested = await asyncio.gather(
            parts.call(part, partial(ask, "ready"), limit=limit),
            parts.call(part, partial(ask, "requested"), limit=limit),
        )
        return TierUnits(ready=ready, requested=requested)

    async def _ask_for(self, deployment: str, tier: str, units: int) -> bool:
        await self._backend(deployment, tier).request(units)
        return True

    def _backend(self, deployment: str, tier: str) -> Backend:
        key = (deployment, tier)
        if key not in self._backends:
            self._backends[key] = self._open_backend(self._config, deployment, tier)
        return self._backends[key]

    def _limit_of(self, deployment: str, tier: str) -> float:
        settings = self._config.deployments[deployment].tiers[tier].settings
        own = settings.timeout if isinstance(settings, CommandSettings) else 0.0
        return max(CALL_SECONDS, own + 1.0)


def _asked_before(memory: object) -> dict[str, int]:
    """Return how many units the plan of the last pass has asked of each tier that was to have any."""
    return {
        _part(deployment, tier): one.asked
        for deployment, tiers in PlanMemory.read(memory).tiers.items()
        for tier, one in tiers.items()
        if one.asked
    }


def _part(deployment: str, tier: str) -> str:
    return f"tier {deployment}/{tier}"

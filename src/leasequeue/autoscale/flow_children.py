"""How many items an item of one queue adds to another, on average: flow runs know it.

A stage that is done adds the items of the stages after it, and its children if it fans out. A stage that
waits for several others is added by the last of them, which may be any; so each counts for a part of it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasequeue.errors import JobUnknown
from leasequeue.queue.plans.reading import FlowRunReader, child_counts
from leasequeue.queue.queue import engines_of
from leasequeue.queue.shards.queue import ShardedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leasequeue.queue import AsyncWorkQueue
    from leasequeue.queue.plans.plan import StagePlan
    from leasequeue.queue.plans.reading import FlowRunState, FlowRunView

#: How many completed runs of a queue are counted, how many active ones are looked at; and fewer completed
#: ones than this are too few, so that active ones count as well.
COMPLETED, ACTIVE, ENOUGH = 60, 40, 10
#: How many plans of a queue are read at once: the runs of a flow share one. And of how many stages the states
#: are read, of runs of one state.
PLANS, STAGES = 10, 2000
#: How many children of a stage are looked at, and so many of those that were added last; how deep; and how
#: many in all.
SAMPLED, LAST, DEPTH, MOST = 6, 4, 3, 1000

#: Of how many stages it is remembered on which queues the children are that functions return.
REMEMBERED = 200

#: A share for each queue, by its name.
Shares = dict[str, float]
#: A home queue, a flow, a stage, and the queues of its children.
Learned = tuple[str, str, str, Shares]


class FlowChildren:
    """Counts the items that flow runs add, at most once in a while.

    Only what was seen is known: which queue the children are on that a function has returned, as long as one
    of them is unfinished, or from an earlier call, also of another copy: see `learned`. Items that are not
    of a flow run are not counted: they count as if they added as many.

    Args:
        every: For how many seconds an answer holds.
        clock: A clock in seconds that only goes forward.
    """

    def __init__(self, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        #: What was counted last, and when, by the names of the queues that were asked for.
        self._answers: dict[tuple[str, ...], tuple[float, Mapping[tuple[str, str], float]]] = {}
        #: The queues of the children that functions return, by home queue, flow and stage.
        self._learned: dict[tuple[str, str, str], Shares] = {}

    @property
    def learned(self) -> list[Learned]:
        """On which queues the children are that functions have returned; those that were seen last."""
        return [(*key, shares) for key, shares in self._learned.items()][-REMEMBERED:]

    def recall(self, learned: Iterable[Learned]) -> None:
        """Take what another copy has learned, where this one has seen nothing itself."""
        for home, flow, stage, shares in learned:
            self._learned.setdefault((home, flow, stage), shares)

    async def of(self, queues: Iterable[AsyncWorkQueue]) -> Mapping[tuple[str, str], float]:
        """Return how many items one completed item of a queue adds to another, on average.

        Args:
            queues: The homes of the flow runs: the queues on which they were started, on one server.

        Returns:
            The averages that are not 0, by the names of both queues. What an item adds to its own
            queue is left out.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`. Nothing is remembered then.
        """
        # The items of a run on a queue with shards are all on that queue.
        homes = {queue.name: queue for queue in queues if not isinstance(queue, ShardedQueue)}
        names = (*sorted(homes),)
        now = self._clock()
        made, found = self._answers.get(names, (0.0, None))
        if found is None or not 0 <= now - made < self._every:
            tally = _Tally()
            for home in homes.values():
                await self._count(home, tally)
            found = tally.averages()
            self._answers[names] = now, found
        return found

    async def _count(self, home: AsyncWorkQueue, tally: _Tally) -> None:
        completed = await _latest(home, "completed", COMPLETED)
        active = await _latest(home, "active", ACTIVE)
        plans: dict[object, Sequence[StagePlan] | None] = {}
        reading = _Reading(FlowRunReader(engines_of(home).here), self._learned, home.name)
        few = len(completed) < ENOUGH
        # Active runs first: they know the queues of children that are not done.
        for run in (*active, *completed):
            # Runs without a flow may have the same stages and other queues.
            key = (run.flow, *run.stages) if run.flow else run.id
            if key not in plans and len(plans) < PLANS:
                plans[key] = await _plan(home, run.id)
            stages = plans.get(key)
            if stages is not None:
                await _count_run(run, stages, reading, tally if few or run.state != "active" else _Tally())


@dataclass
class _Tally:
    """How many items were completed, by queue; and added, by the queue of what added them and their own."""

    completed: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    added: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, parents: Shares, queue: str, count: float) -> None:
        """Count items that items of other queues have added."""
        for parent, share in parents.items():
            self.added[parent, queue] += share * count

    def averages(self) -> dict[tuple[str, str], float]:
        """Return how many items one of a queue adds to another."""
        return {
            (parent, queue): count / self.completed[parent]
            for (parent, queue), count in self.added.items()
            if parent != queue and count > 0 and self.completed[parent] > 0
        }


@dataclass
class _Fan:
    """The children of a stage or of a child."""

    total: int
    #: How many are done, and how many unfinished.
    done: int
    unfinished: int
    queues: Shares
    #: Of those that were looked at, how many, and the children that these have.
    sampled: int = 0
    below: list[_Fan] = field(default_factory=list)

    def count(self, parents: Shares, tally: _Tally, times: float = 1.0) -> Shares:
        """Count the children, `times` as many; return the queues of the items that end last."""
        part = self.total / self.sampled if self.sampled else 0.0
        # The item of a child that has fanned out is completed before the child is done.
        completed = self.done + part * sum(one.unfinished > 0 for one in self.below)
        for queue, share in self.queues.items():
            tally.add(parents, queue, self.total * share * times)
            tally.completed[queue] += completed * share * times
        ends = {queue: share * (self.sampled - len(self.below)) for queue, share in self.queues.items()}
        for one in self.below:
            last = one.count(self.queues, tally, times * part)
            for queue, share in last.items():
                ends[queue] = ends.get(queue, 0.0) + share
        return _normal(ends) or self.queues or parents


class _Reading:
    """Looks at the children of stages, as far as it may."""

    def __init__(self, reader: FlowRunReader, learned: dict[tuple[str, str, str], Shares], home: str) -> None:
        self._reader = reader
        self._learned = learned
        self._home = home
        self._left = MOST

    async def fan(
        self, run: FlowRunView, path: str, counts: Mapping[str, int], queues: Shares, depth: int = 1
    ) -> _Fan:
        """Return the children of a stage. `queues`: theirs, if the plan has them; else they are looked up."""
        stage, total = path.partition("/")[0], counts["total"]
        chosen = {at * total // SAMPLED for at in range(SAMPLED)}
        chosen |= {total - 1 - at for at in range(LAST)}
        some = sorted(at for at in chosen if 0 <= at < total)[: self._left]
        self._left -= len(some)
        names = [kind + f"{path}/{at}".encode() for at in some for kind in (b"k:", b"j:")]
        values = await self._reader.fields(run.id, names) if names else []
        key = self._home, run.flow or run.id, f"{stage}{depth}"
        if not queues:
            seen: Shares = {}
            for definition in values[::2]:
                if definition is not None and (name := _queue_in(definition)):
                    seen[name] = seen.get(name, 0.0) + 1.0
            if seen and run.flow:
                self._learned.pop(key, None)  # the last one that was seen is the last one that is forgotten
                self._learned[key] = _normal(seen)
            queues = _normal(seen) or self._learned.get(key, {})
        fan = _Fan(total, counts["done"], counts["unfinished"], queues, len(some))
        for at, text in zip(some, values[1::2], strict=True):
            below = child_counts(text) if text and depth < DEPTH else None
            if below is not None and below["total"] > 0:
                fan.below.append(await self.fan(run, f"{path}/{at}", below, {}, depth + 1))
        return fan


async def _latest(home: AsyncWorkQueue, state: FlowRunState, most: int) -> list[FlowRunView]:
    """Return the latest runs of a state, fewer if they have many stages."""
    first = [one for one in await home.flow_runs.list(state=state, fields=(), count=3) if one is not None]
    count = min(most, STAGES // max((len(one.stages) for one in first), default=1))
    if len(first) < 3 or count <= len(first):
        return first
    return [one for one in await home.flow_runs.list(state=state, fields=(), count=count) if one is not None]


async def _plan(home: AsyncWorkQueue, run_id: str) -> Sequence[StagePlan] | None:
    """Return the stages of the plan of a run; None: it has gone since."""
    try:
        plan = (await home.flow_runs.get(run_id, fields=())).plan
    except JobUnknown:
        return None
    return None if plan is None else plan.stages


async def _count_run(run: FlowRunView, stages: Sequence[StagePlan], reading: _Reading, tally: _Tally) -> None:
    ends: dict[str, Shares] = {}
    for stage in _in_order(stages):
        seen = run.stages.get(stage.name)
        before = [one for one in stage.after if one in run.stages and run.stages[one].state == "done"]
        parents = _mean([ends.get(one, {}) for one in before])
        ends[stage.name] = parents  # of a stage without an item
        if seen is None or seen.state in {"not entered", "skipped"} or (stage.after and not before):
            continue
        in_plan = _normal(_counted(stage))
        if stage.queue and not in_plan:
            tally.add(parents, stage.queue, 1.0)
            tally.completed[stage.queue] += seen.state == "done" or seen.children is not None
            parents = ends[stage.name] = {stage.queue: 1.0}
        if seen.children is not None and seen.children["total"] > 0:
            fan = await reading.fan(run, stage.name, seen.children, in_plan)
            ends[stage.name] = fan.count(parents, tally)


def _counted(stage: StagePlan) -> Shares:
    found: Shares = {}
    for one in stage.children:
        found[one.queue] = found.get(one.queue, 0.0) + 1.0
    return found


def _in_order(stages: Sequence[StagePlan]) -> Iterable[StagePlan]:
    """Yield the stages, each behind those before it. A plan has no loop."""
    left = {stage.name: stage for stage in stages}
    while left:
        free = [stage for stage in left.values() if not any(name in left for name in stage.after)]
        yield from free or left.values()
        left = {name: left[name] for name in left if free and left[name] not in free}


def _queue_in(definition: bytes) -> str:
    """Return the queue in the definition of a child; empty: it has none."""
    try:
        queue = json.loads(definition).get("queue", "")
    except (ValueError, AttributeError):  # another client has written it
        return ""
    return queue if isinstance(queue, str) else ""


def _mean(shares: Sequence[Shares]) -> Shares:
    found: Shares = {}
    for one in shares:
        for queue, share in one.items():
            found[queue] = found.get(queue, 0.0) + share / len(shares)
    return found


def _normal(counts: Shares) -> Shares:
    """Return counts as shares of their sum; nothing: it is 0."""
    total = sum(counts.values())
    return {queue: count / total for queue, count in counts.items() if count > 0} if total > 0 else {}

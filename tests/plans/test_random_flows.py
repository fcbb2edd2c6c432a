"""Random graphs with failures, choices and joins, run by a worker, and their expected outcomes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from leasequeue import JobFailed, Next, Reject
from leasequeue.flow import Flow
from leasequeue.queue.plans.plan import StagePlan, certain_before
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue import FlowRun, TaskQueue
    from leasequeue.queue.plans.plan import Join

FLOWS = 40
#: How a stage ends; `not entered`: it can never begin, since one before it has failed.
End = Literal["done", "failed", "skipped", "not entered"]


@dataclass
class Step:
    """A stage of a random flow, and what its function does."""

    after: list[str]
    join: Join
    fails: bool
    #: The successors that it chooses; None: it chooses none.
    chosen: list[str] | None = None
    #: The stages whose results it must be given.
    certain: list[str] = field(default_factory=list)


def random_flow(seed: int) -> dict[str, Step]:
    """Make a graph of 2 to 8 stages."""
    chance = random.Random(seed)
    names = [f"s{place}" for place in range(chance.randint(2, 8))]
    steps: dict[str, Step] = {}
    for place, name in enumerate(names):
        before = chance.sample(names[:place], min(place, chance.randint(0 if place > 3 else 1, 3)))
        steps[name] = Step(before, chance.choice(["all", "all", "settled"]), chance.random() < 0.15)
    for name, step in steps.items():
        then = [other for other in names if name in steps[other].after]
        if then and chance.random() < 0.4:
            step.chosen = chance.sample(then, chance.randint(0, len(then)))
    nodes = {
        name: StagePlan(name, after=(*step.after,), choice=step.chosen is not None, join=str(step.join))
        for name, step in steps.items()
    }
    for name, step in steps.items():
        step.certain = sorted(certain_before(nodes, name))
    return steps


def ends_of(steps: dict[str, Step]) -> dict[str, End]:
    """Return how each stage is to end."""
    ends: dict[str, End] = {}
    for name, step in steps.items():
        edges = []
        for one in step.after:
            chosen = steps[one].chosen
            skipped = ends[one] == "skipped" or (
                ends[one] == "done" and chosen is not None and name not in chosen
            )
            edges.append("skipped" if skipped else ends[one])
        if edges and set(edges) == {"skipped"}:
            ends[name] = "skipped"
        elif step.join == "all" and {"failed", "not entered"} & {*edges}:
            ends[name] = "not entered"
        else:
            ends[name] = "failed" if step.fails else "done"
    return ends


def is_tolerated(name: str, steps: dict[str, Step], ends: dict[str, End]) -> bool:
    """Return whether all that follows a stage that has failed continues without it."""
    then = [other for other, step in steps.items() if name in step.after]
    return bool(then) and all(
        ends[other] != "not entered" or is_tolerated(other, steps, ends) for other in then
    )


async def test_random_flows_end_as_their_graphs_say(tasks: TaskQueue) -> None:
    flows = [random_flow(seed) for seed in range(FLOWS)]
    problems: list[str] = []
    calls: Counter[tuple[int, str]] = Counter()

    @tasks.task
    async def work(case: int, name: str, found: list[Any]):  # type: ignore[no-untyped-def] # noqa: ANN202 - or Next
        step = flows[case][name]
        calls[case, name] += 1
        if sorted(found) != step.certain:
            problems.append(f"{case} {name}: {found} and not {step.certain}")
        if step.fails:
            raise Reject("no")
        return name if step.chosen is None else Next(name, *step.chosen)

    runs: list[FlowRun[Any]] = []
    for case, steps in enumerate(flows):
        flow = Flow(f"flow {case}", tasks)
        for name, step in steps.items():
            flow.stage(
                work,
                name=name,
                after=step.after,
                join=step.join,
                choose=step.chosen is not None,
                args={"case": case, "name": name},
                takes={"found": step.certain},
            )
        runs.append(await flow.start(id=f"run {case}"))
    async with working(new_worker(tasks)):
        ended = await asyncio.gather(*(run.result(timeout=120) for run in runs), return_exceptions=True)
    assert not problems
    for case, (steps, end) in enumerate(zip(flows, ended, strict=True)):
        ends = ends_of(steps)
        view = await tasks.queue.flow_runs.get(f"run {case}")
        assert {name: stage.state for name, stage in view.stages.items()} == ends, (case, steps)
        begun = {name for name, end in ends.items() if end in ("done", "failed")}
        assert {name: calls[case, name] for name in ends} == {name: int(name in begun) for name in ends}
        failed = [name for name in ends if ends[name] == "failed" and not is_tolerated(name, steps, ends)]
        assert isinstance(end, JobFailed) == bool(failed), (case, steps, end)
        assert view.state == ("failed" if failed else "completed")
        assert view.unfinished == 0

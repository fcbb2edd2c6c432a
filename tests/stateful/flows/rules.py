"""What must hold of a flow run after every step, read from its hash and its plan alone.

The rules say of each stage whether its join permits that it is entered, and whether it must have been: so
they find joins that fire too early, twice or never, whatever has happened before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from leasequeue.queue.plans.plan import CHAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from leasequeue.queue.plans.plan import FlowPlan, StagePlan

#: The fate of the edge from a stage to one after it.
Edge = Literal["open", "good", "bad", "skipped"]
#: What a join says: the stage is entered, waits, is skipped, can never be entered, or ends the run.
Verdict = Literal["enter", "wait", "skip", "never", "end"]
#: Words for the states of stages, as the hash has them.
OPEN, ENDED = frozenset("wx"), frozenset("dfck")
#: Which states may follow which in one call; `""`: not entered. From `f` and `c`, only a retry leads back.
FOLLOW = {"": "wxdkfc", "w": "xdfc", "x": "dfc", "d": "", "k": "", "f": "wx", "c": "wx"}


@dataclass(frozen=True)
class FlowRunState:
    """The hash of a run.

    Attributes:
        fields: All of it.
        stages: The letter of each stage and child, by its path.
        results: Their results.
    """

    fields: Mapping[str, bytes]
    stages: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: Mapping[bytes, bytes]) -> FlowRunState:
        """Read the reply of HGETALL."""
        fields = {name.decode(): value for name, value in raw.items()}
        stages = {name[2:]: value.decode() for name, value in fields.items() if name.startswith("s:")}
        results = {name[2:]: value for name, value in fields.items() if name.startswith("r:")}
        return cls(fields, stages, results)

    @property
    def state(self) -> str:
        """Its state; empty: there is none, or it is not started."""
        return self.fields.get("state", b"").decode()

    @property
    def active(self) -> int:
        """How many stages and children are open, as the hash says."""
        return int(self.fields.get("active", b"0"))

    def open_paths(self) -> set[str]:
        """Return the paths of the stages and children that are entered and not ended."""
        return {path for path, letter in self.stages.items() if letter in OPEN}

    def children(self, path: str) -> dict[str, str]:
        """Return the letters of the children of a stage or child."""
        depth = path.count("/") + 1
        return {
            one: letter
            for one, letter in self.stages.items()
            if one.startswith(f"{path}/") and one.count("/") == depth
        }


class Spec:
    """What a plan says of a state of its run.

    Args:
        plan: The plan.
        run: The state.
        chosen: Which successors were chosen, by the stage that chose.
    """

    def __init__(self, plan: FlowPlan, run: FlowRunState, chosen: Mapping[str, Iterable[str]]) -> None:
        self.stages = {stage.name: stage for stage in plan.linked().stages}
        self.run = run
        self.chosen = chosen

    def edge(self, before: str, stage: str) -> Edge:
        """Return the fate of an edge."""
        letter = self.run.stages.get(before, "")
        if letter == "d":
            return "good" if not self._skips(before, stage) else "skipped"
        if letter == "k":
            return "skipped"
        if letter in {"f", "c"}:
            return "bad"
        if letter == "" and self.verdict(self.stages[before]) in {"never", "end"}:
            return "bad"
        return "open"

    def verdict(self, stage: StagePlan) -> Verdict:
        """Return what the join of a stage says."""
        edges = Counter(self.edge(before, stage.name) for before in stage.after)
        if edges["skipped"] == len(stage.after) and stage.after:
            return "skip"
        return joined(stage.join, edges)

    def outcome(self) -> str:
        """Return the state in which a run ends whose stages have all ended, unless it was cancelled."""
        for stage in self.stages.values():
            verdict = self.verdict(stage)
            ended = self.run.stages.get(stage.name, "")
            if verdict == "end" or (not stage.then and (ended in {"f", "c"} or verdict == "never")):
                return "failed"
        return "completed"

    def _skips(self, before: str, stage: str) -> bool:
        return before in self.chosen and stage not in self.chosen[before]


def joined(join: str, edges: Mapping[Edge, int]) -> Verdict:
    """Return what a join says of edges, or of children, some of which are not skipped."""
    if join.startswith("n:"):
        need = int(join[2:])
        if edges["good"] >= need:
            return "enter"
        if edges["good"] + edges["open"] >= need or edges["good"] + edges["bad"] == 0:
            return "wait"  # also where all others are skipped: perhaps the stage is, too
        return "never"
    if join in {"fail", "fail_fast", CHAIN} and edges["bad"]:
        return "never" if join == CHAIN else "end"
    if edges["open"]:
        return "wait"
    return "never" if join == "all" and edges["bad"] else "enter"


def problems(
    plan: FlowPlan, run: FlowRunState, chosen: Mapping[str, Iterable[str]], *, retried: bool = False
) -> Iterator[str]:
    """Yield what is wrong with a run of a plan.

    Args:
        plan: The plan.
        run: The run.
        chosen: Which successors were chosen, by the stage.
        retried: Whether it was retried: then some stages were entered for others that are open again.
    """
    open_paths = run.open_paths()
    if run.active != len(open_paths):
        yield f"active is {run.active}, and {len(open_paths)} stages are open: {sorted(open_paths)}"
    if run.state == "active" and not open_paths:
        yield "it is active, and no stage is open"
    spec = Spec(plan, run, chosen)
    for name in spec.stages:
        yield from _entered(name, spec, retried=retried)
    policies = {path: run.fields.get(f"m:{path}", b"all").decode() for path in run.stages}
    for path, letter in run.stages.items():
        yield from _joined_children(path, letter, policies[path], run)
        if "/" in path and path.rpartition("/")[0] not in run.stages:
            yield f"{path} has no parent"
    if run.state in {"completed", "failed"} and not open_paths:
        expected = spec.outcome()
        # A parent whose children fail the run at once is `f`, whatever follows it.
        ended = any(
            run.stages[path] == "f" and policies[path] in {"fail", "fail_fast"} for path in run.stages
        )
        if run.state != ("failed" if ended else expected):
            yield f"it is {run.state}, and has {expected}"


def _entered(name: str, spec: Spec, *, retried: bool) -> Iterator[str]:
    """Yield what is wrong with a stage, in comparison with those before it."""
    letter, verdict = spec.run.stages.get(name, ""), spec.verdict(spec.stages[name])
    if letter and letter not in "kc" and verdict != "enter" and not retried:
        yield f"{name} is {letter!r}, and its join says {verdict}"
    if letter == "k" and verdict != "skip" and not retried:
        yield f"{name} is skipped, and its join says {verdict}"
    if spec.run.state == "active" and not letter and verdict in {"enter", "skip"}:
        yield f"{name} is not entered, and its join says {verdict}"
    if spec.run.state == "active" and not letter and verdict == "end":
        yield f"{name} ends the run, which is active"


def _joined_children(path: str, letter: str, policy: str, run: FlowRunState) -> Iterator[str]:
    """Yield what is wrong with a stage, or child, in comparison with its children."""
    if f"m:{path}" not in run.fields:
        return  # it has not fanned out
    counts = [int(number) for number in run.fields[f"j:{path}"].split()]
    total, added, done, failed, cancelled = counts[:5]
    children = Counter(run.children(path).values())
    if (added, done, failed, cancelled) != (children.total(), children["d"], children["f"], children["c"]):
        yield f"{path} has counted {counts}, and has {dict(children)}"
    ended = failed + cancelled
    edges: dict[Edge, int] = {"good": done, "bad": ended, "open": total - done - ended, "skipped": 0}
    verdict = joined(policy, edges)
    expected = {"enter": "d", "wait": "x", "never": "f", "end": "f"}[verdict]
    if policy == CHAIN:
        done_parts = [letter == "d" for _, letter in sorted(run.children(path).items())]
        if not all(done_parts[:-1]):
            yield f"{path} is a chain, and a part was entered before the one before it was done"
        if verdict == "wait" and letter == "f" and run.state != "active":
            return  # what has ended before the run was not followed by its next part
    if letter not in {expected, "c"}:
        yield f"{path} is {letter!r}, and its children, {counts} by {policy!r}, say {expected!r}"


def steps(before: FlowRunState, after: FlowRunState, *, retried: bool = False) -> Iterator[str]:
    """Yield what is wrong between two states of a run, which one call or one stopped call lies between."""
    for path, letter in after.stages.items():
        was = before.stages.get(path, "")
        if letter != was and letter not in FOLLOW[was]:
            yield f"{path} was {was!r} and is {letter!r}"
        if was in {"f", "c"} and letter in OPEN and not retried:
            yield f"{path} was {was!r} and is open again, without a retry"
    for path, result in before.results.items():
        if path in after.results and after.results[path] != result:
            yield f"the result of {path} was {result!r} and is {after.results[path]!r}"
    for path in before.stages.keys() - after.stages.keys():
        yield f"{path} was {before.stages[path]!r} and has no state"
    final = before.state in {"completed", "failed", "cancelled"}
    if final and before.state != after.state and not retried:
        yield f"the run was {before.state} and is {after.state or 'gone'}"

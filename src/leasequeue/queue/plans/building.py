"""The one builder of plans: chains, groups and declared flows call it, stage by stage."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.durations import check_int
from leasequeue.errors import InvalidArgument, InvalidCall
from leasequeue.queue.encoding import MAX_LEVEL
from leasequeue.queue.plans.flow_runs import Many, One
from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan, join_text, missing_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leasequeue.queue.plans.flow_runs import FlowRuns, Output, WriteSignal
    from leasequeue.queue.plans.plan import Need

_MAX_NAME_BYTES = 90
#: What the name of a task may contain and that of a stage not, or what has a meaning in a `Need`.
_SPECIAL = re.compile(r"[/.\0]|^[@?<]")


class QueuePlace(NamedTuple):
    """Where a queue is: the URL of its server, its name, and how many shards it has; 0: it is one queue."""

    url: str | None
    name: str
    shards: int = 0


@dataclass(kw_only=True, eq=False)  # not frozen: that costs a large group 5 µs a call
class PlannedCall:
    """A call of a task that is to be a stage or a child.

    Attributes:
        runs: Those of the home queue, whose keys hold a run that begins with it.
        home: Where that is.
        delay_ms: How long its item waits once the stage is entered.
        has_time: Whether that is until a certain time, which is not known of what begins later.
        expires_ms: After so many ms its item is discarded; 0: never.
        due_ms: When it is to run first, if it begins now; ms since 1970.
        write: Returns the data of its item, given `due_ms` or None, and what it takes of the run.
    """

    task: str
    runs: FlowRuns
    home: QueuePlace
    queue: QueuePlace
    level: int
    group: str | None
    delay_ms: int
    has_time: bool
    expires_ms: int
    due_ms: int
    write: Callable[[int | None, Need], bytes]
    read: Callable[[bytes], Any]

    def child(self, need: Need, *, first: bool) -> ChildPlan:
        """Return the call as a child, which takes a result if it is partial; `first`: it begins now."""
        data = self.write(self.due_ms if first else None, need)
        return ChildPlan(self.queue.name, data, level=self.level, group=self.group, delay_ms=self.delay_ms)


@dataclass(frozen=True)
class End:
    """The end of what was built so far: what the next part waits for, by which policy, and what it takes."""

    after: tuple[str, ...] = ()
    join: str = "all"
    need: Need = field(default_factory=list)
    output: Output = field(default_factory=lambda: Many(()))


class PlanBuilder:
    """Collects the stages of a plan, and makes it.

    What adds a part takes the end of what comes before it, and returns that of the part. It begins with the
    stages of a declared flow, if there is one.

    Attributes:
        first: The first call, on whose home queue the run is kept; None: there was none.
    """

    def __init__(self, stages: Iterable[StagePlan] = (), flow: str = "") -> None:
        self.first: PlannedCall | None = None
        self.stages = [*stages]
        #: What writes the values of the signals that it waits for.
        self.signals: dict[str, WriteSignal] = {}
        self._flow = flow
        self._names: dict[str, int] = {}

    def call(self, call: PlannedCall, before: End) -> End:
        """Add a call."""
        self.expect(call, before)
        name = self._name(call.task)
        self.stages.append(
            StagePlan(
                name,
                call.queue.name,
                call.write(None if before.after else call.due_ms, before.need),
                after=before.after,
                join=before.join,
                level=call.level,
                group=call.group,
                delay_ms=call.delay_ms,
                expires_ms=call.expires_ms,
            )
        )
        return End((name,), "all", name, One(name, call.read))

    def signal(self, stage: StagePlan, before: End, read: Callable[[bytes], Any], write: WriteSignal) -> End:
        """Add a stage that waits for a signal, whose item is on the queue of the first call."""
        name = stage.name
        if self.first is None:
            raise InvalidCall(
                name, "a run begins with a call, on whose queue it is kept, and not with a signal"
            )
        if name in self._names:
            raise InvalidCall(name, "two parts have this name: give the signal another one")
        self._names[name] = 1
        self.signals[name] = write
        self.stages.append(replace(stage, queue=self.first.queue.name, after=before.after, join=before.join))
        return End((name,), "all", name, One(name, read))

    def children(self, calls: Sequence[PlannedCall], join: str, before: End) -> End:
        """Add a stage whose children are calls, of any number: a group of nothing else."""
        name = self._name("group")
        children = tuple(call.child(before.need, first=not before.after) for call in calls)
        self.stages.append(
            StagePlan(name, after=before.after, join=before.join, children=children, policy=join)
        )
        output = Many(tuple(One(f"{name}/{index}", call.read) for index, call in enumerate(calls)))
        return End((name,), "all", f"{name}/*", output)

    def group(self, parts: Sequence[Callable[[End], End]], join: str, before: End) -> End:
        """Add parts side by side, each of which adds its stages."""
        if not parts:
            return End(before.after, before.join)
        ends = []
        for part in parts:
            end = part(before)
            ends.append(end if end.join == join == "all" else self.joined(end))
        return End(
            tuple(dict.fromkeys(name for end in ends for name in end.after)),
            join,
            [end.need for end in ends],
            Many(tuple(end.output for end in ends)),
        )

    def joined(self, end: End) -> End:
        """Add a stage without an item that joins the parts of a group that is itself a part."""
        if isinstance(end.output, One) or not end.need:
            return end
        if isinstance(end.need, str):  # it has a stage already, whose children are joined
            return replace(end, output=replace(end.output, joined_by=end.need))
        name = self._name("join")
        self.stages.append(StagePlan(name, after=end.after, join=end.join))
        need: Need = [f"?{name}", *end.need]
        return End((name,), "all", need, replace(end.output, joined_by=name))

    def expect(self, call: PlannedCall, before: End) -> None:
        """Check that a call can begin after an end."""
        self.first = self.first or call
        home = self.first.home
        if call.queue.url != home.url:
            raise InvalidCall(call.task, f"its queue is on {call.queue.url}, and the run on {home.url}")
        if call.queue != home and (home.shards or call.queue.shards):
            raise InvalidCall(
                call.task,
                f"its queue is {call.queue.name!r}, and the run on {home.name!r}: if one has shards, it has "
                "all calls, as each run is in one of them. Let a task add this call",
            )
        if (tag := missing_tag(home.name, call.queue.name)) is not None:
            raise InvalidCall(
                call.task,
                f"its queue, {call.queue.name!r}, is not in the slot of {home.name!r}: name it "
                f"{'{' + tag + '}'}…",
            )
        if call.has_time and before.after:
            raise InvalidCall(call.task, "it has a time, `at`, and begins after another call: use `delay`")

    def result_of(self, end: End) -> tuple[str | None, Output]:
        """Return the name of the stage whose result is that of a run with this end, and where its parts are.

        None: it has several, or none.
        """
        end = end if end.join == "all" else self.joined(end)
        return end.need.removesuffix("/*") if isinstance(end.need, str) else None, end.output

    def plan(
        self,
        result: str | None,
        *,
        keep_ms: int,
        correlation: str | None,
        priority: int,
        lookup: Mapping[str, Sequence[str]],
        attributes: Mapping[str, bytes] | None = None,
    ) -> FlowPlan:
        """Return the plan of a run; the arguments are attributes of `FlowPlan`, some as users give them."""
        if correlation is not None and not isinstance(correlation, str):
            raise InvalidArgument("correlation", correlation, "a string, or None")
        level = check_int("priority", priority, minimum=-MAX_LEVEL, maximum=MAX_LEVEL)
        return FlowPlan(
            (*self.stages,),
            result,
            attributes or {},
            self._flow,
            lookup=lookup,
            keep_ms=keep_ms,
            correlation=correlation,
            level=level,
        )

    def _name(self, task: str) -> str:
        base = _SPECIAL.sub("_", task)
        base = base.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
        while True:
            self._names[base] = count = self._names.get(base, 0) + 1
            name = base if count == 1 else f"{base}-{count}"
            if count == 1 or name not in self._names:
                self._names.setdefault(name, 1)
                return name


def join_of(join: object, calls: int) -> str:
    """Return the join of so many calls as it is stored."""
    text = join_text(join)
    if text.startswith("n:") and int(text[2:]) > calls:
        raise InvalidArgument("join", join, f"at most the number of the calls, {calls}")
    return text


def takes_nothing(need: Need) -> bool:
    """Return whether a need takes no result: it is a list of empty lists, or empty."""
    return not isinstance(need, str) and all(takes_nothing(one) for one in need)

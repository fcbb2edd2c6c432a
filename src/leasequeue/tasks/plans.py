"""Chains and groups of calls, compiled to the plan of a flow run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from leasequeue.errors import InvalidArgument, InvalidCall
from leasequeue.keys import hash_tag
from leasequeue.queue.plan import ChildPlan, StagePlan, join_text
from leasequeue.tasks.fitting import list_of
from leasequeue.tasks.wire import data_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.runs.stage_inputs import Need

_MAX_NAME_BYTES = 90
#: What the name of a task may contain and that of a stage not, or what has a meaning in a `Need`.
_SPECIAL = re.compile(r"[/.\0]|^[@?]")


@dataclass(frozen=True, kw_only=True)
class StageCall:
    """A call of a task, as a stage.

    Attributes:
        task: The name of the task.
        home: The queue whose keys hold a run that begins with it.
        queue: The queue of its item.
        arguments: Those that are constant, as a JSON object.
        level: The level of its item.
        group: The group of its item, or None.
        delay_ms: How long its item waits once the stage is entered.
        has_time: Whether that is until a certain time, which is not known of what begins later.
        due_ms: When it is to run first, if the run starts now; ms since 1970.
        expires_ms: After so many ms its item is discarded; 0: never.
        read: Reads its result.
    """

    task: str
    home: AsyncWorkQueue
    queue: AsyncWorkQueue
    arguments: bytes
    level: int
    group: str | None
    delay_ms: int
    has_time: bool
    due_ms: int
    expires_ms: int
    read: Callable[[bytes], Any]


@dataclass(frozen=True)
class Leaf:
    """One call.

    Attributes:
        prepare: Gives it; its queue may have been moved since the chain was built.
        returns: The type of its result.
        takes: The argument that takes the result of the part before; None: none does.
    """

    prepare: Callable[[], StageCall]
    returns: Any
    takes: str | None = None


@dataclass(frozen=True)
class Sequence:
    """Parts of which each begins when the one before is done."""

    parts: tuple[Node, ...]

    @property
    def returns(self) -> Any:
        """The type of the result: that of the last part."""
        return self.parts[-1].returns


@dataclass(frozen=True)
class Parallel:
    """Parts that begin together, and the text of the policy by which they are joined."""

    parts: tuple[Node, ...]
    join: str

    @property
    def returns(self) -> Any:
        """The type of the result: a list of those of the parts."""
        return list_of(part.returns for part in self.parts)


Node: TypeAlias = "Leaf | Sequence | Parallel"


@dataclass(frozen=True)
class One:
    """An output: the result of a stage or a child."""

    path: str
    read: Callable[[bytes], Any]


@dataclass(frozen=True)
class Many:
    """An output: those of a group.

    Attributes:
        outputs: Its parts.
        joined_by: What gives nothing if the group has failed; None: there is nothing of this kind.
    """

    outputs: tuple[Output, ...]
    joined_by: str | None = None


Output: TypeAlias = "One | Many"


@dataclass(frozen=True)
class Compiled:
    """The stages of a run.

    Attributes:
        home: The queue whose keys hold the run.
        stages: The stages, in order.
        result: The name of the stage whose result is that of the run; None: see `output`.
        output: Where the results are, of which the run's is made.
    """

    home: AsyncWorkQueue
    stages: tuple[StagePlan, ...]
    result: str | None
    output: Output


@dataclass(frozen=True)
class _End:
    """What the next part waits for, by which policy, and what it takes."""

    after: tuple[str, ...] = ()
    join: str = "all"
    need: Need = field(default_factory=list)
    output: Output = Many(())


def compile_plan(node: Node) -> Compiled:
    """Compile a chain or a group.

    Raises:
        InvalidCall: If a call cannot be a stage in its place.
        InvalidArgument: If there is no call.
    """
    compiler = _Compiler()
    end = compiler.add(node, _End())
    if compiler.home is None:
        raise InvalidArgument("calls", [], "at least one call")
    if end.join != "all":
        end = compiler.joined(end)
    result = end.need.removesuffix("/*") if isinstance(end.need, str) else None
    return Compiled(compiler.home, tuple(compiler.stages), result, end.output)


class _Compiler:
    def __init__(self) -> None:
        self.home: AsyncWorkQueue | None = None
        self.stages: list[StagePlan] = []
        self._names: dict[str, int] = {}

    def add(self, node: Node, before: _End) -> _End:
        """Add the stages of a part that begins after another one."""
        if isinstance(node, Leaf):
            return self._call(node, before)
        if isinstance(node, Sequence):
            for part in node.parts:
                before = self.add(part, before)
            return before
        if calls := self._plain_calls(node, first=not before.after):
            return self._children(calls, node.join, before)
        return self._group(node, before)

    def joined(self, end: _End) -> _End:
        """Add a stage without an item that joins the parts of a group that is itself a part."""
        if isinstance(end.output, One) or not end.need:
            return end
        if isinstance(end.need, str):  # it has a stage already, whose children are joined
            return replace(end, output=replace(end.output, joined_by=end.need))
        name = self._name("join")
        self.stages.append(StagePlan(name, after=end.after, join=end.join))
        need: Need = [f"?{name}", *end.need]
        return _End((name,), "all", need, replace(end.output, joined_by=name))

    def _call(self, leaf: Leaf, before: _End) -> _End:
        call = self._prepared(leaf, first=not before.after)
        arguments, needs = call.arguments, {}
        if leaf.takes is not None and _is_empty(before.need):
            # Its parts are known already: it is the result of empty groups.
            constants = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
            arguments = msgspec.json.encode({**constants, leaf.takes: before.need})
        elif leaf.takes is not None:
            needs = {leaf.takes: before.need}
        name = self._name(call.task)
        due_ms = None if before.after else call.due_ms
        self.stages.append(
            StagePlan(
                name,
                call.queue.name,
                data_of(call.task, arguments, due_ms, needs=needs),
                after=before.after,
                join=before.join,
                level=call.level,
                group=call.group,
                delay_ms=call.delay_ms,
                expires_ms=call.expires_ms,
            )
        )
        return _End((name,), "all", name, One(name, call.read))

    def _plain_calls(self, node: Parallel, *, first: bool) -> list[StageCall]:
        """Return the calls of a group, if it has nothing else and all can be children."""
        leaves = [part for part in node.parts if isinstance(part, Leaf)]
        if len(leaves) < len(node.parts):
            return []
        calls = [self._prepared(leaf, first=first) for leaf in leaves]
        return [] if any(call.expires_ms for call in calls) else calls

    def _children(self, calls: list[StageCall], join: str, before: _End) -> _End:
        """Add a stage whose children are the calls of a group: of any number."""
        name = self._name("group")
        children = tuple(child_of(call, first=not before.after) for call in calls)
        self.stages.append(
            StagePlan(name, after=before.after, join=before.join, children=children, policy=join)
        )
        output = Many(tuple(One(f"{name}/{index}", call.read) for index, call in enumerate(calls)))
        return _End((name,), "all", f"{name}/*", output)

    def _group(self, node: Parallel, before: _End) -> _End:
        """Add the parts of a group as stages of their own."""
        if not node.parts:
            return _End(before.after, before.join)
        ends = []
        for part in node.parts:
            end = self.add(part, before)
            if not end.join == node.join == "all":
                end = self.joined(end)
            ends.append(end)
        return _End(
            tuple(dict.fromkeys(name for end in ends for name in end.after)),
            node.join,
            [end.need for end in ends],
            Many(tuple(end.output for end in ends)),
        )

    def _prepared(self, leaf: Leaf, *, first: bool) -> StageCall:
        call = leaf.prepare()
        if self.home is None:
            self.home = call.home
        if call.queue.url != self.home.url:
            raise InvalidCall(call.task, f"its queue is on {call.queue.url}, and the run on {self.home.url}")
        tag = hash_tag(self.home.name)
        if tag is not None and hash_tag(call.queue.name) != tag:
            raise InvalidCall(
                call.task,
                f"its queue, {call.queue.name!r}, is not in the slot of {self.home.name!r}: name it "
                f"{'{' + tag + '}'}…",
            )
        if call.has_time and not first:
            raise InvalidCall(call.task, "it has a time, `at`, and begins after another call: use `delay`")
        return call

    def _name(self, task: str) -> str:
        """Return a name for a stage that no other has."""
        base = _SPECIAL.sub("_", task)
        base = base.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
        while True:
            self._names[base] = count = self._names.get(base, 0) + 1
            name = base if count == 1 else f"{base}-{count}"
            if count == 1 or name not in self._names:
                self._names.setdefault(name, 1)
                return name


def join_of(join: object, calls: int) -> str:
    """Return the join of so many calls as it is stored.

    Raises:
        InvalidArgument: If it is none, or waits for more calls than there are.
    """
    text = join_text(join)
    if text.startswith("n:") and int(text[2:]) > calls:
        raise InvalidArgument("join", join, f"at most the number of the calls, {calls}")
    return text


def child_of(call: StageCall, *, first: bool) -> ChildPlan:
    """Return a call as a child.

    Args:
        call: The call.
        first: Whether it begins now.
    """
    return ChildPlan(
        call.queue.name,
        data_of(call.task, call.arguments, call.due_ms if first else None),
        level=call.level,
        group=call.group,
        delay_ms=call.delay_ms,
    )


def _is_empty(need: Need) -> bool:
    """Return whether a need takes no result: it is a list of empty lists, or empty."""
    return not isinstance(need, str) and all(_is_empty(one) for one in need)

"""The plan of a flow run: its stages, what follows what, how results are joined.

A plan is stored in the hash of the run when this starts, and scripts interpret it. So what follows a stage
never depends on the program of the worker that finishes it.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from leasequeue.durations import check_int
from leasequeue.errors import InvalidArgument, InvalidFlow
from leasequeue.item.codec import read_stored
from leasequeue.keys import check_prefix, hash_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

#: How many stages a plan has at most, successors one of them, and values the look-ups of a run.
MAX_STAGES = 2_000
MAX_SUCCESSORS = 250
MAX_LOOKUP_VALUES = 250
#: How many edges the end of one stage may decide at once, as the failure of the first one of a chain does.
MAX_EDGES_AFTER = 2_000
#: How many children a stage fans out to at most.
MAX_CHILDREN = 1_000_000
#: The longest id of a run, and the longest name of a stage, in bytes of UTF-8.
MAX_RUN_ID_BYTES = 200
MAX_STAGE_BYTES = 100
#: How many items a child may consist of, and how deep its parts may be in each other.
MAX_CHILD_ITEMS, MAX_CHILD_DEPTH = 250, 10
#: What is between the id of a run and the stage, in the id of the run that this waits for.
SUB_RUN = "~~"
#: The policy of parts that follow each other.
CHAIN = "chain"
#: How long a finished run is kept if the flow does not say: a day, in ms.
KEEP_MS = 86_400_000

T = TypeVar("T")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
#: How many names a message lists.
_MAX_NAMED = 8

_POLICIES = ("all", "settled", "fail", "fail_fast")
_JOIN_ALLOWED = "'all', 'settled', 'fail', 'fail_fast' or AtLeast(n)"
_ID_ALLOWED = f"a string of 1 to {MAX_RUN_ID_BYTES} bytes in UTF-8, without '/' and NUL"
_STAGE_ALLOWED = f"a name of 1 to {MAX_STAGE_BYTES} bytes in UTF-8, without '/' and NUL"


@dataclass(frozen=True)
class AtLeast:
    """A join that continues as soon as `count` have succeeded; the others are cancelled."""

    #: How many must succeed.
    count: int


#: What one parameter of a stage takes of its run: see `inputs.py`.
Need: TypeAlias = "str | list[Need]"
#: What a join waits for: see `docs/pages/reference/flows.md`.
Join: TypeAlias = Literal["all", "settled", "fail", "fail_fast"] | AtLeast


def join_text(join: object) -> str:
    """Return a join as it is stored: `AtLeast(2)` is `n:2`, a text that is stored itself."""
    if isinstance(join, AtLeast):
        return f"n:{check_int('AtLeast', join.count, minimum=1, maximum=MAX_CHILDREN)}"
    if isinstance(join, str):
        digits = join.removeprefix("n:")
        if join in _POLICIES or (digits != join and digits.isascii() and digits.isdecimal() and int(digits)):
            return join
    raise InvalidArgument("join", join, _JOIN_ALLOWED)


def run_key(home: str, run: str) -> bytes:
    """Return the key of a flow run's hash."""
    return as_bytes(f"{home}:run:{run}")


def check_run_id(run_id: object) -> str:
    """Check the id of a flow run and return it."""
    if _is_name(run_id, MAX_RUN_ID_BYTES):
        return str(run_id)
    raise InvalidArgument("id", run_id, _ID_ALLOWED)


def sub_run_id(run_id: str, stage: str) -> str:
    """Return the id of the run of another flow for which a stage of a run waits."""
    return f"{run_id}{SUB_RUN}{stage}"


def check_stage_name(name: object) -> str:
    """Check the name of a stage and return it."""
    if _is_name(name, MAX_STAGE_BYTES):
        return str(name)
    raise InvalidArgument("stage", name, _STAGE_ALLOWED)


def no_stage(name: str, known: Iterable[str]) -> str:
    """Say that there is no stage of a name, and which there are: the nearest first."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    rest = [repr(one) for one in names if one not in near]
    hint = f", did you mean {near[0]!r}?" if near else ""
    others = f"and {len(rest) - _MAX_NAMED:,} others" if len(rest) > _MAX_NAMED else ""
    listed = ", ".join([*rest[:_MAX_NAMED], *filter(None, [others])])
    beside = f" (there {'are also' if near else 'are'} {listed})" if rest else ""
    return f"there is no stage {name!r}{hint}{beside}"


def as_bytes(text: str) -> bytes:
    """Return a text as the names of keys and fields have it, also one that was read from another client."""
    return text.encode(errors="surrogateescape")


def definition_field(path: bytes) -> bytes:
    """Return the field of a run that defines a stage, or a child."""
    return (b"k:" if b"/" in path else b"n:") + path


def missing_tag(home: str, queue: str) -> str | None:
    """Return the hash tag of the home queue if a queue is not in its slot; None: it is, or there is none."""
    tag = hash_tag(home)
    return None if tag is None or hash_tag(queue) == tag else tag


def _is_name(name: object, longest: int) -> bool:
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= longest
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True)
class ChildPlan:
    """A child of a stage that fans out: one item, or parts that follow each other or are side by side.

    Attributes:
        queue: The name of its queue, in the slot of the run's home queue. Empty: it has parts.
        data: The data of its item, text in UTF-8.
        level: Its priority, before that of the run is added.
        foreign: Whether clients of other libraries work on it: once its item vanishes, it is done.
        parts: What it consists of.
        policy: How these are joined; `CHAIN`: each begins when the one before it is done.
    """

    queue: str
    data: bytes
    level: int = 0
    group: str | None = None
    delay_ms: int = 0
    foreign: bool = False
    parts: tuple[ChildPlan, ...] = ()
    policy: str = "all"

    def json(self) -> bytes:
        """Return the definition as it is sent: a JSON object without what is the default."""
        return _compact(self._fields()).encode()

    def on(self, place: Callable[[ChildPlan], ChildPlan]) -> ChildPlan:
        """Return the child with each of its items placed."""
        if not self.parts:
            return place(self)
        return replace(self, parts=tuple(part.on(place) for part in self.parts))

    def _fields(self) -> dict[str, Any]:
        if not self.parts:
            return _item_fields(self)
        parts = [part._fields() for part in self.parts]
        return {"children": len(parts), "policy": self.policy, "parts": parts}


@dataclass(frozen=True)
class StagePlan:
    """A stage of a plan: one item; or children without their own item; or neither, only a join.

    Attributes:
        name: Its name, unique in the plan.
        queue: The queue of its item. Empty: it has none.
        data: The data of its item, text in UTF-8.
        then: The names of the stages after it, as `FlowPlan.linked` fills it in.
        join: When it is entered, given the outcomes of the stages before it; as text, see `join_text`.
        choice: Whether its result chooses which of its successors are entered.
        foreign: Whether clients of other libraries work on it: once its item vanishes, it is done.
        level: Its priority, before that of the run is added.
        delay_ms: How long its item is scheduled; of a signal, how long it is waited for (0: without limit).
        at: When it is due: ms after the start of the run; or where this has a time, `@attribute`, `stage` or
            `stage.member`. None: see `delay_ms`.
        signal: Whether it waits for the signal of its name, and its item is due when that has not come.
        expires_ms: After how long its item expires if no worker has begun with it; 0: never.
        children: What it fans out to when it is entered; then it has no item that a handler sees.
        policy: How these are joined.
        flow: The flow whose run it waits for: see `sub_run_id`. Empty: it is none.
    """

    name: str
    queue: str = ""
    data: bytes = b""
    after: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    join: str = "all"
    choice: bool = False
    foreign: bool = False
    level: int = 0
    group: str | None = None
    delay_ms: int = 0
    at: str | int | None = None
    signal: bool = False
    expires_ms: int = 0
    children: tuple[ChildPlan, ...] = ()
    policy: str = "all"
    flow: str = ""

    def json(self) -> bytes:
        """Return the definition as it is stored in `n:<stage>`: a JSON object without what is the default."""
        fields = _item_fields(self)
        if self.expires_ms:
            fields["expires_in"] = self.expires_ms
        if self.at is not None:
            fields["at"] = self.at
        if self.signal:
            fields["signal"] = True
        if self.then:
            fields["then"] = [*self.then]
        if len(self.after) > 1:
            fields["of"] = len(self.after)
        if self.join != "all":
            fields["join"] = self.join
        if self.choice:
            fields["choice"] = True
        if self.flow:
            fields["flow"] = self.flow
        if self.children:
            fields |= {"children": len(self.children), "policy": self.policy}
        return _compact(fields).encode()


@dataclass(frozen=True)
class FlowPlan:
    """What a flow run does.

    Attributes:
        stages: The stages, in the order in which they are shown.
        result: The name of the stage whose result is that of the run; None: it has none.
        attributes: The input of the run: raw JSON by the attribute's name.
        lookup: The texts by which the run is found, by the attribute's name.
        keep_ms: How long the run is kept when it has ended; 0: it is deleted at once, or
            after a minute if a caller waits for its result.
        correlation: What logs and traces of its stages carry.
        level: What is added to the priorities of its stages.
        trace: The `traceparent` of who started it.
        parent: The reference of the stage that waits for the run, of another run of the same home; empty:
            none does.
    """

    stages: tuple[StagePlan, ...]
    result: str | None = None
    attributes: Mapping[str, bytes] = field(default_factory=dict)
    flow: str = ""
    lookup: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keep_ms: int = KEEP_MS
    correlation: str | None = None
    level: int = 0
    trace: str | None = None
    parent: bytes = b""

    @property
    def queues(self) -> set[str]:
        """The names of the queues of its items."""
        found = {stage.queue for stage in self.stages}
        return {*found, *(child.queue for stage in self.stages for child in stage.children)} - {""}

    def linked(self) -> FlowPlan:
        """Return the plan with both directions of each edge: `after` and `then` say the same."""
        after = {stage.name: dict.fromkeys(stage.after) for stage in self.stages}
        then = {stage.name: dict.fromkeys(stage.then) for stage in self.stages}
        for stage in self.stages:
            for name in stage.after:
                if name in then:
                    then[name][stage.name] = None
            for name in stage.then:
                if name in after:
                    after[name][stage.name] = None
        stages = (
            replace(stage, after=(*after[stage.name],), then=(*then[stage.name],)) for stage in self.stages
        )
        return replace(self, stages=(*stages,))

    def check(self) -> None:
        """Check the graph: names, edges, joins, and that it has no loop."""
        for problem in _problems(self):
            raise InvalidFlow(self.flow, problem)

    def fields(self) -> list[tuple[bytes, bytes]]:
        """Return the fields of the run's hash that describe the plan and its input, checked."""
        plan = self.linked()
        plan.check()
        first = [stage.name for stage in plan.stages if not stage.after]
        fields = {
            "flow": plan.flow,
            "keep": str(plan.keep_ms),
            "correlation": plan.correlation or "",
            "level": str(plan.level),
            "trace": plan.trace or "",
            "result": plan.result or "",
            "lookup": _compact([[name, [*texts]] for name, texts in plan.lookup.items()]),
            "first": _compact(first),
            "stages": _compact([stage.name for stage in plan.stages]),
            "attributes": _compact([*plan.attributes]),
        }
        found = [(name.encode(), text.encode()) for name, text in fields.items()]
        if plan.parent:
            found.append((b"parent", plan.parent))
        found += ((b"a:" + name.encode(), value) for name, value in plan.attributes.items())
        for stage in plan.stages:
            try:
                found += _stage_fields(stage)
            except InvalidArgument as error:
                raise InvalidFlow(self.flow, f"stage {stage.name!r}: {error}") from error
        return found


def parse_stages(fields: Mapping[bytes, bytes]) -> tuple[StagePlan, ...]:
    """Return the stages that the hash of a run describes, with the children that it still has.

    `fields` is the hash: `stages`, and `n:…`, `b:…` and `k:…` of its stages; others are ignored. What another
    client has written there and cannot be read counts as missing.
    """
    stages = [_parsed(name, fields) for name in names_in(read_stored(fields.get(b"stages"), []))]
    return FlowPlan(tuple(stages)).linked().stages


def parse_child(definition: bytes) -> ChildPlan:
    """Return the child that `k:<path>` describes."""
    facts = _Facts(definition)
    return ChildPlan(
        facts.get("queue", ""),
        as_bytes(facts.get("data", "")),
        facts.get("level", 0),
        facts.get("group", "") or None,
        facts.get("delay", 0),
        foreign=facts.get("foreign", False),
    )


class _Facts:
    """The facts of a definition: each of its type, or its default."""

    def __init__(self, definition: bytes | None) -> None:
        self.stored = read_stored(definition, dict[str, Any]())

    def get(self, name: str, default: T) -> T:
        found = self.stored.get(name)
        is_sound = not isinstance(found, str) or names_in([found])
        return found if isinstance(found, type(default)) and is_sound else default


def names_in(found: list[Any]) -> list[str]:
    """Return the names in a list, without what no field can be called."""
    return [one for one in found if isinstance(one, str) and not _LONE_SURROGATE.search(one)]


def queue_in(facts: Mapping[str, Any]) -> str:
    """Return the queue that the definition of a stage or a child names; empty: none that can be one."""
    try:
        return check_prefix(facts.get("queue"))
    except InvalidArgument:
        return ""


def planned_children(facts: Mapping[str, Any]) -> int:
    """Return how many children the definition of a stage names."""
    number = facts.get("children")
    return number if isinstance(number, int) and 0 <= number <= MAX_CHILDREN else 0


def _parsed(name: str, fields: Mapping[bytes, bytes]) -> StagePlan:
    key = as_bytes(name)
    facts = _Facts(fields.get(b"n:" + key))
    definitions = (fields.get(b"k:%b/%d" % (key, i)) for i in range(planned_children(facts.stored)))
    return StagePlan(
        name,
        facts.get("queue", ""),
        as_bytes(facts.get("data", "")),
        tuple(names_in(read_stored(fields.get(b"b:" + key), []))),
        tuple(names_in(facts.get("then", []))),
        facts.get("join", "all"),
        choice=facts.get("choice", False),
        foreign=facts.get("foreign", False),
        level=facts.get("level", 0),
        group=facts.get("group", "") or None,
        delay_ms=facts.get("delay", 0),
        at=facts.get("at", "") or facts.get("at", 0) or None,
        signal=facts.get("signal", False),
        expires_ms=facts.get("expires_in", 0),
        children=tuple(parse_child(definition) for definition in definitions if definition),
        policy=facts.get("policy", "all"),
        flow=facts.get("flow", ""),
    )


def _stage_fields(stage: StagePlan) -> Iterator[tuple[bytes, bytes]]:
    name = stage.name.encode()
    yield b"n:" + name, stage.json()
    if len(stage.after) > 1:
        yield b"b:" + name, _compact([*stage.after]).encode()
    for i, child in enumerate(stage.children):
        yield b"k:%b/%d" % (name, i), child.json()


def _item_fields(item: StagePlan | ChildPlan) -> dict[str, Any]:
    try:
        data = item.data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("data", item.data, "text in UTF-8") from error
    fields: dict[str, Any] = {
        "queue": item.queue,
        "data": data,
        "level": item.level,
        "group": item.group,
        "delay": item.delay_ms,
        "foreign": item.foreign,
    }
    return {name: value for name, value in fields.items() if value}


#: Writes JSON without spaces; one for all, since making it takes longer than writing a child with it.
_compact = json.JSONEncoder(separators=(",", ":")).encode


def _problems(plan: FlowPlan) -> Iterator[str]:
    if not plan.stages:
        yield "it has no stages"
    if len(plan.stages) > MAX_STAGES:
        yield f"it has {len(plan.stages):,} stages, more than {MAX_STAGES:,}: let a stage fan out instead"
    names = [stage.name for stage in plan.stages]
    known = {*names}
    for name in names:
        if not _is_name(name, MAX_STAGE_BYTES):
            yield f"stage {name!r}: expected {_STAGE_ALLOWED}"
    if len(known) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield f"two stages have the name {twice!r}"
    if plan.result is not None and plan.result not in known:
        yield f"its result is that of {plan.result!r}: {no_stage(plan.result, known)}"
    if sum(len(texts) for texts in plan.lookup.values()) > MAX_LOOKUP_VALUES:
        yield f"its look-ups have more than {MAX_LOOKUP_VALUES} values"
    stages = plan.linked().stages
    for stage in stages:
        yield from _problems_of(stage, known)
    loop = _loop({stage.name: stage.then for stage in stages})
    if loop:
        yield f"it has a loop: {' → '.join(loop)}"
    yield from _too_wide(stages)


def _too_wide(stages: Sequence[StagePlan]) -> Iterator[str]:
    """Yield which stage has too many edges after it: a script decides them in one step if the stage fails."""
    then = {stage.name: stage.then for stage in stages}
    if sum(map(len, then.values())) <= MAX_EDGES_AFTER:
        return
    for stage in stages:
        if stage.after:
            continue  # those before it have more
        edges, found, todo = 0, {stage.name}, [stage.name]
        while todo and edges <= MAX_EDGES_AFTER:
            after = then.get(todo.pop(), ())
            edges += len(after)
            todo += (name for name in after if name not in found)
            found.update(after)
        if edges > MAX_EDGES_AFTER:
            yield (
                f"more than {MAX_EDGES_AFTER:,} edges come after stage {stage.name!r}, and its end may "
                "decide all at once: join stages by one without a queue, or let a stage fan out instead"
            )
            return


def _problems_of(stage: StagePlan, known: set[str]) -> Iterator[str]:
    for name in (*stage.after, *stage.then):
        if name not in known:
            side = "follows" if name in stage.after else "is followed by"
            yield f"stage {stage.name!r} {side} {name!r}: {no_stage(name, known - {stage.name})}"
    if len(stage.then) > MAX_SUCCESSORS:
        yield f"stage {stage.name!r} has {len(stage.then):,} successors, more than {MAX_SUCCESSORS}"
    for join in (stage.join, stage.policy):
        try:
            join_text(join)
        except InvalidArgument:
            yield f"stage {stage.name!r} has the join {join!r}: expected {_JOIN_ALLOWED}"
    for join, number, what in (
        (stage.join, len(stage.after), "stages before it"),
        (stage.policy, len(stage.children), "children"),
    ):
        if join.startswith("n:") and int(join[2:]) > number:
            yield f"stage {stage.name!r} waits for {join[2:]} of its {number} {what}"
    if not all(child.queue for child in stage.children):
        yield f"stage {stage.name!r} has a child without a queue"


def _loop(then: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the stages of a loop, the first one also last; empty: there is none."""
    waiting = dict.fromkeys(then, 0)
    for names in then.values():
        for name in names:
            waiting[name] += 1
    free = [name for name, count in waiting.items() if not count]
    while free:
        name = free.pop()
        del waiting[name]
        for follower in then[name]:
            waiting[follower] -= 1
            if not waiting[follower]:
                free.append(follower)
    if not waiting:
        return []
    # Each stage that is left has one that is left before it: going back must meet one twice.
    before = {follower: name for name in waiting for follower in then[name] if follower in waiting}
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]])
    return path[path.index(path[-1]) :][::-1]


def stages_before(stages: Mapping[str, StagePlan], name: str) -> list[str] | None:
    """Return the names of the stages before a stage, each after those that it follows.

    None: one of them is not known, or there is a loop.
    """
    found: dict[str, None] = {}
    entered: set[str] = set()  # those that the walk is below of
    left = [(name, False)]
    while left:
        one, leaves = left.pop()
        if leaves:
            entered.discard(one)
            found[one] = None
        elif one in entered or one not in stages:
            return None
        elif one not in found:
            entered.add(one)
            left.append((one, True))
            left += [(before, False) for before in stages[one].after]
    return [one for one in found if one != name]


def certain_before(stages: Mapping[str, StagePlan], name: str) -> frozenset[str]:
    """Return the names of the stages that have succeeded whenever a stage is entered.

    The others may have been skipped, or have failed where a join tolerates it. Those before it are known, and
    there is no loop among them.
    """
    certain: dict[str, frozenset[str]] = {}
    skippable: dict[str, bool] = {}
    for one in (*(stages_before(stages, name) or ()), name):
        stage = stages[one]
        skippable[one] = bool(stage.after) and all(
            stages[before].choice or skippable[before] for before in stage.after
        )
        followed = [certain[before] | {before} for before in stage.after]
        # How many of those that it follows must have succeeded; None: all that were not skipped.
        needed = int(stage.join[2:]) if stage.join.startswith("n:") else None
        needed = 0 if stage.join == "settled" else needed
        found = frozenset.intersection(*followed) if followed and needed != 0 else frozenset[str]()
        if needed is None or needed >= len(followed):
            for before, done in zip(stage.after, followed, strict=True):
                found |= frozenset() if skippable[before] else done
        certain[one] = found
    return certain[name]

"""What `queue.flow_runs` returns of flow runs, and how it is read: of any number, in bounded steps."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from leasequeue.errors import summary_of
from leasequeue.item.codec import read_number, read_stored
from leasequeue.queue.cron import moment
from leasequeue.queue.encoding import MAX_REPLY_BYTES
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.plan import (
    CHAIN,
    MAX_CHILDREN,
    FlowPlan,
    as_bytes,
    definition_field,
    names_in,
    parse_stages,
    planned_children,
    queue_in,
    run_key,
    sub_run_id,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from leasequeue.queue.engine import Engine

#: Where a flow run is: unfinished, or ended in one of three ways.
FlowRunState: TypeAlias = Literal["active", "completed", "failed", "cancelled"]
FLOW_RUN_STATES: tuple[FlowRunState, ...] = ("active", "completed", "failed", "cancelled")
#: Where a stage or a child is. `entered`: its item waits, is scheduled or leased.
StageState: TypeAlias = Literal[
    "not entered", "entered", "fanned out", "done", "failed", "cancelled", "skipped"
]
#: The states as they are stored; what was never entered has none.
_STATES: dict[bytes, StageState] = {
    b"w": "entered",
    b"x": "fanned out",
    b"d": "done",
    b"f": "failed",
    b"c": "cancelled",
    b"k": "skipped",
}
_ENDED = frozenset({"done", "failed", "cancelled", "skipped"})
#: The fields of a run that `runs_read` returns, and of each of its stages.
FACTS = (
    *("flow", "state", "created", "ended", "keep", "correlation", "level", "trace", "active", "error"),
    *("result", "lookup", "parent", "attributes", "stages"),
)
STAGE_FACTS = (b"s:", b"e:", b"t:", b"j:", b"m:")
#: The first numbers in `j:<path>` of a stage that has fanned out.
_COUNTS = ("total", "added", "done", "failed", "cancelled")
#: How many runs and fields one step reads.
RUNS_PER_STEP = 100
FIELDS_PER_STEP = 500
#: How many bytes of attributes and results are read with the runs of a step.
BYTES_PER_STEP = 1 << 20
#: How many children one step reads.
CHILDREN_PER_STEP = FIELDS_PER_STEP // (len(STAGE_FACTS) + 1)


@dataclass(frozen=True, kw_only=True)
class StageView:
    """A stage of a flow run, or a child of one that has fanned out, at one instant."""

    #: `"not entered"`, `"entered"` (its item waits, is scheduled or leased), `"fanned out"` (its children are
    #: not joined), `"done"`, `"failed"`, `"cancelled"` or `"skipped"` (not chosen).
    state: StageState
    #: What its function has returned, from JSON; None if it was not asked for, or there is none.
    result: Any = None
    #: Why it has failed, or why it can never be entered.
    error: str | None = None
    #: When it ended.
    ended: datetime | None = None
    #: Until when an entered stage waits for its signal, or for its time to begin; None: without limit.
    until: datetime | None = None
    #: Of a stage that has fanned out, how many children it has (`total`), and how many are `unfinished`,
    #: `done`, `failed` and `cancelled`; else None.
    children: Mapping[str, int] | None = None
    #: Whether its children follow each other, as the parts of a chain do that is a child.
    is_chain: bool = False
    #: The id of the run for whose end it waits, or has waited; None: it waits for none, or only
    #: `flow_runs.get` reads that.
    run: str | None = None


@dataclass(frozen=True, kw_only=True)
class FlowRunView:
    """A flow run at one instant."""

    #: Its id.
    id: str
    #: The name of its flow; empty for chains and groups.
    flow: str
    #: `"active"`, `"completed"`, `"failed"` or `"cancelled"`.
    state: FlowRunState
    #: When it was started, a `datetime` in UTC.
    created: datetime
    #: When it was completed, failed or cancelled; None: it is active.
    ended: datetime | None
    #: The correlation id, or None.
    correlation: str | None
    #: Why it has failed, in a line: the path of the first stage that nothing tolerates, and its error. That
    #: of the stage has the whole text.
    error: str | None
    #: How many of its stages and children have begun or wait to, and have not ended; not 0 for a while after
    #: it was cancelled, or has failed at once.
    unfinished: int
    #: Its input, from JSON, by name: what was asked for.
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Its stages in the order of the plan; after each, if asked for, its children: `<stage>/0`, `<stage>/1`.
    stages: Mapping[str, StageView] = field(default_factory=dict, repr=False)
    #: The id of the run of which a stage waits for this one; None: none does.
    parent: str | None = None
    #: What it does; None: only `flow_runs.get` reads that.
    plan: FlowPlan | None = field(default=None, repr=False)

    @property
    def results(self) -> dict[str, Any]:
        """The results that were asked for, by stage; of children, by path."""
        return {path: view.result for path, view in self.stages.items() if view.result is not None}

    @property
    def progress(self) -> tuple[int, int]:
        """How many stages and children have ended, and how many there are now.

        Children of children count if they were asked for.
        """
        done = total = 0
        for path, view in self.stages.items():
            if "/" not in path:
                done, total = done + (view.state in _ENDED), total + 1
            if view.children is not None:
                its_total = view.children["total"]
                done, total = done + its_total - view.children["unfinished"], total + its_total
        return done, total


class FlowRunReader:
    """Reads the flow runs of one home queue."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def views(
        self, ids: Sequence[str], fields: Collection[str] | None, *, children: bool
    ) -> list[FlowRunView | None]:
        """Return runs, each at the place of its id; None: there is none of this id.

        `fields` names the attributes to read, and the stages of which to read the result; None: all.
        """
        found: list[FlowRunView | None] = []
        while len(found) < len(ids):
            some = ids[len(found) : len(found) + RUNS_PER_STEP]
            replies = await self._engine().run(
                "runs_read",
                [as_bytes(one) for one in some],
                max_bytes=BYTES_PER_STEP if fields is None else 0,
            )
            read = [(one, reply) for one, reply in zip(some, replies, strict=True) if reply != 0]
            found += await asyncio.gather(
                *(self._view(one, reply, fields, children=children) for one, reply in read)
            )
        return found

    async def _view(
        self, run_id: str, reply: Sequence[Any] | None, fields: Collection[str] | None, *, children: bool
    ) -> FlowRunView | None:
        if reply is None:
            return None
        facts = dict(zip(FACTS, reply, strict=False))
        names, values, size = _names_in(facts["stages"]), [*reply[len(FACTS) + 1 :]], len(STAGE_FACTS)
        if names and not values:  # more stages than the script returns at once
            kinds = [kind + as_bytes(name) for name in names for kind in STAGE_FACTS]
            values = await self.fields(run_id, kinds)
        attributes, wanted = (
            [name for name in some if fields is None or name in fields]
            for some in (_names_in(facts["attributes"]), names)
        )
        texts = reply[len(FACTS)]
        if len(texts) != len(attributes) + len(wanted):
            texts = await self.fields(
                run_id,
                [b"a:" + as_bytes(name) for name in attributes] + [b"r:" + as_bytes(name) for name in wanted],
            )
        results = dict(zip(wanted, texts[len(attributes) :], strict=True))
        stages: dict[str, StageView] = {}
        for at, name in enumerate(names):
            stage = values[size * at : size * at + size]
            stages[name] = _stage_view(stage, results.get(name))
            if children and stages[name].children is not None:
                below = self._children(run_id, name, stage[3], with_results=name in results)
                stages |= {path: view async for path, view in below}
        has_failed = facts["state"] in {b"active", b"failed"}
        ended = facts["ended"] if facts["state"] != b"active" else None
        return FlowRunView(
            id=run_id,
            flow=_text(facts["flow"]),
            state=cast("FlowRunState", _text(facts["state"])),
            created=moment(read_number(facts["created"], 0)),
            ended=moment(read_number(ended, 0)) if ended else None,
            correlation=_text(facts["correlation"]) or None,
            error=_summary(_text(facts["error"])) if has_failed else None,
            unfinished=read_number(facts["active"], 0),
            parent=parent.run if (parent := StageRef.decode(facts["parent"] or b"")) else None,
            attributes={
                name: _value(text)
                for name, text in zip(attributes, texts[: len(attributes)], strict=True)
                if text is not None
            },
            stages=stages,
        )

    async def _children(
        self, run_id: str, path: str, counts: bytes, *, with_results: bool
    ) -> AsyncIterator[tuple[str, StageView]]:
        """Read the children of a stage in their order, after each its own children."""
        kinds = (*STAGE_FACTS, b"r:") if with_results else STAGE_FACTS
        total = (child_counts(counts) or {"total": 0})["total"]
        for start in range(0, total, CHILDREN_PER_STEP):
            paths = [f"{path}/{at}" for at in range(start, min(start + CHILDREN_PER_STEP, total))]
            names = [kind + as_bytes(one) for one in paths for kind in kinds]
            values = await self.fields(run_id, names)
            for at, one in enumerate(paths):
                facts = values[len(kinds) * at : len(kinds) * at + len(kinds)]
                view = _stage_view(facts[: len(STAGE_FACTS)], facts[-1] if with_results else None)
                yield one, view
                if view.children is not None and facts[3]:
                    async for below in self._children(run_id, one, facts[3], with_results=with_results):
                        yield below

    async def fields(self, run_id: str, names: Sequence[bytes]) -> list[bytes | None]:
        """Return fields of a run's hash, in as many steps as they need."""
        values: list[bytes | None] = []
        while len(values) < len(names):
            some = names[len(values) : len(values) + FIELDS_PER_STEP]
            values += await self._engine().run(
                "run_fields", some, run=as_bytes(run_id), max_bytes=MAX_REPLY_BYTES // 8
            )
        return values

    async def plan(self, run_id: str) -> FlowPlan | None:
        """Return the plan of a run, with its input; None: there is no run of this id."""
        [reply] = await self._engine().run("runs_read", [as_bytes(run_id)], max_bytes=0)
        if reply is None:
            return None
        facts = dict(zip(FACTS, reply, strict=False))
        stages, names = _names_in(facts["stages"]), _names_in(facts["attributes"])
        wanted = [kind + as_bytes(one) for one in stages for kind in (b"n:", b"b:")]
        fields = await self._named(run_id, [*wanted, *(b"a:" + as_bytes(one) for one in names)])
        fields |= await self._named(run_id, [*_children_in(stages, fields)])
        fields[b"stages"] = facts["stages"] or b"[]"
        lookup: list[Any] = read_stored(facts["lookup"], [])
        return FlowPlan(
            parse_stages(fields),
            result=_text(facts["result"]) or None,
            attributes={name: fields.get(b"a:" + as_bytes(name), b"null") for name in names},
            flow=_text(facts["flow"]),
            lookup={one[0]: names_in(one[1]) for one in lookup if _is_lookup(one)},
            keep_ms=read_number(facts["keep"], 0),
            correlation=_text(facts["correlation"]) or None,
            level=read_number(facts["level"], 0),
        )

    async def sub_runs(self, run_id: str) -> list[str]:
        """Return the ids of the runs that stages of a run may wait for."""
        [reply] = await self._engine().run("runs_read", [as_bytes(run_id)], max_bytes=0)
        stages = _names_in(dict(zip(FACTS, reply or (), strict=False)).get("stages"))
        defined = zip(stages, await self._definitions(run_id, stages), strict=True)
        return [sub_run_id(run_id, stage) for stage, definition in defined if definition.get("flow")]

    async def entered(self, run_id: str) -> dict[str, list[str]]:
        """Return the paths of the stages and children of a run that have had items, by queue.

        The definition of a child that is done may be removed: its path is listed for each queue of the run.
        """
        home, paths, cursor = self._engine().name, list[str](), b""
        while cursor != b"0":  # a run with many children has far more fields than these
            cursor, page = await self._engine().read_at(
                b"HSCAN", run_key(home, run_id), cursor or b"0", b"MATCH", b"s:?*", b"COUNT", b"1000"
            )
            entered = zip(page[::2], page[1::2], strict=True)
            paths += (field[2:].decode(errors="surrogateescape") for field, state in entered if state != b"k")
        above = {path.rpartition("/")[0] for path in paths}
        queues: dict[str, str] = {}
        unknown: list[str] = []
        for path, definition in zip(paths, await self._definitions(run_id, paths), strict=True):
            if definition:
                queues[path] = queue_in(definition)
            else:
                unknown.append(path)
        split = [path for path, queue in queues.items() if not queue and path in above]
        queues |= zip(split, await self._queues(run_id, split), strict=True)
        found: dict[str, list[str]] = {home: [""]}  # which adds the first stages, if they are many
        for path, queue in queues.items():
            found.setdefault(queue or home, []).append(path)
        for queue in [*found] if unknown else ():
            found[queue] += unknown
        return found

    async def reopenable(self, view: FlowRunView) -> list[bytes]:
        """Return the paths from which a failed run can be done again, given its view with all children.

        Those of stages and children that have failed or were cancelled come first; then those of stages that
        are done, and whose successors were not entered, since the run had failed.
        """
        adding = _not_added(view)
        paths = [
            as_bytes(path)
            for path, one in view.stages.items()
            if one.state in {"failed", "cancelled"} and (one.children is None or path in adding)
        ]
        done = [path for path, one in view.stages.items() if one.state == "done" and "/" not in path]
        for path, definition in zip(done, await self._definitions(view.id, done), strict=True):
            after = [view.stages.get(name) for name in names_in(definition.get("then") or [])]
            if any(one is not None and one.state == "not entered" for one in after):
                paths.append(as_bytes(path))
        return paths

    async def open_items(self, view: FlowRunView) -> dict[str, list[str]]:
        """Return the paths whose items a run waits for, by queue, given its view with all children.

        A stage has an item also while it has fanned out, and some of its children are not added.
        """
        adding = _not_added(view)
        paths = [
            path
            for path, one in view.stages.items()
            if one.state == "entered" or (one.state == "fanned out" and path in adding)
        ]
        found: dict[str, list[str]] = {}
        for path, queue in zip(paths, await self._queues(view.id, paths), strict=True):
            found.setdefault(queue, []).append(path)
        return found

    async def _queues(self, run_id: str, paths: Sequence[str]) -> list[str]:
        """Return the queues of the items of stages; empty: the home queue.

        That of a stage with children of the plan is on the queue of the first of them.
        """
        children = await self._definitions(run_id, [f"{path}/0" for path in paths])
        own = await self._definitions(run_id, paths)
        return [queue_in(one) or queue_in(child) for one, child in zip(own, children, strict=True)]

    async def _definitions(self, run_id: str, paths: Sequence[str]) -> list[dict[str, Any]]:
        names = [definition_field(as_bytes(path)) for path in paths]
        return [read_stored(text, {}) for text in await self.fields(run_id, names)]

    async def _named(self, run_id: str, names: Sequence[bytes]) -> dict[bytes, bytes]:
        values = await self.fields(run_id, names)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _not_added(view: FlowRunView) -> set[str]:
    """Return the paths of the stages whose item stands for children that were not added."""
    above = {
        path.rpartition("/")[0]
        for path, one in view.stages.items()
        if one.state == "not entered" and "/" in path
    }
    return {path for path in above if not view.stages[path].is_chain}


def _children_in(stages: Iterable[str], fields: Mapping[bytes, bytes]) -> Iterable[bytes]:
    for name in stages:
        for at in range(planned_children(read_stored(fields.get(b"n:" + as_bytes(name)), {}))):
            yield b"k:" + as_bytes(f"{name}/{at}")


def _names_in(text: bytes | None) -> list[str]:
    """Return the names in a JSON list; none if another client has overwritten it."""
    return names_in(read_stored(text, []))


def _stage_view(facts: Sequence[bytes | None], result: bytes | None = None) -> StageView:
    state, error, ended, counts, policy = facts
    has_ended = _STATES.get(state or b"") in _ENDED
    return StageView(
        state=_STATES.get(state or b"", "not entered"),
        result=_value(result),
        error=_text(error) or None if state in (None, b"f") else None,
        ended=moment(read_number(ended, 0)) if has_ended and ended else None,
        until=moment(read_number(ended, 0)) if state == b"w" and ended else None,
        children=child_counts(counts) if state and counts else None,
        is_chain=policy == CHAIN.encode(),
    )


def child_counts(text: bytes) -> dict[str, int] | None:
    """Return the counts of the children of a stage; None: another client has overwritten them."""
    numbers = [read_number(one, -1) for one in text.split()[: len(_COUNTS)]]
    if len(numbers) < len(_COUNTS) or not 0 <= min(numbers) <= numbers[0] <= MAX_CHILDREN:
        return None
    total, _, done, failed, cancelled = numbers
    unfinished = total - done - failed - cancelled
    return {
        "total": total,
        "unfinished": unfinished,
        "done": done,
        "failed": failed,
        "cancelled": cancelled,
    }


def _is_lookup(one: object) -> bool:
    """Return whether this is a name and its texts."""
    return isinstance(one, list) and [type(part) for part in one] == [str, list]


def _value(text: bytes | None) -> Any:
    """Return a result, or an attribute; None if there is none, or another client has overwritten it."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _summary(error: str) -> str | None:
    """Return the error of a run in a line; None: it has none."""
    path, colon, text = error.partition(": ")
    return f"{path}{colon}{summary_of(text)}" or None


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")

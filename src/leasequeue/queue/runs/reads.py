"""Reading flow runs: of any number, with thousands of children, in bounded steps."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from leasequeue.queue.encoding import MAX_REPLY_BYTES
from leasequeue.queue.plan import Plan, parse_stages
from leasequeue.queue.runs.views import (
    FACTS,
    STAGE_FACTS,
    FlowRunView,
    StageView,
    child_counts,
    names_in,
    read_facts,
    stage_view,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

    from leasequeue.queue.engine import Engine

#: How many runs and fields one step reads.
RUNS_PER_STEP = 50
FIELDS_PER_STEP = 500
#: How many children one step reads.
CHILDREN_PER_STEP = FIELDS_PER_STEP // (len(STAGE_FACTS) + 1)


class RunReader:
    """Reads the flow runs of one home queue.

    Args:
        engine: Returns the engine of the queue in the running event loop.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def views(
        self, ids: Sequence[str], fields: Collection[str] | None, *, children: bool
    ) -> list[FlowRunView | None]:
        """Return runs, each at the place of its id; None: there is none of this id.

        Args:
            ids: Their ids.
            fields: The attributes to read, and the stages of which to read the result; None: all.
            children: Whether to read the children of stages that have fanned out.
        """
        found: list[FlowRunView | None] = []
        while len(found) < len(ids):
            some = ids[len(found) : len(found) + RUNS_PER_STEP]
            replies = await self._engine().run("runs_read", [_encoded(one) for one in some])
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
        names = names_in(facts["stages"])
        values = list(reply[len(FACTS) :])
        if names and not values:  # more stages than the script returns at once
            values = await self.fields(
                run_id, [kind + _encoded(one) for one in names for kind in STAGE_FACTS]
            )
        size = len(STAGE_FACTS)
        stages = {name: values[size * at : size * at + size] for at, name in enumerate(names)}
        attributes = [name for name in names_in(facts["attributes"]) if fields is None or name in fields]
        wanted = [name for name in stages if fields is None or name in fields]
        read = [b"a:" + _encoded(name) for name in attributes] + [b"r:" + _encoded(name) for name in wanted]
        texts = await self.fields(run_id, read)
        results = dict(zip(wanted, texts[len(attributes) :], strict=True))
        views: dict[str, StageView] = {}
        for name, stage in stages.items():
            views[name] = stage_view(stage, results.get(name))
            if children and views[name].children is not None:
                with_results = fields is None or name in fields
                below = self._children(run_id, name, stage[3], with_results=with_results)
                views |= {path: view async for path, view in below}
        return FlowRunView(
            **read_facts(run_id, reply),
            attributes={
                name: json.loads(text)
                for name, text in zip(attributes, texts[: len(attributes)], strict=True)
                if text is not None
            },
            stages=views,
        )

    async def _children(
        self, run_id: str, path: str, counts: bytes, *, with_results: bool
    ) -> AsyncIterator[tuple[str, StageView]]:
        """Read the children of a stage in their order, after each its own children."""
        kinds = (*STAGE_FACTS, b"r:") if with_results else STAGE_FACTS
        total = (child_counts(counts) or {"total": 0})["total"]
        for start in range(0, total, CHILDREN_PER_STEP):
            paths = [f"{path}/{at}" for at in range(start, min(start + CHILDREN_PER_STEP, total))]
            names = [kind + _encoded(one) for one in paths for kind in kinds]
            values = await self.fields(run_id, names)
            for at, one in enumerate(paths):
                facts = values[len(kinds) * at : len(kinds) * at + len(kinds)]
                view = stage_view(facts[: len(STAGE_FACTS)], facts[-1] if with_results else None)
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
                "run_fields", some, run=_encoded(run_id), max_bytes=MAX_REPLY_BYTES // 8
            )
        return values

    async def plan(self, run_id: str) -> Plan | None:
        """Return the plan of a run, with its input; None: there is no run of this id."""
        [reply] = await self._engine().run("runs_read", [_encoded(run_id)])
        if reply is None:
            return None
        facts = dict(zip(FACTS, reply, strict=False))
        stages, names = names_in(facts["stages"]), names_in(facts["attributes"])
        wanted = [kind + _encoded(one) for one in stages for kind in (b"n:", b"b:")]
        fields = await self._named(run_id, [*wanted, *(b"a:" + _encoded(one) for one in names)])
        fields |= await self._named(run_id, [*_children_in(stages, fields)])
        fields[b"stages"] = facts["stages"] or b"[]"
        lookup = json.loads(facts["lookup"] or b"[]")
        return Plan(
            parse_stages(fields),
            result=_text(facts["result"]) or None,
            attributes={name: fields[b"a:" + _encoded(name)] for name in names},
            flow=_text(facts["flow"]),
            lookup=dict(lookup),
            keep_ms=int(facts["keep"] or 0),
            correlation=_text(facts["correlation"]) or None,
            level=int(facts["level"] or 0),
        )

    async def entered(self, run_id: str) -> dict[str, list[str]]:
        """Return the paths of the stages and children of a run that have had items, by queue.

        The definition of a child that is done may be removed: its path is listed for each queue of the run.
        """
        [view] = await self.views([run_id], (), children=True)
        stages = view.stages if view is not None else {}
        paths = [path for path, one in stages.items() if one.state not in {"not entered", "skipped"}]
        own = await self._definitions(run_id, paths)
        found: dict[str, list[str]] = {"": [""]}  # which adds the first stages, if they are many
        unknown: list[str] = []
        for path, queue, definition in zip(paths, await self._queues(run_id, paths), own, strict=True):
            if definition:
                found.setdefault(queue, []).append(path)
            else:
                unknown.append(path)
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
            _encoded(path)
            for path, one in view.stages.items()
            if one.state in {"failed", "cancelled"} and (one.children is None or path in adding)
        ]
        done = [path for path, one in view.stages.items() if one.state == "done" and "/" not in path]
        for path, definition in zip(done, await self._definitions(view.id, done), strict=True):
            if any(view.stages[name].state == "not entered" for name in definition.get("then", ())):
                paths.append(_encoded(path))
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
        return [one.get("queue") or child.get("queue", "") for one, child in zip(own, children, strict=True)]

    async def _definitions(self, run_id: str, paths: Sequence[str]) -> list[dict[str, Any]]:
        names = [(b"k:" if "/" in path else b"n:") + _encoded(path) for path in paths]
        return [json.loads(text or b"{}") for text in await self.fields(run_id, names)]

    async def _named(self, run_id: str, names: Sequence[bytes]) -> dict[bytes, bytes]:
        values = await self.fields(run_id, names)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _not_added(view: FlowRunView) -> set[str]:
    """Return the paths of the stages of which some children were not added."""
    return {
        path.rpartition("/")[0]
        for path, one in view.stages.items()
        if one.state == "not entered" and "/" in path
    }


def _children_in(stages: Iterable[str], fields: Mapping[bytes, bytes]) -> Iterable[bytes]:
    """Yield the fields of the children that a plan has."""
    for name in stages:
        definition = json.loads(fields.get(b"n:" + _encoded(name), b"{}"))
        for at in range(definition.get("children", 0)):
            yield b"k:" + _encoded(f"{name}/{at}")


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")

"""Start and finish flow runs by their scripts, and read their hashes."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from tests.lua.space import NOW, Call, Expiring, Space, State, items_of

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The kinds of rows of `run_finish`, and what a stage of these tests returns.
RESULT = '{"n": 1.10, "list": []}'


def contents(state: State, key: str) -> dict[str, str]:
    """Return the fields of a hash, which may have a time to live; empty: there is none."""
    found = state.get(key, {})
    values = found.contents if isinstance(found, Expiring) else found
    assert isinstance(values, dict)
    return {name: str(value) for name, value in values.items()}


class Row(NamedTuple):
    """The item of a stage under a lease, as a row of `run_finish` names it."""

    id: str
    token: int
    reference: bytes

    @property
    def path(self) -> str:
        """The path of the stage."""
        return self.reference.split(b"\0")[2].decode()

    def done(self, value: str = RESULT, picked: str = "") -> tuple[object, ...]:
        """Return the row of a stage that is done."""
        return self.ending("done", value, picked)

    def failed(self, error: str = "ValueError: bad") -> tuple[object, ...]:
        """Return the row of a stage that has failed permanently."""
        return self.ending("failed", error)

    def fan(self, children: Iterable[ChildPlan], policy: str = "all") -> tuple[object, ...]:
        """Return the row of a stage that fans out."""
        return self.ending("fan", b"[" + b",".join(child.json() for child in children) + b"]", policy)

    def more(self) -> tuple[object, ...]:
        """Return the row of a stage whose next children are added."""
        return self.ending("more")

    def ending(
        self, kind: str, value: str | bytes = "", extra: str = "", fenced: int = 0
    ) -> tuple[object, ...]:
        """Return a row of any kind."""
        return (self.id, self.token, fenced, self.reference, kind, value, extra)


class Runs:
    """Flow runs whose home queue, and by default the queue of their items, is that of a key space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.home = space.prefix
        #: The paths of the stages whose rest the last call wants cancelled.
        self.rest: list[str] = []

    def stage(self, name: str, *after: str, **options: Any) -> StagePlan:
        """Return a stage whose item is on the home queue."""
        return StagePlan(name, options.pop("queue", self.home), b"{}", after, **options)

    def child(self, number: int, **options: Any) -> ChildPlan:
        """Return a child on the home queue."""
        return ChildPlan(options.pop("queue", self.home), b'{"child":%d}' % number, **options)

    async def start(
        self, *stages: StagePlan, run: str = "r", result: str | None = None, **options: Any
    ) -> int:
        """Start a run with one call."""
        [reply] = await self.space.run_all([self.starting(FlowPlan(stages, result, **options), run)])
        return int(reply)

    def starting(self, plan: FlowPlan, run: str = "r") -> Call:
        arguments = {"of_run": run, "builder": "", "is_first": 1, "seal": 1}
        return Call("run_start", plan.fields(), arguments)

    async def lease(self, count: int = 250, *, at: int = NOW, of: Space | None = None) -> list[Row]:
        """Lease items, and return them as rows name them."""
        space = of or self.space
        reply = await space.run("lease_many", [(count, 60_000)], now_ms=at)
        carried = reply.pop() if isinstance(reply[-1], list) else []
        return [
            Row(item.id, item.token, (trace or b"").partition(b"\n")[2])
            for item, trace in zip_longest(items_of(reply), carried)
        ]

    async def finish(self, *rows: tuple[object, ...], at: int = NOW, of: Space | None = None) -> list[int]:
        """Finish stages with one call; return its answers."""
        answers, rest, refused = await (of or self.space).run("run_finish", rows, now_ms=at)
        assert not refused
        self.rest = [one.split(b"\0")[2].decode() for one in rest]
        return [int(answer) for answer in answers]

    async def step(self, **endings: str) -> list[str]:
        """Lease all that waits and finish it as given by its path (default: done); return the paths."""
        rows = await self.lease()
        if rows:
            ended = [
                row.failed() if endings.get(row.path) == "failed" else row.done(f'"{row.path}"')
                for row in rows
            ]
            assert await self.finish(*ended) == [1] * len(rows)
        return sorted(row.path for row in rows)

    async def fields(self, run: str = "r") -> dict[str, str]:
        return contents(await self.space.snapshot(), f"run:{run}")

    async def hash(self, run: str = "r") -> dict[str, str]:
        """Return the fields of a run but those of its plan."""
        fields = await self.fields(run)
        plan = ("n:", "b:", "a:", "k:", "t:")
        static = {"flow", "keep", "correlation", "level", "trace", "lookup", "first", "stages", "attributes"}
        static |= {"created", "ended", "result"}
        return {
            name: value for name, value in fields.items() if not name.startswith(plan) and name not in static
        }

    async def states(self, run: str = "r") -> dict[str, str]:
        """Return the states of a run and of its stages."""
        fields = await self.hash(run)
        found = {name[2:]: value for name, value in fields.items() if name.startswith("s:")}
        return {"run": fields.get("state", "gone"), **found}

    async def result(self, run: str = "r") -> Any:
        """Return what was published of a run."""
        text = await self.space.redis.get(f"{self.home}:result:{run}")
        return None if text is None else json.loads(text)

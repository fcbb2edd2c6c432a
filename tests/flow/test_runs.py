"""Tests of seeing and steering the runs of a flow: those of its name, by the types of its attributes."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from leasehold import RunGone, TaskQueue, UnknownAttribute
from leasehold.flow import Flow

if TYPE_CHECKING:
    from leasehold.queue.run_views import FlowRunView


class Plan(StrEnum):
    FREE = "free"


ID = UUID(int=7)
NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)


@pytest.fixture
def flow(tasks: TaskQueue) -> Flow:
    types = {"user": UUID, "at": datetime, "plan": Plan, "guilds": list[int], "note": str | None}
    flow = Flow("access", tasks, attributes=types, lookup=["user", "at", "plan", "guilds", "note"])

    @tasks.task
    async def check(user: UUID, plan: Plan) -> str:
        return f"{user} {plan}"

    flow.stage(check)
    return flow


def ids(views: list[FlowRunView]) -> set[str]:
    return {view.id for view in views}


@pytest.mark.seed("GLD-O13", "GLD-L4")
async def test_runs_are_found_by_values_of_any_declared_type(tasks: TaskQueue, flow: Flow) -> None:
    other = Flow("other", tasks, attributes={"user": UUID}, lookup=["user"])
    other.stage(tasks.tasks[0], args={"plan": Plan.FREE})
    await other.start(user=ID, id="o")
    await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[1985, 7], id="a")
    await flow.start(user=UUID(int=8), at=NOW, plan=Plan.FREE, guilds=[7], note="x", id="b")
    assert ids(await flow.runs.find(user=ID)) == {"a"}
    assert ids(await flow.runs.find(at=NOW)) == ids(await flow.runs.find(plan=Plan.FREE)) == {"a", "b"}
    assert ids(await flow.runs.find(guilds=1985)) == ids(await flow.runs.find(guilds=[7, 1985])) == {"a"}
    assert ids(await flow.runs.find(note="x")) == {"b"}
    assert ids(await flow.runs.find(guilds=7, note=None)) == {"a"}
    with pytest.raises(UnknownAttribute, match="it has user, at, plan, guilds, note"):
        await flow.runs.find(guild=7)


@pytest.mark.seed("GLD-B15")
async def test_the_runs_of_a_flow_are_those_of_its_name(tasks: TaskQueue, flow: Flow) -> None:
    other = Flow("other", tasks, attributes={"user": UUID})
    other.stage(tasks.tasks[0], args={"plan": Plan.FREE})
    await other.start(user=ID, id="o")
    await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[], id="a")
    assert [view and view.id for view in await flow.runs.list()] == ["a"]
    assert [view and view.id for view in await flow.runs.list(["o", "a", "?"])] == [None, "a", None]
    with pytest.raises(RunGone):
        await flow.runs.get("o")
    assert (await flow.runs.get("a")).attributes["guilds"] == []

"""`leasequeue flow`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import FanOut, Flow, RetryPolicy, TaskQueue, fan_out
from tests.cli.program import use
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.program import Leasequeue


class Program:
    """A flow of three stages, the second of which fans out.

    Args:
        tasks: Where its tasks are registered.
    """

    def __init__(self, tasks: TaskQueue) -> None:
        self.broken = False
        self.tasks = tasks
        self.name = tasks.queue.name

        @tasks.task(retry=RetryPolicy(attempts=1))
        async def check(user_id: int, guilds: list[int]) -> list[int]:
            if self.broken:
                raise ValueError("no access")
            return [guild for guild in guilds if user_id]

        @tasks.task
        async def reward(guild: int) -> str:
            return f"role in {guild}"

        @tasks.task
        async def rewards(check: list[int]) -> FanOut[str]:
            return fan_out(reward.call(guild) for guild in check)

        @tasks.task
        async def finish(user_id: int, rewards: list[str]) -> str:
            return f"{user_id}: {', '.join(rewards)}"

        self.flow = flow = Flow(
            "access",
            tasks,
            attributes={"user_id": int, "guilds": list[int]},
            lookup=["user_id", "guilds"],
        )
        checked = flow.stage(check)
        given = flow.stage(rewards, after=checked)
        flow.stage(finish, after=given)

    async def start(
        self, run_id: str, user_id: int = 62, *, broken: bool = False, drain: bool = True
    ) -> None:
        """Start a run, and run its stages if `drain`."""
        self.broken = broken
        await self.flow.start(user_id=user_id, guilds=[1985, 7], id=run_id)
        if drain:
            await self.drain()

    async def drain(self) -> None:
        """Do all that is to be done."""
        await new_worker(self.tasks).drain()


@pytest.fixture(params=[None, 4], ids=["plain", "shards"])
async def program(redis_url: str, name: str, request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    """Return a program with a flow, whose home is a new queue, without and with shards."""
    async with TaskQueue.from_url(redis_url, name, shards=request.param) as tasks:
        yield Program(tasks)


async def test_ls_lists_the_newest_first(leasequeue: Leasequeue, program: Program) -> None:
    await use(program.tasks.queue)
    outcome = await leasequeue("flow", "ls", program.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{program.name} has no runs")
    await program.start("good")
    await program.start("bad", broken=True)
    await program.start("new", drain=False)
    outcome = await leasequeue("flow", "ls", program.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles, *rows = outcome.table
    assert titles == ["id", "flow", "state", "created", "ended", "progress", "error"]
    assert [(row[:3], row[5:]) for row in rows] == [
        (["new", "access", "active"], ["0/3", "-"]),
        (["bad", "access", "failed"], ["1/3", "check:", "ValueError:", "no", "access"]),
        (["good", "access", "completed"], ["5/5", "-"]),
    ]


async def test_ls_chooses_by_state_flow_and_count(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("good")
    await program.start("bad", broken=True)

    async def ids(*options: str) -> list[str]:
        outcome = await leasequeue("flow", "ls", program.name, *options, "--json")
        assert outcome.code == 0
        return [document["id"] for document in outcome.documents]

    assert await ids("--state", "failed") == ["bad"]
    assert await ids("--state", "active") == []
    assert await ids("--flow", "access", "--count", "1") == ["bad"]
    assert await ids("--flow", "other") == []
    outcome = await leasequeue("flow", "ls", program.name, "--state", "active", "--flow", "access")
    assert outcome.error == f"{program.name} has no active runs of 'access'"


async def test_show_prints_a_run_with_its_stages(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("good")
    outcome = await leasequeue("flow", "show", program.name, "good")
    assert (outcome.code, outcome.err) == (0, "")
    facts, _, stages = outcome.out.partition("\n\n")
    shown = dict(line.strip().split(maxsplit=1) for line in facts.splitlines())
    assert (shown["flow"], shown["state"], shown["progress"]) == ("access", "completed", "5/5")
    assert (shown["@user_id"], shown["@guilds"]) == ("62", "[1985,7]")
    _, *rows = [line.split() for line in stages.splitlines()]
    assert [row[:2] for row in rows] == [["check", "done"], ["rewards", "done"], ["finish", "done"]]
    outcome = await leasequeue("flow", "show", program.name, "good", "--children")
    assert [row[0] for row in outcome.table if row].count("rewards/0") == 1
    outcome = await leasequeue("flow", "show", program.name, "z")
    assert (outcome.code, outcome.error) == (1, f"{program.name!r} has no run 'z'")


async def test_show_prints_json_and_a_diagram(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("bad", broken=True)
    document = (await leasequeue("flow", "show", program.name, "bad", "--json")).document
    stage = {"ended": None, "until": None, "signal": False, "result": None, "error": None, "children": None}
    stage["run"] = None
    times = {"created": document["created"], "ended": document["ended"]}
    ended, error = document["stages"]["check"]["ended"], document["stages"]["check"]["error"]
    assert error.endswith("ValueError: no access\n")
    assert times["created"] <= ended <= times["ended"]
    assert document == {
        "queue": program.name,
        "id": "bad",
        "flow": "access",
        "state": "failed",
        **times,
        "correlation": None,
        "error": "check: ValueError: no access",
        "parent": None,
        "progress": {"done": 1, "total": 3},
        "attributes": {"user_id": 62, "guilds": [1985, 7]},
        "stages": {
            "check": {**stage, "state": "failed", "ended": ended, "error": error},
            "rewards": {**stage, "state": "not entered"},
            "finish": {**stage, "state": "not entered"},
        },
    }
    outcome = await leasequeue("flow", "show", program.name, "bad", "--mermaid")
    assert (outcome.code, outcome.out.splitlines()[0]) == (0, "flowchart LR")


async def test_show_names_the_run_that_a_stage_waits_for_and_back(
    leasequeue: Leasequeue, program: Program
) -> None:
    outer = Flow("outer", program.tasks, attributes={"user_id": int, "guilds": list[int]})
    outer.stage(program.flow, name="inner")
    await outer.start(user_id=62, guilds=[7], id="a")
    await program.drain()
    shown = (await leasequeue("flow", "show", program.name, "a")).out.splitlines()
    assert shown[-1].split("  ")[-1].strip() == '"62: role in 7"'
    assert "run a~~inner" in shown[-1]
    shown = (await leasequeue("flow", "show", program.name, "a~~inner")).out.splitlines()
    assert ["part", "of", "a"] in [line.split() for line in shown]
    document = (await leasequeue("flow", "show", program.name, "a", "--json")).document
    assert document["stages"]["inner"]["run"] == "a~~inner"
    document = (await leasequeue("flow", "show", program.name, "a~~inner", "--json")).document
    assert document["parent"] == "a"


async def test_find_finds_by_all_of_the_attributes(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("a", user_id=62)
    await program.start("b", user_id=63)

    async def ids(*attributes: str) -> list[str]:
        outcome = await leasequeue("flow", "find", program.name, "access", *attributes, "--json")
        return [document["id"] for document in outcome.documents]

    assert await ids("user_id=62") == ["a"]
    assert await ids("guilds=1985") == ["b", "a"]
    assert await ids("guilds=7", "user_id=63") == ["b"]
    outcome = await leasequeue("flow", "find", program.name, "access", "user_id=9", "guilds=7")
    assert outcome.code == 1
    assert outcome.error == f"{program.name!r} has no run of 'access' with user_id=9 guilds=7"


async def test_cancel_ends_runs(leasequeue: Leasequeue, program: Program) -> None:
    for run_id in ("a", "b"):
        await program.start(run_id, drain=False)
    assert await leasequeue("flow", "cancel", program.name, "a", "b") == (0, "2 cancelled\n", "")
    outcome = await leasequeue("flow", "cancel", program.name, "a", "z")
    assert (outcome.code, outcome.out) == (1, "0 cancelled\n")
    assert outcome.err.splitlines() == [
        "leasequeue: run 'a' has ended already",
        f"leasequeue: {program.name!r} has no run 'z'",
    ]
    await program.drain()
    assert (await program.tasks.queue.counts()).total == 0
    assert (await program.flow.runs.get("a")).state == "cancelled"


async def test_signal_is_given_to_a_run_that_shows_what_it_waits_for(
    leasequeue: Leasequeue, program: Program
) -> None:
    asked = Flow("asked", program.tasks)
    asked.signal("approval", within=3600)
    asked.signal("other", after="approval")
    await asked.start(id="a")
    document = (await leasequeue("flow", "show", program.name, "a", "--json")).document["stages"]["approval"]
    shown = (await leasequeue("flow", "show", program.name, "a")).out
    assert document["signal"]
    assert f"waits for its signal until {document['until']}" in shown
    words = ("flow", "signal", program.name, "a", "approval")
    assert await leasequeue(*words, '{"by": "ann"}') == (0, "1 signalled\n", "")
    outcome = await leasequeue(*words)
    assert (outcome.code, outcome.error) == (1, "run 'a' has its signal 'approval', or is too late")
    assert (await asked.runs.get("a")).results == {"approval": {"by": "ann"}}
    assert "waits for its signal\n" in (await leasequeue("flow", "show", program.name, "a")).out
    outcome = await leasequeue("flow", "signal", program.name, "a", "approvl")
    assert outcome.code == 1
    assert "the flow run 'a' waits for no signal 'approvl': its signals are approval, other" in outcome.err
    outcome = await leasequeue("flow", "signal", program.name, "z", "approval")
    assert (outcome.code, outcome.error) == (1, f"{program.name!r} has no run 'z'")


async def test_retry_goes_on_from_the_stage_that_failed(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("bad", broken=True)
    program.broken = False
    assert await leasequeue("flow", "retry", program.name, "bad") == (0, "1 retried\n", "")
    await program.drain()
    assert (await program.flow.runs.get("bad")).state == "completed"
    outcome = await leasequeue("flow", "retry", program.name, "bad", "--json")
    assert (outcome.code, outcome.error) == (1, "run 'bad' has not failed")
    assert outcome.document == {"queue": program.name, "retried": 0, "missed": ["bad"]}


async def test_replay_starts_a_run_anew(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("old")
    assert await leasequeue("flow", "replay", program.name, "old", "--id", "again") == (0, "again\n", "")
    outcome = await leasequeue("flow", "replay", program.name, "old", "--json")
    assert (outcome.code, outcome.document["queue"]) == (0, program.name)
    await program.drain()
    for run_id in ("again", outcome.document["id"]):
        assert (await program.flow.runs.get(run_id)).results["finish"] == "62: role in 1985, role in 7"
    outcome = await leasequeue("flow", "replay", program.name, "z")
    assert (outcome.code, outcome.error) == (1, f"{program.name!r} has no run 'z'")


async def test_delete_leaves_nothing_of_finished_runs(leasequeue: Leasequeue, program: Program) -> None:
    await program.start("good")
    await program.start("bad", broken=True)
    await program.start("new", drain=False)
    outcome = await leasequeue("flow", "delete", program.name, "good", "bad", "new")
    assert (outcome.code, outcome.out, outcome.error) == (1, "2 deleted\n", "run 'new' is unfinished")
    outcome = await leasequeue("flow", "delete", program.name, "good", "--json")
    assert (outcome.code, outcome.error) == (1, f"{program.name!r} has no run 'good'")
    assert outcome.document == {"queue": program.name, "deleted": 0, "missed": ["good"]}
    assert [view.id for view in await program.flow.runs.list() if view] == ["new"]
    assert await program.tasks.queue.dead_letters.count() == 0


async def test_check_finds_and_repairs_what_cannot_go_on(
    leasequeue: Leasequeue, program: Program, redis: Any
) -> None:
    await use(program.tasks.queue)
    assert await leasequeue("flow", "check", program.name) == (0, "", "")
    await program.start("lost", drain=False)
    home = program.tasks.queue.shard_of("lost").name
    await redis.delete(f"{home}:item:lost/check", f"{home}:queue")
    outcome = await leasequeue("flow", "check", program.name, "--dry-run", "--json")
    assert (outcome.code, outcome.document["repaired"]) == (3, False)
    outcome = await leasequeue("flow", "check", program.name)
    assert outcome.code == 1
    assert "lost/check" in outcome.out
    assert await leasequeue("flow", "check", program.name) == (0, "", "")
    outcome = await leasequeue("flow", "ls", program.name, "--state", "failed")
    assert "check: lost: its item has vanished" in outcome.out

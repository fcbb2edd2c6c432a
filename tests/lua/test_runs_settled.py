"""Stages whose items end by another way than `run_finish`: they are settled, and nothing waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from leasequeue.queue.plans.plan import ChildPlan
from tests.lua.runs import Row, Runs, contents
from tests.lua.space import NOW, Call, Expiring, Space
from tests.stateful.interruption import Interrupter


async def settle(runs: Runs, *ids: str, cursor: str = "0", at: int = NOW) -> tuple[list[int], list[str]]:
    """Settle stages; return the answers and the paths whose rest is to be cancelled."""
    rows = [(one,) for one in ids]
    answers, rest, *_ = await runs.space.run("run_settle", rows, cursor=cursor, now_ms=at)
    return answers, [one.split(b"\0")[2].decode() for one in rest]


async def unsettled(runs: Runs) -> dict[str, str]:
    """Return the notes."""
    return contents(await runs.space.snapshot(), "unsettled")


async def two_stages(runs: Runs, **options: Any) -> Row:
    """Start a run of two stages, and lease the first one."""
    await runs.start(runs.stage("a", **options), runs.stage("b", "a"))
    [row] = await runs.lease()
    return row


async def check_ended(runs: Runs, state: str, error: str = "") -> None:
    """Check that the first stage has ended, and that nothing is left to settle."""
    found = await runs.hash()
    assert found["s:a"] == state
    assert found.get("e:a", "") == error
    after = await runs.space.snapshot()
    assert "unsettled" not in after
    assert "options" not in after or state == "d"


@pytest.mark.parametrize(
    ("call", "state", "error"),
    [
        (Call("fail_many", [("r/a", 1, -1, "ValueError: bad")]), "f", "ValueError: bad"),
        (Call("cancel_many", [("r/a", 60_000)]), "c", ""),
        (Call("cancel_many", [("r/a", 0)]), "f", "lost: its item has vanished"),
    ],
)
async def test_an_item_that_ended_otherwise_is_noted_and_settled(
    runs: Runs, call: Call, state: str, error: str
) -> None:
    await two_stages(runs)
    assert await runs.space.run_all([call]) == [[1]]
    assert await unsettled(runs) == {"r/a": f"{runs.home}\0r\0a"}
    assert (await runs.states())["a"] == "w"
    assert await settle(runs) == ([1], [])
    await check_ended(runs, state, error)
    assert (await runs.states())["run"] == "failed"
    assert await settle(runs, "r/a") == ([0], [])


@pytest.mark.parametrize("script", ["complete_many", "set_complete"])
async def test_an_item_that_was_completed_as_a_plain_one_is_done(runs: Runs, script: str) -> None:
    row = await two_stages(runs)
    await runs.finish(row.fan([runs.child(i) for i in range(2)]))
    first, second = sorted(await runs.lease())
    await runs.finish(second.done("2"))
    stream = {"stream": "s", "reader": "r"}
    await runs.space.seed({"stream:s": Expiring({"reader": "r"})})
    arguments = stream if script == "set_complete" else {}
    assert (await runs.space.run(script, [(first.id, first.token, 0)], **arguments))[-1] == 1
    assert await unsettled(runs) == {"r/a/0": f"{runs.home}\0r\0a/0\0"}
    assert await settle(runs) == ([1], [])
    found = await runs.hash()
    assert (found["s:a/0"], found["r:a/0"], found["s:a"]) == ("d", "null", "d")
    assert "unsettled" not in await runs.space.snapshot()
    [row] = await runs.lease()
    assert await runs.space.run("complete_many", [(row.id, row.token, 0)]) == [1]
    assert await settle(runs) == ([1], [])
    assert (await runs.states())["run"] == "completed"


async def test_an_item_that_has_expired_is_settled(runs: Runs) -> None:
    await runs.start(runs.stage("a", expires_ms=1000), runs.stage("b", "a"))
    assert await runs.lease(at=NOW + 1000) == []
    assert await settle(runs, at=NOW + 1000) == ([1], [])
    await check_ended(runs, "f", "expired: no worker had begun with it in time")


async def test_a_purged_item_is_settled(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"))
    await runs.space.run("purge_queue", source="queue", purged=0)
    assert (await settle(runs))[0] == [1]
    await check_ended(runs, "f", "lost: its item has vanished")


@pytest.mark.seed("GLD-O23", "GLD-B18")
async def test_a_foreign_stage_is_done_when_a_foreign_client_has_removed_its_item(runs: Runs) -> None:
    """It leaves no note: the look at the options finds it."""
    await runs.start(runs.stage("a", foreign=True), runs.stage("b", "a"))
    await runs.space.redis.lrem(runs.space.key("queue"), 0, "r/a")
    assert await settle(runs) == ([], [])
    await runs.space.redis.unlink(runs.space.key("item:r/a"))
    assert await settle(runs) == ([1], [])
    await check_ended(runs, "d")
    assert (await runs.hash())["r:a"] == "null"
    assert await runs.step() == ["b"]


async def test_a_foreign_completion_of_a_lease_is_noted_when_it_is_reclaimed(runs: Runs) -> None:
    await two_stages(runs, foreign=True)
    await runs.space.redis.unlink(runs.space.key("item:r/a"))
    assert await runs.lease(at=NOW + 60_001) == []
    assert await unsettled(runs) == {"r/a": f"{runs.home}\0r\0a"}
    assert (await settle(runs))[0] == [1]
    await check_ended(runs, "d")


async def test_a_child_that_ended_otherwise_counts_in_its_join(runs: Runs) -> None:
    row = await two_stages(runs)
    await runs.finish(row.fan([runs.child(i) for i in range(3)], "settled"))
    children = sorted(await runs.lease())
    await runs.space.run("cancel_many", [("r/a/0", 60_000)])
    await runs.finish(children[1].done(), children[2].failed())
    assert (await runs.states())["a"] == "x"
    assert (await settle(runs))[0] == [1]
    found = await runs.hash()
    assert (found["j:a"], found["s:a/0"], found["s:a"]) == ("3 3 1 1 1 0", "c", "d")
    assert await runs.step() == ["b"]


async def test_an_item_that_ended_in_order_leaves_no_note(runs: Runs) -> None:
    row = await two_stages(runs)
    await runs.finish(row.fan([runs.child(i) for i in range(3)]))
    assert "unsettled" not in await runs.space.snapshot()
    await runs.step()
    await runs.step(b="failed")
    assert "unsettled" not in await runs.space.snapshot()


async def test_notes_that_are_left_hold_up_no_other(runs: Runs, redis: Any) -> None:
    """There are more of them than a call reads, and they were noted before."""
    await two_stages(runs)
    left = {f"!{runs.home}\0r\0{number}": "cancel" for number in range(2000)}
    await redis.hset(f"{runs.home}:unsettled", mapping=left)
    assert await runs.space.run("cancel_many", [("r/a", 60_000)]) == [1]
    for _ in range(1000):  # each reads 100 of them by chance
        await settle(runs)
        if (await runs.states())["a"] != "w":
            break
    assert (await runs.states())["a"] == "c"
    assert len(await unsettled(runs)) == len(left)


async def test_a_note_of_an_item_that_is_there_again_is_dropped(runs: Runs) -> None:
    await two_stages(runs)
    await runs.space.run("fail_many", [("r/a", 1, -1, "bad")])
    await runs.space.run("requeue_many", [("r/a",)])
    assert await settle(runs) == ([0], [])
    assert (await runs.states())["a"] == "w"
    assert "unsettled" not in await runs.space.snapshot()
    assert await runs.step() == ["a"]
    assert await runs.step() == ["b"]


async def test_what_is_to_be_cancelled_is_reported_until_it_is_done(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b"), runs.stage("c", "a", "b", join="n:1"))
    first, _ = sorted(await runs.lease())
    await runs.finish(first.done())
    assert await settle(runs) == ([], ["c"])
    assert await settle(runs) == ([], ["c"])
    assert await settle(runs, f"!{runs.home}\0r\0c") == ([1], [])
    assert await settle(runs) == ([], [])


async def test_a_stage_whose_item_was_not_added_yet_is_added_and_not_ended(runs: Runs) -> None:
    """A step that was interrupted has noted what it adds: `fsck` may have noted the same as unsettled."""
    row = await two_stages(runs)
    await runs.finish(row.done())
    await runs.space.redis.hset(runs.space.key("run:r"), "adding", b"b\0")
    await runs.space.redis.unlink(runs.space.key("item:r/b"))
    await runs.space.redis.lpop(runs.space.key("queue"))
    assert await settle(runs) == ([0], [])
    assert (await runs.hash()).get("adding") is None
    assert await runs.step() == ["b"]


async def test_a_stage_that_was_handed_over_is_ended_by_a_report(runs: Runs) -> None:
    row = await two_stages(runs)
    await runs.space.run("release_many", [("r/a", row.token, 50_000, 0)])
    reference = f"{runs.home}\0r\0a"
    assert await runs.space.run("run_report", [(reference, "done", "[1.10]")]) == [[1], []]
    assert (await runs.hash())["r:a"] == "[1.10]"
    after = await runs.space.snapshot()
    assert "scheduled" not in after
    assert "unsettled" not in after
    assert await runs.space.run("run_report", [(reference, "failed", "late")]) == [[0], []]
    assert await runs.finish(row.done()) == [0]
    assert await runs.step() == ["b"]


async def test_a_report_drops_the_dead_letter_of_the_item(runs: Runs) -> None:
    await two_stages(runs)
    await runs.space.run("fail_many", [("r/a", 1, -1, "plainly")])
    reference = f"{runs.home}\0r\0a"
    assert await runs.space.run("run_report", [(reference, "done", "1")]) == [[1], []]
    after = await runs.space.snapshot()
    assert after.keys().isdisjoint({"dead", "dead:r/a", "unsettled"})
    assert (await runs.states())["a"] == "d"


async def test_the_dead_letter_is_dropped_even_if_the_report_is_interrupted(runs: Runs, redis: Any) -> None:
    rows = [(f"{runs.home}\0r\0a", "done", "1")]
    report, allowed, ended = Call("run_report", rows), 0, False
    while not ended:
        await redis.flushdb()
        await two_stages(runs)
        await runs.space.run("fail_many", [("r/a", 1, -1, "plainly")])
        ended = (await Interrupter(runs.space).run(report, allowed)).ended
        state = (await runs.states())["a"]
        await settle(runs)
        after = await runs.space.snapshot()
        assert after.keys().isdisjoint({"dead", "dead:r/a"}) == (state == "d"), allowed
        assert "unsettled" not in after
        allowed += 1
    assert allowed > 3


async def test_the_holder_of_an_item_of_an_earlier_run_of_the_same_id_completes_it(runs: Runs) -> None:
    """A finish that was interrupted leaves its item; the run has ended, is deleted, and started again."""
    await runs.start(runs.stage("a"))
    [row] = await runs.lease()
    call = Call("run_finish", [row.done()])
    assert not (await Interrupter(runs.space).run(call, 6)).ended
    for is_last in (0, 1):
        assert await runs.space.run("run_delete", run="r", is_last=is_last) == 1
    await runs.start(runs.stage("b"))
    before = await runs.hash()
    assert "item:r/a" in await runs.space.snapshot()
    assert await runs.finish(row.done()) == [1]
    assert await runs.hash() == before
    assert "item:r/a" not in await runs.space.snapshot()


async def test_a_report_of_a_failure(runs: Runs) -> None:
    await two_stages(runs)
    rows = [(f"{runs.home}\0r\0a", "failed", "refused"), (f"{runs.home}\0gone\0a", "done", "1")]
    assert await runs.space.run("run_report", rows) == [[1, 0], []]
    assert await runs.states() == {"run": "failed", "a": "f"}
    assert (await runs.space.snapshot()).keys().isdisjoint({"processing", "dead", "options", "queue"})


async def test_items_of_runs_stay_where_they_are_when_a_queue_is_moved(runs: Runs) -> None:
    other = Space(runs.space.redis, f"{runs.home}-other")
    await runs.start(runs.stage("a"))
    await runs.space.run("add_items", [("plain", "x", 0, 0)])
    assert await other.run("move_items", source=runs.home, spot="queue", left_out=0) == [2, 1, b"plain"]
    assert await runs.step() == ["a"]


async def test_the_parts_of_a_chain_that_are_not_entered_are_not_missing(runs: Runs) -> None:
    """They have no holder who would add them: neither settling nor a retry waits for one."""
    row = await two_stages(runs)
    parts = tuple(runs.child(number) for number in range(3))
    assert await runs.finish(row.fan([ChildPlan("", b"", parts=parts, policy="chain")])) == [1]
    assert await settle(runs, f"={runs.home}\0r\0a/0") == ([0], [])
    [part] = await runs.lease()
    assert (await runs.states())["a/0"] == "x"
    assert await runs.finish(part.failed()) == [1]
    steering = {"of_run": "r", "caller": "c", "is_last": 1}
    assert await runs.space.run("run_reopen", [(part.path,)], **steering) == [1, 1]
    assert [one.path for one in await runs.lease()] == ["a/0/0"]

"""add_once, once_run and once_drop: a run of a job adds each item once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.space import NOW, Expiring, Held, Space, State, new, picture

JOB: dict[str, object] = {"run": "j", "keep_ms": 600_000}
END: dict[str, Any] = {"run": "j", "job": "name", "ended_ms": 600_000, "keep_ms": 600_000}
#: What is left of a run that has ended.
ENDED: State = {"once:j:ended": Expiring("1")}


def marks(*ids: str) -> State:
    return {"once:j": Expiring({*ids})}


async def test_an_item_that_the_run_has_added_is_not_added_again(space: Space) -> None:
    await space.run("add_once", [new("a"), new("b", delay=9_000)], **JOB)
    before = await space.snapshot()
    assert await space.run("add_once", [new("a"), new("b")], **JOB) == [2, 2]
    assert await space.snapshot() == before


async def test_an_item_that_another_client_has_added_is_left_alone_and_not_noted(space: Space) -> None:
    before = picture(waiting=["a"], leased={"b": Held(1)}, fence=1)
    assert await space.apply(before, "add_once", [new("a"), new("b")], **JOB) == ([0, 0], before)


async def test_rows_of_every_kind_share_a_call(space: Space) -> None:
    await space.seed(picture(waiting=["there"]) | marks("done"))
    rows = [new("a"), new("done"), new("there"), new("later", delay=9_000), new("a"), new("done")]
    assert await space.run("add_once", rows, **JOB) == [1, 2, 0, 1, 0, 2]
    assert await space.snapshot() == (
        picture(waiting=["there", "a"], scheduled={"later": NOW + 9_000}) | marks("done", "a", "later")
    )


async def test_jobs_are_independent(space: Space) -> None:
    await space.seed(marks("a"))
    assert await space.run("add_once", [new("a")], run="other", keep_ms=600_000) == [1]


async def test_the_ids_of_a_run_that_never_ends_expire(space: Space) -> None:
    await space.run("add_once", [new("a")], **JOB)
    assert 500_000 < await space.redis.pttl(space.key("once:j")) <= 600_000


async def test_ending_a_run_returns_its_count(space: Space) -> None:
    await space.run("add_once", [new("a"), new("b")], **JOB)
    assert await space.run("once_drop", [], **END | {"keep_ms": 0}, report="") == 2
    assert await space.snapshot() == picture(waiting=["a", "b"]) | ENDED
    assert await space.run("once_drop", [], **END | {"keep_ms": 0}, report="") == -1


async def test_its_report_is_its_result_and_ending_it_again_changes_nothing(space: Space) -> None:
    await space.seed(marks("a", "b", "c"))
    for _ in range(2):
        assert await space.run("once_drop", [], **END, report="r1") == 3
        assert await space.snapshot() == {"result:name": Expiring("3 r1")} | ENDED


async def test_a_run_that_another_client_has_ended_is_not_ended_again(space: Space) -> None:
    await space.seed({"result:name": Expiring("3 r1")} | ENDED)
    assert await space.run("once_drop", [], **END, report="r2") == -1
    assert await space.snapshot() == {"result:name": Expiring("3 r1")} | ENDED


async def test_a_run_that_has_ended_adds_nothing(space: Space) -> None:
    """A task outlives its job."""
    await space.run("add_once", [new("a")], **JOB)
    await space.run("once_drop", [], **END, report="r")
    before = await space.snapshot()
    assert await space.run("add_once", [new("a"), new("b"), new("c", delay=9)], **JOB) == [2, 2, 2]
    assert await space.snapshot() == before


async def test_a_run_that_has_added_nothing_ends_as_well(space: Space) -> None:
    assert await space.run("once_drop", [], **END, report="r") == 0
    assert await space.run("add_once", [new("a")], **JOB) == [2]


async def test_an_ended_run_is_known_for_a_time(space: Space) -> None:
    await space.run("add_once", [new("a")], run="j", keep_ms=1_000)
    await space.run("once_drop", [], **END, report="r")
    assert 500_000 < await space.redis.pttl(space.key("once:j:ended")) <= 600_000


@pytest.mark.parametrize("name", ["nightly", "a:run", "", "ä {b} *\x00"])
async def test_a_name_has_one_open_run(space: Space, name: str) -> None:
    for new_run in ("r1", "r2"):
        assert await space.run("once_run", job=name, run=new_run, keep_ms=600_000) == b"r1"
    assert await space.snapshot() == {f"once:{name}:run": Expiring("r1")}
    await space.run("once_drop", [], **END | {"run": "r1", "job": name, "keep_ms": 0}, report="")
    assert await space.snapshot() == {"once:r1:ended": Expiring("1")}
    assert await space.run("once_run", job=name, run="r3", keep_ms=600_000) == b"r3"


async def test_the_end_of_a_run_leaves_the_name_to_the_run_that_has_it(space: Space) -> None:
    await space.run("once_run", job="name", run="newer", keep_ms=600_000)
    await space.run("once_drop", [], **END, report="r")
    assert await space.run("once_run", job="name", run="newest", keep_ms=600_000) == b"newer"


async def test_a_name_is_known_for_a_time_after_the_last_call(space: Space) -> None:
    for keep_ms in (1_000, 600_000):
        await space.run("once_run", job="name", run="r", keep_ms=keep_ms)
    assert 500_000 < await space.redis.pttl(space.key("once:name:run")) <= 600_000


async def test_1000_items_are_added_once_in_a_call(space: Space) -> None:
    rows = [new(f"i{n}") for n in range(1000)]
    assert await space.run("add_once", rows, **JOB) == [1] * 1000
    assert await space.run("add_once", rows, **JOB) == [2] * 1000

"""add_items and add_once: new items wait or are scheduled; others are left alone, replaced, or noted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.space import NOW, Expiring, Held, Space, State, lease_keys, new, picture


@pytest.mark.seed("GLD-K5", "GLD-B1")
async def test_rows_of_every_kind_share_a_call(space: Space) -> None:
    await space.seed(picture(waiting=["a"], leased={"b": Held(1)}, fence=1))
    rows = [new("c"), new("b"), new("d", delay=9_000), new("a"), new("e")]
    assert await space.run("add_items", rows) == [1, 0, 1, 0, 1]
    assert await space.snapshot() == picture(
        waiting=["a", "c", "e"], leased={"b": Held(1)}, scheduled={"d": NOW + 9_000}, fence=1
    )


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(picture(waiting=["x"]), id="waiting"),
        pytest.param(picture(waiting=["x"], past={"x": Held(3)}, fence=3), id="waiting again"),
        pytest.param(picture(leased={"x": Held(3)}, fence=3), id="leased"),
        pytest.param(picture(scheduled={"x": NOW + 1}), id="scheduled"),
        pytest.param(picture() | {"item:x": "old"}, id="in no list"),
    ],
)
@pytest.mark.parametrize("delay", [0, 5_000])
@pytest.mark.seed("RWQ-O8", "WRQ-O1", "WRQ-O3", "GLD-O1")
async def test_an_existing_item_is_left_alone(space: Space, before: State, delay: int) -> None:
    assert await space.apply(before, "add_items", [("x", "other data", delay, 0)]) == ([0], before)


async def test_the_second_of_two_equal_ids_in_a_call_exists_already(space: Space) -> None:
    assert await space.run("add_items", [new("a"), ("a", "other data", 0, 0)]) == [1, 0]
    assert await space.snapshot() == picture(waiting=["a"])


@pytest.mark.parametrize("others", [1, 300, 600])
@pytest.mark.seed("RWQ-G14")
async def test_unique_replaces_the_data_of_a_waiting_item_where_it_is(space: Space, others: int) -> None:
    waiting = [f"{number}" for number in range(others)]
    waiting.insert(others // 2, "a")
    await space.seed(picture(waiting=waiting))
    assert await space.run("add_items", [("a", "new data", 0, 1)]) == [1]
    # Deep in a long list the id is not found: its second place is dropped later.
    after = picture(waiting=[*waiting, "a"] if others == 600 else waiting) | {"item:a": "new data"}
    assert await space.snapshot() == after


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(picture(leased={"a": Held(4)}, fence=4), id="leased"),
        pytest.param(picture(leased={"a": Held(4, ends=NOW - 5)}, fence=4), id="expired"),
        pytest.param(picture(scheduled={"a": NOW + 99}, past={"a": Held(4)}, fence=4), id="scheduled"),
        pytest.param(picture(fence=4) | {"item:a": "old"}, id="in no list"),
    ],
)
async def test_unique_begins_a_new_incarnation(space: Space, before: State) -> None:
    await space.seed(before)
    assert await space.run("add_items", [new("a", unique=True)]) == [1]
    assert await space.snapshot() == picture(waiting=["a"], fence=4)


async def test_unique_and_delayed_replaces_the_due_time(space: Space) -> None:
    await space.seed(picture(scheduled={"a": NOW + 99_000}))
    assert await space.run("add_items", [new("a", unique=True, delay=5_000)]) == [1]
    assert await space.snapshot() == picture(scheduled={"a": NOW + 5_000})


async def test_equal_unique_ids_in_one_call_are_listed_once(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(4), "b": Held(5)}, fence=5))
    twice = [new("a", unique=True), new("n", unique=True), new("a", unique=True), new("n", unique=True)]
    assert await space.run("add_items", twice) == [1, 1, 1, 1]
    assert await space.snapshot() == picture(waiting=["a", "n"], leased={"b": Held(5)}, fence=5)


@pytest.mark.parametrize(
    ("delays", "after"),
    [
        ((5_000, 0), picture(waiting=["w", "a"])),
        ((0, 5_000), picture(waiting=["w"], scheduled={"a": NOW + 5_000})),
        ((5_000, 9_000), picture(waiting=["w"], scheduled={"a": NOW + 9_000})),
    ],
)
async def test_the_last_of_equal_unique_ids_in_one_call_decides(
    space: Space, delays: tuple[int, int], after: State
) -> None:
    first, last = (new("a", unique=True, delay=delay) for delay in delays)
    assert await space.run("add_items", [first, new("w"), last]) == [1, 1, 1]
    assert await space.snapshot() == after


@pytest.mark.seed("WRQ-B7")
async def test_an_item_that_a_foreign_client_completed_can_be_added_again(space: Space) -> None:
    """The new item does not inherit the lease keys and the ledger that the foreign client has left."""
    ours = picture(leased={"a": Held(7)}, fence=7) | lease_keys("a", "foreign")
    del ours["item:a"]
    assert await space.apply(ours, "add_items", [new("a")]) == ([1], picture(waiting=["a"], fence=7))


@pytest.mark.seed("WRQ-G6")
async def test_bytes_are_stored_unchanged(space: Space) -> None:
    raw = bytes(range(256))
    assert await space.run("add_items", [(b"\x00 \xff\n", raw, 0, 0), (b"empty", b"", 0, 0)]) == [1, 1]
    assert await space.redis.get(space.key("item:").encode() + b"\x00 \xff\n") == raw
    assert await space.redis.get(space.key("item:empty")) == b""
    assert await space.redis.lrange(space.key("queue"), 0, -1) == [b"empty", b"\x00 \xff\n"]


async def test_a_delay_is_counted_by_the_server_s_clock_and_its_lease_key_expires_with_it(
    space: Space,
) -> None:
    async def server_ms() -> int:
        seconds, micros = await space.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    earliest = await server_ms() + 5_000
    await space.run("add_items", [new("a", delay=5_000)], now_ms=b"")
    due = float(await space.send("ZSCORE", space.key("scheduled"), "a"))
    assert earliest <= due <= await server_ms() + 5_000
    assert 0 < await space.redis.pttl(space.key("lease:a")) <= 5_000


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


async def test_rows_of_every_kind_are_added_once_in_a_call(space: Space) -> None:
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

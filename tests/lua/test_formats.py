"""The format of a queue: which scripts refuse which, and a change of it that is interrupted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from leasequeue.wire.scripts import load
from tests.lua.space import Call, State, picture
from tests.stateful import interruption
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from tests.lua.space import Space

#: A queue with items in all states, and some rare keys.
USED = picture(waiting=["a"], scheduled={"b": 2_000_000.0}, fence=3) | {"control": {"rate": "1"}}
#: What a program must know that is not shut out, besides the format of the scripts here.
NEWER: State = {"format": "2 2 0.2.0", "too_new_for:1": "2 0.2.0"}
#: The values of arguments by their kind.
ANY = {"text": "1", "integer": 1, "count": 1, "flag": 0}


async def test_every_script_refuses_a_newer_format_and_changes_nothing(space: Space) -> None:
    await space.seed(picture(waiting=["a"], fence=3) | NEWER)  # without rare keys
    before = await space.snapshot()
    for name, script in load().items():
        arguments = {one: ANY[kind] for one, kind in script.arguments.items() if kind != "rest"}
        count, *rest = space.tail(Call(name, [], arguments | {"prefix": space.prefix}))
        if name in {"probe", "workers"}:  # which show whose version it is
            continue
        with pytest.raises(ResponseError, match=f"FORMATTOONEW 2 0.2.0 {space.prefix}"):
            await space.send("EVAL", script.body, count, *rest)
    assert await space.snapshot() == before


@pytest.mark.parametrize(
    ("of_other", "own", "is_moved"),
    [
        ({"other:format": "2 1 0.2.0"}, {}, False),
        ({"other:format": "1 2 0.2.0"}, {}, False),
        ({"other:format": "2 1 0.2.0"}, {"format": "2 1 0.3.0"}, True),
        ({}, {}, True),
    ],
)
async def test_items_are_only_moved_between_queues_in_one_format(
    space: Space, of_other: State, own: State, *, is_moved: bool
) -> None:
    await space.seed(USED | own | of_other | {"other:item:x": "1", "other:queue": ["x"]})
    moved = await space.run(
        "move_items", [("x",)], source=space.key("other"), spot="ids", left_out=0, count=100
    )
    assert moved == ([1, 0, b"x"] if is_moved else [-1])
    assert ("other:queue" in await space.snapshot()) is not is_moved


@pytest.mark.parametrize(
    ("before", "to", "after"),
    [
        (USED, 2, USED | NEWER),
        (USED | NEWER, 1, USED | NEWER | {"format": "1 2 0.2.0"}),
        (NEWER, 1, {}),
        ({"format": "1 2 0.2.0", "too_new_for:1": "2 0.2.0"}, 1, {}),
    ],
    ids=["raised", "lowered", "lowered when empty", "opened when empty"],
)
async def test_a_change_that_is_interrupted_shuts_out_too_many_rather_than_too_few(
    space: Space, monkeypatch: pytest.MonkeyPatch, before: State, to: int, after: State
) -> None:
    text = load()["set_format"].body.replace(b":too_new_for:1", b":too_new_for:2")  # that of a newer version
    monkeypatch.setattr(
        interruption, "load", lambda: {"set_format": replace(load()["set_format"], body=text)}
    )
    interrupter = Interrupter(space)
    call = Call("set_format", [], {"to": to, "floor": to, "known": 2, "version": "0.2.0"})
    ended, writes = False, 0
    while not ended:
        await _clear(space)
        await space.seed(before | {"idle": {"30d@lh:old": 1.0}})
        ended = (await interrupter.run(call, writes)).ended
        found = await space.snapshot()
        # What writes format 2, or needs it, is never open to programs that do not know it.
        assert "too_new_for:1" in found or "format" not in found
        assert (await interrupter.run(call)).ended
        found = await space.snapshot()
        assert ("idle" in found) is (to == 1)
        found.pop("idle", None)
        assert found == after
        writes += 1
    assert writes > 2


async def _clear(space: Space) -> None:
    for key in await space.snapshot():
        await space.redis.delete(space.key(key))

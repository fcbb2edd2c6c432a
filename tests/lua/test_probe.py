"""The probe calls each command that the scripts send, and leaves nothing behind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from leasequeue.wire.scripts import load

if TYPE_CHECKING:
    from tests.lua.space import Space

pytestmark = pytest.mark.core


def test_the_probe_calls_each_command_of_the_scripts() -> None:
    probed = {*re.findall(r"[{(]'([A-Z]+)'[,})]", load()["probe"].body.decode())}
    assert probed >= {name for script in load().values() for name in script.commands}


async def test_the_probe_finds_all_permitted_and_leaves_nothing(space: Space) -> None:
    set_many, *refused = await space.run("probe")
    assert refused == []
    works = "return type(redis.pcall('MSETEX', 1, KEYS[1], '', 'PX', 1)) == 'table' and 0 or 1"
    assert set_many == await space.send("EVAL", works, "1", space.key("other"))
    await space.redis.unlink(space.key("other"))
    assert await space.snapshot() == {}


async def test_the_probe_works_on_other_keys_than_those_of_the_queue(space: Space) -> None:
    await space.seed({"queue": ["a"], "item:a": "data"})
    before = await space.snapshot()
    await space.run("probe")
    assert await space.snapshot() == before

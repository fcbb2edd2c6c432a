"""The files of lua/: each keeps its contract, and is accepted by the server."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from leasequeue.keys import KEYS, NONE, QueueKeys
from leasequeue.states import DETAILS, FIELDS, EventKind
from leasequeue.wire.runner import BoundScript
from leasequeue.wire.scripts import load
from lua.compose.composer import SECTIONS
from lua.compose.linker import name_of, names_in, split
from lua.compose.writer import Sources

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lua.space import Space

SCRIPTS = load()
SOURCES = Sources.read()

#: Commands whose cost has no bound, that read the whole database, or are of no use in a script.
FORBIDDEN = {b"KEYS", b"FLUSHALL", b"FLUSHDB", b"HGETALL", b"SMEMBERS", b"HKEYS", b"HVALS", b"DEL", b"SORT"}


def test_there_is_one_script_for_each_file() -> None:
    names = {name_of(path) for path in SOURCES.scripts}
    assert names
    assert SCRIPTS.keys() == names
    assert all(name == script.name for name, script in SCRIPTS.items())


def test_headers_begin_with_a_sentence_and_have_their_sections_in_order() -> None:
    for name, text in SOURCES.scripts.items():
        header, _ = split(text)
        assert re.fullmatch(r"[A-Z].*[.:,`a-z]", header[0]), f"{name}: {header[0]}"
        titles = [line.partition(":")[0] for line in header]
        assert [title for title in titles if title in SECTIONS] == [*SECTIONS], name


@pytest.mark.seed("RRQ-B7")
def test_each_script_has_a_key_and_each_declared_key_is_used() -> None:
    keys = QueueKeys("q", "lh:s")
    for script in SCRIPTS.values():
        assert len(script.keys) > 1, f"{script.name}: a cluster finds the node by the first key"
        assert script.keys[-1] == NONE, f"{script.name}: a key that is missing while a slot is being moved"
        assert all(keys[name].startswith(b"q:" + name.encode()) for name in script.keys)
    assert {name for script in SCRIPTS.values() for name in script.keys} == KEYS.keys()


def test_the_prefix_is_the_first_argument_where_it_is_used() -> None:
    for script in SCRIPTS.values():
        assert [*script.arguments][:1] == ["prefix"] or b"prefix" not in script.body, script.name


@pytest.mark.seed("RWQ-T3", "WRQ-B12")
def test_no_script_walks_the_whole_database_or_blocks() -> None:
    for script in SCRIPTS.values():
        commands = {*re.findall(rb"call\('(\w+)'", script.body)}
        assert commands, script.name
        wrong = {one for one in commands - {b"BITFIELD"} if one.startswith(b"B") or one in FORBIDDEN}
        assert wrong == set(), script.name


def test_every_shared_function_is_used_by_a_script() -> None:
    bodies = "\n".join(script.body.decode() for script in SCRIPTS.values())
    for piece in SOURCES.library.pieces.values():
        code = "\n".join(block.code for block in piece.blocks)
        assert {name for name in piece.needs if name not in names_in(code)} == set(), piece.name
        assert [name for name in piece.functions if f"local function {name}(" not in bodies] == [], piece.name


def test_every_declared_event_is_emitted_and_its_fields_are_those_of_the_stream() -> None:
    assert {kind for script in SCRIPTS.values() for kind in script.events} == {*EventKind}
    code = SOURCES.texts["events/lib/emit"]
    entry = code.partition("function fields_of(")[2].partition("\n  end\n")[0]
    written = re.findall(r"'(\w+)',", entry)
    assert written == [*FIELDS]
    assert not FIELDS.keys() & DETAILS.keys()
    assert all({*kind.fields} <= FIELDS.keys() | DETAILS.keys() for kind in EventKind)


async def test_the_server_loads_each_script_under_our_name(redis: Redis) -> None:
    for script in SCRIPTS.values():
        assert hashlib.sha1(script.body, usedforsecurity=False).hexdigest().encode() == script.sha
        # redis-py always decodes this reply.
        assert (await redis.script_load(script.body)).encode() == script.sha, script.name


def test_a_missing_argument_of_a_bound_script_is_an_error() -> None:
    bound = BoundScript("counts", QueueKeys("q", "lh:s"))
    with pytest.raises(KeyError, match="prefix"):
        bound.tail({})


def test_the_probe_calls_each_command_of_the_scripts() -> None:
    probed = {*re.findall(r"[{(]'([A-Z]+)'[,})]", load()["probe"].body.decode())}
    assert probed >= {name for script in load().values() for name in script.commands}


async def test_the_probe_finds_all_permitted_and_leaves_nothing(space: Space) -> None:
    set_many, *refused = await space.run("probe")
    works = "return type(redis.pcall('MSETEX', 1, KEYS[1], '', 'PX', 1)) == 'table' and 0 or 1"
    assert set_many == await space.send("EVAL", works, "1", space.key("other"))
    assert {*refused} <= {b"?MSETEX", b"?SPUBLISH"}, "Redis 6.2 lacks both"
    assert (b"?MSETEX" in refused) is not bool(set_many)
    await space.redis.unlink(space.key("other"))
    assert await space.snapshot() == {}


async def test_the_probe_works_on_other_keys_than_those_of_the_queue(space: Space) -> None:
    await space.seed({"queue": ["a"], "item:a": "data"})
    before = await space.snapshot()
    await space.run("probe")
    assert await space.snapshot() == before

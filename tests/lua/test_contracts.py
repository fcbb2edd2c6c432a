"""The files of lua/ as they are: each keeps its contract, stays small, and is taken by the server."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasehold.keys import QueueKeys
from leasehold.scripting import catalogue, linker
from leasehold.scripting.runner import BoundScript, bind

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold.scripting.catalogue import Script

pytestmark = pytest.mark.core

SCRIPTS = catalogue.load()
FOLDER = Path(str(catalogue.folder()))
EACH = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())

#: What goes to the server when it does not know a script yet, and stays in its memory.
MAX_BYTES = 13 * 1024

#: What a header calls the contents of its keys, and the names that it may give them.
KEY_KINDS = {
    "queue": "list",
    "inbox": "list",
    "processing": "list",
    "gone": "set",
    "deadlines": "zset",
    "scheduled": "zset",
    "sessions": "zset",
    "ledger": "hash",
    "fence": "counter",
    "dead": "zset",
    "schedules": "hash",
    "ticks": "zset",
    "events": "stream",
}


def header(name: str) -> str:
    text = (FOLDER / f"{name}.lua").read_text()
    return text[: re.search(r"^[^-]|^$", text, re.MULTILINE).start()]  # type: ignore[union-attr]  # code follows


def test_there_is_one_script_for_each_file() -> None:
    files = {path.stem for path in FOLDER.glob("*.lua")}
    assert files
    assert SCRIPTS.keys() == files
    assert all(name == script.name for name, script in SCRIPTS.items())


@EACH
def test_a_composed_script_is_small(script: Script) -> None:
    assert len(script.body) <= MAX_BYTES


@EACH
def test_a_header_is_complete(script: Script) -> None:
    text = header(script.name)
    first = text.splitlines()[0]
    assert re.fullmatch(r"-- [A-Z].*[.:]", first), "it begins with a sentence"
    sections = re.findall(r"^-- (\w+):", text, re.MULTILINE)
    assert [section for section in sections if section in catalogue.SECTIONS] == [*catalogue.SECTIONS]


@EACH
def test_a_header_names_each_key_as_python_does_and_says_what_it_holds(script: Script) -> None:
    assert script.keys, "a cluster finds the node by the first key"
    keys = QueueKeys("q", "lh:s")
    text = header(script.name)
    for name in script.keys:
        assert keys[name].startswith(b"q:" + name.encode())
        assert re.search(rf"^--   {name} +{KEY_KINDS[name]} ", text, re.MULTILINE)


def test_python_knows_no_key_that_no_script_has() -> None:
    used = {name for script in SCRIPTS.values() for name in script.keys}
    assert used == {*QueueKeys.NAMES, "inbox"} == KEY_KINDS.keys()


@EACH
def test_the_prefix_is_an_argument_and_many_things_come_last(script: Script) -> None:
    assert [*script.arguments][:1] == ["prefix"] or b"prefix" not in script.body
    assert "rest" not in [*script.arguments.values()][:-1]


@EACH
def test_no_script_walks_the_whole_database_or_blocks(script: Script) -> None:
    commands = {*re.findall(rb"call\('(\w+)'", script.body)}
    assert commands
    assert not {command for command in commands if command.startswith(b"B") or command in FORBIDDEN}


#: Bound to nothing, or to the size of the whole database, or of no use in a script.
FORBIDDEN = {b"KEYS", b"FLUSHALL", b"FLUSHDB", b"HGETALL", b"SMEMBERS", b"HKEYS", b"HVALS", b"DEL", b"SORT"}


def test_every_shared_function_is_used_by_a_script() -> None:
    bodies = "\n".join(script.body.decode() for script in SCRIPTS.values())
    for file in (FOLDER / "lib").glob("*.lua"):
        piece = linker.read_piece(file.stem, file.read_text())
        code = "\n".join(block.code for block in piece.blocks)
        assert {name for name in piece.needs if name not in linker.names_in(code)} == set(), piece.name
        assert [name for name in piece.functions if f"local function {name}(" not in bodies] == [], piece.name


@EACH
async def test_the_server_takes_it_and_gives_it_the_name_that_we_give_it(
    redis: Redis, script: Script
) -> None:
    assert hashlib.sha1(script.body, usedforsecurity=False).hexdigest().encode() == script.sha
    # redis-py decodes this one reply, whatever it is told.
    assert (await redis.script_load(script.body)).encode() == script.sha


def test_a_bound_script_puts_names_into_the_order_of_the_header() -> None:
    keys = QueueKeys("q", "lh:s")
    bound = bind("renew_many", keys)
    arguments: dict[str, bytes | int] = {"session": b"lh:s", "now_ms": 5, "prefix": b"q", "more": 1}
    tail = bound.tail(arguments, [b"a", b"1", b"9"])
    names = [name for name in bound.script.arguments if name != "entries"]
    given = [{"session": b"lh:s", "now_ms": b"5", "prefix": b"q"}[name] for name in names]
    key_names = [keys[name] for name in bound.script.keys]
    assert [*tail] == [b"%d" % len(key_names), *key_names, *given, b"a", b"1", b"9"]
    assert bound.command(arguments)[:2] == (b"EVAL", bound.script.body)


def test_a_bound_script_misses_no_argument_in_silence() -> None:
    bound = BoundScript(SCRIPTS["counts"], QueueKeys("q", "lh:s"))
    with pytest.raises(KeyError, match="prefix"):
        bound.tail({})

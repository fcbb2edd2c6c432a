"""What others have written reaches no terminal as it is: each command, on a queue that is full of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import sys
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import Item
from tests.hostile import BYTES, NAME, SHOWN, TEXT, fill, harm_of, write_item

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

#: Commands that read, each with a line of JSON as well: `Q` is the queue.
READING = (
    *("ls Q", "stats Q", "ls", "stats", "show Q", "show Q TEXT", "show Q BYTES", "show Q unknown-TEXT"),
    *("peek Q --count 9", "dead ls Q", "dead show Q TEXT", "dead show Q BYTES", "dead show Q unknown-TEXT"),
    *("schedule ls Q", "flow ls Q", "flow show Q NAME", "flow find Q NAME user=TEXT", "limits Q", "events Q"),
    *("workers ls Q", "flow show Q unknown-NAME"),
)
#: Commands that change something, or find nothing to change.
CHANGING = (
    *("flow show Q NAME --mermaid", "acl Q", "acl Q --user NAME", "add Q TEXT --id TEXT"),
    *("schedule run Q TEXT", "schedule run Q unknown-TEXT", "schedule rm Q unknown-TEXT"),
    *("dead requeue Q unknown-TEXT", "dead drop Q unknown-TEXT", "cancel Q unknown-TEXT"),
    *("flow cancel Q unknown-NAME", "flow retry Q unknown-NAME", "flow replay Q unknown-NAME"),
    *("flow replay Q NAME --id 2-NAME", "flow delete Q unknown-NAME", "flow check Q"),
    *("limits Q --group NAME --remove rate", "workers stop Q unknown-TEXT", "resume Q --group unknown-NAME"),
    *("resume Q", "workers fail Q TEXT", "clean Q --deep", "clean --lines", "recover Q --elapsed 0s"),
    *("mv Q other TEXT", "fsck Q", "dead requeue Q --all", "clear-leases Q --yes", "purge Q", "rm Q"),
    "rm Q --yes",
)
#: What shows the text of an item, a dead letter or a result in full, and ids that another command may read.
IN_FULL = ("show Q TEXT", "show Q BYTES", "dead show Q TEXT", "dead show Q BYTES", "recover Q --elapsed 0s")


@pytest.fixture
async def hostile(redis: Redis, make_queue: MakeQueue, name: str) -> AsyncWorkQueue:
    """Return a queue that is full of the text, also in its name."""
    queue = make_queue(name=f"{{{name}}} {TEXT}")
    await fill(redis, queue)
    return queue


def words_of(command: str, queue: str) -> list[str]:
    """Return the arguments of a command."""
    texts = {"TEXT": TEXT, "NAME": NAME, "BYTES": BYTES.decode(errors="surrogateescape")}
    words = [queue if word == "Q" else word for word in command.split()]
    for name, text in texts.items():
        words = [word.replace(name, text) if len(word) < 30 else word for word in words]
    return words


@pytest.mark.slow
async def test_no_command_passes_on_what_a_terminal_acts_on(
    leasequeue: Leasequeue, hostile: AsyncWorkQueue
) -> None:
    harm = {}
    for command in (*READING, *CHANGING):
        lines = f"light:{hostile.name[:5]}\n{TEXT}\n".encode() if "--lines" in command else b""
        found = await leasequeue(*words_of(command, hostile.name), stdin=lines)
        shown = f"{found.out}{found.err}"
        harm[command] = harm_of(shown, longest=None if command in IN_FULL else 20_000)
        if command in READING:
            as_json = await leasequeue(*words_of(command, hostile.name), "--json")
            assert as_json.out.isascii()
            assert all(json.loads(line) for line in as_json.out.splitlines())
            assert SHOWN[:20] in shown.replace("\n", ""), command
        assert "<script" not in shown or "--mermaid" not in command
        assert "Traceback" not in shown
    assert not {command: found for command, found in harm.items() if found}


@pytest.mark.slow
async def test_a_terminal_gets_the_ends_of_what_a_pipe_gets_in_full(
    redis: Redis, make_queue: MakeQueue, redis_url: str, name: str
) -> None:
    queue = make_queue(name=f"{name} {NAME}")  # no argument of a process holds NUL
    await write_item(redis, queue, NAME.encode(), waits=False)
    found = await on_terminal("show", queue.name, NAME, LEASEQUEUE_URL=redis_url)
    assert harm_of(found) == []
    assert len(re.findall(r"… \(1,0\d\d,\d{3} characters\) …", found)) == 2, "the error and the data"
    await queue.pause(reason=TEXT)
    assert harm_of(await on_terminal("stats", queue.name, LEASEQUEUE_URL=redis_url)) == []


async def test_a_key_of_another_type_ends_neither_the_counts_nor_the_stats(
    leasequeue: Leasequeue, make_server: MakeServer, make_queue: MakeQueue
) -> None:
    url = (await make_server()).url
    for name in (f"bad {TEXT}", "good"):
        await make_queue(url=url, name=name).add_item(Item(b"x"))
    async with Redis.from_url(url) as redis:
        await redis.set(f"bad {TEXT}:scheduled", "of another type")
    for command in ("ls", "stats"):
        outcome = await leasequeue(command, "--url", url)
        assert (outcome.code, outcome.table[1][:2]) == (0, ["good", "1"])
        assert rf"bad {SHOWN}" in outcome.error
        assert harm_of(outcome.error) == []


async def on_terminal(*arguments: str, **environment: str) -> str:
    """Run a command on a terminal, and return what that gets."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "leasequeue.cli", *arguments),
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)

    def read() -> bytes:
        parts = []
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:
            while part := terminal.read(1 << 16):  # it fails when the command has ended
                parts.append(part)
        return b"".join(parts)

    shown = await asyncio.to_thread(read)
    assert await process.wait() == 0
    return shown.decode().replace("\r\n", "\n")  # a terminal has both

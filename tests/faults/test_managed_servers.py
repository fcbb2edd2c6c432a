"""Servers that lack commands, as those of cloud providers do: what works there, and what is said.

A command is taken away in both ways that providers have: by access rules (NOPERM), and by its name (unknown
command). The page of the servers in the docs has the lists of the providers.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from leasequeue import AsyncWorkQueue, Item, TaskQueue
from leasequeue.embedded.guardian import private_folder
from leasequeue.errors import AccessDenied, ServerRefused
from leasequeue.queue.queue import engine_of
from leasequeue.wire.scripts import find_script
from tests.cli.program import leasequeue
from tests.dashboard.boards import open_board
from tests.eventually import eventually
from tests.ports import free_port
from tests.processes import answering
from tests.queue.asking import command
from tests.queue.pretender import Pretender
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from tests.cli.program import Leasequeue

__all__ = ["leasequeue"]
pytestmark = pytest.mark.slow

TIMEOUT = 120


async def items(queue: AsyncWorkQueue) -> None:
    assert await queue.add_item(Item(b"x", id="a"))
    lease = await queue.lease(30, block=False)
    assert lease is not None
    assert await queue.complete(lease, result=b"r")
    assert await queue.results.get("a") == b"r"
    assert await queue.counts() == (0, 0, 0, 0)


async def waiting(queue: AsyncWorkQueue) -> None:
    taking = asyncio.create_task(queue.lease(30))
    await eventually(
        "it waits, or is refused",
        lambda: taking.done() or any(one.purpose == "waits" for one in engine_of(queue).session.connections),
    )
    if not taking.done():
        # Two, as a single one would be delivered, perhaps before the move is refused.
        assert await queue.add_items([Item(b"x"), Item(b"x")]) == [True] * 2
    lease, other = await taking, await queue.lease(30, block=False)
    assert lease is not None
    assert other is not None
    assert await queue.complete_many([lease, other]) == [True] * 2


async def awaited(queue: AsyncWorkQueue) -> None:
    assert await queue.add_item(Item(b"x", id="a"))
    result = asyncio.create_task(queue.results.wait("a"))
    lease = await queue.lease(30, block=False)
    assert lease is not None
    assert await queue.complete(lease, result=b"r")
    assert await result == b"r"


async def events(queue: AsyncWorkQueue) -> None:
    begin = await queue.events.keep(count=10)
    assert await queue.add_item(Item(b"x"))
    async for event in queue.events(begin, follow=True):
        assert event.what == "added"
        break


async def worker(tasks: TaskQueue, logged: Callable[[], bool]) -> None:
    @tasks.task(keep_result=60)
    async def double(number: int) -> int:
        return 2 * number

    async with working(new_worker(tasks)) as running:
        result = asyncio.ensure_future((await double.add(21)).result())
        await asyncio.wait({running, result}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            result.cancel()
            await running
        assert await result == 42
        await eventually("its warning is logged", logged)


#: What is done with a queue.
CALLS: dict[str, Callable[[AsyncWorkQueue], Awaitable[None]]] = {
    call.__name__: call for call in (items, waiting, awaited, events)
}
PARTS = [*CALLS, "worker"]


class Lack(NamedTuple):
    """What a server lacks, and what follows.

    Attributes:
        commands: What it does not have.
        refused: What the error says, of each part that does not work.
        warned: What is logged; empty: nothing.
    """

    commands: str
    refused: dict[str, str] = {}  # noqa: RUF012 - nothing changes it
    warned: str = ""


ADMIN = "acl bgrewriteaof bgsave config debug migrate monitor replicaof save shutdown slaveof sync"
ALL = [*PARTS, "ls", "dashboard"]
UNSEEN = "other workers cannot see whether this process lives"
LATE = "seconds late"
LACKS = {
    "administration": Lack(ADMIN),
    "CLIENT": Lack("client", warned=UNSEEN),
    "INFO": Lack("info", warned=UNSEEN),
    "SCRIPT": Lack("script"),
    "sharded Pub/Sub": Lack("ssubscribe spublish sunsubscribe psubscribe punsubscribe pubsub"),
    "Pub/Sub": Lack("publish subscribe", warned=LATE),
    "BLMOVE": Lack("blmove", {"waiting": "BLMOVE", "worker": "BLMOVE.*which a worker needs"}),
    "TIME": Lack("time", dict.fromkeys(PARTS, "TIME.*which .* needs; nothing was applied")),
    "scripts": Lack("eval evalsha", dict.fromkeys(PARTS, "EVALSHA")),
    "SCAN": Lack("scan", {"ls": "SCAN", "dashboard": "SCAN"}, warned="SCAN"),
}
RULES = "acl|setuser acl|deluser acl|load acl|save"
PROVIDERS = {
    "ElastiCache": Lack("bgrewriteaof bgsave config debug migrate replicaof save slaveof shutdown sync"),
    "MemoryDB": Lack(f"{RULES} bgsave config debug migrate module psync replicaof save shutdown sync"),
    "Memorystore": Lack(f"{ADMIN} client|pause client|unblock client|setinfo cluster failover module psync"),
    "Azure Managed Redis": Lack(f"{RULES} config client|pause client|unblock cluster monitor move select"),
    "Upstash": Lack(f"{ADMIN} client|list", warned=UNSEEN),
    "Aiven": Lack(f"{ADMIN} cluster command failover lastsave role"),
    "OCI Cache, sharded": Lack(
        f"{ADMIN} cluster eval evalsha fcall function script", dict.fromkeys(PARTS, "EVALSHA")
    ),
    "Dragonfly, any keys": Lack("client|id", warned=UNSEEN),
    "KeyDB": Lack("function fcall msetex pexpiretime spublish ssubscribe sunsubscribe waitaof"),
}
CASES = [
    *((name, way) for name in LACKS for way in ("forbidden", "unknown")),
    # Only rules can take away a subcommand.
    *((name, "forbidden" if "|" in one.commands else "unknown") for name, one in PROVIDERS.items()),
]


@asynccontextmanager
async def server(port: int, lack: Lack, way: str) -> AsyncIterator[str]:
    """Run a server without some commands; yield the URL with which to use it."""
    names, folder = lack.commands.split(), private_folder()
    renamed = [f'rename-command {name} ""\n' for name in names if way == "unknown"]
    (folder / "server.conf").write_text(
        f'port {port}\nbind 127.0.0.1\nsave ""\ndir {folder}\n{"".join(renamed)}'
    )
    async with answering("embedded", port, folder / "server.conf", folder=folder) as admin:
        if way == "unknown":
            yield f"redis://127.0.0.1:{port}"
        else:
            rules = [f"-{name}" for name in names]
            await command(admin, "ACL", "SETUSER", "user", "on", ">pw", "~*", "&*", "+@all", *rules)
            yield f"redis://user:pw@127.0.0.1:{port}"


async def tried(
    url: str, part: str, leasequeue: Leasequeue, logged: Callable[[], bool] = lambda: True
) -> str:
    """Use a part; return what the error says, and nothing if it works."""
    try:
        async with asyncio.timeout(TIMEOUT):
            if part == "ls":
                listed = await leasequeue("ls", LEASEQUEUE_URL=url)
                return listed.err if listed.code else ""
            if part == "dashboard":
                async with open_board(url) as (_, client):
                    answer = await client.get("/")
                    return "" if answer.status_code == 200 else answer.text
            if part == "worker":
                async with TaskQueue.from_url(url, "tasks") as tasks:
                    await worker(tasks, logged)
            else:
                async with AsyncWorkQueue.from_url(url, part) as queue:
                    await CALLS[part](queue)
    except AccessDenied as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("lacking", "way"), CASES)
async def test_what_does_not_need_a_lacking_command_works_and_the_rest_says_which(
    caplog: pytest.LogCaptureFixture, leasequeue: Leasequeue, lacking: str, way: str
) -> None:
    lack = {**LACKS, **PROVIDERS}[lacking]

    def logged() -> bool:
        return lack.warned in caplog.text

    async with server(free_port(), lack, way) as url, asyncio.TaskGroup() as group:
        trying = {part: group.create_task(tried(url, part, leasequeue, logged)) for part in ALL}
    for part, text in ((part, one.result()) for part, one in trying.items()):
        assert bool(text) == (part in lack.refused), (part, text)
        assert re.search(lack.refused.get(part, ""), text, re.IGNORECASE), (part, text)
    texts = [one.getMessage() for one in caplog.records if one.name.startswith("leasequeue")]
    texts = [text for text in texts if "forbid" in text or UNSEEN in text]
    assert bool(texts) == bool(lack.warned), texts
    assert all(lack.warned in text for text in texts), texts


async def test_without_resp3_waiting_and_workers_are_refused(leasequeue: Leasequeue) -> None:
    async with server(free_port(), Lack("hello"), "unknown") as url:
        assert [await tried(url, part, leasequeue) for part in ("items", "ls", "dashboard")] == [""] * 3
        for part in ("waiting", "worker"):
            assert "does not have HELLO" in await tried(url, part, leasequeue)


#: What servers say of a script, and what is in our error.
STRICT = {
    "Dragonfly": "Error running script (call to f_1): @user_script:3: script tried accessing undeclared key",
    "ElastiCache Serverless": "This Redis command is not allowed from script script: 1, on @user_script:3.",
    "Alibaba": "bad lua script for redis cluster, all the keys that the script uses should be passed",
}


@pytest.mark.parametrize("provider", STRICT)
async def test_a_server_that_refuses_such_scripts_is_told_from_one_that_failed(provider: str) -> None:
    async with Pretender({b"EVALSHA": f"-ERR {STRICT[provider]}\r\n".encode()}) as pretender:
        async with AsyncWorkQueue.from_url(pretender.url, "emails") as queue:
            for call in (queue.add_item(Item(b"x")), queue.counts()):
                with pytest.raises(
                    ServerRefused, match=r"(?s)script.*cannot\s+use it.*allow-undeclared-keys"
                ):
                    await call
        assert pretender.requests.count(b"EVALSHA") == 2, "nothing is sent but the script that asks"


@pytest.mark.parametrize("says", ["undeclared key", "not allowed from script"])
async def test_the_script_that_asks_for_rights_tells_such_a_server_before_it_writes(
    redis: Redis, name: str, says: str
) -> None:
    """A server that lets scripts use no other keys than those named before, simulated in Lua."""
    strict = """
    local server, named = redis, {}
    for _, key in ipairs(KEYS) do named[key] = true end
    local redis = setmetatable({pcall = function(command, key, ...)
      if named[key] or key == 0 or key == nil then return server.pcall(command, key, ...) end
      return {err = 'ERR script tried accessing SAYS'}
    end}, {__index = server})
    """.replace("SAYS", says)
    script = find_script("probe")
    body: Any = strict.encode() + script.body
    keys = [f"{name}:{key}" for key in script.keys]
    with pytest.raises(ResponseError, match=says):
        await redis.eval(body, len(keys), *keys, name)
    assert await redis.keys("*") == []

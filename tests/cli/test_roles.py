"""What each role must not have is refused: every other command of the server, every other key and channel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from leasequeue import Item
from leasequeue.errors import AccessDenied
from leasequeue.queue.queue import engine_of
from leasequeue.wire.access import Role, commands_of
from leasequeue.wire.scripts import load
from tests.cli.test_acl import facts, opened, permit
from tests.queue.asking import command, until
from tests.queue.fixtures import admin, own, tidy
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue import AsyncWorkQueue
    from leasequeue.embedded import EmbeddedServer
    from tests.cli.test_acl import Permit

__all__ = ["admin", "opened", "own", "permit", "tidy"]

pytestmark = pytest.mark.core

#: What no rule can forbid: each client needs it to log in.
ALWAYS = {"auth", "hello", "quit", "reset"}
#: How the server says that it refuses a command, also that its configuration permits nobody to use it.
REFUSALS = "NOPERM|ACL failure|The user executing the script can|command not allowed. If the enable-"
#: Subcommands that Redis 6.2 does not list, of commands of which a role has others.
UNLISTED = (
    *("CLIENT KILL ID 1", "CLIENT PAUSE 1", "CLIENT NO-EVICT on", "PUBSUB CHANNELS", "SCRIPT FLUSH"),
    *("SCRIPT KILL", "SCRIPT DEBUG NO"),
)
#: Those that say how many keys they have: the first two are tried below.
SCRIPTED = {"eval", "evalsha", "msetex"}
OTHERS = ("other:queue", "qx:queue", "Q:queue", "q", "")


async def listed(admin: Redis) -> dict[str, tuple[int, int]]:
    """Return all commands and subcommands of the server: the number of words, and where the first key is."""
    found: dict[str, tuple[int, int]] = {}

    def note(entries: list[Any]) -> None:
        for entry in entries:
            found[entry[0].decode().lower()] = abs(entry[1]), entry[3]
            note(entry[9] if len(entry) > 9 else [])

    async with admin.client() as client:
        client.response_callbacks.clear()
        note(await command(client, "COMMAND"))
    return found


def words_of(name: str, length: int) -> list[str]:
    """Return a command with as many words as it needs: the server counts them before it checks the rules."""
    words = name.upper().split("|")
    return [*words, *["q:x"] * (length - len(words))]


async def is_refused(client: Redis, *words: str | bytes) -> bool:
    """Return whether the access rules refuse a command; nothing else may go wrong with it."""
    try:
        await command(client, *words)
    except NoPermissionError:
        return True
    except ResponseError as error:
        text = str(error)
        assert re.search(REFUSALS, text), (words, text)
        return True
    return False


@pytest.mark.parametrize("role", Role)
async def test_every_other_command_is_refused(
    admin: Redis, own: EmbeddedServer, permit: Permit, role: Role
) -> None:
    url, known = await permit("q", role=role), await listed(admin)
    permitted = commands_of(role, await facts(own.url))
    parents = {name.partition("|")[0] for name in permitted | known.keys() if "|" in name}
    async with Redis.from_url(url, single_connection_client=True) as client:
        for name, (length, _) in known.items():
            if name not in permitted | ALWAYS and name not in parents:
                assert await is_refused(client, *words_of(name, length)), name
        for line in UNLISTED:
            assert await is_refused(client, *line.split()), line


@pytest.mark.parametrize(
    "words", ["PUBLISH q:push:x stop", "EVAL return 1 0", "SCRIPT LOAD x", "HSET q:idle a b"]
)
async def test_a_watcher_may_not_publish_write_or_send_a_script(permit: Permit, words: str) -> None:
    """Named here, not taken from the rules. What it reads would be enough to forge messages."""
    async with Redis.from_url(await permit("q", role="watcher"), single_connection_client=True) as client:
        with pytest.raises(NoPermissionError):
            await command(client, *words.split())


@pytest.mark.parametrize("role", Role)
async def test_every_other_key_is_refused(
    admin: Redis, own: EmbeddedServer, permit: Permit, role: Role
) -> None:
    url, known = await permit("q", role=role), await listed(admin)
    permitted = commands_of(role, await facts(own.url))
    sha = await command(admin, "SCRIPT", "LOAD", "return redis.call('GET', ARGV[1])")
    tried = 0
    async with Redis.from_url(url, single_connection_client=True) as client:
        for other in OTHERS:
            for name in permitted & known.keys():
                length, first_key = known[name]
                if first_key > 0 and name not in SCRIPTED and not name.endswith(("subscribe", "publish")):
                    words = words_of(name, length)
                    words[first_key] = other
                    assert await is_refused(client, *words), words
                    tried += 1
            assert await is_refused(client, "EVALSHA", sha, "1", other, "q:x"), other
            assert await is_refused(client, "EVALSHA", sha, "0", other), other
    assert tried > 5 * len(OTHERS)


@pytest.mark.parametrize("role", Role)
async def test_every_other_channel_is_refused(permit: Permit, own: EmbeddedServer, role: Role) -> None:
    url, permitted = await permit("q", role=role), commands_of(role, await facts(own.url))
    async with Redis.from_url(url, single_connection_client=True) as client:
        for other in ("other:push:lh:x", "qx:due", "__keyspace@0__:q:x"):
            for name in permitted & {"publish", "spublish", "subscribe", "ssubscribe"}:
                words = [name, other, *["x"] * name.endswith("publish")]
                assert await is_refused(client, *words), words
            assert await is_refused(client, "PSUBSCRIBE", "*")


async def test_a_watcher_runs_what_others_have_loaded_and_nothing_of_its_own(
    admin: Redis, permit: Permit, own: EmbeddedServer, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    owner = opened(own.url, "q")
    await owner.add_item(Item(b"x", id="a"))
    url = await permit("q", role="watcher")
    for script in load().values():  # as if others had run them all
        await command(admin, "SCRIPT", "LOAD", script.body)
    before = await snapshot(admin)
    watcher = opened(url, "q")
    assert (await watcher.stats()).counts == (await watcher.counts()) == (1, 0, 0, 0)
    async with Redis.from_url(url, single_connection_client=True) as client:
        for words in (
            ("EVAL", "while true do end", "0"),
            ("SCRIPT", "LOAD", "return 1"),
            ("SET", "q:sample", "{}"),
            ("EVALSHA", load()["add_items"].sha, "1", "q:queue"),
        ):
            if words[0] == "EVALSHA":
                with pytest.raises(ResponseError):
                    await command(client, *words)
            else:
                assert await is_refused(client, *words), words
    for change in (watcher.add_item(Item(b"x")), watcher.admin.purge(), watcher.lease(30, block=False)):
        with pytest.raises(AccessDenied):
            await change
    assert await snapshot(admin) == before


async def test_a_watcher_is_told_who_loads_the_scripts_of_a_restarted_server(
    admin: Redis, permit: Permit, own: EmbeddedServer, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    watcher = opened(await permit("q", role="watcher"), "q")
    await command(admin, "SCRIPT", "FLUSH")
    with pytest.raises(AccessDenied, match=r"does not know the script counts.*leasequeue acl"):
        await watcher.counts()
    await opened(own.url, "q").limits.get()

    async def is_loaded() -> bool:
        [known] = await engine_of(watcher).runner.ask((b"EVALSHA", load()["counts"].sha, b"0"))
        return "NOSCRIPT" not in str(known)

    await until("another client has loaded it", is_loaded)
    assert (await watcher.counts()).total == 0

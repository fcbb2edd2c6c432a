"""`leasequeue acl`: a user with the rules that it prints can do all that its role is for, no more."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import AccessDenied
from leasequeue.queue.queue import engine_of
from leasequeue.wire.access import Role, commands_of
from leasequeue.wire.scripts import load
from tests.cli.permits import NAME, Permit, facts, opened, permit, refused
from tests.cli.whole_life import the_whole_life
from tests.eventually import eventually
from tests.lua.space import Space
from tests.lua.test_wrong_types import BUSY, CALLS
from tests.queue.asking import blocked, command, take
from tests.queue.fixtures import admin, own, tidy
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.embedded import EmbeddedServer
    from tests.cli.program import Leasequeue

__all__ = ["admin", "opened", "own", "permit", "tidy"]

#: They depend on the server.
core = pytest.mark.core


@core
async def test_a_user_with_these_rules_can_do_everything(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server has refused nothing."""
    url = await permit(NAME, "{q}other")
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(120):
            await the_whole_life(opened(url, NAME), opened(url, "{q}other"), url)
    assert await refused(admin) == set()
    assert not [text for text in caplog.messages if "forbid" in text or "cannot see" in text]


@core
async def test_each_script_runs_with_these_rules(admin: Redis, permit: Permit) -> None:
    async with Redis.from_url(await permit(NAME, "other", "home")) as client:
        await client.ping()
        await command(admin, "ACL", "LOG", "RESET")  # what redis-py sends when it connects is not ours
        for script, (rows, arguments) in CALLS.items():
            await Space(admin, NAME).seed(BUSY)
            await Space(client, NAME).run(script, rows, state="waiting", **arguments)
    assert await refused(admin) <= {"command msetex", "command spublish"}  # which this server does not have


@core
async def test_each_command_is_needed(
    admin: Redis, permit: Permit, own: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A session without one of them finds out when it starts, and says which rule permits it."""
    url = await permit("q")
    scripts = {name.lower() for script in load().values() for name in script.commands}
    for name in sorted(commands_of(Role.WORKER, await facts(own.url)) & (scripts | {"blmove"})):
        await command(admin, "ACL", "SETUSER", "bob", f"-{name}")
        caplog.clear()
        async with AsyncWorkQueue.from_url(url, "q") as queue:
            try:
                await engine_of(queue).rights.expect_worker()
            except AccessDenied as error:
                told = [str(error)]
            else:
                told = caplog.messages
        if name in ("msetex", "spublish"):  # the scripts do without
            assert not told
        else:
            assert f"+{name}" in told[0]
            assert "`leasequeue acl q --user bob --role " in told[0]
        await command(admin, "ACL", "SETUSER", "bob", f"+{name}")


async def follow(admin: Redis, advice: str) -> None:
    """Do what the first rule in a message says."""
    [rule] = re.findall(r"`(ACL SETUSER [^`]*)`", advice)
    await command(admin, *rule.split())


async def test_the_rule_in_an_error_permits_the_call(
    admin: Redis, permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    url = await permit("q")
    await command(admin, "ACL", "SETUSER", "bob", "-incrby", "-lmove", "-set")
    with pytest.raises(AccessDenied, match="nothing was applied") as caught:
        await opened(url, "q").lease(30, block=False)
    assert {"INCRBY", "LMOVE", "SET"} <= {*caught.value.commands}
    await follow(admin, str(caught.value))
    assert await opened(url, "q").lease(30, block=False) is None


async def handle(item: Item) -> None:
    """Do nothing."""


async def test_a_worker_says_what_it_may_not_do_and_works(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = opened(await permit("q"), "q")
    await command(admin, "ACL", "SETUSER", "bob", "-renamenx")
    worker = new_worker()
    worker.handler(queue)(handle)
    await queue.add_item(Item(b"x"))
    await worker.drain()
    [warning] = [text for text in caplog.messages if "RENAMENX" in text]
    assert "fsck_rename, move_items will be refused. `ACL SETUSER bob +renamenx` permits that" in warning


async def test_a_right_that_is_added_later_is_noticed(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = opened(await permit("q"), "q")
    await command(admin, "ACL", "SETUSER", "bob", "-incrby")
    for _ in range(2):
        with pytest.raises(AccessDenied):
            await queue.lease(30, block=False)
    await command(admin, "ACL", "SETUSER", "bob", "+incrby")
    monkeypatch.setattr("leasequeue.wire.rights.RECHECK_SECONDS", 0)
    _, added = await asyncio.gather(queue.lease(30, block=False), queue.add_item(Item(b"x")))
    assert added
    assert (await queue.counts()).total == 1


@core
@pytest.mark.parametrize("forbidden", [("resetchannels",), ("-publish",), ("-subscribe",)])
async def test_a_forbidden_channel_is_logged_once_with_the_rule_that_permits_it(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
    forbidden: tuple[str, ...],
) -> None:
    """Otherwise delayed items, results and cancels would be late, and nothing would say why."""
    url = await permit("q*")
    await command(admin, "ACL", "SETUSER", "bob", *forbidden)
    async with AsyncWorkQueue.from_url(url, "q*") as queue:
        waiting = asyncio.create_task(queue.lease(30))
        await eventually("it is logged", lambda: bool(caplog.messages))
        for _ in range(2):
            await queue.add_item(Item(b"x"))
            assert await queue.complete(await waiting)
            waiting = asyncio.create_task(queue.lease(30))
        await blocked(admin, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
    [warning] = caplog.messages
    assert "the channel 'q*:" in warning
    await follow(admin, warning)
    waiting = asyncio.create_task(opened(url, "q*").lease(30))
    await blocked(admin, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert caplog.messages == [warning]


async def test_a_user_cannot_use_another_queue(
    permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    other = opened(await permit("q?"), "qx")
    with pytest.raises(AccessDenied, match="leasequeue acl"):
        await other.add_item(Item(b"x"))


async def test_the_keys_of_shared_limits_are_permitted(
    admin: Redis, own: EmbeddedServer, permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    await opened(own.url, "{q}").limits.set(concurrency=2, shared="{q}pool")
    queue = opened(await permit("{q}"), "{q}")
    await queue.add_item(Item(b"x"))
    assert await queue.complete(await take(queue))
    assert await refused(admin) == set()


async def test_the_line_is_what_a_client_program_reads(leasequeue: Leasequeue, own: EmbeddedServer) -> None:
    printed = await leasequeue("acl", NAME, "--user", "bob", LEASEQUEUE_URL=own.url)
    assert printed.error == (
        "the server has no user 'bob' yet: this line creates it, without a password. "
        "Set one with ACL SETUSER bob >PASSWORD"
    )
    as_json = await leasequeue("acl", NAME, "--user", "bob", "--json", LEASEQUEUE_URL=own.url)
    line = printed.out.splitlines()
    assert [printed.out.removesuffix("\n")] == line
    # In quotes, redis-cli reads as Python does.
    read = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line[0])
    words = [ast.literal_eval(word) if word[0] == '"' else word for word in read]
    assert words == as_json.document["command"]


async def test_a_user_that_may_not_ask_is_told(
    leasequeue: Leasequeue, admin: Redis, own: EmbeddedServer
) -> None:
    await command(admin, "ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-command")
    url = own.url.replace("redis://", "redis://ann:pw@")
    printed = await leasequeue("acl", "q", LEASEQUEUE_URL=url)
    assert (printed.code, printed.out) == (5, "")
    assert "command" in printed.error

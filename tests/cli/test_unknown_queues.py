"""A queue that does not exist: each command that takes the name of one says so, and makes none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue
from leasequeue.cli.app import COMMANDS, load
from tests.cli.program import use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer

#: What follows the name of the queue, where a command needs more, or would ask.
NEEDS: dict[str, tuple[str, ...]] = {
    "add": ("x",),
    "cancel": ("x",),
    "clear-leases": ("--yes",),
    "dead drop": ("x",),
    "dead requeue": ("--all",),
    "dead show": ("x",),
    "events": ("--keep", "9"),
    "flow cancel": ("x",),
    "flow delete": ("x",),
    "flow find": ("x", "user=1"),
    "flow replay": ("x",),
    "flow retry": ("x",),
    "flow show": ("x",),
    "flow signal": ("x", "approved"),
    "limits": ("--rate", "5/s"),
    "mv": ("photos",),
    "priority": ("x", "--level", "1"),
    "promote": ("x",),
    "recover": ("--elapsed", "5m"),
    "schedule add": ("x", "--every", "5m"),
    "schedule rm": ("x",),
    "schedule run": ("x",),
    "workers fail": ("x",),
    "workers quiet": ("x",),
    "workers resume": ("x",),
    "workers stop": ("x",),
}
#: Commands for queues that may not exist yet.
NONE_NEEDED = {"add", "events", "acl"}
#: Commands that make a queue if they are told to.
CREATE = {"limits", "pause", "schedule add"}


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command, those of groups with both words, and its parameters."""
    for name in COMMANDS:
        command = load(name)
        for below, one in getattr(command, "commands", {"": command}).items():
            yield f"{name} {below}".strip(), one.params


def on_queues() -> list[str]:
    """Return the commands that take the name of a queue first, but those of `pipeline`, which start Spark."""
    return [
        words
        for words, parameters in commands()
        for first in [one for one in parameters if one.param_type_name == "argument"][:1]
        if first.metavar in {"QUEUE", "PREFIX"} and not words.startswith("pipeline")
    ]


@pytest.fixture
async def photos(make_server: MakeServer) -> AsyncWorkQueue:
    """Return the only queue of a server; it is empty."""
    server = await make_server()
    queue = AsyncWorkQueue.from_url(server.url, "photos")
    await use(queue)
    await queue.close()
    return queue


@pytest.mark.parametrize("command", sorted({*on_queues()} - NONE_NEEDED))
async def test_a_wrong_name_is_told_and_makes_no_queue(
    leasequeue: Leasequeue, photos: AsyncWorkQueue, command: str
) -> None:
    words = (*command.split(), "fotos", *NEEDS.get(command, ()))
    where = ("--url", photos.url or "")
    outcome = await leasequeue(*words, *where)
    advice = ", and --create makes a new one" * (command in CREATE)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error == f"no such queue: fotos; there is photos{advice}"
    async with Redis.from_url(photos.url or "") as redis:
        assert await redis.keys() == [b"photos:fence"]
    if command in CREATE:
        assert (await leasequeue(*words, "--create", *where)).code == 0
        assert (await leasequeue("show", "fotos", *where)).code == 0


async def test_commands_for_queues_to_come_need_none(leasequeue: Leasequeue, photos: AsyncWorkQueue) -> None:
    for command in sorted(NONE_NEEDED):
        name = f"fotos-{command}"
        assert (await leasequeue(command, name, "--url", photos.url or "", *NEEDS.get(command, ()))).code == 0


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("image", "there is images, image-2, image-1"),
        ("emails", "`leasequeue ls` lists those that are there"),
        ("images:x", "there is images, image-2, image-1"),
    ],
)
async def test_a_few_similar_names_are_told(
    leasequeue: Leasequeue, make_server: MakeServer, name: str, advice: str
) -> None:
    server = await make_server()
    async with Redis.from_url(server.url) as redis:
        for one in ("images", "image-1", "image-2", "image-queue-of-last-year", "other"):
            await redis.rpush(f"{one}:queue", "x")
    outcome = await leasequeue("ls", name, "--url", server.url)
    assert (outcome.code, outcome.error) == (1, f"no such queue: {name}; {advice}")


async def test_a_queue_exists_if_anything_of_it_does(leasequeue: Leasequeue, make_server: MakeServer) -> None:
    """Limits, schedules, dead letters, items that are in no list, and those of other clients."""
    server = await make_server()
    async with Redis.from_url(server.url) as redis, AsyncWorkQueue.from_url(server.url, "limited") as limited:
        await limited.limits.set(rate="1/s")
        await redis.set("lost:item:x", "data")
        await redis.rpush("theirs:queue", "x")
        await redis.zadd("died:dead", {"x": 1})
    for name in ("limited", "lost", "theirs", "died"):
        assert (await leasequeue("show", name, "--url", server.url)).code == 0
    assert (await leasequeue("show", "limited:item-x", "--url", server.url)).code == 1


@pytest.mark.parametrize("forbidden", ["scan", "type", "exists"])
async def test_where_queues_may_not_be_looked_for_a_name_is_taken_as_it_is(
    leasequeue: Leasequeue, photos: AsyncWorkQueue, forbidden: str
) -> None:
    async with Redis.from_url(photos.url or "") as redis:
        await redis.acl_setuser(
            "eve", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", f"-{forbidden}"]
        )
    outcome = await leasequeue("show", "fotos", "--url", (photos.url or "").replace("//", "//eve:x@"))
    if forbidden == "exists":  # the command itself needs it
        assert (outcome.code, "EXISTS" in outcome.error) == (5, True)
    else:
        assert (outcome.code, outcome.error) == (0, "fotos has no unfinished items")

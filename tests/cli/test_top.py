"""`leasequeue top` on a terminal: its keys and acts, sizes, a server that goes away, and many queues."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Fleet, Item, RetryPolicy, Worker
from leasequeue.cli.top.readings import READ, Readings
from leasequeue.cli.top.tables import TABLES
from tests.cli.terminal import Terminal, on_terminal
from tests.dashboard.fleets import register
from tests.hostile import SHOWN, TEXT, fill, harm_of
from tests.queue.asking import take, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio.client import Monitor

    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

#: The first reading is the only one, unless a key asks for another.
NEVER_AGAIN = ("--every", "10h")
QUICKLY = ("--every", "200ms")


@pytest.fixture
async def queues(make_queue: MakeQueue, name: str) -> list[AsyncWorkQueue]:
    """Return three queues, in which 1, 3 and 2 items wait."""
    made = [make_queue(name=f"{name}-{end}") for end in ("ants", "quails", "owls")]
    for queue, count in zip(made, (1, 3, 2), strict=True):
        await queue.add_items([Item(b"x") for _ in range(count)])
    return made


def names_of(queues: list[AsyncWorkQueue]) -> list[str]:
    """Return the names, as arguments."""
    return [queue.name for queue in queues]


def order_in(lines: list[str]) -> list[str]:
    """Return the ends of the names of the queues that a screen shows, from the top."""
    return [line.split()[0].rpartition("-")[2] for line in lines[3:-1] if line]


async def readings_in(commands: Monitor, redis: Redis, queue: AsyncWorkQueue) -> int:
    """Return how often the statistics of a queue were read until now, by the commands of the server."""
    end, seen = f"the end of what {queue.name} is asked", []
    await redis.echo(end)
    while end not in (command := str((await commands.next_command())["command"])):
        seen.append(command)
    return sum(command.startswith("EVALSHA ") and f" {queue.name}:sample " in command for command in seen)


async def check_sizes(terminal: Terminal) -> None:
    """Check that a small terminal shows what fits of three queues, and a large one again all."""
    await terminal.tmux("resize-window", "-x", "40", "-y", "6")
    lines = await terminal.shows("^1 queues  2 workers  3 runs  4 dead.*…$", "^3 queues", "^\\? help .*…$")
    assert [bool(line) for line in lines] == [True] * 6, "two lines, titles, two rows, and the last line"
    await terminal.press("End")
    await terminal.tmux("resize-window", "-x", "100", "-y", "6")
    assert order_in(await terminal.shows("^3 queues", "owls +2")) == ["quails", "owls"]
    await terminal.press("Home")
    await terminal.tmux("resize-window", "-x", "100", "-y", "40")
    assert order_in(await terminal.shows("^3 queues", "ants +8", "owls +2")) == ["ants", "quails", "owls"]


@asynccontextmanager
async def working(queue: AsyncWorkQueue) -> AsyncIterator[Worker]:
    """Run a worker on a queue, named `bee`, whose runs hold until they are cancelled, or fail at once."""
    worker = Worker(name="bee", grace=0)

    @worker.handler(queue, retry=RetryPolicy(attempts=1))
    async def hold(item: Item) -> None:
        if item.data == b"fail":
            raise ValueError("no such bird")
        await asyncio.Event().wait()

    serving = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(now=True)
        await serving


# ------------------------------------------------------------------------------------------------------- keys


@pytest.mark.slow
async def test_keys_sort_filter_and_pause_and_none_acts_and_a_small_terminal_shows_what_fits(
    queues: list[AsyncWorkQueue], redis: Redis, redis_url: str, name: str, tmp_path: Path
) -> None:
    top = ("top", *names_of(queues), *NEVER_AGAIN)
    async with on_terminal(name, *top, url=redis_url, drawn=tmp_path / "drawn") as terminal:
        lines = await terminal.shows("^3 queues", "queue ▲", "owls .* 2 ", "q quit")
        assert order_in(lines) == ["ants", "owls", "quails"]
        await terminal.press("r")
        assert order_in(await terminal.shows("queue ▼")) == ["quails", "owls", "ants"]
        await terminal.press("Right")
        assert order_in(await terminal.shows("waiting ▼")) == ["quails", "owls", "ants"]
        await terminal.press("r")
        assert order_in(await terminal.shows("waiting ▲")) == ["ants", "owls", "quails"]
        await terminal.press("/", "q", "u")
        assert order_in(await terminal.shows("^/qu", "^1 queues$")) == ["quails"]
        await terminal.press("Enter", "3")
        await terminal.shows("filter /qu", "0 runs")
        await terminal.press("1")
        assert order_in(await terminal.shows("filter /qu", "^1 queues$")) == ["quails"]
        await terminal.press("Escape")
        await terminal.shows("^3 queues", "^\\? help")
        await terminal.press("?")
        await terminal.shows("reverse the order", "C cancel")
        await terminal.press("?")
        await terminal.shows("^3 queues")
        async with redis.monitor() as commands:
            # Each of these keys asks for a reading.
            await terminal.press("p")
            await terminal.shows("the display is paused")
            await queues[0].add_items([Item(b"x") for _ in range(6)])
            await terminal.send("\x1b[I\x1b[O")
            await terminal.press("r")
            lines = await terminal.shows("the display is paused", "waiting ▼")
            assert order_in(lines) == ["quails", "owls", "ants"], "as before the six items"
            await terminal.press("p")
            lines = await terminal.shows("slower without the focus", "ants +7")
            assert order_in(lines) == ["ants", "quails", "owls"]
            assert await readings_in(commands, redis, queues[1]) == 1, "it read only when it was to continue"
        await queues[0].add_item(Item(b"x"))
        await terminal.send("\x1b[I")
        lines = await terminal.shows("ants +8")
        assert "slower" not in "".join(lines)
        await check_sizes(terminal)
        await terminal.press("q")
        assert (await terminal.shows("ended with 0"))[:2] == ["", "ended with 0"], "the terminal is as it was"
    assert [(await queue.counts()).waiting for queue in queues] == [8, 3, 2]


@pytest.mark.slow
async def test_uppercase_keys_act_on_the_chosen_row_after_a_question(
    queue: AsyncWorkQueue, redis_url: str, name: str, tmp_path: Path
) -> None:
    async with (
        working(queue),
        on_terminal(name, "top", queue.name, *QUICKLY, url=redis_url, drawn=tmp_path / "drawn") as terminal,
    ):
        await queue.add_items([Item(b"fail", id="dodo"), Item(b"x", id="duck")])
        await terminal.shows(f"^{queue.name} .* 1 ", "P pause")
        await terminal.press("P")
        await terminal.shows(f"^y: yes, .* pause {queue.name}\\?")
        await terminal.press("n")
        await terminal.shows("^\\? help")
        await terminal.press("P")
        await terminal.shows(f"^y: yes, .* pause {queue.name}\\?")
        assert (await queue.stats()).paused is None
        await terminal.press("y")
        await terminal.shows("pause .*: done", "leasequeue top$")
        await terminal.press("P", "y")
        await terminal.shows("resume .*: done", "-$")
        assert (await queue.stats()).paused is None
        await terminal.press("4")
        await terminal.shows("1 dead", "dodo .* ValueError: no such bird")
        await queue.pause()
        await terminal.press("R", "y")
        await terminal.shows("requeue dodo .*: done", "0 dead")
        assert await queue.dead_letters.count() == 0
        await terminal.press("3")
        await terminal.shows("1 runs", r"duck +\S*hold +bee")
        await terminal.press("C", "y")
        await terminal.shows("cancel duck .*: done")
        assert await queue.find("duck") is None
        await terminal.press("2")
        await terminal.shows("bee +working")
        await terminal.press("Q", "y")
        await terminal.shows("quiet bee: done")

        async def is_quiet() -> bool:
            return [one.quiet for one in await Fleet(queue).workers()] == [True]

        await until("the worker is quiet", is_quiet)
        await terminal.press("C-c")
        await terminal.shows("ended with 0")


# -------------------------------------------------------------------------------------------------- terminals


@pytest.mark.slow
async def test_hostile_names_do_nothing_to_the_terminal(
    redis: Redis, make_queue: MakeQueue, redis_url: str, name: str, tmp_path: Path
) -> None:
    queue = make_queue(name=f"{{{name}}}")
    await fill(redis, queue)
    other = make_queue(name=f"{{{name}}} {TEXT}".replace("\0", ""))
    await fill(redis, other)
    drawn = tmp_path / "drawn"
    top = ("top", queue.name, other.name, *NEVER_AGAIN)
    async with on_terminal(name, *top, url=redis_url, drawn=drawn) as terminal:
        await terminal.shows("2 queues", r"a\\n")
        for key, table in enumerate(TABLES, 1):
            if key > 1:
                await terminal.press(f"{key}")
            await terminal.shows(rf"^\d+ {table}$", r"a\\n2026")
            for act in TABLES[table].acts:
                await terminal.press(act)
                await terminal.shows("y: yes, any other key: no")
                await terminal.press("n")
        await terminal.press("q")
        await terminal.shows("ended with 0")
        title = await terminal.tmux("display-message", "-p", "#{pane_title}")
    assert title.strip() != "title"
    # What rich itself draws: colours, places and modes.
    text = drawn.read_bytes().decode()
    plain_text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b[()][A-Z0]|[\r\x0f]", "", text)
    assert harm_of(plain_text, longest=None) == []
    assert SHOWN[:20] in plain_text


@pytest.mark.slow
async def test_a_server_that_is_killed_is_told_and_tables_go_on_when_it_is_back(
    make_server: MakeServer, name: str, tmp_path: Path
) -> None:
    server = await make_server(dir=tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, "birds") as queue:
        await queue.add_item(Item(b"x"))
    top = on_terminal(name, "top", *QUICKLY, url=server.url, drawn=tmp_path / "drawn")
    async with top as terminal:
        await terminal.shows("^1 queues$", "birds +1 ")
        await server.stop()
        await terminal.shows("trying again, for .*: the server cannot be reached", "birds +1 ")
        again = await make_server(dir=tmp_path / "data", port=server.port)
        async with AsyncWorkQueue.from_url(again.url, "birds") as queue:
            await queue.add_item(Item(b"x"))
        lines = await terminal.shows("^1 queues$", "birds +2 ")
        assert "trying" not in "".join(lines)


# --------------------------------------------------------------------------------------------------- printing


async def test_without_a_terminal_it_prints_once_and_ends(
    leasequeue: Leasequeue, queues: list[AsyncWorkQueue]
) -> None:
    await queues[0].fail(await take(queues[0]), "ValueError: no such bird")
    for options in ((), ("--once",)):
        outcome = await leasequeue("top", *names_of(queues), *options)
        assert (outcome.code, outcome.err) == (0, "")
        titles = [line for line in outcome.out.splitlines() if ": " in line and "Error" not in line]
        assert titles == ["queues: 3", "workers: 0", "runs: 0", "dead: 1"]
        assert [queues[1].name, "3", "0", "0", "0"] in [row[:5] for row in outcome.table]
        assert "ValueError: no such bird" in outcome.out


async def test_json_is_one_document_with_all_tables(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    async with working(queue) as worker:
        await queue.add_items([Item(b"fail", id="dodo"), Item(b"x", id="duck")])

        async def is_there() -> bool:
            document = (await leasequeue("top", queue.name, "--json")).document
            return bool(document["runs"] and document["dead"])

        await until("it runs, and the other is dead", is_there)
        document = (await leasequeue("top", queue.name, "--json")).document
        assert worker.name == "bee"
    [one], [letter], [run] = document["queues"], document["dead"], document["runs"]
    assert (one["queue"], one["leased"], one["dead"], one["workers_alive"]) == (queue.name, 1, 1, 1)
    assert (letter["queue"], letter["id"]) == (queue.name, "dodo")
    assert (run["worker"], run["queue"], run["id"]) == ("bee", queue.name, "duck")
    assert [worker["name"] for worker in document["workers"]] == ["bee"]


# ------------------------------------------------------------------------------------------------------ many


@pytest.mark.slow
async def test_of_many_queues_each_reading_is_a_part_and_shown_ones_come_first(
    make_server: MakeServer,
) -> None:
    server = await make_server()
    async with Redis.from_url(server.url) as redis:
        await redis.mset({f"queue-{number:05}:fence": 1 for number in range(10_001)})
        about = {"pid": 1, "queues": ["queue-00000"], "running": []}
        facts: dict[Any, Any] = {
            f"lh:a/{number}/x": json.dumps({**about, "name": f"{number}"}) for number in range(1_000)
        }
        await redis.hset("queue-00000:workers", mapping=facts)
        await redis.zadd("queue-00000:heartbeats", dict.fromkeys(facts, "inf"))

        async def samples() -> int:
            info = await redis.info("commandstats")
            return sum(one["calls"] for name, one in info.items() if "evalsha" in name)

        async with Readings(server.url, ()) as readings:
            await readings.read("queues", ["queue-09999", "queue-00000"])
            assert len(readings.stats) == READ
            assert {"queue-09999", "queue-00000"} <= readings.stats.keys()
            assert "9,500 of 10,000 queues are still to be read" in [*readings.notes()]
            assert "queues" in readings.cut
            before = await samples()
            await readings.read("workers")
            assert await samples() - before < 3 * READ
            assert len(readings.stats) == 2 * READ, "those come next that were not read yet"
            assert len([*TABLES["workers"].rows(readings)]) == 1_000


async def test_a_queue_with_shards_is_one_row(redis: Redis, redis_url: str) -> None:
    async with AsyncWorkQueue("emails", redis, shards=4) as queue, AsyncWorkQueue("other", redis) as other:
        await other.add_item(Item(b"x"))
        await queue.add_items([Item(b"x", id=f"i{n}") for n in range(40)])
        assert len(await queue.lease_many(10, 60)) == 10
        for shard in queue.shards:
            await register(redis_url, shard.name, "bee", running=[[shard.name, "send", 1.0]])
        for names in ((), ["emails", "other"]):
            async with Readings(redis_url, names) as readings:
                await readings.read_all(TABLES)
                rows = [row.cells[:3] for row in TABLES["queues"].rows(readings)]
                assert rows == [("emails", 30, 10), ("other", 1, 0)]
                [worker] = TABLES["workers"].rows(readings)
                assert worker.cells[2] == "emails"
                assert [row.cells[0] for row in TABLES["runs"].rows(readings)] == ["emails"] * 4
                await TABLES["queues"].acts["P"](readings, readings.stats["emails"]).run()
                assert [(await one.stats()).paused is None for one in queue.shards] == [False] * 4
            await queue.resume()

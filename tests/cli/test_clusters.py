"""What commands and the dashboard see of a cluster, by the URL of one node or of several, and of Sentinel."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Fleet, Item, RetryPolicy, Worker
from leasequeue.dashboard import Rights
from leasequeue.embedded.guardian import private_folder
from leasequeue.errors import ServerRefused
from leasequeue.wire.discovery import find_queues
from tests.cli.test_stats import exporting, metrics_of
from tests.dashboard.boards import open_board
from tests.faults.cluster_nodes import cluster, kind, nodes, owner, port_of
from tests.ports import free_port
from tests.processes import answering
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis, RedisCluster

    from tests.cli.program import Leasequeue

__all__ = ["cluster", "kind", "nodes"]

#: On three nodes.
NAMES = ("{ants}", "{bees}", "{doves}")


def urls_of(nodes: list[Redis]) -> tuple[str, str]:
    """Return a URL with one node of a cluster, and one with two."""
    one, other, _ = (f"127.0.0.1:{port_of(node)}" for node in nodes)
    return f"redis://{one}", f"redis://{other},{one}"


@asynccontextmanager
async def served(nodes: list[Redis], cluster: RedisCluster) -> AsyncIterator[list[AsyncWorkQueue]]:
    """Run a worker on a queue on each node: one item of each is dead, and one runs."""
    assert len({id(owner(nodes, name)) for name in NAMES}) == len(nodes)
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(AsyncWorkQueue(name, cluster)) for name in NAMES]
        worker = Worker(name="bee", grace=0)

        async def hold(item: Item) -> None:
            if item.data == b"fail":
                raise ValueError("no such bird")
            await asyncio.Event().wait()

        for queue in queues:
            worker.handler(queue, retry=RetryPolicy(attempts=1))(hold)
            await queue.add_items([Item(b"fail", id="dodo"), Item(b"x", id="duck")])
        serving = asyncio.create_task(worker.run())
        try:
            for queue in queues:

                async def settled(queue: AsyncWorkQueue = queue) -> bool:
                    counts = await queue.counts()
                    return (counts.leased, counts.dead) == (1, 1)

                await until("one runs, and one is dead", settled)

            async def has_told() -> bool:
                return [len(one.running) for one in await Fleet(*queues).workers()] == [len(queues)]

            await until("the worker has told what it runs", has_told)
            yield queues
        finally:
            worker.stop(now=True)
            await serving


async def test_commands_show_the_queues_on_all_nodes_by_the_url_of_any(
    nodes: list[Redis], cluster: RedisCluster, leasequeue: Leasequeue
) -> None:
    # Keys of another program, which look like a queue's but have no hash tag.
    await cluster.rpush("mails:queue", "x")
    async with served(nodes, cluster):
        for url in urls_of(nodes):
            document = (await leasequeue("top", "--url", url, "--once", "--json")).document
            assert sorted(one["queue"] for one in document["queues"]) == [*NAMES]
            assert [(one["name"], sorted(one["queues"])) for one in document["workers"]] == [
                ("bee", [*NAMES])
            ]
            assert sorted((run["queue"], run["id"]) for run in document["runs"]) == [
                (name, "duck") for name in NAMES
            ]
            assert sorted((letter["queue"], letter["id"]) for letter in document["dead"]) == [
                (name, "dodo") for name in NAMES
            ]
            for name in NAMES:
                assert [name, "0", "1", "0", "1"] in (await leasequeue("ls", name, "--url", url)).table
        refused = await leasequeue("top", "mails", "--url", url)
        assert "on a cluster, a name with a hash tag, such as '{mails}'" in refused.error


async def test_a_queue_with_shards_is_one_by_the_url_of_any_node(
    nodes: list[Redis], cluster: RedisCluster, leasequeue: Leasequeue
) -> None:
    async with AsyncWorkQueue("emails", cluster, shards=16) as queue:
        assert len({id(owner(nodes, shard.name)) for shard in queue.shards}) == len(nodes)
        await queue.add_items([Item(b"x", id=f"i{n}") for n in range(60)])
        for count, url in enumerate(urls_of(nodes), 60):
            assert (await leasequeue("ls", "--url", url)).table[1:] == [["emails", f"{count}", "0", "0", "0"]]
            async with exporting(url) as exporter:
                assert await exporter._find()
                await exporter.sample_all()
                label = 'messaging_destination_name="emails"'
                assert metrics_of(exporter)[f'leasequeue_queue_items{{{label},state="waiting"}}'] == count
            assert (await leasequeue("add", "emails", "x", "--id", url, "--url", url)).code == 0
            assert await queue.find(url) is not None
            rules = (await leasequeue("acl", "emails", "--json", "--url", url)).document["rules"]
            assert {"~{emails}:*", "~{emails/[0-9]*}:*"} <= {*rules}
            rules = (await leasequeue("acl", "mails", "--shards", "--json", "--url", url)).document["rules"]
            assert {"~{mails}:*", "&{mails/[0-9]*}:*"} <= {*rules}
    first = owner(nodes, "{emails}")
    [url] = [f"redis://127.0.0.1:{port_of(node)}" for node in nodes if node is not first][:1]
    await first.shutdown(nosave=True)
    for words in (("ls",), ("add", "emails", "x"), ("ls", "emails")):
        assert (await leasequeue(*words, "--url", url)).code == 5, "it is not known whether it has shards"


async def test_the_dashboard_shows_the_queues_on_all_nodes_by_the_url_of_any(
    nodes: list[Redis], cluster: RedisCluster
) -> None:
    async with served(nodes, cluster) as queues:
        for url in urls_of(nodes):
            async with open_board(url, rights=Rights.all) as (_, client):
                overview = (await client.get("/")).text
                workers = (await client.get("/workers")).text
                dead = (await client.get("/dead")).text
                for queue in queues:
                    assert all(queue.name in page for page in (overview, workers, dead))
                    await client.post(f"/queues/{queue.name}/pause")
                    assert (await queue.stats()).paused is not None
                    await queue.resume()


async def test_the_url_of_a_sentinel_is_refused_with_what_to_do(leasequeue: Leasequeue) -> None:
    folder, port = private_folder(), free_port()
    (folder / "sentinel.conf").write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\n")
    words = (str(folder / "sentinel.conf"), "--sentinel")
    async with answering("embedded", port, *words, folder=folder):
        url = f"redis://127.0.0.1:{port}"
        for command in (("top",), ("top", "birds"), ("ls",)):
            outcome = await leasequeue(*command, "--url", url)
            assert outcome.code == 5
            assert "SENTINEL GET-MASTER-ADDR-BY-NAME" in outcome.error
        async with open_board(url) as (_, client):
            page = await client.get("/")
            assert page.status_code == 503
            assert "SENTINEL GET-MASTER-ADDR-BY-NAME" in page.text
        with pytest.raises(ServerRefused, match="Sentinel"):
            await find_queues(url)


@pytest.mark.parametrize("command", ["top", "ls", "stats"])
async def test_a_url_in_place_of_a_queue_is_refused_and_its_password_is_not_shown(
    leasequeue: Leasequeue, command: str
) -> None:
    outcome = await leasequeue(command, "redis://:sesame@localhost:6379")
    assert outcome.code == 2
    assert "the option --url before a URL" in outcome.error
    assert "sesame" not in outcome.err

"""`leasequeue stats`: as a table, as JSON, and as metrics."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from wsgiref.util import setup_testing_defaults

import httpx
import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.cli import exporter as exporter_module
from leasequeue.cli.exporter import Exporter
from leasequeue.queue.queue import engine_of
from tests.cli.program import run_process, started, use
from tests.cli.test_health_port import get
from tests.hostile import SHOWN, TEXT, harm_of, write_worker
from tests.ports import free_port
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from wsgiref.types import WSGIEnvironment

    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

ABOUT = {"name": "web/1", "concurrency": 4, "active": 2, "runs": 30, "failures": 3, "run_seconds": 1.5}


async def fill(queue: AsyncWorkQueue) -> None:
    """Leave 3 items waiting, 2 leased and 1 scheduled, and a worker."""
    await queue.stats()
    await queue.add_items([Item(b"x") for _ in range(5)])
    await queue.add_item(Item(b"x"), delay=100)
    await queue.lease_many(2, 100)
    await engine_of(queue).registry.beat(ABOUT, alive_ms=60_000, first=True)


@asynccontextmanager
async def exporting(url: str, *names: str) -> AsyncIterator[Exporter]:
    exporter = Exporter(url, names, every=5)
    try:
        yield exporter
    finally:
        await exporter.close()


def metrics_of(exporter: Exporter) -> dict[str, float]:
    """Return the metrics that an exporter answers with, by their names and labels as they are written."""
    environ: WSGIEnvironment = {}
    setup_testing_defaults(environ)
    body = b"".join(exporter.answer(environ, lambda *_: bytes))
    lines = [line for line in body.decode().splitlines() if not line.startswith(("#", "target_info"))]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.core
async def test_one_hostile_name_is_a_label_and_takes_no_metrics_away(
    redis: Redis, make_queue: MakeQueue, redis_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a surrogate in the name of a worker made all of `/metrics` fail."""
    good, bad, wrong = make_queue(), make_queue(name=f"{name} {TEXT}"), make_queue(name=f"{name} bad {TEXT}")
    await good.add_item(Item(b"x"))
    await write_worker(redis, bad, TEXT)
    await redis.set(f"{wrong.name}:scheduled", "of another type")
    async with exporting(redis_url, good.name, bad.name, wrong.name) as exporter:
        await exporter.sample_all()
        found = metrics_of(exporter)
    assert found[f'leasequeue_queue_items{{messaging_destination_name="{good.name}",state="waiting"}}'] == 1
    assert [name for name in found if "leasequeue_worker_runs_total" in name and r"\\ud800" not in name] == []
    assert sum(SHOWN.replace("\\", "\\\\") in name for name in found) >= 10
    assert [harm for name in found for harm in harm_of(name, longest=1_000)] == []
    assert "cannot be sampled" in caplog.text
    assert harm_of(caplog.text) == []


async def test_a_table_of_the_named_queues(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await fill(queue)
    await queue.pause(reason="deploy")
    await use(unused := make_queue(name=f"{queue.name}-unused"))
    outcome = await leasequeue("stats", queue.name, unused.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles = [
        "queue",
        "waiting",
        "leased",
        "scheduled",
        "dead",
        "oldest",
        "waited",
        "workers",
        "running",
        "paused",
    ]
    lines = outcome.out.splitlines()
    assert lines[0].split() == titles
    words = lines[1].split()
    assert words[:5] == [queue.name, "3", "2", "1", "0"]
    assert (words[6], words[8]) == ("to", "s"), "between two bounds"
    assert words[-3:] == ["1", "2", "deploy"]
    assert lines[2].split() == [unused.name, "0", "0", "0", "0", "-", "-", "0", "0", "-"]


async def test_a_port_that_is_taken_is_told_with_what_to_do(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = await run_process("stats", "--port", f"{port}", "--url", redis_url)
    problem = f"cannot listen at 127.0.0.1, port {port}: Address already in use"
    assert (outcome.code, outcome.error) == (2, f"{problem}: give another port with --port")


async def test_json_has_all_that_is_known(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x"))
    await queue.limits.set(rate="10/s")
    document = (await leasequeue("stats", queue.name, "--json")).document
    assert (document["queue"], document["waiting"], document["leases"]) == (queue.name, 1, 0)
    assert (document["oldest_age"], document["oldest_age_error"]) == (0.0, None)
    assert document["limit"]["rate"] == "10/s"
    assert document["wait"]["samples"] == 0
    assert (document["workers"], document["workers_alive"], document["paused"]) == ([], 0, None)


async def test_without_names_the_queues_of_the_server_are_shown(
    leasequeue: Leasequeue, make_server: MakeServer, make_queue: MakeQueue
) -> None:
    server = await make_server()
    nothing = await leasequeue("stats", "--url", server.url)
    assert (nothing.code, nothing.out, nothing.error) == (0, "", "found no queue on this server")
    await make_queue(url=server.url, name="emails").add_item(Item(b"x"))
    outcome = await leasequeue("stats", "--url", server.url)
    assert outcome.table[1][:2] == ["emails", "1"]
    assert "over 0.0 s" in outcome.out


async def test_without_the_extra_the_error_names_it(
    leasequeue: Leasequeue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "leasequeue.cli.exporter", None)
    outcome = await leasequeue("stats", "--port", "9464")
    assert (outcome.code, "leasequeue[prometheus]" in outcome.error) == (2, True)


@pytest.mark.seed("GLD-O21")
async def test_each_queue_and_each_worker_has_its_metrics(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis_url: str
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    await fill(queue)
    await engine_of(other).registry.beat({**ABOUT, "worker": queue.session}, alive_ms=60_000, first=True)
    async with exporting(redis_url, queue.name, other.name) as exporter:
        assert metrics_of(exporter) == {}, "nothing is known yet"
        await exporter.sample_all()
        found = metrics_of(exporter)
        label = f'messaging_destination_name="{queue.name}"'
        for state, count in (("waiting", 3), ("leased", 2), ("scheduled", 1), ("dead", 0)):
            assert found[f'leasequeue_queue_items{{{label},state="{state}"}}'] == count
        assert found[f"leasequeue_queue_up{{{label}}}"] == 1
        assert found[f"leasequeue_queue_leases_total{{{label}}}"] == 2
        assert 0 <= found[f"leasequeue_queue_oldest_age_seconds{{{label}}}"] < 20
        assert 0 <= found[f"leasequeue_queue_oldest_age_error_seconds{{{label}}}"] < 20
        assert found[f'leasequeue_queue_workers{{{label},state="alive"}}'] == 1
        worker = 'leasequeue_worker="web/1"'
        assert found[f"leasequeue_worker_runs_total{{{worker}}}"] == 30, "of both queues it is one worker"
        assert found[f"leasequeue_worker_failures_total{{{worker}}}"] == 3
        assert found[f"leasequeue_worker_run_time_seconds_total{{{worker}}}"] == 1.5
        assert found[f"leasequeue_worker_running{{{worker}}}"] == 2
        for one in (queue, other):
            await engine_of(one).registry.leave()
        await exporter.sample_all()
        found = metrics_of(exporter)
        assert not [name for name in found if worker in name], "it is forgotten"
        assert found[f'leasequeue_queue_workers{{{label},state="alive"}}'] == 0


async def test_while_the_error_of_the_age_is_unknown_it_has_no_metric(
    queue: AsyncWorkQueue, redis_url: str
) -> None:
    await queue.add_item(Item(b"x"))
    async with exporting(redis_url, queue.name) as exporter:
        await exporter.sample_all()
        label = f'messaging_destination_name="{queue.name}"'
        found = metrics_of(exporter)
        assert found[f"leasequeue_queue_oldest_age_seconds{{{label}}}"] == 0
        assert f"leasequeue_queue_oldest_age_error_seconds{{{label}}}" not in found


async def test_a_queue_that_cannot_be_sampled_has_no_metrics_but_one(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "leasequeue.stats")
    server = await make_server()
    async with exporting(f"redis://127.0.0.1:{server.port}", "emails") as exporter:
        up = 'leasequeue_queue_up{messaging_destination_name="emails"}'
        await exporter.sample_all()
        assert metrics_of(exporter)[up] == 1
        await server.stop()
        for _ in range(3):
            await exporter.sample_all()
        assert metrics_of(exporter) == {up: 0}
        await make_server(port=server.port)
        await until("it is sampled again", lambda: sampled(exporter, up))
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_the_log_says_when_a_server_is_silent(
    proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with exporting(proxy.url, name) as exporter:
        await exporter.sample_all()
        monkeypatch.setattr(exporter_module, "SAMPLE_SECONDS", 0.2)
        proxy.stall()
        await exporter.sample_all()
        proxy.resume()
    assert caplog.messages == [f"{name} cannot be sampled: no answer within 0.2 s"]


async def sampled(exporter: Exporter, up: str) -> bool:
    await exporter.sample_all()
    return metrics_of(exporter)[up] == 1


async def test_a_sample_that_is_old_is_none(
    queue: AsyncWorkQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exporting(redis_url, queue.name) as exporter:
        await exporter.sample_all()
        assert [*exporter.problems()] == []
        monkeypatch.setattr(exporter, "_kept", -exporter_module.SAMPLE_SECONDS - 1)
        assert set(metrics_of(exporter).values()) == {0}
        assert "no queue was sampled for" in "".join(exporter.problems())


async def test_queues_are_found_and_forgotten(
    make_server: MakeServer, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_module, "FIND_SECONDS", 0.0)
    server = await make_server()
    queue = make_queue(url=server.url, name="emails")
    async with exporting(server.url) as exporter:
        exporter._every = 0.01
        running = asyncio.create_task(exporter.run())
        await queue.add_item(Item(b"x"))
        await until("it is found", lambda: has(exporter, "emails", there=True))
        await queue.admin.purge()
        await queue.admin.delete()
        await until("it is forgotten", lambda: has(exporter, "emails", there=False))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_all_queues_are_exported_however_many_there_are(redis_url: str, name: str) -> None:
    names = [f"{name}-{number}" for number in range(600)]
    async with exporting(redis_url, *names) as exporter:
        await exporter.sample_all()
        found = metrics_of(exporter)
    for metric, count in (("up", 600), ("items", 2_400), ("workers", 1_200), ("leases_total", 600)):
        assert sum(one.startswith(f"leasequeue_queue_{metric}{{") for one in found) == count
    assert not [one for one in found if "overflow" in one]


async def test_the_log_says_when_there_are_more_queues_than_are_looked_for(
    make_server: MakeServer,
    make_queue: MakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(exporter_module, "MAX_QUEUES", 2)
    server = await make_server()
    for name in ("a", "b", "c"):
        await make_queue(url=server.url, name=name).add_item(Item(b"x"))
    async with exporting(server.url) as exporter:
        for _ in range(2):
            await exporter._find()
    assert [("2 queues are exported" in one) for one in caplog.messages] == [True]


async def has(exporter: Exporter, name: str, *, there: bool) -> bool:
    return there == any(f'"{name}"' in metric for metric in metrics_of(exporter))


@pytest.mark.slow
async def test_metrics_are_served_until_a_signal(queue: AsyncWorkQueue, redis_url: str) -> None:
    await fill(queue)
    port = free_port()
    options = ("--port", f"{port}", "--every", "0.2s", "--url", redis_url)
    async with started("stats", queue.name, *options) as process:
        assert process.stderr
        assert (
            await process.stderr.readline()
            == f"leasequeue: serving http://127.0.0.1:{port}/metrics\n".encode()
        )

        async def is_sampled() -> bool:
            return "leasequeue_queue_up" in (await get(port, "/metrics"))[1]

        await until("it is sampled", is_sampled)
        assert await get(port, "/live") == (200, "ok\n")
        async with httpx.AsyncClient() as client:
            for path in ("/metrics", "/metrics/"):
                answer = await client.get(f"http://127.0.0.1:{port}{path}")
                assert (answer.status_code, answer.headers["content-type"][:20]) == (
                    200,
                    "text/plain; version=",
                )
                assert '\ntarget_info{service_name="leasequeue-stats"} 1.0\n' in answer.text
        process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")

"""`leasequeue worker --health-port`: what answers while a worker starts, works, is blocked, and stops."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from leasequeue import Item
from tests.cli.test_worker_processes import children
from tests.cli.worker_bench import TIMEOUT, Bench
from tests.ports import free_port
from tests.processes import gone
from tests.queue.asking import until

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

pytestmark = [pytest.mark.slow]


async def get(port: int, path: str) -> tuple[int, str]:
    """Return the status and the text of an answer; 0: nothing listens."""
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            answer = await client.get(f"http://127.0.0.1:{port}{path}")
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.text


async def answers(port: int, path: str, status: int, text: str = "") -> None:
    """Wait until a path answers so."""

    async def does() -> bool:
        found = await get(port, path)
        return found[0] == status and text in found[1]

    await until(f"{path} answers {status} {text}", does)


async def test_a_worker_is_ready_while_it_works(bench: Bench, queue: AsyncWorkQueue) -> None:
    port = free_port()
    options = ("--health-port", f"{port}", "--log-runs")
    async with bench.working(*options) as worker:
        assert await get(port, "/live") == (200, "ok\n")
        await answers(port, "/ready", 200, "ok\n")
        await queue.add_items([Item(b"sleep 0", id="quick"), Item(b"hold", id="long")])
        await worker.logged(r"INFO .* <run of do on 'quick'> returned after \d+\.\d{3} s")
        status, metrics = await get(port, "/metrics")
        assert status == 200
        assert "\nleasequeue_worker_healthy 1.0\n" in metrics
        assert "\nprocess_cpu_seconds_total " in metrics
        await bench.began(2)
        worker.signal()
        await answers(port, "/ready", 503, "the worker is stopping")
        assert await get(port, "/live") == (200, "ok\n"), "it finishes its runs"
        bench.release()
        assert await worker.code() == 0
    assert await get(port, "/live") == (0, "")


@pytest.mark.long
async def test_a_worker_is_not_ready_while_its_lifespan_starts(bench: Bench) -> None:
    port = free_port()
    async with bench.worker("--health-port", f"{port}", HANGS_AT="start") as worker:
        await worker.logged("it hangs")
        assert await get(port, "/live") == (200, "ok\n")
        assert await get(port, "/ready") == (503, "the worker is not running\n")


async def test_a_blocked_event_loop_is_told_by_the_port_itself(bench: Bench, queue: AsyncWorkQueue) -> None:
    port = free_port()
    async with bench.working("--health-port", f"{port}", LIMITS="short") as worker:
        await queue.add_item(Item(b"block"))
        await bench.began()
        await answers(port, "/ready", 503, "the event loop has been blocked for ")
        await worker.logged(
            "WARNING .*the event loop has been blocked for .* s, by code that awaits nothing:"
        )
        await worker.logged(r'  File ".*worker_program\.py", line \d+, in ')
        assert (await get(port, "/live"))[0] == 200
        assert "\nleasequeue_worker_healthy 0.0\n" in (await get(port, "/metrics"))[1]


@pytest.mark.long
async def test_each_process_has_a_port_and_the_one_that_replaces_it_takes_it_over(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    port = free_port(2)
    options = ("--health-port", f"{port}", "--processes", "2", "--max-runs", "1", "--concurrency", "1")
    async with bench.worker(*options) as running:
        before = await children(running, 2)
        for each in (port, port + 1):
            await answers(each, "/ready", 200)
        await queue.add_item(Item(b"sleep 0"))
        await running.logged("retiring after 1 runs")
        await running.logged("working on", times=3)
        await asyncio.gather(*(answers(each, "/ready", 200) for each in (port, port + 1)))
        [ended] = {pid for _, pid in bench.recorded("ended")}
        assert ended in before
        assert await running.stop() == 0
        await gone(*before)


@pytest.mark.long
async def test_a_port_in_use_ends_the_worker(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with bench.worker("--health-port", f"{port}") as worker:
            assert await worker.code() == 2
            assert worker.log.count("\n") == 1
            says = f"cannot listen at 127.0.0.1, port {port}: Address already in use"
            assert f"{says}: give another port with --health-port" in worker.log

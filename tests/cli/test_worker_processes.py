"""`leasequeue worker` with several processes, with `--reload`, and in rolling restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from leasequeue import Fleet, Item
from leasequeue.cli.worker.supervisor import badness
from tests.cli.worker_bench import LIMITS, PROGRAM, Bench, Running
from tests.processes import gone, lives
from tests.queue.asking import until

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


pytestmark = [pytest.mark.slow]

#: The first log line of a worker process, with its process id.
WORKING = r"(\d+) leasequeue.worker: working on"


async def children(running: Running, count: int) -> list[int]:
    """Wait until this many worker processes have started; return their process ids."""
    return [int(pid) for pid in await running.logged(WORKING, times=count)]


@pytest.mark.seed("WRQ-O11", "WRQ-O16")
async def test_a_process_that_is_killed_is_restarted_and_its_item_runs_in_another_at_once(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    """Leases last for an hour, and peers look at nothing: the supervisor tells them.

    A service manager signals all processes at once, and the supervisor passes the signal on: it is one.
    """
    alone = {"LEASE": "3600", "DEAD_AFTER": "3600", "PEERS": "never"}
    async with bench.worker("--processes", "2", "--name", "mailer", **alone) as running:
        first = {*await children(running, 2)}

        async def are_registered() -> bool:
            return len(await Fleet(queue).workers()) == 2

        await until("both are registered", are_registered)
        workers = await Fleet(queue).workers()
        assert {one.name for one in workers} == {"mailer-1", "mailer-2"}
        assert {one.pid for one in workers} == first
        await queue.add_item(Item(b"hold", id="x"))
        [(_, victim)] = await bench.began()
        os.kill(victim, signal.SIGKILL)
        await running.logged(rf"worker process {victim} ended with SIGKILL; restarting in 0.5 s")
        [_, (_, other)] = await bench.began(2)
        alive = {*await children(running, 3)} - {victim}
        assert other in alive
        for pid in (*alive, running.process.pid):
            os.kill(pid, signal.SIGTERM)
        await running.logged("got a signal", times=3)
        bench.release()
        assert await running.code() == 0
        await gone(*alive)
    assert bench.recorded("ended") == [("x", other)]
    assert (await queue.counts()).total == 0
    assert await Fleet(queue).workers() == []


@LIMITS
async def test_processes_release_their_items_and_end_when_their_supervisor_is_killed(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    """Also processes whose event loop is blocked."""
    orders = ["hold", "block", *["query"] * (limits == "real")]
    await queue.add_items(Item(order, id=order) for order in orders)
    options = ("--processes", f"{len(orders)}", "--concurrency", "1")
    async with bench.worker(*options, LIMITS=limits) as running:
        pids = await children(running, len(orders))
        await bench.began(len(orders))
        running.signal(signal.SIGKILL)
        await gone(*pids)
    leases = await queue.lease_many(9, 30, block=False)
    assert {(one.id, one.attempt) for one in leases} == {(order, 1) for order in orders}


def test_the_exit_code_of_a_crash_is_worse_than_all_others() -> None:
    assert sorted([1, 4, 3, 0, 5, 2, 99], key=badness) == [0, 3, 4, 2, 5, 1, 99]


async def test_a_second_signal_interrupts_the_runs_of_all_processes_and_a_third_kills_a_frozen_one(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    """Its end is the worst of the three, and so the exit code."""
    await queue.add_items([Item(b"hold"), Item(b"hold")])
    async with bench.worker("--processes", "3", "--grace", "600", "--concurrency", "1") as running:
        pids = await children(running, 3)
        busy = {pid for _, pid in await bench.began(2)}
        [frozen] = {*pids} - busy
        os.kill(frozen, signal.SIGSTOP)
        running.signal()
        await running.logged("supervisor: got a signal")
        running.signal()
        await gone(*busy)
        assert await queue.counts() == (2, 0, 0, 0)
        assert lives(frozen)
        running.signal()
        assert await running.code() == 1
        await running.logged("supervisor: got a third")
        await gone(frozen)


async def test_a_worker_that_cannot_start_is_not_restarted(bench: Bench) -> None:
    async with bench.worker("--max-runs", "9", target="nosuch:worker") as running:
        assert await running.code() == 2
    assert "there is no module 'nosuch'" in running.log


# ------------------------------------------------------------------------------------------------- --reload


async def test_a_change_of_code_restarts_the_worker(bench: Bench, queue: AsyncWorkQueue) -> None:
    module = bench.folder / "app.py"
    module.write_text(PROGRAM.read_text())
    async with bench.worker("--reload", target="app:worker") as running:
        [first] = await children(running, 1)
        await queue.add_item(Item(b"hold", id="x"))
        await bench.began()

        module.write_text("def broken(:\n")
        await running.logged("app.py has changed: restarting")
        bench.release()  # it restarts when the run has ended
        await bench.ended()
        await running.logged("SyntaxError")
        await running.logged("ended with exit code 2; waiting for a change")
        assert not lives(first)

        module.write_text(PROGRAM.read_text().replace("concurrency=10", "concurrency=7"))
        await running.logged("7 runs at once")
        assert await running.stop() == 0
    assert (await queue.counts()).total == 0


# ------------------------------------------------------------------------------------------- rolling restarts


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.long)])
async def test_a_rolling_restart_runs_no_item_twice_and_waits_for_no_lease(
    bench: Bench, queue: AsyncWorkQueue, count: int
) -> None:
    """Processes are replaced one by one while items are added; leases are longer than the whole test."""
    total, added = 120 * count, 0
    over = asyncio.Event()

    async def produce() -> None:
        nonlocal added
        while not over.is_set() or added < total:
            await queue.add_items([Item(b"sleep 0.05", id=f"{added + n}") for n in range(10)])
            added += 10
            await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack:

        async def start() -> Running:
            return await stack.enter_async_context(bench.working("--concurrency", "5", LEASE="60"))

        workers = [await start() for _ in range(count)]
        producing = asyncio.create_task(produce())
        await bench.began(50)
        for at in range(count):
            workers.append(await start())
            assert await workers[at].stop() == 0
        over.set()
        await producing
        await bench.ended(added)
        for worker in workers[count:]:
            assert await worker.stop() == 0
    runs = Counter(id_ for id_, _ in bench.recorded("began"))
    assert set(runs) == {f"{n}" for n in range(added)}
    assert set(runs.values()) == {1}
    assert (await queue.counts()).total == 0


# -------------------------------------------------------------------------------- processes that are replaced


@pytest.mark.long
async def test_each_item_runs_once_while_processes_are_replaced_all_the_time(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    # More than two processes can run: beside its 7 runs, one finishes those that have started.
    names = {str(n) for n in range(40)}
    await queue.add_items([Item(b"sleep 0.01", id=name) for name in names])
    async with bench.worker("--max-runs", "7", "--processes", "2", "--concurrency", "3") as running:
        ended = await bench.ended(40)
        assert sorted(id_ for id_, _ in ended) == sorted(names)
        assert len({pid for _, pid in ended}) > 2
        assert await running.stop() == 0
    assert len(bench.recorded("began")) == 40
    assert (await queue.counts()).total == 0


@LIMITS
async def test_a_process_is_replaced_when_it_uses_too_much_memory(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    """Until it has finished its runs; a signal interrupts them after the grace time."""
    async with bench.worker("--max-memory", "200M", "--grace", "0.3", LIMITS=limits) as running:
        [first] = await children(running, 1)
        await queue.add_item(Item(b"hold", id="long"))
        await bench.began()
        await queue.add_item(Item(b"sleep 0", id="small"))
        await bench.ended()
        await queue.add_item(Item(b"grow 200", id="large"))
        [second] = set(await children(running, 2)) - {first}
        await running.logged(r"MiB of memory, more than --max-memory")
        assert lives(first)
        assert dict(bench.recorded("ended")) == dict.fromkeys(("small", "large"), first)
        assert await running.stop() == 3
        await gone(first, second)
    lease = await queue.lease(30, block=False)
    assert lease is not None
    assert (lease.id, lease.attempt) == ("long", 1)


async def test_a_process_is_replaced_after_so_many_runs_and_finishes_those_that_run(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    """Runs may take longer than the grace time: nothing interrupts them.

    Beside two processes of a number that still run, no third one starts; one that ends makes room.
    """
    async with bench.worker("--max-runs", "1", "--concurrency", "2", "--grace", "0") as running:
        for n in (1, 2):
            await children(running, n)
            await queue.add_items([Item(b"hold", id=f"long-{n}"), Item(b"sleep 0", id=f"short-{n}")])
            await running.logged("retiring after 1 runs", times=n)
        pids = await children(running, 2)
        await running.logged(rf"supervisor: replacing worker process {pids[0]}")
        assert dict(bench.recorded("began")) == {
            f"{kind}-{n}": pid for kind in ("long", "short") for n, pid in enumerate(pids, 1)
        }
        assert all(map(lives, pids))
        bench.release()
        await running.logged(WORKING, times=3)
        for pid in pids:
            await running.logged(rf"worker process {pid}, which was replaced, ended with exit code 0")
        await gone(*pids)
        assert await running.stop() == 0
    assert len(bench.recorded("began")) == len(bench.recorded("ended")) == 4
    assert (await queue.counts()).total == 0

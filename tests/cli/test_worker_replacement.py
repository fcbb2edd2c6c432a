"""`leasequeue worker --max-runs` and `--max-memory`: a process is replaced when its runs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.cli.test_worker_processes import WORKING, children
from tests.cli.worker_bench import LIMITS, Bench
from tests.processes import gone, lives

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

pytestmark = [pytest.mark.slow]


async def test_a_process_is_replaced_after_so_many_runs_and_finishes_those_that_run(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    """The run that holds takes longer than the grace time: nothing interrupts it."""
    async with bench.worker("--max-runs", "3", "--concurrency", "2", "--grace", "0") as running:
        [first] = await children(running, 1)
        await queue.add_item(Item(b"hold", id="long"))
        await bench.began()
        for n in range(3):
            await queue.add_item(Item(b"sleep 0", id=f"{n}"))
        [second] = set(await children(running, 2)) - {first}
        await running.logged(rf"supervisor: replacing worker process ({first})")
        await queue.add_item(Item(b"sleep 0", id="next"))
        await bench.ended(4)
        assert lives(first)
        bench.release()
        await running.logged(rf"worker process {first}, which was replaced, ended with exit code 0")
        await gone(first)
        assert dict(bench.recorded("ended")) == {
            "0": first, "1": first, "2": first, "long": first, "next": second
        }  # fmt: skip
        assert len(bench.recorded("began")) == 5
        assert await running.stop() == 0
        await gone(second)
    assert (await queue.counts()).total == 0


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


async def test_processes_whose_runs_take_long_do_not_pile_up(bench: Bench, queue: AsyncWorkQueue) -> None:
    """Beside two of a number that still run, no third one starts; one that ends makes room."""
    async with bench.worker("--max-runs", "1", "--concurrency", "2") as running:
        for n in (1, 2):
            await children(running, n)
            await queue.add_items([Item(b"hold", id=f"long-{n}"), Item(b"sleep 0", id=f"short-{n}")])
            await running.logged("retiring after 1 runs", times=n)
        pids = {pid for _, pid in bench.recorded("began")}
        assert len(pids) == 2
        assert len(await children(running, 2)) == 2
        bench.release()
        await running.logged(WORKING, times=3)
        await gone(*pids)
        assert await running.stop() == 0
    assert (await queue.counts()).total == 0

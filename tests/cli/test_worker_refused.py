"""`leasequeue worker` that cannot start: one line that says why, and an exit code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.cli.worker_bench import PROGRAM

if TYPE_CHECKING:
    from tests.cli.worker_bench import Bench
    from tests.conftest import MakeServer


async def test_a_worker_that_is_refused_says_so_in_one_line_and_ends(
    bench: Bench, make_server: MakeServer
) -> None:
    server = await make_server()
    wrong = server.url.removesuffix("0") + "99"
    async with bench.worker(REDIS_URL=wrong) as worker:
        assert await worker.code() == 5
    [line] = worker.lines
    assert "the worker cannot start: ERR DB index is out of range" in line
    assert not bench.record.exists(), "its lifespan was not run"


async def test_processes_that_are_refused_end_with_their_supervisor(
    bench: Bench, make_server: MakeServer
) -> None:
    server = await make_server()
    wrong = server.url.removesuffix("0") + "99"
    async with bench.worker("--processes", "2", REDIS_URL=wrong) as worker:
        assert await worker.code() == 5
    assert "cannot start: stopping" in worker.log
    assert "Traceback" not in worker.log


async def test_a_lifespan_that_raises_is_one_line_and_its_own_traceback(bench: Bench) -> None:
    async with bench.worker(HANGS_AT="nowhere") as worker:
        assert await worker.code() == 1
    assert "CRITICAL" in worker.lines[0]
    assert worker.lines[0].endswith("the lifespan has failed:\n")
    assert worker.lines[-1] == "LookupError: no database\n"
    assert re.findall(r'File "(.+?)"', worker.log) == [str(PROGRAM)]

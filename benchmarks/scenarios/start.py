"""What the first job of a new worker costs, and `leasequeue --help`, beside programs that do nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.measure import Row, number_row, take_turns
from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.bench import Bench

FIRST_JOB, HELP = "start to the first job", "leasequeue --help"
#: Each ends where it would begin to work.
PROGRAMS = {
    "worker": """\
import os
from leasequeue import TaskQueue

tasks = TaskQueue.from_url(os.environ["URL"], os.environ["QUEUE"])

@tasks.task
async def job() -> None:
    os._exit(0)
""",
    "asyncio_redis": """\
import asyncio, os
import redis.asyncio

async def main() -> None:
    await redis.asyncio.Redis.from_url(os.environ["URL"]).ping()
    os._exit(0)

asyncio.run(main())
""",
    "commands": """\
import typer

app = typer.Typer()
for number in range(28):
    @app.command(f"command-{number}")
    def command() -> None:
        "Do nothing."
app()
""",
}


async def start(bench: Bench) -> list[Row]:
    """Measure the CPU time of processes from their start; they take turns."""
    with TemporaryDirectory(prefix="leasequeue-bench-") as folder:
        for name, text in PROGRAMS.items():
            (Path(folder) / f"{name}.py").write_text(text)
        script = str(Path(sys.executable).with_name("leasequeue"))
        commands = {
            (FIRST_JOB, "leasequeue"): [script, "worker", "worker.py:tasks"],
            (FIRST_JOB, "bare"): [sys.executable, "asyncio_redis.py"],
            (HELP, "leasequeue"): [script, "--help"],
            (HELP, "bare"): [sys.executable, "commands.py", "--help"],
        }
        found: dict[tuple[str, str], list[float]] = {one: [] for one in commands}

        def turn(one: tuple[str, str]) -> Callable[[], Awaitable[None]]:
            async def measured() -> None:
                queue = bench.name()
                async with AsyncWorkQueue.from_url(bench.url(), queue) as adder:
                    await adder.add_item(Item(b'{"task": "job", "args": {}}'))
                found[one].append(await asyncio.to_thread(_cpu_ms, commands[one], folder, bench.url(), queue))

            return measured

        await take_turns(bench.scaled(11, 2), [turn(one) for one in commands])
    # The first of each compiles modules, and loads the scripts into the server.
    return [number_row(what, "CPU ms", values[1:], who=who) for (what, who), values in found.items()]


def _cpu_ms(command: list[str], folder: str, url: str, queue: str) -> float:
    """Run a program, and return the CPU time of it, that of the kernel for it included."""
    environment = {**os.environ, "URL": url, "QUEUE": queue, "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return 1000 * (used.ru_utime + used.ru_stime)

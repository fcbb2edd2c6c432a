"""The command `leasequeue demo`: its options, its progress and its exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import sysconfig
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from leasequeue.cli.demo.run import Demo
from leasequeue.cli.demo.workers import DemoFailed, find_files
from leasequeue.cli.options import number_option
from leasequeue.cli.server import Code, fail
from leasequeue.errors import LeasequeueError
from leasequeue.errors.describing import TEXT_LENGTH, plain

_EXPLAINED = """
{completed_once} of {items} items were completed exactly once, {items_per_second} a second for {seconds} s.
    The rest of the time started processes, waited for both faults and checked the output.
{leased_again} items were leased again: the killed and the stopped worker held them. The last of them was
    leased {recovery_seconds} s after its lease had expired.
{late_lines} lines came late: the stopped worker wrote them after its leases had expired. Its completions
    were rejected, and the lines with the higher token are in the output.
Output: {output}"""


def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(help="The files; by default Python's standard library."),
    ] = None,
    *,
    workers: Annotated[int, number_option("Worker processes.", minimum=3, maximum=64)] = 4,
    lease: Annotated[
        float,
        number_option("Seconds that an item is leased; workers renew.", minimum=0.1, maximum=60, whole=False),
    ] = 1.5,
    output: Annotated[Path, typer.Option(help="The JSON Lines file to write.")] = Path(
        "leasequeue-demo.jsonl"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Process files with worker processes, kill one and stop one, and check that nothing is lost.

    Each file is an item. Workers lease items and write a line for each: SHA-256, bytes
    and lines. One worker is killed (SIGKILL) while it holds an item. Another one is
    stopped (SIGSTOP) while it holds one, and continues when all items are completed.

    At the end each line is computed again, without the queue, and compared.
    Exit codes: 0 each line is there once and correct, 1 it is not, or there is no file.

    The demo starts its own server, or uses the one that REDIS_URL names.
    """
    if folder is not None and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="FOLDER")
    if output.exists() and not output.is_file():
        raise typer.BadParameter(f"{output} is not a regular file", param_hint="--output")
    console, began = Console(stderr=True, soft_wrap=True, highlight=False), time.perf_counter()

    def say(text: object) -> None:
        shown = escape(plain(str(text), TEXT_LENGTH))
        console.print(f"[dim]{time.perf_counter() - began:5.1f} s[/dim]  {shown}")

    where = folder or Path(sysconfig.get_path("stdlib"))
    files = find_files(where, output=output, on_error=say)
    if not files:
        raise typer.Exit(fail(f"there is no file in {where}", Code.MISSED))
    say(f"{len(files):,} files in {where}, {workers} workers, leases of {lease:g} s")
    code, report = 0, {}
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            report = asyncio.run(_run(Demo(where, files, output, workers, lease, progress, say)))
    except* KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except* asyncio.CancelledError:
        code = 128 + signal.SIGTERM
    except* (DemoFailed, LeasequeueError, OSError) as failures:
        code = 1
        say(failures.exceptions[0])
    if not code:
        code = _print(report, as_json=as_json)
    raise typer.Exit(code)


async def _run(demo: Demo) -> dict[str, Any]:
    """Run the demo; SIGTERM cancels it, as Ctrl-C does."""
    task = asyncio.current_task()
    if task:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await demo.run()


def _print(report: dict[str, Any], *, as_json: bool) -> int:
    problems = report["problems"]
    if as_json:
        typer.echo(json.dumps({"ok": not problems, **report}, indent=2))
        return 1 if problems else 0
    facts = {name: f"{value:,}" if type(value) is int else value for name, value in report.items()}
    typer.echo(_EXPLAINED.format_map({name: plain(str(fact)) for name, fact in facts.items()}))
    passed = ["Checked: each file is in the output once, as computed without the queue."]
    typer.secho("\n".join(problems or passed), fg="red" if problems else "green")
    return 1 if problems else 0

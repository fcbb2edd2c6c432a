"""The command `leasehold demo`: its options, what it shows meanwhile, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from leasehold.cli.demo.events import DemoFailed
from leasehold.cli.demo.files import NOT_STANDARD, find_files, shown, standard_library
from leasehold.cli.demo.play import Settings, play
from leasehold.cli.demo.scenes import FEWEST_WORKERS
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.cli.demo.report import Report

#: What shells make of a program that a signal has ended.
_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(
            exists=True, file_okay=False, help="Work on its files; by default on Python's standard library."
        ),
    ] = None,
    *,
    workers: Annotated[int, typer.Option(min=FEWEST_WORKERS, max=64, help="Worker processes.")] = 4,
    lease: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds that an item is leased; workers renew.")
    ] = 1.5,
    output: Annotated[Path, typer.Option(dir_okay=False, help="The JSON Lines file to write.")] = Path(
        "leasehold-demo.jsonl"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Work through real files with real processes, kill one and stop one, and check that nothing is lost.

    Each file is an item. The workers lease items and write a line for each:
    SHA-256, bytes, lines and the ten commonest words. In mid-item one of them
    is killed (SIGKILL). Another one is stopped (SIGSTOP) until its lease has
    ended and somebody else has done its item; then it goes on.

    At the end all lines are computed anew, without the queue, and compared.
    Exit code 0 says that each is there once and right; else it is 1.

    The server is one of its own, or the one that REDIS_URL names.
    """
    screen = Screen()
    if output.exists() and not output.is_file():
        raise typer.BadParameter(f"{output} is no file", param_hint="--output")
    where = folder or standard_library()
    files, unreadable = find_files(where, but=output, leave_out=frozenset() if folder else NOT_STANDARD)
    screen.say(f"{len(files):,} files in {shown(str(where))}, {workers} workers, leases of {lease:g} s")
    if unreadable:
        screen.say(f"{unreadable:,} folders cannot be read and are left out")
    settings = Settings(folder=where, files=files, output=output, workers=workers, lease_seconds=lease)
    try:
        report = asyncio.run(_play(settings, screen))
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except asyncio.CancelledError:
        raise typer.Exit(_TERMINATED) from None
    except (DemoFailed, LeaseholdError, OSError) as error:
        screen.complain(str(error))
        raise typer.Exit(1) from None
    _print(report, as_json=as_json)
    raise typer.Exit(0 if report.ok else 1)


async def _play(settings: Settings, screen: Screen) -> Report:
    """Play, and stop in good order on SIGTERM as on Ctrl-C."""
    playing = asyncio.current_task()
    if playing:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
    return await play(settings, screen)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"ok": report.ok, **asdict(report)}, indent=2))
        return
    typer.echo("\n" + "\n".join(report.lines()) + "\n")
    typer.secho("\n".join(report.conclusion()), fg="green" if report.ok else "red")


class Screen:
    """Shows on standard error what happens: with a bar if that is a terminal, else in plain lines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._began = time.perf_counter()

    def say(self, text: str) -> None:
        """Tell what happened."""
        seconds = time.perf_counter() - self._began
        self._console.print(f"[dim]{seconds:5.1f} s[/dim]  {escape(text)}")

    def complain(self, text: str) -> None:
        """Tell why there is no report."""
        self._console.print(f"[red]{escape(text)}[/red]")

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how far we are while the block runs."""
        if not self._console.is_terminal:
            yield self._quarters(title, total)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, completed=done)

    def _quarters(self, title: str, total: int) -> Callable[[int], None]:
        said = 0

        def advance(done: int) -> None:
            nonlocal said
            if 4 * done // total > said:
                said = 4 * done // total
                self.say(f"{title}: {done:,} of {total:,}")

        return advance

"""The command `leasequeue top`: its options, and what it prints without a terminal."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from leasequeue.cli.formatting import print_json, print_line, print_table, view_document
from leasequeue.cli.options import duration_option
from leasequeue.cli.server import DEFAULT_URL, AnyQueues, AsJson, Code, Url, command, note, open_queue
from leasequeue.cli.stats import stats_document
from leasequeue.cli.top.readings import Readings
from leasequeue.cli.top.tables import TABLES
from leasequeue.cli.workers import worker_document

#: The shortest interval between two readings (s).
SHORTEST = 0.1


@command
async def top(
    queues: AnyQueues = None,
    *,
    every: Annotated[float, duration_option("The time between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the tables once, and end.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Watch queues, workers, runs and dead letters, live.

    Press ? for the keys. Lowercase letters only look; uppercase letters act,
    and ask before. Without a terminal, and with --json, it prints once and ends.
    """
    if every < SHORTEST:
        raise typer.BadParameter(f"must be at least {SHORTEST:g} s", param_hint="--every")
    for name in queues or ():
        async with open_queue(url, name):
            pass
    lives = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    async with Readings(url, queues or ()) as readings:
        if lives and not once and not as_json:
            from leasequeue.cli.top.screen import Screen  # it takes long to import, and JSON needs none of it

            await readings.read("queues")  # its errors are reported before the screen is in use
            return await Screen(readings, every=every).run()
        await readings.read_all(TABLES)
    if as_json:
        _print_document(readings)
        return Code.DONE
    for name, table in TABLES.items():
        rows = [row.cells for row in table.rows(readings)]
        print_line(f"{name}: {len(rows):,}{' or more' * (name in readings.cut)}")
        if rows:
            print_table(table.titles, rows)
        print_line()
    for text in readings.notes():
        note(text)
    return Code.DONE


def _print_document(readings: Readings) -> None:
    workers = [worker_document(one) for one in readings.workers]
    runs = [{"worker": one["name"], **run} for one in workers for run in one["running"]]
    letters = [{"queue": queue, **view_document(letter)} for queue, letter in readings.letters]
    queues = [stats_document(one) for one in readings.stats.values()]
    print_json({"queues": queues, "workers": workers, "runs": runs, "dead": letters})

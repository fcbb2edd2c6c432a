"""`leasequeue clean --lines`: clean what standard input names, line by line, for another program."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from leasequeue.cli.formatting import print_json
from leasequeue.cli.server import Code, note, open_queue

if TYPE_CHECKING:
    from leasequeue import CleanReport


async def clean_lines(url: str, *, as_json: bool) -> Code:
    """Read `light:<queue>` and `deep:<queue>`; answer each with `light cleaned <queue>` when it is done."""
    code = Code.DONE
    while line := await asyncio.to_thread(sys.stdin.readline):
        kind, _, name = line.rstrip("\r\n").partition(":")
        if kind not in ("light", "deep") or not name:
            note(f"cannot read {line.strip()!r}: expected light:QUEUE or deep:QUEUE")
            code = Code.MISSED
            continue
        async with open_queue(url, name) as queue:
            report = await (queue.deep_clean() if kind == "deep" else queue.light_clean())
        if as_json:
            print_json({"queue": name, "cleaned": kind, **counts_of(report)})
        else:
            typer.echo(f"{kind} cleaned {name}")
        sys.stdout.flush()
    return code


def counts_of(report: CleanReport) -> dict[str, int]:
    """Return the counts of a report."""
    counts = {field: value for field, value in asdict(report).items() if field != "findings"}
    return {**counts, "repaired": report.repaired}

"""`leasequeue fsck`: check queues, repair what does not agree, and report each repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.cli.formatting import print_rows
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, QueueNames, Url, command, note, open_queue
from leasequeue.queue.formats import check_formats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.queue import Finding


@command
async def fsck(
    queues: QueueNames,
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Check the keys of queues against each other, and repair what does not agree.

    Prints nothing if nothing was found, else a line for each problem: how often, what was done
    about it or, if nothing was, what you can do, and ids of items, names or keys for example.
    Workers may keep running. Says if several versions of leasequeue work on a queue.
    """
    found: list[tuple[str, Finding]] = []
    for name in queues:
        async with open_queue(url, name) as queue:
            for shard in queue.shards:  # so that each is named whose keys were found
                found += [(shard.name, one) for one in (await shard.admin.fsck()).findings]
            for text in await check_formats(queue):
                note(f"{name}: {text}")
    return print_findings(found, as_json=as_json)


def print_findings(found: Iterable[tuple[str, Finding]], *, as_json: bool) -> Code:
    """Print what a check has found, each finding with the name of its queue; return the exit code."""
    rows = [
        {
            "queue": name,
            "problem": one.problem.value,
            "count": one.count,
            "repaired": one.is_repaired,
            "found": one.found,
            "done": one.done,
            "examples": list(one.examples),
        }
        for name, one in found
    ]
    if as_json:
        print_rows(rows, as_json=True)
    else:
        print_rows([_cells(row) for row in rows], as_json=False)
    if not rows:
        return Code.DONE
    return Code.REPAIRED if all(row["repaired"] for row in rows) else Code.LEFT


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    done = row["done"] if row["repaired"] else f"not repaired: {row['done']}"
    return {
        "queue": row["queue"],
        "problem": row["problem"],
        "count": row["count"],
        "done": done.replace("`", "").replace("P:", f"{row['queue']}:"),
        "examples": " ".join(row["examples"]),
    }

"""`leasehold fsck`: check queues, repair what does not agree, and report each repair."""

from __future__ import annotations

from typing import Any

from leasehold.cli.formatting import print_rows
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, QueueNames, Url, command, open_queue


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
    Workers may run meanwhile.
    """
    rows: list[dict[str, Any]] = []
    for name in queues:
        async with open_queue(url, name) as queue:
            report = await queue.fsck()
        rows += [
            {
                "queue": name,
                "problem": one.problem.value,
                "count": one.count,
                "repaired": one.is_repaired,
                "found": one.found,
                "done": one.done,
                "examples": list(one.examples),
            }
            for one in report.findings
        ]
    if as_json:
        print_rows(rows, as_json=True)
    else:
        print_rows([_cells(row) for row in rows], as_json=False)
    if not rows:
        return Code.DONE
    return Code.REPAIRED if all(row["repaired"] for row in rows) else Code.LEFT


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a row of the table."""
    done = row["done"] if row["repaired"] else f"not repaired: {row['done']}"
    return {
        "queue": row["queue"],
        "problem": row["problem"],
        "count": row["count"],
        "done": done.replace("`", "").replace("P:", f"{row['queue']}:"),
        "examples": " ".join(row["examples"]),
    }

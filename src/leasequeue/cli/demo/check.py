"""Merging the workers' lines into the output, and checking the output."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from leasequeue.cli.formatting import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def merge(parts: Path, output: Path) -> int:
    """Write the line with the highest token of each item to the output, in the order of the ids.

    Tokens only grow, so that line is by the last holder. The output is replaced in one step.

    Returns:
        How many lines were left out.
    """
    lines = [
        json.loads(text)
        for part in parts.glob("*.jsonl")
        for text in part.read_bytes().splitlines(keepends=True)
        if text.endswith(b"\n")  # else the worker was killed while it wrote
    ]
    kept = {line["id"]: line for line in sorted(lines, key=lambda line: int(line.pop("token")))}
    merged = parts / "merged"
    merged.write_bytes(b"".join(dump(line) for _, line in sorted(kept.items())))
    merged.replace(output.resolve())
    return len(lines) - len(kept)


def check(expected: Iterable[dict[str, Any]], output: Iterable[bytes]) -> list[str]:
    """Compare the output with the lines that it should have; return what is wrong, a line each."""
    ids = {dump(line): printable(line["id"]) for line in expected}
    found = Counter(output)
    problems = [f"missing: {item_id}" for line, item_id in ids.items() if line not in found]
    problems += [f"duplicated: {ids[line]}" for line, count in found.items() if line in ids and count > 1]
    wrong = (line.decode(errors="backslashreplace") for line in found if line not in ids)
    return problems + [f"wrong: {printable(line.rstrip())}" for line in wrong]


def dump(line: dict[str, Any]) -> bytes:
    """Return a line of the output."""
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"

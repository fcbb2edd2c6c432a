"""Merging the workers' lines into the output, and checking the output."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from leasehold.cli.formatting import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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
    with merged.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for _, line in sorted(kept.items()))
    merged.replace(output.resolve())
    return len(lines) - len(kept)


def check(expected: Mapping[str, dict[str, Any]], output: Iterable[bytes]) -> list[str]:
    """Compare the output with the lines that it should have; return what is wrong, a line each."""
    seen: Counter[str] = Counter()
    problems: list[str] = []
    for text in output:
        try:
            line = json.loads(text)
            item_id = str(line["id"])
        except (ValueError, TypeError, KeyError):
            problems.append(f"unreadable: {text[:40].decode(errors='backslashreplace')!a}")
            continue
        seen[item_id] += 1
        if line != expected.get(item_id):
            problems.append(f"wrong: {printable(item_id)}")
    problems += [f"missing: {printable(item_id)}" for item_id in expected if item_id not in seen]
    problems += [f"duplicated: {printable(item_id)}" for item_id, count in seen.items() if count > 1]
    return problems

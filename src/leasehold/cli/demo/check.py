"""From the workers' lines to the output, and from the output to a verdict."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.cli.demo.crew import child
from leasehold.cli.demo.describe import Line, dump
from leasehold.cli.demo.events import DemoFailed
from leasehold.cli.demo.files import File, shown, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is not as it should be in the output: ids of items."""

    missing: list[str]
    doubled: list[str]
    wrong: list[str]

    @property
    def right(self) -> bool:
        """Whether each item is there once and right."""
        return not (self.missing or self.doubled or self.wrong)


def merge(parts: Path, output: Path) -> int:
    """Make one output of the workers' files: of each item the line with the highest token, in order of ids.

    It is there at once and whole; runs of the demo on the same files make the same bytes.

    Tokens only grow, and whoever completes has written before: so of each item that is done there is a line,
    and the one with the highest token is that of the last holder who has written.

    Returns:
        How many lines were left out.
    """
    best: dict[str, tuple[int, Line]] = {}
    count = 0
    for part in parts.glob("*.jsonl"):
        with part.open("rb") as lines:
            for text in lines:
                if not text.endswith(b"\n"):
                    continue  # its writer was killed before it could complete; somebody else has written it
                written = json.loads(text)
                count += 1
                token, line = written["token"], written["line"]
                if token > best.get(line["id"], (0, line))[0]:
                    best[line["id"]] = (token, line)
    merged = parts / "merged"
    merged.write_bytes(b"".join(dump(line) for _, (_, line) in sorted(best.items())))
    merged.replace(output.resolve())
    return count - len(best)


def check(expected: Mapping[str, Line], output: Iterable[bytes]) -> Verdict:
    """Compare the output with what it should be.

    Args:
        expected: For each id, its line.
        output: The lines that are there.

    Returns:
        What is missing, doubled or wrong. Wrong is also an item that nobody asked for, and a line that is
        none, which goes by its first characters.
    """
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for text in output:
        line = _read(text)
        item_id = line.get("id") if isinstance(line, dict) else None
        if not isinstance(item_id, str):
            wrong.append(text[:40].decode(errors="replace"))
            continue
        seen[item_id] += 1
        if line != expected.get(item_id):
            wrong.append(item_id)
    return Verdict(
        missing=[item_id for item_id in expected if item_id not in seen],
        doubled=[item_id for item_id, count in seen.items() if count > 1],
        wrong=wrong,
    )


async def compute_directly(
    folder: Path, files: Sequence[File], *, processes: int, on_line: Callable[[int], None]
) -> dict[str, Line]:
    """Compute every line anew, straight from the files, with no queue in between.

    Args:
        folder: Where the files are.
        files: Which ones.
        processes: How many processes share the work, each taking every so many-th file.
        on_line: Called with how many there are, as they come.

    Raises:
        DemoFailed: If one of the processes ends early.
    """
    lines: dict[str, Line] = {}

    async def compute(some: Sequence[File]) -> None:
        async with child("leasehold.cli.demo.describe", folder) as process:
            process.stdin.write(b"".join(file.path + b"\0" for file in some))
            process.stdin.close()
            for file in some:
                text = await process.stdout.readline()
                if not text:
                    raise DemoFailed(f"the check ended early, before {shown(file.id)}")
                lines[file.id] = json.loads(text)
                on_line(len(lines))

    await asyncio.gather(*(compute(files[first::processes]) for first in range(processes)))
    return lines


def changed_since(folder: Path, files: Iterable[File]) -> set[str]:
    """Return the ids of the files that somebody has changed or removed since they were found."""
    return {file.id for file in files if stamp_of(file.below(folder)) != file.stamp}


def _read(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None

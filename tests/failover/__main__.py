"""The fail-over matrix, as a command.

python -m tests.failover [--rows WORDS] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from tests.failover.faults import ROWS, Row
from tests.failover.spark_stream import streaming
from tests.failover.verdict import HEADER, Course, Verdict, judge
from tests.failover.workload import ANSWERS, Workload

#: How long a row may take (s).
ROW_SECONDS = 240.0
#: How much longer than redis-py's own client a part may not be served (s).
BEHIND_SECONDS = 3.0


async def run_row(row: Row) -> Verdict:
    """Run the workload, and the fault of a row under it.

    Raises:
        AssertionError: If the workload does not begin, or the fault does not happen.
    """
    async with (
        asyncio.timeout(ROW_SECONDS),
        row.topology() as topology,
        streaming(topology) if row.spark else nullcontext() as streamed,
        Workload(topology) as workload,
    ):
        stopped = await workload.steady()
        assert not stopped, f"before the fault: {stopped}, {workload.errors}"
        first = await topology.primary()
        added = (event.id for event in workload.events if event.kind == "add" and event.called_at)
        safe = frozenset(added if topology.replicas else ())
        await topology.replicate()
        begun = time.monotonic()
        await row.fault(topology, workload)
        stopped = await workload.steady()
        ended = time.monotonic()
        if streamed is not None:
            await streamed.reads("after")
        last = await topology.primary()
        await workload.check(last)
        left = await workload.stop(last)
        # Two Sentinels may each promote another replica, one after the other: then neither has stayed.
        stayed = last is not first and last is await topology.primary()
        where = f"{last.host}:{last.port}" if stayed else ""
        course = Course(begun, ended, safe, where, frozenset(left), tuple(stopped))
        return judge(row.name, workload, course, may_lose=row.may_lose)


def main() -> int:
    """Run the rows, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover")
    parser.add_argument("--rows", default="", help="parts of the names of rows, with commas between")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [row for row in ROWS if any(word in row.name for word in given.rows.split(","))]
    verdicts: list[Verdict] = []
    problems: list[str] = []
    _say(HEADER)
    for row in rows * given.rounds:
        try:
            verdict = asyncio.run(run_row(row))
        except Exception as error:  # noqa: BLE001 - the other rows are run nevertheless
            problems.append(row.name)
            _say(f"{row.name:34} | did not run: {error!r}")
            continue
        verdicts.append(verdict)
        _say(str(verdict))
        found = [*verdict.problems]
        late = {part: seconds for part, seconds in verdict.parts.items() if seconds > BEHIND_SECONDS}
        found += [f"{part}: {seconds:.1f} s later than redis-py's client" for part, seconds in late.items()]
        for problem in found[:10]:
            _say(f"    {problem}")
        problems += found
    met: dict[str, set[str]] = {
        word: {one.row for one in verdicts if one.answers.get(word)} for word in ANSWERS
    }
    for word, ones in met.items():
        _say(f"{word}: {', '.join(sorted(ones)) or 'not met'}")
    if given.json:
        given.json.write_text(json.dumps([one.json() for one in verdicts], indent=1))
    missing = [word for word, ones in met.items() if not ones] if not given.rows else []
    return 1 if problems or missing else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Repairs what foreign clients and manual edits leave behind, in small steps.

A clean may be stopped after any step and started again, and any number of cleaners may run at once: each step
examines and repairs in one script.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from leasehold.queue.views import CleanReport

if TYPE_CHECKING:
    from leasehold.queue.engine import Engine

#: Entries examined in one step.
STEP = 500
#: How long an unexplained entry is left alone (ms): a foreign client writes its lease key one or two trips
#: after it has taken the id.
GRACE_MS = 2000


async def light_clean(engine: Engine) -> CleanReport:
    """Walk once over the processing list, and over a part of the ledger. See `AsyncWorkQueue.light_clean`."""
    report = CleanReport()
    left: int | None = None
    more, started_ms = True, 0
    while more or left is None or left > 0:
        ends = left is not None and left <= STEP
        reply = await engine.run(
            "light_clean",
            grace_ms=GRACE_MS,
            count=STEP,
            started_ms=started_ms if ends else 0,
            cursor=engine.ledger_cursor,
            from_option=engine.options_cursor,
        )
        length, reclaimed, dropped, adopted, more, now_ms, engine.ledger_cursor, finished = reply[:8]
        engine.options_cursor = reply[8]
        if left is None:
            left, started_ms = length + dropped, now_ms
        seen = min(left, STEP)
        left -= seen
        report += CleanReport(examined=seen, reclaimed=reclaimed, dropped=dropped + finished, adopted=adopted)
    return report


async def deep_clean(engine: Engine) -> CleanReport:
    """Find items that are in no list and put them back. See `AsyncWorkQueue.deep_clean`."""
    report = await light_clean(engine)
    started_ms, suspects = await _find_suspects(engine)
    examined = len(suspects)
    await _drop_waiting(engine, suspects)
    restored = 0
    orphans = iter(sorted(suspects))
    while some := list(itertools.islice(orphans, STEP)):
        restored += await engine.run("deep_clean_restore", some, started_ms=started_ms, grace_ms=GRACE_MS)
    dropped = await _clean_ledger(engine)
    return report + CleanReport(examined=examined, dropped=dropped, restored=restored)


async def _find_suspects(engine: Engine) -> tuple[int, set[bytes]]:
    """Return when the search began, and all ids with data that are neither leased nor scheduled."""
    cursor, started_ms = b"0", None
    suspects: set[bytes] = set()
    while started_ms is None or cursor != b"0":
        now_ms, cursor, *ids = await engine.run(
            "deep_clean_scan", pattern=engine.keys.data_pattern, cursor=cursor, count=STEP
        )
        started_ms = now_ms if started_ms is None else started_ms
        suspects.update(ids)
    return started_ms, suspects


async def _drop_waiting(engine: Engine, suspects: set[bytes]) -> None:
    """Remove the ids of waiting items from the suspects.

    Walk from the end at which items are added: leases at the other end move nothing, and an item that is
    added during the walk only makes it see an id twice.
    """
    start = 0
    while suspects:
        ids = await engine.run("deep_clean_walk", start=start, count=STEP)
        suspects.difference_update(ids)
        if len(ids) < STEP:
            return
        start += STEP


async def _clean_ledger(engine: Engine) -> int:
    cursor, dropped = b"0", 0
    while True:
        cursor, stale = await engine.run("deep_clean_ledger", cursor=cursor, count=STEP)
        dropped += int(stale)
        if cursor == b"0":
            return dropped

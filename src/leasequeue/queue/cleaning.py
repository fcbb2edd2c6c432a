"""Checks the keys of a queue against each other and repairs what does not agree, in small steps.

A clean may be stopped after any step and started again, and any number of cleaners may run at once: each step
examines and repairs in one script. A light clean takes a few steps, and continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from array import array
from bisect import bisect_left
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from leasequeue.errors import ExtraMissing
from leasequeue.keys import KEYS, MADE_KEYS, NONE
from leasequeue.queue.findings import Problem, read_repairs
from leasequeue.queue.schedules import read_definition
from leasequeue.queue.views import CleanReport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from leasequeue.queue.engine import Engine

    #: Reads a slice of a list from a place on; returns its ids, and whether it is the last.
    ReadList = Callable[[int], Awaitable[tuple[list[bytes], bool]]]
    #: Yields all ids of a list or of the lanes, in slices, each with its place.
    Pages = Callable[[], AsyncIterator[tuple[bytes, list[bytes]]]]

#: Entries examined in one step: none takes 5 ms of the server, whatever it has to repair.
STEP = 100
#: How many entries of a list a step of a walk reads. Of `processing` more than it reclaims, so that a walk
#: meets the entries of what was reclaimed in between.
WALK_STEP = 500
#: How many a step reads that repairs nothing: in the middle of a long list, finding the place takes longest.
READ_STEP = 1000
#: How many of them it reads again with the next step.
OVERLAP = 100
#: How long an unexplained entry is left alone (ms): a foreign client writes its lease key one or two trips
#: after it has taken the id.
GRACE_MS = 2000
_LEASES = ("ledger", "deadlines", "scheduled")
_OTHERS = (
    *("options", "errors", "progress", "dead", "recent", "cancelled", "tags", "unstarted"),
    *("sessions", "ticks", "declared", "workers", "heartbeats"),
)
#: What is checked if the queue has lanes or limits; a queue has at most one key of turns for each level.
_LANES = ("lanes", "levels", "slots", *(f"turns:{number}" for number in range(41, 60)))
#: The keys that are checked step by step, each with the script that does it. `control` comes first, as the
#: others read it.
CHECKED = {
    "control": "fsck_lanes",
    **dict.fromkeys(_LEASES, "fsck_leases"),
    **dict.fromkeys(_OTHERS, "fsck_entries"),
    **dict.fromkeys(_LANES, "fsck_lanes"),
}
#: Also this one, by `_check_ticks`: only a client can calculate when a schedule is due.
_SCHEDULES = "schedules"
#: A schedule that is due later than this long (ms) from now on has its time from a clock that was ahead.
LONGEST_STEP_MS = 60_000
#: The types of the keys that a queue has once, and of families of keys.
_TYPES = {
    name: "string" if key.type == "counter" else key.type.partition(",")[0]
    for name, key in {**KEYS, **MADE_KEYS}.items()
    if name not in {NONE, "probe", "lost:<name>"}
}
_SINGLE = {name: type_ for name, type_ in _TYPES.items() if "<" not in name and name != "inbox"}
_FAMILIES = {name.partition(":")[0]: type_ for name, type_ in _TYPES.items() if name not in _SINGLE}


async def light_clean(engine: Engine) -> CleanReport:
    """Walk over the processing list, and check a part of the other keys. See `AsyncWorkQueue.light_clean`."""
    report, keys = await _check_types(engine)
    if _is_being_deleted(report):
        return report
    steps = [_check_part(engine, which) for which in (*CHECKED, _SCHEDULES) if which in keys]
    for part in await asyncio.gather(*steps, _check_part(engine, None)):
        report += part
    return report + await _walk_processing(engine)


async def deep_clean(engine: Engine) -> CleanReport:
    """Check all keys, and find items that are in no list. See `AsyncWorkQueue.deep_clean`."""
    report, keys = await _check_types(engine)
    if _is_being_deleted(report):
        return report
    report += await _check_all(engine, keys)
    return report + (await check_runs(engine, renames=False) if "runs:ends" in keys else CleanReport())


async def fsck(engine: Engine) -> CleanReport:
    """Do a deep clean, rename keys of a wrong type, drop ids that do not wait. See `QueueAdmin.fsck`."""
    report, keys = await _check_types(engine, renames=True)
    if _is_being_deleted(report):
        return report
    if report.repaired:
        report += (await _check_types(engine))[0]  # what is missing now
    report += await _check_all(engine, keys, renames=True)
    report += await _check_queue(engine)
    # What was reclaimed in between, or dropped from the queue.
    return report + await _check_keys(engine, keys & {*_LEASES, "slots"})


async def _check_all(engine: Engine, keys: set[str], *, renames: bool = False) -> CleanReport:
    report = await _check_keys(engine, {None, *keys}, renames=renames)
    report += await _walk_processing(engine)
    return report + await _restore_orphans(engine)


async def _restore_orphans(engine: Engine) -> CleanReport:
    """Find items that are in no list, look once more, and put back those that have not moved in between."""
    started_ms, examined, suspects = await _find_suspects(engine)
    report = CleanReport(examined=examined)
    await _drop_waiting(engine, suspects)
    orphans = sorted(suspects)
    mark = secrets.token_hex(8).encode()

    async def take(step: bytes, ids: Iterable[bytes]) -> CleanReport:
        done, left = CleanReport(), iter(ids)
        while some := list(itertools.islice(left, STEP)):
            restored, repairs = await engine.run(
                "deep_clean_restore",
                some,
                started_ms=started_ms,
                grace_ms=GRACE_MS,
                step=step,
                clean=mark,
            )
            done += CleanReport(restored=restored, findings=read_repairs(repairs))
        return done

    report += await take(b"mark", orphans)
    await _drop_waiting(engine, suspects)
    report += await take(b"restore", sorted(suspects))
    return report + await take(b"unmark", sorted({*orphans} - suspects))


async def _check_keys(
    engine: Engine, keys: set[str | None] | set[str], *, renames: bool = False
) -> CleanReport:
    report = CleanReport()
    for which in (None, *CHECKED, _SCHEDULES):
        cursor = b"" if which in keys else b"0"
        while cursor != b"0":
            cursor, part = await _check_step(engine, which, cursor or b"0", renames=renames)
            report += part
    return report


async def _check_part(engine: Engine, which: str | None) -> CleanReport:
    place = which or ""
    cursor = engine.clean_cursors.get(place, b"0")
    engine.clean_cursors[place], report = await _check_step(engine, which, cursor)
    return report


async def _check_step(
    engine: Engine, which: str | None, cursor: bytes, *, renames: bool = False
) -> tuple[bytes, CleanReport]:
    """Check entries of a key or, without `which`, the keys that are made with an id or another name."""
    if which == _SCHEDULES:
        return await _check_ticks(engine, cursor)
    if which is None:
        step = engine.run("fsck_keys", pattern=engine.keys.pattern, cursor=cursor, count=STEP)
    else:
        step = engine.run(CHECKED[which], which=which.encode(), cursor=cursor, count=STEP)
    cursor, repairs = await step
    return cursor, await _read(engine, repairs, renames=renames)


async def _check_types(engine: Engine, *, renames: bool = False) -> tuple[CleanReport, set[str]]:
    """Check the types of the keys; return the names of those that exist."""
    rows = [text.encode() for row in _SINGLE.items() for text in row]
    repairs, names = await engine.run("fsck_types", rows)
    keys = {name.decode() for name in names}
    if keys & {"lanes", "levels", "control", "held", "promoted", "rates"}:
        keys |= {*_LANES}
    return await _read(engine, repairs, renames=renames), keys


def _is_being_deleted(report: CleanReport) -> bool:
    """Return whether what is left of a queue are fragments, which must not be repaired."""
    return any(one.problem is Problem.UNFINISHED_DELETION for one in report.findings)


async def _read(engine: Engine, repairs: list[bytes], *, renames: bool) -> CleanReport:
    """Read what a step has found, and repair what the script could not."""
    for at in range(0, len(repairs), 2):
        problem, name = repairs[at : at + 2]
        if renames and problem == Problem.WRONG_TYPE.encode():
            text = name.decode(errors="replace")
            wanted = _SINGLE.get(text) or _FAMILIES[text.partition(":")[0]]
            if await engine.run("fsck_rename", made=name, wanted=wanted.encode()):
                repairs[at] = Problem.RENAMED.encode()
    return CleanReport(findings=read_repairs(repairs))


async def _walk_processing(engine: Engine) -> CleanReport:
    report = CleanReport()
    left: int | None = None
    more, started_ms = True, 0
    while more or left is None or left > 0:
        ends = left is not None and left <= WALK_STEP
        length, reclaimed, dropped, adopted, more, now_ms, repairs = await engine.run(
            "light_clean", grace_ms=GRACE_MS, count=WALK_STEP, started_ms=started_ms if ends else 0
        )
        if left is None:
            left, started_ms = length + dropped, now_ms
        seen = min(left, WALK_STEP)
        left -= seen
        report += CleanReport(
            examined=seen,
            reclaimed=reclaimed,
            dropped=dropped,
            adopted=adopted,
            findings=read_repairs(repairs),
        )
    return report


class _Hashes:
    """The hashes of ids: the ids themselves, of millions of items, would take too much memory."""

    def __init__(self) -> None:
        #: By their last bits, so that few are sorted at once.
        self._parts: defaultdict[int, array[int]] = defaultdict(partial(array, "q"))

    async def read(self, slices: AsyncIterator[list[bytes]]) -> None:
        """Take the hashes of the ids in some slices."""
        async for ids in slices:
            for one in map(hash, ids):
                self._parts[one % 4096].append(one)
        for key, part in self._parts.items():
            self._parts[key] = array("q", sorted(part))

    def __contains__(self, item_id: bytes) -> bool:
        one = hash(item_id)
        part = self._parts.get(one % 4096, ())
        at = bisect_left(part, one)
        return at < len(part) and part[at] == one

    def twice(self) -> set[int]:
        """Return those that were read more than once."""
        return {
            one for part in self._parts.values() for one, after in itertools.pairwise(part) if one == after
        }


async def _find_suspects(engine: Engine) -> tuple[int, int, set[bytes]]:
    """Return when the scan began, how many items are neither leased nor scheduled, and which do not wait.

    Those that have waited just before the scan are left out, so of millions of ids few are kept.
    """
    waiting = _Hashes()
    await waiting.read(_waiting(engine))
    cursor, started_ms, examined = b"0", None, 0
    suspects: set[bytes] = set()
    while started_ms is None or cursor != b"0":
        now_ms, cursor, *ids = await engine.run(
            "deep_clean_scan", pattern=engine.keys.data_pattern, cursor=cursor, count=WALK_STEP
        )
        started_ms = now_ms if started_ms is None else started_ms
        examined += len(ids)
        suspects.update(one for one in ids if one not in waiting)
    return started_ms, examined, suspects


async def _drop_waiting(engine: Engine, suspects: set[bytes]) -> None:
    """Remove the ids of waiting items from the suspects."""
    if suspects:
        async for ids in _waiting(engine):
            suspects.difference_update(ids)
            if not suspects:
                break


async def _waiting(engine: Engine) -> AsyncIterator[list[bytes]]:
    """Yield the ids that wait, in slices; those in lanes again at last, as some move there meanwhile."""
    async for _, ids in _walk_lanes(engine):
        yield ids
    async for _, ids, _ in _walk_list(partial(_read_queue, engine), READ_STEP):
        yield ids
    async for _, ids in _walk_lanes(engine):
        yield ids


async def _walk_lanes(engine: Engine) -> AsyncIterator[tuple[bytes, list[bytes]]]:
    """Yield the ids in the lanes, in slices, each with its cursor."""
    cursor = b"lanes"
    while cursor != b"0":
        begin = cursor
        cursor, _, *ids = await engine.run("list_ids", state=b"laned", cursor=begin, count=WALK_STEP)
        yield begin, ids


async def _walk_list(read: ReadList, step: int) -> AsyncIterator[tuple[int, list[bytes], int]]:
    """Yield where each slice of a list begins, its ids, and how many of these were in the slice before.

    The walk is from the end at which items are added: leases at the other end move nothing, and an item that
    is added moves the others away. Where ids are removed that were read, the next ones move into the part
    that was read. So a slice, of `step` ids, begins with ids of the one before; if there are none, the walk
    goes back.
    """
    start, known = 0, dict[bytes, None]()
    while True:
        ids, is_last = await read(start)
        last = next((ids.index(one) for one in reversed(known) if one in ids), -1)
        if last < 0 and known and start > 0:
            start = max(0, start - step)
            continue
        yield start, ids, last + 1
        if is_last:
            return
        known = dict.fromkeys(ids[:step]) or known
        start = max(0, start + min(len(ids), step) - OVERLAP)


async def _read_queue(engine: Engine, start: int) -> tuple[list[bytes], bool]:
    """Return ids of the queue and of what is held, with the first ones also those in inboxes."""
    ids = await engine.run("deep_clean_walk", start=start, count=READ_STEP)
    return ids, len(ids) < READ_STEP


async def _check_queue(engine: Engine) -> CleanReport:
    """Drop ids from the queue and the lanes that do not wait, or that wait twice."""
    report = CleanReport()

    async def read(which: bytes, start: int) -> tuple[list[bytes], bool]:
        nonlocal report
        checked, repairs, ids = await engine.run("fsck_queue", which=which, start=start, count=WALK_STEP)
        report += CleanReport(findings=read_repairs(repairs))
        return ids, checked < WALK_STEP

    async def walk(which: bytes) -> AsyncIterator[tuple[bytes, list[bytes]]]:
        async for start, ids, before in _walk_list(partial(read, which), WALK_STEP):
            yield b"%d" % (start + before), ids[before:]

    walks: dict[bytes, Pages] = {which: partial(walk, which) for which in (b"queue", b"held")}
    walks[b"lanes"] = partial(_walk_lanes, engine)
    for which, pages in walks.items():
        for item_id, first, second in await _find_twice(pages):
            repairs = await engine.run(
                "fsck_twice", which=which, item=item_id, met_at=first, met_again=second, count=WALK_STEP
            )
            report += CleanReport(findings=read_repairs(repairs))
    return report


async def _find_twice(pages: Pages) -> list[tuple[bytes, bytes, bytes]]:
    """Return ids that come more than once in a walk, each with where two of its entries are."""
    hashes = _Hashes()
    await hashes.read(ids async for _, ids in pages())
    twice = hashes.twice()
    found: list[tuple[bytes, bytes, bytes]] = []
    places: dict[bytes, bytes] = {}
    if twice:
        async for place, ids in pages():
            for item_id in ids:
                if hash(item_id) in twice:
                    if item_id in places:
                        found.append((item_id, places[item_id], place))
                    places[item_id] = place
    return found


async def check_runs(engine: Engine, *, renames: bool = True) -> CleanReport:
    """Check the hashes of flow runs, and the sets in which the runs are."""
    names: set[bytes] = set()
    report = await _walk_runs(engine, b"", names, renames=renames)
    # The set that says when runs end comes last, as the others are compared with it.
    for which in sorted(names, key=lambda name: (name == b"runs:ends", name)):
        report += await _walk_runs(engine, which, names, renames=renames)
    return report


async def _walk_runs(engine: Engine, which: bytes, names: set[bytes], *, renames: bool) -> CleanReport:
    """Check the runs in a set or, without one, those that have a hash; then note the names of the sets."""
    report, cursor = CleanReport(), b""
    pattern = engine.keys.pattern[:-1] + b"run*"
    while cursor != b"0":
        cursor, repairs, found = await engine.run(
            "fsck_runs", which=which, pattern=pattern, cursor=cursor or b"0", count=STEP
        )
        names.update(found)
        report += await _read(engine, repairs, renames=renames)
    return report


async def _check_ticks(engine: Engine, cursor: bytes) -> tuple[bytes, CleanReport]:
    """Calculate when schedules are due that have no entry in `ticks`, or one that is too late."""
    now_ms, *_ = await engine.run("ticks_due", start=0, count=1)
    cursor, *fields = await engine.run("schedules", cursor=cursor, count=STEP, max_bytes=-1)
    repairs: list[bytes] = []
    for name, definition, due_ms in zip(fields[::5], fields[1::5], fields[2::5], strict=True):
        try:
            _, timing = read_definition(definition)
            due, latest = timing.first(now_ms), timing.first(now_ms + LONGEST_STEP_MS)
        except (ValueError, OverflowError, ExtraMissing):
            repairs += [Problem.SCHEDULE_WITHOUT_TICK.encode(), name] if due_ms < 0 else []
            continue
        if due_ms < 0 or due_ms > latest:
            restored = await engine.run(
                "fsck_tick", schedule=name, definition=definition, due_ms=due, wrong_ms=due_ms
            )
            problem = Problem.LOST_TICK if due_ms < 0 else Problem.WRONG_TICK
            repairs += [problem.encode(), name] if restored else []
    return cursor, CleanReport(findings=read_repairs(repairs))

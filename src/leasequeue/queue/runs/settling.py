"""Ends of stages that no worker has finished: settled, reported by another system, or cancelled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leasequeue.keys import escaped
from leasequeue.queue.encoding import SLOW_ROWS, error_text
from leasequeue.queue.slot import QueueObject, read_key, run_at, soon
from leasequeue.queue.stage_ref import StageRef, run_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence


#: The answer to an id or a row that was not handled, as the call had added enough items.
AGAIN = -2
#: How many items one call settles, and about how many fields of a run one step looks at.
MAX_SETTLED, SCANNED = 100, 1000
#: How many items are listed before they are cancelled, and how near an end of a queue an id is found.
MAX_LISTED, NEAR_AN_END = 100_000, 256
#: How often the rest of a run is listed until nothing of it is left.
MAX_PASSES = 5
#: For how long a caller that asks for the result of a cancelled item is told so, in ms, as a row has it.
KEEP_MS = b"3600000"


async def report(queue: QueueObject, stage: StageRef, *, result: bytes | None, error: str = "") -> bool:
    """End a stage that was handed over to another system, no matter which client holds its item.

    Args:
        queue: A queue object in the slot of the run.
        stage: The stage.
        result: Its result in JSON; None: it has failed.
        error: Why it has failed.

    Returns:
        False if there is no such run, or the stage is not open.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    path = stage.path.encode(errors="surrogateescape")
    key = run_key(stage.home, stage.run)
    found = await read_key(queue, b"HMGET", key, b"s:" + path, (b"k:" if b"/" in path else b"n:") + path)
    if found[0] is None or found[1] is None:
        return False
    name = json.loads(found[1]).get("queue") or stage.home
    kind, value = (b"failed", error_text(error)) if result is None else (b"done", result)
    reply = await run_at(queue, name, "run_report", (stage.encode(), kind, value))
    return answered(queue, reply)[0] == 1


async def settle(queue: QueueObject, item_ids: Sequence[str] = (), *, cursor: bytes = b"0") -> bytes:
    """Record the ends of stages whose items ended in another way than by `finish_stages`.

    What is noted to be cancelled is cancelled soon.

    Args:
        queue: The queue of the items.
        item_ids: The items; none: the next that are noted, and items of stages that are not there any more.
        cursor: Where to continue to look for the latter: what the last call returned.

    Returns:
        Where to continue; `b"0"`: at the beginning.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    ids = [item_id.encode(errors="surrogateescape") for item_id in item_ids]
    return await settle_at(queue, queue.name, ids, cursor)


async def settle_at(queue: QueueObject, name: str, ids: Sequence[bytes], cursor: bytes = b"0") -> bytes:
    """Settle items of the queue of this name, or what `stages_of` returns of them. See `settle`."""
    left, after = [*ids], cursor
    while True:
        some, left = left[:MAX_SETTLED], left[MAX_SETTLED:]
        *reply, after = await run_at(queue, name, "run_settle", some, cursor=cursor)
        answers = answered(queue, reply)
        left += [item_id for item_id, answer in zip(some, answers, strict=False) if answer == AGAIN]
        if not left:
            return bytes(after)


def stages_of(run: StageRef, ids: Iterable[bytes]) -> list[bytes]:
    """Return what `settle_at` takes for items of a run, of which nothing needs to be noted."""
    start = b"=" + f"{run.home}\0{run.run}\0".encode(errors="surrogateescape")
    return [start + item_id.partition(b"/")[2] for item_id in ids]


async def cancel_rest(queue: QueueObject, reference: StageRef) -> int:
    """Cancel what is left of a run that was cancelled, or of a join that needs no more.

    A call that is stopped is made again by the workers that maintain the run's queue.

    Args:
        queue: A queue object in the slot of the run.
        reference: What is to be cancelled: with an empty path the whole run, with that of a stage that joins
            others these, and with another one, or one that ends with a slash, the children of that stage.

    Returns:
        How many items were cancelled.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.cancel`.
    """
    key, cancelled = run_key(reference.home, reference.run), 0
    patterns = await _patterns_of(queue, key, reference.path.encode(errors="surrogateescape"))
    for _ in range(MAX_PASSES):  # what a pass has cancelled may have let others enter
        found = 0
        for pattern in patterns:
            async for name, ids in _open_items(
                queue, key, reference.run.encode(errors="surrogateescape"), pattern
            ):
                found += len(ids)
                answers = await run_at(
                    queue, name, "cancel_many", [one for row in ids for one in (row, KEEP_MS)]
                )
                cancelled += answers.count(1)
                await settle_at(queue, name, stages_of(reference, ids))
        if not found:
            await settle_at(queue, reference.home, [b"!" + reference.encode()])
            break
    return cancelled


async def _patterns_of(queue: QueueObject, key: bytes, path: bytes) -> list[bytes]:
    """Return globs of the fields with the states of the stages that the rest of a run, or of a join, has."""
    if not path:
        return [b"s:*"]
    before = b"[]" if b"/" in path else await read_key(queue, b"HGET", key, b"b:" + path)
    names = [escaped(name.encode()) for name in json.loads(before or b"[]")]
    if not names:
        return [b"s:" + escaped(path.removesuffix(b"/")) + b"/*"]
    return [pattern for name in names for pattern in (b"s:" + name, b"s:" + name + b"/*")]


async def _open_items(
    queue: QueueObject, key: bytes, run: bytes, pattern: bytes
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the items of stages that have not ended: the name of a queue, and ids.

    A stage that has fanned out has an item as long as some of its children are not added.
    """
    home = key.rpartition(b":run:")[0].decode(errors="surrogateescape")
    cursor, by_queue, count = b"", dict[str, dict[bytes, None]](), 0
    while cursor != b"0":
        cursor, found = await read_key(
            queue, b"HSCAN", key, cursor or b"0", b"MATCH", pattern, b"COUNT", b"%d" % SCANNED
        )
        open_ = [name[2:] for name, state in zip(found[::2], found[1::2], strict=True) if state in b"wx"]
        for start in range(0, len(open_), SLOW_ROWS):
            paths = open_[start : start + SLOW_ROWS]
            fields = [(b"k:" if b"/" in path else b"n:") + path for path in paths]
            fields += [b"k:" + path + b"/0" for path in paths]
            definitions = [
                json.loads(text or b"{}").get("queue")
                for text in await read_key(queue, b"HMGET", key, *fields)
            ]
            for at, path in enumerate(paths):
                name = definitions[at] or definitions[at + len(paths)] or home
                by_queue.setdefault(name, {})[run + b"/" + path] = None
        count += len(open_)
        if cursor == b"0" or count >= MAX_LISTED:
            for name, ids in by_queue.items():
                async for some in _ends_first(queue, name, ids):
                    yield name, some
            by_queue, count = {}, 0


async def _ends_first(queue: QueueObject, name: str, ids: dict[bytes, None]) -> AsyncIterator[list[bytes]]:
    """Yield ids in steps: as long as there are some, those that wait near an end of their queue.

    Only there is the id of an item removed with it; deep inside, it would be counted until it is met.
    """
    key, near = f"{name}:queue".encode(errors="surrogateescape"), b"%d" % (NEAR_AN_END - 1)
    look = len(ids) > NEAR_AN_END
    while ids:
        found: list[bytes] = []
        if look:
            ends = [await read_key(queue, b"LRANGE", key, b"0", near)]
            ends.append(await read_key(queue, b"LRANGE", key, b"-%d" % NEAR_AN_END, b"-1"))
            found = [*dict.fromkeys(one for end in ends for one in end if one in ids)]
            look = bool(found)
        found = found or [*ids]
        for start in range(0, len(found), SLOW_ROWS):
            yield found[start : start + SLOW_ROWS]
        for one in found:
            del ids[one]


def answered(queue: QueueObject, reply: list[Any]) -> list[int]:
    """Return the answers in a reply, and have the rest of joins that need no more cancelled."""
    answers, rests = reply
    for raw in rests:
        if (ref := StageRef.decode(raw)) is not None:
            soon(queue, cancel_rest(queue, ref))
    return list(answers)

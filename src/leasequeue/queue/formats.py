"""The format of a queue's keys: which one may be written, and which one a program must know.

A version of Leasequeue knows all formats up to `FORMAT`, and writes the one that the queue says: so a newer
version works beside an older one, until `upgrade` raises the format. From then on the scripts of the older
one refuse the queue, each as a whole: see `lua/queues/set_format.lua`.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.errors import WrongKeyType
from leasequeue.keys import FLOOR, FORMAT
from leasequeue.queue.queue import engine_of
from leasequeue.wire.server_errors import too_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.registry import RegisteredWorker


class QueueFormat(NamedTuple):
    """In which format a queue is written; see `P:format` on the page of the keys."""

    format: int
    #: Which one a program must know to use it.
    floor: int


async def read_format(queue: AsyncWorkQueue) -> QueueFormat:
    """Return the format of a queue, or of one shard.

    Raises:
        FormatTooNew: If this version does not know it.
        WrongKeyType: If its key holds something else.
        ServerError: If the server cannot be reached, or answers with an error.
    """
    engine = engine_of(queue)
    text: bytes | None = await engine.read("workers", "GET", "format")
    if text is None:
        return QueueFormat(1, 1)
    if (match := re.fullmatch(rb"([1-9]\d{0,8}) ([1-9]\d{0,8}) (\S+)", text)) is None:
        raise WrongKeyType(f"{engine.name}:format holds {text!r:.80}, which is no format of a queue")
    found = QueueFormat(int(match[1]), int(match[2]))
    if found.floor > FORMAT:
        raise too_new(engine.name, found.floor, match[3].decode(errors="replace"))
    return found


class Upgrade(NamedTuple):
    """What `upgrade` found and did."""

    #: The format of each shard before, and now.
    before: Sequence[QueueFormat]
    now: Sequence[QueueFormat]
    #: The living workers that do not know the format: if there is one, nothing was changed.
    held_by: Sequence[RegisteredWorker]
    #: Why programs that only know an older format are still refused: the ends of the keys that may be newer.
    left: Sequence[str]


def target(to: int) -> QueueFormat:
    """Return a format, and which one a program must know to use a queue in it."""
    return QueueFormat(to, min(to, FLOOR))


async def upgrade(queue: AsyncWorkQueue, to: int = FORMAT, *, check: bool = False) -> Upgrade:
    """Raise the format of a queue, with all its shards, or lower it.

    Lowered, the older format is written from now on. Programs that know no other are permitted once nothing
    is left that may have been written before: call it again then. A call that was interrupted, or has failed
    on some shards, is finished by another one.

    Args:
        queue: The queue.
        to: The format, 1 to that of this version.
        check: Change nothing.

    Raises:
        FormatTooNew: If this version does not know the format of the queue.
        ServerError: If the server cannot be reached, or answers with an error.
    """
    of = {one: await read_format(one) for one in queue.shards}
    before = [*of.values()]
    workers = [worker for one in queue.shards for worker in await engine_of(one).registry.workers()]
    held_by = {one.id: one for one in workers if not one.dead and one.format < to}
    if held_by or check:
        return Upgrade(before, before, [*held_by.values()], ())
    now: dict[AsyncWorkQueue, QueueFormat] = {}
    left: list[bytes] = []
    # A program opens the first shard first: it is the first to refuse it, and the last to let it in again.
    is_lowered = to < before[0].floor
    for one in reversed(queue.shards) if is_lowered else queue.shards:
        floor, *held = await engine_of(one).run(
            "set_format",
            to=to,
            floor=of[one].floor if left else target(to).floor,
            known=FORMAT,
            version=version("leasequeue").encode(),
        )
        left += held
        now[one] = QueueFormat(to, floor)
    return Upgrade(before, [now[one] for one in queue.shards], (), sorted({one.decode() for one in left}))


def mixture(said: Iterable[Mapping[str, str]]) -> str:
    """Say which versions some workers have, as they say, if these are several; else an empty text."""
    counts = Counter(
        f"{one.get('leasequeue', 'unknown')} that knows format {one.get('format', '1')}" for one in said
    )
    texts = [f"{name} ({count:,})" for name, count in sorted(counts.items())]
    return f"several versions of leasequeue work here: {', '.join(texts)}" if len(texts) > 1 else ""


async def check_formats(queue: AsyncWorkQueue) -> list[str]:
    """Say whether a change of the format of a queue was interrupted, and whether its versions are mixed.

    Raises:
        FormatTooNew, WrongKeyType, ServerError: As `read_format` does.
    """
    found, versions = set[QueueFormat | None](), dict[str, dict[str, str]]()
    for shard in queue.shards:
        engine = engine_of(shard)
        one = await read_format(shard)
        keys = [b"%b:too_new_for:%d" % (engine.keys.prefix, older) for older in range(1, FORMAT)]
        marks = await engine.read_many_at([(b"GET", key) for key in keys])
        found.add(one if len(marks) - marks.count(None) == one.floor - 1 else None)
        versions |= {worker.id: worker.versions for worker in await engine.registry.workers()}
    said = ["a change of the format was interrupted: finish it with `leasequeue upgrade`"]
    said *= len(found) > 1 or None in found
    return [*said, *filter(None, [mixture(versions.values())])]

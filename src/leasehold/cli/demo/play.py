"""The plot: fill the queue, let the workers work and two of them fail, put the output together, check it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leasehold import AsyncWorkQueue, Item, LeaseholdError
from leasehold.cli.demo import check, scenes
from leasehold.cli.demo.crew import crew
from leasehold.cli.demo.events import Record
from leasehold.cli.demo.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from leasehold.cli.demo.crew import Hand
    from leasehold.cli.demo.files import File

#: When the workers have told nothing for so many seconds (each renewal is told), nothing will come.
_SILENCE = 15
#: For fewer files it does not pay to start another process to check them.
_WORTH_A_PROCESS = 100


class Audience(Protocol):
    """Who watches."""

    def say(self, text: str) -> None:
        """Tell what happened."""

    def progress(self, title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show a progress bar while the block runs; the function tells how far we are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to play.

    Attributes:
        folder: Where the files are.
        files: Which ones.
        output: Where the lines go.
        workers: How many processes, at least `scenes.FEWEST_WORKERS`.
        lease_seconds: How long they lease an item.
    """

    folder: Path
    files: Sequence[File]
    output: Path
    workers: int
    lease_seconds: float


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What the work came to.

    Attributes:
        record: What the workers told.
        seconds: From the first item to the last completion.
        recovery: Seconds to recover from each accident; None if that did not come to pass.
        left: Items still in the queue, dead letters included.
    """

    record: Record
    seconds: float
    recovery: dict[str, float | None]
    left: int


async def play(settings: Settings, audience: Audience) -> Report:
    """Play the demo.

    Raises:
        DemoFailed: If it does not come to its end.
        LeaseholdError: If there is no server, or it goes away.
        OSError: If the output cannot be written.
    """
    # Beside the output, so that it shows now whether that can be written, and renaming does the rest.
    beside = settings.output.resolve().parent
    with tempfile.TemporaryDirectory(prefix=".leasehold-demo-", dir=beside) as folder:
        parts = Path(folder)
        name = f"leasehold-demo-{uuid.uuid4().hex[:12]}"
        async with AsyncWorkQueue.embedded(name, return_to="front") as queue:
            worked = await _work(settings, audience, queue, parts)
        written_again = check.merge(parts, settings.output)
    return await _examine(settings, audience, worked, written_again)


async def _work(settings: Settings, audience: Audience, queue: AsyncWorkQueue, parts: Path) -> Worked:
    items = [Item(file.path, file.id) for file in settings.files]
    try:
        await queue.add_items(items)
        with audience.progress("working", len(items)) as advance:
            record = Record(on_completed=advance)
            started_with = [
                (parts / f"{number}.jsonl", queue.name, settings.folder, str(settings.lease_seconds), holds)
                for number, holds in enumerate(scenes.holding(settings.workers, len(items)), 1)
            ]
            async with crew(started_with if items else (), record, url=queue.url or "") as hands:
                recovery = await _act(hands, record, len(items), audience.say)
    except BaseException:
        await _forget(queue, audience)
        raise
    counts = await queue.counts()
    left = counts.total + counts.dead
    if left:
        await _forget(queue, audience)
    seconds = record.heard_at - record.began_at
    return Worked(record=record, seconds=seconds, recovery=recovery, left=left)


async def _act(hands: Sequence[Hand], record: Record, items: int, say: scenes.Say) -> dict[str, float | None]:
    """Let the workers work until all items are completed and both accidents are over, or all is silent."""
    if not items:
        return {"SIGKILL": None, "SIGSTOP": None}
    accidents = {
        "SIGKILL": asyncio.create_task(scenes.kill_one(hands[0], record, say)),
        "SIGSTOP": asyncio.create_task(scenes.stop_one(hands[1], record, say)),
    }
    everything = asyncio.gather(
        *accidents.values(),
        scenes.let_work(hands, record),
        record.first(lambda _: len(record.completions) == items),
    )
    try:
        await _until_silence(everything, record)
    finally:
        everything.cancel()
        await asyncio.gather(everything, return_exceptions=True)
    await asyncio.wait(accidents.values())
    return {name: None if accident.cancelled() else accident.result() for name, accident in accidents.items()}


async def _until_silence(everything: asyncio.Future[Any], record: Record) -> None:
    """Wait for everything, or until the workers have fallen silent: then what is missing will not come.

    Counted in seconds that we have seen ourselves, so that a laptop may sleep meanwhile.
    """
    silent = 0
    while not everything.done() and silent < _SILENCE:
        heard = len(record.events)
        await asyncio.wait([everything], timeout=1)
        silent = silent + 1 if len(record.events) == heard else 0
    if everything.done():
        await everything  # raises if a worker has ended by itself


async def _forget(queue: AsyncWorkQueue, audience: Audience) -> None:
    """Empty the queue after a failure, if its server is not gone with us anyway.

    The workers are dead; what they held comes back when their leases end.
    """
    if not os.environ.get("REDIS_URL"):
        return
    audience.say("leaving no items on that server: the last lease has to end")
    with contextlib.suppress(LeaseholdError):
        await queue.dead_letters.drop_all()
        while (await queue.counts()).total:
            await queue.complete_many(await queue.lease_many(1000, 60, timeout=1))


async def _examine(settings: Settings, audience: Audience, worked: Worked, written_again: int) -> Report:
    """Compute all lines anew, compare, and put the report together."""
    files, record = settings.files, worked.record
    counted = {event.token for event in record.events if event.counted}
    with audience.progress("checking", len(files)) as advance:
        expected = await check.compute_directly(
            settings.folder,
            files,
            processes=min(settings.workers, os.cpu_count() or 1, 1 + len(files) // _WORTH_A_PROCESS),
            on_line=advance,
        )
    with settings.output.open("rb") as output:
        verdict = check.check(expected, output)
    suspects = set(verdict.wrong)
    changed = check.changed_since(settings.folder, (file for file in files if file.id in suspects))
    return Report(
        folder=str(settings.folder),
        output=str(settings.output),
        items=len(files),
        bytes=sum(line.get("bytes", 0) for line in expected.values()),
        unreadable=sum("error" in line for line in expected.values()),
        completed_once=sum(count == 1 for count in record.completions.values()),
        delivered_again=sum(event.kind == "leased" and event.attempt > 1 for event in record.events),
        late_refused=len({event.token for event in record.events if not event.answer} - counted),
        written_again=written_again,
        left=worked.left,
        recovery_seconds=worked.recovery,
        workers=settings.workers,
        lease_seconds=settings.lease_seconds,
        seconds=round(worked.seconds, 3),
        items_per_second=round(len(record.completions) / worked.seconds, 1) if worked.seconds else 0.0,
        missing=verdict.missing,
        doubled=verdict.doubled,
        wrong=[item_id for item_id in verdict.wrong if item_id not in changed],
        changed=sorted(changed),
    )

"""The course of the demo: fill a queue, let workers empty it while two of them fail, and check the output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import uuid
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue import AsyncWorkQueue, Item, LeasequeueError
from leasequeue.cli.demo.workers import DemoFailed, describe, watch, worker_process
from leasequeue.errors.describing import plain
from leasequeue.worker.signals import INTERRUPTED, STOPPED

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Iterable, Mapping

    from rich.progress import Progress

    from leasequeue.queue.event import Event


@dataclass(frozen=True)
class Demo:
    """One run of the demo. `files` has for each item id the path below the folder; `say` prints a line."""

    folder: Path
    files: Mapping[str, bytes]
    output: Path
    workers: int
    lease_seconds: float
    progress: Progress
    say: Callable[[str], None]

    async def run(self) -> dict[str, Any]:
        """Run the demo and return its report, whose `problems` are empty if everything is as it should be."""
        beside = self.output.resolve().parent  # so that the merged file can be renamed to the output
        with tempfile.TemporaryDirectory(prefix=".leasequeue-demo-", dir=beside) as parts:
            name = f"leasequeue-demo-{uuid.uuid4().hex[:12]}"
            async with AsyncWorkQueue.embedded(name, return_to="front") as queue:
                try:
                    await queue.events.keep(count=1_000_000)
                    if self.files:
                        await self._work(queue, Path(parts))
                    counts = await queue.counts()
                    events = [event async for event in queue.events(follow=False)]
                finally:
                    if os.environ.get("REDIS_URL"):
                        await self._remove(queue)
            late = merge(Path(parts), self.output)
        return self._report(events, late=late, left=counts.total + counts.dead)

    async def _work(self, queue: AsyncWorkQueue, parts: Path) -> None:
        """Let the workers empty the queue while two of them fail."""
        await queue.add_items([Item(path, item_id) for item_id, path in self.files.items()])
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:

            async def start(*exit_codes: int, pause_at: int = -1) -> Process:
                lines = parts / f"{uuid.uuid4().hex}.jsonl"
                arguments = (queue.name, self.folder, lines, str(self.lease_seconds), str(pause_at))
                worker = await stack.enter_async_context(worker_process(*arguments, url=queue.url or ""))
                group.create_task(watch(worker, *exit_codes))
                return worker

            finished = group.create_task(self._until_finished(queue))
            pause_at = len(self.files) // 20
            killed = await start(-signal.SIGKILL, pause_at=pause_at)
            stopped = await start(STOPPED, INTERRUPTED, pause_at=pause_at)
            others = [await start(STOPPED, INTERRUPTED, -signal.SIGTERM) for _ in range(2, self.workers)]
            # The others begin after both faults, so that a folder with a single file is enough.
            await asyncio.gather(
                interrupt(killed, signal.SIGKILL, self.say), interrupt(stopped, signal.SIGSTOP, self.say)
            )
            for worker in others:
                resume(worker)
            self.say("the other workers empty the queue; what the first two held is leased again")
            await finished
            resume(stopped)
            self.say("sent SIGCONT to the stopped worker, after another one has completed its item")
            for worker in (stopped, *others):
                worker.terminate()

    async def _until_finished(self, queue: AsyncWorkQueue) -> None:
        """Show the progress until each item is completed or a dead letter."""
        task = self.progress.add_task("working", total=len(self.files))
        done: set[str] = set()
        async for event in queue.events():
            if event.what in {"completed", "died"}:
                done.add(event.id)
                self.progress.update(task, completed=len(done))
                if len(done) == len(self.files):
                    return

    async def _remove(self, queue: AsyncWorkQueue) -> None:
        with contextlib.suppress(LeasequeueError):
            await queue.dead_letters.drop_all()
            if (await queue.counts()).total:
                self.say("removing the remaining items from the server, as their leases expire")
            while (await queue.counts()).total:
                await queue.complete_many(await queue.lease_many(1000, 60, timeout=1))
            await queue.events.stop()

    def _report(self, events: list[Event], *, late: int, left: int) -> dict[str, Any]:
        """Compute each line again without the queue, compare, and count what happened."""
        lines = self.progress.track(self.files.items(), description="checking")
        expected = [describe(self.folder, path) for _, path in lines]
        with self.output.open("rb") as output:
            problems = check(expected, output)
        completions = Counter(event.id for event in events if event.what == "completed")
        once = sum(count == 1 for count in completions.values())
        if once != len(self.files):
            problems.append(f"{len(self.files) - once} items were not completed exactly once")
        if left:
            problems.append(f"{left} items are left in the queue")
        if self.files and not late:
            problems.append("no worker was late, so no completion was rejected")
        times = [event.at for event in events if event.what in {"leased", "completed"}] or [0.0]
        seconds = times[-1] - times[0]
        recoveries = list(_recoveries(events))
        return {
            "folder": str(self.folder),
            "output": str(self.output),
            "items": len(self.files),
            "completed_once": once,
            "leased_again": len(recoveries),
            "recovery_seconds": max(recoveries, default=None),
            "late_lines": late,
            "seconds": round(seconds, 3),
            "items_per_second": round(len(completions) / seconds, 1) if seconds else None,
            "problems": problems,
        }


def _recoveries(events: Iterable[Event]) -> Iterable[float]:
    """For each lease after an expired one, yield the seconds between the two."""
    expires: dict[str, float] = {}
    for event in events:
        if event.what == "leased" and (event.attempt or 0) > 1:
            yield round(max(0.0, event.at - expires[event.id]), 3)
        if event.what in {"leased", "renewed"}:
            expires[event.id] = event.due or 0.0


async def interrupt(worker: Process, fault: signal.Signals, say: Callable[[str], None]) -> None:
    """Send SIGKILL or SIGSTOP to a worker when it has begun to work on an item."""
    line: bytes = await worker.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
    if not line:
        raise DemoFailed("a worker process ended before it leased an item")
    worker.send_signal(fault)
    say(f"sent {fault.name} to a worker that holds {line.decode().rstrip()}")


def resume(worker: Process) -> None:
    """Continue a worker that was stopped or pauses."""
    worker.send_signal(signal.SIGCONT)
    worker.stdin.write(b"\n")  # type: ignore[union-attr]  # it is a pipe


def merge(parts: Path, output: Path) -> int:
    """Write the line with the highest token of each item to the output, in the order of the ids.

    Tokens only grow, so that line is by the last holder. The output is replaced in one step.
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
    ids = {dump(line): plain(line["id"]) for line in expected}
    found = Counter(output)
    problems = [f"missing: {item_id}" for line, item_id in ids.items() if line not in found]
    problems += [f"duplicated: {ids[line]}" for line, count in found.items() if line in ids and count > 1]
    wrong = (line.decode(errors="backslashreplace") for line in found if line not in ids)
    return problems + [f"wrong: {plain(line.rstrip())}" for line in wrong]


def dump(line: dict[str, Any]) -> bytes:
    """Return a line of the output."""
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"

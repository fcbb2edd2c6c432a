"""Record events in log files, and read them as one history."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from leasequeue.testing.assertions import QueueContents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasequeue.queue.queue import AsyncWorkQueue

#: The kinds of events. `retry` and `die` are the two kinds of failure: with and without a retry. `begin` and
#: `end` are those of a run of a handler. `exit` is the last event of a process that was not killed.
#: `start` and the `run_…` are calls about a flow run, with its id; the `stage_…` end the item of a stage.
Kind = Literal[
    "add", "requeue", "lease", "renew", "progress", "begin", "end", "complete", "retry", "die", "release",
    "cancel", "drop", "exit",
    "start", "stage_done", "stage_fanned", "stage_failed", "stage_dropped",
    "run_cancel", "run_retry", "run_delete",
]  # fmt: skip
#: How many flow runs of a queue are read.
MAX_RUNS = 1_000
#: The kinds that end the item of a stage.
STAGE_ENDS: tuple[Kind, ...] = ("stage_done", "stage_fanned", "stage_failed", "stage_dropped")


class Event(NamedTuple):
    """One event, as recorded by one process.

    A call to the server has two events: the call and its answer. A call without an answer may or may not have
    been applied.
    """

    #: When it happened, by `time.monotonic_ns()`: one clock for all processes of a machine.
    at: int
    #: What was called or has happened, such as `add` or `begin`.
    kind: Kind
    #: The queue's name, and the item's id.
    queue: str = ""
    #: The item's id.
    id: str = ""
    #: The process that recorded it: the name of its log.
    process: str = ""
    #: The token and the attempt of the lease.
    token: int | None = None
    #: The number of the attempt, if it is known.
    attempt: int | None = None
    #: Of an answer: when the call was made.
    called_at: int | None = None
    #: Of an answer: whether the server accepted the call; `"unsent"` if it was certainly not applied,
    #: `"unknown"` if the answer was lost. Of an `end`: `"returned"`, `"raised"`, `"interrupted"` (the worker
    #: stopped), `"cancelled"`, `"lost"` (its lease) or `"late"` (over its time limit).
    outcome: bool | str | None = None

    def line(self) -> bytes:
        """Return the event as a line of a log, without the process: the log's name says it."""
        fields = {name: value for name, value in self._asdict().items() if value not in (None, "")}
        fields.pop("process", None)
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


class HistoryLog:
    """A file that one process writes events to.

    Each event is passed to the operating system immediately, so a process that is killed with SIGKILL loses
    at most the event that it is about to write. Any thread may write.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def write(self, *events: Event) -> None:
        """Append events."""
        if events:
            os.write(self._file, b"".join(event.line() for event in events))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class History:
    """The events of any number of processes, in the order in which they happened."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=attrgetter("at"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read all logs (`*.jsonl`) of a folder."""
        return cls(event for path in sorted(Path(folder).glob("*.jsonl")) for event in _read(path))

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True)
class FinalRun:
    """A flow run when all processes have ended."""

    #: `active`, `completed`, `failed` or `cancelled`.
    state: str
    #: The state of each stage and child by its path, in the words of `StageView.state`.
    stages: Mapping[str, str]
    #: For each stage whose join waits for all of them, the stages before it.
    waits_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FinalState:
    """The items, dead letters and flow runs that are left in a queue when all processes have ended."""

    #: The queue's name.
    queue: str
    #: The ids of the unfinished items and of the dead letters.
    unfinished: frozenset[str] = frozenset()
    #: The ids of the dead letters.
    dead: frozenset[str] = frozenset()
    #: The flow runs by their ids; None: they were not read.
    runs: Mapping[str, FinalRun] | None = None

    @classmethod
    async def read(cls, queue: AsyncWorkQueue) -> Self:
        """Read the final state of a queue that no process uses any more."""
        contents = await QueueContents.of(queue)
        unfinished = frozenset(item.id for item in contents.items if item.size is not None)
        dead = frozenset(letter.id for letter in contents.dead_letters)
        return cls(queue.name, unfinished, dead, await _read_runs(queue))


async def _read_runs(queue: AsyncWorkQueue) -> dict[str, FinalRun] | None:
    """Return the flow runs of a queue; None: there are too many to list all."""
    listed = await queue.flow_runs.list(fields=[], count=MAX_RUNS)
    if len(listed) == MAX_RUNS:
        return None
    runs = {}
    for one in filter(None, listed):
        view = await queue.flow_runs.get(one.id, fields=[], children=True)
        stages = view.plan.linked().stages if view.plan else ()
        waits_for = {stage.name: stage.after for stage in stages if not stage.join.startswith("n:")}
        runs[one.id] = FinalRun(view.state, {path: s.state for path, s in view.stages.items()}, waits_for)
    return runs


def _read(path: Path) -> Iterable[Event]:
    *lines, _unfinished = path.read_bytes().split(
        b"\n"
    )  # the process was killed while it wrote the last line
    return (Event(**json.loads(line), process=path.stem) for line in lines)

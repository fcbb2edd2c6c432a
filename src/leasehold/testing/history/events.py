"""Events, the files that they are written to, and the history that is read from them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, get_args

from leasehold.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.queue.queue import AsyncWorkQueue

#: What an event is about. `retry` and `die` are the two ways to fail: to be tried again, or not. `begin` and
#: `end` are those of a handler's run. `exit` is the last of a process that was not killed.
Kind = Literal[
    "add",
    "requeue",
    "lease",
    "renew",
    "begin",
    "end",
    "complete",
    "retry",
    "die",
    "release",
    "drop",
    "exit",
]
KINDS: tuple[str, ...] = get_args(Kind)
#: How many items or dead letters are read at once.
_PAGE = 1000


class Event(NamedTuple):
    """One thing that happened, as the process that wrote it down saw it.

    A call to the server has two events: when it was asked for, and when its answer came. A call without an
    answer may or may not have happened.
    """

    #: When, by `time.monotonic_ns()`: one clock for all processes of a machine.
    at: int
    kind: Kind
    #: The queue's name, and the item's id.
    queue: str = ""
    id: str = ""
    #: Who wrote it: the name of the log.
    by: str = ""
    #: The lease's number, and the number of the attempt.
    token: int | None = None
    attempt: int | None = None
    #: Of an answer: when it was asked for.
    asked: int | None = None
    #: Of an answer: whether the server said yes; `"unsent"` if it was certainly never asked, `"unknown"` if
    #: its answer was lost. Of an `end`: `"returned"`, `"raised"`, `"interrupted"` (the worker stopped),
    #: `"lost"` (its lease) or `"late"` (over its time limit).
    outcome: bool | str | None = None

    def line(self) -> bytes:
        """The event as a line of a log, but for who wrote it: the log's name says it."""
        fields = {name: value for name, value in self._asdict().items() if value not in (None, "")}
        fields.pop("by", None)
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


class HistoryLog:
    """A file that one process writes events to.

    Each event is handed to the operating system at once, so a process that is killed with SIGKILL loses the
    event that it is about to write, at most. Any thread may write.

    Args:
        path: The file, with the ending `.jsonl`, which `History.load` looks for. It must not be there yet.

    Raises:
        FileExistsError: If it is.
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
    """The events of any number of processes, in the order in which they happened.

    Args:
        events: In any order.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=_when)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read all logs (`*.jsonl`) of a folder.

        Raises:
            InvalidArgument: If a line is no event, unless it is the last of its log and cut short.
        """
        return cls(event for path in sorted(Path(folder).glob("*.jsonl")) for event in _read(path))

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True)
class FinalState:
    """What there is of a queue when all is over: to be held against its history."""

    #: The queue's name.
    queue: str
    #: The ids of unfinished items, and those of dead letters.
    unfinished: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()

    @classmethod
    async def read(cls, queue: AsyncWorkQueue) -> Self:
        """Look into a queue; nobody should be at work on it meanwhile.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
        """
        unfinished: set[str] = set()
        for state in ("waiting", "leased", "scheduled"):
            start = 0
            while views := await queue.inspect(state, start=start, count=_PAGE, data=False):
                unfinished.update(view.id for view in views if view.size is not None)
                start += _PAGE
        dead: set[str] = set()
        start = 0
        while letters := await queue.dead_letters.list(start=start, count=_PAGE, data=False):
            dead.update(letter.id for letter in letters)
            start += _PAGE
        return cls(queue.name, frozenset(unfinished), frozenset(dead))


def _when(event: Event) -> int:
    return event.at


def _read(path: Path) -> Iterable[Event]:
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        lines.append(rest)
    for number, line in enumerate(lines, 1):
        try:
            event = Event(**json.loads(line), by=path.stem)
        except (ValueError, TypeError) as error:
            if rest and number == len(lines):
                return  # the process was killed while it wrote
            raise InvalidArgument("history", line, f"an event in line {number} of {path}") from error
        if event.kind not in KINDS:
            raise InvalidArgument("history", line, f"an event of a known kind in line {number} of {path}")
        yield event

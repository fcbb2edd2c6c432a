"""Log records of runs, as they are kept with an item: what a worker writes, and what is read again.

A worker writes chunks: a line `<attempt> <number>` with the number of the first record, and a line of JSON
for each record: time in ms, level, logger, message and, if there is one, the traceback.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from leasequeue.errors.describing import TRACEBACK_LENGTH, describe, indented, plain, shown, traceback_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Iterator, Sequence

#: How many characters are kept: of a name, and of a message; of a longer text, the middle is left out.
NAME_LENGTH, MESSAGE_LENGTH = 200, 4_000
#: The size of a chunk (bytes).
CHUNK_BYTES = 4096
#: The bounds of what is kept of an item (bytes).
MIN_KEPT, MAX_KEPT = 4 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True)
class LoggedRecord:
    """A log record of a run that is kept with its item.

    Attributes:
        at: When it was logged: seconds since 1970, by the worker's clock.
        level: The name of its level, such as `"INFO"`.
        logger: The name of its logger.
        message: The message, at most 4,000 characters.
        traceback: The traceback; None: it has none.
        attempt: The number of the attempt.
        token: The token of the lease. A run that was interrupted has the number of the next attempt as well.
        number: Which record of its run it is, beginning with 1: the numbers that are missing were dropped.
    """

    at: float
    level: str
    logger: str
    message: str
    traceback: str | None
    attempt: int
    token: int
    number: int

    def __str__(self) -> str:
        """Return the record as a line, and its traceback in lines that look like no record."""
        time = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = f"{time} {plain(self.level)} {plain(self.logger)}: {plain(self.message, 2 * MESSAGE_LENGTH)}"
        return f"{line}\n{indented(f'  {self.traceback}', TRACEBACK_LENGTH)}" if self.traceback else line


class RunLogs:
    """The records of a run that wait to be written: the last `limit` bytes. For any thread.

    Attributes:
        since: Since when records wait, by `time.monotonic()`.
        size: How many bytes wait.
    """

    __slots__ = ("_closed", "_lines", "_lock", "_number", "_pid", "_taken", "limit", "since", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.since = 0.0
        self.size = 0
        self._lines: deque[bytes] = deque()
        self._lock = threading.RLock()  # a signal handler may log, too
        self._number = 0
        self._taken: tuple[int, list[bytes]] | None = None
        self._closed = False
        self._pid = os.getpid()

    def add(self, record: logging.LogRecord) -> None:
        """Add a record, unless this is another process, whose copy of the lock may be held for ever."""
        if not self._closed and os.getpid() == self._pid:
            self.extend([_line_of(record, self.limit)])

    def extend(self, lines: Iterable[bytes], *, dropped: int = 0) -> None:
        """Add records of another process, which has `dropped` some before. Of too many, drop the oldest."""
        with self._lock:
            if self._closed:
                return
            if not self._lines:
                self.since = time.monotonic()
            self._number += dropped
            for line in lines:
                self._lines.append(line)
                self._number += 1
                self.size += len(line) + 1
            while self.size > self.limit:
                self.size -= len(self._lines.popleft()) + 1

    def close(self) -> None:
        """Accept nothing more: tasks and threads may outlive their run."""
        with self._lock:
            self._closed = True

    def take(self) -> tuple[int, list[bytes]] | None:
        """Return the number of the first record that waits, and the records; None: none waits.

        They are returned again until they are `done`.
        """
        with self._lock:
            if self._taken is None and self._lines:
                self._taken = self._number - len(self._lines) + 1, [*self._lines]
                self._lines.clear()
                self.size = 0
            return self._taken

    def done(self) -> None:
        """Forget what was taken."""
        self._taken = None

    @property
    def waits(self) -> bool:
        """Whether a record waits, or was taken and is not `done`."""
        return bool(self._lines or self._taken)


def _line_of(record: logging.LogRecord, limit: int) -> bytes:
    try:
        message = record.getMessage()
    except Exception as problem:  # noqa: BLE001 - any `__str__`, and arguments that do not fit
        message = f"{shown(record.msg)} ({describe(problem)})"
    error = record.exc_info[1] if record.exc_info else None
    trace = record.exc_text or (traceback_of(error) if error is not None else record.stack_info)
    line = _encoded(record, _cut(message, MESSAGE_LENGTH), trace and _cut(trace, TRACEBACK_LENGTH))
    if len(line) <= limit // 2:
        return line
    return _encoded(record, _cut(message, NAME_LENGTH), trace and _cut(trace, NAME_LENGTH))


def _encoded(record: logging.LogRecord, message: str, trace: str | None) -> bytes:
    names = (_cut(name, NAME_LENGTH) for name in (record.levelname, record.name))
    fields = [round(record.created * 1000), *names, message]
    return msgspec.json.encode([*fields, trace] if trace else fields)


def _cut(text: str, longest: int) -> str:
    """Return a text as it can be encoded; of a longer one, the middle is left out."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}… ({len(text):,} characters) …{text[-(longest // 2) :]}"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def chunks_of(attempt: int, number: int, lines: Sequence[bytes], limit: int) -> Iterator[bytes]:
    """Yield the records of a run, from that with this number on, as they are written to the server.

    As whole chunks are dropped there, each has a small part of what is kept.
    """
    start = size = 0
    for at, line in enumerate(lines):
        if size and size + len(line) > min(CHUNK_BYTES, limit // 8):
            yield b"\n".join([b"%d %d" % (attempt, number + start), *lines[start:at]])
            start, size = at, 0
        size += len(line) + 1
    yield b"\n".join([b"%d %d" % (attempt, number + start), *lines[start:]])


def read_chunks(chunks: Iterable[tuple[int, bytes]]) -> list[LoggedRecord]:
    """Parse chunks, each with the token of its run.

    What is there twice, since its reply was lost, is left out, and so is what is no record.
    """
    found: dict[tuple[int, int], LoggedRecord] = {}
    for token, chunk in chunks:
        head, *lines = chunk.split(b"\n")
        try:
            attempt, first = map(int, head.split())
            for number, text in enumerate(lines, first):
                line = _decoder.decode(text)
                datetime.fromtimestamp(line.at / 1000, UTC)
                found.setdefault(
                    (token, number),
                    LoggedRecord(
                        at=line.at / 1000,
                        level=line.level,
                        logger=line.logger,
                        message=line.message,
                        traceback=line.traceback,
                        attempt=attempt,
                        token=token,
                        number=number,
                    ),
                )
        except (ValueError, OverflowError, OSError, msgspec.MsgspecError):  # any client may write it
            continue
    return [*found.values()]


class _Line(msgspec.Struct, array_like=True):
    at: int
    level: str
    logger: str
    message: str
    traceback: str | None = None


_decoder = msgspec.json.Decoder(_Line)


def runs_of(records: Iterable[LoggedRecord]) -> list[tuple[int, list[LoggedRecord]]]:
    """Return the records of each run, and the number of its attempt."""
    groups = itertools.groupby(records, lambda one: (one.attempt, one.token))
    return [(attempt, [*some]) for (attempt, _), some in groups]

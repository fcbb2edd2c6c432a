"""Record what a process does: its calls to the server, and the runs of its handlers."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from leasequeue.errors import ConnectionLost, LeasequeueError, QueueClosed, ServerBusy
from leasequeue.queue import engines as module
from leasequeue.queue.engine import Engine
from leasequeue.queue.leasing import LeaseDispatcher
from leasequeue.queue.queue import engines_of
from leasequeue.worker.run import Interruption
from tests.history.events import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from leasequeue.queue.leasing import LeasedItem, Watcher
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.run import Run
    from tests.history.events import HistoryLog, Kind

#: The batched scripts, with the kind of event for each row.
BATCHED_KINDS: dict[str, Kind] = {
    "add_items": "add",
    "complete_many": "complete",
    "renew_many": "renew",
    "release_many": "release",
    "fail_many": "retry",
    "cancel_many": "cancel",
    "progress": "progress",
    "emit_chunks": "progress",
}
#: Scripts that take ids, with the kind of event for each id.
_IDS: dict[str, Kind] = {"requeue_many": "requeue", "drop_many": "drop"}
#: Scripts with rows about stages: how many values a row has, and which of them says how the stage has
#: ended; -1: it fans out.
_STAGE_ROWS = {"run_finish": (7, 4), "run_fan": (4, -1)}
#: Scripts about one flow run.
_RUNS: dict[str, Kind] = {
    "run_start": "start",
    "run_cancel": "run_cancel",
    "run_reopen": "run_retry",
    "run_delete": "run_delete",
}
_STAGE_ENDS: dict[bytes, Kind] = {
    b"done": "stage_done",
    b"fan": "stage_fanned",
    b"failed": "stage_failed",
    b"drop": "stage_dropped",
}
#: The outcome of a run that the worker interrupted.
_INTERRUPTIONS = {
    Interruption.SHUTDOWN: "interrupted",
    Interruption.LEASE_LOST: "lost",
    Interruption.CANCELLED: "cancelled",
    Interruption.TIMEOUT: "late",
}


#: Of queues that are opened in several threads, one makes its engine at a time.
_MAKING = Lock()


def record_calls(queue: AsyncWorkQueue, log: HistoryLog) -> AsyncWorkQueue:
    """Record every call of this process to a queue object that has not been used, and its answer.

    Not covered are items that schedules add, and dead letters that are dropped because of their age.
    """
    for shard in queue.shards:
        engines = engines_of(shard)
        engines._make = partial(_make_recording, log, engines._make)  # type: ignore[method-assign]  # of this object
    return queue


def _make_recording(log: HistoryLog, make: Callable[..., Engine], *args: Any) -> Engine:
    # The parts of an engine keep its methods, so it is made as what it is to be.
    with _MAKING, patch.object(module, "Engine", partial(_RecordingEngine, log)):
        return make(*args)


def record_runs(log: HistoryLog) -> Callable[[Run, Callable[[Run], Awaitable[Any]]], Awaitable[Any]]:
    """Return middleware for `Worker` that records when handlers begin and how they end."""

    async def middleware(run: Run, call_next: Callable[[Run], Awaitable[Any]]) -> Any:
        _write_run(log, run, "begin", at=int(run.began * 1e9))
        try:
            value = await call_next(run)
        except BaseException:
            why = run.interruption
            _write_run(log, run, "end", outcome="raised" if why is None else _INTERRUPTIONS[why])
            raise
        _write_run(log, run, "end", outcome="returned")
        return value

    return middleware


def _write_run(
    log: HistoryLog, run: Run, kind: Kind, *, at: int | None = None, outcome: str | None = None
) -> None:
    now = time.monotonic_ns() if at is None else at
    log.write(
        *(
            Event(now, kind, lease.queue_name, lease.id, "", lease.token, lease.attempt, outcome=outcome)
            for lease in run.leases
        )
    )


class _RecordingDispatcher(LeaseDispatcher):
    """A dispatcher that records what it leases, of a shard by its name."""

    log: HistoryLog
    place: str

    async def lease(
        self,
        count: int,
        lease_ms: int,
        *,
        blocks: bool,
        timeout: float | None,
        by_level: bool = False,
        whole: bool = False,
    ) -> list[LeasedItem]:
        leased = await super().lease(
            count, lease_ms, blocks=blocks, timeout=timeout, by_level=by_level, whole=whole
        )
        self._write(leased)
        return leased

    def _deliver(self, watcher: Watcher, item: LeasedItem) -> bool:
        # One that no watcher takes is recorded where it is released. A run begins in a later turn.
        if taken := super()._deliver(watcher, item):
            self._write([item])
        return taken

    def _release(self, items: Sequence[LeasedItem]) -> None:
        self._write(items)
        super()._release(items)

    def _write(self, leased: Sequence[LeasedItem]) -> None:
        now = time.monotonic_ns()
        self.log.write(
            *(
                Event(now, "lease", self.place, _text(item_id), "", token, attempt, int(called_at * 1e9))
                for item_id, _, token, attempt, _, called_at, *_ in leased
            )
        )


class _RecordingEngine(Engine):
    """An engine that records the calls that go through it."""

    def __init__(self, log: HistoryLog, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._log = log
        self.leasing.__class__ = _RecordingDispatcher
        assert isinstance(self.leasing, _RecordingDispatcher)
        self.leasing.log = log
        self.leasing.place = self.name

    async def one(self, name: str, row: Sequence[bytes], *, size: int = 64) -> Any:
        with self._recorded(self._write_calls(name, [row])) as values:
            values.append(await super().one(name, row, size=size))
        return values[0]

    async def many(
        self, name: str, rows: Sequence[Sequence[bytes]], *, size: int = 64, large: bool = False
    ) -> list[Any]:
        with self._recorded(self._write_calls(name, rows)) as values:
            values.extend(await super().many(name, rows, size=size, large=large))
        return values

    async def run(self, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        calls = self._write_calls(name, [(item_id,) for item_id in rest]) if name in _IDS else []
        if name in _RUNS or name in _STAGE_ROWS:
            calls = self._write_flow_calls(name, rest, arguments)
        called_at = time.monotonic_ns()
        with self._recorded(calls) as values:
            value = await super().run(name, rest, **arguments)
            if name in _STAGE_ROWS:
                values.extend(answer == 1 for answer in value[0])
            elif name in _RUNS:
                values.extend([(value[0] if isinstance(value, list) else value) == 1] * len(calls))
            else:
                values.extend(value if calls else ())
        if name == "cancel_data":
            found = [Event(called_at, "cancel", self.name, _text(item_id)) for item_id in value[2:]]
            self._log.write(*found)
            self._write_answers(found, [True] * len(found))
        return value

    def _write_calls(self, name: str, rows: Sequence[Sequence[bytes]]) -> list[Event]:
        kind: Kind = BATCHED_KINDS.get(name) or _IDS[name]
        now = time.monotonic_ns()
        calls = [
            Event(now, "die" if kind == "retry" and row[2] == b"-1" else kind, self.name, _text(row[0]))
            for row in rows
        ]
        if name in BATCHED_KINDS and kind not in ("add", "cancel"):
            calls = [call._replace(token=int(row[1])) for call, row in zip(calls, rows, strict=True)]
        self._log.write(*calls)
        return calls

    def _write_flow_calls(
        self, name: str, rest: Sequence[bytes], arguments: Mapping[str, bytes | int]
    ) -> list[Event]:
        now, calls = time.monotonic_ns(), []
        if name in _RUNS:
            run = arguments.get("of_run", arguments.get("run"))
            is_whole = arguments.get("seal", 1) if name != "run_delete" else arguments.get("is_last", 1)
            if is_whole and isinstance(run, bytes):
                calls = [Event(now, _RUNS[name], self.name, _text(run))]
        else:
            size, place = _STAGE_ROWS[name]
            for at in range(0, len(rest), size):
                kind: Kind = "stage_fanned" if place < 0 else _STAGE_ENDS[rest[at + place]]
                calls.append(Event(now, kind, self.name, _text(rest[at]), token=int(rest[at + 1])))
        self._log.write(*calls)
        return calls

    @contextmanager
    def _recorded(self, calls: list[Event]) -> Iterator[list[Any]]:
        """Record the answers that the block gathers, or its error; nothing if the caller is cancelled."""
        values: list[Any] = []
        try:
            yield values
        except LeasequeueError as error:
            self._write_answers(calls, ["unsent" if _not_applied(error) else "unknown"] * len(calls))
            raise
        self._write_answers(calls, [value > 0 for value in values])

    def _write_answers(self, calls: list[Event], outcomes: Sequence[bool | str]) -> None:
        now, answered = time.monotonic_ns(), zip(calls, outcomes, strict=True)
        self._log.write(*(call._replace(at=now, called_at=call.at, outcome=one) for call, one in answered))


def _text(item_id: bytes) -> str:
    return item_id.decode(errors="surrogateescape")


def _not_applied(error: LeasequeueError) -> bool:
    if isinstance(error, ConnectionLost):
        return not error.maybe_applied
    return isinstance(error, (ServerBusy, QueueClosed))

"""Writes down what a process does: its calls to the server, and the runs of its handlers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from leasehold.errors import ConnectionLost, LeaseholdError, QueueClosed, ServerBusy
from leasehold.queue.engine import Engine
from leasehold.testing.history.events import Event
from leasehold.worker.run import Cut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasehold.queue.leasing import Leased
    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.testing.history.events import HistoryLog, Kind
    from leasehold.worker.run import Run

#: The scripts that change items one by one, and what they do to them.
_ROWS: dict[str, Kind] = {
    "add_items": "add",
    "complete_many": "complete",
    "renew_many": "renew",
    "release_many": "release",
    "fail_many": "retry",
}
_IDS: dict[str, Kind] = {"requeue_many": "requeue", "drop_many": "drop"}
#: How a run ended that was ended from outside.
_CUTS = {Cut.STOP: "interrupted", Cut.LOST: "lost", Cut.LIMIT: "late"}


def record_calls(queue: AsyncWorkQueue, log: HistoryLog) -> AsyncWorkQueue:
    """Write down everything that this process asks of a queue, and the answers.

    Adds, leases, renewals, outcomes, and what becomes of dead letters, through this object and its twins. Not
    written down: what schedules add, and dead letters that are dropped by their age.

    Args:
        queue: An object that nothing has been asked of yet.
        log: Where to.

    Returns:
        The same object.
    """

    def make(*args: Any, **settings: Any) -> Engine:
        return _RecordingEngine(log, *args, **settings)

    queue.make_engine = make
    return queue


def record_runs(log: HistoryLog) -> Callable[[Run, Callable[[Run], Awaitable[Any]]], Awaitable[Any]]:
    """Middleware for `Worker` that writes down when handlers begin and how they end.

    Args:
        log: Where to.
    """

    async def middleware(run: Run, call_next: Callable[[Run], Awaitable[Any]]) -> Any:
        _note(log, run, "begin", at=int(run.began * 1e9))
        try:
            value = await call_next(run)
        except BaseException:
            _note(log, run, "end", outcome="raised" if run.cut is None else _CUTS[run.cut])
            raise
        _note(log, run, "end", outcome="returned")
        return value

    return middleware


def _note(
    log: HistoryLog, run: Run, kind: Kind, *, at: int | None = None, outcome: str | None = None
) -> None:
    now = time.monotonic_ns() if at is None else at
    log.write(
        *(
            Event(
                now,
                kind,
                lease.queue_name,
                lease.id,
                token=lease.token,
                attempt=lease.attempt,
                outcome=outcome,
            )
            for lease in run.leases
        )
    )


class _RecordingEngine(Engine):
    """An engine that writes down what goes through it."""

    def __init__(self, log: HistoryLog, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._log = log
        self._name = self._keys.prefix.decode()
        self._ask = self.lease
        self.lease = self._lease

    async def one(self, name: str, row: Sequence[bytes], *, size: int = 64) -> Any:
        asked = self._asked(name, [row])
        with _Answer(self, asked) as answer:
            value = await super().one(name, row, size=size)
            answer.values = [value]
        return value

    async def many(self, name: str, rows: Sequence[Sequence[bytes]], *, size: int = 64) -> list[Any]:
        asked = self._asked(name, rows)
        with _Answer(self, asked) as answer:
            answer.values = await super().many(name, rows, size=size)
        return answer.values

    async def run(self, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        asked = self._asked(name, [(item_id,) for item_id in rest]) if name in _IDS else []
        with _Answer(self, asked) as answer:
            value = await super().run(name, rest, **arguments)
            answer.values = value if asked else []
        return value

    async def _lease(self, count: int, lease_ms: int, *, blocks: bool, timeout: float) -> list[Leased]:
        leased = await self._ask(count, lease_ms, blocks=blocks, timeout=timeout)
        self._write_leases(leased)
        return leased

    def _release_spare(self, spare: list[Leased]) -> None:
        self._write_leases(spare)
        super()._release_spare(spare)

    def _write_leases(self, leased: list[Leased]) -> None:
        now = time.monotonic_ns()
        self._log.write(
            *(
                Event(
                    now,
                    "lease",
                    self._name,
                    item_id.decode(errors="surrogateescape"),
                    token=token,
                    attempt=attempt,
                    asked=int(asked_at * 1e9),
                )
                for item_id, _, token, attempt, _, asked_at, _ in leased
            )
        )

    def _asked(self, name: str, rows: Sequence[Sequence[bytes]]) -> list[Event]:
        kind = _ROWS.get(name) or _IDS[name]
        now = time.monotonic_ns()
        events = [
            Event(
                now,
                "die" if name == "fail_many" and row[2] == b"-1" else kind,
                self._name,
                row[0].decode(errors="surrogateescape"),
                token=int(row[1]) if name in _ROWS and name != "add_items" else None,
            )
            for row in rows
        ]
        self._log.write(*events)
        return events

    def answered(self, asked: list[Event], outcomes: Sequence[bool | str]) -> None:
        now = time.monotonic_ns()
        self._log.write(
            *(
                event._replace(at=now, asked=event.at, outcome=outcome)
                for event, outcome in zip(asked, outcomes, strict=True)
            )
        )


class _Answer:
    """Writes down the answers to calls, or that there was none; nothing, if nobody waited for it."""

    def __init__(self, engine: _RecordingEngine, asked: list[Event]) -> None:
        self._engine = engine
        self._asked = asked
        self.values: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._engine.answered(self._asked, [value > 0 for value in self.values])
        elif isinstance(error, LeaseholdError):
            outcome = "unsent" if _did_not_happen(error) else "unknown"
            self._engine.answered(self._asked, [outcome] * len(self._asked))


def _did_not_happen(error: LeaseholdError) -> bool:
    if isinstance(error, ConnectionLost):
        return not error.maybe_applied
    return isinstance(error, (ServerBusy, QueueClosed))

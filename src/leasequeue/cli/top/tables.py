"""The tables of `leasequeue top`: their columns, their rows, and what can be done to a row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.cli.formatting import shortened
from leasequeue.cli.workers import state_of
from leasequeue.durations import duration_text
from leasequeue.errors import summary_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from leasequeue.cli.top.readings import Readings


class Seconds(float):
    """A duration, which is shown with its unit and sorted by its length."""

    __slots__ = ()

    def __str__(self) -> str:
        return duration_text(self)


class Row(NamedTuple):
    """A row: what identifies it in the next reading, its cells, and what it is about."""

    key: tuple[str, ...]
    cells: tuple[Any, ...]
    subject: Any


class Act(NamedTuple):
    """What a key does to a row: in words, and the call, which returns False if there was nothing to do."""

    words: str
    run: Callable[[], Awaitable[object]]


class Table(NamedTuple):
    """A table: its columns, its rows, its acts by key, and the help of these."""

    titles: tuple[str, ...]
    rows: Callable[[Readings], Iterator[Row]]
    acts: Mapping[str, Callable[[Readings, Any], Act]]
    help: str


def _queues(readings: Readings) -> Iterator[Row]:
    for name, one in sorted(readings.stats.items()):
        oldest = Seconds(one.oldest_age) if one.counts.waiting or one.oldest_age else None
        running = sum(worker.running for worker in one.workers if not worker.dead)
        paused = None if one.paused is None else one.paused.reason or "yes"
        rate = readings.rates.get(name)
        cells = (oldest, None if rate is None else round(rate, 1), one.workers_alive, running, paused)
        yield Row((name,), (name, *one.counts, *cells), one)


def _workers(readings: Readings) -> Iterator[Row]:
    for one in readings.workers:
        facts = (state_of(one), ", ".join(one.queues), len(one.running), one.concurrency)
        cells = (one.name, *facts, one.runs, one.failures, _age(one.started))
        yield Row((one.id,), cells, one)


def _runs(readings: Readings) -> Iterator[Row]:
    for one in readings.workers:
        for run in one.running:
            cells = (run.queue, run.item_id, run.handler, one.name, _age(run.since))
            yield Row((one.id, run.queue, run.item_id), cells, run)


def _letters(readings: Readings) -> Iterator[Row]:
    for queue, one in readings.letters:
        error = shortened(summary_of(one.error))
        yield Row(
            (queue, one.id), (queue, one.id, _age(one.died_at), one.attempt, one.size, error), (queue, one.id)
        )


def _age(since: float | None) -> Seconds | None:
    return None if since is None else Seconds(max(0.0, time.time() - since))


def _pause(readings: Readings, one: Any) -> Act:
    if one.paused is not None:
        return Act(f"resume {one.queue}", lambda: readings.queue(one.queue).resume())
    return Act(f"pause {one.queue}", lambda: readings.queue(one.queue).pause(reason="leasequeue top"))


def _requeue_all(readings: Readings, one: Any) -> Act:
    words = f"requeue all {one.counts.dead:,} dead letters of {one.queue}"
    # The queue is looked up by the call: it may be gone by now.
    return Act(words, lambda: readings.queue(one.queue).dead_letters.requeue_all())  # noqa: PLW0108


def _requeue(readings: Readings, letter: tuple[str, str]) -> Act:
    queue, item_id = letter
    return Act(f"requeue {item_id} of {queue}", lambda: readings.queue(queue).dead_letters.requeue(item_id))


def _quiet(readings: Readings, one: Any) -> Act:
    if one.quiet:
        return Act(f"have {one.name} fetch again", lambda: readings.fleet(one.queues).resume(one))
    return Act(f"quiet {one.name}", lambda: readings.fleet(one.queues).quiet(one))


def _cancel(readings: Readings, run: Any) -> Act:
    return Act(f"cancel {run.item_id} of {run.queue}", lambda: readings.queue(run.queue).cancel(run.item_id))


_COUNTS = ("queue", "waiting", "leased", "scheduled", "dead")
#: By name, in their order.
TABLES = {
    "queues": Table(
        (*_COUNTS, "oldest", "leases/s", "workers", "running", "paused"),
        _queues,
        {"P": _pause, "R": _requeue_all},
        "P pause or resume · R requeue its dead letters",
    ),
    "workers": Table(
        ("worker", "state", "queues", "running", "slots", "runs", "failures", "age"),
        _workers,
        {"Q": _quiet},
        "Q quiet, or fetch again",
    ),
    "runs": Table(("queue", "item", "handler", "worker", "for"), _runs, {"C": _cancel}, "C cancel"),
    "dead": Table(
        ("queue", "id", "age", "attempt", "bytes", "error"), _letters, {"R": _requeue}, "R requeue"
    ),
}

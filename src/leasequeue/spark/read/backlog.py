"""How far the streams of a query are behind their queues, from Spark's report on its progress."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress


@dataclass(frozen=True)
class StreamBacklog:
    """How far a stream is behind its queue.

    Attributes:
        queue: The queue's name.
        behind: How many items wait after the batch of this report; of a stream of events, how many events
            were emitted after it.
        rows: How many rows the batch has.
        input_rows_per_second: Spark's rate: the rows of the batch by the time since the previous one began; 0
            for the first batch of a run.
        processed_rows_per_second: Spark's rate: the rows of the batch by the time that it took.
        leased: How many items are under lease, by this query and by workers; None for a stream of events.
        scheduled: How many items are delayed or wait for a retry; None for a stream of events.
        dead: How many dead letters there are; None for a stream of events.
    """

    queue: str
    behind: int
    rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    leased: int | None = None
    scheduled: int | None = None
    dead: int | None = None

    @property
    def seconds(self) -> float | None:
        """Return how long the query needs for what it is behind, if nothing is added; None: not known."""
        if not self.behind:
            return 0.0
        return self.behind / rate if (rate := self.processed_rows_per_second) > 0 else None


def backlogs(progress: StreamingQueryProgress) -> list[StreamBacklog]:
    """Return how far each stream of a query is behind its queue, in the order of the query's sources.

        class Watch(StreamingQueryListener):
            def onQueryProgress(self, event):
                for backlog in backlogs(event.progress):
                    gauge(backlog.queue, backlog.behind, backlog.seconds)

    Spark measures it once per micro-batch and, while the query is idle, every ten seconds.

    Args:
        progress: Spark's report on a micro-batch: `event.progress` of a listener, or `query.lastProgress`.
            Sources of other formats are left out.
    """
    return [one for source in progress.sources if (one := _backlog(source)) is not None]


def _backlog(source: SourceProgress) -> StreamBacklog | None:
    latest, end = _offset(source.latestOffset), _offset(source.endOffset)
    if "waiting" in latest and "queue" in latest:
        counts = {name: latest[name] for name in ("leased", "scheduled", "dead")}
        behind = latest["waiting"]
    elif "number" in latest and "number" in end:
        counts, behind = {}, max(0, latest["number"] - end["number"])
    else:
        return None
    rates = source.inputRowsPerSecond, source.processedRowsPerSecond
    return StreamBacklog(latest["queue"], behind, source.numInputRows, *rates, **counts)


def _offset(text: str | None) -> dict[str, Any]:
    """Return an offset of Spark's report; empty if there is none, or if another format has other ones."""
    try:
        offset = json.loads(text or "{}")
    except ValueError:
        return {}
    return offset if isinstance(offset, dict) else {}

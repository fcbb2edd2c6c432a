"""What the router answers, as OpenAPI shows it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from leasequeue.errors import JobFailed

if TYPE_CHECKING:
    from leasequeue.alive import RunView, WorkerView
    from leasequeue.queue.stats import QueueStats
    from leasequeue.queue.views import Counts
    from leasequeue.tasks.job import JobStatus

#: Where a job is.
State = Literal["waiting", "leased", "scheduled", "dead", "completed", "cancelled", "expired", "unknown"]
_ANY = TypeAdapter[Any](Any)
_ID = "4f0c9e0b5a3d4b7f8f5e1c2d3a4b5c6d"
_COUNTS = {"name": "default", "waiting": 12, "leased": 3, "scheduled": 1, "dead": 0}


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


class JobError(BaseModel):
    """The error of an attempt. Its traceback stays on the server."""

    type: str = Field(description="The name of the error's class; empty if it is not known.")
    message: str = Field(description="The error's text.")


class JobInfo(BaseModel):
    """A job at one moment."""

    model_config = _example(
        id=_ID,
        queue="default",
        state="leased",
        attempt=1,
        error=None,
        due="2026-01-01T12:00:30Z",
        progress=0.5,
    )

    id: str = Field(description="The id of the job.")
    queue: str = Field(description="The name of its queue.")
    state: State = Field(description="Where the job is. `leased`: a worker has it, and may run it.")
    attempt: int | None = Field(
        description="How many attempts have begun; null if it is completed or cancelled, as that is not kept."
    )
    error: JobError | None = Field(description="The error of the last attempt that has failed.")
    due: datetime | None = Field(description="When it falls due if it is scheduled; when its lease ends.")
    progress: Any = Field(description="What its run has reported last.")


class JobResult(BaseModel):
    """The result of a job."""

    model_config = _example(id=_ID, queue="default", state="completed", result={"total": 6})

    id: str = Field(description="The id of the job.")
    queue: str = Field(description="The name of its queue.")
    state: Literal["completed"]
    result: Any = Field(description="What the task has returned.")


class QueueInfo(BaseModel):
    """How many items of a queue are in each state."""

    model_config = _example(**_COUNTS)

    name: str = Field(description="The name of the queue.")
    waiting: int = Field(description="Items that can be leased.")
    leased: int = Field(description="Items under lease.")
    scheduled: int = Field(description="Items that are not due yet.")
    dead: int = Field(description="Items that have used all their attempts.")


class WaitInfo(BaseModel):
    """How long items waited until they were leased: of a sample of the last minutes."""

    mean: float = Field(description="Seconds; 0 if there is no sample.")
    median: float = Field(description="Seconds.")
    longest: float = Field(description="Seconds.")
    samples: int = Field(description="How many items were sampled.")


class PauseInfo(BaseModel):
    """A pause of a queue."""

    since: datetime = Field(description="When it began.")
    until: datetime | None = Field(description="When it ends by itself.")
    reason: str = Field(description="Why.")


class QueueDetails(QueueInfo):
    """What is known of a queue at one moment."""

    model_config = _example(
        **_COUNTS,
        oldest_age=4.2,
        oldest_age_error=0.5,
        wait={"mean": 1.5, "median": 1.2, "longest": 4.2, "samples": 64},
        leases=20000,
        workers=2,
        paused=None,
    )

    oldest_age: float = Field(description="Seconds for which the oldest waiting item has waited at least.")
    oldest_age_error: float | None = Field(
        description="By how many seconds it may have waited longer; null: unknown."
    )
    wait: WaitInfo
    leases: int = Field(description="How many leases there have been, ever.")
    workers: int = Field(description="How many workers serve the queue.")
    paused: PauseInfo | None = Field(description="The pause of the whole queue.")


class RunInfo(BaseModel):
    """A run of a worker."""

    queue: str = Field(description="The name of the queue.")
    id: str = Field(description="The id of the job; of a batch, the first one.")
    task: str = Field(description="The name of the task.")
    since: datetime = Field(description="When it began.")


class WorkerInfo(BaseModel):
    """A worker at its last heartbeat."""

    model_config = _example(
        id="lh:web-1/4711/0a1b2c3d4e5f6071",
        name="web-1/4711",
        host="web-1",
        pid=4711,
        queues=["default"],
        dead=False,
        quiet=False,
        stopping=False,
        started="2026-01-01T12:00:00Z",
        concurrency=100,
        runs=20000,
        failures=3,
        running=[],
    )

    id: str = Field(description="Its session, which is unique.")
    name: str
    host: str
    pid: int
    queues: list[str] = Field(description="The names of the queues that it serves.")
    dead: bool = Field(description="Whether it has missed its heartbeats.")
    quiet: bool = Field(description="Whether it fetches nothing more.")
    stopping: bool = Field(description="Whether it was ordered to stop.")
    started: datetime | None
    concurrency: int = Field(description="How many runs it may have at once.")
    runs: int = Field(description="How many runs have ended.")
    failures: int = Field(description="How many of them have failed.")
    running: list[RunInfo] = Field(description="What runs, the oldest first.")


class HealthInfo(BaseModel):
    """The health of the application."""

    model_config = _example(status="ok")

    status: Literal["ok"]


def job_info(item_id: str, queue: str, status: JobStatus, *, state: State | None = None) -> JobInfo:
    """Return a job as it is answered."""
    error = None
    if status.error is not None:
        failed = JobFailed(item_id, status.error)
        error = JobError(type=failed.type, message=failed.message)
    return JobInfo(
        id=item_id,
        queue=queue,
        state=state or status.state,
        attempt=status.attempt,
        error=error,
        due=_moment(status.due),
        progress=_progress(status.progress),
    )


def queue_info(name: str, counts: Counts) -> QueueInfo:
    """Return a queue as it is answered."""
    return QueueInfo(name=name, **counts._asdict())


def queue_details(stats: QueueStats) -> QueueDetails:
    """Return what is known of a queue as it is answered."""
    pause = stats.paused
    return QueueDetails(
        **queue_info(stats.queue, stats.counts).model_dump(),
        oldest_age=stats.oldest_age,
        oldest_age_error=stats.oldest_age_error,
        wait=WaitInfo(**asdict(stats.wait)),
        leases=stats.leases,
        workers=stats.workers_alive,
        paused=None
        if pause is None
        else PauseInfo(since=_moment_of(pause.since), until=_moment(pause.until), reason=pause.reason),
    )


def worker_info(view: WorkerView) -> WorkerInfo:
    """Return a worker as it is answered."""
    given = {name: getattr(view, name) for name in WorkerInfo.model_fields}
    given |= {name: _text(given[name]) for name in ("id", "name", "host")}
    given |= {"started": _moment(view.started), "running": [*map(_run_info, view.running)]}
    return WorkerInfo(**given)


def _run_info(run: RunView) -> RunInfo:
    item_id, task = _text(run.item_id), _text(run.handler)
    return RunInfo(queue=run.queue, id=item_id, task=task, since=_moment_of(run.since))


def _text(value: str) -> str:
    """Return a text that any client may have written, or the bytes of an id, as it can be sent."""
    return value.encode(errors="backslashreplace").decode()


def _progress(value: Any) -> Any:
    """Return progress, which any client may have written; None if it cannot be sent."""
    try:
        _ANY.dump_json(value)
    except ValueError:  # it is too deep
        return None
    return value


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else _moment_of(seconds)


def _moment_of(seconds: float) -> datetime:
    """Return a time, which another client may have written: one that is none is the latest possible."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.max.replace(tzinfo=UTC)

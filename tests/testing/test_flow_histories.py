"""A history of flow runs that were really made: recorded, and read with their final states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import Reject, Worker
from leasequeue.queue.plan import Plan, StagePlan
from leasequeue.testing.history import FinalState, History, HistoryLog, check, record_calls, record_runs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.queue.fixtures import MakeQueue


@pytest.mark.core
async def test_what_becomes_of_flow_runs_is_recorded(make_queue: MakeQueue, tmp_path: Path) -> None:
    log = HistoryLog(tmp_path / "worker.jsonl")
    queue = record_calls(make_queue(), log)
    worker = Worker(middleware=[record_runs(log)])

    @worker.handler(queue)
    def work(data: bytes) -> int:
        if data == b"bad":
            raise Reject("no")
        return 1

    stages = (StagePlan("a", queue.name, b"good"), StagePlan("b", queue.name, b"good", after=("a",)))
    assert await queue.runs.start(Plan(stages), "good")
    assert await queue.runs.start(Plan((StagePlan("a", queue.name, b"bad"),)), "bad")
    await worker.drain()
    assert not await queue.runs.cancel("good")
    final = await FinalState.read(queue)
    assert final.runs is not None
    assert {name: run.state for name, run in final.runs.items()} == {"good": "completed", "bad": "failed"}
    assert final.runs["good"].waits_for == {"a": (), "b": ("a",)}
    history = History.load(tmp_path)
    assert check(history, final) == []
    assert await queue.runs.retry("bad")
    assert await queue.runs.cancel("bad")
    answers = [
        (event.kind, event.id, event.outcome)
        for event in History.load(tmp_path).events
        if event.called_at and event.kind.startswith(("start", "stage", "run"))
    ]
    log.close()
    assert sorted(answers[:5]) == [
        ("stage_done", "good/a", True),
        ("stage_done", "good/b", True),
        ("stage_failed", "bad/a", True),
        ("start", "bad", True),
        ("start", "good", True),
    ]
    assert answers[5:] == [
        ("run_cancel", "good", False),
        ("run_retry", "bad", True),
        ("run_cancel", "bad", True),
    ]

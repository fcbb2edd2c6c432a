"""Recording calls and runs in logs, reading the logs, and checking memory samples."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from leasequeue import ConnectionLost, Item, RetryPolicy
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.worker import Reject, Snooze, Worker
from tests.history.events import Event, FinalState, History, HistoryLog
from tests.history.recording import record_calls, record_runs
from tests.history.rules import check
from tests.soak.memory import check_memory

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


def kinds(history: History, item: str) -> list[str]:
    """Return the kinds of the events of an item, answers with their outcome."""
    return [
        event.kind if event.called_at is None or event.outcome is None else f"{event.kind}={event.outcome}"
        for event in history.events
        if event.id == item
    ]


@pytest.fixture
def log(tmp_path: Path) -> HistoryLog:
    return HistoryLog(tmp_path / "here.jsonl")


class TestLogs:
    def test_events_are_read_as_they_were_written(self, log: HistoryLog, tmp_path: Path) -> None:
        events = [
            Event(1, "add", "q", "x"),
            Event(2, "add", "q", "x", called_at=1, outcome=True),
            Event(3, "lease", "q", "\udcff", token=1, attempt=2, called_at=2),
            Event(4, "end", "q", "x", token=1, outcome="returned"),
            Event(5, "complete", "q", "x", token=1, called_at=4, outcome=False),
            Event(6, "exit"),
        ]
        log.write(*events)
        log.close()
        assert History.load(tmp_path).events == [event._replace(process="here") for event in events]

    def test_several_logs_are_merged_by_time(self, tmp_path: Path) -> None:
        for name, times in [("a", (1, 4)), ("b", (2, 3))]:
            HistoryLog(tmp_path / f"{name}.jsonl").write(*(Event(at, "exit") for at in times))
        assert [(event.at, event.process) for event in History.load(tmp_path).events] == [
            (1, "a"), (2, "b"), (3, "b"), (4, "a"),
        ]  # fmt: skip

    def test_a_killed_process_loses_at_most_its_last_line(self, tmp_path: Path) -> None:
        program = f"""
from tests.history.events import Event, HistoryLog
log = HistoryLog({str(tmp_path / "killed.jsonl")!r})
at = 0
while True:
    at += 1
    log.write(Event(at, "add", "q", f"item-{{at}}"))
    if at == 1000: print("", flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        events = History.load(tmp_path).events
        assert len(events) >= 1000
        assert [event.at for event in events] == list(range(1, len(events) + 1))


class TestRecording:
    async def test_calls_and_answers_are_recorded(
        self, make_queue: MakeQueue, log: HistoryLog, tmp_path: Path
    ) -> None:
        queue = record_calls(make_queue(), log)
        await queue.add_items([Item(b"1", id="x"), Item(b"2", id="y")])
        assert not await queue.add_item(Item(b"3", id="x"))
        x, y = await queue.lease_many(2, 30)
        await queue.renew(x, 30)
        await queue.complete(x)
        await queue.complete_many([x])
        await queue.fail(y, "no")
        await queue.dead_letters.requeue("y")
        again = await queue.lease(30)
        await asyncio.to_thread(asyncio.run, queue.release(again))
        await queue.fail(await queue.lease(30), "no", retry_in=0)
        await queue.fail(await queue.lease(30), "no")
        await queue.dead_letters.drop("y")
        await queue.add_items([Item(b"1", id="c"), Item(b"2", id="d")])
        assert await queue.cancel_many(["c", "c"]) == [True, False]
        assert await queue.cancel_data(b"2") == ["d"]
        await queue.close()

        history = History.load(tmp_path)
        assert kinds(history, "x") == [
            "add", "add=True", "add", "add=False", "lease", "renew", "renew=True",
            "complete", "complete=True", "complete", "complete=False",
        ]  # fmt: skip
        assert kinds(history, "y") == [
            "add", "add=True", "lease", "die", "die=True", "requeue", "requeue=True",
            "lease", "release", "release=True", "lease", "retry", "retry=True", "lease",
            "die", "die=True", "drop", "drop=True",
        ]  # fmt: skip
        assert sorted(kinds(history, "c")) == [
            "add",
            "add=True",
            "cancel",
            "cancel",
            "cancel=False",
            "cancel=True",
        ]
        assert kinds(history, "d") == ["add", "add=True", "cancel", "cancel=True"]
        leases = [(event.id, event.token, event.attempt) for event in history.events if event.kind == "lease"]
        assert leases == [("x", 1, 1), ("y", 2, 1), ("y", 3, 1), ("y", 4, 1), ("y", 5, 2)]
        assert not check(history, FinalState(queue.name))

    async def test_runs_are_recorded(
        self, make_queue: MakeQueue, queue: AsyncWorkQueue, log: HistoryLog, tmp_path: Path
    ) -> None:
        recorded = record_calls(make_queue(), log)
        worker = Worker(middleware=[record_runs(log)], retry=RetryPolicy(attempts=2, first=0))

        @worker.handler(recorded)
        async def work(data: bytes) -> None:
            if data == b"reject":
                raise Reject("no")
            if data == b"snooze":
                raise Snooze(60)
            if data == b"fail":
                raise ValueError

        await recorded.add_items(
            [Item(one, id=one.decode()) for one in (b"good", b"reject", b"snooze", b"fail")]
        )
        await worker.drain()
        await recorded.close()
        history = History.load(tmp_path)
        added, run = ["add", "add=True"], ["lease", "begin", "end"]
        assert kinds(history, "good") == [*added, *run, "complete", "complete=True"]
        assert kinds(history, "reject") == [*added, *run, "die", "die=True"]
        assert kinds(history, "snooze") == [*added, *run, "release", "release=True"]
        assert kinds(history, "fail") == [*added, *run, "retry", "retry=True", *run, "die", "die=True"]
        assert [event.outcome for event in history.events if event.kind == "end"].count("returned") == 1
        final = await FinalState.read(queue)
        assert final == FinalState(queue.name, frozenset({"snooze"}), frozenset({"reject", "fail"}), {})
        assert not check(history, final)

    async def test_a_call_that_was_not_sent_is_recorded_as_unsent(
        self, make_queue: MakeQueue, log: HistoryLog, tmp_path: Path
    ) -> None:
        queue = record_calls(make_queue(url="redis://127.0.0.1:1"), log)
        with pytest.raises(ConnectionLost):
            await queue.add_item(Item(b"1", id="x"))
        assert kinds(History.load(tmp_path), "x") == ["add", "add=unsent"]


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
    assert await queue.flow_runs.start(FlowPlan(stages), "good")
    assert await queue.flow_runs.start(FlowPlan((StagePlan("a", queue.name, b"bad"),)), "bad")
    await worker.drain()
    assert not await queue.flow_runs.cancel("good")
    final = await FinalState.read(queue)
    assert final.runs is not None
    assert {name: run.state for name, run in final.runs.items()} == {"good": "completed", "bad": "failed"}
    assert final.runs["good"].waits_for == {"a": (), "b": ("a",)}
    history = History.load(tmp_path)
    assert check(history, final) == []
    assert await queue.flow_runs.retry("bad")
    assert await queue.flow_runs.cancel("bad")
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


class TestMemory:
    @staticmethod
    def samples(slope: float, *, noise: float = 2e5, count: int = 200) -> list[tuple[float, float]]:
        chance = random.Random(1)
        return [
            (float(at), 2e7 + slope * at + chance.gauss(0, noise) + (5e7 if at % 17 == 0 else 0))
            for at in range(count)
        ]

    def test_spikes_are_not_growth(self) -> None:
        growth = check_memory(self.samples(0))
        assert not growth.grows
        assert growth.level == pytest.approx(2e7, rel=0.05)
        assert abs(growth.per_minute) < 1e6

    def test_growth_is_found_despite_spikes(self) -> None:
        growth = check_memory(self.samples(50_000))
        assert growth.grows
        assert growth.per_minute == pytest.approx(3e6, rel=0.1)
        assert growth.added == pytest.approx(50_000 * 139, rel=0.1)

    def test_growth_during_the_warm_up_is_ignored(self) -> None:
        warm = [(at, 2e7 + 4e5 * min(at, 50)) for at in range(200)]
        assert not check_memory(warm).grows

    def test_many_samples_are_reduced(self) -> None:
        assert check_memory(self.samples(50_000, count=5000)).per_minute == pytest.approx(3e6, rel=0.1)

    @pytest.mark.parametrize("samples", [[], [(0, 1), (1, 1)], [(0, 1), (0, 1), (0, 1), (0, 1)]])
    def test_too_few_samples_are_refused(self, samples: list[tuple[float, float]]) -> None:
        with pytest.raises(ValueError, match="at least three"):
            check_memory(samples)

"""What others have written forges no line of a worker's log, and stops no export of metrics and traces."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, NoReturn

import pytest

from leasequeue import Item, RetryPolicy, TaskQueue, telemetry
from leasequeue.cli.worker.settings import JsonLines
from leasequeue.errors.log import Log
from tests.hostile import BYTES, FORGED, LONG, NAME, SHOWN, TEXT, harm_of, write_item, write_worker
from tests.telemetry.recorded import Recorded
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


class Written:
    """What is logged, as lines of text and as JSON."""

    def __init__(self) -> None:
        self.text, self.json = io.StringIO(), io.StringIO()
        self.handlers = [logging.StreamHandler(self.text), logging.StreamHandler(self.json)]
        self.handlers[0].setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="now")
        )
        self.handlers[1].setFormatter(JsonLines())

    def check(self, *parts: str) -> None:
        """Check that the log shows these parts, and that it harms nobody."""
        text = self.text.getvalue()
        assert harm_of(text) == []
        assert [part for part in parts if part not in text] == []
        own = [line for line in text.splitlines() if not line.startswith((" ", "now "))]
        assert [line for line in own if line and not line.startswith(("Traceback (", "ValueError"))] == []
        lines = self.json.getvalue()
        assert lines.isascii()
        assert all(len(line) < 60_000 and json.loads(line) for line in lines.splitlines())


@pytest.fixture
def written() -> Iterator[Written]:
    """Return what Leasequeue logs in this test, from level DEBUG on."""
    found, logger = Written(), logging.getLogger("leasequeue")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    for handler in found.handlers:
        logger.addHandler(handler)
    yield found
    for handler in found.handlers:
        logger.removeHandler(handler)
    logger.setLevel(level)


def test_any_argument_traceback_or_extra_is_shown_plainly(written: Written) -> None:
    log = Log("leasequeue.test")
    error = ValueError(LONG)
    error.add_note(TEXT)
    log.warning("%s, %r, %s", TEXT, LONG, error, exc_info=error, extra={"item": TEXT, "items": [LONG]})
    written.check(SHOWN, "ValueError: a", "characters)", f"  {FORGED}")
    assert json.loads(written.json.getvalue())["item"].startswith(SHOWN)


async def test_a_worker_logs_ids_tasks_and_errors_plainly(
    redis: Redis, redis_url: str, name: str, written: Written
) -> None:
    tasks = TaskQueue.from_url(redis_url, f"{name} {TEXT}")
    queue = tasks.queue

    @tasks.task(retry=RetryPolicy(attempts=1))
    async def fail(text: str) -> None:
        raise ValueError(text)

    await fail.options(id=TEXT).add(LONG.replace("\ud800", ""))
    await fail.options(id=NAME).add(TEXT)
    await queue.add_item(Item(b"no task", id=f"{TEXT} 2"))
    await queue.add_item(Item(b'{"task": "fail", "args": {"text": 7}}', id=f"{TEXT} 3"))
    unknown = json.dumps({"task": TEXT, "args": {}}).encode()
    await queue.add_item(Item(unknown, id=f"{TEXT} 4"))
    await write_item(redis, queue, BYTES, waits=True)
    await write_worker(redis, queue, TEXT)
    worker = new_worker(tasks)
    worker.log_runs = True
    await worker.drain()
    assert (await queue.dead_letters.get(TEXT)) is not None
    written.check("does not know", "ValueError", "dead letter", SHOWN)
    await tasks.close()


async def test_traces_and_metrics_have_only_what_can_be_exported(
    redis: Redis, make_queue: MakeQueue, name: str
) -> None:
    queue = make_queue(name=f"{name} {TEXT}")
    recorded = Recorded()
    recorded.switch_on()
    try:
        await write_item(redis, queue, BYTES, waits=True)
        await redis.delete(f"{queue.name}:options")
        worker = new_worker()

        @worker.handler(queue, retry=RetryPolicy(attempts=1))
        async def fail(_: bytes) -> NoReturn:
            raise ValueError(LONG)

        await worker.drain()
        [run] = recorded.runs
        texts = [run.name, *attributes_of(run.attributes), str(run.status.description)]
        texts += [text for event in run.events for text in attributes_of(event.attributes)]
        data = recorded.reader.get_metrics_data()
        assert data is not None
        for scope in (scope for one in data.resource_metrics for scope in one.scope_metrics):
            for point in (point for metric in scope.metrics for point in metric.data.data_points):
                texts += attributes_of(point.attributes)
    finally:
        telemetry.uninstrument()
    assert any(SHOWN in text for text in texts)
    assert [harm for text in texts for harm in harm_of(text)] == []
    assert all(text.encode() for text in texts)


def attributes_of(attributes: object) -> list[str]:
    """Return the texts of attributes."""
    assert hasattr(attributes, "values")
    return [value for value in attributes.values() if isinstance(value, str)]

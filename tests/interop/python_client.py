"""The Python client of the family as a program that reads requests from standard input.

    python python_client.py URL QUEUE

In: `["lease", 30, 0.2]`, a JSON line per request. Out: `{"answer": …}` or `{"error": …}`, a line for each.
Data travels as base64.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from typing import Any

from redis import Redis
from redis_work_queue import Item, KeyPrefix, WorkQueue


class Client:
    """One method per request."""

    def __init__(self, url: str, name: str) -> None:
        self._db = Redis.from_url(url)
        self._name = name
        self._queue = WorkQueue(KeyPrefix(name))

    def add(self, item_id: str, data: str) -> None:
        self._queue.add_item(self._db, Item(base64.b64decode(data), id=item_id))

    def lease(self, seconds: int, timeout: float) -> list[str] | None:
        """Lease an item; with a timeout of 0, do not wait."""
        item = self._queue.lease(self._db, seconds, block=timeout > 0, timeout=timeout)
        return item and [item.id(), base64.b64encode(item.data()).decode()]

    def complete(self, item_id: str) -> bool:
        return bool(self._queue.complete(self._db, Item(b"", id=item_id)))

    def result(self, item_id: str) -> str | None:
        """Read the result of a task, as docs/pages/how-to/share.md does."""
        data: Any = self._db.get(f"{self._name}:result:{item_id}")
        return None if data is None else base64.b64encode(data).decode()

    def failure(self, item_id: str) -> str | None:
        """Read why a task has failed for the last time."""
        error: Any = self._db.hget(f"{self._name}:dead:{item_id}", "error")
        return None if error is None else base64.b64encode(error).decode()

    def light_clean(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # the library prints
            self._queue.light_clean(self._db)

    def queue_len(self) -> int:
        return int(self._queue.queue_len(self._db))

    def processing(self) -> int:
        return int(self._queue.processing(self._db))


def answer(client: Client, line: str) -> dict[str, Any]:
    verb, *arguments = json.loads(line)
    try:
        return {"answer": getattr(client, verb)(*arguments)}
    except Exception as error:  # noqa: BLE001 - the test shows it
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    its = Client(*sys.argv[1:])
    for request in sys.stdin:
        sys.stdout.write(json.dumps(answer(its, request)) + "\n")
        sys.stdout.flush()

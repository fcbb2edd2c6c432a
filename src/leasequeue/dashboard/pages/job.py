"""One item or job: where it is now, its last error, its result, and what the kept events say of it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from leasequeue.alive import Fleet
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.view import Page
from leasequeue.errors import EventsLost, InvalidArgument, NoEventsKept
from leasequeue.errors.describing import plain
from leasequeue.item.codec import dump_compact
from leasequeue.queue import Lease
from leasequeue.queue.run_logs import runs_of
from leasequeue.queue.shards.spreading import answers_of
from leasequeue.states import GONE, EventKind
from leasequeue.tasks.wire import call_of, task_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue, DeadLetter, Event, ItemView

#: Of how many events, the newest of the queue, the history is taken, and how many of an item are shown.
EVENTS, SHOWN_EVENTS = 5_000, 100
#: Up to which size the data of an item is read (bytes): no call may keep the server busy.
MAX_SHOWN_BYTES = 256 << 10
#: The events after which nothing is left of an item.
_ENDS = {kind.value for kind in EventKind if kind.after == GONE}


async def read(view: View) -> dict[str, Any]:
    """Read the item, the dead letter and the result with an id, and the events of it."""
    name, item_id = view.text("queue"), view.text("id")
    await view.history(name)
    queue = view.queue(name)
    found = await view.shared(("job", name, item_id), lambda: _read(queue, item_id))
    events = await view.shared(("events", name), lambda: newest_events(queue))
    own = None if events is None else [one for one in events if one.id == item_id]
    item, letter = found["item"], found["letter"]
    data = next((one.data for one in (item, letter) if one is not None and one.data is not None), None)
    call = None if data is None else call_of(data)
    return {
        "name": name,
        "id": item_id,
        **found,
        "state": state_of(item, letter, found["result"], own),
        "task": (call[0] if call else task_of(data)) if data else None,
        "arguments": call is not None,
        "data": None if data is None else _shown(view, name, call[1].encode() if call else data),
        "result": None if found["result"] is None else _shown(view, name, found["result"]),
        "has_result": found["result"] is not None,
        "logs": [
            (attempt, view.readable(name, "\n".join(map(str, some)).encode(errors="replace")))
            for attempt, some in runs_of(found["logs"])
        ],
        "progress": None if item is None or item.progress is None else dump_compact(item.progress),
        "events": None
        if own is None
        else [one for one in own if one.what != EventKind.RENEWED][-SHOWN_EVENTS:],
        "looked_at": EVENTS,
    }


def _shown(view: View, name: str, data: bytes) -> tuple[int, str | None]:
    return len(data), view.shown(name, data)


async def _read(queue: AsyncWorkQueue, item_id: str) -> dict[str, Any]:
    item, letter, result, logs, run = await asyncio.gather(
        queue.find(item_id, data=False),
        queue.dead_letters.get(item_id, max_bytes=MAX_SHOWN_BYTES),
        queue.results._shown(item_id),  # noqa: SLF001 - it may be unreadable
        queue.results.logs(item_id),
        _run_by_id(queue, item_id),
    )
    if item is not None and item.flow_run and item.flow_home:
        run = item.flow_home, item.flow_run
    if item is not None and (item.size or 0) <= MAX_SHOWN_BYTES:
        item = await queue.find(item_id) or item
    holders = [item.holder] if item is not None and item.holder else []
    workers = await Fleet(queue).workers({queue.name: holders})
    worker = next(iter(workers), None)
    return {"item": item, "letter": letter, "result": result, "logs": logs, "worker": worker, "run": run}


async def _run_by_id(queue: AsyncWorkQueue, item_id: str) -> tuple[str, str] | None:
    """Return queue and id of the flow run that an id of an item names, also if the item has ended."""
    run_id, _, path = item_id.partition("/")
    try:
        [run] = await queue.flow_runs.list([run_id], fields=()) if path else [None]
    except InvalidArgument:  # no run has such an id
        return None
    return (queue.name, run_id) if run is not None and path.partition("/")[0] in run.stages else None


async def newest_events(queue: AsyncWorkQueue) -> list[Event] | None:
    """Return the newest events of a queue, the oldest first; None if it keeps none."""
    each = EVENTS // len(queue.shards)
    found = await answers_of({shard: _newest_events(shard, each) for shard in queue.shards})
    kept = [events for events in found.values() if events is not None]
    return sorted(itertools.chain(*kept), key=lambda event: event.at) if kept else None


async def _newest_events(queue: AsyncWorkQueue, count: int) -> list[Event] | None:
    try:
        since = max(0, await queue.events.last_number() - count)
        while True:
            try:
                return [event async for event in queue.events(since, follow=False)]
            except EventsLost as error:
                if error.first_kept <= since + 1:
                    raise
                since = error.first_kept - 1
    except NoEventsKept:
        return None


def state_of(
    item: ItemView | None, letter: DeadLetter | None, result: bytes | None, events: Sequence[Event] | None
) -> str:
    """Return the state of an item; of one that is gone, how it has ended, as far as that is known."""
    if item is not None:
        return item.state
    if letter is not None:
        return "dead"
    ends = [one.what for one in events or () if one.what in _ENDS]
    if ends:
        return ends[-1]
    return "completed" if result is not None else "completed, or never existed"


async def _cancel(view: View) -> int:
    return int(await view.queue(view.text("queue")).cancel(view.text("id")))


async def _ask_cancel(view: View) -> Question:
    found = await view.queue(view.text("queue")).find(view.text("id"), data=False)
    state = "It is not there any more." if found is None else f"It is {found.state}."
    return Question(
        text=f"Cancel the item '{plain(view.text('id'))}'? {state} A worker that runs it is ordered to stop.",
        button="Cancel 1 item",
    )


async def _release(view: View) -> int:
    queue = view.queue(view.text("queue"))
    found = await queue.find(view.text("id"), data=False)
    if found is None or found.state != "leased" or found.token is None:
        return 0
    encoded, shard = found.id.encode(errors="surrogateescape"), queue.shard_of(found.id, group=found.group)
    return int(await shard.release(Lease(shard, encoded, b"", found.token, found.attempt, 0, 0, 0)))


async def _ask_release(view: View) -> Question:
    return Question(
        text=f"End the lease of '{plain(view.text('id'))}'? It returns to the front of the queue, and "
        "another worker takes it. The one that runs it now may run until it renews, so that it may run "
        "twice.",
        button="Release 1 item",
    )


async def _promote(view: View) -> int:
    return int(await view.queue(view.text("queue")).promote(view.text("id")))


async def _requeue(view: View) -> int:
    return sum(await view.queue(view.text("queue")).dead_letters.requeue(view.text("id")))


async def _drop(view: View) -> int:
    return sum(await view.queue(view.text("queue")).dead_letters.drop(view.text("id")))


async def _ask_drop(view: View) -> Question:
    return Question(
        text=f"Remove the dead letter '{plain(view.text('id'))}', with its data?", button="Drop 1"
    )


#: What is said after an action on items, by its name; the pages of dead letters have the same ones.
DONE = {
    "cancel": "Items cancelled: {}.",
    "release": "Leases ended: {}.",
    "promote": "Items that wait at the front of the queue now: {}.",
    "requeue": "Dead letters requeued: {}.",
    "drop": "Dead letters removed: {}.",
}
PAGE = Page(path="/queues/{queue}/jobs/{id}", template="job.html", read=read)
ACTIONS = tuple(
    Action(name=name, path=f"{PAGE.path}/{name}", call=call, ask=ask, done=DONE[name])
    for name, call, ask in (
        ("cancel", _cancel, _ask_cancel),
        ("release", _release, _ask_release),
        ("promote", _promote, None),
        ("requeue", _requeue, None),
        ("drop", _drop, _ask_drop),
    )
)

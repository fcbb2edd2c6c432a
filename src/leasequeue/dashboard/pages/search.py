"""Find an item or job by its id in all queues, or by its task and arguments among the newest of each."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.dashboard.pages.job import EVENTS, newest_events
from leasequeue.dashboard.view import Elsewhere, Page, segment
from leasequeue.item.codec import dump_compact
from leasequeue.queue.shards.spreading import answers_of
from leasequeue.states import ITEM_STATES
from leasequeue.tasks.wire import call_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue, DeadLetter, ItemView

#: In how many queues one search looks: for an id, for other things, and for events.
BY_ID, BY_CALL, BY_EVENT = 1_000, 20, 20
#: Among how many items of each state of a queue, the newest, and among how many bytes of their data.
NEWEST, MAX_BYTES = 100, 512 << 10
#: How many are shown.
ROWS = 100


class Hit(NamedTuple):
    """An item that was found."""

    queue: str
    id: str
    state: str
    task: str | None = None
    arguments: str | None = None


async def read(view: View) -> dict[str, Any]:
    """Look for what the query says."""
    await view.sampler.look()
    view.sampler.check()
    text = view.request.query_params.get("q", "").strip()
    after = view.request.query_params.get("after", "")
    wanted = qualifiers(text)
    names = sorted(view.board.queues.by_name())
    start = sum(segment(name) <= after for name in names) if after else 0
    names = sorted(names, key=segment)[start:]
    facts: dict[str, Any] = {"q": text, "by_call": wanted is not None, "hits": [], "following": None}
    if not text:
        return facts | {"looked_in": 0, "total": len(names)}
    if wanted is None:
        chosen = names[:BY_ID]
        hits = await _by_id(view, [view.queue(name) for name in chosen], text)
        if len(hits) == 1 and len(chosen) == len(names) and not after and not view.problems:
            raise Elsewhere(view.link("queues/", segment(hits[0].queue), "/jobs/", segment(text)))
    else:
        names = [name for name in names if wanted.get("queue", name) == name]
        chosen = names[:BY_CALL]
        queues = [view.queue(name) for name in chosen]
        answers = await view.each(queues, lambda queue: _by_call(view, queue, wanted), "find calls", text)
        hits = [hit for _, found in answers for hit in found]
    return facts | {
        "hits": hits[:ROWS],
        "more": len(hits) > ROWS,
        "looked_in": len(chosen),
        "total": len(names),
        "following": segment(chosen[-1]) if len(chosen) < len(names) else None,
        "newest": NEWEST,
        "events": EVENTS,
        "hidden": wanted is not None and not view.board.show_data and any("." in one for one in wanted),
    }


def qualifiers(text: str) -> dict[str, str] | None:
    """Return the values of `task:`, `queue:` and `args.<name>:` in a query; None: it is an id."""
    pairs = [part.partition(":") for part in text.split()]
    if all(value and (name in {"task", "queue"} or name.startswith("args.")) for name, _, value in pairs):
        return {name: value for name, _, value in pairs} or None
    return None


async def _by_id(view: View, queues: Sequence[AsyncWorkQueue], item_id: str) -> list[Hit]:
    async def look(queue: AsyncWorkQueue) -> str | None:
        item = await queue.find(item_id, data=False)
        if item is not None:
            return item.state
        if await queue.dead_letters.get(item_id, max_bytes=0) is not None:
            return "dead"
        result = await queue.results._shown(item_id)  # noqa: SLF001 - it may be unreadable
        return None if result is None else "completed"

    async def look_at_events(queue: AsyncWorkQueue) -> str | None:
        events = await view.shared(("events", queue.name), lambda: newest_events(queue))
        return next((one.what for one in reversed(events or ()) if one.id == item_id), None)

    found = await view.each(queues, look, "find", item_id)
    if not any(state for _, state in found):
        found = await view.each(queues[:BY_EVENT], look_at_events, "find in events", item_id)
    return [Hit(queue.name, item_id, state) for queue, state in found if state]


async def _by_call(view: View, queue: AsyncWorkQueue, wanted: Mapping[str, str]) -> list[Hit]:
    name, hits = queue.name, []
    for state, one in await view.shared(("newest", name), lambda: _newest_of_all(queue)):
        call = call_of(one.data or b"")
        if call is None or wanted.get("task", call[0]) != call[0]:
            continue
        # What a viewer may not read cannot be found out by searching for it either.
        readable = view.readable(name, call[1].encode())
        if _has(readable, wanted):
            arguments = None if readable is None else view.shown(name, call[1].encode())
            hits.append(Hit(name, one.id, state, call[0], arguments))
    return hits


def _has(arguments: str | None, wanted: Mapping[str, str]) -> bool:
    paths = {path: value for path, value in wanted.items() if path.startswith("args.")}
    if not paths:
        return True
    try:
        # Numbers stay the texts that they are: a big one is not rounded.
        given = json.loads(arguments or "null", parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return all(_text(given, path.split(".")[1:]) == value for path, value in paths.items())


def _text(value: Any, path: Iterable[str]) -> str | None:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return None if value is None else value if isinstance(value, str) else dump_compact(value)


async def _newest_of_all(queue: AsyncWorkQueue) -> list[tuple[str, ItemView | DeadLetter]]:
    shards = queue.shards
    found = await answers_of({one: _newest(one, len(shards)) for one in shards})
    return [*itertools.chain.from_iterable(found.values())]


async def _newest(queue: AsyncWorkQueue, of: int) -> list[tuple[str, ItemView | DeadLetter]]:
    """Return the newest items of one `of` so many shards."""
    found: list[tuple[str, ItemView | DeadLetter]] = []
    count, most = max(1, NEWEST // of), MAX_BYTES // of
    for state in ITEM_STATES:
        sizes = [one.size or 0 for one in await queue.inspect(state, start=-count, count=count, data=False)]
        if fits := _fitting(sizes[::-1], most):
            newest = await queue.inspect(state, start=-fits, count=fits)
            found += [(state, one) for one in reversed(newest)]
    letters = await queue.dead_letters.list(count=count, data=False)
    if fits := _fitting([one.size for one in letters], most):
        found += [("dead", one) for one in await queue.dead_letters.list(count=fits)]
    return found


def _fitting(sizes: Sequence[int], most: int) -> int:
    return sum(total <= most for total in itertools.accumulate(sizes))


PAGE = Page(path="/jobs", template="search.html", read=read)

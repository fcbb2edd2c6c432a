"""Workers: what each runs now and for how long, the dead ones first; and telling them what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.alive import Fleet
from leasequeue.alive.fleet import by_worker
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.view import NotFound, Page, checked_query, key_of, read_segment, rows_after
from leasequeue.errors.describing import NAME_LENGTH, counted, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasequeue.alive import WorkerView
    from leasequeue.dashboard.view import View
    from leasequeue.queue.stats import WorkerStats

#: How many workers a page has, and how many runs and queues of each.
ROWS, RUNS, QUEUES = 50, 2, 3
#: Of how many queues of one worker what it says is read.
MAX_SERVED = 500

_KEEP: dict[str, Callable[[WorkerStats], bool]] = {
    "all": lambda _: True,
    "dead": lambda one: one.dead,
    "running": lambda one: one.running > 0,
    "idle": lambda one: not one.running,
    "quiet": lambda one: one.quiet,
}
#: What the sampler has seen of a worker: its id, what it says on one of its queues, and on each.
Seen: TypeAlias = "tuple[str, WorkerStats, Mapping[str, WorkerStats]]"


async def _seen(view: View) -> list[Seen]:
    """Return what the sampler has seen, the dead workers first."""
    histories = (await view.seen()).items()
    found = by_worker((name, one.stats.workers) for name, one in histories if one.stats)
    workers = [(worker, max(on.values(), key=lambda one: one.dead), on) for worker, on in found.items()]
    return sorted(workers, key=lambda seen: (not seen[1].dead, seen[1].name, seen[0]))


async def _read(view: View, workers: Sequence[Seen], queues: int) -> dict[str, WorkerView]:
    """Return what workers say now, by session, on so many queues of each; one that is gone is left out."""
    sessions: dict[str, list[str]] = {}
    for _, _, on in workers:
        for name, one in sorted(on.items(), key=lambda row: not row[1].dead)[:queues]:
            sessions.setdefault(name, []).extend((one.session, *one.others))
    await view.sampler.look(sessions)
    fleet = Fleet(*map(view.queue, sessions)) if sessions else None
    key = ("workers", *((name, *asked) for name, asked in sessions.items()))
    found = await view.shared(key, lambda: fleet.workers(sessions)) if fleet else []
    return {session: one for one in found for session in one.sessions.values()}


async def read(view: View) -> dict[str, Any]:
    """List those that the sampler has seen, and read what those of the page say."""
    workers = await _seen(view)
    query = view.request.query_params
    show = checked_query(query, "show", (*_KEEP,))
    wanted = query.get("find", "").strip().lower()
    found = [
        (worker, one, on)
        for worker, one, on in workers
        if _KEEP[show](one) and any(wanted in text.lower() for text in (one.name, one.host, *on))
    ]
    part = rows_after(found, lambda seen: key_of(seen[0]), query.get("after", ""), ROWS)
    views = await _read(view, part.rows, QUEUES)
    return {
        "part": part,
        "rows": [(views[one.session], one, on) for _, one, on in part.rows if one.session in views],
        "views": (*_KEEP,),
        "show": show,
        "find": query.get("find", ""),
        "total": len(workers),
        "matching": len(found),
        "dead": sum(one.dead for _, one, _ in workers),
        "sums": {
            "workers": len(workers),
            "running": sum(one.running for _, one, _ in workers),
            "runs ended": sum(one.runs for _, one, _ in workers),
            "of them failed": sum(one.failures for _, one, _ in workers),
        },
        "versions": Counter(one.version or "unknown" for _, one, _ in workers).most_common(5),
        "runs": RUNS,
    }


async def _find(view: View) -> WorkerView | None:
    wanted = view.text("worker")
    for _ in range(2):
        for worker, one, on in await _seen(view):
            if wanted == worker or any(wanted == it.session for it in on.values()):
                for found in (await _read(view, [(worker, one, on)], MAX_SERVED)).values():
                    return found
                for name in [*on][:QUEUES]:  # it may have begun again, under another session
                    await view.sampler.sample(name)
    return None


async def _one(view: View) -> WorkerView:
    found = await _find(view)
    if found is None:
        raise NotFound("no such worker is registered: it has stopped, or was failed")
    return found


async def read_one(view: View) -> dict[str, Any]:
    """Read one of them. After an action it may be gone."""
    return {"worker": await (_find(view) if "did" in view.request.query_params else _one(view))}


async def _acting(view: View) -> tuple[Fleet, WorkerView]:
    worker = await _one(view)
    return Fleet(*map(view.queue, worker.queues)), worker


async def _quiet(view: View) -> None:
    fleet, worker = await _acting(view)
    await fleet.quiet(worker)


async def _resume(view: View) -> None:
    fleet, worker = await _acting(view)
    await fleet.resume(worker)


async def _stop(view: View) -> None:
    fleet, worker = await _acting(view)
    await fleet.stop(worker)


async def _fail(view: View) -> int:
    fleet, worker = await _acting(view)
    return await fleet.fail(worker)


async def _cancel(view: View) -> int:
    queue, item_id = read_segment(view.field("queue")), read_segment(view.field("item"))
    return int(await view.queue(queue).cancel(item_id))


async def _ask_stop(view: View) -> Question:
    worker = await _one(view)
    return Question(
        text=f"Stop the worker {plain(worker.name, NAME_LENGTH)}? It fetches nothing more. What it runs, "
        f"{counted(len(worker.running), 'item')}, gets its grace time, then returns to the queue. "
        "What supervises its process may start another.",
        button="Stop it",
    )


async def _ask_fail(view: View) -> Question:
    worker = await _one(view)
    alive = "" if worker.dead else " It is alive: items that it runs now will run twice."
    return Question(
        text=f"Fail the worker {plain(worker.name, NAME_LENGTH)}? All that it holds returns to the front of "
        f"its queues, and counts as an attempt; at its last heartbeat it ran "
        f"{counted(len(worker.running), 'item')}.{alive}",
        button=f"Fail it, return {len(worker.running):,}",
    )


async def _ask_cancel(view: View) -> Question:
    item = plain(read_segment(view.field("item")), NAME_LENGTH)
    return Question(text=f"Cancel 1 item, {item}? Its run ends, and it is not run again.", button="Cancel it")


PAGE = Page(path="/workers", template="workers.html", read=read, menu="Workers")
ONE = Page(path="/workers/{worker}", template="worker.html", read=read_one)
ORDERED = "The worker has the order. It shows here with its next heartbeat, within 10 s."
ACTIONS = (
    Action(name="quiet", path="/workers/{worker}/quiet", call=_quiet, done=ORDERED),
    Action(name="quiet", path="/workers/{worker}/fetch-again", call=_resume, done=ORDERED),
    Action(name="stop", path="/workers/{worker}/stop", call=_stop, ask=_ask_stop, done=ORDERED),
    Action(
        name="cancel",
        path="/workers/{worker}/cancel",
        call=_cancel,
        ask=_ask_cancel,
        named=("queue", "item"),
        done="Items cancelled: {}.",
    ),
    Action(
        name="fail",
        path="/workers/{worker}/fail",
        call=_fail,
        ask=_ask_fail,
        done="The worker was failed: {} items were returned to the front of their queues.",
    ),
)

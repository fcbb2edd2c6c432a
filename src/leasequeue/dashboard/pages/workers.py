"""Workers: what each runs now and for how long, the dead ones first; and telling them what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from leasequeue.alive import Fleet
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.view import NotFound, Page, checked_query, key_of, read_segment, rows_after
from leasequeue.errors.describing import NAME_LENGTH, counted, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.alive import WorkerView
    from leasequeue.dashboard.view import View

#: How many workers a page has, and how many runs of each.
ROWS, RUNS = 50, 2
#: Of how many queues workers are read.
MAX_SERVED = 500

_KEEP: dict[str, Callable[[WorkerView], bool]] = {
    "all": lambda _: True,
    "dead": lambda one: one.dead,
    "running": lambda one: bool(one.running),
    "idle": lambda one: not one.running,
    "quiet": lambda one: one.quiet,
}


async def _workers(view: View) -> tuple[list[WorkerView], int]:
    """Return the workers, the dead ones first; and how many served queues are left out."""
    await view.sampler.look()
    view.sampler.check()
    queues = view.board.queues.by_name()
    seen = {name: one.stats for name, one in view.sampler.histories.items() if name in queues}
    served = sorted(name for name, stats in seen.items() if stats and stats.workers)
    fleet = _fleet(view, served[:MAX_SERVED])
    found = await view.shared("workers", fleet.workers) if fleet else []
    ordered = sorted(found, key=lambda one: (not one.dead, not one.stopping, one.name, one.id))
    return ordered, max(0, len(served) - MAX_SERVED)


def _fleet(view: View, names: list[str]) -> Fleet | None:
    return Fleet(*map(view.queue, names)) if names else None


async def read(view: View) -> dict[str, Any]:
    """Read them of the queues on which the sampler has seen some."""
    workers, left_out = await _workers(view)
    query = view.request.query_params
    show = checked_query(query, "show", (*_KEEP,))
    wanted = query.get("find", "").strip().lower()
    found = [
        one
        for one in workers
        if _KEEP[show](one) and any(wanted in text.lower() for text in (one.name, one.host, *one.queues))
    ]
    return {
        "part": rows_after(found, lambda one: key_of(one.id), query.get("after", ""), ROWS),
        "views": (*_KEEP,),
        "show": show,
        "find": query.get("find", ""),
        "total": len(workers),
        "matching": len(found),
        "left_out": left_out,
        "dead": sum(one.dead for one in workers),
        "sums": {
            "workers": len(workers),
            "running": sum(len(one.running) for one in workers),
            "runs ended": sum(one.runs for one in workers),
            "of them failed": sum(one.failures for one in workers),
        },
        "versions": Counter(one.versions.get("leasequeue", "unknown") for one in workers).most_common(5),
        "runs": RUNS,
    }


async def _find(view: View) -> WorkerView | None:
    wanted = view.text("worker")
    workers, _ = await _workers(view)
    return next((one for one in workers if wanted in (one.id, *one.sessions.values())), None)


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

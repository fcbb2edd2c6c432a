"""Flow runs: those of all queues, those of one, found by state, flow and attribute; and one run, drawn."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.alive import Fleet
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.layout import NARROW, WIDE, Layers
from leasequeue.dashboard.view import NotFound, Page, checked_query, read_segment
from leasequeue.errors import FlowRunEnded, InvalidArgument, JobUnknown
from leasequeue.errors.describing import plain
from leasequeue.item import codec
from leasequeue.queue.plans.diagram import joined
from leasequeue.queue.plans.reading import FLOW_RUN_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue, FlowRunView, ItemView, StageView
    from leasequeue.queue.plans.plan import StagePlan

#: How many runs a page has; of how many queues, and how many of each, if it is that of all.
ROWS, QUEUES, ROWS_EACH = 50, 30, 20
#: How many stages of a run are drawn and listed at once, and of how many entered ones the item is looked at.
STAGES, ITEMS = 120, 50
#: On how many queues workers are asked what they run, and how many at most: of more, the holders of items.
FLEETS, WORKERS = 8, 200
_STATES = ("any state", *FLOW_RUN_STATES)
#: The page of an item, to which stages lead if there is one.
_ITEM = "/queues/{queue}/jobs/{id}"
#: How the state of an item is called here, if it is another word.
_RUNNING = {"leased": "running"}


async def read_all(view: View) -> dict[str, Any]:
    """Read the newest runs of the queues that were sampled, a slice of them at once."""
    await view.sampler.look()
    view.sampler.check()
    names = sorted(view.sampler.histories)
    after = view.request.query_params.get("after", "")
    start = names.index(after) + 1 if after in names else 0
    some = names[start : start + QUEUES]
    asked = _asked(view)
    parts = await view.each(
        [view.queue(name) for name in some],
        lambda queue: _runs(view, queue.name, asked, "", ROWS_EACH),
        *("flow runs of all", *asked.values()),
    )
    rows = [(queue.name, run) for queue, (runs, _) in parts for run in runs]
    rows.sort(key=lambda row: row[1].ended or row[1].created, reverse=True)
    more = {queue.name for queue, (_, cursor) in parts if cursor} | {name for name, _ in rows[ROWS:]}
    return {
        **asked,
        "queue": None,
        "rows": rows[:ROWS],
        "following": some[-1] if start + QUEUES < len(names) else None,
        "is_first": start == 0,
        "queues": (start + 1, start + len(some), len(names)),
        "more": sorted(more),
    }


async def read_queue(view: View) -> dict[str, Any]:
    """Read a page of the runs of one queue."""
    name, asked = view.text("queue"), _asked(view)
    await view.history(name)
    after = view.request.query_params.get("after", "")
    runs, cursor = await _runs(view, name, asked, after, ROWS)
    return {
        **asked,
        "queue": name,
        "rows": [(name, run) for run in runs],
        "following": cursor or None,
        "is_first": not after,
        "more": [],
    }


def _asked(view: View) -> dict[str, str]:
    query = view.request.query_params
    return {
        "state": checked_query(query, "state", _STATES),
        "flow": query.get("flow", "").strip(),
        "find": query.get("find", "").strip(),
    }


async def _runs(
    view: View, name: str, asked: Mapping[str, str], after: str, count: int
) -> tuple[list[FlowRunView], str]:
    """Return runs of a queue, and the cursor of the next page: those with an id, an attribute, or all."""
    runs = view.queue(name).flow_runs
    state: Any = None if asked["state"] == _STATES[0] else asked["state"]
    attribute, equals, value = asked["find"].partition("=")

    async def read() -> tuple[list[FlowRunView], str]:
        if attribute and not equals:
            return [one for one in await runs.list([attribute], fields=()) if one is not None], ""
        given = {attribute: value} if equals else None
        flow = asked["flow"] or None
        return await runs.page(after=after, state=state, flow=flow, attributes=given, fields=(), count=count)

    found: tuple[list[FlowRunView], str] = await view.shared(
        ("flow runs", name, *asked.values(), after, count), read
    )
    return found


@dataclass(kw_only=True, frozen=True)
class DrawnStage:
    """A stage as it is drawn and listed."""

    plan: StagePlan
    view: StageView
    #: What it is called by, in CSS and for people: its state, or that of its item.
    state: str
    #: Its item, if that was looked at; which worker runs it, and since when.
    item: ItemView | None
    worker: str | None
    since: float | None
    #: How many of its children run, as workers say; None: these are too many to ask.
    running: int | None
    join: str
    #: The result as it may be shown; None: it is hidden, or there is none.
    result: str | None = None

    @property
    def bar(self) -> list[tuple[str, float, float]]:
        """The parts of the bar of its children: the state, and where each begins and how long it is, of 1."""
        children = self.view.children or {}
        total = children.get("total", 0)
        running = min(self.running or 0, children.get("unfinished", 0))
        parts = [(kind, children.get(kind, 0)) for kind in ("done", "failed", "cancelled")]
        found, at = [], 0.0
        for kind, count in [*parts, ("running", running)]:
            if total and count:
                found.append((kind, at, count / total))
                at += count / total
        return found

    @property
    def counts(self) -> list[tuple[int, str]]:
        """How many of its children are in each state."""
        children = self.view.children or {}
        running = min(self.running or 0, children.get("unfinished", 0))
        counts = {"done": 0, "failed": 0, "cancelled": 0} | {
            kind: count for kind, count in children.items() if kind not in {"total", "unfinished"}
        }
        rest = "unfinished" if self.running is None else "waiting"
        counts |= {"running": running, rest: children.get("unfinished", 0) - running}
        return [(count, kind) for kind, count in counts.items() if count]


async def read_run(view: View) -> dict[str, Any]:
    """Read a run and its stages, and what runs of it."""
    name, run_id = view.text("queue"), view.text("run")
    first = view.request.query_params.get("stage", "0")
    start = int(first) if first.isascii() and first.isdigit() and len(first) < 6 else 0
    queue = view.queue(name)
    data = bool(view.board.show_data)
    try:
        found = await view.shared(
            ("flow run", name, run_id, start), lambda: _read_run(view, queue, run_id, start, data=data)
        )
    except JobUnknown as error:
        raise NotFound(
            f"queue {name!r} has no flow run {run_id!r}: it was never started, or is kept no more"
        ) from error
    run: FlowRunView = found["run"]
    attributes = run.plan.attributes if run.plan is not None else {}
    return {
        **found,
        "name": name,
        "inputs": [(one, view.shown(name, bytes(text))) for one, text in attributes.items()],
        "results": {
            stage: view.shown(name, codec.encode(result)) for stage, result in found["results"].items()
        },
        "has_data": data,
        "item_pages": any(getattr(one, "path", "") == _ITEM for one in view.request.app.routes),
    }


async def _read_run(
    view: View, queue: AsyncWorkQueue, run_id: str, start: int, *, data: bool
) -> dict[str, Any]:
    run = await queue.flow_runs.get(run_id, fields=())
    assert run.plan is not None  # noqa: S101 - `get` reads it
    plan = run.plan.linked()
    some = plan.stages[start : start + STAGES]
    results: Mapping[str, Any] = {}
    if data and some:
        [again] = await queue.flow_runs.list([run_id], fields=[one.name for one in some])
        results = again.results if again is not None else {}
    known = view.board.queues.by_name()
    entered = [one for one in some if run.stages[one.name].state == "entered" and one.queue in known][:ITEMS]
    items = await asyncio.gather(
        *(known[one.queue].find(f"{run_id}/{one.name}", data=False) for one in entered)
    )
    state_of = {one.name: item for one, item in zip(entered, items, strict=True)}
    names = [*dict.fromkeys(one for stage in plan.stages for one in _queues_of(stage))]
    homes = [one for one in dict.fromkeys([queue.name, *names]) if one in known][:FLEETS]
    await view.sampler.look(homes)
    seen = [one and one.stats for one in map(view.sampler.histories.get, homes)]
    few = None not in seen and sum(len(one.workers) for one in seen if one) <= WORKERS
    holders = [one.holder for one in items if one and one.holder]
    asked = None if few else dict.fromkeys(homes, holders)
    workers = await Fleet(*(known[one] for one in homes)).workers(asked) if run.unfinished else []
    runs = {one.item_id: (worker.name, one.since) for worker in workers for one in worker.running}
    drawn = {
        one.name: _drawn(run_id, one, run.stages[one.name], state_of.get(one.name), runs, few=few)
        for one in some
    }
    layers = Layers({one.name: one.after for one in some})
    return {
        "run": run,
        "results": results,
        "stages": drawn,
        "drawings": (layers.draw(WIDE), layers.draw(NARROW)),
        "left_out": layers.left_out,
        "start": start,
        "total": len(plan.stages),
        "step": STAGES,
    }


def _queues_of(stage: StagePlan) -> Sequence[str]:
    return [one for one in (stage.queue, *(child.queue for child in stage.children[:1])) if one]


def _drawn(
    run_id: str,
    plan: StagePlan,
    view: StageView,
    item: ItemView | None,
    runs: Mapping[str, tuple[str, float]],
    *,
    few: bool,
) -> DrawnStage:
    path = f"{run_id}/{plan.name}"
    worker, since = runs.get(path, (None, None))
    state: str = view.state
    if plan.flow and item and item.state == "scheduled":  # until it is looked after again
        state, item = "running", None
    elif state == "entered" and plan.signal and not worker:
        state = "scheduled"
    elif state == "entered":
        state = "running" if worker else _RUNNING.get(item.state, item.state) if item else "waiting"
    elif state == "fanned out":
        state = "running"
    return DrawnStage(
        plan=plan,
        view=view,
        state=state,
        item=item,
        worker=worker,
        since=since,
        running=sum(one.startswith(f"{path}/") for one in runs) if few else None,
        join=", ".join(joined(plan.join, len(plan.after))).removeprefix("join: "),
    )


async def _cancel(view: View) -> int:
    return int(await view.queue(view.text("queue")).flow_runs.cancel(view.text("run")))


async def _retry(view: View) -> int:
    return int(await view.queue(view.text("queue")).flow_runs.retry(view.text("run")))


async def _signal(view: View) -> int:
    text = view.field("value") or "null"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("value", text, f'JSON, such as true or {{"by": "ann"}} ({error})') from error
    runs = view.queue(view.text("queue")).flow_runs
    try:
        return int(await runs.signal(view.text("run"), read_segment(view.field("signal")), value))
    except FlowRunEnded:  # since the page was shown
        return 0


async def _replay(view: View) -> None:
    await view.queue(view.text("queue")).flow_runs.replay(view.text("run"))


async def _run_of(view: View) -> FlowRunView:
    [run] = await view.queue(view.text("queue")).flow_runs.list([view.text("run")], fields=())
    if run is None:
        raise JobUnknown(view.text("run"), is_flow_run=True)
    return run


async def _ask_cancel(view: View) -> Question:
    run = await _run_of(view)
    done, total = run.progress
    return Question(
        text=f"Cancel flow run '{plain(run.id)}'? Of its {total:,} stages and children, {done:,} have ended. "
        f"What waits of the other {total - done:,} is removed, what runs is cancelled, and nothing follows.",
        button="Cancel the run",
    )


async def _ask_retry(view: View) -> Question:
    run = await _run_of(view)
    failed = sum(
        one.children["failed"] if one.children else one.state == "failed" for one in run.stages.values()
    )
    return Question(
        text=f"Do flow run '{plain(run.id)}' again from what has failed, {failed:,} of its stages and "
        "children? What is done stays. Their attempts begin at 1, and their dead letters are dropped.",
        button=f"Retry {failed:,}",
    )


async def _ask_replay(view: View) -> Question:
    run = await _run_of(view)
    count = sum("/" not in path for path in run.stages)
    return Question(
        text=f"Start a new flow run with the plan and the input of '{plain(run.id)}'? Its {count:,} stages "
        "are done once more, with all that they do outside. This run stays.",
        button="Start a new run",
    )


PAGE = Page(path="/flows", template="flows.html", read=read_all, menu="Flows")
OF_QUEUE = Page(path="/flows/{queue}", template="flows.html", read=read_queue)
RUN = Page(path="/flows/{queue}/{run}", template="flow_run.html", read=read_run)
ACTIONS = (
    Action(
        name="cancel_flow",
        path="/flows/{queue}/{run}/cancel_flow",
        call=_cancel,
        done="Cancelled flow runs: {}. One that has ended stays as it is.",
        ask=_ask_cancel,
    ),
    Action(
        name="retry_flow",
        path="/flows/{queue}/{run}/retry_flow",
        call=_retry,
        done="Flow runs that go on: {}. Only one that has failed is retried.",
        ask=_ask_retry,
    ),
    Action(
        name="signal_flow",
        path="/flows/{queue}/{run}/signal_flow",
        call=_signal,
        named=("signal",),
        done="Signals given: {}. A run takes each once, and in time.",
    ),
    Action(
        name="replay_flow",
        path="/flows/{queue}/{run}/replay_flow",
        call=_replay,
        done="A new flow run was started, with the same plan and input. It is the newest of its flow.",
        ask=_ask_replay,
    ),
)

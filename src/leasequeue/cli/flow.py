"""`leasequeue flow`: list, show, find, signal, cancel, retry, replay, delete and check flow runs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import (
    print_facts,
    print_json,
    print_line,
    print_lines,
    print_table,
    shortened,
)
from leasequeue.cli.fsck import print_findings
from leasequeue.cli.options import choice_option, format_time, number_option
from leasequeue.cli.server import AsJson, Code, fail, group_of, note, queue_command, report_changes
from leasequeue.errors import FlowRunEnded, FlowRunUnfinished, JobUnknown, UnknownSignal, summary_of
from leasequeue.item.codec import dump_compact
from leasequeue.queue.plans.reading import FLOW_RUN_STATES, FlowRunState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue.plans.reading import FlowRunView, StageView

app = group_of(help="List, show, find, signal, cancel, retry, replay, delete and check flow runs.")

RunId = Annotated[str, typer.Argument(metavar="ID", help="The id of the run.")]
RunIds = Annotated[list[str], typer.Argument(metavar="ID", help="The ids of runs.")]
Count = Annotated[int, number_option("How many.", minimum=1, maximum=1000)]


@app.command("ls")
@queue_command
async def list_runs(
    queue: AsyncWorkQueue,
    *,
    state: Annotated[FlowRunState | None, choice_option("Only those in this state.", FLOW_RUN_STATES)] = None,
    flow: Annotated[
        str | None,
        typer.Option("--flow", metavar="FLOW", help="Only those of this flow."),
    ] = None,
    count: Count = 100,
    as_json: AsJson = False,
) -> Code:
    """List flow runs, the newest first. With --json each run is a line."""
    views = await queue.flow_runs.list(state=state, flow=flow, count=count, fields=None if as_json else ())
    found = [view for view in views if view]
    _print_runs(queue.name, found, as_json=as_json)
    if not found and not as_json:
        note(f"{queue.name} has no {f'{state} ' if state else ''}runs{f' of {flow!r}' if flow else ''}")
    return Code.DONE


@app.command("show")
@queue_command
async def show_run(
    queue: AsyncWorkQueue,
    run_id: RunId,
    *,
    children: Annotated[bool, typer.Option("--children", help="Also show the children of stages.")] = False,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a diagram of its stages, as Mermaid text.")
    ] = False,
    as_json: AsJson = False,
) -> Code:
    """Show a flow run: its input, its stages with their states, and its results."""
    if mermaid and as_json:
        raise typer.BadParameter("cannot be combined with --json", param_hint="--mermaid")
    try:
        view = await queue.flow_runs.get(run_id, children=children)
    except JobUnknown:
        return fail(_absent(queue.name, run_id), Code.MISSED)
    if mermaid:
        from leasequeue.queue.plans.diagram import draw_run  # only then, to start quickly

        print_lines(draw_run(view))
    elif as_json:
        print_json({"queue": queue.name, **_document(view)})
    else:
        _print_run(view)
    return Code.DONE


def _print_run(view: FlowRunView) -> None:
    done, total = view.progress
    print_facts(
        {
            "id": view.id,
            "flow": view.flow or None,
            "state": view.state,
            "created": format_time(view.created),
            "ended": format_time(view.ended),
            "correlation": view.correlation,
            "part of": view.parent,
            "progress": f"{done:,}/{total:,}",
            "error": view.error and _error_line(view.error),
            **{f"@{name}": shortened(dump_compact(value)) for name, value in view.attributes.items()},
        }
    )
    print_line()
    print_table(
        ("stage", "state", "ended", "children", "result or error"),
        (_stage_row(path, stage, _signals_of(view)) for path, stage in view.stages.items()),
    )


@app.command()
@queue_command
async def find(
    queue: AsyncWorkQueue,
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The name of the flow.")],
    attributes: Annotated[
        list[str],
        typer.Argument(
            metavar="ATTRIBUTE", help="Names and values, such as user_id=62; a run must have all."
        ),
    ],
    *,
    count: Count = 100,
    as_json: AsJson = False,
) -> Code:
    """Find the runs of a flow by its attributes, the unfinished ones first. With --json each run is a line.

    Only attributes that the flow names in `lookup` are found, and of a list each element.
    """
    given: dict[str, Any] = dict(map(_attribute, attributes))
    views = await queue.flow_runs.find(flow, count=count, fields=None if as_json else (), **given)
    _print_runs(queue.name, views, as_json=as_json)
    if not views:
        return fail(f"{queue.name!r} has no run of {flow!r} with {' '.join(attributes)}", Code.MISSED)
    return Code.DONE


@app.command()
@queue_command
async def signal(
    queue: AsyncWorkQueue,
    run_id: RunId,
    signal_name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The name of the signal.")],
    value: Annotated[
        str, typer.Argument(metavar="JSON", help='Its value, such as \'{"by": "ann"}\' or true.')
    ] = "null",
    *,
    as_json: AsJson = False,
) -> Code:
    """Give a flow run a signal that a stage of it waits for, once. Stages that take it check its type."""
    try:
        given = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{value!r} is not JSON: {error}", param_hint="JSON") from error
    try:
        is_given = await queue.flow_runs.signal(run_id, signal_name, given)
    except JobUnknown:
        return fail(_absent(queue.name, run_id), Code.MISSED)
    except (UnknownSignal, FlowRunEnded) as error:
        return fail(str(error), Code.MISSED)
    missed = [] if is_given else [(run_id, f"run {run_id!r} has its signal {signal_name!r}, or is too late")]
    return report_changes(queue.name, "signalled", int(is_given), missed, as_json=as_json)


@app.command()
@queue_command
async def cancel(queue: AsyncWorkQueue, ids: RunIds, *, as_json: AsJson = False) -> Code:
    """Cancel flow runs: what waits is removed, what runs is cancelled, nothing follows."""
    return await _change(
        queue, "cancelled", queue.flow_runs.cancel, ids, "has ended already", as_json=as_json
    )


@app.command()
@queue_command
async def retry(queue: AsyncWorkQueue, ids: RunIds, *, as_json: AsJson = False) -> Code:
    """Retry failed runs from the stages that failed. What is done is not repeated."""
    return await _change(queue, "retried", queue.flow_runs.retry, ids, "has not failed", as_json=as_json)


@app.command()
@queue_command
async def replay(
    queue: AsyncWorkQueue,
    run_id: RunId,
    *,
    new_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the new run; a random one by default.")
    ] = None,
    as_json: AsJson = False,
) -> Code:
    """Start a new run with the plan and the input of another one, and print its id."""
    try:
        started = await queue.flow_runs.replay(run_id, new_id=new_id)
    except JobUnknown:
        return fail(_absent(queue.name, run_id), Code.MISSED)
    if as_json:
        print_json({"queue": queue.name, "id": started})
    else:
        print_line(started)
    return Code.DONE


@app.command()
@queue_command
async def delete(queue: AsyncWorkQueue, ids: RunIds, *, as_json: AsJson = False) -> Code:
    """Delete finished runs with their results and dead letters. Cancel an unfinished one first."""
    return await _change(queue, "deleted", queue.flow_runs.delete, ids, None, as_json=as_json)


@app.command()
@queue_command
async def check(
    queue: AsyncWorkQueue,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report, and repair nothing.")] = False,
    as_json: AsJson = False,
) -> Code:
    """Find runs that cannot continue, because another client has removed an item of theirs; repair them."""
    report = await queue.flow_runs.check(repair=not dry_run)
    return print_findings([(queue.name, one) for one in report.findings], as_json=as_json)


async def _change(
    queue: AsyncWorkQueue,
    verb: str,
    change: Callable[[str], Awaitable[bool]],
    ids: Sequence[str],
    refused: str | None,
    *,
    as_json: bool,
) -> Code:
    """Change runs one by one, and report which could not be changed: `refused` says why, or there is none."""
    missed: list[tuple[str, str]] = []
    for one in ids:
        try:
            changed = await change(one)
        except JobUnknown:
            missed.append((one, _absent(queue.name, one)))
        except FlowRunUnfinished as error:
            missed.append((one, f"run {error.run_id!r} is unfinished"))
        else:
            if not changed:
                missed.append((one, f"run {one!r} {refused}" if refused else _absent(queue.name, one)))
    return report_changes(queue.name, verb, len(ids) - len(missed), missed, as_json=as_json)


def _absent(queue: str, run_id: str) -> str:
    return f"{queue!r} has no run {run_id!r}"


def _attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(
            f"{text!r} is not a name and a value, such as user_id=62", param_hint="ATTRIBUTE"
        )
    return name, value


def _print_runs(queue: str, views: Sequence[FlowRunView], *, as_json: bool) -> None:
    if as_json:
        for view in views:
            print_json({"queue": queue, **_document(view)})
    elif views:
        print_table(("id", "flow", "state", "created", "ended", "progress", "error"), map(_row, views))


def _row(view: FlowRunView) -> list[Any]:
    done, total = view.progress
    error = view.error and _fitting(_error_line(view.error))
    created, ended = format_time(view.created), format_time(view.ended)
    return [view.id, view.flow or None, view.state, created, ended, f"{done:,}/{total:,}", error]


def _error_line(error: str) -> str:
    """Return the error of a run, which begins with the path of a stage, in one line."""
    path, _, text = error.partition(": ")
    return f"{path}: {summary_of(text)}"


def _signals_of(view: FlowRunView) -> set[str]:
    """Return the names of the stages that wait for signals."""
    stages = () if view.plan is None else view.plan.stages
    return {one.name for one in stages if one.signal and view.stages[one.name].state == "entered"}


def _stage_row(path: str, stage: StageView, signals: Collection[str]) -> list[Any]:
    children = None
    if stage.children is not None:
        children = ", ".join(f"{count:,} {what}" for what, count in stage.children.items() if count)
    elif stage.run is not None:
        children = f"run {stage.run}"
    shown = "waits for its signal" if path in signals else None
    if stage.until is not None:
        shown = f"{shown} until" if shown else "begins at"
        shown += f" {format_time(stage.until)}"
    if stage.error:
        shown = summary_of(stage.error)
    elif stage.result is not None:
        shown = dump_compact(stage.result)
    return [path, stage.state, format_time(stage.ended), children, shown and _fitting(shown)]


def _fitting(text: str) -> str:
    """Return a text as one line: on a terminal, where it must fit into the table, its beginning."""
    return shortened(text) if sys.stdout.isatty() else " ".join(text.split())


def _document(view: FlowRunView) -> dict[str, Any]:
    done, total = view.progress
    signals = _signals_of(view)
    return {
        "id": view.id,
        "flow": view.flow,
        "state": view.state,
        "created": format_time(view.created),
        "ended": format_time(view.ended),
        "correlation": view.correlation,
        "error": view.error,
        "parent": view.parent,
        "progress": {"done": done, "total": total},
        "attributes": dict(view.attributes),
        "stages": {
            path: {
                "state": stage.state,
                "ended": format_time(stage.ended),
                "until": format_time(stage.until),
                "signal": path in signals,
                "result": stage.result,
                "error": stage.error,
                "children": None if stage.children is None else dict(stage.children),
                "run": stage.run,
            }
            for path, stage in view.stages.items()
        },
    }

"""Mermaid diagrams of a flow and of a flow run.

Each stage is a box, in the order in which the stages were declared. Texts in the boxes may be anything: what
Mermaid or HTML would read is written as a number of its character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from leasequeue.durations import duration_text
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasequeue.queue.plans.plan import StagePlan
    from leasequeue.queue.plans.reading import FlowRunView, StageView

#: What kind of stage a box is: a call, one with children, one that chooses, one of another program, one that
#: waits for a signal, or a flow.
Shape: TypeAlias = Literal["stage", "fans", "chooses", "foreign", "signal", "flow"]

#: Words of all alphabets, with at most one mark or space between two of them.
_SAFE = re.compile(r"\w+(?:(?:[:,]? |[-./:])\w+)*")
#: The longest text of a line in a box.
MAX_TEXT = 120
#: The colours of states: of the box, and of its border.
_COLOURS = {
    "entered": ("#fff3cd", "#b8860b"),
    "done": ("#d4edda", "#2e7d32"),
    "failed": ("#f8d7da", "#b71c1c"),
    "cancelled": ("#e2e3e5", "#616161"),
    "skipped": ("#f5f5f5", "#9e9e9e"),
}
_BORDERS: dict[Shape, tuple[str, str]] = {
    "stage": ('["', '"]'),
    "fans": ('[["', '"]]'),
    "chooses": ('{{"', '"}}'),
    "foreign": ('[/"', '"/]'),
    "signal": ('(["', '"])'),
    "flow": ('(["', '"])'),
}


@dataclass(frozen=True, kw_only=True)
class Box:
    """A stage in a diagram.

    Attributes:
        lines: Its name, and what is said of it.
        after: The names of the stages that it follows.
        shape: What kind of stage it is.
        state: One of the states that have a colour; None: no colour.
    """

    lines: Sequence[str]
    after: Sequence[str]
    shape: Shape = "stage"
    state: str | None = None


def draw(boxes: Mapping[str, Box]) -> str:
    """Return the Mermaid diagram of stages."""
    ids = {name: f"s{place}" for place, name in enumerate(boxes)}
    lines = ["flowchart LR"]
    for name, box in boxes.items():
        opens, closes = _BORDERS[box.shape]
        lines.append(f"    {ids[name]}{opens}{'<br/>'.join(text(line) for line in box.lines)}{closes}")
    for name, box in boxes.items():
        lines += [
            f"    {ids[one]} {'-.->' if boxes[one].shape == 'chooses' else '-->'} {ids[name]}"
            for one in box.after
            if one in ids
        ]
    lines += _styles((ids[name], box.state) for name, box in boxes.items() if box.state is not None)
    return "\n".join(lines) + "\n"


def text(line: str) -> str:
    """Return a text as Mermaid shows it in a box, whatever is in it."""
    if len(line) > MAX_TEXT:
        line = line[: MAX_TEXT - 1] + "…"
    written: list[str] = []
    place = 0
    for found in _SAFE.finditer(line):
        written += [_escaped(line[place : found.start()]), found[0]]
        place = found.end()
    return "".join([*written, _escaped(line[place:])])


def _escaped(part: str) -> str:
    return "".join(f"#{ord(one)};" if one.isprintable() else "#65533;" for one in part)


def _styles(states: Iterable[tuple[str, str]]) -> list[str]:
    by_state: dict[str, list[str]] = {}
    for place, state in states:
        by_state.setdefault(state, []).append(place)
    return [
        line
        for state, places in by_state.items()
        for line in (
            f"    classDef {state} fill:{_COLOURS[state][0]},stroke:{_COLOURS[state][1]},color:#212121",
            f"    class {','.join(places)} {state}",
        )
    ]


def joined(join: str, count: int) -> list[str]:
    """Return the line that says how a stage joins those that it follows, if it is to be said."""
    shown = f"at least {join[2:]}" if join.startswith("n:") else join.replace("_", " ")
    return [f"join: {shown}"] if count > 1 or join != "all" else []


def waits_for(stage: StagePlan) -> list[str]:
    """Return the line that says what a stage waits for beside those that it follows, if it is to be said."""
    if stage.signal:
        return [f"signal, within {_duration(stage.delay_ms)}" if stage.delay_ms else "signal"]
    if isinstance(stage.at, str):
        return [f"at {stage.at.removeprefix('@')}"]
    if stage.at is not None:
        return [f"{_duration(stage.at)} after the start"]
    return [f"after {_duration(stage.delay_ms)}"] if stage.delay_ms else []


def _duration(ms: int) -> str:
    return duration_text(ms / 1000)


def shape_of(*, fans: bool, chooses: bool, foreign: bool, signal: bool, is_flow: bool) -> Shape:
    """Return the kind of box for a stage."""
    if signal:
        return "signal"
    if is_flow:
        return "flow"
    if chooses:
        return "chooses"
    if foreign:
        return "foreign"
    return "fans" if fans else "stage"


def draw_run(view: FlowRunView) -> str:
    """Return the Mermaid diagram of a flow run: a box for each stage, with its state and its children's."""
    if view.plan is None:
        raise InvalidArgument("view", view, "a run as runs.get returns it, with its plan")
    return draw({stage.name: _of_run(stage, view.stages[stage.name]) for stage in view.plan.linked().stages})


def _of_run(stage: StagePlan, view: StageView) -> Box:
    lines = [stage.name, view.state]
    if stage.flow:
        lines.append(f"flow {stage.flow}")
    if view.children is not None:
        counts = [f"{count} {what}" for what, count in view.children.items() if count and what != "total"]
        lines.append(", ".join([f"{view.children['total']} children", *counts]))
    if view.until is not None:
        until = view.until.isoformat(" ", "seconds")
        lines.append(f"waits for its signal until {until}" if stage.signal else f"begins at {until}")
    elif stage.signal and view.state == "entered":
        lines.append("waits for its signal")
    if view.error:
        lines.append(view.error.strip().splitlines()[-1])
    fans = bool(stage.children) or view.children is not None
    shape = shape_of(
        fans=fans, chooses=stage.choice, foreign=stage.foreign, signal=stage.signal, is_flow=bool(stage.flow)
    )
    state = "entered" if view.state == "fanned out" else view.state
    return Box(lines=lines, after=stage.after, shape=shape, state=state if state in _COLOURS else None)

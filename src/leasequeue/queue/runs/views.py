"""What `queue.runs` returns of flow runs: frozen, with named fields."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from leasequeue.errors import summary_of
from leasequeue.queue.cron import moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasequeue.queue.plan import Plan

#: Where a flow run is: unfinished, or ended in one of three ways.
RunState: TypeAlias = Literal["active", "completed", "failed", "cancelled"]
RUN_STATES: tuple[RunState, ...] = ("active", "completed", "failed", "cancelled")
#: Where a stage or a child is. `entered`: its item waits, is scheduled or leased.
StageState: TypeAlias = Literal[
    "not entered", "entered", "fanned out", "done", "failed", "cancelled", "skipped"
]
#: The states as they are stored; what was never entered has none.
_STATES: dict[bytes, StageState] = {
    b"w": "entered",
    b"x": "fanned out",
    b"d": "done",
    b"f": "failed",
    b"c": "cancelled",
    b"k": "skipped",
}
_ENDED = frozenset({"done", "failed", "cancelled", "skipped"})
#: The fields of a run that `runs_read` returns, and of each of its stages.
FACTS = (
    *("flow", "state", "created", "ended", "keep", "correlation", "level", "trace", "active", "error"),
    *("result", "lookup", "attributes", "stages"),
)
STAGE_FACTS = (b"s:", b"e:", b"t:", b"j:", b"m:")
#: The first numbers in `j:<path>` of a stage that has fanned out.
_COUNTS = ("total", "added", "done", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class StageView:
    """A stage of a flow run, or a child of one that has fanned out, at one instant."""

    state: StageState
    #: What its function has returned, from JSON; None if it was not asked for, or there is none.
    result: Any = None
    #: Why it has failed, or why it can never be entered.
    error: str | None = None
    #: When it ended.
    ended: datetime | None = None
    #: Of a stage that has fanned out, how many children it has (`total`), and how many are `unfinished`,
    #: `done`, `failed` and `cancelled`; else None.
    children: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class FlowRunView:
    """A flow run at one instant."""

    id: str
    #: The name of its flow; empty for chains and groups.
    flow: str
    state: RunState
    created: datetime
    #: When it was completed, failed or cancelled; None: it is active.
    ended: datetime | None
    correlation: str | None
    #: Why it has failed, in a line: the path of the first stage that nothing tolerates, and its error. That
    #: of the stage has the whole text.
    error: str | None
    #: How many of its stages and children have begun or wait to, and have not ended; not 0 for a while after
    #: it was cancelled, or has failed at once.
    unfinished: int
    #: Its input, from JSON, by name: what was asked for.
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Its stages in the order of the plan; after each, if asked for, its children: `<stage>/0`, `<stage>/1`.
    stages: Mapping[str, StageView] = field(default_factory=dict, repr=False)
    #: What it does; None: only `runs.get` reads that.
    plan: Plan | None = field(default=None, repr=False)

    @property
    def results(self) -> dict[str, Any]:
        """The results that were asked for, by stage; of children, by path."""
        return {path: view.result for path, view in self.stages.items() if view.result is not None}

    @property
    def progress(self) -> tuple[int, int]:
        """How many stages and children have ended, and how many there are now.

        Children of children count if they were asked for.
        """
        done = total = 0
        for path, view in self.stages.items():
            if "/" not in path:
                done, total = done + (view.state in _ENDED), total + 1
            if view.children is not None:
                done, total = done + _ended(view.children), total + view.children["total"]
        return done, total


def read_facts(run_id: str, reply: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of a view, as `runs_read` says; `stages` has those that it has returned."""
    facts = dict(zip(FACTS, reply, strict=False))
    ended = facts["ended"] if facts["state"] != b"active" else None
    return {
        "id": run_id,
        "flow": _text(facts["flow"]),
        "state": _text(facts["state"]),
        "created": moment(int(facts["created"] or 0)),
        "ended": moment(int(ended)) if ended else None,
        "correlation": _text(facts["correlation"]) or None,
        "error": _summary(_text(facts["error"])) if facts["state"] in {b"active", b"failed"} else None,
        "unfinished": int(facts["active"] or 0),
    }


def names_in(text: bytes | None) -> list[str]:
    """Return the names in a JSON list; none if another client has overwritten it."""
    try:
        names = json.loads(text or b"[]")
    except ValueError:
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def stage_view(facts: Sequence[bytes | None], result: bytes | None = None) -> StageView:
    """Return the view of a stage, from the fields `STAGE_FACTS`."""
    state, error, ended, counts, _ = facts
    has_ended = _STATES.get(state or b"") in _ENDED
    return StageView(
        state=_STATES.get(state or b"", "not entered"),
        result=json.loads(result) if result else None,
        error=_text(error) or None if state in (None, b"f") else None,
        ended=moment(int(ended)) if has_ended and ended and ended.isdigit() else None,
        children=child_counts(counts) if state and counts else None,
    )


def child_counts(text: bytes) -> dict[str, int] | None:
    """Return the counts of the children of a stage; None: another client has overwritten them."""
    numbers = text.split()
    if len(numbers) < len(_COUNTS):
        return None
    total, _, done, failed, cancelled = map(int, numbers[: len(_COUNTS)])
    unfinished = total - done - failed - cancelled
    return {
        "total": total,
        "unfinished": unfinished,
        "done": done,
        "failed": failed,
        "cancelled": cancelled,
    }


def _summary(error: str) -> str | None:
    """Return the error of a run in a line; None: it has none."""
    path, colon, text = error.partition(": ")
    return f"{path}{colon}{summary_of(text)}" or None


def _ended(counts: Mapping[str, int]) -> int:
    return counts["total"] - counts["unfinished"]


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")

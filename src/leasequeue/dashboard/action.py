"""What a viewer does: rights, confirmation, call, log line and the way back, for all actions in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.responses import RedirectResponse

from leasequeue.dashboard.rights import ACTIONS
from leasequeue.dashboard.view import read_segment
from leasequeue.errors import InvalidArgument, LeasequeueError
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from leasequeue.dashboard.rendering import Renderer
    from leasequeue.dashboard.view import View

#: The maximum size of a form, and the maximum number of its fields: the page that asks for confirmation
#: repeats them, and a quote is five bytes there.
MAX_FORM_BYTES, MAX_FIELDS = 64 << 10, 2_000
#: How a form is encoded; a request without a body need not say it.
FORM = "application/x-www-form-urlencoded"
#: The fields whose values are written as parts of a path: browsers change line breaks and NUL in others.
SEGMENTS = {"queue", "item", "schedule", "signal"}
#: The field of a form that was confirmed.
SURE = "sure"

log = Log("leasequeue.dashboard")


class Forbidden(LeasequeueError):
    """The viewer has no right to do this."""


@dataclass(kw_only=True, frozen=True)
class Question:
    """What is asked before an action that cannot be undone."""

    text: str
    #: What the button says that does it.
    button: str


@dataclass(kw_only=True, frozen=True)
class Unfinished:
    """What an action returns after a step: the page of its progress sends the form for the next one."""

    #: How many were changed so far, and looked at, of how many.
    done: int
    looked_at: int
    total: int
    #: What the form of the next step has.
    fields: dict[str, str]


@dataclass(kw_only=True, frozen=True)
class Action:
    """What a viewer may do, if its name is among the rights."""

    name: str
    path: str
    #: Does it, and returns how many were changed; None: there is nothing to count.
    call: Callable[[View], Awaitable[int | Unfinished | None]]
    #: What is said then, with `{}` for the number.
    done: str
    #: Returns what is asked first; None: it is done at once.
    ask: Callable[[View], Awaitable[Question]] | None = None
    #: The fields of the form that say what is acted on, beside the path; the log names them.
    named: tuple[str, ...] = ()
    #: Those of them that are also parts of the query of the page to which it goes back.
    kept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in ACTIONS:
            raise InvalidArgument("name", self.name, f"one of the actions in rights.py: {', '.join(ACTIONS)}")


async def answer(action: Action, view: View, render: Renderer) -> Response:
    """Do an action, or ask for confirmation.

    Raises:
        Forbidden: If the viewer may not do it, nor see what it would do.
    """
    if not view.may(action.name):
        allowed = "you may look, and change nothing" if not view.rights.actions else "you may do other things"
        raise Forbidden(f"{action.name!r} is not among your rights: {allowed}; nothing was changed")
    posted = view.request.method == "POST"
    view.form = _fields(await _body(view) if posted else view.request.scope["query_string"])
    back = view.path.rpartition("/")[0]
    kept = {name: view.field(name) for name in action.kept}
    if action.ask is not None and not (posted and view.form.get(SURE)):
        question = await action.ask(view)
        fields = [(name, value) for name, values in view.form.items() for value in values if name != SURE]
        return render.page(
            "confirm.html", view, {"question": question, "fields": fields, "back": view.link(back, **kept)}
        )
    if not posted:
        return RedirectResponse(view.link(back, **kept), 303)
    who = view.rights.who or (view.request.client.host if view.request.client else "unknown")
    path_parts = {part: view.text(part) for part in view.request.path_params}
    target = path_parts | {
        name: ", ".join(map(read_segment, view.form[name]) if name in SEGMENTS else view.form[name])
        for name in action.named
        if name in view.form
    }
    try:
        answered = await action.call(view)
    except LeasequeueError as error:
        log.warning("dashboard: %s could not do %s on %s: %s", who, action.name, target, error)
        raise
    step = answered if isinstance(answered, Unfinished) else None
    count = step.done if step else answered
    done = "done" if count is None else f"{count} so far" if step else count
    log.info("dashboard: %s did %s on %s: %s", who, action.name, target, done)
    view.board.reads.forget()
    if step:
        facts = {"action": action, "step": step, "back": view.link(back, **kept)}
        return render.page("progress.html", view, facts)
    if "queue" in path_parts:
        await view.sampler.sample(path_parts["queue"])  # so that the page shows what has changed
    return RedirectResponse(view.link(back, **kept, did=action.path.rpartition("/")[2], count=count), 303)


async def _body(view: View) -> bytes:
    kind = view.request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    if kind != FORM:
        raise InvalidArgument("form", kind, FORM)
    body = b""
    async for chunk in view.request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            break
    return body


def _fields(body: bytes) -> dict[str, list[str]]:
    if len(body) > MAX_FORM_BYTES:
        raise InvalidArgument("form", "a longer one", f"at most {MAX_FORM_BYTES:,} bytes")
    try:
        given: dict[str, list[str]] = parse_qs(
            body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="surrogateescape"
        )
    except ValueError as error:
        raise InvalidArgument(
            "form", body, f"a URL-encoded form with at most {MAX_FIELDS:,} fields"
        ) from error
    return given


def notice_of(view: View, actions: dict[str, Action]) -> str | None:
    """Return what was done, if the page is the one that follows an action; the query chooses no text."""
    query: Any = view.request.query_params
    action = actions.get(query.get("did", ""))
    count = query.get("count", "")
    is_number = count.isascii() and count.isdigit() and len(count) < 20
    if action is None or ("{}" in action.done and not is_number):
        return None
    return action.done.replace("{}", f"{int(count):,}" if is_number else "")

"""What the clients of the explored queue can do: the calls of ours, each one script, and what others do.

A client of another library sends single commands, and may stop after any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.lua.space import leased as rows_leased
from tests.stateful.explorer.state import (
    FOREIGN,
    FREE,
    HOLDERS,
    LIVE,
    OURS,
    PREFIX,
    RETURNED,
    STALE,
    Action,
    DeepClean,
    Program,
    State,
    Token,
    kept,
    ms,
    next_end,
    put,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stateful.explorer.engine import Command
    from tests.stateful.explorer.queue import Board
    from tests.stateful.explorer.state import Keys, Memory

DATA = "data"
#: How long things last, in half units. A foreign lease outlasts a delay, and a delay a lease of ours; but
#: they begin at different times, and so end in any order.
LEASE, RENEWED, DELAY, REGISTERED, GRACE, FOREIGN_LEASE = 80, 100, 120, 40, 20, 160


class Call(NamedTuple):
    """A call about one item, taken if a search has its groups: what follows the id (and the token)."""

    name: str
    how: str
    groups: str
    script: str
    row: tuple[int | str, ...]


_OF_ITEM = (
    Call("add", "", "add", "add_items", (DATA, 0, 0)),
    Call("add", "unique", "unique", "add_items", (DATA, 0, 1)),
    Call("add", "delay", "delay", "add_items", (DATA, ms(DELAY), 0)),
    Call("add", "unique delay", "unique delay", "add_items", (DATA, ms(DELAY), 1)),
    Call("add", "twice", "twice", "add_items", (DATA, 0, 1)),
    Call("cancel", "", "cancel", "cancel_many", (0,)),
    Call("requeue", "", "dead", "requeue_many", ()),
    Call("drop", "", "dead", "drop_many", ()),
)
_OF_HOLDER = (
    Call("complete", "", "", "complete_many", (0,)),
    Call("renew", "", "", "renew_many", (ms(RENEWED),)),
    Call("complete", "fenced", "fenced", "complete_many", (1,)),
    Call("release", "end", "return", "release_many", (0, 0)),
    Call("release", "front", "return", "release_many", (0, 1)),
    Call("fail", "now", "return", "fail_many", (0, "error")),
    Call("release", "delay", "return delay", "release_many", (ms(DELAY), 0)),
    Call("fail", "delay", "return delay", "fail_many", (ms(DELAY), "error")),
    Call("fail", "dead", "dead", "fail_many", (-1, "error")),
)
_CALLS = {(call.name, call.how): call for call in (*_OF_ITEM, *_OF_HOLDER)}


# ---------------------------------------------------------------------------------------- what can be done


def enabled(state: State, groups: frozenset[str]) -> Iterator[Action]:
    """Yield the actions of these groups that can be taken in a state."""
    for item in range(len(state.keys.items)):
        yield from _of_item(state, item, groups)
    for session in range(len(state.memory.blocking)):
        yield from _of_session(state, session, groups)
    if "clean" in groups:
        yield Action("light_clean")
    if "deep" in groups:
        yield Action("deep_clean")
    if next_end(state) > state.now_ms:
        yield Action("clock")
    if "foreign" in groups:
        for slot, program in enumerate(state.memory.foreign):
            yield from _foreign_actions(state.keys, slot, program)


def _of_item(state: State, item: int, groups: frozenset[str]) -> Iterator[Action]:
    for call in _OF_ITEM:
        if groups.issuperset(call.groups.split()) and (call.groups != "dead" or state.keys.items[item].dead):
            yield Action(call.name, item, how=call.how)
    for token in range(len(state.memory.tokens[item])):
        for call in _OF_HOLDER:
            if groups.issuperset(call.groups.split()):
                yield Action(call.name, item, token, call.how)


def _of_session(state: State, session: int, groups: frozenset[str]) -> Iterator[Action]:
    yield Action("lease", session, how="1")
    if len(state.keys.items) > 1:
        yield Action("lease", session, how="2")
    if "wait" in groups:
        for process, end in enumerate(state.memory.blocking[session]):
            yield Action("register", session, process)
            yield Action("leave", session, process)
            if end > state.now_ms and state.keys.queue:
                yield Action("move", session, process)


# --------------------------------------------------------------------------------------- which command it is


def command(board: Board, action: Action, state: State) -> Command | None:
    """Return the command that an action sends; None if it sends none that writes."""
    if action.name == "foreign":
        return _foreign_command(board, action, state)
    if action.name in _OTHERS:
        return _OTHERS[action.name](board, action, state)
    call = _CALLS[action.name, action.how]
    row: list[int | str] = [board.ids[action.of]]
    if call in _OF_HOLDER:
        row.append(state.memory.tokens[action.of][-1 - action.token].number)
    rows = [*row, *call.row] * (2 if action.how == "twice" else 1)
    session = HOLDERS[OURS] if action.name == "renew" else 0
    return board.script(call.script, state.now_ms, *rows, session=session)


def _deep_clean(board: Board, state: State) -> Command:
    clean = state.memory.deep_clean
    if clean.step < 2:
        return board.script(("deep_clean_scan", "deep_clean_walk")[clean.step], begin_of(state))
    ids = [board.ids[item] for item in clean.suspects]
    when = {"grace_ms": ms(GRACE), "started_ms": clean.began_ms}
    # With one look at the lists, and no marks.
    return board.script("deep_clean_restore", state.now_ms, *ids, step="restore", clean="", **when)


def begin_of(state: State) -> int:
    """Return the time of a step of a deep clean: the first is later than all that was leased before."""
    return state.now_ms + (state.memory.deep_clean.step == 0)


_OTHERS: dict[str, Callable[[Board, Action, State], Command | None]] = {
    "clock": lambda *_: None,
    "deep_clean": lambda board, _, state: _deep_clean(board, state),
    "lease": lambda board, action, state: board.script(
        "lease_many", state.now_ms, action.how, ms(LEASE), session=action.of
    ),
    "light_clean": lambda board, _, state: board.script(
        "light_clean", state.now_ms, grace_ms=ms(GRACE), started_ms=state.now_ms
    ),
    "register": lambda board, action, state: board.script(
        "register", state.now_ms, session=action.of, keep_ms=ms(REGISTERED), lease_ms=""
    ),
    "leave": lambda board, action, state: board.script(
        "leave",
        state.now_ms,
        session=action.of,
        stays=int(state.memory.blocking[action.of][action.token] > state.now_ms),
    ),
    "move": lambda board, action, _: (
        *("BLMOVE", f"{PREFIX}:queue", f"{PREFIX}:inbox:{board.sessions[action.of]}"),
        *("RIGHT", "LEFT", 1),
    ),
}


# ---------------------------------------------------------------------------------- what the clients remember


def after(action: Action, state: State, reply: Any, keys: Keys, text: bytes) -> State:
    """Return the state after an action: the keys as they are now, and what the clients remember of it.

    Args:
        action: The action.
        state: The state before.
        reply: Its reply, as `understood`.
        keys: The keys after it.
        text: The keys as they were dumped.
    """
    memory, now = state.memory, state.now_ms
    if action.name == "clock":
        return state._replace(now_ms=next_end(state), keys=keys)
    if action.name == "foreign":
        memory = _after_foreign(action, state, reply)
    elif action.name == "lease":
        for item, number in reply:
            memory = _given(memory, item, Token(number, LIVE, now + ms(LEASE)))
    elif action.name == "deep_clean":
        now = begin_of(state)
        memory = memory._replace(deep_clean=_next_step(memory.deep_clean, reply, now))
    elif action.name in {"register", "move"}:
        end = now + ms(REGISTERED) if action.name == "register" else 0
        ends = put(memory.blocking[action.of], action.token, end)
        memory = memory._replace(blocking=put(memory.blocking, action.of, ends))
    elif action.name in {"renew", "release", "fail"} and reply[0]:
        tokens = memory.tokens[action.of]
        place = len(tokens) - 1 - action.token
        status, end = (LIVE, now + ms(RENEWED)) if action.name == "renew" else (RETURNED, 0)
        if tokens[place].status == STALE:
            status = STALE
        changed = put(tokens, place, Token(tokens[place].number, status, end))
        memory = memory._replace(tokens=put(memory.tokens, action.of, changed))
    memory = _after_ends(action, state.keys, keys, memory)
    memory = memory._replace(tokens=tuple(kept(tokens) for tokens in memory.tokens))
    return State(keys, memory, now, text)


def understood(board: Board, action: Action, reply: Any) -> Any:
    """Return a reply with numbers in place of ids; of a lease, pairs of an item and a token."""
    if action.name == "lease":
        return leased(board, reply)
    if action.name == "deep_clean":
        return [board.number[one.decode()] for one in _ids_of_deep_clean(reply)]
    if action.name == "foreign" and isinstance(reply, bytes):
        return board.number.get(reply.decode(), -1)
    return reply


def _ids_of_deep_clean(reply: Any) -> list[bytes]:
    """Return the ids in a reply of a step of a deep clean; a scan's are preceded by the time and a cursor."""
    ids = reply if isinstance(reply, list) else []
    return ids[2:] if ids and isinstance(ids[0], int) else ids


def leased(board: Board, reply: Any) -> list[tuple[int, int]]:
    """Return the items and tokens of a reply of `lease_many`."""
    return [(board.number[one.decode()], token) for one, _, token, _ in rows_leased(reply)]


def _given(memory: Memory, item: int, token: Token) -> Memory:
    deep_clean = memory.deep_clean
    if item in deep_clean.suspects:
        deep_clean = deep_clean._replace(leased=tuple(sorted({*deep_clean.leased, item})))
    tokens = put(memory.tokens, item, (*memory.tokens[item], token))
    return memory._replace(tokens=tokens, deep_clean=deep_clean)


def _next_step(deep_clean: DeepClean, items: list[int], now_ms: int) -> DeepClean:
    step, suspects, leased_, began_ms = deep_clean
    began_ms = began_ms or now_ms
    suspects = tuple(sorted(items)) if step == 0 else tuple(one for one in suspects if one not in items)
    if step == 2 or not suspects:
        return DeepClean()
    return DeepClean(step + 1, suspects, tuple(one for one in leased_ if one in suspects), began_ms)


def _after_ends(action: Action, before: Keys, keys: Keys, memory: Memory) -> Memory:
    """Return the memory with tokens stale whose incarnation has ended."""
    for item, (was, now) in enumerate(zip(before.items, keys.items, strict=True)):
        replaced = (
            action.name == "add" and action.of == item and ("unique" in action.how or action.how == "twice")
        )
        if (was.exists and not now.exists) or replaced:
            tokens = tuple(token._replace(status=STALE, end=0) for token in memory.tokens[item])
            memory = memory._replace(tokens=put(memory.tokens, item, tokens))
        if was.exists != now.exists or replaced:
            by_foreign = action.name == "foreign" and now.exists and was.first
            memory = memory._replace(blurred=put(memory.blurred, item, int(bool(by_foreign))))
    return memory


# ------------------------------------------------------------------------------- clients of another library

#: The steps of foreign clients, of the versions 0.1 (old) and 0.3 (new) of redis-work-queue. `look` is the
#: reads with which a cleaner decides; a `?` ends a program, or skips one step (`+`), if nothing was removed.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "idle": (),
    "add": ("SET item", "LPUSH queue"),
    "lease_old": ("RPOPLPUSH", "SETEX leased_by_session"),
    "lease_new": ("RPOPLPUSH", "GET", "SETEX lease"),
    "held_old": (),
    "held_new": (),
    "complete_old": ("LREM processing?", "DEL item", "DEL leased_by_session"),
    "complete_new": ("DEL item", "DEL lease", "LREM processing"),
    "clean_old": ("look", "LPUSH cleaning", "LREM processing+", "LPUSH queue", "LREM cleaning"),
    "forgotten_old": ("look", "LPUSH queue", "LREM cleaning"),
    "clean_new": ("look", "LREM processing", "LPUSH queue"),
}
NAMES = list(PROGRAMS)


def _foreign_actions(keys: Keys, slot: int, program: Program) -> Iterator[Action]:
    """Yield the next step of a foreign client, and the first steps of another one, if the client is dead."""
    name = NAMES[program.name]
    if PROGRAMS[name]:
        yield Action("foreign", slot, how="next")
    if name in {"held_old", "held_new"}:
        yield Action("foreign", slot, program.item, name.replace("held", "complete"))
    if keys.queue:
        yield Action("foreign", slot, how="lease_old")
        yield Action("foreign", slot, how="lease_new")
    for item, one in enumerate(keys.items):
        yield Action("foreign", slot, item, "add")
        if item in keys.processing and one.leased_by == FREE:
            yield Action("foreign", slot, item, "clean_old")
        if item in keys.cleaning and one.leased_by == FREE and item not in (*keys.queue, *keys.processing):
            yield Action("foreign", slot, item, "forgotten_old")
        if one.exists and one.lease == FREE and item not in keys.queue:
            yield Action("foreign", slot, item, "clean_new")


def _foreign_step(action: Action, state: State) -> tuple[Program, str]:
    """Return the program in which a foreign client is, and the step that it makes now."""
    if action.how == "next":
        program = state.memory.foreign[action.of]
    else:
        item = -1 if action.how.startswith("lease") else action.token
        program = Program(NAMES.index(action.how), 0, item)
    return program, PROGRAMS[NAMES[program.name]][program.step]


def _foreign_command(board: Board, action: Action, state: State) -> Command | None:
    program, step = _foreign_step(action, state)
    verb, _, key = step.rstrip("?+").partition(" ")
    if verb in {"look", "GET"}:
        return None  # it reads, and what it sees is in the state
    if verb == "RPOPLPUSH":
        return (verb, f"{PREFIX}:queue", f"{PREFIX}:processing")
    item = board.ids[program.item]
    if verb == "LREM":
        return (verb, f"{PREFIX}:{key}", 0, item)
    if verb == "LPUSH":
        return (verb, f"{PREFIX}:{key}", item)
    name = f"{PREFIX}:{key}:{item}"
    if verb == "SETEX":
        return (verb, name, ms(FOREIGN_LEASE) // 1000, HOLDERS[FOREIGN])
    return (verb, name, DATA) if verb == "SET" else (verb, name)


def _after_foreign(action: Action, state: State, reply: Any) -> Memory:
    program, step = _foreign_step(action, state)
    name, steps = NAMES[program.name], PROGRAMS[NAMES[program.name]]
    if step == "RPOPLPUSH":
        program = program._replace(item=reply)
    at = program.step + 1
    if step.endswith("?") and reply == 0:
        at = len(steps)
    elif step.endswith("+") and reply == 0:
        at += 1
    elif step == "GET" and not state.keys.items[program.item].exists:
        at, name = len(steps), "idle"
    if at < len(steps):
        program = program._replace(step=at)
    elif name.startswith("lease"):
        program = Program(NAMES.index(name.replace("lease", "held")), 0, program.item)
    else:
        program = Program()
    return state.memory._replace(foreign=put(state.memory.foreign, action.of, program))

"""What the clients of the explored queue can do: the calls of ours, each one script, and what others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.lua.space import leased as rows_leased
from tests.stateful.explorer.foreign import (
    NAMES,
    after_foreign,
    foreign_actions,
    foreign_command,
    foreign_step,
)
from tests.stateful.explorer.server import DATA, HOLDERS, PREFIX, Command, ms
from tests.stateful.explorer.state import (
    LIVE,
    NONE,
    OURS,
    RETURNED,
    STALE,
    Action,
    DeepClean,
    State,
    Token,
    advance,
    next_end,
    put,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stateful.explorer.server import Board
    from tests.stateful.explorer.state import Keys, Memory

#: How long things last, in half units. A foreign lease outlasts a delay, and a delay a lease of ours; but
#: they begin at different times, and so end in any order.
LEASE, RENEWED, DELAY, REGISTERED, GRACE = 80, 100, 120, 40, 20


#: How items are added, and the groups of actions that this needs.
_ADDS = {
    "": {"add"},
    "unique": {"unique"},
    "delay": {"delay"},
    "unique delay": {"unique", "delay"},
    "twice": {"twice"},
}


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
    if next_end(state):
        yield Action("clock")
    if "foreign" in groups:
        for slot, program in enumerate(state.memory.foreign):
            yield from foreign_actions(state.keys, slot, program)


def _of_item(state: State, item: int, groups: frozenset[str]) -> Iterator[Action]:
    for how, needed in _ADDS.items():
        if needed <= groups:
            yield Action("add", item, how=how)
    for token in range(len(state.memory.tokens[item])):
        yield from _of_holder(item, token, groups)
    if "cancel" in groups:
        yield Action("cancel", item)
    if "dead" in groups and state.keys.items[item].dead:
        yield Action("requeue", item)
        yield Action("drop", item)


def _of_session(state: State, session: int, groups: frozenset[str]) -> Iterator[Action]:
    yield Action("lease", session, how="1")
    if len(state.keys.items) > 1:
        yield Action("lease", session, how="2")
    if "wait" in groups:
        for process, end in enumerate(state.memory.blocking[session]):
            yield Action("register", session, process)
            yield Action("leave", session, process)
            if end != NONE and state.keys.queue:
                yield Action("move", session, process)


def _of_holder(item: int, token: int, groups: frozenset[str]) -> Iterator[Action]:
    yield Action("complete", item, token)
    yield Action("renew", item, token)
    if "fenced" in groups:
        yield Action("complete", item, token, "fenced")
    if "return" in groups:
        yield Action("release", item, token, "end")
        yield Action("release", item, token, "front")
        yield Action("fail", item, token, "now")
        if "delay" in groups:
            yield Action("release", item, token, "delay")
            yield Action("fail", item, token, "delay")
    if "dead" in groups:
        yield Action("fail", item, token, "dead")


# --------------------------------------------------------------------------------------- which command it is


def command(board: Board, action: Action, state: State, now_ms: int) -> Command | None:
    """Return the command that an action sends; None if it sends none that writes."""
    if action.name == "foreign":
        return foreign_command(board, action, state)
    return None if action.name == "clock" else _COMMANDS[action.name](board, action, state, now_ms)


def _add(board: Board, action: Action, _: State, now_ms: int) -> Command:
    delay, unique = ms(DELAY) if "delay" in action.how else 0, int(action.how in {"unique", "unique delay"})
    row = (board.layout.ids[action.of], DATA, delay)
    rows = (*row, 1) * 2 if action.how == "twice" else (*row, unique)
    return board.script("add_items", *rows, now_ms=now_ms)


def _lease(board: Board, action: Action, _: State, now_ms: int) -> Command:
    return board.script("lease_many", action.how, ms(LEASE), session=action.of, now_ms=now_ms)


def _light_clean(board: Board, _: Action, __: State, now_ms: int) -> Command:
    return board.script("light_clean", now_ms=now_ms, grace_ms=ms(GRACE), started_ms=now_ms)


def _deep_clean(board: Board, _: Action, state: State, now_ms: int) -> Command:
    step, suspects, _leased = state.memory.deep_clean
    if step < 2:
        return board.script(("deep_clean_scan", "deep_clean_walk")[step], now_ms=now_ms)
    ids = [board.layout.ids[item] for item in suspects]
    when = {"now_ms": now_ms, "grace_ms": ms(GRACE), "started_ms": board.started_ms}
    # With one look at the lists, and no marks.
    return board.script("deep_clean_restore", *ids, step="restore", clean="", **when)


def _dead_letter(board: Board, action: Action, _: State, now_ms: int) -> Command:
    return board.script(f"{action.name}_many", board.layout.ids[action.of], now_ms=now_ms)


def _cancel(board: Board, action: Action, _: State, now_ms: int) -> Command:
    return board.script("cancel_many", board.layout.ids[action.of], 0, now_ms=now_ms)


def _register(board: Board, action: Action, _: State, now_ms: int) -> Command:
    return board.script("register", session=action.of, now_ms=now_ms, keep_ms=ms(REGISTERED), lease_ms="")


def _leave(board: Board, action: Action, state: State, now_ms: int) -> Command:
    stays = state.memory.blocking[action.of][action.token] != NONE
    return board.script("leave", session=action.of, stays=int(stays), now_ms=now_ms)


def _move(board: Board, action: Action, _: State, __: int) -> Command:
    inbox = f"{PREFIX}:inbox:{board.layout.sessions[action.of]}"
    return ("BLMOVE", f"{PREFIX}:queue", inbox, "RIGHT", "LEFT", 1)


def _held(board: Board, action: Action, state: State) -> tuple[str, int]:
    """Return the id and the token of a holder."""
    return board.layout.ids[action.of], state.memory.tokens[action.of][-1 - action.token].number


def _complete(board: Board, action: Action, state: State, now_ms: int) -> Command:
    fenced = int(action.how == "fenced")
    return board.script("complete_many", *_held(board, action, state), fenced, now_ms=now_ms)


def _renew(board: Board, action: Action, state: State, now_ms: int) -> Command:
    held = _held(board, action, state)
    return board.script("renew_many", *held, ms(RENEWED), session=HOLDERS[OURS], now_ms=now_ms)


def _release(board: Board, action: Action, state: State, now_ms: int) -> Command:
    delay, front = ms(DELAY) if action.how == "delay" else 0, int(action.how == "front")
    return board.script("release_many", *_held(board, action, state), delay, front, now_ms=now_ms)


def _fail(board: Board, action: Action, state: State, now_ms: int) -> Command:
    delay = {"now": 0, "delay": ms(DELAY), "dead": -1}[action.how]
    return board.script("fail_many", *_held(board, action, state), delay, "error", now_ms=now_ms)


_COMMANDS: dict[str, Callable[[Board, Action, State, int], Command]] = {
    "add": _add,
    "lease": _lease,
    "cancel": _cancel,
    "light_clean": _light_clean,
    "deep_clean": _deep_clean,
    "requeue": _dead_letter,
    "drop": _dead_letter,
    "register": _register,
    "leave": _leave,
    "move": _move,
    "complete": _complete,
    "renew": _renew,
    "release": _release,
    "fail": _fail,
}


# ---------------------------------------------------------------------------------- what the clients remember


def after(action: Action, state: State, reply: Any, keys: Keys) -> State:
    """Return the state after an action: the keys as they are now, and what the clients remember of it."""
    memory = state.memory
    if action.name == "clock":
        return advance(state, next_end(state))
    if action.name == "foreign":
        memory = after_foreign(action, state, reply)
    elif action.name == "lease":
        for item, number in reply:
            memory = _given(memory, item, Token(number, LIVE, LEASE))
    elif action.name == "deep_clean":
        memory = memory._replace(deep_clean=_next_step(memory.deep_clean, reply))
    elif action.name in {"register", "move"}:
        end = REGISTERED if action.name == "register" else NONE
        memory = memory._replace(
            blocking=put(memory.blocking, action.of, put(memory.blocking[action.of], action.token, end))
        )
    elif action.name in {"renew", "release", "fail"} and reply[0]:
        tokens = memory.tokens[action.of]
        place = len(tokens) - 1 - action.token
        status, end = (LIVE, RENEWED) if action.name == "renew" else (RETURNED, NONE)
        if tokens[place].status == STALE:
            status = STALE
        changed = put(tokens, place, Token(tokens[place].number, status, end))
        memory = memory._replace(tokens=put(memory.tokens, action.of, changed))
    return State(keys, _after_ends(action, state.keys, keys, memory))


def understood(board: Board, action: Action, reply: Any) -> Any:
    """Return a reply with numbers in place of ids; of a lease, pairs of an item and a token."""
    if action.name == "lease":
        return leased(board, reply)
    if action.name == "deep_clean":
        return [board.layout.number[one.decode()] for one in _ids_of_deep_clean(reply)]
    if action.name == "foreign" and isinstance(reply, bytes):
        return board.layout.number.get(reply.decode(), -1)
    return reply


def _ids_of_deep_clean(reply: Any) -> list[bytes]:
    """Return the ids in a reply of a step of a deep clean; a scan's are preceded by the time and a cursor."""
    ids = reply if isinstance(reply, list) else []
    return ids[2:] if ids and isinstance(ids[0], int) else ids


def leased(board: Board, reply: Any) -> list[tuple[int, int]]:
    """Return the items and tokens of a reply of `lease_many`."""
    return [(board.layout.number[one.decode()], token) for one, _, token, _ in rows_leased(reply)]


def _given(memory: Memory, item: int, token: Token) -> Memory:
    deep_clean = memory.deep_clean
    if item in deep_clean.suspects:
        deep_clean = deep_clean._replace(leased=tuple(sorted({*deep_clean.leased, item})))
    tokens = put(memory.tokens, item, (*memory.tokens[item], token))
    return memory._replace(tokens=tokens, deep_clean=deep_clean)


def _next_step(deep_clean: DeepClean, items: list[int]) -> DeepClean:
    step, suspects, leased_ = deep_clean
    suspects = tuple(sorted(items)) if step == 0 else tuple(one for one in suspects if one not in items)
    if step == 2 or not suspects:
        return DeepClean()
    return DeepClean(step + 1, suspects, tuple(one for one in leased_ if one in suspects))


def _after_ends(action: Action, before: Keys, keys: Keys, memory: Memory) -> Memory:
    """Return the memory with tokens stale whose incarnation has ended."""
    for item, (was, now) in enumerate(zip(before.items, keys.items, strict=True)):
        replaced = (
            action.name == "add" and action.of == item and ("unique" in action.how or action.how == "twice")
        )
        if (was.exists and not now.exists) or replaced:
            tokens = tuple(token._replace(status=STALE, end=NONE) for token in memory.tokens[item])
            memory = memory._replace(tokens=put(memory.tokens, item, tokens))
        if was.exists != now.exists or replaced:
            by_foreign = action.name == "foreign" and now.exists and was.first
            memory = memory._replace(blurred=put(memory.blurred, item, int(bool(by_foreign))))
    return memory


def describe(board: Board, action: Action, state: State) -> str:
    """Return what an action is, in words."""
    ids, sessions = board.layout.ids, board.layout.sessions
    if action.name == "foreign":
        program, step = foreign_step(action, state)
        item = repr(ids[program.item]) if program.item >= 0 else ""
        return f"foreign client {action.of}, {NAMES[program.name]} {item}: {step}"
    if action.name in {"lease", "register", "leave", "move"}:
        process = f" (process {action.token})" if len(state.memory.blocking[action.of]) > 1 else ""
        return f"session {sessions[action.of]}{process}: {action.name} {action.how}".rstrip()
    if action.name == "deep_clean":
        return f"deep clean, step {state.memory.deep_clean.step + 1}"
    if action.name in {"light_clean", "clock"}:
        return action.name.replace("_", " ")
    return f"{action.name} {ids[action.of]!r} {action.how}".rstrip()

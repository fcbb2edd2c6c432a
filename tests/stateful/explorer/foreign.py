"""What a client of another library does: single commands, and it may stop after any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.stateful.explorer.server import DATA, HOLDERS, PREFIX, ms
from tests.stateful.explorer.state import FOREIGN, FREE, Action, Program, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stateful.explorer.server import Board, Command
    from tests.stateful.explorer.state import Keys, Memory, State

#: How long a foreign lease lasts, in half units.
FOREIGN_LEASE = 160
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


def foreign_actions(keys: Keys, slot: int, program: Program) -> Iterator[Action]:
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


def foreign_step(action: Action, state: State) -> tuple[Program, str]:
    """Return the program in which a foreign client is, and the step that it makes now."""
    if action.how == "next":
        program = state.memory.foreign[action.of]
    else:
        item = -1 if action.how.startswith("lease") else action.token
        program = Program(NAMES.index(action.how), 0, item)
    return program, PROGRAMS[NAMES[program.name]][program.step]


def foreign_command(board: Board, action: Action, state: State) -> Command | None:
    program, step = foreign_step(action, state)
    verb, _, key = step.rstrip("?+").partition(" ")
    if verb in {"look", "GET"}:
        return None  # it reads, and what it sees is in the state
    if verb == "RPOPLPUSH":
        return (verb, f"{PREFIX}:queue", f"{PREFIX}:processing")
    item = board.layout.ids[program.item]
    if verb == "LREM":
        return (verb, f"{PREFIX}:{key}", 0, item)
    if verb == "LPUSH":
        return (verb, f"{PREFIX}:{key}", item)
    name = f"{PREFIX}:{key}:{item}"
    if verb == "SETEX":
        return (verb, name, ms(FOREIGN_LEASE) // 1000, HOLDERS[FOREIGN])
    return (verb, name, DATA) if verb == "SET" else (verb, name)


def after_foreign(action: Action, state: State, reply: Any) -> Memory:
    program, step = foreign_step(action, state)
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

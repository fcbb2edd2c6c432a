"""Explores one queue: a few ids, sessions and foreign clients. A violation is shown by its path."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING

from tests.stateful.explorer.actions import after, begin_of, command, enabled, understood
from tests.stateful.explorer.checks import Recovery, counted, violations
from tests.stateful.explorer.engine import Broken, Fault, Found, Server, checked, composed, pack
from tests.stateful.explorer.state import (
    NOW_MS,
    PREFIX,
    UNIT_MS,
    Keys,
    Memory,
    Program,
    State,
    digest,
    next_end,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.stateful.explorer.engine import Command
    from tests.stateful.explorer.state import Action

#: All groups of actions.
EVERYTHING = frozenset(
    [
        "add",
        "unique",
        "twice",
        "delay",
        "return",
        "fenced",
        "dead",
        "cancel",
        "wait",
        "clean",
        "deep",
        "foreign",
    ]
)
#: Arguments that are the same in each step.
_USUAL: dict[str, str | int] = {
    "word": "",
    "before": "",
    "prefix": PREFIX,
    "return_front": 0,
    "max_bytes": 1 << 20,
    "count": 500,
    "cursor": "0",
    "set_many": 0,
    "by_level": 0,
    "whole": 0,
    "pattern": f"{PREFIX}:item:*",
    "start": 0,
}


@dataclass(frozen=True)
class Bound:
    """What a search explores.

    Attributes:
        ids: The ids of the items.
        sessions: How many processes each session has; more than one shares the session, as after a fork.
        foreign: How many foreign clients run at the same time.
        groups: The groups of actions that are taken.
        depth: How many steps a path has at most.
        states: From how many states steps are taken.
        longest: States with more entries in all lists are not continued.
        faults: Faults in the scripts.
    """

    ids: tuple[str, ...] = ("a", "b")
    sessions: tuple[int, ...] = (1, 1)
    foreign: int = 1
    groups: frozenset[str] = EVERYTHING
    depth: int = 100
    states: int = 1_000_000
    longest: int = 7
    faults: tuple[Fault, ...] = ()

    def start(self) -> tuple[bytes, State]:
        """Return the first state and its digest."""
        memory = Memory(
            tokens=tuple([()] * len(self.ids)),
            blurred=tuple([0] * len(self.ids)),
            blocking=tuple(tuple([0] * count) for count in self.sessions),
            foreign=tuple([Program()] * self.foreign),
        )
        keys = read(b"[]", NOW_MS, self.ids, self.names)
        state = State(keys, memory, NOW_MS, b"[]")
        return self.digest(state), state

    @property
    def names(self) -> list[str]:
        """The names of the sessions."""
        return [f"lh:{n}" for n in range(len(self.sessions))]

    def digest(self, state: State) -> bytes:
        """Return the digest of a state. The empty id is an exception among ids."""
        return digest(state, alike="" not in self.ids)

    def explorer(self, url: str) -> QueueExplorer:
        """Return what explores it on a server."""
        return QueueExplorer(url, self)


class Board:
    """A server with the scripts of a search, and the names of the ids and sessions.

    Args:
        url: The server, which is emptied.
        bound: What is explored.
    """

    def __init__(self, url: str, bound: Bound) -> None:
        self.server = Server(url, UNIT_MS)
        self.ids: Sequence[str] = bound.ids
        self.number = {name: n for n, name in enumerate(bound.ids)}
        self.sessions: Sequence[str] = bound.names
        self.scripts = composed(bound.faults)
        self._read: dict[tuple[bytes, int], Keys] = {}
        for script in self.scripts.values():
            assert self.server.call("SCRIPT", "LOAD", script.body) == script.sha

    def keys(self, text: bytes, now_ms: int) -> Keys:
        """Return the keys of a dump."""
        found = self._read.get((text, now_ms))
        if found is None:
            if len(self._read) > 200_000:
                self._read.clear()
            found = self._read[text, now_ms] = read(text, now_ms, self.ids, self.sessions)
        return found

    def script(
        self, name: str, now_ms: int, *rest: str | int, session: int | str = 0, **others: str | int
    ) -> Command:
        """Return the command that runs a script, its keys and arguments given by name."""
        script = self.scripts[name]
        holder = self.sessions[session] if isinstance(session, int) else session
        keys = [f"{PREFIX}:{'inbox:' + holder if key == 'inbox' else key}" for key in script.keys]
        values = {**_USUAL, "session": holder, "now_ms": now_ms, **others}
        arguments = [values[argument] for argument, kind in script.arguments.items() if kind != "rest"]
        return ("EVALSHA", script.sha, len(keys), *keys, *arguments, *rest)


class QueueExplorer:
    """Takes all steps from states, several of them in one trip."""

    def __init__(self, url: str, bound: Bound) -> None:
        self.bound = bound
        self.board = Board(url, bound)
        self.steps = self.recoveries = 0
        self._seen: set[int] = set()
        self._digests: set[bytes] = set()

    def close(self) -> None:
        """Close the connection."""
        self.board.server.close()

    def expand(self, states: Sequence[tuple[int, State]], *, last: bool) -> Iterator[Found | Broken]:
        """See `engine.Explorer`."""
        waiting: list[tuple[int, State, Recovery, list[tuple[Action, bool]]]] = []
        for number, state in states:
            waiting.append((number, state, *self._send(state, last=last)))
            if len(waiting) > 4:
                yield from self._receive(*waiting.pop(0))
        for one in waiting:
            yield from self._receive(*one)

    def _send(self, state: State, *, last: bool) -> tuple[Recovery, list[tuple[Action, bool]]]:
        server, recovery = self.board.server, Recovery(self.board, state)
        parts = [server.load(state.text, recovery.begin_ms), *starmap(pack, recovery.commands)]
        parts += [server.dump(recovery.end_ms), server.load(state.text, state.now_ms)]
        parts += [pack(*self.board.script("counts", state.now_ms))]
        actions = []
        if not last and self._is_short(state):
            back = server.back(state.now_ms)
            for action in enabled(state, self.bound.groups):
                sent = command(self.board, action, state)
                actions.append((action, sent is not None))
                if sent:
                    parts += [pack(*sent), back]
        server.send(b"".join(parts))
        return recovery, actions

    def _is_short(self, state: State) -> bool:
        keys = state.keys
        inboxes = sum(len(inbox) for _, inbox in keys.sessions)
        return len(keys.queue) + len(keys.processing) + len(keys.cleaning) + inboxes <= self.bound.longest

    def _receive(
        self, number: int, state: State, recovery: Recovery, actions: list[tuple[Action, bool]]
    ) -> Iterator[Found | Broken]:
        reply = self.board.server.reply
        checked(reply())
        replies = [reply() for _ in recovery.commands]
        self.recoveries += 1
        left = self.board.keys(checked(reply()), recovery.end_ms)
        checked(reply())
        for what in (*counted(checked(reply()), state.keys), *recovery.violations(replies, left)):
            yield Broken(number, None, what)
        for action, is_sent in actions:
            self.steps += 1
            answer, text = None, None
            if is_sent:
                answer, text = reply(), checked(reply())
            if isinstance(answer, Exception):
                yield Broken(number, action, f"the step has failed: {answer}")
                continue
            answer = understood(self.board, action, answer)
            text = state.text if text is None else text
            now_ms = begin_of(state) if action.name == "deep_clean" else state.now_ms
            keys = self.board.keys(text, next_end(state) if action.name == "clock" else now_ms)
            then = after(action, state, answer, keys, text)
            for what in violations(action, state, answer, then):
                yield Broken(number, action, what)
            known = hash(then)
            if known not in self._seen:
                self._seen.add(known)
                name = self.bound.digest(then)
                if name not in self._digests:
                    self._digests.add(name)
                    yield Found(name, number, action, then)

"""Searches all states that can be reached, breadth first, for one that breaks a rule."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.stateful.explorer.actions import after, command, enabled, understood
from tests.stateful.explorer.checks import Recovery, counted, violations
from tests.stateful.explorer.server import NOW_MS, Board, Fault, Layout, pack
from tests.stateful.explorer.state import State, digest, initial, normal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.stateful.explorer.server import Command
    from tests.stateful.explorer.state import Action

#: All groups of actions.
EVERYTHING = frozenset(
    {
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
    }
)


@dataclass(frozen=True)
class Bound:
    """What a search explores.

    Attributes:
        ids: The ids of the items.
        sessions: How many processes each session has; more than one shares the session, as after a fork.
        foreign: How many foreign clients run at the same time.
        groups: The groups of actions that are taken.
        depth: How many steps a path has at most.
        states: Begin no further level when there are so many states.
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

    @property
    def alike(self) -> bool:
        """Whether the ids may be exchanged. The empty id is an exception among ids."""
        return "" not in self.ids

    def start(self) -> State:
        """Return the first state."""
        return initial(len(self.ids), self.sessions, self.foreign)

    def board(self, url: str) -> Board:
        """Return a server for this search."""
        return Board(url, Layout(self.ids, len(self.sessions)), self.faults)


class Found(NamedTuple):
    """A state that was reached for the first time: its digest, from where, by which action."""

    digest: bytes
    parent: int
    action: Action
    state: State


class Broken(NamedTuple):
    """A rule that was broken: in which state, by which action (None: in its recovery), and what."""

    parent: int
    action: Action | None
    what: str


@dataclass
class Result:
    """What a search has found.

    Attributes:
        levels: How many new states each level has.
        steps: How many steps were taken.
        seconds: How long it took.
        path: The shortest path to a violation.
        what: The violation, or nothing.
        in_recovery: Whether the state at the end of the path does not recover, instead of its last step.
    """

    levels: list[int] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    path: list[Action] = field(default_factory=list)
    what: str = ""
    in_recovery: bool = False

    @property
    def states(self) -> int:
        """How many states there are."""
        return sum(self.levels)


class Explorer:
    """Takes all steps from states, on one server.

    Args:
        url: The server, which is emptied.
        bound: What is explored.
    """

    def __init__(self, url: str, bound: Bound) -> None:
        self.bound = bound
        self.board = bound.board(url)
        self.steps = 0
        self._packed: dict[Command, bytes] = {}
        self._seen: set[int] = set()
        self._digests: set[bytes] = set()
        self._counts = pack(self.board.script("counts"))

    def expand(self, states: Sequence[tuple[int, State]], *, last: bool) -> Iterator[Found | Broken]:
        """Yield the states that follow, once each, and what is broken.

        Args:
            states: The states, each with its number.
            last: Only check these states, and take no step.
        """
        waiting: list[tuple[int, State, Recovery, list[tuple[Action, bool]]]] = []
        for number, state in states:
            waiting.append((number, state, *self._send(state, last=last)))
            if len(waiting) > 4:
                yield from self._receive(*waiting.pop(0))
        for one in waiting:
            yield from self._receive(*one)

    def _send(self, state: State, *, last: bool) -> tuple[Recovery, list[tuple[Action, bool]]]:
        board = self.board
        recovery = Recovery(board, state)
        parts = [board.load(recovery.start.keys)]
        parts += map(self._pack, recovery.commands)
        parts += [board.dump, board.load(state.keys, state.memory.deep_clean.leased), self._counts]
        actions = []
        if not last and self._is_short(state):
            for action in enabled(state, self.bound.groups):
                sent = command(board, action, state, NOW_MS)
                actions.append((action, sent is not None))
                if sent:
                    parts += [self._pack(sent), board.back]
        board.wire.send(b"".join(parts))
        return recovery, actions

    def _pack(self, sent: Command) -> bytes:
        found = self._packed.get(sent)
        if found is None:
            found = self._packed[sent] = pack(sent)
        return found

    def _is_short(self, state: State) -> bool:
        keys = state.keys
        inboxes = sum(len(inbox) for _, inbox in keys.sessions)
        return len(keys.queue) + len(keys.processing) + len(keys.cleaning) + inboxes <= self.bound.longest

    def _receive(
        self, number: int, state: State, recovery: Recovery, actions: list[tuple[Action, bool]]
    ) -> Iterator[Found | Broken]:
        board = self.board
        reply = board.wire.reply
        _checked(reply())
        replies = [reply() for _ in recovery.commands]
        left = board.keys(_checked(reply()))
        _checked(reply())
        for what in (*counted(_checked(reply()), state.keys), *recovery.violations(replies, left)):
            yield Broken(number, None, what)
        for action, is_sent in actions:
            self.steps += 1
            answer, keys = None, state.keys
            if is_sent:
                answer, text = reply(), _checked(reply())
                if text is not None:
                    keys = board.keys(text)
            if isinstance(answer, Exception):
                yield Broken(number, action, f"the step has failed: {answer}")
                continue
            answer = understood(board, action, answer)
            then = after(action, state, answer, keys)
            for what in violations(action, state, answer, then):
                yield Broken(number, action, what)
            known = hash(then)
            if known in self._seen:
                continue
            self._seen.add(known)
            then = normal(then)
            name = digest(then, alike=self.bound.alike)
            if name not in self._digests:
                self._digests.add(name)
                yield Found(name, number, action, then)


def _checked(reply: Any) -> Any:
    """Return the reply of a helper."""
    if isinstance(reply, Exception):
        raise reply
    return reply


Chunk = tuple["Sequence[tuple[int, State]]", bool]
_explorer: Explorer | None = None


def _begin(urls: Any, bound: Bound) -> None:
    global _explorer  # noqa: PLW0603 - one for each process of the pool
    _explorer = Explorer(urls.get(), bound)


def _expand(chunk: Chunk) -> tuple[list[Found | Broken], int]:
    assert _explorer is not None
    before = _explorer.steps
    found = [*_explorer.expand(chunk[0], last=chunk[1])]
    return found, _explorer.steps - before


@contextmanager
def _pool(urls: Sequence[str], bound: Bound) -> Iterator[Callable[[list[Chunk]], Iterable[Any]]]:
    if len(urls) == 1:
        _begin(SimpleNamespace(get=lambda: urls[0]), bound)
        yield lambda chunks: map(_expand, chunks)
        assert _explorer is not None
        _explorer.board.close()
        return
    spawn = multiprocessing.get_context("spawn")
    given = spawn.Queue()
    for url in urls:
        given.put(url)
    with ProcessPoolExecutor(len(urls), spawn, _begin, (given, bound)) as pool:
        yield lambda chunks: pool.map(_expand, chunks)


def _path(parents: Sequence[tuple[int, Action | None]], broken: Broken) -> list[Action]:
    path = [broken.action] if broken.action else []
    number = broken.parent
    while number > 0:
        number, action = parents[number]
        assert action is not None
        path.insert(0, action)
    return path


def search(urls: Sequence[str], bound: Bound, *, chunk: int = 200) -> Result:
    """Search breadth first, with one process for each server if there are several.

    Args:
        urls: The servers, which are emptied.
        bound: What is explored.
        chunk: How many states a process is given at a time.
    """
    began, result = time.monotonic(), Result()
    parents: list[tuple[int, Action | None]] = [(-1, None)]
    seen = {digest(normal(bound.start()), alike=bound.alike)}
    level: list[tuple[int, State]] = [(0, bound.start())]
    with _pool(urls, bound) as expand:
        while level and not result.what:
            result.levels.append(len(level))
            last = len(result.levels) > bound.depth or len(parents) >= bound.states
            chunks: list[Chunk] = [(level[n : n + chunk], last) for n in range(0, len(level), chunk)]
            level = []
            for found, steps in expand(chunks):
                result.steps += steps
                for one in found:
                    if isinstance(one, Broken):
                        path = _path(parents, one)
                        if not result.what or len(path) < len(result.path):
                            result.path, result.what = path, one.what
                            result.in_recovery = one.action is None
                    elif one.digest not in seen:
                        seen.add(one.digest)
                        parents.append((one.parent, one.action))
                        level.append((len(parents) - 1, one.state))
    result.seconds = time.monotonic() - began
    return result
